// SPDX-License-Identifier: Apache-2.0
// pooled_buffer: what it owns, for how long, and whom it outlives.
#include "weir/pool/pooled_buffer.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <optional>
#include <sstream>
#include <thread>

#include "pools/pool_fixture.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class pooled_buffer_test : public block_pool_test {};

struct alignas(1024) wide_pooled {
  char data[3000];
};

TEST_F(pooled_buffer_test, is_an_array_of_its_type) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  const auto floats = pooled_buffer<float>::create(pool, 1000, stream).value();
  EXPECT_TRUE(floats);
  EXPECT_FALSE(floats.empty());
  EXPECT_EQ(floats.size(), 1000u);
  EXPECT_EQ(floats.size_bytes(), 4000_B);
  EXPECT_EQ(floats.stream(), stream.ref());
  EXPECT_EQ(pool.stats().requested.current, 4000_B);
  write(stream, floats.data(), floats.size_bytes());
  const auto wides = pooled_buffer<wide_pooled>::create(pool, 3, stream).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(wides.data()) % alignof(wide_pooled), 0u);
  EXPECT_EQ(wides.size_bytes().count(), 3 * sizeof(wide_pooled));
}

TEST_F(pooled_buffer_test, its_span_is_its_elements) {
  const auto stream = new_stream();
  const auto pool = pinned_pool::create(gpu()).value();
  auto buffer = pooled_buffer<int>::create(pool, 64, stream).value();
  EXPECT_EQ(buffer.span().data(), buffer.data());
  EXPECT_EQ(buffer.span().size(), 64u);
  std::fill_n(buffer.data(), buffer.size(), 7);
  EXPECT_EQ(buffer.data()[63], 7);
  ASSERT_TRUE(buffer.free());
  EXPECT_TRUE(buffer.empty());
  EXPECT_TRUE(buffer.span().empty());
  EXPECT_EQ(buffer.data(), nullptr);
  const pooled_buffer<int> none;
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.span().empty());
}

TEST_F(pooled_buffer_test, what_was_released_is_the_callers_to_free) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  auto memory = pooled_memory::create(pool, 4_KiB, stream).value();
  void* const address = memory.release();
  EXPECT_FALSE(memory);
  EXPECT_FALSE(memory.is_freed());
  EXPECT_EQ(code_of(memory.free()), errc::already_freed);
  EXPECT_EQ(pool.stats().blocks.current, 1u);
  EXPECT_TRUE(pool.try_deallocate(address, 4_KiB, stream));
}

TEST_F(pooled_buffer_test, a_destructor_that_cannot_free_names_the_memory) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  std::ostringstream address;
  {
    const auto memory = pooled_memory::create(pool, 4_KiB, stream).value();
    address << memory.data();
    ASSERT_TRUE(pool.try_deallocate(memory.data()));  // behind its back
  }
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].code(), errc::double_free);
  EXPECT_EQ(reports[0].requested(), 4_KiB);
  EXPECT_EQ(reports[0].detail(),
            address.str() + ", 4 KiB, stream " + std::to_string(stream.id().number()));
}

TEST_F(pooled_buffer_test, no_elements_or_too_many_are_refused) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  EXPECT_EQ(code_of(pooled_buffer<int>::create(pool, 0, stream)), errc::invalid_argument);
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(code_of(pooled_buffer<int>::create(pool, most / 2, stream)), errc::size_overflow);
  EXPECT_EQ(code_of(pooled_buffer<char>::create(pool, most, stream)), errc::size_overflow);
  EXPECT_EQ(pool.stats().blocks.peak, 0u);
}

