// The end of an allocator, of its threads, of the driver and of the process.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using heap_lifetime_test = heap_test;

TEST_F(heap_lifetime_test, gives_everything_back_at_the_end) {
  const auto before = machine->used(device_id{0});
  const auto stream = new_stream();
  {
    auto memory = make();
    void* const p = memory.allocate(100_MiB, stream);
    write(stream, p, 100_MiB);
    memory.deallocate(p, stream);  // its work is not done: the end waits for it
    memory.deallocate(memory.allocate(1_KiB, stream), stream);
    EXPECT_GT(machine->used(device_id{0}), before);
  }
  EXPECT_LE(machine->used(device_id{0}).count(), before.count() + (64_MiB).count());
  EXPECT_THAT(machine->hazards(), IsEmpty());
}

TEST_F(heap_lifetime_test, what_is_still_live_is_reported_once) {
  const auto stream = new_stream();
  auto memory = make();
  static_cast<void>(memory.allocate(1000_B, stream));
  static_cast<void>(memory.allocate(3_MiB, stream));
  ASSERT_TRUE(memory.close());
  const auto found = heard.take();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].code, errc::still_live);
  EXPECT_EQ(found[0].requested.count(), 1024 + (3_MiB).count());
  EXPECT_THAT(found[0].detail, HasSubstr("2 live blocks"));
  ASSERT_TRUE(memory.close());
}

TEST_F(heap_lifetime_test, calls_after_the_end_say_so) {
  const auto stream = new_stream();
  auto memory = make();
  auto copy = memory;
  EXPECT_EQ(copy, memory);
  void* const p = memory.allocate(1_KiB, stream);
  memory.deallocate(p, stream);
  auto claim = memory.begin_capture(stream).value();
  ASSERT_TRUE(memory.close());
  EXPECT_EQ(code_of(copy.try_allocate(1_KiB, stream)), errc::closed);
  EXPECT_EQ(code_of(copy.try_deallocate(p, stream)), errc::closed);
  EXPECT_EQ(code_of(copy.record_stream(p, stream)), errc::closed);
  EXPECT_EQ(code_of(copy.size_of(p)), errc::closed);
  EXPECT_EQ(code_of(copy.trim()), errc::closed);
  EXPECT_EQ(code_of(copy.empty_cache()), errc::closed);
  EXPECT_EQ(code_of(copy.release_stream(stream)), errc::closed);
  EXPECT_EQ(code_of(copy.set_limit(1_GiB)), errc::closed);
  EXPECT_EQ(code_of(copy.create_pool("x")), errc::closed);
  EXPECT_EQ(code_of(copy.begin_capture(stream)), errc::closed);
  EXPECT_EQ(copy.stats().allocations, 0u);
  EXPECT_THROW(static_cast<void>(copy.allocate(1_KiB, stream)), failure);
  copy.deallocate(p, stream);
  EXPECT_EQ(heard.take().size(), 1u);
  claim.end();
  auto moved = std::move(copy);
  EXPECT_EQ(code_of(copy.try_allocate(1_KiB, stream)), errc::moved_from);  // NOLINT
  EXPECT_TRUE(copy.close());
}

TEST_F(heap_lifetime_test, a_threads_cache_goes_back_with_the_thread) {
  auto memory = make();
  const auto stream = new_stream();
  std::thread{[&] {
    std::vector<void*> all;
    void* const large = memory.allocate(32_MiB, stream);
    for (int i = 0; i < 10; ++i) all.push_back(memory.allocate(64_KiB, stream));
    for (void* const p : all) memory.deallocate(p, stream);
    memory.deallocate(large, stream);
    EXPECT_EQ(memory.stats().thread_cached, 640_KiB + 32_MiB);
  }}.join();
  EXPECT_EQ(memory.stats().thread_cached, 0_B);
  EXPECT_EQ(memory.stats().blocks.current, 0u);
  EXPECT_EQ(check(memory), "");
}

TEST_F(heap_lifetime_test, an_allocator_may_go_before_its_threads) {
  const auto stream = new_stream();
  auto memory = std::make_optional(make());
  std::atomic<int> stage{0};
  std::thread other{[&] {
    memory->deallocate(memory->allocate(64_KiB, stream), stream);
    stage = 1;
    while (stage != 2) std::this_thread::yield();
    memory->deallocate(memory->allocate(64_KiB, stream),
                       stream);  // another one, maybe at its place
  }};
  while (stage != 1) std::this_thread::yield();
  memory.reset();
  memory.emplace(make());
  stage = 2;
  other.join();
  EXPECT_EQ(memory->stats().allocations, 1u);
  EXPECT_EQ(check(*memory), "");
}

TEST_F(heap_lifetime_test, many_allocators_on_one_thread) {
  const auto stream = new_stream();
  std::vector<caching_allocator> all;
  for (int i = 0; i < 5; ++i) all.push_back(make());
  for (int round = 0; round < 50; ++round)
    for (auto& each : all) each.deallocate(each.allocate(64_KiB, stream), stream);
  for (auto& each : all) {
    EXPECT_EQ(each.stats().hits, 49u);
    EXPECT_EQ(check(each), "");
  }
}

TEST_F(heap_lifetime_test, is_silent_when_the_driver_is_gone) {
  const auto stream = new_stream();
  {
    auto memory = make();
    static_cast<void>(memory.allocate(1_MiB, stream));
    memory.deallocate(memory.allocate(2_MiB, stream), stream);
    machine->shut_down();
    EXPECT_EQ(code_of(memory.try_allocate(64_MiB, stream)), errc::driver_gone);
  }
  EXPECT_THAT(heard.take(), IsEmpty());
}

TEST_F(heap_lifetime_test, a_forked_child_is_told_and_touches_nothing) {
  const auto stream = new_stream();
  auto memory = std::make_optional(make());
  void* const p = memory->allocate(64_KiB, stream);
  memory->deallocate(memory->allocate(128_KiB, stream), stream);
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    const auto gone = [&](const auto& outcome, int number) {
      if (wrong == 0 && (outcome || outcome.code() != errc::driver_gone)) wrong = number;
    };
    gone(memory->try_allocate(128_KiB, stream), 1);  // a hit in the parent
    gone(memory->try_allocate(64_MiB, stream), 2);
    gone(memory->try_deallocate(p, stream), 3);
    gone(memory->try_deallocate(p), 4);
    gone(memory->record_stream(p, stream), 5);
    gone(memory->trim(), 6);
    gone(memory->empty_cache(), 7);
    gone(memory->close(), 8);
    gone(memory->create_pool("x"), 9);
    if (memory->stats().allocations != 0) wrong = 10;
    memory->deallocate(p, stream);
    memory.reset();
    if (!heard.take().empty()) wrong = 11;
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  memory->deallocate(p, stream);
  EXPECT_EQ(check(*memory), "");
}

}  // namespace
}  // namespace weir::testing_support
