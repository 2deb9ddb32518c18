// SPDX-License-Identifier: Apache-2.0
// Memory that one thread is releasing while another one asks for memory.
#include <atomic>
#include <optional>
#include <semaphore>
#include <thread>

#include "base/releases_under_way.hpp"
#include "pools/pool_fixture.hpp"
#include "support/watched_thread.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

/// Holds up frees of memory until it is told to let them through.
class slow_frees {
 public:
  void hold() { held_ = true; }
  void let_through() {
    held_ = false;
    held_.notify_all();
  }
  /// How many frees have begun.
  [[nodiscard]] int begun() const { return begun_; }
  void pass() {
    ++begun_;
    held_.wait(true);
  }

 private:
  std::atomic<bool> held_{false};
  std::atomic<int> begun_{0};
};

/// Plain memory up to a capacity, taken back slowly.
class slow_source final : public memory_source {
 public:
  slow_source(device home, bytes capacity) : home_{home}, capacity_{capacity.count()} {}

  result<void*> allocate(bytes size, const stream_ref&) override {
    const context_scope bound{home_};
    if (live_.fetch_add(size.count()) + size.count() > capacity_) {
      live_ -= size.count();
      return error{{.code = errc::out_of_memory, .requested = size}};
    }
    WEIR_TRY_VALUE(base, allocate_plain(bound, size));
    return reinterpret_cast<void*>(base);
  }
  result<void> deallocate(void* memory, bytes size) override {
    frees.pass();
    const context_scope bound{home_};
    WEIR_TRY(free_plain(bound, reinterpret_cast<device_address>(memory)));
    live_ -= size.count();
    return {};
  }

  slow_frees frees;

 private:
  const device home_;
  const std::uint64_t capacity_;
  std::atomic<std::uint64_t> live_{0};
};

class block_pool_release_test : public block_pool_test {
 protected:
  std::shared_ptr<slow_source> source = std::make_shared<slow_source>(gpu(), 64_MiB);
  stream one = new_stream();
  stream two = new_stream();
};

TEST_F(block_pool_release_test, ARequestWaitsForMemoryThatAnotherThreadIsReleasing) {
  const auto pool = bin_pool::create(gpu(), {}, source).value();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate(8_MiB, one));
  for (void* const each : blocks) pool.deallocate(each, one);
  machine->run_until_idle();
  source->frees.hold();
  result<void*> first = errc::internal;
  result<void*> second = errc::internal;
  std::thread releasing{[&] { first = pool.try_allocate(24_MiB, one); }};
  while (source->frees.begun() == 0) std::this_thread::yield();
  EXPECT_EQ(pool.stats().cached, 0_B) << "all of it is on its way";
  EXPECT_EQ(pool.stats().reserved.current, 64_MiB);
  watched_thread asking{[&] { second = pool.try_allocate(24_MiB, two); }};
  EXPECT_TRUE(asking.falls_asleep()) << "it waits";
  source->frees.let_through();
  releasing.join();
  asking.join();
  ASSERT_TRUE(first) << first.error().message();
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(pool.stats().failures, 0u);
  pool.deallocate(*first, one);
  pool.deallocate(*second, two);
  EXPECT_EQ(contradiction(pool.stats()), "");
}

TEST_F(block_pool_release_test, ARequestThatCannotBeMetFailsOnceTheReleaseIsOver) {
  const auto pool = bin_pool::create(gpu(), {}, source).value();
  pool.deallocate(pool.allocate(8_MiB, one), one);
  machine->run_until_idle();
  source->frees.hold();
  std::thread releasing{[&] { EXPECT_EQ(pool.trim().value(), 8_MiB); }};
  while (source->frees.begun() == 0) std::this_thread::yield();
  result<void*> outcome = errc::internal;
  watched_thread asking{[&] { outcome = pool.try_allocate(128_MiB, two); }};
  EXPECT_TRUE(asking.falls_asleep());
  source->frees.let_through();
  releasing.join();
  asking.join();
  EXPECT_EQ(code_of(outcome), errc::out_of_memory);
  EXPECT_EQ(pool.stats().failures, 1u);
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
}

TEST_F(block_pool_release_test, EmptyingTheCacheWaitsForMemoryThatAnotherThreadIsReleasing) {
  const auto pool = bin_pool::create(gpu(), {}, source).value();
  pool.deallocate(pool.allocate(8_MiB, one), one);
  machine->run_until_idle();
  source->frees.hold();
  std::thread releasing{[&] { EXPECT_EQ(pool.trim().value(), 8_MiB); }};
  while (source->frees.begun() == 0) std::this_thread::yield();
  watched_thread emptying{[&] {
    EXPECT_EQ(pool.empty_cache().value(), 0_B) << "the other thread's bytes";
    EXPECT_EQ(pool.stats().reserved.current, 0_B);
  }};
  EXPECT_TRUE(emptying.falls_asleep());
  source->frees.let_through();
  releasing.join();
  emptying.join();
}