TEST_F(pooled_buffer_test, goes_back_once) {
  const auto stream = new_stream();
  const auto other = new_stream();
  const auto pool = make_bins();
  {
    auto first = pooled_buffer<int>::create(pool, 100, stream).value();
    auto second = std::move(first);
    EXPECT_EQ(second.size(), 100u);
    EXPECT_EQ(second.stream(), stream.ref());
    EXPECT_FALSE(first);  // NOLINT: what moving leaves is promised
    EXPECT_EQ(first.size(), 0u);
    EXPECT_EQ(code_of(first.free()), errc::moved_from);
    EXPECT_EQ(code_of(first.record_stream(other)), errc::moved_from);
    first = std::move(second);
    EXPECT_EQ(first.size(), 100u);
    EXPECT_EQ(first.stream(), stream.ref());
    EXPECT_FALSE(second);  // NOLINT
    EXPECT_EQ(second.size(), 0u);
    auto& same = first;
    first = std::move(same);
    EXPECT_EQ(first.size(), 100u);
    EXPECT_EQ(pool.stats().blocks.current, 1u);
    second = pooled_buffer<int>::create(pool, 200, stream).value();
    first = std::move(second);  // the old one goes back
    EXPECT_EQ(pool.stats().blocks.current, 1u);
    EXPECT_EQ(pool.stats().frees, 1u);
    EXPECT_TRUE(first.free(other));
    EXPECT_FALSE(first);
    EXPECT_EQ(code_of(first.free()), errc::already_freed);
    EXPECT_EQ(code_of(first.record_stream(other)), errc::already_freed);
  }
  EXPECT_EQ(pool.stats().frees, 2u);
}

TEST_F(pooled_buffer_test, that_it_was_freed_moves_along) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  auto freed = pooled_memory::create(pool, 4_KiB, stream).value();
  ASSERT_TRUE(freed.free());
  EXPECT_TRUE(freed.is_freed());
  auto next = std::move(freed);
  EXPECT_TRUE(next.is_freed());
  EXPECT_FALSE(freed.is_freed());  // NOLINT: what moving leaves is promised
  EXPECT_EQ(code_of(freed.free()), errc::moved_from);
  pooled_memory last;
  last = std::move(next);
  EXPECT_EQ(code_of(last.free()), errc::already_freed);
  EXPECT_EQ(code_of(next.free()), errc::moved_from);  // NOLINT
  last = pooled_memory::create(pool, 4_KiB, stream).value();
  EXPECT_FALSE(last.is_freed()) << "it owns again";
  pooled_memory none;
  EXPECT_EQ(none.release(), nullptr);
  EXPECT_EQ(code_of(none.free()), errc::moved_from) << "there was nothing to release";
}

TEST_F(pooled_buffer_test, giving_back_to_a_stream_that_is_refused_changes_nothing) {
  const auto stream = new_stream();
  const auto elsewhere = stream_ref::per_thread(gpu(1));
  const auto pool = make_bins();
  auto buffer = pooled_buffer<int>::create(pool, 100, stream).value();
  EXPECT_EQ(code_of(buffer.free(elsewhere)), errc::bad_stream);
  EXPECT_TRUE(buffer);
  EXPECT_EQ(pool.stats().blocks.current, 1u);
}

TEST_F(pooled_buffer_test, keeps_its_pool_and_outlives_its_stream) {
  auto stream = std::make_optional(new_stream());
  const bytes before = used();
  std::optional<pooled_buffer<int>> buffer;
  {
    const auto pool = make_bins();
    pool.deallocate(pool.allocate(8_MiB, *stream), *stream);
    buffer = pooled_buffer<int>::create(pool, 1 << 20, *stream).value();
  }
  write(*stream, buffer->data(), buffer->size_bytes());
  stream.reset();
  EXPECT_EQ(used() - before, 12_MiB);
  buffer.reset();
  EXPECT_EQ(used(), before);
}

TEST_F(pooled_buffer_test, its_memory_is_not_reused_before_its_work_is_done) {
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = make_bins();
  int* first = nullptr;
  {
    const auto buffer = pooled_buffer<int>::create(pool, 1000, one).value();
    first = buffer.data();
    write(one, first, buffer.size_bytes());
  }
  const auto next = pooled_buffer<int>::create(pool, 1000, two).value();
  EXPECT_NE(next.data(), first);
  write(two, next.data(), next.size_bytes());
}

