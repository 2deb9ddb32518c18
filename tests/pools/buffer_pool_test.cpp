// SPDX-License-Identifier: Apache-2.0
// buffer_pool: takes and returns on two devices, bounds by bytes and age, exact counters.
#include "weir/pool/buffer_pool.hpp"

#include <limits>
#include <optional>

#include "base/hexadecimal.hpp"
#include "pools/pool_fixture.hpp"

namespace weir::testing_support { namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;

class buffer_pool_test : public block_pool_test {
 protected:
  [[nodiscard]] static buffer_pool make(buffer_pool_options settings = {}) {
    return buffer_pool::create(std::move(settings)).value();
  }
};

TEST_F(buffer_pool_test, a_buffer_that_came_back_is_taken_again) {
  const auto stream = new_stream();
  const auto pool = make();
  EXPECT_EQ(pool.stats(gpu()), buffer_pool_stats{});
  auto first = pool.take<float>(1000, stream).value();
  const void* const address = first.data();
  EXPECT_EQ(first.size(), 1000u);
  ASSERT_TRUE(pool.free(std::move(first), stream));
  const auto second = pool.take<float>(1000, stream).value();
  EXPECT_EQ(second.data(), address);
  const auto now = pool.stats(gpu());
  EXPECT_EQ(now.hits, 1u);
  EXPECT_EQ(now.misses, 1u);
  EXPECT_EQ(now.returns, 1u);
  EXPECT_EQ(now.taken, 4096_B);
  EXPECT_EQ(now.cached, 0_B);
}

TEST_F(buffer_pool_test, misses_are_counted) {
  const auto stream = new_stream();
  const auto pool = make();
  std::vector<pooled_buffer<int>> all;
  for (int i = 0; i < 5; ++i) all.push_back(pool.take<int>(100, stream).value());
  EXPECT_EQ(pool.stats().misses, 5u);
  EXPECT_EQ(pool.stats().hits, 0u);
  all.clear();
  EXPECT_EQ(pool.stats().returns, 5u);
}

TEST_F(buffer_pool_test, types_of_the_same_length_in_bytes_share_memory) {
  const auto stream = new_stream();
  const auto pool = make();
  const void* address = nullptr;
  {
    const auto doubles = pool.take<double>(512, stream).value();
    address = doubles.data();
  }
  const auto chars = pool.take<char>(4000, stream).value();
  EXPECT_EQ(static_cast<const void*>(chars.data()), address);
  const auto one = pool.take<double>(1, stream).value();
  EXPECT_EQ(pool.stats().taken, 4096_B + 512_B);  // one double is not 256 of them
}

struct alignas(8192) wide {
  char data[8192];
};

TEST_F(buffer_pool_test, buffers_are_aligned_for_their_type) {
  const auto stream = new_stream();
  const auto pool = make();
  for (int round = 0; round < 2; ++round) {
    const auto taken =
        round == 0 ? pool.take<wide>(3, stream) : pool.try_take_cached<wide>(3, stream);
    ASSERT_TRUE(taken);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken->data()) % alignof(wide), 0u);
    EXPECT_EQ(pool.stats().taken, 32_KiB) << "with room to align";
  }
}

TEST_F(buffer_pool_test, every_take_respects_streams) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make();
  auto first = pool.take<int>(1000, one).value();
  const int* const address = first.data();
  write(one, first.data(), first.size_bytes());
  ASSERT_TRUE(first.free());
  {
    const auto second = pool.take<int>(1000, two).value();
    EXPECT_NE(second.data(), address);
    write(two, second.data(), second.size_bytes());
    const auto third = pool.take<int>(1000, gpu()).value();  // the legacy stream is one of them
    EXPECT_NE(third.data(), address);
    EXPECT_TRUE(third.stream().is_legacy());
  }
  const auto own = pool.take<int>(1000, one).value();
  EXPECT_EQ(own.data(), address);
  write(one, own.data(), own.size_bytes());
}

