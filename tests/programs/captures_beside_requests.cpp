// SPDX-License-Identifier: Apache-2.0
// Threads that capture streams, and threads that end, beside requests of others.
#include "captures_beside_requests.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "support/sanitizers.hpp"
#include "support/sizes.hpp"
#include "watchdog.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/stream_watch.hpp"
#include "world.hpp"

namespace weir::programs_test {
namespace {

using testing_support::mib;

constexpr int requests_a_thread = 60;

/// What the threads of a program share.
struct shared_state {
  world& in;
  caching_allocator memory;
  /// Held by the capturing thread during each capture, by others to keep captures away.
  std::mutex captures;
  /// Threads that want to keep captures away; the next capture lets them go first.
  std::atomic<int> waiting{0};
};

/// Where captures are noticed, streams keep what they free, so that memory may run out. Without a
/// notice the same request has room.
void request(shared_state& shared, const stream_ref& on, rng& random) {
  const bytes size{random.magnitude(shared.in.capacity() / 12)};
  auto block = shared.memory.try_allocate(size, on);
  if (!block && block.code() == errc::out_of_memory) {
    ++shared.waiting;
    const std::lock_guard no_captures{shared.captures};
    --shared.waiting;
    block = shared.memory.try_allocate(size, on);
  }
  if (!shared.in.expect_ok(block, "allocate beside captures")) return;
  shared.in.expect_ok(shared.memory.try_deallocate(*block, on), "free beside captures");
}

/// Requests on a stream of its own and, where it is asked for, on the legacy stream.
void use_stream(shared_state& shared, bool legacy, std::uint64_t seed) {
  world& in = shared.in;
  const context_scope bound{in.gpu(0)};
  rng random{seed};
  const stream own = stream::create(in.gpu(0)).value();
  for (int i = 0; i < requests_a_thread && !in.failed(); ++i) {
    const bool on_legacy = legacy && random.one_in(3);
    request(shared, on_legacy ? stream_ref::legacy(in.gpu(0)) : own.ref(), random);
    // Work that keeps what was freed with its stream. None on the legacy stream: that is the
    // program's own business beside captures.
    in.expect_ok(in.machine().launch(own.handle(), "work", {}), "launch");
    if (random.one_in(4)) in.machine().run_until_idle();
  }
}

/// Threads one after the other, each with its default stream.
void use_threads(shared_state& shared, std::uint64_t seed) {
  for (std::uint64_t i = 0; i < requests_a_thread / 4 && !shared.in.failed(); ++i) {
    std::thread{[&] {
      rng random{seed + i};
      request(shared, stream_ref::per_thread(shared.in.gpu(0)), random);
    }}.join();
  }
}

/// Captures a stream again and again until it is told to stop.
void capture(shared_state& shared, const std::atomic<bool>& over) {
  world& in = shared.in;
  const context_scope bound{in.gpu(0)};
  for (unsigned flags : {driver::CU_STREAM_NON_BLOCKING, driver::CU_STREAM_DEFAULT}) {
    driver::CUstream handle = nullptr;
    in.expect_ok(in.cuda().stream_create(&handle, flags), "cuStreamCreate");
    const stream_ref captured{in.gpu(0), handle};
    in.expect_ok(watch_stream(captured), "watch_stream");
    int done = 0;
    do {
      while (shared.waiting.load() != 0) std::this_thread::yield();
      const std::lock_guard capturing{shared.captures};
      const capture_guard notice = shared.memory.guard_captures().value();
      const auto mode = driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
      if (!in.expect_ok(in.cuda().stream_begin_capture(handle, mode), "cuStreamBeginCapture"))
        return;
      for (int i = 0; i < 3; ++i) std::this_thread::yield();
      driver::CUgraph graph = nullptr;
      if (!in.expect_ok(in.cuda().stream_end_capture(handle, &graph), "cuStreamEndCapture")) return;
      in.expect_ok(in.cuda().graph_destroy(graph), "cuGraphDestroy");
    } while (++done < 20 || (flags == driver::CU_STREAM_DEFAULT && !over.load()));
    in.expect_ok(unwatch_stream(captured), "unwatch_stream");
    in.expect_ok(in.cuda().stream_destroy(handle), "cuStreamDestroy");
  }
}

}  // namespace

std::string capture_beside_requests(std::uint64_t seed) {
  world machine{seed};
  const watchdog guard{std::chrono::seconds{testing_support::is_sanitized ? 240 : 60},
                       [&] { return "seed " + std::to_string(seed) + " hangs beside captures"; }};
  rng random{seed + 3};
  {
    allocator_options options;
    options.thread_cache = bytes{random.any_of({0 * mib, mib, 4 * mib})};
    options.policy = random.any_of({placement_policy::balanced, placement_policy::compact});
    shared_state shared{
        machine, caching_allocator::create(machine.gpu(0), options).value(), {}, {0}};
    caching_allocator& memory = shared.memory;
    // Live blocks take a quarter of the device at most; what streams keep may well fill half of it.
    if (random.one_in(2)) {
      machine.expect_ok(memory.set_limit(bytes{machine.capacity() / 2}), "set_limit");
    }
    std::atomic<bool> over{false};
    std::thread capturing{[&] { capture(shared, over); }};
    std::vector<std::thread> users;
    users.emplace_back([&] { use_stream(shared, true, seed * 3); });
    users.emplace_back([&] { use_stream(shared, false, seed * 3 + 1); });
    users.emplace_back([&] { use_threads(shared, seed * 3 + 2); });
    for (std::thread& each : users) each.join();
    over = true;
    capturing.join();
    machine.machine().run_until_idle();
    machine.expect_ok(memory.empty_cache(), "empty_cache at the end");
    machine.expect(memory.stats().reserved.current == bytes{}, "memory stays reserved");
    machine.expect_ok(memory.close(), "close");
  }
  if (machine.used(0) != machine.used_before(0)) machine.fail("captures left memory behind");
  return machine.outcome();
}

}  // namespace weir::programs_test
