// SPDX-License-Identifier: Apache-2.0
// Unified buffers where devices have concurrent managed access: contents, views, placement.
#include "weir/buffer/unified_buffer.hpp"

#include <algorithm>
#include <limits>

#include "buffers/buffers_test.hpp"
#include "weir/buffer/copy.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;

constexpr std::size_t count = 2 * mib / sizeof(word);

class unified_buffers : public buffers_test {
 protected:
  void SetUp() override {
    buffers_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!gpu().capabilities().concurrent_managed_access) {
      GTEST_SKIP() << "no concurrent managed access";
    }
  }
  void queue_increment(unified_buffer<word>& buffer, const stream_ref& on) {
    const auto elements = buffer.use_on(on).value();
    ASSERT_EQ(CUDA_SUCCESS, increment(address_of(elements.data()), elements.size(), on.handle()));
  }
};
WEIR_BUFFERS_TEST(unified_buffers);

// --- Contents ------------------------------------------------------------------------------------

TEST_P(unified_buffers, begin_as_zeros_or_as_a_copy) {
  const auto on = make_stream();
  for (const attachment mode : {attachment::global, attachment::host, attachment::single}) {
    {
      // Memory that held something before.
      auto used = unified_buffer<word>::zeroed(count, on, mode).value();
      std::fill_n(used.view().value().data(), count, word{0xdead});
    }
    auto zeros = unified_buffer<word>::zeroed(count, on, mode).value();
    EXPECT_EQ(zeros.attached(), mode);
    EXPECT_EQ(zeros.size(), count);
    EXPECT_THAT(zeros.view().value().span(), AllAre(0U));
    const auto values = counting(1000);
    const auto copied = unified_buffer<word>::copy_of(values, on, mode).value();
    const auto seen = copied.view().value();
    EXPECT_TRUE(std::equal(seen.begin(), seen.end(), values.begin(), values.end()));
  }
}

TEST_P(unified_buffers, without_contents_queue_nothing) {
  const auto on = make_stream();
  for (const attachment mode : {attachment::global, attachment::host, attachment::single}) {
    auto some = unified_buffer<word>::create(count, on, contents::undefined, mode).value();
    EXPECT_EQ(some.attached(), mode);
    EXPECT_EQ(some.size(), count);
  }
  auto undefined = unified_buffer<word>::create(count, on).value();
  auto zeros = unified_buffer<word>::create(count, on, contents::zeroed).value();
  auto held = occupy(on.handle());
  EXPECT_TRUE(undefined.try_view()) << "no stream uses it";
  EXPECT_EQ(code_of(zeros.try_view()), errc::not_ready) << "the stream fills it";
  held->finish();
  EXPECT_THAT(zeros.view().value().span(), AllAre(0U));
}

TEST_P(unified_buffers, tell_address_and_size) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(100, on).value();
  EXPECT_FALSE(some.empty());
  EXPECT_EQ(some.data(), some.unsafe_span().data());
  EXPECT_EQ(some.span().data(), some.data());
  EXPECT_EQ(some.span().size(), 100U);
  {
    const auto view = some.view().value();
    EXPECT_FALSE(view.empty());
    EXPECT_EQ(view.data(), some.data());
  }
  WEIR_DONE(some.close());
  EXPECT_TRUE(some.empty());
  EXPECT_EQ(some.data(), nullptr);
  EXPECT_TRUE(some.span().empty());
}

TEST_P(unified_buffers, go_from_the_host_to_the_device_and_back) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::copy_of(counting(count), on).value();
  queue_increment(some, on);
  {
    auto view = some.view().value();
    EXPECT_EQ(view[0], 1U);
    EXPECT_EQ(view[count - 1], count);
    std::fill(view.begin(), view.end(), word{10});
  }
  queue_increment(some, on);
  EXPECT_THAT(some.view().value().span(), AllAre(11U));
}

TEST_P(unified_buffers, of_nothing_or_too_much_are_refused) {
  const auto on = make_stream();
  EXPECT_EQ(code_of(unified_buffer<word>::zeroed(0, on)), errc::invalid_argument);
  EXPECT_EQ(code_of(unified_buffer<word>::copy_of({}, on)), errc::invalid_argument);
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(code_of(unified_buffer<word>::zeroed(most, on)), errc::size_overflow);
  EXPECT_EQ(code_of(unified_buffer<word>::zeroed(most / 8 + 1, on)), errc::size_overflow);
  EXPECT_EQ(code_of(unified_buffer<char>::zeroed(most / 2 + 1, on)), errc::size_overflow);
}