TEST_F(buffer_pool_test, a_buffer_comes_back_on_the_stream_that_is_named) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make();
  auto first = pool.take<int>(1000, one).value();
  const int* const address = first.data();
  const auto mark = [&] {
    auto written = event::create(gpu()).value();
    EXPECT_TRUE(written.record(one));
    EXPECT_TRUE(two.wait(written));
  };
  write(one, first.data(), first.size_bytes());
  mark();
  write(two, first.data(), first.size_bytes());
  ASSERT_TRUE(pool.free(std::move(first), two));
  const auto next = pool.take<int>(1000, two).value();
  EXPECT_EQ(next.data(), address);
  write(two, next.data(), next.size_bytes());
}

TEST_F(buffer_pool_test, a_stream_recorded_on_a_live_buffer_is_waited_for_and_then_forgotten) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make();
  auto first = pool.take<int>(1000, one).value();
  auto untouched = pool.take<int>(1000, one).value();
  const int* const address = first.data();
  const int* const other = untouched.data();
  ASSERT_TRUE(first.record_stream(two));
  read(two, first.data(), first.size_bytes());
  ASSERT_TRUE(untouched.free());
  ASSERT_TRUE(first.free());
  {
    const auto next = pool.take<int>(1000, one).value();
    EXPECT_EQ(next.data(), other);  // only the buffer that was recorded waits
    const auto another = pool.take<int>(1000, one).value();
    EXPECT_NE(another.data(), address);
  }
  machine->run_until_idle();
  for (int i = 0; i < 3; ++i) {  // and it is as good as ever
    std::vector<pooled_buffer<int>> all;
    for (int each = 0; each < 3; ++each) all.push_back(pool.take<int>(1000, one).value());
    EXPECT_EQ(std::count_if(all.begin(), all.end(),
                            [&](const auto& each) { return each.data() == address; }),
              1);
  }
  EXPECT_EQ(pool.stats().misses, 3u);
}

TEST_F(buffer_pool_test, a_destroyed_streams_handle_means_nothing) {
  const auto pool = make();
  for (int i = 0; i < 8; ++i) {  // handles are recycled, streams are not
    const auto stream = new_stream();
    const auto buffer = pool.take<int>(1000, stream).value();
    write(stream, buffer.data(), buffer.size_bytes());
  }
}

TEST_F(buffer_pool_test, devices_are_kept_apart) {
  const auto one = new_stream();
  const auto two = weir::stream::create(gpu(1)).value();
  const auto pool = make();
  static_cast<void>(pool.take<char>(1024, one).value());
  static_cast<void>(pool.take<char>(2048, two).value());
  EXPECT_EQ(pool.stats(gpu(0)).cached, 1024_B);
  EXPECT_EQ(pool.stats(gpu(1)).cached, 2048_B);
  EXPECT_EQ(pool.stats().cached, 3072_B);
  EXPECT_EQ(pool.empty_cache(gpu(0)).value(), 1024_B);
  EXPECT_EQ(pool.stats(gpu(0)).cached, 0_B);
  EXPECT_EQ(pool.stats(gpu(1)).cached, 2048_B);
  EXPECT_EQ(pool.take<char>(2048, two).value().stream().device(), gpu(1));
  EXPECT_EQ(pool.stats(gpu(1)).hits, 1u);
  EXPECT_EQ(pool.empty_cache().value(), 2048_B);
  EXPECT_EQ(pool.stats().cached, 0_B);
  const auto elsewhere = make();
  EXPECT_EQ(elsewhere.empty_cache(gpu(0)).value(), 0_B);
  EXPECT_EQ(elsewhere.stats(), buffer_pool_stats{});
}

