// SPDX-License-Identifier: Apache-2.0
// The caching allocator where the host has no memory: whichever allocation fails in whichever
// public call, it is told and nothing is lost.
#include <array>
#include <new>
#include <thread>

#include "support/scarce_machine.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream_watch.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;

class counting_sink final : public event_sink {
 public:
  void on_event(const memory_event&) noexcept override { ++events; }
  std::uint64_t events = 0;
};

class scarce_allocator : public scarce_machine {
 protected:
  /// Calls that return no result may throw std::bad_alloc, and nothing else.
  template <class Call>
  static void may_throw(const Call& call) {
    try {
      call();
    } catch (const std::bad_alloc&) {
    }
  }
  /// Creates an allocator, runs `program` with it, and closes it.
  template <class Program>
  void sweep_with(const allocator_options& options, const Program& program) {
    sweep([&] {
      auto memory = caching_allocator::create(gpu(), options);
      if (!met(memory)) return;
      program(*memory);
      met(memory->empty_cache());
    });
  }
  template <class Program>
  void sweep_policies(const Program& program) {
    for (const auto policy : {placement_policy::balanced, placement_policy::compact,
                              placement_policy::classic, placement_policy::classic_expandable}) {
      SCOPED_TRACE(to_string(policy));
      sweep_with({.policy = policy}, program);
    }
  }
  template <class Memory>
  void* take(const Memory& memory, bytes size, const stream_ref& on) {
    const auto block = memory.try_allocate(size, on);
    return met(block, errc::out_of_memory) ? *block : nullptr;
  }
  void give(const caching_allocator& memory, void* block, const stream_ref& on) {
    if (block != nullptr) free([&] { return memory.try_deallocate(block, on); });
  }
};

TEST_F(scarce_allocator, RequestsFreesAndQuestions) {
  sweep_policies([&](caching_allocator& memory) {
    std::array<void*, 5> blocks{};
    for (std::size_t i = 0; i < blocks.size(); ++i)
      blocks[i] = take(memory, 3_KiB * (std::uint64_t{1} << (3 * i)), i % 2 == 0 ? one : two);
    if (blocks[0] != nullptr) {
      met(memory.record_stream(blocks[0], two));
      met(memory.size_of(blocks[0]));
      met(memory.block_at(blocks[0]));
      met(memory.describe_address(blocks[0]));
      met(memory.handles_under(blocks[0]), errc::not_supported);
    }
    work(one);
    work(two);
    met(memory.try_deallocate(this, one), errc::foreign_pointer);
    met(memory.record_stream(this, one), errc::foreign_pointer);
    for (std::size_t i = 0; i < blocks.size(); ++i) give(memory, blocks[i], i % 2 == 0 ? one : two);
    if (blocks[0] != nullptr) met(memory.assume_joined(blocks[0]));
    give(memory, take(memory, 20_MiB, two), two);
    met(memory.trim(1_MiB));
    met(memory.shrink(1_MiB));
    met(memory.release_stream(two));
    met(memory.empty_cache());
    may_throw([&] { static_cast<void>(memory.stats()); });
    may_throw([&] { static_cast<void>(memory.stats_by_tag()); });
    may_throw([&] { static_cast<void>(memory.snapshot()); });
    may_throw([&] { static_cast<void>(memory.explain(1_GiB, one)); });
    memory.reset_peaks();
    memory.reset_counters();
  });
}

TEST_F(scarce_allocator, RequestsThatCannotBeMet) {
  sweep_policies([&](caching_allocator& memory) {
    may_throw([&] {
      const auto asked = memory.on_out_of_memory([](bytes) { return false; });
      met(memory.try_allocate(2000_MiB, one), errc::out_of_memory);
      void* const held = take(memory, 1_GiB, one);
      work(one);
      give(memory, held, one);
      give(memory, take(memory, 600_MiB, two), two);
      met(memory.try_allocate(2000_MiB, two), errc::out_of_memory);
    });
    met(memory.try_allocate(3_GiB, one), errc::out_of_memory);
    met(memory.set_limit(4_MiB));
    give(memory, take(memory, 64_MiB, one), one);
    met(memory.set_limit_fraction(1.0));
  });
}

TEST_F(scarce_allocator, TagsPoolsAndObservers) {
  const auto weights = tag::named("scarce weights").value();
  sweep_policies([&](caching_allocator& memory) {
    counting_sink sink;
    may_throw([&] {
      const auto heard = memory.add_observer(sink);
      const tag_scope scope{weights};
      give(memory, take(memory, 4_MiB, one), one);
    });
    met(memory.set_limit(weights, 1_MiB));
    {
      const tag_scope scope{weights};
      met(memory.try_allocate(2_MiB, one), errc::out_of_memory);
    }
    met(memory.set_limit(weights, bytes::max()));
    auto pool = memory.create_pool("scarce");
    if (!met(pool)) return;
    void* const inside = take(*pool, 5_MiB, one);
    may_throw([&] { static_cast<void>(pool->snapshot()); });
    give(memory, inside, one);
    met(pool->set_fallback(true));
    {
      const pool_scope scope{*pool};
      give(memory, take(memory, 1_MiB, two), two);
    }
    met(pool->empty_cache());
    met(memory.empty_cache(pool->id()));
  });
}

