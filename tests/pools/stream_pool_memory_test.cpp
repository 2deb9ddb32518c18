// SPDX-License-Identifier: Apache-2.0
// Stream pools: allocating and freeing in stream order, owners, wrong use, maximum, closing.
#include <string>
#include <thread>

#include "base/hexadecimal.hpp"
#include "pools/stream_pool_fixture.hpp"
#include "weir/observe/tag.hpp"
#include "weir/resource/resource.hpp"

namespace weir::testing_support::stream_pools { namespace {

static_assert(stream_resource<stream_pool>);
static_assert(!std::copyable<stream_allocation> && std::movable<stream_allocation>);

class stream_pool_memory_test : public stream_pool_contract {};
WEIR_CONTRACT(stream_pool_memory_test);

TEST_P(stream_pool_memory_test, memory_is_the_drivers_and_keeps_what_is_written) {
  auto pool = make();
  const auto stream = make_stream();
  auto memory = pool.allocate_owned(4_MiB, stream).value();
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory.size(), 4_MiB);
  EXPECT_EQ(memory.stream(), stream.ref());
  EXPECT_EQ(memory.pool(), pool);
  EXPECT_FALSE(memory.is_freed());
  write(stream, memory.data(), 4_MiB, 11);
  EXPECT_EQ(wrong(memory.data(), 4_MiB, 11), 0u);
  CUmemoryPool home = nullptr;
  WEIR_OK(cu->pointer_get_attribute(&home, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                    address_of(memory.data())));
  EXPECT_EQ(home, pool.handle());
}

TEST_P(stream_pool_memory_test, an_owner_frees_in_the_order_of_its_stream) {
  auto pool = make();
  const auto stream = make_stream();
  auto held = occupy(stream.handle());
  void* first = nullptr;
  {
    auto memory = pool.allocate_owned(4_MiB, stream).value();
    first = memory.data();
    write(stream, first, 4_MiB, 1);
  }
  auto again = pool.allocate_owned(4_MiB, stream).value();
  EXPECT_EQ(again.data(), first) << "the same stream gets it at once, though work is pending";
  write(stream, again.data(), 4_MiB, 2);
  held->finish();
  EXPECT_EQ(wrong(again.data(), 4_MiB, 2), 0u);
}

TEST_P(stream_pool_memory_test, memory_in_use_on_one_stream_is_not_given_to_another) {
  auto pool = make({.reuse_internal_dependencies = false});
  const auto busy = make_stream();
  const auto other = make_stream();
  auto memory = pool.allocate_owned(32_MiB, busy).value();
  const auto first = address_of(memory.data());
  ASSERT_TRUE(busy.synchronize());
  auto held = occupy(busy.handle());
  write(busy, memory.data(), 1_MiB, 1);
  ASSERT_TRUE(memory.free());
  auto second = pool.allocate_owned(32_MiB, other).value();
  const auto at = address_of(second.data());
  EXPECT_TRUE(at >= first + (32_MiB).count() || at + (32_MiB).count() <= first);
  write(other, second.data(), 1_MiB, 2);
  held->finish();
  EXPECT_EQ(wrong(second.data(), 1_MiB, 2), 0u);
}

TEST_P(stream_pool_memory_test, frees_may_be_made_on_any_stream) {
  auto pool = make();
  const auto making = make_stream();
  const auto freeing = make_stream();
  auto memory = pool.allocate_owned(4_MiB, making).value();
  write(making, memory.data(), 4_MiB, 1);
  order(making, freeing);
  ASSERT_TRUE(memory.free(freeing));
  EXPECT_TRUE(memory.is_freed());
  EXPECT_EQ(memory.data(), nullptr);
  auto raw = pool.allocate(4_MiB, making);
  write(making, raw, 4_MiB, 1);
  order(making, freeing);
  EXPECT_TRUE(pool.try_deallocate(raw, 4_MiB, freeing));
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
}

TEST_P(stream_pool_memory_test, the_default_streams_serve_too) {
  auto pool = make();
  for (const auto& stream : {stream_ref::legacy(gpu()), stream_ref::per_thread(gpu())}) {
    auto memory = pool.allocate_owned(64_KiB, stream).value();
    write(stream, memory.data(), 64_KiB, 3);
    EXPECT_EQ(wrong(memory.data(), 64_KiB, 3), 0u);
  }
}

TEST_P(stream_pool_memory_test, owners_move) {
  auto pool = make();
  const auto stream = make_stream();
  stream_allocation target;
  EXPECT_FALSE(target);
  EXPECT_FALSE(target.is_freed());
  EXPECT_EQ(code_of(target.free()), errc::moved_from);
  auto source = pool.allocate_owned(1_MiB, stream).value();
  void* const address = source.data();
  target = std::move(source);
  EXPECT_EQ(target.data(), address);
  EXPECT_EQ(code_of(source.free()), errc::moved_from);  // NOLINT
  target = pool.allocate_owned(2_MiB, stream).value();
  EXPECT_EQ(pool.stats().value().active_allocations, 1u) << "what it held before is freed";
  void* const raw = target.release();
  EXPECT_FALSE(target);
  EXPECT_EQ(target.size(), 0_B);
  EXPECT_EQ(code_of(target.free()), errc::already_freed);
  EXPECT_EQ(pool.stats().value().active_allocations, 1u);
  EXPECT_TRUE(pool.try_deallocate(raw, 2_MiB, stream));
}

TEST_P(stream_pool_memory_test, owners_keep_their_pool) {
  const auto stream = make_stream();
  auto memory = std::make_optional(make().allocate_owned(1_MiB, stream).value());
  write(stream, memory->data(), 1_MiB, 5);
  EXPECT_EQ(wrong(memory->data(), 1_MiB, 5), 0u);
  EXPECT_EQ(memory->pool().stats().value().active_allocations, 1u);
}

// --- Wrong use ----------------------------------------------------------------------------------

TEST_P(stream_pool_memory_test, nothing_is_null_and_an_owner_of_nothing_is_refused) {
  auto pool = make();
  const auto stream = make_stream();
  EXPECT_EQ(pool.try_allocate(0_B, stream).value(), nullptr);
  EXPECT_TRUE(pool.try_deallocate(nullptr, 0_B, stream));
  EXPECT_EQ(code_of(pool.allocate_owned(0_B, stream)), errc::invalid_argument);
  EXPECT_EQ(pool.stats().value().active_allocations_peak, 0u);
}

/// As misuse is told.
std::string told_of(const void* pointer, const std::string& what, const stream& on) {
  return detail::hexadecimal(reinterpret_cast<std::uintptr_t>(pointer)) + ", " + what +
         ", stream " + std::to_string(on.id().number());
}

TEST_P(stream_pool_memory_test, misuse_is_told_with_the_block_it_concerns) {
  auto pool = make();
  const auto stream = make_stream();
  void* p = nullptr;
  {
    const tag_scope tagged{tag::named("scratch").value()};
    p = pool.allocate(1_MiB, stream);
  }
  char* const inside = static_cast<char*>(p) + 512;
  const std::string there = detail::hexadecimal(reinterpret_cast<std::uintptr_t>(inside));
  EXPECT_EQ(pool.try_deallocate(inside, stream).error(),
            (error{{.code = errc::foreign_pointer,
                    .detail = there + " is inside a block, not its start: " +
                              told_of(p, "1 MiB, tag \"scratch\"", stream)}}));
  char* const behind = static_cast<char*>(p) + (1_MiB).count();
  EXPECT_EQ(code_of(pool.try_deallocate(behind - 1, stream)), errc::foreign_pointer);
  EXPECT_EQ(pool.try_deallocate(behind, stream).error(),
            (error{{.code = errc::foreign_pointer,
                    .detail = detail::hexadecimal(reinterpret_cast<std::uintptr_t>(behind)) +
                              " is not memory of this pool"}}));
  ASSERT_TRUE(pool.try_deallocate(p, stream));
  EXPECT_EQ(
      pool.try_deallocate(inside, stream).error(),
      (error{{.code = errc::foreign_pointer, .detail = there + " is not memory of this pool"}}));
  EXPECT_EQ(
      pool.try_deallocate(p, stream).error(),
      (error{{.code = errc::double_free, .detail = told_of(p, "1 MiB, tag \"scratch\"", stream)}}));
}

TEST_P(stream_pool_memory_test, a_second_free_is_refused) {
  auto pool = make();
  const auto stream = make_stream();
  auto owned = pool.allocate_owned(1_MiB, stream).value();
  ASSERT_TRUE(owned.free());
  EXPECT_EQ(code_of(owned.free()), errc::already_freed);
  EXPECT_EQ(code_of(owned.free(stream)), errc::already_freed);
  void* const raw = pool.allocate(1_MiB, stream);
  ASSERT_TRUE(pool.try_deallocate(raw, 1_MiB, stream));
  EXPECT_EQ(code_of(pool.try_deallocate(raw, 1_MiB, stream)), errc::double_free);
  pool.deallocate(raw, 1_MiB, stream);
  const auto reports = heard.take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].code(), errc::double_free);
  EXPECT_EQ(pool.stats().value().used, 0_B) << "counted once";
}