TEST_F(buffer_pool_test, a_hit_costs_one_fill_if_zeros_are_asked_for_and_otherwise_nothing) {
  const auto stream = new_stream();
  const auto pool = make();
  const context_scope scope{gpu()};  // as any thread has that works with the device
  { const auto first = pool.take<int>(1000, stream).value(); }
  auto before = machine->calls();
  { const auto plain = pool.take<int>(1000, stream).value(); }
  EXPECT_EQ(machine->calls(), before);
  const auto context_queries = machine->calls(call::ctx_get_current);
  { const auto zeros = pool.take<int>(1000, stream, contents::zeroed).value(); }
  EXPECT_EQ(machine->calls(call::memset_d8_async), 1u);
  EXPECT_EQ(machine->calls(call::ctx_get_current), context_queries + 1);  // whose turn it is
  EXPECT_EQ(machine->calls(), before + 2);
  EXPECT_EQ(pool.stats().hits, 2u);
}

TEST_F(buffer_pool_test, only_what_is_to_be_zeroed_is_filled) {
  const auto stream = new_stream();
  const auto pool = make();
  static_cast<void>(pool.take<int>(1000, stream).value());
  static_cast<void>(pool.take<int>(1000, gpu()).value());
  static_cast<void>(pool.take(4000_B, stream).value());
  static_cast<void>(pool.try_take_cached<int>(1000, stream).value());
  static_cast<void>(pool.try_take_cached(4000_B, stream).value());
  EXPECT_EQ(machine->calls(call::memset_d8_async), 0u);
  static_cast<void>(pool.take<int>(1000, gpu(), contents::zeroed).value());
  EXPECT_EQ(machine->calls(call::memset_d8_async), 1u);
}

TEST_F(buffer_pool_test, only_a_cached_buffer_is_taken_if_that_is_asked_for) {
  const auto stream = new_stream();
  const auto pool = make();
  EXPECT_EQ(code_of(pool.try_take_cached<int>(1000, stream)), errc::not_found);
  EXPECT_EQ(pool.stats(), buffer_pool_stats{}) << "nothing was made for it";
  const int* address = nullptr;
  {
    const auto first = pool.take<int>(1000, stream).value();
    address = first.data();
  }
  const auto before = machine->calls();
  {
    const auto cached = pool.try_take_cached<int>(1000, stream);
    ASSERT_TRUE(cached);
    EXPECT_EQ(cached->data(), address);
    EXPECT_EQ(cached->size(), 1000u);
    EXPECT_EQ(code_of(pool.try_take_cached<int>(1000, stream)), errc::not_found);
    EXPECT_EQ(code_of(pool.try_take_cached<int>(1, stream)), errc::not_found);
  }
  {
    const auto plain = pool.try_take_cached(4000_B, stream);
    ASSERT_TRUE(plain);
    EXPECT_EQ(plain->data(), address);
  }
  EXPECT_EQ(machine->calls(), before) << "no driver call, and nothing is filled";
  EXPECT_EQ(pool.stats().hits, 2u);
  EXPECT_EQ(pool.stats().misses, 1u) << "what was not found is no miss";
  EXPECT_EQ(pool.stats().returns, 3u);
  const auto zeros = pool.try_take_cached<int>(1000, stream, contents::zeroed);
  ASSERT_TRUE(zeros);
  EXPECT_EQ(machine->calls(call::memset_d8_async), 1u);
  EXPECT_EQ(code_of(pool.try_take_cached<int>(0, stream)), errc::invalid_argument);
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(code_of(pool.try_take_cached<double>(most, stream)), errc::size_overflow);
}

TEST_F(buffer_pool_test, nobody_is_asked_whether_a_cached_buffer_of_another_stream_is_free) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make();
  static_cast<void>(pool.take(8_KiB, two).value());  // it is met
  static_cast<void>(pool.take(4_KiB, one).value());
  machine->run_until_idle();
  const auto before = machine->calls();
  EXPECT_EQ(code_of(pool.try_take_cached(4_KiB, two)), errc::not_found) << "nobody has asked yet";
  EXPECT_EQ(machine->calls(), before);
  ASSERT_EQ(pool.trim(bytes::max()).value(), 0_B);
  static_cast<void>(pool.take(16_KiB, two).value());
  static_cast<void>(pool.take(4_KiB, two).value());  // asks
  EXPECT_EQ(pool.stats().misses, 3u);
  static_cast<void>(pool.try_take_cached(4_KiB, two).value());
}

