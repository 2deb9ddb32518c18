// buffer_pool: takes and returns on two devices, bounds by bytes and age, exact counters.
#include "weir/pool/buffer_pool.hpp"

#include <limits>
#include <optional>

#include "pools/pool_fixture.hpp"

namespace weir::testing_support {
namespace {

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
  const void* const where = first.data();
  EXPECT_EQ(first.size(), 1000u);
  ASSERT_TRUE(pool.give_back(std::move(first), stream));
  const auto second = pool.take<float>(1000, stream).value();
  EXPECT_EQ(second.data(), where);
  const auto now = pool.stats(gpu());
  EXPECT_EQ(now.hits, 1u);
  EXPECT_EQ(now.misses, 1u);
  EXPECT_EQ(now.returns, 1u);
  EXPECT_EQ(now.taken, 4096_B);
  EXPECT_EQ(now.kept, 0_B);
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
  const void* where = nullptr;
  {
    const auto doubles = pool.take<double>(512, stream).value();
    where = doubles.data();
  }
  const auto chars = pool.take<char>(4000, stream).value();
  EXPECT_EQ(static_cast<const void*>(chars.data()), where);
  const auto one = pool.take<double>(1, stream).value();
  EXPECT_EQ(pool.stats().taken, 4096_B + 512_B);  // one double is not 256 of them
}

TEST_F(buffer_pool_test, every_take_respects_streams) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make();
  auto first = pool.take<int>(1000, one).value();
  const int* const where = first.data();
  write(one, first.data(), first.size_bytes());
  ASSERT_TRUE(first.give_back());
  {
    const auto second = pool.take<int>(1000, two).value();
    EXPECT_NE(second.data(), where);
    write(two, second.data(), second.size_bytes());
    const auto third = pool.take<int>(1000, gpu()).value();  // the legacy stream is one of them
    EXPECT_NE(third.data(), where);
    EXPECT_TRUE(third.stream().is_legacy());
  }
  const auto own = pool.take<int>(1000, one).value();
  EXPECT_EQ(own.data(), where);
  write(one, own.data(), own.size_bytes());
}

TEST_F(buffer_pool_test, a_buffer_comes_back_on_the_stream_that_is_named) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make();
  auto first = pool.take<int>(1000, one).value();
  const int* const where = first.data();
  const auto mark = [&] {
    auto made = event::create(gpu()).value();
    EXPECT_TRUE(made.record(one));
    EXPECT_TRUE(two.wait(made));
  };
  write(one, first.data(), first.size_bytes());
  mark();
  write(two, first.data(), first.size_bytes());
  ASSERT_TRUE(pool.give_back(std::move(first), two));
  const auto next = pool.take<int>(1000, two).value();
  EXPECT_EQ(next.data(), where);
  write(two, next.data(), next.size_bytes());
}