TEST_P(stream_pool_memory_test, pointers_of_others_are_refused) {
  auto pool = make();
  auto other = make();
  const auto stream = make_stream();
  void* const theirs = other.allocate(1_MiB, stream);
  void* const ours = pool.allocate(1_MiB, stream);
  int host = 0;
  EXPECT_EQ(code_of(pool.try_deallocate(theirs, 1_MiB, stream)), errc::foreign_pointer);
  EXPECT_EQ(code_of(pool.try_deallocate(&host, 4_B, stream)), errc::foreign_pointer);
  EXPECT_EQ(code_of(pool.try_deallocate(static_cast<char*>(ours) + 512, 1_MiB, stream)),
            errc::foreign_pointer);
  EXPECT_EQ(other.stats().value().active_allocations, 1u);
  EXPECT_TRUE(other.try_deallocate(theirs, 1_MiB, stream));
  EXPECT_TRUE(pool.try_deallocate(ours, 1_MiB, stream));
}

TEST_P(stream_pool_memory_test, another_size_is_told_and_freed_all_the_same) {
  auto pool = make();
  const auto stream = make_stream();
  void* const memory = pool.allocate(1_MiB, stream);
  const auto told = pool.try_deallocate(memory, 2_MiB, stream);
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error(),
            (error{{.code = errc::invalid_argument,
                    .requested = 2_MiB,
                    .detail = "the block was freed, but it was allocated with 1 MiB"}}));
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
  EXPECT_EQ(pool.stats().value().used, 0_B);
}

