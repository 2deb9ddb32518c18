// SPDX-License-Identifier: Apache-2.0
// bin_pool on memory of somebody else: what it asks of its upstream, and what it says of it.
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "pools/pool_fixture.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/resource/synchronous_resource.hpp"

namespace weir::testing_support { namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// Plain memory of a device up to a capacity, which knows what it handed out.
class counting_source final : public memory_source {
 public:
  counting_source(device home, bytes capacity) : home_{home}, capacity_{capacity} {}

  result<void*> allocate(bytes size, const stream_ref&) override {
    const std::lock_guard lock{mutex_};
    ++requests_;
    if (refusals_ != 0) return refuse_now();
    if (live_ + size > capacity_)
      return error{{.code = errc::out_of_memory, .requested = size, .detail = "the slab is full"}};
    const context_scope scope{home_};
    WEIR_TRY_VALUE(base, allocate_plain(scope, size + bytes{offset_}));
    live_ += size;
    blocks_[base + offset_] = size;
    return reinterpret_cast<void*>(base + offset_);
  }
  result<void> deallocate(void* memory, bytes size) override {
    const std::lock_guard lock{mutex_};
    if (refusals_ != 0) return refuse_now();
    const auto at = blocks_.find(reinterpret_cast<std::uintptr_t>(memory));
    if (at == blocks_.end() || at->second != size) return errc::foreign_pointer;
    const context_scope scope{home_};
    WEIR_TRY(free_plain(scope, at->first - offset_));
    live_ -= size;
    blocks_.erase(at);
    ++returns_;
    return {};
  }

  /// The next call fails so, or the next few do.
  void refuse(error reason, int times = 1) {
    refusal_ = std::move(reason);
    refusals_ = times;
  }
  /// What is handed out next lies so far behind what the driver aligned.
  void shift(std::uint64_t offset) { offset_ = offset; }
  [[nodiscard]] bytes live() const { return live_; }
  [[nodiscard]] int requests() const { return requests_; }
  [[nodiscard]] int returns() const { return returns_; }

 private:
  [[nodiscard]] error refuse_now() {
    --refusals_;
    return refusal_;
  }

  const device home_;
  const bytes capacity_;
  std::mutex mutex_;
  std::map<std::uint64_t, bytes> blocks_;
  error refusal_;
  int refusals_ = 0;
  std::uint64_t offset_ = 0;
  bytes live_{};
  int requests_ = 0;
  int returns_ = 0;
};

class upstream_test : public block_pool_test {
 protected:
  [[nodiscard]] bin_pool make_pool() const { return bin_pool::create(gpu(), {}, source).value(); }

  std::shared_ptr<counting_source> source = std::make_shared<counting_source>(gpu(), 16_MiB);
};

TEST_F(upstream_test, blocks_come_from_it_and_are_cached) {
  const auto stream = new_stream();
  const auto pool = make_pool();
  void* const first = pool.allocate(1'000'000_B, stream);
  write(stream, first, 1'000'000_B);
  EXPECT_EQ(source->live(), 1_MiB) << "a whole block";
  pool.deallocate(first, stream);
  void* const second = pool.allocate(1_MiB, stream);
  EXPECT_EQ(second, first);
  EXPECT_EQ(source->requests(), 1);
  EXPECT_EQ(pool.stats().hits, 1u);
  EXPECT_EQ(pool.stats().reserved.current, 1_MiB);
  pool.deallocate(second, stream);
  machine->run_until_idle();
  EXPECT_EQ(pool.trim().value(), 1_MiB);
  EXPECT_EQ(source->live(), 0_B);
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
}

TEST_F(upstream_test, its_exhaustion_is_out_of_memory_once_nothing_is_cached) {
  const auto stream = new_stream();
  const auto pool = make_pool();
  void* const live = pool.allocate(8_MiB, stream);
  pool.deallocate(pool.allocate(4_MiB, stream), stream);
  pool.deallocate(pool.allocate(2_MiB, stream), stream);
  void* const large = pool.allocate(8_MiB, stream);  // fits only without the two
  EXPECT_EQ(source->returns(), 2);
  EXPECT_EQ(source->live(), 16_MiB);
  EXPECT_EQ(pool.stats().cached, 0_B);
  const auto refused = pool.try_allocate(1_MiB, stream);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 1_MiB);
  EXPECT_EQ(refused.error().detail(),
            "the pool holds 16 MiB in 2 live blocks and caches 0 B; the slab is full");
  EXPECT_EQ(pool.stats().failures, 1u);
  EXPECT_THROW(static_cast<void>(pool.allocate(1_MiB, stream)), out_of_memory);
  pool.deallocate(large, stream);
  pool.deallocate(live, stream);
  EXPECT_EQ(contradiction(pool.stats()), "");
}