TEST_F(pooled_buffer_test, is_zeroed_only_if_asked) {
  const auto stream = new_stream();
  const auto pool = pinned_pool::create(gpu()).value();
  const int* address = nullptr;
  {
    const auto plain = pooled_buffer<int>::create(pool, 64, stream).value();
    address = plain.data();
    std::fill_n(plain.data(), 64, 1);
  }
  static_cast<void>(pooled_memory::create(pool, 4_KiB, stream).value());
  EXPECT_EQ(machine->calls(call::memset_d8_async), 0u);
  machine->run_until_idle();
  const auto zeros = pooled_buffer<int>::create(pool, 64, stream, contents::zeroed).value();
  ASSERT_EQ(zeros.data(), address);
  EXPECT_EQ(std::count(address, address + 64, 0), 64) << "pinned memory is the host's at once";
  EXPECT_EQ(machine->calls(call::memset_d8_async), 0u);
  zeros.data()[0] = 42;
  machine->host_write(zeros.data(), sizeof(int));
  machine->run_until_idle();
  EXPECT_EQ(zeros.data()[0], 42) << "nothing is queued that would overwrite it";
}

TEST_F(pooled_buffer_test, a_fill_that_fails_gives_the_block_back) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  machine->fail(call::memset_d8_async, 1, driver::CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_FALSE(pooled_buffer<int>::create(pool, 64, stream, contents::zeroed));
  EXPECT_EQ(pool.stats().blocks.current, 0u);
  EXPECT_EQ(pool.stats().cached, 512_B);
}

/// A hit needs no context, and a fill does.
TEST_F(pooled_buffer_test, where_no_context_can_be_entered_nothing_is_filled) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  static_cast<void>(pooled_buffer<int>::create(pool, 64, stream).value());
  machine->fail(call::ctx_get_current, 1, driver::CUDA_ERROR_NOT_PERMITTED);
  const auto refused = pooled_buffer<int>::create(pool, 64, stream, contents::zeroed);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native(), static_cast<int>(driver::CUDA_ERROR_NOT_PERMITTED));
  EXPECT_EQ(refused.error().call(), "cuCtxGetCurrent");
  EXPECT_EQ(machine->calls(call::memset_d8_async), 0u);
  EXPECT_EQ(pool.stats().blocks.current, 0u) << "the block went back";
  EXPECT_EQ(pool.stats().cached, 512_B);
  EXPECT_EQ(pool.stats().hits, 1u);
  EXPECT_TRUE(pooled_buffer<int>::create(pool, 64, stream, contents::zeroed));
  EXPECT_EQ(machine->calls(call::memset_d8_async), 1u);
}

TEST_F(pooled_buffer_test, a_closed_pool_serves_nobody_and_takes_back_what_is_out) {
  const auto stream = new_stream();
  const bytes before = used();
  const auto pool = make_bins();
  pool.deallocate(pool.allocate(8_MiB, stream), stream);
  auto buffer = std::make_optional(pooled_buffer<char>::create(pool, 4 << 20, stream).value());
  ASSERT_TRUE(pool.close());
  ASSERT_TRUE(pool.close());
  EXPECT_EQ(code_of(pool.try_allocate(1_KiB, stream)), errc::closed);
  EXPECT_EQ(code_of(pooled_buffer<int>::create(pool, 1, stream)), errc::closed);
  EXPECT_EQ(used() - before, 4_MiB);
  write(stream, buffer->data(), buffer->size_bytes());
  buffer.reset();
  EXPECT_EQ(used(), before);
  EXPECT_EQ(contradiction(pool.stats()), "");
  auto copy = pool;
  const auto moved = std::move(copy);
  EXPECT_EQ(code_of(copy.try_allocate(1_KiB, stream)), errc::moved_from);  // NOLINT
  EXPECT_EQ(code_of(copy.trim()), errc::moved_from);
  EXPECT_THROW(static_cast<void>(copy.stats()), failure);
}

TEST_F(pooled_buffer_test, what_a_closed_pool_cannot_release_is_reported_and_freed_all_the_same) {
  const auto stream = new_stream();
  const auto pool = make_bins();
  void* const p = pool.allocate(1_MiB, stream);
  ASSERT_TRUE(pool.close());
  machine->fail(call::mem_free, 1, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(pool.try_deallocate(p, 1_MiB, stream));
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].call(), "cuMemFree");
  EXPECT_EQ(reports[0].native(), static_cast<int>(driver::CUDA_ERROR_UNKNOWN));
  EXPECT_EQ(pool.stats().frees, 1u);
  EXPECT_EQ(pool.stats().cached, 1_MiB);
  EXPECT_EQ(pool.empty_cache().value(), 1_MiB);
}