TEST_P(stream_pool_memory_test, memory_is_freed_without_its_size_too) {
  auto pool = make();
  const auto stream = make_stream();
  void* const memory = pool.allocate(3_MiB, stream);
  EXPECT_TRUE(pool.try_deallocate(nullptr, stream));
  EXPECT_TRUE(pool.try_deallocate(memory, stream));
  EXPECT_EQ(code_of(pool.try_deallocate(memory, stream)), errc::double_free);
  pool.deallocate(pool.allocate(1_MiB, stream), stream);
  const auto now = pool.stats().value();
  EXPECT_EQ(now.active_allocations, 0u);
  EXPECT_EQ(now.active_bytes, 0_B);
  EXPECT_EQ(now.used, 0_B);
}

TEST_P(stream_pool_memory_test, a_handle_that_was_moved_from_says_so) {
  auto pool = make();
  const auto stream = make_stream();
  const auto other = std::move(pool);
  EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::moved_from);  // NOLINT
  EXPECT_EQ(code_of(pool.allocate_owned(1_MiB, stream)), errc::moved_from);
  EXPECT_EQ(code_of(pool.import_pointer({}, stream)), errc::moved_from);
  EXPECT_EQ(code_of(pool.try_deallocate(nullptr, stream)), errc::moved_from);
  EXPECT_EQ(code_of(pool.stats()), errc::moved_from);
  EXPECT_EQ(code_of(pool.trim()), errc::moved_from);
  EXPECT_EQ(code_of(pool.threshold()), errc::moved_from);
  EXPECT_EQ(code_of(pool.enable_peer(gpu())), errc::moved_from);
  EXPECT_EQ(code_of(pool.disable_peer(gpu())), errc::moved_from);
  EXPECT_EQ(code_of(pool.peer_access(gpu())), errc::moved_from);
  EXPECT_EQ(code_of(pool.export_descriptor()), errc::moved_from);
  EXPECT_EQ(code_of(pool.close()), errc::moved_from);
  EXPECT_EQ(code_of(pool.record_stream(nullptr, stream)), errc::moved_from);
  EXPECT_FALSE(pool);
  EXPECT_THROW(static_cast<void>(pool.device()), failure);
  EXPECT_THROW(static_cast<void>(pool.config()), failure);
  EXPECT_THROW(static_cast<void>(pool.is_default()), failure);
  EXPECT_THROW(static_cast<void>(pool.is_imported()), failure);
  EXPECT_THROW(static_cast<void>(pool.handle()), failure);
  EXPECT_EQ(to_string(pool), "stream_pool, closed or moved from");
  EXPECT_THROW(static_cast<void>(stream_allocation{}.pool()), failure);
  EXPECT_THROW(static_cast<void>(stream_allocation{}.stream()), failure);
  EXPECT_TRUE(other);
  EXPECT_TRUE(other.close());
  EXPECT_FALSE(other) << "closed";
}