TEST_F(upstream_test, everything_goes_back_to_it_at_the_end) {
  const auto stream = new_stream();
  const bytes before = used();
  {
    const auto pool = make_pool();
    auto live = std::make_optional(pooled_buffer<char>::create(pool, 1 << 20, stream).value());
    pool.deallocate(pool.allocate(2_MiB, stream), stream);
    ASSERT_TRUE(pool.close());
    EXPECT_EQ(source->live(), 1_MiB) << "what is live stays";
    EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::closed);
    live.reset();
    EXPECT_EQ(source->live(), 0_B);
  }
  {
    const auto pool = make_pool();
    pool.deallocate(pool.allocate(2_MiB, stream), stream);
    pool.deallocate(pool.allocate(3_MiB, stream), stream);
  }
  EXPECT_EQ(source->live(), 0_B);
  EXPECT_EQ(source->returns(), 4);
  EXPECT_EQ(used(), before);
}

TEST_F(upstream_test, its_failures_are_told) {
  const auto stream = new_stream();
  const auto pool = make_pool();
  source->refuse({{.code = errc::device_lost, .detail = "the upstream is ill"}});
  const auto refused = pool.try_allocate(1_MiB, stream);
  ASSERT_EQ(code_of(refused), errc::device_lost);
  EXPECT_EQ(refused.error().detail(), "the upstream is ill");
  pool.deallocate(pool.allocate(1_MiB, stream), stream);
  source->refuse({{.code = errc::not_permitted}});
  EXPECT_EQ(code_of(pool.empty_cache()), errc::not_permitted);
  EXPECT_EQ(pool.stats().cached, 1_MiB) << "what it did not take is cached as before";
  EXPECT_EQ(contradiction(pool.stats()), "");
  EXPECT_EQ(pool.empty_cache().value(), 1_MiB);
  EXPECT_THAT(heard.take(), IsEmpty());
  {
    const auto other = make_pool();
    other.deallocate(other.allocate(1_MiB, stream), stream);
    source->refuse({{.code = errc::not_permitted}});
  }
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].code(), errc::not_permitted);
}

TEST_F(upstream_test, what_it_refuses_to_take_stays_in_the_order_of_its_frees) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_pool();
  std::vector<void*> all;
  for (int i = 0; i < 3; ++i) all.push_back(pool.allocate(1_MiB, one));
  for (void* const each : all) pool.deallocate(each, one);
  source->refuse({{.code = errc::not_permitted}}, 3);
  EXPECT_EQ(code_of(pool.trim()), errc::not_permitted);
  EXPECT_EQ(pool.stats().cached, 3_MiB);
  EXPECT_EQ(pool.stats().reserved.current, 3_MiB);
  for (void* const each : all) EXPECT_EQ(pool.allocate(1_MiB, two), each);
  for (void* const each : all) pool.deallocate(each, two);
}

