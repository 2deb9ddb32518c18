// SPDX-License-Identifier: Apache-2.0
// statistics_resource: exact numbers, in sections.
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "resources/resources_fixture.hpp"
#include "weir/resource/statistics_resource.hpp"

namespace weir::testing_support { namespace {

using statistics_test = resources_test;

constexpr running_count<bytes> size(std::int64_t current, std::uint64_t peak, std::uint64_t total) {
  return {current, bytes{peak}, bytes{total}};
}
constexpr running_count<std::uint64_t> count(std::int64_t current, std::uint64_t peak,
                                             std::uint64_t total) {
  return {current, peak, total};
}

TEST_F(statistics_test, counts_what_is_now_what_was_and_what_all_was) {
  auto counted = statistics_resource::create(ledger).value();
  void* const p = counted.try_allocate(100_B, stream).value();
  void* const q = counted.try_allocate(50_B, stream).value();
  EXPECT_TRUE(counted.try_deallocate(p, 100_B, stream));
  void* const r = counted.try_allocate(10_B, stream).value();
  EXPECT_EQ(counted.stats().bytes, size(60, 150, 160));
  EXPECT_EQ(counted.stats().allocations, count(2, 2, 3));
  EXPECT_TRUE(counted.try_deallocate(q, 50_B, stream));
  EXPECT_TRUE(counted.try_deallocate(r, 10_B, stream));
  EXPECT_EQ(counted.stats().bytes, size(0, 150, 160));
}

TEST_F(statistics_test, only_what_happened_is_counted) {
  auto counted = statistics_resource::create(ledger).value();
  ledger.refuse({errc::out_of_memory});
  EXPECT_FALSE(counted.try_allocate(1_KiB, stream));
  EXPECT_EQ(counted.try_allocate(0_B, stream).value(), nullptr);
  EXPECT_TRUE(counted.try_deallocate(nullptr, 0_B, stream));
  EXPECT_EQ(counted.stats(), resource_stats{});
  void* const p = counted.try_allocate(8_B, stream).value();
  ledger.refuse_free({errc::device_lost});
  EXPECT_EQ(code_of(counted.try_deallocate(p, 8_B, stream)), errc::device_lost);
  EXPECT_EQ(counted.stats().bytes.current, 8);
  EXPECT_EQ(code_of(counted.try_deallocate(p, 9_B, stream)), errc::invalid_argument);
  EXPECT_EQ(counted.stats().bytes.current, 0);
  EXPECT_EQ(code_of(counted.try_deallocate(p, 8_B, stream)), errc::double_free);
  EXPECT_EQ(counted.stats().bytes.current, 0);
}

TEST_F(statistics_test, sections_nest_and_add_up) {
  auto counted = statistics_resource::create(ledger).value();
  void* const before = counted.try_allocate(10_B, stream).value();
  EXPECT_EQ(counted.push().bytes, size(10, 10, 10));
  void* const in = counted.try_allocate(100_B, stream).value();
  EXPECT_TRUE(counted.try_deallocate(in, 100_B, stream));
  EXPECT_TRUE(counted.try_deallocate(before, 10_B, stream));
  EXPECT_EQ(counted.stats().bytes, size(-10, 100, 100))
      << "the section freed more than it allocated";
  EXPECT_EQ(counted.pop().value().bytes, size(-10, 100, 100));
  EXPECT_EQ(counted.stats().bytes, size(0, 110, 110));
  EXPECT_EQ(counted.stats().allocations, count(0, 2, 2));
  EXPECT_EQ(code_of(counted.pop()), errc::invalid_argument);
}

TEST_F(statistics_test, a_reset_leaves_only_what_is_live) {
  auto counted = statistics_resource::create(ledger).value();
  void* const p = counted.try_allocate(100_B, stream).value();
  void* const q = counted.try_allocate(50_B, stream).value();
  EXPECT_TRUE(counted.try_deallocate(q, 50_B, stream));
  counted.reset_counters();
  counted.reset_peaks();
  EXPECT_EQ(counted.stats(), (resource_stats{size(100, 100, 0), count(1, 1, 0)}));
  counted.push();
  EXPECT_TRUE(counted.try_deallocate(p, 100_B, stream));
  counted.reset_counters();
  counted.reset_peaks();
  EXPECT_EQ(counted.stats(), (resource_stats{size(-100, 0, 0), count(-1, 0, 0)}));
  EXPECT_TRUE(counted.pop());
  EXPECT_EQ(counted.stats(), (resource_stats{size(0, 100, 0), count(0, 1, 0)}));
}

TEST_F(statistics_test, texts_are_exact) {
  EXPECT_EQ(to_string(resource_stats{size(3072, 5120, 12288), count(2, 3, 9)}),
            "3 KiB in 2 allocations, at most 5 KiB in 3, in total 12 KiB in 9");
  EXPECT_EQ(to_string(resource_stats{}),
            "0 B in 0 allocations, at most 0 B in 0, in total 0 B in 0");
  EXPECT_EQ(to_string(resource_stats{size(-1, 0, 1), count(1, 1, 2)}),
            "-1 B in 1 allocations, at most 0 B in 1, in total 1 B in 2");
  EXPECT_EQ(to_string(resource_stats{size(-10, 0, 100), count(-1, 0, 1)}),
            "-10 B in -1 allocations, at most 0 B in 0, in total 100 B in 1");
  EXPECT_EQ(to_string(resource_stats{size(std::numeric_limits<std::int64_t>::min(), 0, 0), {}}),
            "-8 EiB in 0 allocations, at most 0 B in 0, in total 0 B in 0");
}

/// Calls the user once memory was freed, which is where another thread could come in.
struct interrupted_resource {
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream, bytes alignment) {
    return under.try_allocate(size, stream, alignment);
  }
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) {
    auto freed = under.try_deallocate(pointer, size, stream);
    if (const auto then = std::exchange(*after_free, {})) then();
    return freed;
  }
  [[nodiscard]] weir::device device() const { return under.device(); }
  [[nodiscard]] memory_kind kind() const noexcept { return under.kind(); }
  friend bool operator==(const interrupted_resource&, const interrupted_resource&) = default;