TEST_P(stream_pool_memory_test, alignments_are_kept_or_refused) {
  auto pool = make();
  const auto stream = make_stream();
  void* const shift = pool.allocate(512_B, stream);  // so that nothing is aligned by chance
  for (const bytes alignment : {1_B, 256_B, 512_B, 4_KiB, 64_KiB, 2_MiB}) {
    auto memory = pool.allocate_owned(1000_B, stream, alignment).value();
    EXPECT_EQ(address_of(memory.data()) % alignment.count(), 0u) << alignment.count();
    write(stream, memory.data(), 1000_B, 4);
    EXPECT_EQ(wrong(memory.data(), 1000_B, 4), 0u);
  }
  EXPECT_TRUE(pool.try_deallocate(shift, 512_B, stream));
  for (const bytes alignment : {0_B, 3_B, 768_B, 4_MiB}) {
    EXPECT_EQ(code_of(pool.try_allocate(1_KiB, stream, alignment)), errc::bad_alignment);
  }
  EXPECT_EQ(pool.try_allocate(1_KiB, stream, 768_B).error(),
            (error{{.code = errc::bad_alignment,
                    .requested = 1_KiB,
                    .detail = "alignment must be a power of two of at most 2 MiB, got 768"}}));
  EXPECT_EQ(pool.try_allocate(bytes::max(), stream, 2_MiB).error(),
            (error{{.code = errc::size_overflow, .requested = bytes::max()}}));
  EXPECT_EQ(pool.try_allocate(bytes::max(), stream).error(),
            (error{{.code = errc::size_overflow, .requested = bytes::max()}}))
      << "there is no such number of the driver's units";
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
}

TEST_P(stream_pool_memory_test, streams_of_another_runtime_are_refused) {
  auto pool = make();
  const auto elsewhere = runtime::open_table(*cu, "another", machine).value();
  const auto stream = weir::stream::create(elsewhere->device(device_id{0}).value()).value();
  EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::bad_stream);
  const auto own = make_stream();
  auto memory = pool.allocate_owned(1_MiB, own).value();
  EXPECT_EQ(code_of(memory.free(stream)), errc::bad_stream);
  EXPECT_TRUE(memory) << "still owned";
}

TEST_P(stream_pool_memory_test, an_owner_may_outlive_its_stream) {
  auto pool = make();
  auto stream = std::make_optional(make_stream());
  auto memory = pool.allocate_owned(1_MiB, *stream).value();
  auto second = pool.allocate_owned(1_MiB, *stream).value();
  const stream_ref closed_stream = *stream;
  write(closed_stream, memory.data(), 1_MiB, 1);
  stream.reset();
  EXPECT_EQ(code_of(memory.free(closed_stream)), errc::bad_stream);
  EXPECT_TRUE(memory.free()) << "waits for the device";
  EXPECT_EQ(pool.stats().value().used, 1_MiB);
}

// --- Maximum ------------------------------------------------------------------------------------

TEST_P(stream_pool_memory_test, more_than_the_maximum_is_out_of_memory) {
  auto pool = make({.max = 64_MiB});
  const auto stream = make_stream();
  const auto refused = pool.try_allocate(65_MiB, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 65_MiB);
  EXPECT_THAT(refused.error().detail(), ::testing::HasSubstr("at most 64 MiB"));
  EXPECT_THROW(static_cast<void>(pool.allocate(65_MiB, stream)), std::bad_alloc);
  auto most = pool.allocate_owned(48_MiB, stream).value();
  EXPECT_EQ(code_of(pool.try_allocate(48_MiB, stream)), errc::out_of_memory) << "together too much";
  ASSERT_TRUE(most.free());
  EXPECT_TRUE(pool.allocate_owned(48_MiB, stream)) << "the pool is as good as before";
}