TEST_F(pooled_buffer_test, what_is_live_at_the_pools_end_is_reported) {
  const auto stream = new_stream();
  const bytes before = used();
  {
    const auto pool = make_bins();
    static_cast<void>(pool.allocate(3_MiB, stream));
  }
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].code(), errc::still_live);
  EXPECT_EQ(reports[0].requested(), 3_MiB);
  EXPECT_EQ(used(), before);
}

TEST_F(pooled_buffer_test, a_driver_that_is_gone_is_no_trouble) {
  const auto stream = new_stream();
  {
    const auto pool = make_bins();
    auto buffer = pooled_buffer<int>::create(pool, 100, stream).value();
    const auto kept = pooled_buffer<int>::create(pool, 100, stream).value();
    static_cast<void>(pool.allocate(1_MiB, stream));
    ASSERT_TRUE(buffer.free());
    machine->shut_down();
    EXPECT_EQ(code_of(pool.try_allocate(64_MiB, stream)), errc::driver_gone);
  }
  EXPECT_THAT(heard.take(), IsEmpty());
}

TEST_F(pooled_buffer_test, a_lost_device_is_an_error_and_no_more) {
  const auto stream = new_stream();
  {
    const auto pool = make_bins();
    auto buffer = pooled_buffer<int>::create(pool, 100, stream).value();
    machine->lose_device(device_id{0});
    EXPECT_EQ(code_of(pool.try_allocate(64_MiB, stream)), errc::device_lost);
    EXPECT_TRUE(buffer.free());
    EXPECT_EQ(code_of(pool.empty_cache()), errc::device_lost);
    EXPECT_EQ(pool.stats().cached, 512_B);
    EXPECT_THAT(heard.take(), IsEmpty()) << "all of it was returned";
  }
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1)) << "the block went with the device";
  EXPECT_EQ(reports[0].code(), errc::device_lost);
}

TEST_F(pooled_buffer_test, a_forked_child_is_told_and_touches_nothing) {
  const auto stream = new_stream();
  auto pool = std::make_optional(make_bins());
  auto buffer = std::make_optional(pooled_buffer<int>::create(*pool, 100, stream).value());
  void* const p = pool->allocate(64_KiB, stream);
  pool->deallocate(pool->allocate(128_KiB, stream), stream);
  const auto buffers = buffer_pool::create().value();
  static_cast<void>(buffers.take(4_KiB, stream).value());
  const auto unused = make_bins();  // it caches nothing that a call could stumble over
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    const auto expect_gone = [&](const auto& outcome, int number) {
      if (wrong == 0 && (outcome || outcome.code() != errc::driver_gone)) wrong = number;
    };
    expect_gone(pool->try_allocate(128_KiB, stream), 1);  // a hit in the parent
    expect_gone(pool->try_deallocate(p, stream), 2);
    expect_gone(pool->record_stream(p, stream), 3);
    expect_gone(pool->trim(), 4);
    expect_gone(pool->empty_cache(), 10);
    expect_gone(pool->set_threshold({}), 5);
    expect_gone(pool->close(), 6);
    expect_gone(buffer->free(), 7);
    expect_gone(pool->release_stream(stream), 11);
    expect_gone(bin_pool::create(gpu()), 12);
    expect_gone(buffers.take(4_KiB, stream), 13);
    expect_gone(buffers.try_take_cached(4_KiB, stream), 14);
    expect_gone(buffers.empty_cache(), 15);
    expect_gone(buffers.close(), 16);
    expect_gone(unused.trim(), 18);
    expect_gone(unused.empty_cache(), 19);
    expect_gone(unused.set_threshold({}), 20);
    expect_gone(unused.close(), 21);
    pool->reset_peaks();
    pool->reset_counters();
    if (pool->threshold() != 0_B) wrong = 17;
    if (pool->stats().allocations != 0) wrong = 8;
    buffer.reset();
    pool.reset();
    if (!heard.take().empty()) wrong = 9;
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  pool->deallocate(p, stream);
}

}  // namespace
}  // namespace weir::testing_support
