// SPDX-License-Identifier: Apache-2.0
// Staging, step by step: what each piece waits for, and what a failure leaves behind.
#include "weir/buffer/staging.hpp"

#include <algorithm>

#include "buffers/simulated_test.hpp"
#include "weir/buffer/device_vector.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::ElementsAre;

constexpr std::size_t piece_words = 256;
constexpr std::size_t pieces = 5;
constexpr std::size_t staged_words = pieces * piece_words;
constexpr bytes whole{staged_words * sizeof(word)};

class staging : public simulated {
 protected:
  void SetUp() override {
    open({});
    on.emplace(make_stream());
    memory = caching_allocator::create(gpu()).value();
    stage = staging_buffer::create(pinned_pool::create(gpu()).value(), *on,
                                   {.chunk = bytes{piece_words * sizeof(word)}})
                .value();
    there = device_vector<word>::zeroed(memory, staged_words, *on).value();
    ASSERT_TRUE(on->synchronize());
  }
  void TearDown() override {
    stage.reset();
    there = {};
    memory = {};
    on.reset();
    simulated::TearDown();
  }
  /// How many of the words have arrived, as far as they are what is expected.
  [[nodiscard]] std::size_t arrived(const std::vector<word>& expected) const {
    const word* const words = there.data();
    return static_cast<std::size_t>(std::mismatch(expected.begin(), expected.end(), words).first -
                                    expected.begin());
  }

  std::optional<stream> on;
  any_resource memory;
  std::optional<staging_buffer> stage;
  device_vector<word> there;
};

TEST_F(staging, an_upload_waits_for_a_half_before_it_writes_there_again) {
  const auto values = counting(staged_words, 1);
  std::vector<std::size_t> arrived_before;  // each piece was written
  WEIR_DONE(stage->upload_with(there.data(), whole, [&](std::span<std::byte> piece, bytes offset) {
    arrived_before.push_back(arrived(values) / piece_words);
    machine->host_write(piece.data(), piece.size());
    std::copy_n(std::as_bytes(std::span{values}).begin() + offset.count(), piece.size(),
                piece.begin());
  }));
  EXPECT_THAT(arrived_before, ElementsAre(0, 0, 1, 2, 3)) << "of the two halves one is waited for";
  EXPECT_EQ(arrived(values), 3 * piece_words) << "nothing else is";
  WEIR_DONE(on->synchronize());
  EXPECT_EQ(arrived(values), staged_words);
}

TEST_F(staging, a_download_copies_nothing_into_a_half_that_may_still_be_read) {
  const auto values = counting(piece_words, 1);
  WEIR_DONE(stage->upload(there.data(), std::as_bytes(std::span{values})));
  EXPECT_EQ(arrived(values), 0U) << "the upload is under way";
  const auto copies = machine->calls(call::memcpy_async);
  std::vector<word> back(piece_words);
  machine->fail(call::event_synchronize, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(stage->download(std::as_writable_bytes(std::span{back}), there.data())),
            errc::driver_error);
  EXPECT_EQ(machine->calls(call::memcpy_async), copies);
  WEIR_DONE(stage->download(std::as_writable_bytes(std::span{back}), there.data()));
  EXPECT_EQ(back, values);
}

TEST_F(staging, a_download_waits_for_each_piece_while_the_next_is_copied) {
  WEIR_DONE(there.fill(6));
  launch(there.span(), *on);  // the stream is busy
  const auto copies_before = machine->calls(call::memcpy_async);
  std::vector<std::uint64_t> queued;  // copies, when each piece was read
  std::vector<word> back;
  WEIR_DONE(stage->download_with(
      there.data(), whole, [&](std::span<const std::byte> piece, bytes offset) {
        EXPECT_EQ(offset.count(), back.size() * sizeof(word));
        queued.push_back(machine->calls(call::memcpy_async) - copies_before);
        machine->host_read(piece.data(), piece.size());
        const auto* const words = reinterpret_cast<const word*>(piece.data());
        back.insert(back.end(), words, words + piece.size() / sizeof(word));
      }));
  EXPECT_THAT(queued, ElementsAre(2, 3, 4, 5, 5));
  EXPECT_EQ(back.size(), staged_words);
  EXPECT_THAT(back, AllAre(7U));
}

TEST_F(staging, a_download_behind_an_upload_finds_both_halves_in_use) {
  const auto values = counting(staged_words, 1);
  WEIR_DONE(stage->upload(there.data(), std::as_bytes(std::span{values})));
  EXPECT_FALSE(on->is_complete().value());
  std::vector<word> back(staged_words);
  WEIR_DONE(stage->download(std::as_writable_bytes(std::span{back}), there.data()));
  EXPECT_EQ(back, values);
}