TEST_P(stream_pool_memory_test, idle_memory_is_released_before_memory_is_exhausted) {
  // Two streams free a half each: neither half is enough.
  auto pool = make({.max = 128_MiB, .reuse_opportunistic = false});
  const auto first = make_stream();
  const auto second = make_stream();
  const auto third = make_stream();
  auto a = pool.allocate_owned(64_MiB, first).value();
  auto b = pool.allocate_owned(64_MiB, second).value();
  write(first, a.data(), 1_MiB, 1);
  write(second, b.data(), 1_MiB, 2);
  ASSERT_TRUE(a.free());
  ASSERT_TRUE(b.free());
  ASSERT_TRUE(first.synchronize());
  ASSERT_TRUE(second.synchronize());
  auto whole = pool.allocate_owned(128_MiB, third);
  ASSERT_TRUE(whole) << whole.error().message();
  write(third, whole->data(), 1_MiB, 3);
  EXPECT_EQ(wrong(whole->data(), 1_MiB, 3), 0u);
}

// --- Closing ------------------------------------------------------------------------------------

TEST_P(stream_pool_memory_test, closing_says_what_is_left_and_leaves_it_good) {
  auto pool = make();
  auto copy = pool;
  const auto stream = make_stream();
  auto owned = pool.allocate_owned(1_MiB, stream).value();
  void* const raw = pool.allocate(2_MiB, stream);
  const auto remains = pool.close().value();
  EXPECT_EQ(remains.allocations, 2u);
  EXPECT_EQ(remains.size, 3_MiB);
  EXPECT_EQ(copy.handle(), nullptr);
  EXPECT_EQ(code_of(copy.close()), errc::closed);
  EXPECT_EQ(code_of(copy.try_allocate(1_MiB, stream)), errc::closed);
  EXPECT_EQ(code_of(copy.stats()), errc::closed);
  EXPECT_EQ(code_of(copy.trim()), errc::closed);
  EXPECT_EQ(code_of(copy.threshold()), errc::closed);
  write(stream, raw, 2_MiB, 9);
  EXPECT_EQ(wrong(raw, 2_MiB, 9), 0u);
  EXPECT_TRUE(copy.try_deallocate(raw, 2_MiB, stream));
  EXPECT_TRUE(owned.free());
}

TEST_P(stream_pool_memory_test, a_pool_with_nothing_left_closes_with_nothing_to_say) {
  auto pool = make({.initial = 32_MiB});
  const auto stream = make_stream();
  EXPECT_TRUE(pool.allocate_owned(1_MiB, stream));
  EXPECT_EQ(pool.close().value(), stream_pool_remains{});
}

TEST_P(stream_pool_memory_test, raw_memory_that_outlives_all_handles_is_reported) {
  const auto stream = make_stream();
  void* raw = nullptr;
  {
    auto pool = make();
    raw = pool.allocate(3_MiB, stream);
  }
  const auto reports = heard.take();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0],
            (error{{.code = errc::still_live,
                    .requested = 3_MiB,
                    .detail = "a stream pool was closed with 1 live blocks of 3 MiB\n  " +
                              told_of(raw, "3 MiB", stream)}}));
  WEIR_OK(cu->mem_free_async(address_of(raw), stream.handle()));
}

// --- The default pool ---------------------------------------------------------------------------

TEST_P(stream_pool_memory_test, a_device_has_one_default_pool) {
  auto pool = stream_pool::default_of(gpu()).value();
  EXPECT_EQ(pool, stream_pool::default_of(gpu()).value());
  EXPECT_NE(pool, make());
  EXPECT_TRUE(pool.is_default());
  EXPECT_FALSE(pool.is_imported());
  EXPECT_FALSE(make().is_default());
  EXPECT_EQ(pool.config(), stream_pool_config{.threshold = 0_B}) << "the driver's own";
  CUmemoryPool theirs = nullptr;
  WEIR_OK(cu->device_get_default_mem_pool(&theirs, device));
  EXPECT_EQ(pool.handle(), theirs);
  EXPECT_EQ(code_of(pool.close()), errc::not_permitted);
  EXPECT_EQ(code_of(pool.export_descriptor()), errc::not_supported);
  const auto stream = make_stream();
  EXPECT_TRUE(pool.allocate_owned(1_MiB, stream)) << "as good as before";
}

