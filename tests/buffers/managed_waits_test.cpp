// SPDX-License-Identifier: Apache-2.0
// Unified buffers and threads: default streams of threads, waits that hold up nobody, and forks.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "buffers/simulated_test.hpp"
#include "support/watched_thread.hpp"
#include "weir/buffer/unified_buffer.hpp"

namespace weir::testing_support { namespace {

using driver::call;

constexpr std::size_t waited_words = 1024;

class managed_waits : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(1, device_with_room());
    open(settings);
  }
  [[nodiscard]] unified_buffer<word> make(const stream_ref& on) {
    auto some = unified_buffer<word>::zeroed(waited_words, on).value();
    EXPECT_TRUE(some.view());
    return some;
  }
  /// Does `wait` on another thread, which waits for `busy`; `meanwhile` is done here while it does.
  void while_waiting(const stream& busy, const std::function<void()>& wait,
                     const std::function<void()>& meanwhile) {
    const auto waits = machine->calls(call::event_synchronize);
    const watched_thread waiting{wait};
    while (machine->calls(call::event_synchronize) == waits && !waiting.is_over())
      std::this_thread::yield();
    EXPECT_FALSE(waiting.is_over()) << "nothing was waited for";
    meanwhile();
    EXPECT_FALSE(waiting.is_over());
    machine->release(busy.handle());
  }
};

// --- Default streams of threads ------------------------------------------------------------------

TEST_F(managed_waits, AViewWaitsForTheDefaultStreamOfAnotherThread) {
  auto some = make(make_stream());
  std::thread{[&] {
    const stream_ref own = stream_ref::per_thread(gpu());
    launch(some.use_on(own).value(), own);
  }}.join();
  EXPECT_EQ(code_of(some.try_view()), errc::not_supported) << "only waiting can tell";
  const auto view = some.view().value();
  machine->host_read(view.data(), waited_words * sizeof(word));
  EXPECT_THAT(view.span(), AllAre(1U));
}

TEST_F(managed_waits, TheDefaultStreamsOfTwoThreadsAreTwoUsers) {
  auto some = make(make_stream());
  const stream_ref own = stream_ref::per_thread(gpu());
  launch({some.use_on(own).value().data(), waited_words / 2}, own);
  std::thread{[&] {
    launch({some.use_on(own).value().data() + waited_words / 2, waited_words / 2}, own);
  }}.join();
  WEIR_DONE(own.synchronize());
  const auto view = some.view().value();
  machine->host_read(view.data(), waited_words * sizeof(word));
  EXPECT_THAT(view.span(), AllAre(1U)) << "both are done";
}

TEST_F(managed_waits, TheDefaultStreamOfThisThreadIsAskedAlone) {
  auto some = make(make_stream());
  const stream_ref own = stream_ref::per_thread(gpu());
  launch(some.use_on(own).value(), own);
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready);
  WEIR_DONE(own.synchronize());
  const auto frees = machine->calls(call::mem_free);
  EXPECT_TRUE(some.try_view());
  EXPECT_EQ(machine->calls(call::mem_free), frees) << "no wait for all work";
}

TEST_F(managed_waits, ABufferThatEndsOnAnotherThreadIsFreedBehindItsWork) {
  std::optional some = make(make_stream());
  std::thread{[&] {
    const stream_ref own = stream_ref::per_thread(gpu());
    launch(some->use_on(own).value(), own);
  }}.join();
  some.reset();  // freed in use, were it not for the wait
}

// --- Waits ---------------------------------------------------------------------------------------

TEST_F(managed_waits, AViewHoldsUpNoStreamAndNoOtherCall) {
  const auto busy = make_stream();
  auto unrelated = make_stream();
  auto some = make(busy);
  machine->hold(busy.handle());
  launch(some.use_on(busy).value(), busy);
  while_waiting(
      busy, [&] { EXPECT_THAT(some.view().value().span(), AllAre(1U)); },
      [&] {
        WEIR_DONE(unrelated.close());
        EXPECT_EQ(code_of(some.use_on(busy)), errc::not_ready);
        EXPECT_EQ(code_of(some.try_view()), errc::not_ready);
        EXPECT_EQ(some.attached(), attachment::global);
      });
  EXPECT_TRUE(some.use_on(busy)) << "the view is over";
}

TEST_F(managed_waits, ResizingHoldsUpNoStream) {
  const auto busy = make_stream();
  const auto on = make_stream();
  auto unrelated = make_stream();
  auto some = make(busy);
  machine->hold(busy.handle());
  launch(some.use_on(busy).value(), busy);
  while_waiting(
      busy, [&] { WEIR_DONE(some.resize(2 * waited_words, on)); },
      [&] { WEIR_DONE(unrelated.close()); });
  EXPECT_THAT(some.view().value().span().first(waited_words), AllAre(1U));
}

// --- Forked children -----------------------------------------------------------------------------

TEST_F(managed_waits, AForkedChildIsToldThatTheDriverIsGone) {
  const auto busy = make_stream();
  auto some = make(busy);
  machine->hold(busy.handle());
  launch(some.use_on(busy).value(), busy);
  while_waiting(
      busy, [&] { EXPECT_TRUE(some.view()); },
      [&] {
        const pid_t child = ::fork();
        if (child == 0) {
          ::alarm(60);  // a child that hangs is killed
          const std::optional<errc> codes[] = {code_of(some.use_on(busy)),
                                               code_of(some.try_view()),
                                               code_of(some.view()),
                                               code_of(some.resize(10, busy)),
                                               code_of(some.prefetch(gpu(), busy)),
                                               code_of(some.attach(attachment::host, busy))};
          int others = 0;
          for (const auto& each : codes) others += each != errc::driver_gone;
          if (some.attached() != attachment::global) others += 100;
          ::_exit(others);
        }
        int status = -1;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status)) << "it hung";
        EXPECT_EQ(WEXITSTATUS(status), 0) << "so many calls said something else";
      });
}

// --- Devices without concurrent managed access ---------------------------------------------------

class two_exclusive_devices : public managed_waits {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(2, sim::device_spec{.concurrent_managed_access = false});
    open(settings);
  }
};

TEST_F(two_exclusive_devices, AViewWaitsForBothAndKeepsStreamsOfBothAway) {
  const auto here = make_stream();
  const auto there = make_stream(1);
  auto some = unified_buffer<word>::create(waited_words, here).value();
  auto other = unified_buffer<word>::zeroed(waited_words, there).value();
  launch(other.use_on(there).value(), there);
  {
    const auto view = some.view().value();
    machine->host_write(view.data(), waited_words * sizeof(word));
    EXPECT_TRUE(there.is_complete().value()) << "the other device was waited for";
    EXPECT_EQ(code_of(other.use_on(there)), errc::not_ready);
  }
  EXPECT_TRUE(other.use_on(there));
}

TEST_F(two_exclusive_devices, MemoryOfADestroyedStreamIsGlobalAgain) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::create(waited_words, on).value();
  auto other = unified_buffer<word>::zeroed(waited_words, on).value();
  {
    const auto owner = make_stream();
    WEIR_DONE(some.attach(attachment::single, owner));
  }
  launch(other.use_on(on).value(), on);
  const auto view = some.view().value();
  EXPECT_TRUE(on.is_complete().value()) << "all work of the device matters again";
}

}  // namespace
}  // namespace weir::testing_support
