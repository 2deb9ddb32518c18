// SPDX-License-Identifier: Apache-2.0
// Copies and fills: what arrives, in which order, and what is refused.
#include "weir/buffer/copy.hpp"

#include <algorithm>
#include <array>

#include "buffers/buffers_test.hpp"
#include "weir/buffer/device_vector.hpp"
#include "weir/device/event.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;

class copies : public buffers_test {
 protected:
  [[nodiscard]] device_vector<word> make(std::size_t count, const stream_ref& on, int index = 0) {
    return device_vector<word>::create(memory(index), count, on).value();
  }
  [[nodiscard]] device_vector<word> make(const std::vector<word>& values, const stream_ref& on) {
    auto vector = device_vector<word>::copy_of(memory(), values, on).value();
    EXPECT_TRUE(on.synchronize());  // the values may go
    return vector;
  }
  [[nodiscard]] std::vector<word> read(const device_vector<word>& from) const {
    return words_of(from.data(), from.size(), from.stream());
  }
};
WEIR_BUFFERS_TEST(copies);

TEST(pitched_memory, has_no_planes_unless_it_says_so) {
  const word value = 0;
  const const_pitched_memory flat{&value, 8_B};
  EXPECT_EQ(flat.data, &value);
  EXPECT_EQ(flat.pitch, 8_B);
  EXPECT_EQ(flat.rows, 0U);
  EXPECT_EQ((const_pitched_memory{&value, 8_B, 5}).rows, 5U);
  EXPECT_EQ(const_pitched_memory{pitched_memory{}}.rows, 0U);
  EXPECT_EQ(const_pitched_memory{pitched_memory{}}.data, nullptr);
}

// --- Lines ---------------------------------------------------------------------------------------

TEST_P(copies, go_between_every_kind_of_memory) {
  const auto on = make_stream();
  const auto values = counting(1000, 7);
  constexpr bytes size{1000 * sizeof(word)};
  auto first = make(values.size(), on);
  auto second = make(values.size(), on);
  word* const pinned = new_pinned(size.count());
  auto* const managed = reinterpret_cast<word*>(new_managed(size.count()));
  std::vector<word> back(values.size());
  // pageable -> device -> device -> managed -> pinned -> device -> pageable
  WEIR_DONE(weir::copy(first, values, on));
  WEIR_DONE(weir::copy(second, first, on));
  WEIR_DONE(copy_bytes(managed, second.data(), size, on));
  WEIR_DONE(copy_bytes(pinned, managed, size, on));
  WEIR_DONE(weir::fill(second, word{0}, on));
  WEIR_DONE(copy_bytes(second.data(), pinned, size, on));
  WEIR_DONE(weir::copy(back, second, on));
  WEIR_DONE(on.synchronize());
  EXPECT_EQ(back, values);
}

TEST_P(copies, of_device_memory_are_ordered_with_a_non_blocking_stream) {
  // A copy that went through the default stream would come before the fill that is held.
  const auto on = make_stream();
  auto from = make(counting(64), on);
  auto to = make(std::vector<word>(64, 9), on);
  auto held = occupy(on.handle());
  WEIR_DONE(from.fill(5));
  WEIR_DONE(weir::copy(to, from, on));
  held->finish();
  EXPECT_THAT(read(to), AllAre(5U));
}

TEST_P(copies, of_the_host_are_ordered_with_a_non_blocking_stream) {
  // An upload that went through the default stream would come before the fill that is held.
  const auto on = make_stream();
  auto to = make(16, on);
  word* const values = new_pinned(64);
  std::fill_n(values, 16, word{3});
  auto held = occupy(on.handle());
  WEIR_DONE(to.fill(8));
  WEIR_DONE(weir::copy(to, std::span<const word>{values, 16}, on));
  held->finish();
  EXPECT_THAT(read(to), AllAre(3U));
}

TEST_P(copies, of_nothing_queue_nothing) {
  const auto on = make_stream();
  WEIR_DONE(copy_bytes(nullptr, nullptr, 0_B, on));
  WEIR_DONE(fill_bytes(nullptr, 1, 0_B, on));
  const std::uint64_t pattern = 1;
  WEIR_DONE(fill_pattern(nullptr, &pattern, 8_B, 0, on));
  WEIR_DONE(fill_2d({nullptr, 0_B}, 1, 8_B, 0, on));
  WEIR_DONE(copy_2d({nullptr, 0_B}, {nullptr, 0_B}, 0_B, 5, on));
  WEIR_DONE(copy_3d({nullptr, 0_B}, {nullptr, 0_B}, {8_B, 0, 2}, on));
  WEIR_DONE(copy_batch({}, on));
}