TEST_F(upstream_test, memory_that_is_not_aligned_is_refused_and_returned) {
  const auto stream = new_stream();
  const auto pool = make_pool();
  source->shift(128);
  const auto refused = pool.try_allocate(1_MiB, stream);
  ASSERT_EQ(code_of(refused), errc::bad_alignment);
  EXPECT_THAT(refused.error().detail(), HasSubstr("256"));
  EXPECT_EQ(source->live(), 0_B);
  EXPECT_EQ(pool.stats().reserved.peak, 0_B);
  source->shift(256);
  void* const aligned = pool.allocate(1000_B, stream, 4_KiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % 4096, 0u);
  write(stream, aligned, 1000_B);
  pool.deallocate(aligned, stream);
}

TEST_F(upstream_test, a_block_goes_back_only_when_no_stream_uses_it) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_pool();
  void* const block = pool.allocate(1_MiB, one);
  ASSERT_TRUE(pool.record_stream(block, two));
  read(two, block, 1_MiB);
  pool.deallocate(block, one);
  EXPECT_EQ(pool.trim().value(), 0_B);
  EXPECT_EQ(source->returns(), 0);
  machine->run_until_idle();
  EXPECT_EQ(pool.trim().value(), 1_MiB);
  EXPECT_EQ(source->returns(), 1);
}

/// Memory of one block of the driver's, front to back. Unlike the driver's own calls a free waits
/// for nothing.
class slab_source final : public memory_source {
 public:
  slab_source(device home, bytes capacity)
      : home_{home}, slab_{allocate_plain(context_scope{home}, capacity).value()} {}
  ~slab_source() override { EXPECT_TRUE(free_plain(context_scope{home_}, slab_)); }
  slab_source(const slab_source&) = delete;
  slab_source& operator=(const slab_source&) = delete;

  result<void*> allocate(bytes size, const stream_ref&) override {
    return reinterpret_cast<void*>(slab_ + std::exchange(taken_, taken_ + size.count()));
  }
  result<void> deallocate(void*, bytes) override { return {}; }

 private:
  const device home_;
  const device_address slab_;
  std::uint64_t taken_ = 0;
};

TEST_F(upstream_test, a_threshold_that_idle_memory_makes_room_for_waits_for_nobody) {
  const auto idle = new_stream();
  const auto busy = new_stream();
  const auto pool = bin_pool::create(gpu(), {.crossing = crossing_rule::declared_uses},
                                     std::make_shared<slab_source>(gpu(), 4_MiB))
                        .value();
  void* const small = pool.allocate(1_MiB, idle);
  void* const large = pool.allocate(2_MiB, busy);
  write(busy, large, 2_MiB);
  pool.deallocate(large, busy);
  pool.deallocate(small, idle);
  ASSERT_TRUE(pool.set_threshold(2_MiB));
  EXPECT_EQ(pool.stats().cached, 2_MiB);
  EXPECT_EQ(pool.stats().reserved.current, 2_MiB);
  EXPECT_EQ(machine->calls(call::event_synchronize), 0u);
  ASSERT_TRUE(pool.set_threshold(2_MiB - 1_B));
  EXPECT_EQ(pool.stats().cached, 0_B);
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
  EXPECT_EQ(machine->calls(call::event_synchronize), 1u);
}

TEST_F(upstream_test, a_resource_is_one) {
  const auto stream = new_stream();
  const auto allocator = caching_allocator::create(gpu()).value();
  {
    const auto pool =
        bin_pool::create(gpu(), {},
                         make_memory_source(synchronous_resource::create(allocator).value()))
            .value();
    void* const block = pool.allocate(3_MiB, stream);
    write(stream, block, 3_MiB);
    EXPECT_EQ(allocator.stats().requested.current, 3_MiB);
    pool.deallocate(block, stream);
    EXPECT_EQ(allocator.stats().requested.current, 3_MiB) << "the pool has it";
  }
  EXPECT_EQ(allocator.stats().requested.current, 0_B);
  EXPECT_EQ(allocator.stats().allocations, 1u);
}

/// Hands out one block, as it is told to, and knows whether it came back.
class told_source final : public memory_source {
 public:
  explicit told_source(std::function<result<void*>()> answer) : answer_{std::move(answer)} {}
  result<void*> allocate(bytes, const stream_ref&) override { return answer_(); }
  result<void> deallocate(void*, bytes) override {
    if (on_return) on_return();
    ++returns;
    return {};
  }