  ledger_resource under;
  std::shared_ptr<std::function<void()>> after_free = std::make_shared<std::function<void()>>();
};

TEST_F(statistics_test, memory_that_changes_hands_is_counted_once) {
  interrupted_resource interrupted{.under = ledger};
  auto counted = statistics_resource::create(interrupted).value();
  void* const p = counted.try_allocate(100_B, stream).value();
  void* q = nullptr;
  *interrupted.after_free = [&] { q = counted.try_allocate(100_B, stream).value(); };
  EXPECT_TRUE(counted.try_deallocate(p, 100_B, stream));
  EXPECT_EQ(counted.stats().bytes, size(100, 100, 200));
  EXPECT_EQ(counted.stats().allocations, count(1, 1, 2));

  // A free that throws has freed nothing, and what came between was live beside it.
  void* r = nullptr;
  *interrupted.after_free = [&] {
    r = counted.try_allocate(50_B, stream).value();
    throw std::runtime_error{"after the free"};
  };
  EXPECT_THROW(static_cast<void>(counted.try_deallocate(q, 100_B, stream)), std::runtime_error);
  EXPECT_EQ(counted.stats().bytes, size(150, 150, 250));
  EXPECT_EQ(counted.stats().allocations, count(2, 2, 3));
  EXPECT_TRUE(counted.try_deallocate(r, 50_B, stream));
}

TEST_F(statistics_test, threads_lose_nothing) {
  auto counted = statistics_resource::create(ledger).value();
  std::vector<std::thread> crowd;
  for (int t = 0; t < 4; ++t) {
    crowd.emplace_back([&] {
      for (int i = 0; i < 1'000; ++i) {
        void* const p = counted.try_allocate(16_B, stream).value();
        EXPECT_TRUE(counted.try_deallocate(p, 16_B, stream));
      }
    });
  }
  for (std::thread& each : crowd) each.join();
  EXPECT_EQ(counted.stats().bytes.current, 0);
  EXPECT_EQ(counted.stats().bytes.total, bytes{64'000});
  EXPECT_EQ(counted.stats().allocations.total, 4'000U);
  EXPECT_LE(counted.stats().allocations.peak, 4U);
}

}  // namespace
}  // namespace weir::testing_support