TEST_F(staging, an_upload_whose_event_fails_waits_for_what_it_queued) {
  const auto values = counting(staged_words, 1);
  machine->fail(call::event_record, 2, CUDA_ERROR_UNKNOWN);
  const auto failed = stage->upload(there.data(), std::as_bytes(std::span{values}));
  ASSERT_EQ(code_of(failed), errc::driver_error);
  EXPECT_EQ(failed.error().call(), "cuEventRecord");
  EXPECT_EQ(arrived(values), 2 * piece_words) << "nobody could tell later when the half is free";
  const auto others = counting(staged_words, 1000);
  WEIR_DONE(stage->upload(there.data(), std::as_bytes(std::span{others})));
  WEIR_DONE(on->synchronize());
  EXPECT_EQ(arrived(others), staged_words);
}

TEST_F(staging, a_download_whose_event_fails_waits_for_what_it_queued) {
  std::vector<word> back(staged_words, 9);
  machine->fail(call::event_record, 1, CUDA_ERROR_UNKNOWN);
  const auto failed = stage->download(std::as_writable_bytes(std::span{back}), there.data());
  ASSERT_EQ(code_of(failed), errc::driver_error);
  EXPECT_EQ(failed.error().call(), "cuEventRecord");
  EXPECT_TRUE(on->is_complete().value());
  EXPECT_THAT(back, AllAre(9U)) << "nothing was read";
  WEIR_DONE(stage->download(std::as_writable_bytes(std::span{back}), there.data()));
  EXPECT_THAT(back, AllAre(0U));
}

TEST_F(staging, a_copy_that_fails_is_told) {
  std::vector<word> back(staged_words);
  machine->fail(call::memcpy_async, 2, CUDA_ERROR_UNKNOWN);
  const auto up = stage->upload(there.data(), std::as_bytes(std::span{back}));
  ASSERT_EQ(code_of(up), errc::driver_error);
  EXPECT_EQ(up.error().requested(), stage->chunk());
  machine->fail(call::memcpy_async, 2, CUDA_ERROR_UNKNOWN);
  const auto down = stage->download(std::as_writable_bytes(std::span{back}), there.data());
  ASSERT_EQ(code_of(down), errc::driver_error);
  EXPECT_EQ(down.error().requested(), stage->chunk());
}

TEST_F(staging, nothing_is_touched_where_a_side_cannot_be) {
  const auto never = [](auto, bytes) { ADD_FAILURE() << "there is nothing to write or to read"; };
  EXPECT_EQ(code_of(stage->upload_with(there.data(), bytes::max(), never)), errc::size_overflow);
  EXPECT_EQ(code_of(stage->download_with(there.data(), bytes::max(), never)), errc::size_overflow);
  EXPECT_EQ(code_of(stage->upload_with(nullptr, 1_B, never)), errc::invalid_argument);
  EXPECT_EQ(code_of(stage->download_with(nullptr, 1_B, never)), errc::invalid_argument);
  const std::span<std::byte> nowhere{static_cast<std::byte*>(nullptr), 8};
  EXPECT_EQ(code_of(stage->upload(there.data(), nowhere)), errc::invalid_argument);
  EXPECT_EQ(code_of(stage->download(nowhere, there.data())), errc::invalid_argument);
  WEIR_DONE(stage->upload_with(there.data(), 0_B, never));
  WEIR_DONE(stage->download_with(there.data(), 0_B, never));
}

TEST_F(staging, neither_direction_is_captured_or_goes_through_an_empty_one) {
  std::vector<std::byte> some(8);
  const context_scope bound{gpu()};
  const auto& cu = machine->driver();
  ASSERT_EQ(CUDA_SUCCESS, cu.stream_begin_capture(on->handle(), CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(code_of(stage->upload(there.data(), some)), errc::capture_forbidden);
  EXPECT_EQ(code_of(stage->download(some, there.data())), errc::capture_forbidden);
  CUgraph graph = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, cu.stream_end_capture(on->handle(), &graph));
  EXPECT_EQ(CUDA_SUCCESS, cu.graph_destroy(graph));
  const auto moved = std::move(*stage);
  EXPECT_EQ(code_of(stage->upload(there.data(), some)), errc::moved_from);  // NOLINT
  EXPECT_EQ(code_of(stage->download(some, there.data())), errc::moved_from);
}

TEST_F(staging, halves_are_allocated_once_at_the_creation) {
  const auto pool = pinned_pool::create(gpu()).value();
  const auto other = staging_buffer::create(pool, *on, {.chunk = 4_KiB}).value();
  EXPECT_EQ(other.chunk(), 4_KiB);
  EXPECT_EQ(pool.stats().blocks.current, 2U);
  EXPECT_EQ(pool.stats().requested.current, 8_KiB);
  EXPECT_EQ(staging_options{}.chunk, 4_MiB);
}

}  // namespace
}  // namespace weir::testing_support