TEST_F(scarce_allocator, CapturesAndGraphs) {
  sweep_policies([&](caching_allocator& memory) {
    auto graph = memory.begin_capture(one);
    if (!met(graph)) return;
    {
      const spared_memory spared;
      const context_scope bound{gpu()};
      ASSERT_EQ(machine->driver().stream_begin_capture(one.handle(),
                                                       driver::CU_STREAM_CAPTURE_MODE_RELAXED),
                driver::CUDA_SUCCESS);
    }
    give(memory, take(memory, 2_MiB, one), one);
    give(memory, take(memory, 2_MiB, two), two);
    met(memory.empty_cache());
    {
      const spared_memory spared;
      const context_scope bound{gpu()};
      driver::CUgraph captured = nullptr;
      ASSERT_EQ(machine->driver().stream_end_capture(one.handle(), &captured),
                driver::CUDA_SUCCESS);
      ASSERT_EQ(machine->driver().graph_destroy(captured), driver::CUDA_SUCCESS);
    }
    may_throw([&] {
      const auto notice = memory.guard_captures();
      give(memory, take(memory, 3_MiB, two), two);
    });
  });
}

TEST_F(scarce_allocator, CapturesLeaveNoPool) {
  sweep_with({.detect_captures = true}, [&](caching_allocator& memory) {
    met(memory.begin_capture(one));
    const auto& driver = machine->driver();
    {
      const spared_memory spared;
      const context_scope bound{gpu()};
      ASSERT_EQ(driver.stream_begin_capture(two.handle(), driver::CU_STREAM_CAPTURE_MODE_RELAXED),
                driver::CUDA_SUCCESS);
    }
    give(memory, take(memory, 2_MiB, two), two);
    {
      const spared_memory spared;
      const context_scope bound{gpu()};
      driver::CUgraph captured = nullptr;
      ASSERT_EQ(driver.stream_end_capture(two.handle(), &captured), driver::CUDA_SUCCESS);
      ASSERT_EQ(driver.graph_destroy(captured), driver::CUDA_SUCCESS);
      for (int i = 0; i < 2; ++i) {
        machine->run_until_idle();
        ASSERT_TRUE(memory.empty_cache());
      }
      EXPECT_EQ(memory.snapshot().pools.size(), 1u);
    }
  });
}

TEST_F(scarce_allocator, StreamsOfOthersAndOtherDevices) {
  sweep_with({}, [&](caching_allocator& memory) {
    if (!met(memory.enable_peer(gpu(1)))) return;
    auto passing = stream::create(gpu());
    if (!met(passing)) return;
    void* const block = take(memory, 4_MiB, *passing);
    if (block != nullptr) met(memory.record_stream(block, far));
    if (block != nullptr) met(memory.record_stream(block, two));
    work(far);
    give(memory, block, *passing);
    met(passing->close());
    give(memory, take(memory, 4_MiB, two), two);
    met(memory.empty_cache());
  });
}

TEST_F(scarce_allocator, SuspendedMemory) {
  const auto weights = tag::named("scarce weights").value();
  for (const auto kind : {host_memory_kind::pinned, host_memory_kind::pageable}) {
    SCOPED_TRACE(to_string(kind));
    sweep_with({}, [&](caching_allocator& memory) {
      if (!met(memory.declare_suspendable(weights))) return;
      void* block = nullptr;
      {
        const tag_scope scope{weights};
        block = take(memory, 4_MiB, one);
      }
      met(memory.suspend(weights, {.to = kind}));
      met(memory.trim_backup());  // what a return copies through has to be taken again
      met(memory.resume(weights));
      met(memory.suspend_async(weights, {.to = kind}));
      met(memory.resume_async(weights, one));
      met(memory.suspend({.to = kind}));
      met(memory.suspend(weights, {.contents = suspended_contents::discard}));
      may_throw([&] { static_cast<void>(memory.is_suspended(weights)); });
      const auto back = memory.resume();
      if (!met(back)) {
        const spared_memory spared;
        ASSERT_TRUE(memory.resume());
      }
      give(memory, block, one);
      met(memory.reserve_backup(1_MiB, kind));
      met(memory.trim_backup());
    });
  }
}

TEST_F(scarce_allocator, BlocksThatAreChecked) {
  for (const auto checks : {debug_checks::red_zones, debug_checks::guard_pages}) {
    SCOPED_TRACE(to_string(checks));
    sweep_with({.debug = checks}, [&](caching_allocator& memory) {
      std::array<void*, 3> blocks{};
      for (void*& each : blocks) each = take(memory, 300_KiB, one);
      if (blocks[0] != nullptr) met(memory.record_stream(blocks[0], two));
      for (void* const each : blocks) give(memory, each, one);
      give(memory, take(memory, 4_MiB, two), two);
      met(memory.empty_cache());
    });
  }
}

TEST_F(scarce_allocator, ThreadsWithCachesOfTheirOwn) {
  sweep_with({}, [&](caching_allocator& memory) {
    void* const block = take(memory, 64_KiB, one);
    {
      const spared_memory spared;  // of the thread; the allocator's memory is scarce there, too
      std::thread other{[&] {
        give(memory, block, one);
        give(memory, take(memory, 64_KiB, one), one);
      }};
      other.join();
    }
    give(memory, take(memory, 64_KiB, one), one);
  });
}

}  // namespace
}  // namespace weir::testing_support