struct alignas(8192) wide_unified {
  word value[2048];
};

TEST_P(unified_buffers, over_aligned_elements_are_aligned) {
  const auto on = make_stream();
  auto odd = unified_buffer<char>::zeroed(100, on).value();
  auto some = unified_buffer<wide_unified>::zeroed(3, on).value();
  EXPECT_EQ(address_of(some.unsafe_span().data()) % alignof(wide_unified), 0U);
  EXPECT_EQ(some.view().value()[2].value[2047], 0U);
  WEIR_DONE(some.resize(5, on));
  EXPECT_EQ(address_of(some.unsafe_span().data()) % alignof(wide_unified), 0U);
}

TEST_P(unified_buffers, resize_keeps_the_old_and_zeroes_the_new) {
  const auto on = make_stream();
  for (const attachment mode : {attachment::global, attachment::host, attachment::single}) {
    auto some = unified_buffer<word>::copy_of(counting(100), on, mode).value();
    WEIR_DONE(some.resize(200, on));
    EXPECT_EQ(some.attached(), mode);
    {
      auto view = some.view().value();
      ASSERT_EQ(view.size(), 200U);
      for (std::size_t i = 0; i < 200; ++i) ASSERT_EQ(view[i], i < 100 ? i : 0);
      EXPECT_EQ(code_of(some.resize(300, on)), errc::not_ready);
    }
    WEIR_DONE(some.resize(10, on));
    EXPECT_THAT(some.view().value().span(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
    EXPECT_EQ(code_of(some.resize(0, on)), errc::invalid_argument);
  }
}

// --- Views ---------------------------------------------------------------------------------------

TEST_P(unified_buffers, a_view_waits_for_the_streams_that_use_the_memory) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(count, on).value();
  WEIR_DONE(on.synchronize());
  auto held = occupy(on.handle());
  queue_increment(some, on);
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready);
  held->finish();
  EXPECT_THAT(some.view().value().span(), AllAre(1U));
  EXPECT_TRUE(some.try_view());
}

TEST_P(unified_buffers, a_view_waits_only_as_far_as_an_event) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(count, on).value();
  queue_increment(some, on);
  auto behind = event::create(gpu()).value();
  WEIR_DONE(behind.record(on));
  WEIR_DONE(behind.synchronize());
  auto held = occupy(on.handle());  // work of the same stream that has nothing to do with it
  {
    const auto view = some.view(behind).value();
    EXPECT_THAT(view.span(), AllAre(1U));
  }
  held->finish();
  WEIR_DONE(behind.close());
  EXPECT_EQ(code_of(some.view(behind)), errc::moved_from);
}

TEST_P(unified_buffers, while_the_host_has_a_view_devices_are_refused) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(count, on).value();
  {
    auto first = some.view().value();
    auto second = some.view().value();  // the host may have two
    EXPECT_EQ(code_of(some.use_on(on)), errc::not_ready);
    EXPECT_EQ(code_of(some.prefetch(gpu(), on)), errc::not_ready);
    EXPECT_EQ(code_of(some.attach(attachment::host, on)), errc::not_ready);
    first = std::move(second);
    EXPECT_EQ(code_of(some.use_on(on)), errc::not_ready);
  }
  EXPECT_TRUE(some.use_on(on));
}

