// SPDX-License-Identifier: Apache-2.0
// Pools that cache freed blocks beside captures: every capture stays valid, and all is waited for.
#include <atomic>
#include <optional>
#include <thread>

#include "pools/pool_fixture.hpp"
#include "support/captures.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

/// Another thread whose default stream exists for as long as this object.
class waiting_thread {
 public:
  explicit waiting_thread(std::function<void()> first)
      : thread_{[this, first = std::move(first)] {
          first();
          ready_ = true;
          ready_.notify_all();
          over_.wait(false);
        }} {
    ready_.wait(false);
  }
  ~waiting_thread() {
    over_ = true;
    over_.notify_all();
    thread_.join();
  }
  waiting_thread(const waiting_thread&) = delete;
  waiting_thread& operator=(const waiting_thread&) = delete;

 private:
  std::atomic<bool> ready_{false};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

class block_pool_capture_test : public block_pool_test {
 protected:
  /// Does `act` with a pool that knows a stream which cannot be marked, beside the capture of a
  /// stream that weir does not know: the legacy stream beside a blocking stream, or the default
  /// stream of another thread beside any.
  template <class Pool>
  void beside_captures(const std::function<void(std::optional<Pool>&, const stream&)>& act) {
    for (const auto mode : capture_modes) {
      for (const bool legacy : {true, false}) {
        SCOPED_TRACE(std::to_string(mode) + (legacy ? ", legacy stream" : ", other thread"));
        const auto one = new_stream();
        const foreign_stream captured{
            gpu(), legacy ? driver::CU_STREAM_DEFAULT : driver::CU_STREAM_NON_BLOCKING};
        std::optional<Pool> pool = Pool::create(gpu()).value();
        const auto use = [&](const stream_ref& on) {
          void* const p = pool->allocate(512_B, on);
          write(on, p, 512_B);
          pool->deallocate(p, on);
        };
        std::optional<waiting_thread> other;
        if (legacy) {
          use(stream_ref::legacy(gpu()));
        } else {
          other.emplace([&] { use(stream_ref::per_thread(gpu())); });
        }
        void* const p = pool->allocate(1_MiB, one);
        write(one, p, 1_MiB);
        pool->deallocate(p, one);
        checked_capture capture{captured, mode};
        act(pool, one);
        EXPECT_EQ(capture.end(), 0u);
      }
    }
  }
};

TEST_F(block_pool_capture_test, EmptyingTheCacheLeavesThemValid) {
  beside_captures<bin_pool>(
      [](auto& pool, const auto&) { EXPECT_GE(pool->empty_cache().value(), 1_MiB); });
  beside_captures<pinned_pool>(
      [](auto& pool, const auto&) { EXPECT_GE(pool->empty_cache().value(), 1_MiB); });
}

TEST_F(block_pool_capture_test, TrimmingAndThresholdsLeaveThemValid) {
  beside_captures<bin_pool>([](auto& pool, const auto&) {
    EXPECT_TRUE(pool->trim());
    EXPECT_TRUE(pool->set_threshold({}));
  });
}

TEST_F(block_pool_capture_test, ClosingLeavesThemValid) {
  beside_captures<bin_pool>([](auto& pool, const auto&) { EXPECT_TRUE(pool->close()); });
  beside_captures<pinned_pool>([](auto& pool, const auto&) { EXPECT_TRUE(pool->close()); });
}

TEST_F(block_pool_capture_test, TheEndLeavesThemValidAndReleasesEverything) {
  static_cast<void>(new_stream());  // the context is there from now on
  const bytes before = used();
  beside_captures<bin_pool>([](auto& pool, const auto&) { pool.reset(); });
  beside_captures<pinned_pool>([](auto& pool, const auto&) { pool.reset(); });
  EXPECT_EQ(used(), before);
}

TEST_F(block_pool_capture_test, ARequestOnAFullDeviceLeavesThemValid) {
  beside_captures<bin_pool>([&](auto& pool, const auto& one) {
    EXPECT_EQ(code_of(pool->try_allocate(3_GiB, one)), errc::out_of_memory);
    EXPECT_LE(pool->stats().cached, 512_B) << "all else was released before it failed";
  });
}

TEST_F(block_pool_capture_test, ABufferPoolLeavesThemValid) {
  for (const auto mode : capture_modes) {
    const foreign_stream captured{gpu(), driver::CU_STREAM_DEFAULT};
    const auto one = new_stream();
    auto pool = std::make_optional(buffer_pool::create().value());
    for (const stream_ref& on : {stream_ref::legacy(gpu()), one.ref()}) {
      auto buffer = pool->take(1_MiB, on).value();
      write(on, buffer.data(), 1_MiB);
    }
    checked_capture capture{captured, mode};
    EXPECT_EQ(code_of(pool->take(3_GiB, one)), errc::out_of_memory);
    EXPECT_TRUE(pool->empty_cache());
    EXPECT_TRUE(pool->close());
    pool.reset();
    EXPECT_EQ(capture.end(), 0u);
  }
}

TEST_F(block_pool_capture_test, ACapturedPerThreadStreamThatWasMetFreesAndIsRecorded) {
  const auto other = new_stream();
  const stream_ref own = stream_ref::per_thread(gpu());
  const auto check = [&](auto pool) {
    void* const first = pool.allocate(1_MiB, own);
    void* const second = pool.allocate(1_MiB, other);
    {
      const checked_capture capture{own, driver::CU_STREAM_CAPTURE_MODE_RELAXED};
      EXPECT_TRUE(pool.record_stream(second, own));
      EXPECT_TRUE(pool.try_deallocate(first, own));
    }
    EXPECT_TRUE(pool.try_deallocate(second, other));
    EXPECT_EQ(pool.stats().allocated.current, 0_B);
  };
  check(bin_pool::create(gpu()).value());
  check(pinned_pool::create(gpu()).value());
}

TEST_F(block_pool_capture_test, AStreamWithTheHandleOfOneThatEndedIsAnotherStream) {
  const auto check = [&](auto pool) {
    std::optional<foreign_stream> ended{gpu()};
    driver::CUstream const handle = ended->ref().handle();
    pool.deallocate(pool.allocate(1_MiB, *ended), *ended);
    ASSERT_TRUE(pool.release_stream(*ended));
    ended.reset();
    const foreign_stream next{gpu()};
    ASSERT_EQ(next.ref().handle(), handle) << "the driver gives it out again";

    const auto other = new_stream();
    void* const p = pool.allocate(2_MiB, other);
    {
      const checked_capture capture{next, driver::CU_STREAM_CAPTURE_MODE_RELAXED};
      EXPECT_EQ(code_of(pool.record_stream(p, next)), errc::capture_forbidden);
      EXPECT_EQ(code_of(pool.try_allocate(1_MiB, next)), errc::capture_forbidden);
      EXPECT_EQ(code_of(pool.try_deallocate(p, next)), errc::capture_forbidden);
    }
    ASSERT_TRUE(pool.record_stream(p, next));
    read(next, p, 2_MiB);
    {
      const checked_capture capture{next, driver::CU_STREAM_CAPTURE_MODE_RELAXED};
      EXPECT_TRUE(pool.record_stream(p, next)) << "it is known by now";
      pool.deallocate(p, other);
    }
    EXPECT_NE(pool.allocate(2_MiB, other), p) << "its work is waited for";
    EXPECT_TRUE(pool.close());
  };
  check(bin_pool::create(gpu()).value());
  check(pinned_pool::create(gpu()).value());
  static_cast<void>(heard.take());  // what was live
}

TEST_F(block_pool_capture_test, APoolMadeBesideTheCaptureOfABlockingStreamServesOtherStreams) {
  const auto other = new_stream();
  const stream_ref legacy = stream_ref::legacy(gpu());
  const foreign_stream captured{gpu(), driver::CU_STREAM_DEFAULT};
  std::optional<checked_capture> capture{captured};
  const auto bins = bin_pool::create(gpu());
  const auto pinned = pinned_pool::create(gpu());
  const auto buffers = buffer_pool::create().value();
  ASSERT_TRUE(bins && pinned);
  EXPECT_TRUE(buffers.take(1_MiB, other));
  EXPECT_EQ(code_of(bins->try_allocate(1_MiB, legacy)), errc::capture_forbidden);
  bins->deallocate(bins->allocate(1_MiB, other), other);
  pinned->deallocate(pinned->allocate(1_MiB, other), other);
  capture.reset();
  bins->deallocate(bins->allocate(2_MiB, legacy), legacy);
  const auto calls = machine->calls();
  bins->deallocate(bins->allocate(2_MiB, legacy), legacy);
  EXPECT_EQ(machine->calls(), calls) << "its id is known from now on";
}

TEST_F(block_pool_capture_test, TheFirstRequestOnTheLegacyStreamIsServed) {
  const foreign_stream captured{gpu(), driver::CU_STREAM_DEFAULT};
  const auto pool = make_bins();
  checked_capture capture{captured};
  const auto memory = pool.try_allocate(1_MiB, stream_ref::legacy(gpu()));
  ASSERT_TRUE(memory) << memory.error().message();
  EXPECT_TRUE(pool.try_deallocate(*memory, stream_ref::legacy(gpu())));
  EXPECT_EQ(capture.end(), 0u);
}

TEST_F(block_pool_capture_test, NoWaitIsQueuedOnTheLegacyStream) {
  for (const crossing_rule rule : {crossing_rule::all_work, crossing_rule::declared_uses}) {
    const foreign_stream captured{gpu(), driver::CU_STREAM_DEFAULT};
    const auto one = new_stream();
    const auto pool = bin_pool::create(gpu(), {.crossing = rule}).value();
    const stream_ref legacy = stream_ref::legacy(gpu());
    pool.deallocate(pool.allocate(512_B, legacy), legacy);
    void* const p = pool.allocate(1536_MiB, one);
    write(one, p, 1_MiB);
    pool.deallocate(p, one);
    checked_capture capture{captured};
    const auto waits = machine->calls(call::stream_wait_event);
    void* const q = pool.try_allocate(1536_MiB, legacy).value();
    EXPECT_EQ(machine->calls(call::stream_wait_event), waits);
    EXPECT_EQ(q, p);
    EXPECT_EQ(capture.end(), 0u);
    write(legacy, q, 1_MiB);
    pool.deallocate(q, legacy);
  }
}

TEST_F(block_pool_capture_test, MemoryOfTheLegacyStreamIsReusedBesideACapture) {
  const foreign_stream captured{gpu(), driver::CU_STREAM_DEFAULT};
  const auto one = new_stream();
  const auto pool = make_bins();
  const stream_ref legacy = stream_ref::legacy(gpu());
  void* const p = pool.allocate(1536_MiB, legacy);
  write(legacy, p, 1_MiB);
  pool.deallocate(p, legacy);
  checked_capture capture{captured};
  const auto q = pool.try_allocate(1536_MiB, one);
  ASSERT_TRUE(q) << q.error().message();
  write(one, *q, 1_MiB);
  EXPECT_EQ(capture.end(), 0u);
  pool.deallocate(*q, one);
}

TEST_F(block_pool_capture_test, ZerosAreRefusedOnTheLegacyStream) {
  const foreign_stream captured{gpu(), driver::CU_STREAM_DEFAULT};
  const stream_ref legacy = stream_ref::legacy(gpu());
  const auto pool = make_bins();
  const auto buffers = buffer_pool::create().value();
  checked_capture capture{captured};
  EXPECT_EQ(code_of(pooled_buffer<int>::create(pool, 1024, legacy, contents::zeroed)),
            errc::capture_forbidden);
  EXPECT_EQ(code_of(buffers.take(1_MiB, legacy, contents::zeroed)), errc::capture_forbidden);
  EXPECT_EQ(capture.end(), 0u);
  EXPECT_EQ(pool.stats().blocks.current, 0u);
  EXPECT_EQ(buffers.stats().taken, 0_B);
}

// --- The end of a pool over an upstream ----------------------------------------------------------

/// A slab that hands out the same memory again as soon as it has it back.
class slab final : public memory_source {
 public:
  slab(device home, bytes size) : home_{home}, size_{size} {
    const context_scope bound{home};
    address_ = allocate_plain(bound, size).value();
  }
  ~slab() override {
    const context_scope bound{home_};
    if (bound) {
      EXPECT_TRUE(free_plain(bound, address_));
    }
  }
  result<void*> allocate(bytes size, const stream_ref&) override {
    if (taken_ || size > size_) return errc::out_of_memory;
    taken_ = true;
    return data();
  }
  result<void> deallocate(void*, bytes) override {
    taken_ = false;
    return {};
  }
  [[nodiscard]] void* data() const { return reinterpret_cast<void*>(address_); }
  [[nodiscard]] bool is_taken() const { return taken_; }