TEST_F(buffer_pool_test, trim_keeps_so_much_on_each_device) {
  const auto one = new_stream();
  const auto two = weir::stream::create(gpu(1)).value();
  const auto pool = make();
  const auto fill = [&] {
    for (const stream_ref& stream : {one.ref(), two.ref()}) {
      auto small = pool.take(1_MiB, stream).value();
      auto large = pool.take(4_MiB, stream).value();
      ASSERT_TRUE(small.free());
    }
  };
  fill();
  EXPECT_EQ(pool.trim(gpu(0), 4_MiB).value(), 1_MiB) << "the longest unused first";
  EXPECT_EQ(pool.stats(gpu(0)).cached, 4_MiB);
  EXPECT_EQ(pool.stats(gpu(1)).cached, 5_MiB);
  fill();
  const auto live = pool.take(1_MiB, one).value();
  EXPECT_EQ(pool.trim(5_MiB).value(), 0_MiB) << "1 MiB live and 4 MiB cached; 5 MiB cached";
  EXPECT_EQ(pool.trim(4_MiB).value(), 5_MiB);
  EXPECT_EQ(pool.stats(gpu(0)).cached, 0_MiB);
  EXPECT_EQ(pool.stats(gpu(1)).cached, 4_MiB);
  EXPECT_EQ(pool.trim(gpu(1)).value(), 4_MiB);
  EXPECT_EQ(pool.trim().value(), 0_MiB);
}

TEST_F(buffer_pool_test, counters_and_peaks_begin_anew_on_one_device_or_on_all) {
  const auto one = new_stream();
  const auto two = weir::stream::create(gpu(1)).value();
  const auto pool = make();
  for (int i = 0; i < 3; ++i)
    for (const stream_ref& stream : {one.ref(), two.ref()})
      static_cast<void>(pool.take(1_MiB, stream).value());
  const buffer_pool_stats before{
      .hits = 2, .misses = 1, .returns = 3, .cached = 1_MiB, .taken_peak = 1_MiB};
  EXPECT_EQ(pool.stats(gpu(0)), before);
  EXPECT_EQ(pool.stats(gpu(1)), before);
  EXPECT_EQ(
      pool.stats(),
      (buffer_pool_stats{
          .hits = 4, .misses = 2, .returns = 6, .cached = 2_MiB, .taken = {}, .taken_peak = 2_MiB}))
      << "the sums";
  pool.reset_counters(gpu(0));
  EXPECT_EQ(pool.stats(gpu(0)), (buffer_pool_stats{.cached = 1_MiB, .taken_peak = 1_MiB}));
  EXPECT_EQ(pool.stats(gpu(1)), before);
  pool.reset_peaks(gpu(1));
  EXPECT_EQ(pool.stats(gpu(0)).taken_peak, 1_MiB);
  EXPECT_EQ(pool.stats(gpu(1)).taken_peak, 0_MiB);
  pool.reset_counters();
  pool.reset_peaks();
  EXPECT_EQ(pool.stats(), buffer_pool_stats{.cached = 2_MiB});
  const auto live = pool.take(1_MiB, two).value();
  EXPECT_EQ(pool.stats(),
            (buffer_pool_stats{.hits = 1, .cached = 1_MiB, .taken = 1_MiB, .taken_peak = 1_MiB}));
}

