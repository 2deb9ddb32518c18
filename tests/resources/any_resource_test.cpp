// SPDX-License-Identifier: Apache-2.0
// any_resource: what it holds, how it compares, and that empty ones say so.
#include "resources/resources_fixture.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/resource/resources.hpp"

namespace weir::testing_support { namespace {

using any_resource_test = resources_test;

TEST_F(any_resource_test, an_empty_one_refuses_everything) {
  const any_resource nothing;
  EXPECT_FALSE(nothing);
  EXPECT_EQ(code_of(nothing.try_allocate(1_KiB, stream)), errc::moved_from);
  EXPECT_EQ(code_of(nothing.try_deallocate(&machine, 1_KiB, stream)), errc::moved_from);
  nothing.deallocate(&machine, 1_KiB, stream);
  const auto reported = take_reports();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front().code(), errc::moved_from);
}

TEST_F(any_resource_test, holds_a_handle_and_compares_what_it_holds) {
  const auto allocator = caching_allocator::create(gpu).value();
  const any_resource first = allocator;
  const any_resource second = allocator;
  const any_resource other = caching_allocator::create(gpu).value();
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
  EXPECT_NE(first, any_resource{});
  EXPECT_NE(first, any_resource{ledger});
  ASSERT_NE(first.target<caching_allocator>(), nullptr);
  EXPECT_EQ(*first.target<caching_allocator>(), allocator);
  EXPECT_EQ(first.target<plain_resource>(), nullptr);
  void* const p = first.allocate(1_MiB, stream);
  EXPECT_TRUE(second.try_deallocate(p, 1_MiB, stream));
}

TEST_F(any_resource_test, what_create_answers_can_be_copied) {
  const result<any_resource> made = any_resource{caching_allocator::create(gpu).value()};
  const result<any_resource> copy = made;
  ASSERT_TRUE(copy);
  EXPECT_EQ(*copy, *made);
}

TEST_F(any_resource_test, knows_what_kind_of_memory_it_hands_out) {
  EXPECT_EQ(any_resource{caching_allocator::create(gpu).value()}.kind(), memory_kind::device);
  const any_resource managed = managed_resource::create(gpu).value();
  EXPECT_EQ(managed.kind(), memory_kind::managed);
  const any_resource over = limiting_resource::create(managed, 1_MiB).value();
  EXPECT_EQ(over.kind(), memory_kind::managed);
  EXPECT_EQ(any_resource{ledger_resource(gpu, memory_kind::pinned)}.kind(), memory_kind::pinned);
  EXPECT_EQ(name(memory_kind::pinned), "pinned");
}

TEST_F(any_resource_test, adaptors_are_what_their_upstream_is) {
  const ledger_resource pinned{other_gpu, memory_kind::pinned};
  const any_resource under = pinned;
  const auto expect_like = [&](const auto& adaptor) {
    EXPECT_EQ(adaptor.upstream(), under);
    EXPECT_EQ(adaptor.device(), other_gpu);
    EXPECT_EQ(adaptor.kind(), memory_kind::pinned);
    const auto same = adaptor;
    EXPECT_EQ(any_resource{adaptor}, any_resource{same});
  };
  expect_like(aligned_resource::create(under, 4_KiB).value());
  expect_like(limiting_resource::create(under, 4_KiB).value());
  expect_like(statistics_resource::create(under).value());
  expect_like(tracking_resource::create(under).value());
  expect_like(
      logging_resource::create(under, [](std::string_view) -> result<void> { return {}; }).value());
  expect_like(retry_resource::create(under, [](bytes, unsigned) { return false; }).value());
  const any_resource other = ledger_resource{other_gpu, memory_kind::pinned};
  const auto both = fallback_resource::create(under, other).value();
  EXPECT_EQ(both.primary(), under);
  EXPECT_EQ(both.alternate(), other);
  EXPECT_EQ(both.device(), other_gpu);
  EXPECT_EQ(both.kind(), memory_kind::pinned);
  EXPECT_EQ(synchronous_resource::create(under).value().upstream(), under);
}

/// A resource on a host without memory.
struct exhausted_resource {
  result<void*> try_allocate(bytes, const stream_ref&, bytes) { throw std::bad_alloc{}; }
  result<void> try_deallocate(void*, bytes, const stream_ref&) { throw std::bad_alloc{}; }
  [[nodiscard]] weir::device device() const { return home; }
  friend bool operator==(const exhausted_resource&, const exhausted_resource&) = default;
  weir::device home;
};

TEST_F(any_resource_test, a_free_that_runs_out_of_host_memory_is_reported) {
  const any_resource memory = exhausted_resource{gpu};
  memory.deallocate(&machine, 1_KiB, stream);
  const auto reported = take_reports();
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported.front().code(), errc::no_host_memory);
}

TEST_F(any_resource_test, keeps_its_machine_alive) {
  any_resource plain = plain_resource::create(gpu).value();
  EXPECT_TRUE(stream.close());
  runtime.reset();
  const auto own = stream::create(plain.device()).value();
  void* const p = plain.allocate(1_KiB, own);
  plain.deallocate(p, 1_KiB, own);
}

TEST_F(any_resource_test, throws_what_the_error_stands_for) {
  const any_resource memory = ledger;
  ledger.refuse({errc::out_of_memory, errc::device_lost});
  EXPECT_THROW(static_cast<void>(memory.allocate(1_KiB, stream)), std::bad_alloc);
  EXPECT_THROW(static_cast<void>(memory.allocate(1_KiB, stream)), failure);
}

TEST_F(any_resource_test, no_adaptor_stands_on_nothing) {
  const any_resource nothing;
  EXPECT_EQ(code_of(limiting_resource::create(nothing, 1_MiB)), errc::invalid_argument);
  EXPECT_EQ(code_of(statistics_resource::create(nothing)), errc::invalid_argument);
  EXPECT_EQ(code_of(tracking_resource::create(nothing)), errc::invalid_argument);
  EXPECT_EQ(code_of(logging_resource::create(nothing, "/nowhere/at/all")), errc::invalid_argument);
  EXPECT_EQ(code_of(aligned_resource::create(nothing, 1_KiB)), errc::invalid_argument);
  EXPECT_EQ(code_of(fallback_resource::create(nothing, ledger)), errc::invalid_argument);
  EXPECT_EQ(code_of(fallback_resource::create(ledger, nothing)), errc::invalid_argument);
  EXPECT_EQ(code_of(retry_resource::create(nothing, [](bytes, unsigned) { return true; })),
            errc::invalid_argument);
  EXPECT_EQ(code_of(synchronous_resource::create(nothing)), errc::invalid_argument);
}

TEST_F(any_resource_test, constant_handles_do_all_that_handles_do) {
  const auto limited = limiting_resource::create(ledger, 1_MiB).value();
  const auto counted = statistics_resource::create(limited).value();
  void* const p = counted.try_allocate(1_KiB, stream).value();
  limited.set_limit(2_KiB);
  EXPECT_EQ(code_of(counted.try_allocate(2_KiB, stream)), errc::out_of_memory);
  EXPECT_TRUE(counted.try_deallocate(p, 1_KiB, stream));
}

TEST_F(any_resource_test, a_handle_that_was_moved_from_still_works) {
  auto first = limiting_resource::create(ledger, 1_MiB).value();
  const auto second = std::move(first);
  EXPECT_EQ(first, second);  // NOLINT: that is the point
  EXPECT_EQ(first.limit(), 1_MiB);
}

}  // namespace
}  // namespace weir::testing_support