/// The driver of a machine whose frees of plain and pinned memory can be held up.
struct slow_driver {
  static inline driver::table real;
  static inline slow_frees frees;
  static driver::CUresult free(driver::CUdeviceptr memory) {
    frees.pass();
    return real.mem_free(memory);
  }
  static driver::CUresult free_host(void* memory) {
    frees.pass();
    return real.mem_free_host(memory);
  }
};

/// The same of pools that the driver itself serves.
class driver_release_test : public block_pool_test {
 protected:
  driver_release_test() {
    slow_driver::real = machine->driver();
    driver::table calls = machine->driver();
    calls.mem_free = &slow_driver::free;
    calls.mem_free_host = &slow_driver::free_host;
    slow_ = runtime::open_table(calls, "slow", machine).value();
  }
  [[nodiscard]] device slow_gpu() const { return slow_->device(device_id{0}).value(); }
  /// `release` releases what is cached, slowly; `ask` must be met all the same.
  void expect_to_be_met(const std::function<void()>& release,
                        const std::function<bool()>& ask) const {
    slow_driver::frees.hold();
    const int before = slow_driver::frees.begun();
    std::thread releasing{release};
    while (slow_driver::frees.begun() == before) std::this_thread::yield();
    bool met = false;
    watched_thread asking{[&] { met = ask(); }};
    static_cast<void>(asking.falls_asleep());
    slow_driver::frees.let_through();
    releasing.join();
    asking.join();
    EXPECT_TRUE(met);
  }

  std::shared_ptr<runtime> slow_;
};

TEST_F(driver_release_test, ABinPoolWaits) {
  const auto one = stream::create(slow_gpu()).value();
  const auto pool = bin_pool::create(slow_gpu()).value();
  pool.deallocate(pool.allocate(1536_MiB, one), one);
  expect_to_be_met([&] { EXPECT_EQ(pool.trim().value(), 1536_MiB); },
                   [&] {
                     const auto p = pool.try_allocate(1_GiB, one);
                     return p && pool.try_deallocate(*p, one);
                   });
}

TEST_F(driver_release_test, ABufferPoolWaits) {
  const auto one = stream::create(slow_gpu()).value();
  const auto pool = buffer_pool::create().value();
  static_cast<void>(pool.take(1536_MiB, one).value());
  expect_to_be_met([&] { EXPECT_EQ(pool.empty_cache().value(), 1536_MiB); },
                   [&] { return pool.take(1_GiB, one).has_value(); });
}

TEST_F(driver_release_test, APinnedPoolWaits) {
  const auto one = stream::create(slow_gpu()).value();
  const auto pool = pinned_pool::create(slow_gpu()).value();
  pool.deallocate(pool.allocate(1_MiB, one), one);
  expect_to_be_met([&] { EXPECT_EQ(pool.trim().value(), 1_MiB); },
                   [&] {
                     machine->fail(call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
                     const auto p = pool.try_allocate(2_MiB, one);
                     return p && pool.try_deallocate(*p, one);
                   });
}

// --- The register itself -------------------------------------------------------------------------

TEST(releases_under_way, AThreadWaitsForOthersAndNotForItself) {
  detail::mutex mutex;
  detail::releases_under_way releases;
  mutex.lock();
  EXPECT_FALSE(releases.wait_for_others(mutex)) << "there are none";
  EXPECT_EQ(releases.ended(), 0u);
  {
    const detail::releases_under_way::release own{releases};
    EXPECT_FALSE(releases.wait_for_others(mutex)) << "that would be for ever";
  }
  EXPECT_EQ(releases.ended(), 1u);
  std::binary_semaphore begun{0};
  std::binary_semaphore end{0};
  std::thread other{[&] {
    mutex.lock();
    std::optional<detail::releases_under_way::release> under_way{std::in_place, releases};
    mutex.unlock();
    begun.release();
    end.acquire();
    mutex.lock();
    under_way.reset();
    mutex.unlock();
  }};
  mutex.unlock();
  begun.acquire();
  mutex.lock();
  {
    const detail::releases_under_way::release own{releases};
    EXPECT_FALSE(releases.wait_for_others(mutex)) << "the other might wait for this one";
  }
  end.release();
  EXPECT_TRUE(releases.wait_for_others(mutex));
  EXPECT_EQ(releases.ended(), 3u);
  EXPECT_FALSE(releases.wait_for_others(mutex));
  mutex.unlock();
  other.join();
}

}  // namespace
}  // namespace weir::testing_support
