// SPDX-License-Identifier: Apache-2.0
// Pools that wait for streams: meanwhile every other call goes on, and streams can end.
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "pools/pool_fixture.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

/// Parts of one allocation. To take one back waits for nothing, as cuMemFree would.
class waitless_slab final : public memory_source {
 public:
  explicit waitless_slab(device home) : home_{home} {
    const context_scope scope{home_};
    base_ = allocate_plain(scope, slab_size).value();
  }
  ~waitless_slab() override {
    const context_scope scope{home_};
    EXPECT_TRUE(free_plain(scope, base_));
  }
  result<void*> allocate(bytes size, const stream_ref&) override {
    const std::uint64_t at = used_.fetch_add(size.count());
    if (at + size.count() > slab_size.count()) return errc::out_of_memory;
    return reinterpret_cast<void*>(base_ + at);
  }
  result<void> deallocate(void*, bytes) override {
    ++returns_;
    return {};
  }
  [[nodiscard]] int returns() const noexcept { return returns_; }

 private:
  static constexpr bytes slab_size = 16_MiB;
  const device home_;
  driver::CUdeviceptr base_ = 0;
  std::atomic<std::uint64_t> used_{0};
  std::atomic<int> returns_{0};
};

class block_pool_waits_test : public block_pool_test {
 protected:
  /// The slab outlives the pool.
  [[nodiscard]] bin_pool make_bins_on(waitless_slab& slab, crossing_rule rule) const {
    return bin_pool::create(gpu(), {.crossing = rule},
                            std::shared_ptr<memory_source>{&slab, [](memory_source*) {}})
        .value();
  }
  template <class Condition>
  [[nodiscard]] static bool comes(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
    return false;
  }
  /// Does `wait` on another thread, which waits for `busy`. As soon as it does, `meanwhile` is
  /// done here; then the stream goes on.
  void while_waiting(const stream& busy, const std::function<void()>& wait,
                     const std::function<void()>& meanwhile) {
    held_stream held = hold(busy);
    const auto waits = machine->calls(call::event_synchronize);
    std::atomic<bool> over{false};
    std::thread waiting{[&] {
      wait();
      over = true;
    }};
    while (machine->calls(call::event_synchronize) == waits && !over) std::this_thread::yield();
    EXPECT_FALSE(over) << "nothing was waited for";
    meanwhile();
    EXPECT_FALSE(over);
    held.release();
    waiting.join();
  }
  /// What must not wait: the end of a stream, and every call of the pool.
  template <class Pool>
  void use(const Pool& pool, stream unrelated) {
    EXPECT_TRUE(unrelated.close());
    const auto idle = new_stream();
    void* const p = pool.try_allocate(64_KiB, idle).value();
    EXPECT_TRUE(pool.record_stream(p, idle));
    EXPECT_TRUE(pool.try_deallocate(p, idle));
    EXPECT_GT(pool.stats().allocations, 0u);
    EXPECT_TRUE(pool.trim(bytes::max()));
    EXPECT_TRUE(pool.release_stream(idle));
  }

  stream busy = new_stream();
};

TEST_F(block_pool_waits_test, EmptyingTheCacheHoldsUpNobody) {
  const auto fill = [&](const auto& pool) {
    void* const p = pool.allocate(1_MiB, busy);
    write(busy, p, 1_MiB);
    pool.deallocate(p, busy);
  };
  const auto bins = make_bins();
  fill(bins);
  while_waiting(
      busy, [&] { EXPECT_TRUE(bins.empty_cache()); }, [&] { use(bins, new_stream()); });
  const auto pinned = pinned_pool::create(gpu()).value();
  fill(pinned);
  while_waiting(
      busy, [&] { EXPECT_TRUE(pinned.empty_cache()); }, [&] { use(pinned, new_stream()); });
}

TEST_F(block_pool_waits_test, ALowerThresholdHoldsUpNobody) {
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, busy);
  write(busy, p, 1_MiB);
  pool.deallocate(p, busy);
  while_waiting(
      busy, [&] { EXPECT_TRUE(pool.set_threshold({})); },
      [&] {
        EXPECT_EQ(pool.threshold(), 0_B);
        use(pool, new_stream());
      });
}

TEST_F(block_pool_waits_test, ClosingHoldsUpNobody) {
  const auto pool = make_bins();
  const auto idle = new_stream();
  void* const live = pool.allocate(2_MiB, idle);
  void* const p = pool.allocate(1_MiB, busy);
  write(busy, p, 1_MiB);
  pool.deallocate(p, busy);
  auto unrelated = new_stream();
  while_waiting(
      busy, [&] { EXPECT_TRUE(pool.close()); },
      [&] {
        EXPECT_TRUE(unrelated.close());
        EXPECT_EQ(code_of(pool.try_allocate(1_KiB, idle)), errc::closed);
        EXPECT_EQ(pool.stats().blocks.current, 1u);
      });
  EXPECT_EQ(pool.stats().cached, 0_B);
  pool.deallocate(live, idle);
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
}

TEST_F(block_pool_waits_test, AFreeIntoAClosedPoolHoldsUpNobody) {
  const auto pool = make_bins();
  const auto idle = new_stream();
  void* const other = pool.allocate(2_MiB, idle);
  void* const p = pool.allocate(1_MiB, busy);
  write(busy, p, 1_MiB);
  ASSERT_TRUE(pool.close());
  auto unrelated = new_stream();
  while_waiting(
      busy, [&] { EXPECT_TRUE(pool.try_deallocate(p, busy)); },
      [&] {
        EXPECT_TRUE(unrelated.close());
        EXPECT_TRUE(pool.record_stream(other, idle));
        EXPECT_EQ(pool.stats().blocks.current, 1u);
      });
  pool.deallocate(other, idle);
}