TEST_F(buffer_pool_test, every_peak_becomes_what_is_taken) {
  const auto one = new_stream();
  const auto two = weir::stream::create(gpu(1)).value();
  const auto pool = make();
  const auto kept = pool.take(1_MiB, one).value();
  const auto kept_there = pool.take(2_MiB, two).value();
  for (const stream_ref& stream : {one.ref(), two.ref()})
    static_cast<void>(pool.take(4_MiB, stream).value());
  EXPECT_EQ(pool.stats(gpu(0)).taken_peak, 5_MiB);
  EXPECT_EQ(pool.stats(gpu(1)).taken_peak, 6_MiB);
  pool.reset_peaks(gpu(0));
  EXPECT_EQ(pool.stats(gpu(0)).taken_peak, 1_MiB);
  EXPECT_EQ(pool.stats(gpu(1)).taken_peak, 6_MiB);
  pool.reset_peaks();
  EXPECT_EQ(pool.stats(), (buffer_pool_stats{.hits = 0,
                                             .misses = 4,
                                             .returns = 2,
                                             .cached = 8_MiB,
                                             .taken = 3_MiB,
                                             .taken_peak = 3_MiB}));
}

TEST_F(buffer_pool_test, what_is_cached_is_bounded_in_bytes) {
  const auto stream = new_stream();
  const auto pool = make({.max_cached = 1_MiB});
  {
    std::vector<pooled_buffer<char>> all;
    for (int i = 0; i < 16; ++i) all.push_back(pool.take<char>(256 << 10, stream).value());
  }
  EXPECT_EQ(pool.stats().cached, 4_MiB);
  const auto one = pool.take<char>(1, stream).value();
  EXPECT_EQ(pool.stats().cached, 1_MiB);
}

TEST_F(buffer_pool_test, what_is_cached_is_bounded_in_age) {
  const auto stream = new_stream();
  std::chrono::nanoseconds now = 100s;
  const auto pool = make({.max_idle_time = 10s, .clock = [&] { return now; }});
  const auto sizes = {1_MiB, 2_MiB, 3_MiB};
  std::vector<pooled_memory> all;
  for (const bytes size : sizes) all.push_back(pool.take(size, stream).value());
  for (auto& each : all) {
    ASSERT_TRUE(each.free());
    now += 4s;
  }
  // They are 12, 8 and 4 seconds old.
  EXPECT_EQ(pool.trim(bytes::max()).value(), 1_MiB);
  now += 2s;  // exactly 10 is not too old
  EXPECT_EQ(pool.trim(bytes::max()).value(), 0_MiB);
  now += 1ns;
  static_cast<void>(pool.take(3_MiB, stream).value());  // a hit; the 2 MiB go
  EXPECT_EQ(pool.stats().hits, 1u);
  EXPECT_EQ(pool.stats().cached, 3_MiB);
  now += 10s;
  EXPECT_EQ(pool.trim(bytes::max()).value(), 0_MiB);  // it was used meanwhile
  now += 1ns;
  EXPECT_EQ(pool.trim(bytes::max()).value(), 3_MiB);
}

TEST_F(buffer_pool_test, while_nothing_is_too_old_a_hit_costs_no_call) {
  const auto stream = new_stream();
  const auto pool = make({.max_idle_time = 10s, .clock = [] { return 100s; }});
  const context_scope scope{gpu()};
  for (const bytes size : {1_MiB, 2_MiB}) static_cast<void>(pool.take(size, stream).value());
  const auto before = machine->calls();
  static_cast<void>(pool.take(1_MiB, stream).value());
  EXPECT_EQ(pool.trim(bytes::max()).value(), 0_B);
  EXPECT_EQ(machine->calls(), before) << "nor does a trim that has nothing to do";
  EXPECT_EQ(pool.stats().hits, 1u);
}

TEST_F(buffer_pool_test, of_equal_blocks_the_one_that_was_freed_first_is_the_oldest) {
  const auto stream = new_stream();
  std::chrono::nanoseconds now = 100s;
  const auto pool = make({.max_idle_time = 10s, .clock = [&] { return now; }});
  std::vector<pooled_memory> all;
  for (int i = 0; i < 3; ++i) all.push_back(pool.take(1_MiB, stream).value());
  void* const newest = all[2].data();
  for (auto& each : all) {
    ASSERT_TRUE(each.free());
    now += 4s;
  }
  // They are 12, 8 and 4 seconds old.
  EXPECT_EQ(pool.trim(bytes::max()).value(), 1_MiB);
  EXPECT_EQ(pool.trim(bytes::max()).value(), 0_MiB);
  now += 2s + 1ns;
  EXPECT_EQ(pool.trim(bytes::max()).value(), 1_MiB);
  EXPECT_EQ(pool.stats().cached, 1_MiB);
  EXPECT_EQ(pool.take(1_MiB, stream).value().data(), newest);
}