TEST_P(unified_buffers, a_view_keeps_the_memory_alive) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::copy_of(counting(100), on).value();
  auto view = some.view().value();
  WEIR_DONE(some.close());
  EXPECT_EQ(view[99], 99U);
  view[0] = 5;
  EXPECT_FALSE(some);
  EXPECT_EQ(code_of(some.view()), errc::moved_from);
  EXPECT_EQ(code_of(some.view(event::create(gpu()).value())), errc::moved_from);
  EXPECT_EQ(code_of(some.try_view()), errc::moved_from);
  EXPECT_EQ(code_of(std::as_const(some).view()), errc::moved_from);
  EXPECT_EQ(code_of(std::as_const(some).try_view()), errc::moved_from);
  EXPECT_EQ(code_of(some.use_on(on)), errc::moved_from);
  EXPECT_EQ(code_of(some.prefetch(gpu(), on)), errc::moved_from);
  EXPECT_EQ(code_of(some.advise_read_mostly()), errc::moved_from);
  EXPECT_EQ(code_of(some.advise_preferred(std::nullopt)), errc::moved_from);
  EXPECT_EQ(code_of(some.advise_accessed_by(gpu())), errc::moved_from);
  EXPECT_EQ(code_of(some.attach(attachment::host, on)), errc::moved_from);
  EXPECT_EQ(code_of(some.info()), errc::moved_from);
  EXPECT_EQ(code_of(some.resize(1, on)), errc::moved_from);
  WEIR_DONE(some.close());
}

TEST_P(unified_buffers, a_stream_may_go_before_its_work_is_viewed) {
  auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(count, on).value();
  WEIR_DONE(on.synchronize());
  queue_increment(some, on);
  WEIR_DONE(on.close());
  EXPECT_THAT(some.view().value().span(), AllAre(1U));
}

TEST_P(unified_buffers, are_freed_behind_the_streams_that_use_them) {
  const auto on = make_stream();
  {
    auto some = unified_buffer<word>::zeroed(count, on).value();
    queue_increment(some, on);
  }
  EXPECT_TRUE(on.is_complete().value());
}

TEST_P(unified_buffers, a_capture_is_not_broken) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(count, on).value();
  WEIR_DONE(on.synchronize());
  ASSERT_EQ(CUDA_SUCCESS, cu->stream_begin_capture(on.handle(), CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(code_of(unified_buffer<word>::zeroed(count, on)), errc::capture_forbidden);
  EXPECT_EQ(code_of(some.attach(attachment::global, on)), errc::capture_forbidden);
  EXPECT_EQ(code_of(some.prefetch(gpu(), on)), errc::capture_forbidden);
  queue_increment(some, on);
  EXPECT_EQ(code_of(some.view()), errc::capture_forbidden);
  EXPECT_EQ(code_of(some.try_view()), errc::capture_forbidden);
  const CUgraphExec exec = new_exec(end_capture(on.handle()));
  ASSERT_NE(exec, nullptr);
  ASSERT_EQ(CUDA_SUCCESS, cu->graph_launch(exec, on.handle()));
  EXPECT_THAT(some.view().value().span(), AllAre(1U));
}

// --- Placement -----------------------------------------------------------------------------------

TEST_P(unified_buffers, prefetches_are_remembered_and_change_nothing) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::copy_of(counting(count), on).value();
  EXPECT_EQ(some.info().value(), managed_range_info{});
  WEIR_DONE(some.prefetch(gpu(), on));
  queue_increment(some, on);
  WEIR_DONE(on.synchronize());
  EXPECT_EQ(some.info().value().last_prefetch, managed_place{gpu()});
  WEIR_DONE(some.prefetch(managed_place::host(), on));
  WEIR_DONE(on.synchronize());
  EXPECT_EQ(some.info().value().last_prefetch, managed_place::host());
  const auto view = some.view().value();
  EXPECT_EQ(view[0], 1U);
  EXPECT_EQ(view[count - 1], count);
}

TEST_P(unified_buffers, a_part_has_a_place_of_its_own) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(2 * count, on).value();
  WEIR_DONE(some.prefetch(gpu(), on, {0, count}));
  WEIR_DONE(some.prefetch(managed_place::host(), on, {count}));
  WEIR_DONE(on.synchronize());
  EXPECT_EQ(some.info({0, count}).value().last_prefetch, managed_place{gpu()});
  EXPECT_EQ(some.info({count, count}).value().last_prefetch, managed_place::host());
  EXPECT_EQ(some.info().value().last_prefetch, std::nullopt);
  EXPECT_EQ(code_of(some.info({2 * count, 1})), errc::invalid_argument);
  EXPECT_EQ(code_of(some.info({2 * count + 1, 1})), errc::invalid_argument);
  EXPECT_EQ(code_of(some.info({2 * count + 1})), errc::invalid_argument);
  EXPECT_EQ(code_of(some.info({0, 0})), errc::invalid_argument);
  EXPECT_EQ(code_of(some.prefetch(gpu(), on, {1, 2 * count})), errc::invalid_argument);
}

