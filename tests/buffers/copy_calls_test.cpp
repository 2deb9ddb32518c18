// SPDX-License-Identifier: Apache-2.0
// Copies and fills, call by call: what the driver is asked for, and what is said when it refuses.
#include <array>
#include <set>
#include <string>

#include "buffers/simulated_test.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/buffer/device_vector.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::ElementsAre;

/// Two devices, and memory on the first.
class copy_calls : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(2, device_with_room());
    open(settings);
    on.emplace(make_stream());
    memory = caching_allocator::create(gpu()).value();
    some = device_vector<word>::zeroed(memory, 1024, *on).value();
    other = device_vector<word>::zeroed(memory, 1024, *on).value();
    to = reinterpret_cast<std::byte*>(some.data());
    from = reinterpret_cast<std::byte*>(other.data());
    ASSERT_TRUE(on->synchronize());  // any stream may have them now
  }
  void TearDown() override {
    EXPECT_TRUE(gpu().synchronize());
    some = {};
    other = {};
    memory = {};
    on.reset();
    simulated::TearDown();
  }
  /// How often `work`, which succeeds, makes each of the calls.
  template <class Work>
  [[nodiscard]] std::vector<std::uint64_t> calls_of(const std::vector<call>& kinds,
                                                    const Work& work) {
    std::vector<std::uint64_t> counts;
    for (const call each : kinds) counts.push_back(machine->calls(each));
    const auto outcome = work();
    EXPECT_TRUE(outcome) << outcome.error().message();
    for (std::size_t i = 0; i < kinds.size(); ++i) counts[i] = machine->calls(kinds[i]) - counts[i];
    return counts;
  }
  /// What `work` says when the `nth` such call in it fails.
  template <class Work>
  [[nodiscard]] error told(call failing, std::uint64_t nth, const Work& work) {
    machine->fail(failing, nth, CUDA_ERROR_UNKNOWN);
    const auto outcome = work();
    machine->clear_faults();
    EXPECT_FALSE(outcome);
    return outcome ? error{} : outcome.error();
  }
  [[nodiscard]] static error refusal(std::string_view symbol, bytes size) {
    return {{.code = errc::driver_error,
             .native = CUDA_ERROR_UNKNOWN,
             .call = symbol,
             .requested = size}};
  }

  std::optional<stream> on;
  any_resource memory;
  device_vector<word> some, other;
  std::byte* to = nullptr;
  std::byte* from = nullptr;
};

// --- Lines ---------------------------------------------------------------------------------------

TEST_F(copy_calls, a_pattern_takes_as_many_calls_as_it_must) {
  std::array<std::uint8_t, 8> pattern{1, 2, 3, 4, 5, 6, 7, 8};
  const auto calls = [&](std::size_t offset, bytes element, std::uint64_t count) {
    return calls_of({call::memset_d8_async, call::memset_d32_async, call::memcpy_async},
                    [&] { return fill_pattern(to + offset, pattern.data(), element, count, *on); });
  };
  EXPECT_THAT(calls(0, 1_B, 5), ElementsAre(1, 0, 0)) << "one repeated byte";
  EXPECT_THAT(calls(0, 4_B, 5), ElementsAre(0, 1, 0));
  EXPECT_THAT(calls(2, 4_B, 5), ElementsAre(4, 0, 3)) << "no word begins there";
  EXPECT_THAT(calls(0, 8_B, 5), ElementsAre(0, 2, 3)) << "doubled to 2, to 4, and the rest";
  EXPECT_THAT(calls(1, 8_B, 5), ElementsAre(8, 0, 3));
  EXPECT_THAT(calls(0, 6_B, 2), ElementsAre(6, 0, 1)) << "no whole words";
  EXPECT_THAT(calls(0, 8_B, 1), ElementsAre(0, 2, 0));
  EXPECT_THAT(calls(0, 8_B, 0), ElementsAre(0, 0, 0));
  EXPECT_THAT(calls(0, 1_B, 0), ElementsAre(0, 0, 0));
  pattern.fill(9);
  EXPECT_THAT(calls(3, 8_B, 5), ElementsAre(1, 0, 0));
  pattern.back() = 8;
  EXPECT_THAT(calls(0, 8_B, 5), ElementsAre(0, 2, 3)) << "the last byte is another";
}