TEST_F(buffer_pool_test, age_waits_for_whoever_still_uses_the_memory) {
  const auto one = new_stream();
  const auto two = new_stream();
  std::chrono::nanoseconds now = 0s;
  const auto pool = make({.max_idle_time = 1s, .clock = [&] { return now; }});
  auto buffer = pool.take(1_MiB, one).value();
  ASSERT_TRUE(buffer.record_stream(two));
  read(two, buffer.data(), 1_MiB);
  ASSERT_TRUE(buffer.free());
  now = 5s;
  static_cast<void>(pool.take(2_MiB, one).value());
  EXPECT_EQ(pool.stats().cached, 3_MiB);
  now = 6s;
  EXPECT_EQ(pool.trim(bytes::max()).value(), 0_MiB) << "the reader is not done";
  machine->run_until_idle();
  EXPECT_EQ(pool.trim(bytes::max()).value(), 1_MiB);
  EXPECT_EQ(pool.stats().cached, 2_MiB);
}

TEST_F(buffer_pool_test, a_clock_is_asked_only_where_age_is_bounded) {
  const auto stream = new_stream();
  int asked = 0;
  const auto clock = [&] {
    ++asked;
    return 0ns;
  };
  const auto ageless = make({.clock = clock});
  static_cast<void>(ageless.take(1_MiB, stream).value());
  EXPECT_EQ(ageless.trim(bytes::max()).value(), 0_B);
  EXPECT_EQ(asked, 0);
  const auto aging = make({.max_idle_time = 1s, .clock = clock});
  static_cast<void>(aging.take(1_MiB, stream).value());
  EXPECT_GT(asked, 0);
}

TEST_F(buffer_pool_test, the_systems_clock_will_do) {
  const auto stream = new_stream();
  const auto pool = make({.max_idle_time = 0ns});
  static_cast<void>(pool.take(1_MiB, stream).value());
  const auto until = std::chrono::steady_clock::now() + 1us;
  while (std::chrono::steady_clock::now() < until) continue;
  EXPECT_EQ(pool.trim(bytes::max()).value(), 1_MiB);
  EXPECT_EQ(code_of(buffer_pool::create({.max_idle_time = -1ns})), errc::invalid_argument);
}

TEST_F(buffer_pool_test, a_full_device_releases_what_is_cached) {
  const auto stream = new_stream();
  const auto pool = make();
  static_cast<void>(pool.take(1_GiB, stream).value());
  static_cast<void>(pool.take(1536_MiB, stream).value());
  EXPECT_EQ(pool.stats().cached, 1536_MiB);
}