 private:
  const device home_;
  const bytes size_;
  device_address address_ = 0;
  bool taken_ = false;
};

TEST_F(block_pool_capture_test, AnUpstreamGetsNothingBackThatIsInUse) {
  const auto one = new_stream();
  const auto other = new_stream();
  const auto source = std::make_shared<slab>(gpu(), 4_MiB);
  for (const bool live : {false, true}) {
    SCOPED_TRACE(live);
    std::optional<checked_capture> capture;
    {
      const auto pool = bin_pool::create(gpu(), {}, source).value();
      void* const p = pool.allocate(1_MiB, one);
      write(one, p, 1_MiB);
      if (!live) pool.deallocate(p, one);
      capture.emplace(one, driver::CU_STREAM_CAPTURE_MODE_RELAXED);
    }
    EXPECT_FALSE(source->is_taken());
    write(other, source->data(), 1_MiB);  // races unless the pool has waited
    capture.reset();
    ASSERT_TRUE(other.synchronize());
    ASSERT_EQ(machine->hazards().size(), 0u);
    EXPECT_EQ(heard.take().size(), live ? 1u : 0u) << "a live block is reported";
  }
}

TEST_F(block_pool_capture_test, WhatCannotBeWaitedForAtTheEndIsKeptAndReported) {
  const auto one = new_stream();
  const auto source = std::make_shared<slab>(gpu(), 4_MiB);
  {
    const auto pool = bin_pool::create(gpu(), {}, source).value();
    void* const p = pool.allocate(1_MiB, one);
    write(one, p, 1_MiB);
    pool.deallocate(p, one);
    machine->fail(call::event_synchronize, 1, driver::CUDA_ERROR_UNKNOWN);
    machine->fail(call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);  // of the wait for all work
  }
  EXPECT_TRUE(source->is_taken()) << "the kernel may still run";
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(told[0].requested(), 1_MiB);
  EXPECT_EQ(told[0].detail(),
            "1 MiB stay allocated, because work that may use them could not be waited for");
  machine->run_until_idle();
}

TEST_F(block_pool_capture_test, LiveMemoryAtTheEndIsWaitedForOnOtherDevices) {
  const auto far = weir::stream::create(gpu(1)).value();
  const auto source = std::make_shared<slab>(gpu(), 4_MiB);
  {
    const auto pool = bin_pool::create(gpu(), {}, source).value();
    const auto one = new_stream();
    void* const p = pool.allocate(1_MiB, one);
    const context_scope bound{gpu(1)};
    const auto peer = gpu().context().value();
    ASSERT_EQ(bound.driver().ctx_enable_peer_access(peer, 0), driver::CUDA_SUCCESS);
    ASSERT_TRUE(
        machine->launch(far.handle(), "far kernel",
                        {sim::writes(reinterpret_cast<driver::CUdeviceptr>(p), (1_MiB).count())}));
  }
  EXPECT_TRUE(far.is_complete().value());
  EXPECT_EQ(heard.take().size(), 1u);
}

}  // namespace
}  // namespace weir::testing_support