TEST_P(stream_pool_memory_test, stream_alloc_and_stream_free_use_it) {
  const auto stream = make_stream();
  const auto other = make_stream();
  auto memory = stream_alloc(1_MiB, stream).value();
  EXPECT_EQ(memory.pool(), stream_pool::default_of(gpu()).value());
  write(stream, memory.data(), 1_MiB, 6);
  EXPECT_EQ(wrong(memory.data(), 1_MiB, 6), 0u);
  EXPECT_GE(memory.pool().stats().value().used, 1_MiB);
  EXPECT_TRUE(stream_free(memory));
  EXPECT_EQ(code_of(stream_free(memory)), errc::already_freed);
  memory = stream_alloc(1_MiB, stream).value();
  order(stream, other);
  EXPECT_TRUE(stream_free(memory, other));
  EXPECT_EQ(memory.pool().stats().value().active_allocations, 0u) << "the memory really went";
  EXPECT_EQ(code_of(stream_alloc(0_B, stream)), errc::invalid_argument);
}

TEST_P(stream_pool_memory_test, the_default_pool_keeps_its_books_between_handles) {
  const auto stream = make_stream();
  void* const raw = stream_pool::default_of(gpu()).value().allocate(1_MiB, stream);
  auto again = stream_pool::default_of(gpu()).value();
  EXPECT_EQ(again.stats().value().active_allocations, 1u);
  EXPECT_TRUE(again.try_deallocate(raw, 1_MiB, stream));
  EXPECT_EQ(code_of(again.try_deallocate(raw, 1_MiB, stream)), errc::double_free);
}

// --- As a resource, and with threads ------------------------------------------------------------

TEST_P(stream_pool_memory_test, is_a_resource) {
  auto pool = make();
  const auto stream = make_stream();
  const any_resource memory = pool;
  EXPECT_EQ(memory, any_resource{pool});
  EXPECT_NE(memory, any_resource{make()});
  EXPECT_EQ(memory.device(), gpu());
  void* const block = memory.allocate(1_MiB, stream);
  EXPECT_EQ(pool.stats().value().active_allocations, 1u);
  memory.deallocate(block, 1_MiB, stream);
  EXPECT_EQ(pool.stats().value().active_allocations, 0u);
}

TEST_P(stream_pool_memory_test, many_threads_share_a_pool) {
  auto pool = make();
  constexpr int threads = 4;
  constexpr int rounds = 50;
  std::vector<std::size_t> wrong_words(threads, 0);
  std::vector<std::thread> crew;
  for (int t = 0; t < threads; ++t) {
    crew.emplace_back([&, t] {
      ASSERT_EQ(CUDA_SUCCESS, cu->ctx_set_current(context));
      const auto stream = make_stream();
      const auto size = bytes{64 * kib};
      for (int i = 0; i < rounds; ++i) {
        const word value = static_cast<word>(t * 1000 + i);
        auto memory = pool.allocate_owned(size, stream).value();
        ASSERT_EQ(CUDA_SUCCESS, fill(address_of(memory.data()), value, 16 * kib, stream.handle()));
        word last = 0;
        ASSERT_EQ(CUDA_SUCCESS,
                  cu->memcpy_dtoh_async(&last, address_of(memory.data()) + 64 * kib - sizeof(word),
                                        sizeof(word), stream.handle()));
        ASSERT_TRUE(stream.synchronize());
        if (last != value) ++wrong_words[static_cast<std::size_t>(t)];
      }
    });
  }
  for (auto& each : crew) each.join();
  EXPECT_THAT(wrong_words, ::testing::Each(0u));
  const auto now = pool.stats().value();
  EXPECT_EQ(now.active_allocations, 0u);
  EXPECT_EQ(now.used, 0_B);
  EXPECT_GE(now.active_allocations_peak, 1u);
  EXPECT_LE(now.active_allocations_peak, static_cast<std::uint64_t>(threads));
}

}  // namespace
}  // namespace weir::testing_support::stream_pools