TEST_F(buffer_pool_test, bad_input_gets_a_typed_error) {
  const auto stream = new_stream();
  const auto pool = make();
  const auto other = make();
  EXPECT_EQ(code_of(pool.take<int>(0, stream)), errc::invalid_argument);
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(code_of(pool.take<double>(most - 1, stream)), errc::size_overflow);
  EXPECT_EQ(code_of(pool.take<char>(most - 1, stream)), errc::size_overflow);
  auto buffer = pool.take<int>(10, stream).value();
  const auto refused = other.free(std::move(buffer), stream);
  EXPECT_EQ(code_of(refused), errc::foreign_pointer);
  EXPECT_EQ(refused.error().detail(),
            "the buffer belongs to another pool: " +
                detail::hexadecimal(reinterpret_cast<std::uintptr_t>(buffer.data())) + ", 40 B");
  EXPECT_TRUE(buffer);  // NOLINT: a refused buffer stays where it was
  ASSERT_TRUE(pool.free(std::move(buffer), stream));
  EXPECT_EQ(code_of(pool.free(std::move(buffer), stream)), errc::already_freed);  // NOLINT
  EXPECT_EQ(pool.stats().returns, 1u);
  EXPECT_NE(pool, other);
  auto copy = pool;
  const auto moved = std::move(copy);
  EXPECT_EQ(code_of(copy.take<int>(1, stream)), errc::moved_from);  // NOLINT
  EXPECT_EQ(code_of(copy.try_take_cached<int>(1, stream)), errc::moved_from);
  EXPECT_EQ(code_of(copy.free(pooled_memory{}, stream)), errc::moved_from);
  EXPECT_EQ(code_of(copy.empty_cache()), errc::moved_from);
  EXPECT_EQ(code_of(copy.empty_cache(gpu())), errc::moved_from);
  EXPECT_EQ(code_of(copy.trim()), errc::moved_from);
  EXPECT_EQ(code_of(copy.trim(gpu())), errc::moved_from);
  EXPECT_EQ(code_of(copy.close()), errc::moved_from);
  EXPECT_THROW(static_cast<void>(copy.stats()), failure);
  EXPECT_THROW(static_cast<void>(copy.stats(gpu())), failure);
  EXPECT_THROW(copy.reset_peaks(), failure);
  EXPECT_THROW(copy.reset_peaks(gpu()), failure);
  EXPECT_THROW(copy.reset_counters(), failure);
  EXPECT_THROW(copy.reset_counters(gpu()), failure);
  EXPECT_EQ(code_of(moved.free(pooled_memory{}, stream)), errc::moved_from) << "it owns nothing";
}

TEST_F(buffer_pool_test, closing_leaves_live_buffers_good_and_caches_nothing) {
  const auto one = new_stream();
  const auto two = weir::stream::create(gpu(1)).value();
  const auto pool = make();
  const bytes before = used();
  auto live = std::make_optional(pool.take(4_MiB, one).value());
  static_cast<void>(pool.take(8_MiB, one).value());
  static_cast<void>(pool.take(8_MiB, two).value());
  ASSERT_TRUE(pool.close());
  EXPECT_EQ(pool.stats().cached, 0_B);
  EXPECT_EQ(code_of(pool.take<int>(1, one)), errc::closed);
  EXPECT_EQ(code_of(pool.try_take_cached<int>(1, one)), errc::closed);
  EXPECT_EQ(used() - before, 4_MiB);
  write(one, live->data(), live->size());
  live.reset();
  EXPECT_EQ(used(), before);
  EXPECT_TRUE(pool.close());
}

TEST_F(buffer_pool_test, closing_attempts_every_device) {
  const auto one = new_stream();
  const auto two = weir::stream::create(gpu(1)).value();
  const auto pool = make();
  static_cast<void>(pool.take(8_MiB, one).value());
  static_cast<void>(pool.take(8_MiB, two).value());
  machine->fail(call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);
  const auto failed = pool.close();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().native(), driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(pool.stats(gpu(0)).cached, 8_MiB);
  EXPECT_EQ(pool.stats(gpu(1)).cached, 0_MiB);
  EXPECT_TRUE(pool.close());
  EXPECT_EQ(pool.stats().cached, 0_MiB);
}

TEST_F(buffer_pool_test, a_driver_that_is_gone_is_no_trouble) {
  const auto stream = new_stream();
  {
    const auto pool = make();
    const auto live = pool.take<int>(100, stream).value();
    static_cast<void>(pool.take<int>(10'000, stream).value());
    machine->shut_down();
    EXPECT_EQ(code_of(pool.take<int>(1'000'000, stream)), errc::driver_gone);
  }
  EXPECT_THAT(heard.take(), IsEmpty());
}

}  // namespace
}  // namespace weir::testing_support