TEST_P(unified_buffers, advice_reaches_whom_it_names) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(count, on).value();
  WEIR_DONE(some.advise_preferred(managed_place::host()));
  EXPECT_EQ(some.info().value().preferred, managed_place::host());
  const int last = has_two() ? 1 : 0;
  WEIR_DONE(some.advise_preferred(managed_place{gpu(last)}));
  EXPECT_EQ(some.info().value().preferred, managed_place{device_id{last}});
  WEIR_DONE(some.advise_preferred(std::nullopt));
  EXPECT_EQ(some.info().value().preferred, std::nullopt);

  WEIR_DONE(some.advise_read_mostly());
  EXPECT_TRUE(some.info().value().read_mostly);
  WEIR_DONE(some.advise_read_mostly(false));
  EXPECT_FALSE(some.info().value().read_mostly);

  WEIR_DONE(some.advise_accessed_by(gpu(last)));
  EXPECT_THAT(some.info().value().accessed_by, ElementsAre(managed_place{device_id{last}}));
  WEIR_DONE(some.advise_accessed_by(gpu(last), false));
  EXPECT_THAT(some.info().value().accessed_by, ElementsAre());
}

TEST_P(unified_buffers, places_that_do_not_exist_are_refused) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(count, on).value();
  const managed_place nowhere{device_id{1000}};
  EXPECT_EQ(code_of(some.prefetch(nowhere, on)), errc::no_device);
  EXPECT_EQ(code_of(some.advise_preferred(nowhere)), errc::no_device);
  EXPECT_EQ(code_of(some.advise_accessed_by(nowhere)), errc::no_device);
  EXPECT_EQ(code_of(some.advise_accessed_by(managed_place::host_node(0))), errc::invalid_argument);
}

TEST_P(unified_buffers, attachment_can_change) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(count, on).value();
  WEIR_DONE(some.attach(attachment::single, on));
  EXPECT_EQ(some.attached(), attachment::single);
  queue_increment(some, on);
  WEIR_DONE(some.attach(attachment::host, on));
  EXPECT_THAT(some.view().value().span(), AllAre(1U));
  WEIR_DONE(some.attach(attachment::global, on));
  queue_increment(some, on);
  EXPECT_THAT(some.view().value().span(), AllAre(2U));
  EXPECT_EQ(code_of(some.attach(attachment::single, stream_ref::legacy(gpu()))),
            errc::invalid_argument);
  EXPECT_EQ(code_of(some.attach(attachment::single, stream_ref::per_thread(gpu()))),
            errc::invalid_argument);
}

TEST(managed_memory_text, is_exact) {
  const managed_place first{device_id{0}};
  EXPECT_EQ(to_string(first), "device 0");
  EXPECT_EQ(to_string(managed_place::host()), "host");
  EXPECT_EQ(to_string(managed_place::host_node(3)), "host node 3");
  EXPECT_EQ(to_string(attachment::global), "global");
  EXPECT_EQ(to_string(attachment::host), "host");
  EXPECT_EQ(to_string(attachment::single), "single");
  EXPECT_EQ(to_string(static_cast<attachment>(3)), "unknown");
  EXPECT_EQ(to_string(managed_range_info{}),
            "read_mostly: no, preferred: none, accessed_by: none, last_prefetch: none");
  EXPECT_EQ(to_string(managed_range_info{true, first, {managed_place::host(), first}, first}),
            "read_mostly: yes, preferred: device 0, accessed_by: host and device 0, last_prefetch: "
            "device 0");
}

TEST_P(unified_buffers, two_devices_take_turns) {
  if (!has_two()) GTEST_SKIP() << "one device";
  const auto first = make_stream(0);
  const auto second = make_stream(1);
  auto some = unified_buffer<word>::copy_of(counting(1000), first).value();
  queue_increment(some, first);
  WEIR_DONE(first.synchronize());
  const auto there = some.use_on(second).value();
  WEIR_DONE(copy_bytes(there.data(), there.data() + 500, 2000_B, second));
  const auto view = some.view().value();  // waits for both
  EXPECT_EQ(view[0], 501U);
  EXPECT_EQ(view[999], 1000U);
}

}  // namespace
}  // namespace weir::testing_support