TEST_F(buffer_pool_test, a_stream_recorded_on_a_live_buffer_is_waited_for_and_then_forgotten) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make();
  auto first = pool.take<int>(1000, one).value();
  auto untouched = pool.take<int>(1000, one).value();
  const int* const where = first.data();
  const int* const other = untouched.data();
  ASSERT_TRUE(first.record_stream(two));
  read(two, first.data(), first.size_bytes());
  ASSERT_TRUE(untouched.give_back());
  ASSERT_TRUE(first.give_back());
  {
    const auto next = pool.take<int>(1000, one).value();
    EXPECT_EQ(next.data(), other);  // only the buffer that was recorded waits
    const auto another = pool.take<int>(1000, one).value();
    EXPECT_NE(another.data(), where);
  }
  machine->run_until_idle();
  for (int i = 0; i < 3; ++i) {  // and it is as good as ever
    std::vector<pooled_buffer<int>> all;
    for (int each = 0; each < 3; ++each) all.push_back(pool.take<int>(1000, one).value());
    EXPECT_EQ(std::count_if(all.begin(), all.end(),
                            [&](const auto& each) { return each.data() == where; }),
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
  EXPECT_EQ(pool.stats(gpu(0)).kept, 1024_B);
  EXPECT_EQ(pool.stats(gpu(1)).kept, 2048_B);
  EXPECT_EQ(pool.stats().kept, 3072_B);
  EXPECT_EQ(pool.empty(gpu(0)).value(), 1024_B);
  EXPECT_EQ(pool.stats(gpu(0)).kept, 0_B);
  EXPECT_EQ(pool.stats(gpu(1)).kept, 2048_B);
  EXPECT_EQ(pool.take<char>(2048, two).value().stream().device(), gpu(1));
  EXPECT_EQ(pool.stats(gpu(1)).hits, 1u);
  EXPECT_EQ(pool.empty().value(), 2048_B);
  EXPECT_EQ(pool.stats().kept, 0_B);
  const auto elsewhere = make();
  EXPECT_EQ(elsewhere.empty(gpu(0)).value(), 0_B);
  EXPECT_EQ(elsewhere.stats(), buffer_pool_stats{});
}

TEST_F(buffer_pool_test, a_hit_costs_one_fill_if_zeros_are_asked_for_and_otherwise_nothing) {
  const auto stream = new_stream();
  const auto pool = make();
  const context_scope bound{gpu()};  // as any thread has that works with the device
  { const auto first = pool.take<int>(1000, stream).value(); }
  auto before = machine->calls();
  { const auto plain = pool.take<int>(1000, stream).value(); }
  EXPECT_EQ(machine->calls(), before);
  const auto looks = machine->calls(call::ctx_get_current);
  { const auto zeros = pool.take<int>(1000, stream, contents::zeroed).value(); }
  EXPECT_EQ(machine->calls(call::memset_d8_async), 1u);
  EXPECT_EQ(machine->calls(call::ctx_get_current), looks + 1);  // whose turn it is
  EXPECT_EQ(machine->calls(), before + 2);
  EXPECT_EQ(pool.stats().hits, 2u);
}

TEST_F(buffer_pool_test, what_is_kept_is_bounded_in_bytes) {
  const auto stream = new_stream();
  const auto pool = make({.most_kept = 1_MiB});
  {
    std::vector<pooled_buffer<char>> all;
    for (int i = 0; i < 16; ++i) all.push_back(pool.take<char>(256 << 10, stream).value());
  }
  EXPECT_EQ(pool.stats().kept, 4_MiB);
  const auto one = pool.take<char>(1, stream).value();
  EXPECT_EQ(pool.stats().kept, 1_MiB);
}

TEST_F(buffer_pool_test, what_is_kept_is_bounded_in_age) {
  const auto stream = new_stream();
  std::chrono::nanoseconds now = 100s;
  const auto pool = make({.longest_kept = 10s, .clock = [&] { return now; }});
  const auto sizes = {1_MiB, 2_MiB, 3_MiB};
  std::vector<pooled_memory> all;
  for (const bytes size : sizes) all.push_back(pool.take(size, stream).value());
  for (auto& each : all) {
    ASSERT_TRUE(each.give_back());
    now += 4s;
  }
  // They are 12, 8 and 4 seconds old.
  EXPECT_EQ(pool.trim().value(), 1_MiB);
  now += 2s;  // exactly 10 is not too old
  EXPECT_EQ(pool.trim().value(), 0_MiB);
  now += 1ns;
  static_cast<void>(pool.take(3_MiB, stream).value());  // a hit; the 2 MiB go
  EXPECT_EQ(pool.stats().hits, 1u);
  EXPECT_EQ(pool.stats().kept, 3_MiB);
  now += 10s;
  EXPECT_EQ(pool.trim().value(), 0_MiB);  // it was used meanwhile
  now += 1ns;
  EXPECT_EQ(pool.trim().value(), 3_MiB);
}

TEST_F(buffer_pool_test, age_waits_for_whoever_still_uses_the_memory) {
  const auto one = new_stream();
  const auto two = new_stream();
  std::chrono::nanoseconds now = 0s;
  const auto pool = make({.longest_kept = 1s, .clock = [&] { return now; }});
  auto buffer = pool.take(1_MiB, one).value();
  ASSERT_TRUE(buffer.record_stream(two));
  read(two, buffer.data(), 1_MiB);
  ASSERT_TRUE(buffer.give_back());
  now = 5s;
  static_cast<void>(pool.take(2_MiB, one).value());
  EXPECT_EQ(pool.stats().kept, 3_MiB);
  now = 6s;
  EXPECT_EQ(pool.trim().value(), 1_MiB);  // trim waits
  EXPECT_EQ(pool.stats().kept, 2_MiB);
}

TEST_F(buffer_pool_test, the_systems_clock_will_do) {
  const auto stream = new_stream();
  const auto pool = make({.longest_kept = 0ns});
  static_cast<void>(pool.take(1_MiB, stream).value());
  const auto until = std::chrono::steady_clock::now() + 1us;
  while (std::chrono::steady_clock::now() < until) continue;
  EXPECT_EQ(pool.trim().value(), 1_MiB);
  EXPECT_EQ(code_of(buffer_pool::create({.longest_kept = -1ns})), errc::invalid_argument);
}

TEST_F(buffer_pool_test, a_full_device_takes_back_what_is_kept) {
  const auto stream = new_stream();
  const auto pool = make();
  static_cast<void>(pool.take(1_GiB, stream).value());
  static_cast<void>(pool.take(1536_MiB, stream).value());
  EXPECT_EQ(pool.stats().kept, 1536_MiB);
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
  EXPECT_EQ(code_of(other.give_back(std::move(buffer), stream)), errc::foreign_pointer);
  EXPECT_TRUE(buffer);  // NOLINT: a refused buffer stays where it was
  ASSERT_TRUE(pool.give_back(std::move(buffer), stream));
  EXPECT_EQ(code_of(pool.give_back(std::move(buffer), stream)), errc::already_freed);  // NOLINT
  EXPECT_EQ(pool.stats().returns, 1u);
  EXPECT_NE(pool, other);
  auto copy = pool;
  const auto moved = std::move(copy);
  EXPECT_EQ(code_of(copy.take<int>(1, stream)), errc::already_freed);  // NOLINT
  EXPECT_EQ(code_of(copy.empty()), errc::already_freed);
  EXPECT_EQ(copy.stats(), buffer_pool_stats{});
}

TEST_F(buffer_pool_test, shutdown_leaves_live_buffers_good_and_keeps_nothing) {
  const auto one = new_stream();
  const auto two = weir::stream::create(gpu(1)).value();
  const auto pool = make();
  const bytes before = used();
  auto live = std::make_optional(pool.take(4_MiB, one).value());
  static_cast<void>(pool.take(8_MiB, one).value());
  static_cast<void>(pool.take(8_MiB, two).value());
  ASSERT_TRUE(pool.shutdown());
  EXPECT_EQ(pool.stats().kept, 0_B);
  EXPECT_EQ(code_of(pool.take<int>(1, one)), errc::already_freed);
  EXPECT_EQ(used() - before, 4_MiB);
  write(one, live->data(), live->size());
  live.reset();
  EXPECT_EQ(used(), before);
  EXPECT_TRUE(pool.shutdown());
}

TEST_F(buffer_pool_test, shutdown_attempts_every_device) {
  const auto one = new_stream();
  const auto two = weir::stream::create(gpu(1)).value();
  const auto pool = make();
  static_cast<void>(pool.take(8_MiB, one).value());
  static_cast<void>(pool.take(8_MiB, two).value());
  machine->fail(call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(pool.shutdown());
  EXPECT_EQ(pool.stats(gpu(0)).kept, 8_MiB);
  EXPECT_EQ(pool.stats(gpu(1)).kept, 0_MiB);
  EXPECT_TRUE(pool.shutdown());
  EXPECT_EQ(pool.stats().kept, 0_MiB);
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