TEST_F(copy_calls, what_the_driver_refuses_is_told_with_the_call_and_the_size) {
  const std::array<std::uint8_t, 8> pattern{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(told(call::memcpy_async, 1, [&] { return copy_bytes(to, from, 100_B, *on); }),
            refusal("cuMemcpyAsync", 100_B));
  const auto copied = machine->calls(call::memcpy_async);
  EXPECT_EQ(
      told(call::ctx_push_current, 1, [&] { return copy_bytes(to, from, 100_B, *on); }).call(),
      "cuCtxPushCurrent");
  EXPECT_EQ(machine->calls(call::memcpy_async), copied) << "without a context nothing is copied";
  EXPECT_EQ(told(call::memcpy_peer_async, 1,
                 [&] { return copy_peer(to, gpu(0), from, gpu(0), 100_B, *on); }),
            refusal("cuMemcpyPeerAsync", 100_B));
  EXPECT_EQ(told(call::memset_d8_async, 1, [&] { return fill_bytes(to, 1, 100_B, *on); }),
            refusal("cuMemsetD8Async", 100_B));
  const auto filled = [&](std::size_t offset, bytes element) {
    return [=, this] { return fill_pattern(to + offset, pattern.data(), element, 3, *on); };
  };
  EXPECT_EQ(told(call::memset_d32_async, 1, filled(0, 4_B)), refusal("cuMemsetD32Async", 12_B));
  EXPECT_EQ(told(call::memset_d32_async, 2, filled(0, 8_B)), refusal("cuMemsetD32Async", 0_B));
  EXPECT_EQ(told(call::memset_d8_async, 8, filled(1, 8_B)), refusal("cuMemsetD8Async", 0_B));
  EXPECT_EQ(told(call::memcpy_async, 1, filled(0, 8_B)), refusal("cuMemcpyAsync", 8_B));
  EXPECT_EQ(told(call::memcpy_async, 2, filled(0, 8_B)), refusal("cuMemcpyAsync", 8_B));
  EXPECT_EQ(told(call::memcpy_2d_async, 1,
                 [&] {
                   return copy_2d({to, 64_B}, {from, 32_B}, 8_B, 3, *on);
                 }),
            refusal("cuMemcpy2DAsync", 24_B));
  EXPECT_EQ(told(call::memcpy_3d_async, 1,
                 [&] {
                   return copy_3d({to, 64_B, 4}, {from, 32_B, 4}, {8_B, 3, 2}, *on);
                 }),
            refusal("cuMemcpy3DAsync", 48_B));
  EXPECT_EQ(told(call::memset_d2d8_async, 1,
                 [&] {
                   return fill_2d({to, 64_B}, 1, 8_B, 3, *on);
                 }),
            refusal("cuMemsetD2D8Async", 24_B));
}

TEST_F(copy_calls, a_side_that_reaches_over_the_end_of_the_addresses_is_refused) {
  auto* const last = reinterpret_cast<std::byte*>(~std::uintptr_t{3});  // 4 B before the end
  const auto before = machine->calls();
  EXPECT_EQ(code_of(copy_bytes(last, from, 8_B, *on)), errc::size_overflow);
  EXPECT_EQ(code_of(copy_bytes(to, last, 8_B, *on)), errc::size_overflow);
  EXPECT_EQ(code_of(copy_peer(last, gpu(0), from, gpu(1), 8_B, *on)), errc::size_overflow);
  EXPECT_EQ(code_of(copy_peer(to, gpu(0), last, gpu(1), 8_B, *on)), errc::size_overflow);
  EXPECT_EQ(code_of(fill_bytes(last, 1, 8_B, *on)), errc::size_overflow);
  const std::uint64_t pattern = 1;
  EXPECT_EQ(code_of(fill_pattern(last, &pattern, 8_B, 1, *on)), errc::size_overflow);
  EXPECT_EQ(machine->calls(), before) << "nobody was asked";
}

TEST_F(copy_calls, devices_of_different_runtimes_are_refused) {
  const auto elsewhere = runtime::open_simulated(machine).value();
  const auto foreign = elsewhere->device(device_id{0}).value();
  const error refused{{.code = errc::invalid_argument,
                       .detail = "source and destination belong to different runtimes"}};
  EXPECT_EQ(copy_peer(to, foreign, from, gpu(), 4_B, *on).error(), refused);
  EXPECT_EQ(copy_peer(to, gpu(), from, foreign, 4_B, *on).error(), refused);
  EXPECT_EQ(copy_peer(to, foreign, from, foreign, 4_B, *on).error(), refused);
  EXPECT_EQ(copy_peer(to, foreign, from, foreign, 0_B, *on).error(), refused);
  EXPECT_THAT(calls_of({call::memcpy_peer_async},
                       [&] { return copy_peer(to, gpu(), from, gpu(), 0_B, *on); }),
              ElementsAre(0));
}

/// A table that remembers the contexts which a copy between devices named.
struct peer_copy {
  CUdeviceptr to = 0;
  CUcontext to_context = nullptr;
  CUdeviceptr from = 0;
  CUcontext from_context = nullptr;
  std::size_t size = 0;
  friend bool operator==(const peer_copy&, const peer_copy&) = default;
};
peer_copy last_peer_copy;

TEST_F(copy_calls, a_copy_between_devices_names_the_context_of_each_side) {
  driver::table calls = machine->driver();
  calls.memcpy_peer_async = [](CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
                               CUcontext source_context, std::size_t size, CUstream) {
    last_peer_copy = {target, target_context, source, source_context, size};
    return CUDA_SUCCESS;
  };
  const auto opened = runtime::open_table(calls, "remembers", machine).value();
  const auto first = opened->device(device_id{0}).value();
  const auto second = opened->device(device_id{1}).value();
  const auto there = stream::create(second).value();
  WEIR_DONE(copy_peer(to, first, from, second, 40_B, there));
  EXPECT_EQ(last_peer_copy, (peer_copy{address_of(to), first.context().value(), address_of(from),
                                       second.context().value(), 40}));
  EXPECT_NE(last_peer_copy.to_context, last_peer_copy.from_context);
}

// --- Boxes ---------------------------------------------------------------------------------------

TEST_F(copy_calls, a_box_without_gaps_is_a_line) {
  const auto copied = [&](pitched_memory target, const_pitched_memory source, box size) {
    return calls_of({call::memcpy_async, call::memcpy_2d_async, call::memcpy_3d_async},
                    [&] { return copy_3d(target, source, size, *on); });
  };
  EXPECT_THAT(copied({to, 16_B}, {from, 16_B}, {16_B, 4, 1}), ElementsAre(1, 0, 0));
  EXPECT_THAT(copied({to, 32_B}, {from, 16_B}, {16_B, 4, 1}), ElementsAre(0, 1, 0));
  EXPECT_THAT(copied({to, 16_B}, {from, 32_B}, {16_B, 4, 1}), ElementsAre(0, 1, 0));
  EXPECT_THAT(copied({to, 99_B}, {from, 77_B}, {16_B, 1, 1}), ElementsAre(1, 0, 0)) << "one row";
  EXPECT_THAT(copied({to, 16_B, 4}, {from, 16_B, 4}, {16_B, 4, 3}), ElementsAre(1, 0, 0));
  EXPECT_THAT(copied({to, 16_B, 5}, {from, 16_B, 4}, {16_B, 4, 3}), ElementsAre(0, 0, 1));
  EXPECT_THAT(copied({to, 16_B, 4}, {from, 16_B, 5}, {16_B, 4, 3}), ElementsAre(0, 0, 1));
  EXPECT_THAT(copied({to, 32_B, 1}, {from, 16_B, 1}, {16_B, 1, 3}), ElementsAre(0, 0, 1));
  EXPECT_THAT(copied({to, 16_B, 1}, {from, 16_B, 1}, {16_B, 1, 3}), ElementsAre(1, 0, 0));
  const auto filled = [&](pitched_memory target, bytes width, std::uint64_t rows) {
    return calls_of({call::memset_d8_async, call::memset_d2d8_async},
                    [&] { return fill_2d(target, 1, width, rows, *on); });
  };
  EXPECT_THAT(filled({to, 16_B}, 16_B, 4), ElementsAre(1, 0));
  EXPECT_THAT(filled({to, 32_B}, 16_B, 4), ElementsAre(0, 1));
  EXPECT_THAT(filled({to, 0_B}, 16_B, 1), ElementsAre(1, 0));
  EXPECT_THAT(filled({nullptr, 0_B}, 0_B, 4), ElementsAre(0, 0));
  EXPECT_THAT(filled({nullptr, 0_B}, 16_B, 0), ElementsAre(0, 0));
}

/// Whether the bytes of a box meet those of the same box `apart` bytes further on.
bool meet(std::uint64_t apart, std::uint64_t pitch, std::uint64_t rows_of_plane, const box& size) {
  std::set<std::uint64_t> touched;
  for (std::uint64_t plane = 0; plane < size.planes; ++plane)
    for (std::uint64_t row = 0; row < size.rows; ++row)
      for (std::uint64_t column = 0; column < size.width.count(); ++column)
        touched.insert((plane * rows_of_plane + row) * pitch + column);
  return std::any_of(touched.begin(), touched.end(),
                     [&](std::uint64_t each) { return touched.count(each + apart) != 0; });
}

TEST_F(copy_calls, boxes_of_one_grid_are_refused_just_where_they_share_a_byte) {
  constexpr std::uint64_t pitch = 5, rows_of_plane = 3;
  for (const std::uint64_t width : {1U, 3U, 5U}) {
    for (const std::uint64_t rows : {1U, 2U, 3U}) {
      for (const std::uint64_t planes : {1U, 2U, 3U}) {
        const box size{bytes{width}, rows, planes};
        for (std::uint64_t apart = 0; apart < 50; ++apart) {
          const auto expected = meet(apart, pitch, rows_of_plane, size)
                                    ? std::optional{errc::invalid_argument}
                                    : std::nullopt;
          const pitched_memory low{to, bytes{pitch}, rows_of_plane};
          const pitched_memory high{to + apart, bytes{pitch}, rows_of_plane};
          ASSERT_EQ(code_of(copy_3d(high, low, size, *on)), expected)
              << width << " x " << rows << " x " << planes << ", " << apart << " apart";
          ASSERT_EQ(code_of(copy_3d(low, high, size, *on)), expected)
              << width << " x " << rows << " x " << planes << ", " << apart << " apart";
        }
        WEIR_DONE(on->synchronize());
      }
    }
  }
}

TEST_F(copy_calls, boxes_of_two_grids_may_touch_but_not_overlap) {
  const auto copied = [&](pitched_memory target, pitched_memory source, box size) {
    return code_of(copy_3d(target, source, size, *on));
  };
  // 3 rows of 16 bytes, 64 apart, end behind 144; so do 2 planes of 3 rows, 2 rows of them copied.
  const box flat{16_B, 3, 1};
  EXPECT_EQ(copied({to, 64_B}, {to + 144, 32_B}, flat), std::nullopt);
  EXPECT_EQ(copied({to, 64_B}, {to + 143, 32_B}, flat), errc::invalid_argument);
  EXPECT_EQ(copied({to + 144, 32_B}, {to, 64_B}, flat), std::nullopt);
  EXPECT_EQ(copied({to + 143, 32_B}, {to, 64_B}, flat), errc::invalid_argument);
  const box deep{16_B, 2, 2};
  EXPECT_EQ(copied({to, 32_B, 3}, {to + 144, 16_B, 3}, deep), std::nullopt);
  EXPECT_EQ(copied({to, 32_B, 3}, {to + 143, 16_B, 3}, deep), errc::invalid_argument);
  EXPECT_EQ(copied({to, 32_B, 3}, {to + 64, 32_B, 4}, deep), errc::invalid_argument)
      << "planes of different rows are no one grid";
  EXPECT_EQ(copied({to, 0_B}, {to + 8, 0_B}, {16_B, 1, 1}), errc::invalid_argument)
      << "one row has no pitch";
}

TEST_F(copy_calls, boxes_that_reach_too_far_are_refused) {
  const auto copied = [&](bytes pitch, std::uint64_t rows, box size) {
    return code_of(copy_3d({to, pitch, rows}, {from, pitch, rows}, size, *on));
  };
  constexpr std::uint64_t half = std::uint64_t{1} << 32;
  constexpr bytes wide{std::uint64_t{1} << 63};
  EXPECT_EQ(copied(bytes{half}, half, {8_B, 1, 2}), errc::size_overflow) << "one plane";
  EXPECT_EQ(copied(bytes{half}, 4, {8_B, 1, half}), errc::size_overflow) << "all planes";
  EXPECT_EQ(copied(bytes{half}, 4, {8_B, half + 1, 1}), errc::size_overflow) << "all rows";
  EXPECT_EQ(copied(wide, 2, {8_B, 2, 2}), errc::size_overflow);
  EXPECT_EQ(copied(wide, 1, {8_B, 1, 3}), errc::size_overflow);
  EXPECT_EQ(copied(wide, 1, {wide, 2, 1}), errc::size_overflow) << "with the last row";
  EXPECT_EQ(copied(0_B, half, {8_B, half, half}), errc::size_overflow)
      << "more rows than can be counted";
  EXPECT_EQ(code_of(fill_2d({to, wide}, 1, 8_B, 3, *on)), errc::size_overflow);
  EXPECT_EQ(code_of(fill_2d({nullptr, 16_B}, 1, 8_B, 3, *on)), errc::invalid_argument);
}

TEST_F(copy_calls, grids_that_cannot_hold_the_box_are_refused_before_the_driver_sees_them) {
  const std::vector<call> copies{call::memcpy_async, call::memcpy_2d_async, call::memcpy_3d_async};
  const auto calls_so_far = [&] {
    std::uint64_t sum = 0;
    for (const call each : copies) sum += machine->calls(each);
    return sum;
  };
  const std::uint64_t before = calls_so_far();
  const auto refused = [&](pitched_memory target, const_pitched_memory source, box size) {
    const auto outcome = copy_3d(target, source, size, *on);
    EXPECT_EQ(code_of(outcome), errc::invalid_argument);
    return outcome ? "" : outcome.error().detail();
  };
  const std::string narrow = "pitch must be at least the width";
  EXPECT_EQ(refused({to, 15_B, 1}, {from, 16_B, 1}, {16_B, 1, 2}), narrow) << "planes of one row";
  EXPECT_EQ(refused({to, 16_B, 1}, {from, 15_B, 1}, {16_B, 1, 2}), narrow);
  EXPECT_EQ(refused({to, 15_B}, {from, 16_B}, {16_B, 2, 1}), narrow);
  EXPECT_EQ(refused({to, 16_B}, {from, 15_B}, {16_B, 2, 1}), narrow);
  EXPECT_EQ(refused({to, 15_B, 2}, {from, 16_B, 2}, {16_B, 2, 2}), narrow);
  const std::string low = "rows per plane must be at least the height";
  EXPECT_EQ(refused({to, 16_B, 1}, {from, 16_B, 2}, {16_B, 2, 2}), low);
  EXPECT_EQ(refused({to, 16_B, 2}, {from, 16_B, 1}, {16_B, 2, 2}), low);
  const auto filled = fill_2d({to, 15_B}, 1, 16_B, 2, *on);
  EXPECT_EQ(code_of(filled), errc::invalid_argument);
  EXPECT_EQ(filled.error().detail(), narrow);
  EXPECT_EQ(calls_so_far(), before);
  // One plane has no rows to spare, and one row no pitch.
  WEIR_DONE(copy_3d({to, 32_B, 0}, {from, 16_B, 0}, {16_B, 2, 1}, *on));
  WEIR_DONE(copy_3d({to, 0_B, 0}, {from, 0_B, 0}, {16_B, 1, 1}, *on));
}

// --- Batches -------------------------------------------------------------------------------------

TEST_F(copy_calls, a_batch_is_one_call_where_the_driver_takes_it) {
  const std::array<copy_item, 3> items{
      {{to, from, 8_B}, {to + 8, from + 8, 0_B}, {to + 16, from + 16, 8_B}}};
  const auto copied = [&](std::span<const copy_item> some_items, const stream_ref& stream) {
    EXPECT_TRUE(gpu().synchronize());
    return calls_of({call::memcpy_batch_async, call::memcpy_async},
                    [&] { return copy_batch(some_items, stream); });
  };
  EXPECT_THAT(copied(items, *on), ElementsAre(1, 0));
  EXPECT_THAT(copied(items, stream_ref::legacy(gpu())), ElementsAre(0, 2));
  EXPECT_THAT(copied(items, stream_ref::per_thread(gpu())), ElementsAre(1, 0));
  EXPECT_THAT(copied(std::span{items}.subspan(1, 1), *on), ElementsAre(0, 0)) << "nothing to copy";
}

CUmemcpyAttributes last_attributes;
std::size_t attributes_begin = 0;

TEST_F(copy_calls, a_batch_reads_its_sources_in_the_streams_order) {
  driver::table calls = machine->driver();
  calls.memcpy_batch_async = [](CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t,
                                CUmemcpyAttributes* attributes, std::size_t* indices,
                                std::size_t count, std::size_t*, CUstream) {
    last_attributes = attributes[0];
    attributes_begin = indices[0];
    return count == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  const auto opened = runtime::open_table(calls, "remembers", machine).value();
  const auto there = stream::create(opened->device(device_id{0}).value()).value();
  const std::array<copy_item, 2> items{{{to, from, 8_B}, {to + 16, from + 16, 8_B}}};
  last_attributes = {};
  attributes_begin = 9;
  WEIR_DONE(copy_batch(items, there));
  EXPECT_EQ(last_attributes.srcAccessOrder, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  EXPECT_EQ(last_attributes.flags, 0U);
  EXPECT_EQ(attributes_begin, 0U);
}

TEST_F(copy_calls, what_the_driver_refuses_of_a_batch_is_told_with_the_item_if_there_is_one) {
  const std::array<copy_item, 3> items{
      {{to, from, 0_B}, {to + 8, from + 8, 8_B}, {to + 16, from + 16, 12_B}}};
  EXPECT_EQ(told(call::memcpy_batch_async, 1, [&] { return copy_batch(items, *on); }),
            refusal("cuMemcpyBatchAsync", 0_B));
  error named = refusal("cuMemcpyAsync", 12_B);
  named.set_detail("item 2");
  EXPECT_EQ(
      told(call::memcpy_async, 2, [&] { return copy_batch(items, stream_ref::legacy(gpu())); }),
      named);
  EXPECT_EQ(told(call::stream_is_capturing, 1, [&] { return copy_batch(items, *on); }).code(),
            errc::driver_error);
}

std::size_t refused_item = 0;

TEST_F(copy_calls, a_driver_may_name_the_item_of_a_batch_that_it_refuses) {
  driver::table calls = machine->driver();
  calls.memcpy_batch_async = [](CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t,
                                CUmemcpyAttributes*, std::size_t*, std::size_t, std::size_t* failed,
                                CUstream) {
    *failed = refused_item;
    return CUDA_ERROR_UNKNOWN;
  };
  const auto opened = runtime::open_table(calls, "names items", machine).value();
  const auto there = stream::create(opened->device(device_id{0}).value()).value();
  const std::array<copy_item, 3> items{
      {{to, from, 0_B}, {to + 8, from + 8, 8_B}, {to + 16, from + 16, 12_B}}};
  const auto detail_with = [&](std::size_t item) {
    refused_item = item;
    const auto outcome = copy_batch(items, there);
    EXPECT_EQ(code_of(outcome), errc::driver_error);
    return outcome ? "" : outcome.error().detail();
  };
  // The driver does not see the item that copies nothing.
  EXPECT_EQ(detail_with(0), "item 1");
  EXPECT_EQ(detail_with(1), "item 2");
  EXPECT_EQ(detail_with(2), "") << "the number of items names none";
  EXPECT_EQ(detail_with(3), "");
}

TEST_F(copy_calls, items_of_a_batch_may_touch_but_not_overlap) {
  const auto batch = [&](std::vector<copy_item> items) { return copy_batch(items, *on); };
  // Destinations at 0 to 8, 16 to 24 and 32 to 40, whatever their order.
  const auto with = [&](copy_item last) {
    return code_of(
        batch({{to + 32, from, 8_B}, {to, from + 8, 8_B}, {to + 16, from + 16, 8_B}, last}));
  };
  constexpr auto refused = errc::invalid_argument;
  EXPECT_EQ(with({to + 8, from + 24, 8_B}), std::nullopt) << "between two destinations";
  EXPECT_EQ(with({to + 8, from + 24, 9_B}), refused);
  EXPECT_EQ(with({to + 7, from + 24, 9_B}), refused);
  EXPECT_EQ(with({to + 100, to + 24, 8_B}), std::nullopt) << "a source between two destinations";
  EXPECT_EQ(with({to + 100, to + 24, 9_B}), refused);
  EXPECT_EQ(with({to + 100, to + 23, 9_B}), refused);
  EXPECT_EQ(with({to + 100, to + 39, 1_B}), refused);
  EXPECT_EQ(with({to + 100, to + 40, 1_B}), std::nullopt);
  EXPECT_EQ(with({to + 100, to + 8, 25_B}), refused) << "a source across a destination";
  EXPECT_EQ(batch({{to, from, 8_B}, {to + 4, from + 8, 8_B}}).error(),
            (error{{.code = refused, .detail = "two destinations of the batch overlap"}}));
  EXPECT_EQ(batch({{to, from, 8_B}, {from + 4, from + 8, 4_B}}).error(),
            (error{{.code = refused, .detail = "source and destination overlap"}}));
  EXPECT_EQ(batch({{to, from, 8_B}, {nullptr, from + 8, 4_B}}).error(),
            (error{{.code = refused, .requested = 4_B, .detail = "item 1: the address is null"}}));
  EXPECT_EQ(batch({{to, from, 8_B}, {to + 8, nullptr, 4_B}}).error(),
            (error{{.code = refused, .requested = 4_B, .detail = "item 1: the address is null"}}));
  EXPECT_EQ(batch({{to, from, bytes::max()}}).error(),
            (error{{.code = errc::size_overflow, .requested = bytes::max(), .detail = "item 0"}}));
}

}  // namespace
}  // namespace weir::testing_support
