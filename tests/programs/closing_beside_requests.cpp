// SPDX-License-Identifier: Apache-2.0
// Threads that use an allocator until it is closed under them.
#include "closing_beside_requests.hpp"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <thread>
#include <vector>

#include "support/sanitizers.hpp"
#include "support/sizes.hpp"
#include "watchdog.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream.hpp"
#include "world.hpp"

namespace weir::programs_test {
namespace {

using testing_support::mib;

/// One thread with a stream of its own. Every answer is a success, a shortage, or `closed`.
class user {
 public:
  user(world& in, caching_allocator memory, weir::tag evictable, std::uint64_t seed)
      : world_{in},
        memory_{std::move(memory)},
        evictable_{evictable},
        random_{seed},
        stream_{stream::create(in.gpu(0)).value()} {}

  void run() {
    const context_scope bound{world_.gpu(0)};
    while (!closed_ && !world_.failed()) step();
  }

 private:
  void step() {
    switch (random_.below(15)) {
      case 0:
        return judge(memory_.trim());
      case 1:
        return judge(memory_.shrink(bytes{random_.below(world_.capacity())}));
      case 2:
        return judge(memory_.empty_cache());
      case 3:
        return judge(memory_.suspend(evictable_, {.requests = suspended_requests::resume}));
      case 4:
        return judge(memory_.suspend_async(evictable_, {.requests = suspended_requests::resume}));
      case 5:
        return judge(memory_.resume(evictable_));
      case 6:
        return capture();
      case 7:
        return judge(memory_.trim_backup());
      case 8:
        return judge(memory_.reserve_backup(bytes{random_.magnitude(40 * mib)}));
      case 9:
        return pass();
      default:
        return allocate();
    }
  }

  void allocate() {
    const tag_scope tagged{random_.one_in(3) ? evictable_ : tag{}};
    const auto block = memory_.try_allocate(bytes{random_.magnitude(40 * mib)}, stream_);
    judge(block);
    if (!block) return;
    // Work that close() may have to wait for. It touches no block: close() may be through already.
    world_.expect_ok(world_.machine().launch(stream_.handle(), "work", {}), "launch");
    judge(memory_.try_deallocate(*block, stream_), {errc::foreign_pointer});
  }

  /// A stream that comes and goes: its end takes the allocator's lock, whoever waits for the
  /// device.
  void pass() {
    auto passing = stream::create(world_.gpu(0)).value();
    const auto block = memory_.try_allocate(bytes{random_.magnitude(2 * mib)}, passing);
    judge(block);
    world_.expect_ok(world_.machine().launch(passing.handle(), "passing work", {}), "launch");
    if (block) judge(memory_.try_deallocate(*block, passing), {errc::foreign_pointer});
    world_.expect_ok(passing.close(), "close of a stream");
  }

  void capture() {
    auto claim = memory_.begin_capture(stream_);
    judge(claim);
    if (!claim) return;
    if (!world_.expect_ok(world_.cuda().stream_begin_capture(
                              stream_.handle(), driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                          "cuStreamBeginCapture"))
      return;
    const auto block = memory_.try_allocate(bytes{2 * mib}, stream_);
    judge(block);
    if (block) judge(memory_.try_deallocate(*block, stream_), {errc::foreign_pointer});
    driver::CUgraph graph = nullptr;
    if (!world_.expect_ok(world_.cuda().stream_end_capture(stream_.handle(), &graph),
                          "cuStreamEndCapture"))
      return;
    world_.expect_ok(world_.cuda().graph_destroy(graph), "cuGraphDestroy");
  }

  template <class T>
  void judge(const result<T>& outcome, std::initializer_list<errc> also = {}) {
    if (outcome) return;
    const errc code = outcome.code();
    if (code == errc::closed) {
      closed_ = true;
      return;
    }
    const bool expected = code == errc::out_of_memory || code == errc::capture_forbidden ||
                          code == errc::suspended ||
                          std::find(also.begin(), also.end(), code) != also.end();
    if (!expected) world_.fail("beside close(): " + outcome.error().message());
  }

  world& world_;
  caching_allocator memory_;
  weir::tag evictable_;
  rng random_;
  stream stream_;
  bool closed_ = false;
};

}  // namespace

std::string close_beside_requests(std::uint64_t seed) {
  world machine{seed};
  machine.tolerate_reports();  // still_live, and suspensions that close() calls off
  const watchdog guard{std::chrono::seconds{testing_support::is_sanitized ? 240 : 60},
                       [&] { return "seed " + std::to_string(seed) + " hangs beside close()"; }};
  rng random{seed + 2};
  {
    allocator_options options;
    options.thread_cache = bytes{random.any_of({0 * mib, mib, 4 * mib})};
    options.policy = random.any_of({placement_policy::balanced, placement_policy::compact,
                                    placement_policy::classic, placement_policy::classic});
    auto memory = caching_allocator::create(machine.gpu(0), options).value();
    const tag evictable = tag::named("mixed evictable").value();
    machine.expect_ok(memory.declare_suspendable(evictable, {.evictable = true}), "declare");
    std::vector<user> users;
    for (std::uint64_t i = 0; i < 3; ++i)
      users.emplace_back(machine, memory, evictable, seed * 3 + i);
    std::vector<std::thread> threads;
    threads.reserve(users.size());
    for (user& each : users) threads.emplace_back([&each] { each.run(); });
    std::this_thread::sleep_for(std::chrono::microseconds{random.magnitude(20'000)});
    machine.expect_ok(memory.close(), "close");
    for (std::thread& each : threads) each.join();
  }
  if (machine.used(0) != machine.used_before(0)) machine.fail("close() left memory behind");
  return machine.outcome();
}

}  // namespace weir::programs_test