TEST_P(copies, refuse_what_cannot_be) {
  const auto on = make_stream();
  auto some = make(counting(64), on);
  auto other = make(64, on);
  auto* const first = some.data();
  EXPECT_EQ(code_of(copy_bytes(nullptr, first, 4_B, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(copy_bytes(first, nullptr, 4_B, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(copy_bytes(first, other.data(), bytes::max(), on)), errc::size_overflow);
  EXPECT_EQ(code_of(copy_bytes(first, first, 4_B, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(copy_bytes(first + 1, first, 8_B, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(copy_bytes(first, first + 1, 8_B, on)), errc::invalid_argument);
  WEIR_DONE(copy_bytes(first + 2, first, 8_B, on));  // beside each other
  WEIR_DONE(copy_bytes(first, first + 2, 8_B, on));
  EXPECT_EQ(copy_bytes(first + 1, first, 8_B, on).error(),
            (error{{.code = errc::invalid_argument,
                    .requested = 8_B,
                    .detail = "source and destination overlap"}}));
  EXPECT_EQ(
      copy_bytes(first, nullptr, 4_B, on).error(),
      (error{{.code = errc::invalid_argument, .requested = 4_B, .detail = "the address is null"}}));
  std::vector<word> few(63);
  EXPECT_EQ(code_of(weir::copy(some, few, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(fill_bytes(nullptr, 0, 1_B, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(fill_bytes(first, 0, bytes::max(), on)), errc::size_overflow);
  const word value = 1;
  EXPECT_EQ(code_of(fill_pattern(first, nullptr, 4_B, 1, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(fill_pattern(first, &value, 0_B, 1, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(fill_pattern(first, &value, 4_B, ~0ULL, on)), errc::size_overflow);
  const auto crooked = reinterpret_cast<word*>(reinterpret_cast<char*>(first) + 1);
  EXPECT_EQ(code_of(weir::fill(device_span<word>{crooked, 2}, value, on)), errc::bad_alignment);
}

// --- Fills ---------------------------------------------------------------------------------------

struct three_bytes {
  std::uint8_t a, b, c;
  friend bool operator==(const three_bytes&, const three_bytes&) = default;
};

template <class T>
void expect_filled(const any_resource& from, const stream_ref& on, std::size_t count,
                   const T& value) {
  auto to = device_vector<T>::create(from, count, on).value();
  WEIR_DONE(fill_bytes(to.data(), 0xee, bytes{count * sizeof(T)}, on));
  // All but the ends, which must stay as they are.
  WEIR_DONE(weir::fill(to.span().part(1, count - 2).value(), value, on));
  std::vector<T> elements(count);
  WEIR_DONE(to.copy_to(elements));
  WEIR_DONE(on.synchronize());
  for (std::size_t i = 1; i + 1 < count; ++i) ASSERT_EQ(elements[i], value) << i;
  std::array<unsigned char, sizeof(T)> around{};
  around.fill(0xee);
  EXPECT_EQ(elements.front(), std::bit_cast<T>(around));
  EXPECT_EQ(elements.back(), std::bit_cast<T>(around));
}

TEST_P(copies, fills_reach_every_element_and_no_other) {
  const auto on = make_stream();
  for (const std::size_t count : {3U, 4U, 5U, 129U, 1000U}) {
    expect_filled<std::uint8_t>(memory(), on, count, 0xab);
    expect_filled<std::uint16_t>(memory(), on, count, 0x1234);
    expect_filled<three_bytes>(memory(), on, count, {1, 2, 3});
    expect_filled<three_bytes>(memory(), on, count, {1, 1, 2});
    expect_filled<float>(memory(), on, count, 1.5F);
    expect_filled<double>(memory(), on, count, -0.1);
    expect_filled<std::array<word, 5>>(memory(), on, count, {1, 2, 3, 4, 5});
    expect_filled<std::uint64_t>(memory(), on, count, 0);
  }
}

TEST_P(copies, patterns_begin_at_any_address) {
  const auto on = make_stream();
  constexpr std::size_t size = 96;
  auto to = device_vector<std::uint8_t>::create(memory(), size, on).value();
  const std::array<std::uint8_t, 12> pattern{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (const std::size_t offset : {4U, 5U, 6U, 7U}) {
    for (const std::size_t element : {2U, 3U, 4U, 6U, 8U, 12U}) {
      for (const std::size_t count : {1U, 2U, 3U, 7U}) {
        std::vector<std::uint8_t> expected(size, 0xee);
        for (std::size_t i = 0; i < element * count; ++i) {
          expected[offset + i] = pattern[i % element];
        }
        WEIR_DONE(to.fill(0xee));
        WEIR_DONE(fill_pattern(to.data() + offset, pattern.data(), bytes{element}, count, on));
        std::vector<std::uint8_t> filled(size);
        WEIR_DONE(to.copy_to(filled));
        WEIR_DONE(on.synchronize());
        ASSERT_EQ(filled, expected) << count << " of " << element << " B at " << offset;
      }
    }
  }
}

TEST_P(copies, a_captured_fill_needs_no_host_memory_later) {
  const auto on = make_stream();
  auto to = device_vector<double>::create(memory(), 100, on).value();
  WEIR_DONE(on.synchronize());
  ASSERT_EQ(CUDA_SUCCESS, cu->stream_begin_capture(on.handle(), CU_STREAM_CAPTURE_MODE_RELAXED));
  {
    const double passing = 0.75;
    WEIR_DONE(weir::fill(to, passing, on));
  }
  const CUgraphExec exec = new_exec(end_capture(on.handle()));
  WEIR_DONE(to.fill(0.0));
  ASSERT_EQ(CUDA_SUCCESS, cu->graph_launch(exec, on.handle()));
  EXPECT_EQ(to.get(0).value(), 0.75);
  EXPECT_EQ(to.get(99).value(), 0.75);
}

// --- Boxes ---------------------------------------------------------------------------------------

TEST_P(copies, of_rows_arrive_and_leave_the_gaps_alone) {
  const auto on = make_stream();
  const auto from = make(counting(16 * 8), on);  // 8 rows of 16 words
  auto to = make(std::vector<word>(20 * 8, 99), on);
  WEIR_DONE(copy_2d({to.data() + 3, 80_B}, {from.data() + 2, 64_B}, 40_B, 8, on));
  const auto words = read(to);
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t column = 0; column < 20; ++column) {
      const bool copied = column >= 3 && column < 13;
      ASSERT_EQ(words[row * 20 + column], copied ? row * 16 + 2 + column - 3 : 99) << row << column;
    }
  }
}

TEST_P(copies, of_rows_go_to_and_from_the_host) {
  const auto on = make_stream();
  auto there = make(std::vector<word>(64, 5), on);
  const auto values = counting(32);
  std::vector<word> back(32, 1);
  WEIR_DONE(copy_2d({there.data(), 32_B}, {values.data(), 16_B}, 16_B, 8, on));
  WEIR_DONE(copy_2d({back.data(), 16_B}, {there.data(), 32_B}, 16_B, 8, on));
  WEIR_DONE(on.synchronize());
  EXPECT_EQ(back, values);
}

TEST_P(copies, of_planes_arrive_and_leave_the_gaps_alone) {
  const auto on = make_stream();
  const auto from = make(counting(8 * 4 * 3), on);  // 3 planes of 4 rows of 8 words
  auto to = make(std::vector<word>(10 * 6 * 3, 99), on);
  WEIR_DONE(copy_3d({to.data(), 40_B, 6}, {from.data(), 32_B, 4}, {20_B, 2, 3}, on));
  const auto words = read(to);
  for (std::size_t plane = 0; plane < 3; ++plane) {
    for (std::size_t row = 0; row < 6; ++row) {
      for (std::size_t column = 0; column < 10; ++column) {
        const bool copied = row < 2 && column < 5;
        ASSERT_EQ(words[(plane * 6 + row) * 10 + column],
                  copied ? (plane * 4 + row) * 8 + column : 99)
            << plane << row << column;
      }
    }
  }
}

TEST_P(copies, of_boxes_may_interleave_but_not_overlap) {
  const auto on = make_stream();
  auto in = make(counting(16 * 16), on);
  word* const first = in.data();
  // The left half of each row to the right half; rows 0 to 3 of each plane of 8 to rows 4 to 7.
  WEIR_DONE(copy_2d({first + 8, 64_B}, {first, 64_B}, 32_B, 16, on));
  WEIR_DONE(copy_3d({first + 64, 64_B, 8}, {first, 64_B, 8}, {32_B, 4, 2}, on));
  const auto words = read(in);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t plane = i / 128, row = i / 16 % 8, column = i % 16;
    const std::size_t row_from = column < 8 && row >= 4 ? row - 4 : row;
    ASSERT_EQ(words[i], plane * 128 + row_from * 16 + column % 8) << i;
  }
  // Of one plane nobody asks where the next would begin.
  WEIR_DONE(copy_3d({first + 8, 64_B, 5}, {first, 64_B, 7}, {32_B, 4, 1}, on));
  EXPECT_EQ(code_of(copy_3d({first + 8, 64_B, 5}, {first, 64_B, 7}, {32_B, 4, 2}, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_2d({first + 7, 64_B}, {first, 64_B}, 32_B, 16, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_2d({first + 9, 64_B}, {first, 64_B}, 32_B, 16, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_2d({first, 64_B}, {first + 9, 64_B}, 32_B, 16, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_2d({first, 32_B}, {first + 8, 64_B}, 16_B, 8, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_3d({first + 48, 64_B, 8}, {first, 64_B, 8}, {32_B, 4, 2}, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_3d({first + 80, 64_B, 8}, {first, 64_B, 8}, {32_B, 4, 2}, on)),
            errc::invalid_argument);
}

TEST_P(copies, of_boxes_refuse_what_cannot_be) {
  const auto on = make_stream();
  auto to = make(64, on);
  auto from = make(64, on);
  EXPECT_EQ(code_of(copy_2d({nullptr, 16_B}, {from.data(), 16_B}, 16_B, 2, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_2d({to.data(), 15_B}, {from.data(), 16_B}, 16_B, 2, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_2d({to.data(), 16_B}, {from.data(), 15_B}, 16_B, 2, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_2d({to.data(), bytes::max()}, {from.data(), 16_B}, 16_B, 3, on)),
            errc::size_overflow);
  EXPECT_EQ(code_of(copy_3d({to.data(), 16_B, 1}, {from.data(), 16_B, 2}, {16_B, 2, 2}, on)),
            errc::invalid_argument);
  EXPECT_EQ(code_of(copy_3d({to.data(), 16_B, 2}, {from.data(), 16_B, 2}, {16_B, 2, ~0ULL}, on)),
            errc::size_overflow);
  EXPECT_EQ(code_of(fill_2d({to.data(), 15_B}, 1, 16_B, 2, on)), errc::invalid_argument);
  WEIR_DONE(copy_2d({to.data(), 0_B}, {from.data(), 0_B}, 16_B, 1, on));  // one row has no pitch
}

TEST_P(copies, rows_are_filled_and_the_gaps_are_not) {
  const auto on = make_stream();
  auto to = make(std::vector<word>(32, 5), on);
  WEIR_DONE(fill_2d({to.data(), 32_B}, 7, 16_B, 3, on));
  const auto words = read(to);
  for (std::size_t i = 0; i < words.size(); ++i)
    EXPECT_EQ(words[i], i % 8 < 4 && i < 24 ? 0x07070707 : 5) << i;
  WEIR_DONE(fill_2d({to.data() + 1, 16_B}, 9, 16_B, 3, on));  // without gaps
  const auto then = read(to);
  for (std::size_t i = 0; i < then.size(); ++i)
    EXPECT_EQ(then[i], i >= 1 && i < 13 ? 0x09090909 : words[i]) << i;
}

// --- Batches -------------------------------------------------------------------------------------

TEST_P(copies, of_a_batch_all_arrive) {
  const auto on = make_stream();
  const auto from = make(counting(1000), on);
  auto to = make(std::vector<word>(1000, 5), on);
  std::vector<copy_item> items;
  for (std::size_t i = 0; i < 10; ++i) {  // backwards, with nothing now and then
    items.push_back({to.data() + i * 100, from.data() + (9 - i) * 100, bytes{i * 40}});
  }
  auto expected = std::vector<word>(1000, 5);
  for (std::size_t i = 0; i < 10; ++i) {
    for (std::size_t k = 0; k < i * 10; ++k) {
      expected[i * 100 + k] = static_cast<word>((9 - i) * 100 + k);
    }
  }
  WEIR_DONE(copy_batch(items, on));
  EXPECT_EQ(read(to), expected);
  WEIR_DONE(to.fill(5));
  WEIR_DONE(on.synchronize());
  WEIR_DONE(copy_batch(items, stream_ref::legacy(gpu())));  // which no driver takes as a batch
  WEIR_DONE(stream_ref::legacy(gpu()).synchronize());
  EXPECT_EQ(read(to), expected);
}

TEST_P(copies, of_a_batch_can_be_captured) {
  const auto on = make_stream();
  const auto from = make(counting(64), on);
  auto to = make(std::vector<word>(64, 5), on);
  const std::array<copy_item, 2> items{
      {{to.data(), from.data(), 128_B}, {to.data() + 32, from.data() + 32, 128_B}}};
  ASSERT_EQ(CUDA_SUCCESS, cu->stream_begin_capture(on.handle(), CU_STREAM_CAPTURE_MODE_RELAXED));
  WEIR_DONE(copy_batch(items, on));
  const CUgraphExec exec = new_exec(end_capture(on.handle()));
  ASSERT_EQ(CUDA_SUCCESS, cu->graph_launch(exec, on.handle()));
  EXPECT_EQ(read(to), counting(64));
}

TEST_P(copies, of_a_batch_are_refused_together) {
  const auto on = make_stream();
  auto from = make(counting(64), on);
  auto to = make(std::vector<word>(64, 5), on);
  word* const t = to.data();
  word* const f = from.data();
  const auto refused = [&](copy_item second) {
    const std::array<copy_item, 2> items{{{t, f, 64_B}, second}};
    return code_of(copy_batch(items, on));
  };
  EXPECT_EQ(refused({nullptr, f, 4_B}), errc::invalid_argument);
  EXPECT_EQ(refused({t + 16, nullptr, 4_B}), errc::invalid_argument);
  EXPECT_EQ(refused({t + 16, f, bytes::max()}), errc::size_overflow);
  EXPECT_EQ(refused({t + 15, f + 32, 8_B}), errc::invalid_argument);  // two destinations
  EXPECT_EQ(refused({f + 15, t + 32, 8_B}), errc::invalid_argument);  // another's source
  EXPECT_EQ(refused({t + 32, t + 15, 8_B}), errc::invalid_argument);  // another's destination
  EXPECT_EQ(refused({t + 32, t + 33, 8_B}), errc::invalid_argument);  // its own
  const std::array<copy_item, 2> second_is_bad{{{t, f, 4_B}, {nullptr, f, 4_B}}};
  EXPECT_THAT(copy_batch(second_is_bad, on).error().detail(), ::testing::HasSubstr("item 1"));
  EXPECT_THAT(read(to), AllAre(5U));
  EXPECT_EQ(refused({t + 32, f, 64_B}), std::nullopt);  // a source may be read twice
}

// --- Peers ---------------------------------------------------------------------------------------

TEST_P(copies, go_between_devices_and_leave_the_context_as_it_was) {
  if (!has_two()) GTEST_SKIP() << "one device";
  const auto here_stream = make_stream(0);
  const auto there = make_stream(1);
  const auto from = make(counting(500), here_stream);
  auto to = make(500, there, 1);
  WEIR_DONE(there.synchronize());
  ASSERT_EQ(CUDA_SUCCESS, cu->ctx_set_current(nullptr));
  WEIR_DONE(copy_peer(to.data(), gpu(1), from.data(), gpu(0), 2000_B, here_stream));
  CUcontext current = context;
  EXPECT_EQ(CUDA_SUCCESS, cu->ctx_get_current(&current));
  EXPECT_EQ(current, nullptr);
  ASSERT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
  WEIR_DONE(here_stream.synchronize());
  EXPECT_EQ(read(to), counting(500));
  EXPECT_EQ(code_of(copy_peer(to.data(), gpu(1), nullptr, gpu(0), 4_B, here_stream)),
            errc::invalid_argument);
}

TEST_P(copies, between_buffers_of_two_devices_outlive_both_ends) {
  if (!has_two()) GTEST_SKIP() << "one device";
  const auto near = make_stream(0);
  const auto far = make_stream(1);
  const auto values = counting(1000, 3);
  auto to = device_buffer::create(memory(1), 4000_B, far).value();
  auto held = occupy(near.handle());
  {
    auto from = device_buffer::create(memory(0), 4000_B, near).value();
    word* const pinned = new_pinned(4000);
    std::copy(values.begin(), values.end(), pinned);
    WEIR_DONE(copy_bytes(from.data(), pinned, 4000_B, near));
    WEIR_DONE(copy_between(to, 0_B, from, 0_B, 4000_B));
  }  // the source goes while its own filling has not begun
  auto next = device_buffer::create(memory(0), 4000_B, near).value();
  WEIR_DONE(fill_bytes(next.data(), 0xff, 4000_B, near));
  held->finish();
  EXPECT_EQ(words_of(to.data(), 1000, far), values);
}

}  // namespace
}  // namespace weir::testing_support