TEST_F(block_pool_waits_test, AFreeIntoAClosedPoolWaitsForDeclaredUsesAlone) {
  waitless_slab slab{gpu()};
  const auto pool = make_bins_on(slab, crossing_rule::declared_uses);
  const auto idle = new_stream();
  void* const p = pool.allocate(1_MiB, busy);
  void* const unrelated = pool.allocate(1_MiB, idle);
  void* const recorded = pool.allocate(1_MiB, idle);
  write(busy, p, 1_MiB);
  write(busy, recorded, 1_MiB);
  ASSERT_TRUE(pool.record_stream(recorded, busy));
  ASSERT_TRUE(pool.close());
  std::thread beside;
  std::atomic<bool> returned{false};
  while_waiting(
      busy, [&] { EXPECT_TRUE(pool.try_deallocate(p, busy)); },
      [&] {
        beside = std::thread{[&] {
          EXPECT_TRUE(pool.try_deallocate(unrelated, idle));
          returned = true;
        }};
        EXPECT_TRUE(comes([&] { return returned.load(); })) << "busy has nothing to do with it";
        EXPECT_EQ(slab.returns(), 1);
      });
  beside.join();
  EXPECT_EQ(slab.returns(), 2);
  write(busy, recorded, 1_MiB);
  while_waiting(
      busy, [&] { EXPECT_TRUE(pool.try_deallocate(recorded, idle)); },
      [&] { EXPECT_EQ(slab.returns(), 2); });
  EXPECT_EQ(slab.returns(), 3);
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
}

/// Neither for what streams are given after the free, nor for streams that come later.
TEST_F(block_pool_waits_test, AFreeIntoAClosedPoolWaitsForNoLaterWork) {
  waitless_slab slab{gpu()};
  const auto pool = make_bins_on(slab, crossing_rule::all_work);
  const auto idle = new_stream();
  void* const p = pool.allocate(1_MiB, busy);
  void* const other = pool.allocate(1_MiB, idle);
  write(busy, p, 1_MiB);
  ASSERT_TRUE(pool.close());
  held_stream held = hold(busy);
  const auto waits_begin = [&](const std::function<void()>& wait) {
    const auto before = machine->calls(call::event_synchronize);
    std::thread waiting{wait};
    EXPECT_TRUE(comes([&] { return machine->calls(call::event_synchronize) != before; }));
    return waiting;
  };
  auto freeing = waits_begin([&] { EXPECT_TRUE(pool.try_deallocate(p, busy)); });
  const auto later = new_stream();
  held_stream held_later = hold(later);
  write(later, other, 1_MiB);
  auto freeing_other = waits_begin([&] { EXPECT_TRUE(pool.try_deallocate(other, later)); });
  held.release();
  EXPECT_TRUE(comes([&] { return slab.returns() == 1; })) << "later has nothing to do with it";
  held_later.release();
  freeing.join();
  freeing_other.join();
  EXPECT_EQ(slab.returns(), 2);
}

TEST_F(block_pool_waits_test, ARequestOnAFullDeviceHoldsUpNobody) {
  const auto pool = make_bins();
  const auto two = new_stream();
  void* const p = pool.allocate(1536_MiB, busy);
  write(busy, p, 1_MiB);
  pool.deallocate(p, busy);
  void* q = nullptr;
  while_waiting(
      busy, [&] { q = pool.try_allocate(1_GiB, two).value_or(nullptr); },
      [&] { use(pool, new_stream()); });
  ASSERT_NE(q, nullptr) << "it gets what was waited for";
  write(two, q, 1_MiB);
  pool.deallocate(q, two);
}

TEST_F(block_pool_waits_test, ARequestFindsThatThePoolWasClosedMeanwhile) {
  const auto pool = make_bins();
  const auto two = new_stream();
  void* const p = pool.allocate(1536_MiB, busy);
  write(busy, p, 1_MiB);
  pool.deallocate(p, busy);
  result<void*> outcome = errc::internal;
  std::thread closing;
  while_waiting(
      busy, [&] { outcome = pool.try_allocate(1_GiB, two); },
      [&] {
        const auto waits = machine->calls(call::event_synchronize);
        closing = std::thread{[&] { EXPECT_TRUE(pool.close()); }};
        while (machine->calls(call::event_synchronize) == waits) std::this_thread::yield();
      });
  closing.join();
  EXPECT_EQ(code_of(outcome), errc::closed);
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
}

TEST_F(block_pool_waits_test, ABufferPoolHoldsUpNobody) {
  const auto pool = buffer_pool::create().value();
  auto unrelated = new_stream();
  {
    auto buffer = pool.take(1_MiB, busy).value();
    write(busy, buffer.data(), 1_MiB);
  }
  while_waiting(
      busy, [&] { EXPECT_TRUE(pool.empty_cache()); },
      [&] {
        EXPECT_TRUE(unrelated.close());
        const auto idle = new_stream();
        EXPECT_TRUE(pool.take(64_KiB, idle));
        EXPECT_EQ(pool.stats().misses, 2u);
      });
}

}  // namespace
}  // namespace weir::testing_support
