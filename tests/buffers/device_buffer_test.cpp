// SPDX-License-Identifier: Apache-2.0
// Device buffers and vectors: sizes, contents, streams, ownership.
#include "weir/buffer/device_buffer.hpp"

#include <limits>

#include "buffers/buffers_test.hpp"
#include "weir/buffer/device_vector.hpp"

namespace weir::testing_support { namespace {

class device_buffers : public buffers_test {};
WEIR_BUFFERS_TEST(device_buffers);

memory_stats stats_of(const any_resource& memory) {
  return memory.target<caching_allocator>()->stats();
}

TEST(sizes_of_elements, go_as_far_as_pointers_can_count) {
  constexpr auto largest = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  EXPECT_EQ(detail::size_of_elements(3, 8).value(), 24_B);
  EXPECT_EQ(detail::size_of_elements(0, 8).value(), 0_B);
  EXPECT_EQ(detail::size_of_elements(largest, 1).value(), bytes{largest});
  EXPECT_EQ(detail::size_of_elements(largest / 2, 2).value(), bytes{largest - 1});
  const auto refused = detail::size_of_elements(largest / 2 + 1, 2);
  ASSERT_EQ(code_of(refused), errc::size_overflow);
  EXPECT_EQ(refused.error().detail(), "4611686018427387904 elements of 2 B");
  EXPECT_EQ(code_of(detail::size_of_elements(largest + 1, 1)), errc::size_overflow);
  EXPECT_EQ(code_of(detail::size_of_elements(largest, 4)), errc::size_overflow);
}

TEST_P(device_buffers, own_memory_of_their_resource) {
  const auto on = make_stream();
  const any_resource from = memory();
  {
    auto one = device_buffer::create(from, 1000_B, on).value();
    EXPECT_NE(one.data(), nullptr);
    EXPECT_EQ(one.size(), 1000_B);
    EXPECT_EQ(one.capacity(), 1000_B);
    EXPECT_TRUE(one.resource() == from);
    EXPECT_EQ(bytes{stats_of(from).requested.current}, 1000_B);
    void* const address = one.data();
    device_buffer two = std::move(one);
    EXPECT_FALSE(one);  // NOLINT: moved from, on purpose
    EXPECT_EQ(two.data(), address);
    one = std::move(two);
    EXPECT_EQ(one.data(), address);
    WEIR_DONE(one.close());
    EXPECT_EQ(bytes{stats_of(from).requested.current}, 0_B);
    WEIR_DONE(one.close());
    EXPECT_EQ(one.data(), nullptr);
    EXPECT_EQ(one.size(), 0_B);
    EXPECT_EQ(one.capacity(), 0_B);
    EXPECT_FALSE(one.resource());
    EXPECT_EQ(code_of(one.resize(1_B)), errc::moved_from);
    EXPECT_EQ(code_of(one.resize_discarding(1_B)), errc::moved_from);
    EXPECT_EQ(code_of(one.reserve(1_B)), errc::moved_from);
    EXPECT_EQ(code_of(one.shrink_to_fit()), errc::moved_from);
    EXPECT_EQ(code_of(one.hand_over(on)), errc::moved_from);
    EXPECT_EQ(code_of(one.record_stream(on)), errc::moved_from);
    EXPECT_EQ(code_of(one.join(on)), errc::moved_from);
    one = device_buffer::create(from, 1_B, on).value();
    two = device_buffer::create(from, 700_B, on, contents::undefined, 4096_B).value();
    one = std::move(two);  // the old one is freed
    EXPECT_EQ(bytes{stats_of(from).requested.current}, 700_B);
    EXPECT_EQ(one.size(), 700_B);
    EXPECT_EQ(one.capacity(), 700_B);
    EXPECT_TRUE(one.stream() == on);
    EXPECT_EQ(two.size(), 0_B);  // NOLINT: moved from, on purpose
    EXPECT_EQ(two.capacity(), 0_B);
    EXPECT_FALSE(two);
    WEIR_DONE(one.resize(9000_B));
    EXPECT_EQ(address_of(one.data()) % 4096, 0U) << "the alignment came along";
    auto& same = one;
    one = std::move(same);
    EXPECT_EQ(one.size(), 9000_B);
    EXPECT_EQ(bytes{stats_of(from).requested.current}, 9000_B);
  }
  EXPECT_EQ(bytes{stats_of(from).requested.current}, 0_B);
}

TEST_P(device_buffers, can_be_released) {
  const auto on = make_stream();
  auto one = device_buffer::create(memory(), 1000_B, on).value();
  void* const address = one.data();
  WEIR_DONE(one.resize(10_B));
  const auto raw = one.release();
  EXPECT_FALSE(one);
  EXPECT_EQ(one.data(), nullptr);
  EXPECT_TRUE(one.empty());
  EXPECT_EQ(one.capacity(), 0_B);
  EXPECT_EQ(raw.data, address);
  EXPECT_EQ(raw.size, 1000_B) << "all of it, whatever the size is";
  WEIR_DONE(memory().try_deallocate(raw.data, raw.size, on));
}

TEST_P(device_buffers, of_nothing_have_no_memory) {
  const auto on = make_stream();
  auto none = device_buffer::create(memory(), 0_B, on, contents::zeroed).value();
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_TRUE(none);
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.span().empty());
  WEIR_DONE(none.resize(64_B));
  EXPECT_NE(none.data(), nullptr);
  EXPECT_FALSE(none.empty());
  EXPECT_EQ(none.span().data(), none.data());
  EXPECT_EQ(none.span().size_bytes(), 64_B);
  WEIR_DONE(none.resize(0_B));
  WEIR_DONE(none.shrink_to_fit());
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(code_of(device_buffer::create({}, 1_B, on)), errc::invalid_argument);
}

TEST_P(device_buffers, begin_as_zeros_if_asked_for) {
  const auto on = make_stream();
  {  // the same memory, with something in it
    auto used = device_buffer::create(memory(), 4096_B, on).value();
    WEIR_DONE(fill_bytes(used.data(), 0xff, 4096_B, on));
  }
  auto zeros = device_buffer::create(memory(), 4096_B, on, contents::zeroed).value();
  EXPECT_THAT(words_of(zeros.data(), 1024, on), AllAre(0U));
}

TEST_P(device_buffers, keep_their_bytes_when_they_grow_and_shrink) {
  const auto on = make_stream();
  const auto values = counting(256);
  auto one = device_buffer::create(memory(), 1024_B, on).value();
  WEIR_DONE(copy_bytes(one.data(), values.data(), 1024_B, on));
  WEIR_DONE(one.resize(1_MiB));
  EXPECT_EQ(one.capacity(), 1_MiB);
  EXPECT_EQ(words_of(one.data(), 256, on), values);
  void* const address = one.data();
  WEIR_DONE(one.resize(512_B));
  EXPECT_EQ(one.data(), address);
  EXPECT_EQ(one.capacity(), 1_MiB);
  WEIR_DONE(one.shrink_to_fit());
  EXPECT_EQ(one.capacity(), 512_B);
  EXPECT_EQ(words_of(one.data(), 128, on), counting(128));
  WEIR_DONE(one.reserve(4096_B));
  EXPECT_EQ(one.size(), 512_B);
  EXPECT_EQ(words_of(one.data(), 128, on), counting(128));
  WEIR_DONE(one.resize_discarding(64_KiB));
  EXPECT_EQ(one.size(), 64_KiB);
}

TEST_P(device_buffers, a_request_that_cannot_be_met_changes_nothing) {
  const auto on = make_stream();
  auto one = device_buffer::create(memory(), 1024_B, on).value();
  void* const address = one.data();
  EXPECT_FALSE(one.resize(bytes::max()));
  EXPECT_FALSE(one.reserve(bytes{std::uint64_t{1} << 60}));
  EXPECT_EQ(one.data(), address);
  EXPECT_EQ(one.size(), 1024_B);
}

TEST_P(device_buffers, are_handed_from_stream_to_stream) {
  const auto first = make_stream();
  const auto second = make_stream();
  auto one = device_buffer::create(memory(), 4096_B, first).value();
  auto held = occupy(first.handle());
  ASSERT_EQ(CUDA_SUCCESS, fill(address_of(one.data()), 3, 1024, first.handle()));
  WEIR_DONE(one.hand_over(second));
  EXPECT_TRUE(one.stream() == second);
  ASSERT_EQ(CUDA_SUCCESS, increment(address_of(one.data()), 1024, second.handle()));
  EXPECT_TRUE(stays_busy(second.handle()));
  held->finish();
  EXPECT_THAT(words_of(one.data(), 1024, second), AllAre(4U));
}

TEST_P(device_buffers, are_freed_behind_a_recorded_stream) {
  const auto own = make_stream();
  const auto guest = make_stream();
  auto held = occupy(guest.handle());
  {
    const auto one = device_buffer::create(memory(), 4096_B, own).value();
    WEIR_DONE(one.record_stream(guest));  // before the work that it is for
    ASSERT_EQ(CUDA_SUCCESS, fill(address_of(one.data()), 3, 1024, guest.handle()));
  }
  // Without record_stream() this would get the same memory and race with the guest.
  auto next = device_buffer::create(memory(), 4096_B, own).value();
  ASSERT_EQ(CUDA_SUCCESS, fill(address_of(next.data()), 5, 1024, own.handle()));
  held->finish();
  EXPECT_THAT(words_of(next.data(), 1024, own), AllAre(5U));
}

TEST_P(device_buffers, are_freed_behind_a_joined_stream) {
  const auto own = make_stream();
  const auto guest = make_stream();
  auto held = occupy(guest.handle());
  {
    auto one = device_buffer::create(memory(), 4096_B, own).value();
    ASSERT_EQ(CUDA_SUCCESS, fill(address_of(one.data()), 3, 1024, guest.handle()));
    WEIR_DONE(one.join(guest));
    ASSERT_EQ(CUDA_SUCCESS, increment(address_of(one.data()), 1024, own.handle()));
  }
  // The same memory again: without join() this would race with the guest.
  auto next = device_buffer::create(memory(), 4096_B, own).value();
  ASSERT_EQ(CUDA_SUCCESS, fill(address_of(next.data()), 5, 1024, own.handle()));
  held->finish();
  EXPECT_THAT(words_of(next.data(), 1024, own), AllAre(5U));
}

TEST_P(device_buffers, copy_between_two_streams_without_waiting) {
  const auto first = make_stream();
  const auto second = make_stream();
  auto to = device_buffer::create(memory(), 4096_B, second).value();
  auto held = occupy(first.handle());
  {
    auto from = device_buffer::create(memory(), 4096_B, first).value();
    ASSERT_EQ(CUDA_SUCCESS, fill(address_of(from.data()), 6, 1024, first.handle()));
    WEIR_DONE(copy_between(to, 2048_B, from, 0_B, 2048_B));
    EXPECT_EQ(code_of(copy_between(to, 2049_B, from, 0_B, 2048_B)), errc::invalid_argument);
    EXPECT_EQ(code_of(copy_between(to, 0_B, from, 4096_B, 1_B)), errc::invalid_argument);
    EXPECT_EQ(code_of(copy_between(to, 0_B, to, 100_B, 200_B)), errc::invalid_argument);
  }
  auto next = device_buffer::create(memory(), 4096_B, first).value();
  ASSERT_EQ(CUDA_SUCCESS, fill(address_of(next.data()), 7, 1024, first.handle()));
  held->finish();
  EXPECT_THAT(words_of(static_cast<std::byte*>(to.data()) + 2048, 512, second), AllAre(6U));
}

TEST_P(device_buffers, copies_between_them_keep_to_their_parts) {
  const auto first = make_stream();
  const auto second = make_stream();
  const auto values = counting(256, 1);
  auto from = device_buffer::create(memory(), 1024_B, first).value();
  WEIR_DONE(copy_bytes(from.data(), values.data(), 1024_B, first));
  for (const stream_ref& on : {first.ref(), second.ref()}) {
    auto to = device_buffer::create(memory(), 2048_B, on, contents::zeroed).value();
    WEIR_DONE(copy_between(to, 40_B, from, 80_B, 400_B));
    std::vector<word> expected(512, 0);
    std::copy_n(values.begin() + 20, 100, expected.begin() + 10);
    EXPECT_EQ(words_of(to.data(), 512, on), expected);
    WEIR_DONE(copy_between(to, 1024_B, from, 0_B, 1024_B));  // up to both ends
    std::copy_n(values.begin(), 256, expected.begin() + 256);
    EXPECT_EQ(words_of(to.data(), 512, on), expected);
    WEIR_DONE(copy_between(to, 2048_B, from, 1024_B, 0_B));
    const auto refused = [](const char* detail) {
      return error{{.code = errc::invalid_argument, .requested = 4_B, .detail = detail}};
    };
    EXPECT_EQ(copy_between(to, 2045_B, from, 0_B, 4_B).error(),
              refused("a copy of 4 B at offset 2045 exceeds the buffer of 2 KiB"));
    EXPECT_EQ(copy_between(to, 0_B, from, 1021_B, 4_B).error(),
              refused("a copy of 4 B at offset 1021 exceeds the buffer of 1 KiB"));
    EXPECT_EQ(copy_between(to, 2052_B, from, 0_B, 4_B).error(),
              refused("a copy of 4 B at offset 2052 exceeds the buffer of 2 KiB"));
    EXPECT_EQ(copy_between(to, 0_B, from, 1028_B, 4_B).error(),
              refused("a copy of 4 B at offset 1028 exceeds the buffer of 1 KiB"));
    device_buffer none;
    EXPECT_EQ(code_of(copy_between(none, 0_B, from, 0_B, 0_B)), errc::moved_from);
    EXPECT_EQ(code_of(copy_between(to, 0_B, none, 0_B, 0_B)), errc::moved_from);
  }
}

// --- Vectors -------------------------------------------------------------------------------------

TEST_P(device_buffers, vectors_count_in_elements) {
  const auto on = make_stream();
  const auto values = counting(100);
  auto some = device_vector<word>::copy_of(memory(), values, on).value();
  EXPECT_EQ(some.size(), 100U);
  WEIR_DONE(some.resize(1000));
  EXPECT_EQ(some.size(), 1000U);
  std::vector<word> back(100);
  WEIR_DONE(some.copy_to(back));
  WEIR_DONE(on.synchronize());
  EXPECT_EQ(back, values);
  WEIR_DONE(some.set(5, 77));
  EXPECT_EQ(some.get(5).value(), 77U);
  EXPECT_EQ(some.get(6).value(), 6U);
  WEIR_DONE(some.copy_from(values, 900));
  EXPECT_EQ(some.get(999).value(), 99U);
  WEIR_DONE(some.copy_to(back, 900));
  WEIR_DONE(on.synchronize());
  EXPECT_EQ(back, values);
  WEIR_DONE(some.fill(4));
  EXPECT_EQ(some.get(0).value(), 4U);
}

TEST_P(device_buffers, a_copy_is_counted_with_the_bytes_that_were_asked_for) {
  const auto on = make_stream();
  const any_resource from = memory();
  const auto before = bytes{stats_of(from).requested.current};
  {
    const auto some = device_vector<word>::copy_of(from, counting(250), on).value();
    EXPECT_EQ(bytes{stats_of(from).requested.current}, before + 1000_B);
    EXPECT_GE(bytes{stats_of(from).requested.peak}, before + 1000_B);
  }
  EXPECT_EQ(bytes{stats_of(from).requested.current}, before);
}

TEST_P(device_buffers, say_what_they_are) {
  const auto on = make_stream();
  auto some = device_vector<word>::create(memory(), 250, on).value();
  EXPECT_EQ(to_string(some),
            "250 elements of 4 B: 1000 B on device 0, stream " + to_string(on.id()));
  device_buffer bytes_of_it = some.release();
  EXPECT_EQ(to_string(bytes_of_it), "1000 B on device 0, stream " + to_string(on.id()));
  EXPECT_EQ(to_string(some), "0 elements of 4 B: closed, released or moved from");
  WEIR_DONE(bytes_of_it.close());
  EXPECT_EQ(to_string(bytes_of_it), "closed, released or moved from");
}

TEST_P(device_buffers, vectors_grow_shrink_and_go_from_stream_to_stream) {
  const auto first = make_stream();
  const auto second = make_stream();
  const auto values = counting(100);
  auto some = device_vector<word>::copy_of(memory(), values, first).value();
  WEIR_DONE(some.reserve(400));
  EXPECT_EQ(some.capacity(), 400U);
  EXPECT_EQ(some.size(), 100U);
  WEIR_DONE(some.resize(50));
  WEIR_DONE(some.shrink_to_fit());
  EXPECT_EQ(some.capacity(), 50U);
  EXPECT_EQ(words_of(some.data(), 50, first), counting(50));
  auto held = occupy(first.handle());
  ASSERT_EQ(CUDA_SUCCESS, increment(address_of(some.data()), 50, first.handle()));
  WEIR_DONE(some.hand_over(second));
  EXPECT_TRUE(some.stream() == second);
  ASSERT_EQ(CUDA_SUCCESS, increment(address_of(some.data()), 50, second.handle()));
  WEIR_DONE(some.join(first));
  held->finish();
  EXPECT_EQ(words_of(some.data(), 50, second), counting(50, 2));
  EXPECT_EQ(some.buffer().size(), 200_B);
  device_span<word> view = some;
  EXPECT_EQ(view.data(), some.data());
  EXPECT_EQ(view.size_bytes(), 200_B);
  const device_span<const word> constant = std::as_const(some);
  EXPECT_EQ(constant.size(), 50U);
  const device_span<const word> narrowed = view;
  EXPECT_EQ(narrowed.data(), some.data());
  EXPECT_EQ(narrowed.size(), 50U);
  EXPECT_TRUE(some);
  EXPECT_FALSE(device_vector<word>{});
  EXPECT_EQ(view.part(10, 5).value().data(), some.data() + 10);
  EXPECT_EQ(view.part(10, 5).value().size(), 5U);
  EXPECT_EQ(view.part(50, 0).value().size(), 0U);
}

TEST_P(device_buffers, vectors_begin_as_zeros_if_asked_for) {
  const auto on = make_stream();
  {
    auto used = device_vector<word>::create(memory(), 1000, on).value();
    WEIR_DONE(used.fill(0xdead));
  }
  auto zeros = device_vector<word>::zeroed(memory(), 1000, on).value();
  EXPECT_THAT(words_of(zeros.data(), zeros.size(), on), AllAre(0U));
  WEIR_DONE(zeros.fill(0xdead));
  WEIR_DONE(zeros.close());
  EXPECT_TRUE(zeros.empty());
  zeros = device_vector<word>::create(memory(), 1000, on, contents::zeroed).value();
  EXPECT_THAT(words_of(zeros.data(), zeros.size(), on), AllAre(0U));
  EXPECT_EQ(zeros.span().size(), 1000U);
}

TEST_P(device_buffers, vectors_refuse_what_is_outside) {
  const auto on = make_stream();
  auto some = device_vector<word>::create(memory(), 10, on).value();
  std::vector<word> values(6);
  EXPECT_EQ(code_of(some.copy_from(values, 5)), errc::invalid_argument);
  EXPECT_EQ(code_of(some.copy_to(values, 11)), errc::invalid_argument);
  EXPECT_EQ(code_of(some.set(10, 1)), errc::invalid_argument);
  EXPECT_EQ(some.get(10).error(),
            (error{{.code = errc::invalid_argument, .detail = "element 10 of 10"}}));
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(code_of(some.resize(most)), errc::size_overflow);
  EXPECT_EQ(code_of(some.reserve(most / 4 + 2)), errc::size_overflow);
  EXPECT_EQ(code_of(device_vector<word>::create(memory(), most, on)), errc::size_overflow);
  EXPECT_EQ(some.size(), 10U);
  device_vector<word> none;
  EXPECT_EQ(code_of(none.fill(1)), errc::moved_from);
  EXPECT_EQ(code_of(none.get(0)), errc::moved_from);
}

struct alignas(1024) wide_on_device {
  word value[256];
};

TEST_P(device_buffers, vectors_of_over_aligned_elements_are_aligned) {
  const auto on = make_stream();
  auto odd = device_buffer::create(memory(), 512_B, on).value();  // moves what follows
  auto some = device_vector<wide_on_device>::create(memory(), 3, on).value();
  EXPECT_EQ(address_of(some.data()) % alignof(wide_on_device), 0U);
  WEIR_DONE(some.resize(7));
  EXPECT_EQ(address_of(some.data()) % alignof(wide_on_device), 0U);
}

TEST_P(device_buffers, a_view_of_another_type_checks_size_and_alignment) {
  const auto on = make_stream();
  auto some = device_vector<std::uint8_t>::create(memory(), 24, on).value();
  EXPECT_EQ(some.span().as<word>().value().size(), 6U);
  EXPECT_EQ(code_of(some.span().part(0, 23).value().as<word>()), errc::invalid_argument);
  EXPECT_EQ(code_of(some.span().part(1, 8).value().as<word>()), errc::bad_alignment);
  EXPECT_EQ(some.span().part(20, 5).error(),
            (error{{.code = errc::invalid_argument, .detail = "5 elements from 20 of 24"}}));
  EXPECT_EQ(some.span().part(25, 0).error(),
            (error{{.code = errc::invalid_argument, .detail = "0 elements from 25 of 24"}}));
  EXPECT_EQ(some.span().part(24, 1).error(),
            (error{{.code = errc::invalid_argument, .detail = "element 24 of 24"}}));
  auto buffer = some.release();
  WEIR_DONE(buffer.resize(23_B));
  EXPECT_EQ(code_of(device_vector<word>::adopt(std::move(buffer))), errc::invalid_argument);
  ASSERT_TRUE(buffer);  // NOLINT: it was not taken in
  WEIR_DONE(buffer.resize(20_B));
  EXPECT_EQ(device_vector<word>::adopt(std::move(buffer)).value().size(), 5U);
}

}  // namespace
}  // namespace weir::testing_support
