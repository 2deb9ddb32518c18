// SPDX-License-Identifier: Apache-2.0
// Pinned, mapped and registered host memory, and staging through it.
#include "weir/buffer/host_memory.hpp"

#include <algorithm>
#include <limits>

#include "buffers/buffers_test.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/buffer/device_vector.hpp"
#include "weir/buffer/pinned_buffer.hpp"
#include "weir/buffer/staging.hpp"

namespace weir::testing_support { namespace {

constexpr auto most = std::numeric_limits<std::size_t>::max();

class host_memory : public buffers_test {
 protected:
  [[nodiscard]] pinned_pool pinned() const { return pinned_pool::create(gpu()).value(); }
};
WEIR_BUFFERS_TEST(host_memory);

// --- Pinned --------------------------------------------------------------------------------------

TEST_P(host_memory, pinned_buffers_carry_data_both_ways) {
  const auto on = make_stream();
  const auto pool = pinned();
  const auto values = counting(10'000);
  const auto up = pinned_buffer<word>::copy_of(pool, values, on).value();
  auto down = pinned_buffer<word>::zeroed(pool, values.size(), on).value();
  EXPECT_THAT(down.span(), AllAre(0U));
  EXPECT_FALSE(down.empty());
  EXPECT_TRUE(pinned_buffer<word>{}.empty());
  auto there = device_vector<word>::create(memory(), values.size(), on).value();
  WEIR_DONE(weir::copy(there, up, on));
  WEIR_DONE(weir::copy(down, there, on));
  WEIR_DONE(on.synchronize());
  EXPECT_TRUE(std::equal(down.begin(), down.end(), values.begin(), values.end()));
}

TEST_P(host_memory, elements_of_pinned_buffers_are_those_of_an_array) {
  const auto on = make_stream();
  auto some = pinned_buffer<word>::copy_of(pinned(), counting(100), on).value();
  some[0] = 7;
  some[99] = 8;
  const auto& constant = std::as_const(some);
  EXPECT_EQ(constant.data(), some.data());
  EXPECT_EQ(constant[0], 7U);
  EXPECT_EQ(constant[1], counting(100)[1]);
  EXPECT_EQ(constant[99], 8U);
  EXPECT_EQ(&*constant.begin(), some.data());
  EXPECT_EQ(constant.end(), some.data() + 100);
}

TEST_P(host_memory, a_pinned_buffer_is_zeroed_whatever_it_held_and_only_if_asked) {
  const auto on = make_stream();
  const auto pool = pinned();
  const auto write_and_close = [&] {
    auto used = pinned_buffer<word>::create(pool, 1000, on).value();
    std::fill(used.begin(), used.end(), word{9});
    return used.data();
  };
  const word* const before = write_and_close();
  {
    const auto plain = pinned_buffer<word>::create(pool, 1000, on).value();
    ASSERT_EQ(plain.data(), before) << "the same memory";
    EXPECT_THAT(plain.span(), AllAre(9U)) << "as it was left";
  }
  {
    const auto zeros = pinned_buffer<word>::create(pool, 1000, on, contents::zeroed).value();
    ASSERT_EQ(zeros.data(), before) << "the same memory";
    EXPECT_THAT(zeros.span(), AllAre(0U));
  }
  ASSERT_EQ(write_and_close(), before);
  const auto zeros = pinned_buffer<word>::zeroed(pool, 1000, on).value();
  ASSERT_EQ(zeros.data(), before);
  EXPECT_THAT(zeros.span(), AllAre(0U));
}

TEST_P(host_memory, a_pinned_buffer_may_go_while_it_is_copied) {
  const auto on = make_stream();
  const auto pool = pinned();
  auto there = device_vector<word>::create(memory(), 1000, on).value();
  {  // so that nothing need be pinned while the stream is held, which a driver may wait for
    auto first = pinned_buffer<word>::create(pool, 1000, on).value();
    auto second = pinned_buffer<word>::create(pool, 1000, on).value();
  }
  auto held = occupy(on.handle());
  WEIR_DONE(
      weir::copy(there, pinned_buffer<word>::copy_of(pool, counting(1000), on).value().span(), on));
  // Had the pool handed the same memory out again, these values would be copied.
  auto next = pinned_buffer<word>::create(pool, 1000, on).value();
  std::fill(next.begin(), next.end(), word{9});
  held->finish();
  EXPECT_EQ(words_of(there.data(), 1000, on), counting(1000));
}

TEST_P(host_memory, pinned_buffers_refuse_nothing_and_too_much) {
  const auto on = make_stream();
  const auto pool = pinned();
  EXPECT_EQ(code_of(pinned_buffer<word>::create(pool, 0, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(pinned_buffer<word>::zeroed(pool, most, on)), errc::size_overflow);
  EXPECT_EQ(code_of(pinned_buffer<word>::copy_of(pool, {}, on)), errc::invalid_argument);
}

// --- Mapped --------------------------------------------------------------------------------------

TEST_P(host_memory, mapped_buffers_are_seen_by_both_sides) {
  const auto on = make_stream();
  auto some = mapped_buffer<word>::create(gpu(), 1000).value();
  EXPECT_THAT(some.span(), AllAre(0U));
  EXPECT_FALSE(some.empty());
  std::fill_n(some.data(), 1000, word{4});
  const auto there = some.on_device();
  ASSERT_EQ(CUDA_SUCCESS, increment(address_of(there.data()), there.size(), on.handle()));
  WEIR_DONE(on.synchronize());
  EXPECT_THAT(some.span(), AllAre(5U));
  auto moved = std::move(some);
  EXPECT_FALSE(some);  // NOLINT: moved from, on purpose
  EXPECT_EQ(moved[999], 5U);
  moved[998] = 6;
  const auto& constant = std::as_const(moved);
  EXPECT_EQ(constant.data(), moved.data());
  EXPECT_EQ(constant.span().data(), moved.data());
  EXPECT_EQ(constant.span().size(), 1000U);
  EXPECT_EQ(constant[998], 6U);
  WEIR_DONE(moved.close());
  EXPECT_TRUE(moved.empty());
  WEIR_DONE(moved.close());
}

struct alignas(8192) wide_on_host {
  word value[2048];
};

TEST_P(host_memory, mapped_buffers_are_checked) {
  EXPECT_EQ(code_of(mapped_buffer<word>::create(gpu(), 0)), errc::invalid_argument);
  EXPECT_EQ(code_of(mapped_buffer<word>::create(gpu(), most)), errc::size_overflow);
  EXPECT_EQ(code_of(mapped_buffer<word>::create(gpu(), most / 4)), errc::size_overflow);
  auto some = mapped_buffer<wide_on_host>::create(gpu(), 2, {.write_combined = true}).value();
  EXPECT_EQ(address_of(some.data()) % alignof(wide_on_host), 0U);
  EXPECT_EQ(address_of(some.on_device().data()) % alignof(wide_on_host), 0U);
}

// --- Registered ----------------------------------------------------------------------------------

TEST_P(host_memory, registered_memory_is_reached_in_place) {
  const auto on = make_stream();
  std::vector<word> values(4096, 7);
  auto pinned_now = registered_memory::create(gpu(), std::as_writable_bytes(std::span{values}));
  WEIR_DONE(pinned_now);
  EXPECT_FALSE(pinned_now->empty());
  EXPECT_EQ(static_cast<const void*>(pinned_now->span().data()), values.data());
  EXPECT_EQ(pinned_now->span().size(), values.size() * sizeof(word));
  ASSERT_EQ(CUDA_SUCCESS, increment(pinned_now->on_device(), values.size(), on.handle()));
  WEIR_DONE(on.synchronize());
  EXPECT_THAT(values, AllAre(8U));
  EXPECT_EQ(code_of(registered_memory::create(gpu(), std::as_writable_bytes(std::span{values}))),
            errc::already_mapped);
  WEIR_DONE(pinned_now->close());
  EXPECT_TRUE(pinned_now->empty());
  WEIR_DONE(registered_memory::create(gpu(), std::as_writable_bytes(std::span{values})));
}

TEST_P(host_memory, registering_nothing_is_refused) {
  EXPECT_EQ(code_of(registered_memory::create(gpu(), std::span<std::byte>{})),
            errc::invalid_argument);
  std::byte one{};
  EXPECT_EQ(code_of(registered_memory::create(gpu(), std::span{&one, 0})), errc::invalid_argument);
}

// --- Staging -------------------------------------------------------------------------------------

TEST_P(host_memory, staging_carries_more_than_it_holds) {
  const auto on = make_stream();
  auto stage = staging_buffer::create(pinned(), on, {.chunk = 4096_B}).value();
  EXPECT_EQ(stage.chunk(), 4096_B);
  for (const std::size_t count : {1U, 1024U, 1025U, 2048U, 10'000U}) {
    const auto values = counting(count, 11);
    auto source = values;
    auto there = device_vector<word>::create(memory(), count, on).value();
    WEIR_DONE(stage.upload(there.data(), std::as_bytes(std::span{source})));
    std::fill(source.begin(), source.end(), word{0});  // it has been read
    std::vector<word> back(count);
    WEIR_DONE(stage.download(std::as_writable_bytes(std::span{back}), there.data()));
    ASSERT_EQ(back, values) << count;
  }
}

TEST_P(host_memory, staging_is_ordered_with_its_stream) {
  const auto on = make_stream();
  auto stage = staging_buffer::create(pinned(), on, {.chunk = 4096_B}).value();
  auto there = device_vector<word>::create(memory(), 1024, on).value();
  const auto values = counting(1024);
  auto held = occupy(on.handle());
  WEIR_DONE(there.fill(99));
  WEIR_DONE(stage.upload(there.data(), std::as_bytes(std::span{values})));  // one chunk: no wait
  ASSERT_EQ(CUDA_SUCCESS, increment(address_of(there.data()), 1024, on.handle()));
  held->finish();
  EXPECT_EQ(words_of(there.data(), 1024, on), counting(1024, 1));
}

TEST_P(host_memory, staging_in_place_hands_out_pieces_in_order) {
  const auto on = make_stream();
  auto stage = staging_buffer::create(pinned(), on, {.chunk = 1000_B}).value();
  auto there = device_vector<std::uint8_t>::create(memory(), 2500, on).value();
  std::vector<std::pair<std::uint64_t, std::size_t>> given;
  WEIR_DONE(stage.upload_with(there.data(), 2500_B, [&](std::span<std::byte> piece, bytes offset) {
    given.emplace_back(offset.count(), piece.size());
    for (std::size_t i = 0; i < piece.size(); ++i) {
      piece[i] = static_cast<std::byte>((offset.count() + i) % 251);
    }
  }));
  EXPECT_THAT(given, ::testing::ElementsAre(std::pair{0, 1000}, std::pair{1000, 1000},
                                            std::pair{2000, 500}));
  std::size_t seen = 0;
  WEIR_DONE(stage.download_with(there.data(), 2500_B,
                                [&](std::span<const std::byte> piece, bytes offset) {
                                  EXPECT_EQ(offset.count(), seen);
                                  for (const std::byte each : piece)
                                    ASSERT_EQ(static_cast<std::byte>(seen++ % 251), each);
                                }));
  EXPECT_EQ(seen, 2500U);
}

TEST_P(host_memory, staging_refuses_what_cannot_be) {
  const auto on = make_stream();
  EXPECT_EQ(code_of(staging_buffer::create(pinned(), on, {.chunk = 0_B})), errc::invalid_argument);
  auto stage = staging_buffer::create(pinned(), on, {.chunk = 64_B}).value();
  std::vector<std::byte> some(8);
  EXPECT_EQ(code_of(stage.upload(nullptr, some)), errc::invalid_argument);
  EXPECT_EQ(code_of(stage.download(some, nullptr)), errc::invalid_argument);
  WEIR_DONE(stage.upload(nullptr, {}));
  WEIR_DONE(stage.download({}, nullptr));
  ASSERT_EQ(CUDA_SUCCESS, cu->stream_begin_capture(on.handle(), CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(code_of(stage.upload(some.data(), some)), errc::capture_forbidden);
  static_cast<void>(end_capture(on.handle()));
  const auto moved = std::move(stage);
  EXPECT_EQ(code_of(stage.upload(some.data(), some)), errc::moved_from);  // NOLINT
}

}  // namespace
}  // namespace weir::testing_support