  std::function<void()> on_return;
  int returns = 0;

 private:
  std::function<result<void*>()> answer_;
};

TEST_F(upstream_test, no_memory_at_all_is_out_of_memory) {
  const auto stream = new_stream();
  const auto nothing =
      std::make_shared<told_source>([]() -> result<void*> { return static_cast<void*>(nullptr); });
  const auto pool = bin_pool::create(gpu(), {}, nothing).value();
  const auto refused = pool.try_allocate(1000_B, stream);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 1000_B);
  EXPECT_EQ(pool.stats().failures, 1u);
  EXPECT_EQ(nothing->returns, 0);
}

TEST_F(upstream_test, a_failure_of_another_kind_ends_the_request) {
  const auto stream = new_stream();
  alignas(256) static std::byte memory[1024];
  int calls = 0;
  const auto ill = std::make_shared<told_source>([&]() -> result<void*> {
    switch (++calls) {
      case 1:
        return static_cast<void*>(memory);
      case 2:
        return errc::out_of_memory;  // so the cache is released, and it is asked again
      default:
        return errc::device_lost;
    }
  });
  const auto pool = bin_pool::create(gpu(), {}, ill).value();
  pool.deallocate(pool.allocate(1_KiB, stream), stream);
  EXPECT_EQ(code_of(pool.try_allocate(2_KiB, stream)), errc::device_lost);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(ill->returns, 1);
  EXPECT_EQ(pool.stats().failures, 0u) << "that is no want of memory";
}

TEST_F(upstream_test, what_it_throws_for_want_of_host_memory_is_an_error) {
  const auto stream = new_stream();
  const auto told =
      std::make_shared<told_source>([]() -> result<void*> { throw std::bad_alloc{}; });
  const auto pool = bin_pool::create(gpu(), {}, told).value();
  EXPECT_EQ(code_of(pool.try_allocate(1_KiB, stream)), errc::no_host_memory);
  alignas(256) static std::byte memory[1024];
  const auto careless =
      std::make_shared<told_source>([]() -> result<void*> { return static_cast<void*>(memory); });
  const auto other = bin_pool::create(gpu(), {}, careless).value();
  other.deallocate(other.allocate(1_KiB, stream), stream);
  careless->on_return = [] { throw std::bad_alloc{}; };
  EXPECT_EQ(code_of(other.empty_cache()), errc::no_host_memory);
  EXPECT_EQ(other.stats().cached, 1_KiB) << "it is cached as before";
  careless->on_return = {};
  EXPECT_EQ(other.empty_cache().value(), 1_KiB);
  EXPECT_EQ(careless->returns, 1);
}

TEST_F(upstream_test, at_the_end_nothing_goes_back_that_a_stream_still_uses) {
  const auto stream = new_stream();
  alignas(256) static std::byte memory[1024];
  bool is_done = false;
  bool was_done = false;
  const auto told =
      std::make_shared<told_source>([]() -> result<void*> { return static_cast<void*>(memory); });
  told->on_return = [&] { was_done = is_done; };
  {
    const auto pool = bin_pool::create(gpu(), {}, told).value();
    void* const block = pool.allocate(1_KiB, stream);
    const context_scope scope{gpu()};
    ASSERT_TRUE(machine->launch(stream.handle(), "kernel", {}, [&] { is_done = true; }));
    pool.deallocate(block, stream);
  }
  EXPECT_EQ(told->returns, 1);
  EXPECT_TRUE(was_done);
}

TEST_F(upstream_test, none_is_the_driver) {
  const auto stream = new_stream();
  const auto pool = bin_pool::create(gpu(), {}, nullptr).value();
  pool.deallocate(pool.allocate(1_MiB, stream), stream);
  EXPECT_EQ(machine->calls(call::mem_alloc), 1u);
}

}  // namespace
}  // namespace weir::testing_support
