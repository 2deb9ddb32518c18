// SPDX-License-Identifier: Apache-2.0
// The C ABI's caching allocator, its pools, snapshots and recordings, each argument told apart from
// the others.
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <utility>

#include "c_fixture.hpp"
#include "support/scratch.hpp"
#include "weir/observe/tag.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class c_allocators : public c_memory {
 protected:
  weir_stream* legacy = nullptr;
};

TEST_F(c_allocators, are_of_the_device_and_the_options_that_were_named) {
  std::int32_t number = -1;
  EXPECT_OK(weir_allocator_get_device(memory, &number));
  EXPECT_EQ(number, 0);
  EXPECT_OK(weir_allocator_get_device(far_memory, &number));
  EXPECT_EQ(number, 1);

  weir_allocator* limited = nullptr;
  std::uint64_t most = 0;
  ASSERT_OK(weir_allocator_create(runtime, 1, "heap_limit=48MiB", &limited));
  EXPECT_OK(weir_allocator_get_limit(limited, &most));
  EXPECT_EQ(most, 48 * mib);
  EXPECT_OK(weir_allocator_close(limited));
  EXPECT_EQ(weir_allocator_create(runtime, 0, "heap_limit=much", &limited), weir_error_bad_option);
}

TEST_F(c_allocators, allocate_what_was_asked_for_on_the_stream_that_was_named) {
  const auto expect_block = [&](void* pointer, std::uint64_t size, std::uint64_t of_stream) {
    const weir_block_info block = block_at(pointer);
    EXPECT_EQ(block.state, weir_block_live);
    EXPECT_EQ(block.address, reinterpret_cast<std::uintptr_t>(pointer));
    EXPECT_EQ(block.requested, size);
    EXPECT_EQ(block.stream, of_stream);
    EXPECT_EQ(block.pool, 0u);
    std::uint64_t told = 0;
    EXPECT_OK(weir_allocator_size_of(memory, pointer, &told));
    EXPECT_EQ(told, size);
    EXPECT_OK(weir_allocator_free(memory, pointer));
  };
  void* p = nullptr;
  for (int round = 0; round < 2; ++round) {  // the second is served by the thread's cache
    ASSERT_OK(weir_allocator_allocate(memory, 1000, stream, &p));
    expect_block(p, 1000, id(stream));
    ASSERT_OK(weir_allocator_allocate(memory, 3 * mib, other, &p));
    expect_block(p, 3 * mib, id(other));
    ASSERT_OK(weir_allocator_allocate(memory, 2000, nullptr, &p));
    expect_block(p, 2000, legacy_id());
  }
  ASSERT_OK(weir_allocator_allocate_aligned(memory, 3000, 64 * kib, other, &p));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % (64 * kib), 0u);
  expect_block(p, 3000, id(other));
  ASSERT_OK(weir_allocator_allocate_native(memory, 5000, native(stream), &p));
  expect_block(p, 5000, id(stream));
  ASSERT_OK(weir_allocator_allocate_native(memory, 6000, nullptr, &p));
  expect_block(p, 6000, legacy_id());
}

TEST_F(c_allocators, serve_a_size_and_stream_from_the_threads_cache) {
  void* const first = allocate(4096, stream);
  EXPECT_OK(weir_allocator_deallocate(memory, first, stream));
  EXPECT_EQ(stats().hits, 0u);
  void* const second = allocate(4096, other);
  EXPECT_NE(second, first);
  EXPECT_EQ(stats().hits, 0u);
  void* const third = allocate(4096, stream);
  EXPECT_EQ(third, first);
  EXPECT_EQ(stats().hits, 1u);
  EXPECT_OK(weir_allocator_deallocate(memory, second, other));
  EXPECT_OK(weir_allocator_deallocate(memory, third, stream));
  EXPECT_EQ(stats().frees, 3u);
}

TEST_F(c_allocators, serve_no_stream_from_the_cache_of_another) {
  ASSERT_OK(weir_stream_wrap(runtime, 0, nullptr, &legacy));
  const std::vector<weir_stream*> streams{nullptr, stream, other};
  for (weir_stream* const cached : streams) {
    for (weir_stream* const asking : streams) {
      if (asking == cached) continue;
      void* const first = allocate(4096, cached);
      occupy(cached == nullptr ? legacy : cached);  // else it may go to any stream
      EXPECT_OK(weir_allocator_deallocate(memory, first, cached));
      void* const second = allocate(4096, asking);
      EXPECT_NE(second, first);
      EXPECT_EQ(block_at(second).stream, asking == nullptr ? legacy_id() : id(asking));
      EXPECT_OK(weir_allocator_deallocate(memory, second, asking));
      EXPECT_EQ(allocate(4096, cached), first) << "it was kept for its stream";
      EXPECT_OK(weir_allocator_deallocate(memory, first, cached));
      wait_for_all();
      EXPECT_OK(weir_allocator_empty_cache(memory, nullptr));
    }
  }
  EXPECT_OK(weir_stream_close(legacy));
}

TEST_F(c_allocators, free_on_the_stream_that_is_named) {
  const auto bound_after = [&](const std::function<weir_error(void*)>& free) {
    void* const p = allocate(3 * mib, stream);
    occupy(stream);
    occupy(other);
    occupy(legacy);
    EXPECT_OK(free(p));
    const std::uint64_t bound = bound_to(p);
    wait_for_all();
    EXPECT_OK(weir_allocator_empty_cache(memory, nullptr));
    return bound;
  };
  ASSERT_OK(weir_stream_wrap(runtime, 0, nullptr, &legacy));
  EXPECT_EQ(bound_after([&](void* p) { return weir_allocator_deallocate(memory, p, other); }),
            id(other));
  EXPECT_EQ(bound_after([&](void* p) { return weir_allocator_deallocate(memory, p, nullptr); }),
            legacy_id());
  EXPECT_EQ(bound_after([&](void* p) {
              return weir_allocator_deallocate_sized(memory, p, 3 * mib, other);
            }),
            id(other));
  EXPECT_EQ(bound_after([&](void* p) { return weir_allocator_free(memory, p); }), id(stream));
  EXPECT_EQ(bound_after([&](void* p) {
              return weir_allocator_deallocate_native(memory, p, native(other));
            }),
            id(other));
  EXPECT_EQ(
      bound_after([&](void* p) { return weir_allocator_deallocate_native(memory, p, nullptr); }),
      legacy_id());
  void* const p = allocate(1000, stream);
  EXPECT_EQ(weir_allocator_deallocate_sized(memory, p, 1001, stream), weir_error_invalid_argument);
  EXPECT_EQ(weir_allocator_free(memory, p), weir_error_double_free) << "it was freed all the same";
  EXPECT_EQ(weir_allocator_deallocate(memory, &legacy, stream), weir_error_foreign_pointer);
  EXPECT_OK(weir_stream_close(legacy));
}

TEST_F(c_allocators, keep_memory_for_the_streams_that_were_recorded) {
  ASSERT_OK(weir_stream_wrap(runtime, 0, nullptr, &legacy));
  const auto pending_after = [&](const std::function<weir_error(void*)>& record) {
    void* const p = allocate(3 * mib, stream);
    EXPECT_OK(record(p));
    EXPECT_OK(weir_allocator_deallocate(memory, p, stream));
    const std::uint64_t pending = stats().pending;
    wait_for_all();
    EXPECT_OK(weir_allocator_empty_cache(memory, nullptr));
    return pending;
  };
  // Which stream is busy says which was recorded.
  occupy(other);
  EXPECT_EQ(pending_after([&](void*) { return weir_ok; }), 0u);
  occupy(other);
  EXPECT_EQ(pending_after([&](void* p) { return weir_allocator_record_stream(memory, p, other); }),
            3 * mib);
  occupy(legacy);
  EXPECT_EQ(
      pending_after([&](void* p) { return weir_allocator_record_stream(memory, p, nullptr); }),
      3 * mib);
  occupy(other);
  EXPECT_EQ(pending_after([&](void* p) {
              return weir_allocator_record_stream_native(memory, p, native(other));
            }),
            3 * mib);
  occupy(legacy);
  EXPECT_EQ(pending_after(
                [&](void* p) { return weir_allocator_record_stream_native(memory, p, nullptr); }),
            3 * mib);
  EXPECT_EQ(weir_allocator_record_stream(memory, this, other), weir_error_foreign_pointer);
  EXPECT_OK(weir_stream_close(legacy));
}

TEST_F(c_allocators, report_what_is_live_when_they_are_closed) {
  weir_allocator* leaking = nullptr;
  void* p = nullptr;
  ASSERT_OK(weir_allocator_create(runtime, 0, nullptr, &leaking));
  ASSERT_OK(weir_allocator_allocate(leaking, 3 * mib, stream, &p));
  EXPECT_GT(used(), 64 * mib);
  EXPECT_OK(weir_allocator_close(leaking));
  EXPECT_EQ(used(), 64 * mib) << "all of it went back";
  const auto errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), errc::still_live);
}

// --- Out of memory -------------------------------------------------------------------------------

/// What a handler was called with, and how often it says to try again.
struct asked {
  weir_allocator* memory = nullptr;
  std::uint64_t size = 0;
  weir_error why = 0;
  int calls = 0;
  int tries = 0;
  std::string message{};
};
std::int32_t ask(void* context, weir_allocator* memory, std::uint64_t size, weir_error why) {
  auto& by = *static_cast<asked*>(context);
  by.memory = memory;
  by.size = size;
  by.why = why;
  by.message = weir_last_error_message();
  return by.calls++ < by.tries ? 1 : 0;
}

TEST_F(c_allocators, ask_their_handler_when_there_is_no_memory) {
  asked by{.tries = 2};
  void* p = this;
  weir_pool* pool = nullptr;
  std::uint32_t limited = 0;
  ASSERT_OK(weir_pool_create(memory, "pool", 0, &pool));
  ASSERT_OK(weir_tag_named("c memory limited", &limited));
  ASSERT_OK(weir_allocator_set_tag_limit(memory, limited, mib));
  ASSERT_OK(weir_allocator_set_out_of_memory_handler(memory, ask, &by));
  const auto expect_asked = [&](std::uint64_t size, weir_error why) {
    EXPECT_EQ(by.memory, memory);
    EXPECT_EQ(by.size, size);
    EXPECT_EQ(by.why, why);
    EXPECT_EQ(by.calls, 3) << "twice it said to try again";
    EXPECT_THAT(by.message, HasSubstr(weir_error_name(why)));
    EXPECT_EQ(p, nullptr);
    by = {.tries = 2};
    p = this;
  };
  EXPECT_EQ(weir_allocator_allocate(memory, 2001 * mib, stream, &p), weir_error_out_of_memory);
  expect_asked(2001 * mib, weir_error_out_of_memory);
  EXPECT_EQ(weir_allocator_allocate_aligned(memory, 2002 * mib, 4096, stream, &p),
            weir_error_out_of_memory);
  expect_asked(2002 * mib, weir_error_out_of_memory);
  EXPECT_EQ(weir_allocator_allocate_native(memory, 2003 * mib, nullptr, &p),
            weir_error_out_of_memory);
  expect_asked(2003 * mib, weir_error_out_of_memory);
  EXPECT_EQ(weir_pool_allocate(pool, 2004 * mib, 0, stream, &p), weir_error_out_of_memory);
  expect_asked(2004 * mib, weir_error_out_of_memory);
  ASSERT_OK(weir_tag_set_current(limited, nullptr));
  EXPECT_EQ(weir_allocator_allocate(memory, 2 * mib, stream, &p), weir_error_out_of_memory);
  expect_asked(2 * mib, weir_error_out_of_memory);
  ASSERT_OK(weir_tag_set_current(0, nullptr));

  // Nothing but a lack of memory is its business, and no memory of another allocator's.
  EXPECT_EQ(weir_allocator_allocate_aligned(memory, 1, 3, stream, &p), weir_error_bad_alignment);
  EXPECT_EQ(weir_allocator_allocate(memory, UINT64_MAX, stream, &p), weir_error_size_overflow);
  EXPECT_EQ(weir_allocator_allocate(far_memory, 2001 * mib, elsewhere, &p),
            weir_error_out_of_memory);
  EXPECT_EQ(by.calls, 0);
  ASSERT_OK(weir_allocator_set_out_of_memory_handler(memory, nullptr, nullptr));
  EXPECT_EQ(weir_allocator_allocate(memory, 2001 * mib, stream, &p), weir_error_out_of_memory);
  EXPECT_EQ(by.calls, 0);
  EXPECT_OK(weir_pool_close(pool));
}

TEST_F(c_allocators, call_who_may_free_something_first) {
  struct holder {
    weir_allocator* memory;
    void* held;
    std::uint64_t needed;
    int calls;
  } keeps{memory, nullptr, 0, 0};
  ASSERT_OK(weir_allocator_set_limit(memory, 64 * mib));
  keeps.held = allocate(48 * mib, stream);
  weir_callback* registration = nullptr;
  const weir_reclaim_callback callback = [](void* context, std::uint64_t needed) -> std::int32_t {
    auto& by = *static_cast<holder*>(context);
    ++by.calls;
    by.needed = needed;
    if (by.held == nullptr) return 0;
    EXPECT_OK(weir_allocator_free(by.memory, by.held));
    by.held = nullptr;
    return 1;
  };
  ASSERT_OK(weir_allocator_on_out_of_memory(memory, callback, &keeps, &registration));
  void* const p = allocate(32 * mib, stream);
  EXPECT_EQ(keeps.calls, 1);
  EXPECT_EQ(keeps.needed, 32 * mib);
  void* q = nullptr;
  EXPECT_EQ(weir_allocator_allocate(memory, 40 * mib, stream, &q), weir_error_out_of_memory);
  EXPECT_EQ(keeps.calls, 2) << "what freed nothing is not asked again";
  EXPECT_OK(weir_callback_close(registration));
  EXPECT_EQ(weir_allocator_allocate(memory, 40 * mib, stream, &q), weir_error_out_of_memory);
  EXPECT_EQ(keeps.calls, 2);
  EXPECT_OK(weir_allocator_free(memory, p));
}

TEST_F(c_allocators, ask_a_callback_before_they_take_memory_from_the_driver) {
  struct holder {
    weir_allocator* memory;
    void* held;
    int calls;
    std::uint64_t needed;
  } keeps{memory, allocate(32 * mib, stream), 0, 0};
  const weir_reclaim_callback callback = [](void* context, std::uint64_t needed) -> std::int32_t {
    auto& by = *static_cast<holder*>(context);
    ++by.calls;
    by.needed = needed;
    if (by.held != nullptr) {
      EXPECT_OK(weir_allocator_free(by.memory, std::exchange(by.held, {})));
    }
    return 0;
  };
  weir_callback* registration = nullptr;
  ASSERT_OK(weir_allocator_before_growth(memory, callback, &keeps, &registration));
  void* const held = keeps.held;
  void* const p = allocate(32 * mib, stream);
  EXPECT_EQ(keeps.calls, 1);
  EXPECT_EQ(keeps.needed, 32 * mib);
  EXPECT_EQ(p, held) << "what the callback freed is used instead of new memory";
  EXPECT_OK(weir_callback_close(registration));
  void* const q = allocate(64 * mib, stream);
  EXPECT_EQ(keeps.calls, 1);
  EXPECT_OK(weir_allocator_free(memory, p));
  EXPECT_OK(weir_allocator_free(memory, q));
}

// The heap sees frees by itself; what else makes room it has to be told.
TEST_F(c_allocators, take_the_word_of_who_made_room) {
  struct raiser {
    weir_allocator* memory;
    std::int32_t answer;
    int calls;
  } raises{memory, 0, 0};
  weir_callback* registration = nullptr;
  const weir_reclaim_callback callback = [](void* context, std::uint64_t) -> std::int32_t {
    auto& by = *static_cast<raiser*>(context);
    ++by.calls;
    EXPECT_OK(weir_allocator_set_limit(by.memory, 64 * mib));
    return by.answer;
  };
  ASSERT_OK(weir_allocator_on_out_of_memory(memory, callback, &raises, &registration));
  ASSERT_OK(weir_allocator_set_limit(memory, 16 * mib));
  void* p = nullptr;
  EXPECT_EQ(weir_allocator_allocate(memory, 32 * mib, stream, &p), weir_error_out_of_memory);
  EXPECT_EQ(raises.calls, 1);
  for (const std::int32_t answer : {1, 2, -1}) {
    ASSERT_OK(weir_allocator_empty_cache(memory, nullptr));
    ASSERT_OK(weir_allocator_set_limit(memory, 16 * mib));
    raises = {memory, answer, 0};
    ASSERT_OK(weir_allocator_allocate(memory, 32 * mib, stream, &p)) << answer;
    EXPECT_EQ(raises.calls, 1) << answer;
    EXPECT_OK(weir_allocator_free(memory, p));
  }
  EXPECT_OK(weir_callback_close(registration));
}

// --- Counters, limits and release ----------------------------------------------------------------

class c_reports : public c_memory {
 protected:
  void SetUp() override {
    ASSERT_OK(weir_tag_named("c memory large", &large));
    ASSERT_OK(weir_tag_named("c memory small", &small));
    ASSERT_OK(weir_tag_set_current(small, nullptr));
    blocks.push_back(allocate(1000, stream));
    ASSERT_OK(weir_tag_set_current(large, nullptr));
    blocks.push_back(allocate(3 * mib, stream));
    blocks.push_back(allocate(5 * mib, other));
    ASSERT_OK(weir_tag_set_current(0, nullptr));
    blocks.push_back(allocate(mib, other));
  }
  void TearDown() override {
    for (void* const each : blocks) EXPECT_OK(weir_allocator_free(memory, each));
    c_memory::TearDown();
  }
  std::vector<void*> blocks;
  std::uint32_t large = 0;
  std::uint32_t small = 0;
};

TEST_F(c_reports, count_by_tag) {
  EXPECT_EQ(stats().requested.current, 9 * mib + 1000);
  EXPECT_EQ(stats().blocks.current, 4u);
  const auto of_tag = [&](std::uint32_t number) {
    return read<weir_memory_stats>(
        [&](auto* info) { return weir_allocator_get_tag_stats(memory, number, info); });
  };
  EXPECT_EQ(of_tag(small).requested.current, 1000u);
  EXPECT_EQ(of_tag(large).requested.current, 8 * mib);
  EXPECT_EQ(of_tag(large).blocks.current, 2u);
  EXPECT_EQ(of_tag(0).requested.current, mib);
  auto none = unset<weir_memory_stats>();
  EXPECT_EQ(weir_allocator_get_tag_stats(memory, 65536 + small, &none), weir_error_not_found);

  weir_tag_stats rows[4];
  std::uint64_t count = 0;
  const auto read_rows = [&](std::uint64_t capacity) {
    std::memset(static_cast<void*>(rows), 0xa5, sizeof(rows));
    rows[0].struct_size = sizeof(rows[0]);
    EXPECT_OK(weir_allocator_get_stats_by_tag(memory, rows, capacity, &count));
    EXPECT_EQ(count, 3u);
  };
  read_rows(4);
  EXPECT_EQ(rows[0].tag, large);
  EXPECT_EQ(rows[1].tag, 0u);
  EXPECT_EQ(rows[2].tag, small);
  EXPECT_EQ(rows[0].stats.requested.current, 8 * mib);
  EXPECT_EQ(rows[1].stats.requested.current, mib);
  EXPECT_EQ(rows[2].stats.requested.current, 1000u);
  for (int i : {0, 1, 2}) EXPECT_EQ(rows[i].stats.struct_size, sizeof(weir_memory_stats));
  EXPECT_EQ(rows[3].tag, 0xa5a5a5a5u);
  read_rows(2);
  EXPECT_EQ(rows[1].tag, 0u);
  EXPECT_EQ(rows[2].tag, 0xa5a5a5a5u) << "no more than there is place for";
}

TEST_F(c_reports, find_blocks_by_any_address) {
  const weir_block_info block = block_at(static_cast<char*>(blocks[1]) + 3 * mib - 1);
  EXPECT_EQ(block.address, reinterpret_cast<std::uintptr_t>(blocks[1]));
  EXPECT_EQ(block.size, 3 * mib);
  EXPECT_EQ(block.requested, 3 * mib);
  EXPECT_EQ(block.stream, id(stream));
  EXPECT_EQ(block.tag, large);
  EXPECT_EQ(block.pool, 0u);
  EXPECT_EQ(block.state, weir_block_live);
  EXPECT_EQ(block_at(blocks[0]).size, 1024u);
  EXPECT_EQ(block_at(blocks[0]).requested, 1000u);
  auto none = unset<weir_block_info>();
  EXPECT_EQ(weir_allocator_find_block(memory, this, &none), weir_error_foreign_pointer);
  EXPECT_EQ(weir_allocator_find_block(far_memory, blocks[0], &none), weir_error_foreign_pointer);
}

TEST_F(c_reports, explain_a_request_of_a_size_on_a_stream) {
  const auto expected = [&](std::uint64_t size, weir_stream* on) {
    const auto ref =
        on == nullptr ? capi::find(memory).value()->legacy : capi::find(on).value()->ref;
    return capi::find(memory).value()->memory.explain(bytes{size}, ref).text();
  };
  const auto explained = [&](std::uint64_t size, weir_stream* on) {
    std::uint64_t length = 0;
    EXPECT_OK(weir_allocator_explain(memory, size, on, nullptr, 0, &length));
    std::string text(length + 1, '#');
    EXPECT_OK(weir_allocator_explain(memory, size, on, text.data(), text.size(), nullptr));
    EXPECT_EQ(text.back(), '\0');
    text.pop_back();
    return text;
  };
  occupy(stream);
  EXPECT_OK(weir_allocator_deallocate(memory, blocks[1], stream));  // free for that stream alone
  EXPECT_NE(expected(2 * mib, stream), expected(2 * mib, other));
  EXPECT_EQ(explained(2 * mib, stream), expected(2 * mib, stream));
  EXPECT_EQ(explained(2 * mib, other), expected(2 * mib, other));
  EXPECT_EQ(explained(700 * mib, nullptr), expected(700 * mib, nullptr));
  blocks[1] = nullptr;
  wait_for_all();
}

TEST_F(c_reports, reset_peaks) {
  EXPECT_OK(weir_allocator_free(memory, blocks.back()));
  blocks.pop_back();
  EXPECT_EQ(stats().requested.peak, 9 * mib + 1000);
  EXPECT_EQ(stats().blocks.peak, 4u);
  EXPECT_OK(weir_allocator_reset_peaks(memory));
  const weir_memory_stats after = stats();
  EXPECT_EQ(after.requested.peak, 8 * mib + 1000);
  EXPECT_EQ(after.allocated.peak, after.allocated.current);
  EXPECT_EQ(after.active.peak, after.active.current);
  EXPECT_EQ(after.reserved.peak, after.reserved.current);
  EXPECT_EQ(after.blocks.peak, 3u);
}

TEST_F(c_reports, release_memory_down_to_what_is_kept) {
  void* const p = allocate(64 * mib, stream);
  EXPECT_OK(weir_allocator_deallocate(memory, p, stream));
  wait_for_all();
  const std::uint64_t reserved = stats().reserved.current;
  std::uint64_t released = 99;
  EXPECT_OK(weir_allocator_trim(memory, WEIR_NO_LIMIT, &released));
  EXPECT_EQ(released, 0u);
  EXPECT_OK(weir_allocator_trim(memory, reserved - 20 * mib, &released));
  EXPECT_EQ(released, 20 * mib);
  EXPECT_EQ(stats().reserved.current, reserved - 20 * mib);
  EXPECT_OK(weir_allocator_trim(memory, reserved - 24 * mib, nullptr));
  EXPECT_EQ(stats().reserved.current, reserved - 24 * mib);
  EXPECT_OK(weir_allocator_empty_cache(memory, &released));
  EXPECT_EQ(stats().reserved.current, reserved - 24 * mib - released);
  EXPECT_GE(released, 40 * mib);
  EXPECT_OK(weir_allocator_empty_cache(memory, &released));
  EXPECT_EQ(released, 0u);
}

TEST_F(c_reports, shrink_to_what_is_kept_after_waiting_for_work) {
  void* const kept = allocate(8 * mib, stream);
  void* const p = allocate(64 * mib, stream);
  EXPECT_OK(weir_allocator_deallocate(memory, p, stream));
  const std::uint64_t reserved = stats().reserved.current;
  std::uint64_t released = 99;
  EXPECT_OK(weir_allocator_shrink(memory, WEIR_NO_LIMIT, &released));
  EXPECT_EQ(released, 0u);
  EXPECT_OK(weir_allocator_shrink(memory, 0, &released));
  EXPECT_GE(released, 56 * mib);
  EXPECT_EQ(stats().reserved.current, reserved - released);
  EXPECT_OK(weir_allocator_shrink(memory, 0, nullptr));
  EXPECT_OK(weir_allocator_deallocate(memory, kept, stream));
}

TEST_F(c_reports, end_the_wait_for_recorded_streams_that_were_joined) {
  void* const p = allocate(8 * mib, stream);
  EXPECT_OK(weir_allocator_record_stream(memory, p, other));
  std::int32_t found = 99;
  EXPECT_OK(weir_allocator_assume_joined(memory, p, &found));  // it is live
  EXPECT_EQ(found, 0);
  EXPECT_OK(weir_allocator_deallocate(memory, p, stream));
  EXPECT_OK(weir_allocator_assume_joined(memory, p, &found));
  EXPECT_EQ(found, 1);
  EXPECT_EQ(weir_allocator_assume_joined(memory, p, nullptr), weir_error_invalid_argument);
}

TEST_F(c_reports, a_pool_helps_out_while_it_is_the_fallback) {
  weir_pool* pool = nullptr;
  ASSERT_OK(weir_pool_create(memory, "fallback", 0, &pool));
  void* p = nullptr;
  ASSERT_OK(weir_pool_allocate(pool, 16 * mib, 0, stream, &p));
  EXPECT_OK(weir_allocator_deallocate(memory, p, stream));
  ASSERT_OK(weir_allocator_set_limit(memory, stats().reserved.current));
  ASSERT_OK(weir_pool_set_fallback(pool, 1));
  void* const q = allocate(16 * mib, stream);
  EXPECT_EQ(q, p);
  EXPECT_OK(weir_allocator_deallocate(memory, q, stream));
  ASSERT_OK(weir_pool_set_fallback(pool, 0));
  ASSERT_OK(weir_allocator_set_limit(memory, WEIR_NO_LIMIT));
  EXPECT_OK(weir_pool_close(pool));
}

TEST_F(c_reports, let_other_devices_reach_the_memory) {
  EXPECT_EQ(weir_allocator_enable_peer(memory, 7), weir_error_no_device);
  EXPECT_EQ(weir_allocator_enable_peer(memory, 0), weir_error_invalid_argument);  // its own
}

TEST_F(c_reports, keep_limits) {
  std::uint64_t most = 0;
  ASSERT_OK(weir_allocator_get_limit(memory, &most));
  EXPECT_EQ(most, WEIR_NO_LIMIT);
  ASSERT_OK(weir_allocator_set_limit(memory, 32 * mib));
  ASSERT_OK(weir_allocator_get_limit(memory, &most));
  EXPECT_EQ(most, 32 * mib);
  void* p = nullptr;
  EXPECT_EQ(weir_allocator_allocate(memory, 40 * mib, stream, &p), weir_error_out_of_memory);
  ASSERT_OK(weir_allocator_set_limit_fraction(memory, 0.25));
  ASSERT_OK(weir_allocator_get_limit(memory, &most));
  EXPECT_EQ(most, 256 * mib);
  EXPECT_EQ(weir_allocator_set_limit_fraction(memory, 1.5), weir_error_invalid_argument);
  ASSERT_OK(weir_allocator_set_limit(memory, WEIR_NO_LIMIT));

  ASSERT_OK(weir_allocator_set_tag_limit(memory, small, 1024 + mib));
  EXPECT_EQ(weir_allocator_set_tag_limit(memory, 65536 + small, 1), weir_error_not_found);
  ASSERT_OK(weir_tag_set_current(small, nullptr));
  EXPECT_EQ(weir_allocator_allocate(memory, mib + 512, stream, &p), weir_error_out_of_memory);
  ASSERT_OK(weir_allocator_allocate(memory, mib, stream, &p));
  ASSERT_OK(weir_tag_set_current(large, nullptr));
  blocks.push_back(p);
  blocks.push_back(allocate(4 * mib, stream));
  ASSERT_OK(weir_tag_set_current(0, nullptr));
}

TEST_F(c_allocators, forget_a_stream_that_is_released) {
  weir_stream* foreign = nullptr;
  driver::CUstream raw = nullptr;
  {
    const context_scope bound{device()};
    ASSERT_EQ(machine->driver().stream_create(&raw, driver::CU_STREAM_NON_BLOCKING),
              driver::CUDA_SUCCESS);
  }
  ASSERT_OK(weir_stream_wrap(runtime, 0, raw, &foreign));
  void* const p = allocate(3 * mib, foreign);
  EXPECT_OK(weir_allocator_deallocate(memory, p, foreign));
  EXPECT_OK(weir_allocator_release_stream(memory, foreign));
  {
    const context_scope bound{device()};
    ASSERT_EQ(machine->driver().stream_destroy(raw), driver::CUDA_SUCCESS);
  }
  // Queries about it would be errors from here on.
  void* const q = allocate(3 * mib, other);
  EXPECT_EQ(q, p);
  EXPECT_OK(weir_allocator_deallocate(memory, q, other));
  EXPECT_OK(weir_stream_close(foreign));
}

// --- Pools and captures --------------------------------------------------------------------------

class c_pools : public c_memory {
 protected:
  void SetUp() override {
    ASSERT_OK(weir_pool_create(memory, "first pool", weir_pool_for_graphs, &first));
    ASSERT_OK(weir_pool_create(memory, "second pool", weir_pool_exportable, &second));
    ASSERT_OK(weir_pool_get_id(first, &first_id));
    ASSERT_OK(weir_pool_get_id(second, &second_id));
  }
  void TearDown() override {
    EXPECT_OK(weir_pool_close(first));
    EXPECT_OK(weir_pool_close(second));
    c_memory::TearDown();
  }
  [[nodiscard]] std::uint32_t pool_of_next(weir_stream* on) const {
    void* const p = allocate(1000, on);
    const std::uint32_t pool = block_at(p).pool;
    EXPECT_OK(weir_allocator_free(memory, p));
    return pool;
  }
  [[nodiscard]] static weir_memory_stats stats_of(weir_pool* pool) {
    return read<weir_memory_stats>([&](auto* info) { return weir_pool_get_stats(pool, info); });
  }
  weir_pool* first = nullptr;
  weir_pool* second = nullptr;
  std::uint32_t first_id = 0;
  std::uint32_t second_id = 0;
};

TEST_F(c_pools, are_told_apart) {
  EXPECT_NE(first_id, 0u);
  EXPECT_NE(second_id, 0u);
  EXPECT_NE(first_id, second_id);
  EXPECT_EQ(capi::find(first).value()->pool.snapshot().name, "first pool");
  EXPECT_EQ(capi::find(second).value()->pool.snapshot().name, "second pool");
}

TEST_F(c_pools, allocate_what_was_asked_for) {
  void* p = nullptr;
  ASSERT_OK(weir_pool_allocate(first, 3000, 16 * kib, other, &p));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % (16 * kib), 0u);
  weir_block_info block = block_at(p);
  EXPECT_EQ(block.pool, first_id);
  EXPECT_EQ(block.requested, 3000u);
  EXPECT_EQ(block.stream, id(other));
  EXPECT_EQ(stats_of(first).requested.current, 3000u);
  EXPECT_EQ(stats_of(second).requested.current, 0u);
  void* q = nullptr;
  ASSERT_OK(weir_pool_allocate(second, 5000, 0, nullptr, &q));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(q) % 512, 0u);
  block = block_at(q);
  EXPECT_EQ(block.pool, second_id);
  EXPECT_EQ(block.stream, legacy_id());
  EXPECT_OK(weir_allocator_free(memory, p));
  EXPECT_OK(weir_allocator_free(memory, q));
}

TEST_F(c_pools, allocate_where_a_block_was) {
  void* p = nullptr;
  ASSERT_OK(weir_pool_allocate(first, mib, 0, stream, &p));
  ASSERT_OK(weir_allocator_free(memory, p));
  EXPECT_EQ(said(weir_pool_allocate_at(first, p, mib / 2, other)),
            "not_ready: the range is not completely free for this stream");
  ASSERT_OK(weir_pool_allocate_at(first, p, mib / 2, stream));
  const weir_block_info block = block_at(p);
  EXPECT_EQ(block.address, reinterpret_cast<std::uintptr_t>(p));
  EXPECT_EQ(block.requested, mib / 2);
  EXPECT_EQ(block.stream, id(stream));
  EXPECT_EQ(block.pool, first_id);
  EXPECT_EQ(weir_pool_allocate_at(first, p, mib, stream), weir_error_not_ready);
  EXPECT_EQ(weir_pool_allocate_at(second, p, mib, stream), weir_error_foreign_pointer);
  EXPECT_OK(weir_allocator_free(memory, p));
}

TEST_F(c_pools, serve_the_thread_that_entered_them) {
  EXPECT_EQ(said(weir_pool_leave()), "invalid_argument: this thread has not entered a pool");
  EXPECT_EQ(pool_of_next(stream), 0u);
  ASSERT_OK(weir_pool_enter(first));
  EXPECT_EQ(pool_of_next(stream), first_id);
  ASSERT_OK(weir_pool_enter(second));
  EXPECT_EQ(pool_of_next(stream), second_id);
  ASSERT_OK(weir_pool_leave());
  EXPECT_EQ(pool_of_next(stream), first_id);
  ASSERT_OK(weir_pool_leave());
  EXPECT_EQ(pool_of_next(stream), 0u);
  EXPECT_EQ(said(weir_pool_leave()), "invalid_argument: this thread has not entered a pool");
}

TEST_F(c_pools, retain_release_and_export_as_their_flags_say) {
  void* p = nullptr;
  void* q = nullptr;
  ASSERT_OK(weir_pool_allocate(first, 4 * mib, 0, stream, &p));
  ASSERT_OK(weir_pool_allocate(second, 6 * mib, 0, stream, &q));
  weir_shared_piece pieces[8];
  pieces[0].struct_size = sizeof(pieces[0]);
  std::uint64_t count = 0;
  std::uint64_t offset = 0;
  EXPECT_EQ(weir_allocator_export_block(memory, p, pieces, 8, &count, &offset),
            weir_error_not_supported);
  ASSERT_OK(weir_allocator_export_block(memory, q, pieces, 8, &count, &offset));
  for (std::uint64_t i = 0; i < count; ++i) ::close(pieces[i].descriptor);
  EXPECT_OK(weir_allocator_free(memory, p));
  EXPECT_OK(weir_allocator_free(memory, q));
  std::uint64_t released = 0;
  EXPECT_OK(weir_allocator_empty_cache(memory, &released));
  EXPECT_EQ(released, 6 * mib);
  EXPECT_EQ(stats_of(first).reserved.current, 4 * mib) << "it retains";
  EXPECT_EQ(stats_of(second).reserved.current, 0u);
  EXPECT_OK(weir_pool_empty_cache(second, &released));
  EXPECT_EQ(released, 0u);
  EXPECT_OK(weir_pool_empty_cache(first, &released));
  EXPECT_EQ(released, 4 * mib);
}

TEST_F(c_pools, of_a_capture_serve_its_stream_until_it_ends) {
  const auto& table = machine->driver();
  const context_scope bound{device()};
  const auto during_a_capture = [&](const std::function<void()>& act) {
    ASSERT_EQ(table.stream_begin_capture(native(stream), driver::CU_STREAM_CAPTURE_MODE_RELAXED),
              driver::CUDA_SUCCESS);
    act();
    driver::CUgraph graph = nullptr;
    ASSERT_EQ(table.stream_end_capture(native(stream), &graph), driver::CUDA_SUCCESS);
    ASSERT_EQ(table.graph_destroy(graph), driver::CUDA_SUCCESS);
  };
  weir_capture* capture = nullptr;
  weir_pool* own = nullptr;
  std::uint32_t own_id = 0;
  ASSERT_OK(weir_capture_begin(memory, stream, &capture));
  ASSERT_OK(weir_capture_get_pool(capture, &own));
  ASSERT_OK(weir_pool_get_id(own, &own_id));
  EXPECT_NE(own_id, 0u);
  EXPECT_NE(own_id, first_id);
  EXPECT_NE(own_id, second_id);
  during_a_capture([&] { EXPECT_EQ(pool_of_next(stream), own_id); });
  EXPECT_EQ(pool_of_next(other), 0u);
  EXPECT_EQ(said(weir_capture_tie_to_graph(capture, nullptr)),
            "invalid_argument: native_graph is null");
  EXPECT_EQ(said(weir_capture_get_pool(capture, nullptr)), "invalid_argument: pool is null");
  ASSERT_OK(weir_capture_end(capture));
  EXPECT_EQ(pool_of_next(stream), 0u);
  ASSERT_OK(weir_capture_end(capture));  // does no harm
  EXPECT_OK(weir_pool_close(own));

  weir_capture* second_capture = nullptr;
  ASSERT_OK(weir_capture_begin(memory, stream, &second_capture)) << "the first is over";
  EXPECT_OK(weir_capture_close(second_capture));
  EXPECT_EQ(pool_of_next(stream), 0u) << "closing it ends it, too";
  EXPECT_OK(weir_capture_close(capture));
}

TEST_F(c_pools, of_a_capture_keep_their_memory_as_long_as_its_graph) {
  const auto& table = machine->driver();
  const context_scope bound{device()};
  weir_capture* capture = nullptr;
  ASSERT_OK(weir_capture_begin(memory, stream, &capture));
  ASSERT_EQ(table.stream_begin_capture(native(stream), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
            driver::CUDA_SUCCESS);
  void* const p = allocate(2 * mib, stream);
  EXPECT_OK(weir_allocator_deallocate(memory, p, stream));
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(table.stream_end_capture(native(stream), &graph), driver::CUDA_SUCCESS);
  EXPECT_OK(weir_capture_end(capture));
  EXPECT_OK(weir_capture_tie_to_graph(capture, graph));
  EXPECT_OK(weir_capture_close(capture));
  EXPECT_OK(weir_allocator_empty_cache(memory, nullptr));
  EXPECT_EQ(stats().reserved.current, 2 * mib);
  ASSERT_EQ(table.graph_destroy(graph), driver::CUDA_SUCCESS);
  wait_for_all();
  EXPECT_OK(weir_allocator_empty_cache(memory, nullptr));
  EXPECT_EQ(stats().reserved.current, 0u);
}

TEST_F(c_pools, query_no_stream_while_captures_were_announced) {
  const auto queries = [&] {
    return calls(driver::call::stream_query) + calls(driver::call::event_query);
  };
  const auto queries_of_a_round = [&] {
    EXPECT_OK(weir_allocator_empty_cache(memory, nullptr));
    void* const p = allocate(9 * mib, stream);
    occupy(stream);
    EXPECT_OK(weir_allocator_deallocate(memory, p, stream));
    const std::uint64_t before = queries();
    void* const q = allocate(9 * mib, other);  // after which p is in nobody's cache
    void* const r = allocate(9 * mib, other);
    const std::uint64_t asked_meanwhile = queries() - before;
    for (void* const each : {q, r}) {
      EXPECT_NE(p, each);
      EXPECT_OK(weir_allocator_deallocate(memory, each, other));
    }
    wait_for_all();
    return asked_meanwhile;
  };
  EXPECT_NE(queries_of_a_round(), 0u);
  weir_capture_guard* notice = nullptr;
  ASSERT_OK(weir_capture_guard_open(memory, &notice));
  EXPECT_EQ(queries_of_a_round(), 0u);
  EXPECT_OK(weir_capture_guard_close(notice));
  EXPECT_NE(queries_of_a_round(), 0u);
}

// --- Snapshots -----------------------------------------------------------------------------------

class c_snapshots : public c_memory {
 protected:
  void SetUp() override {
    ASSERT_OK(weir_pool_create(memory, "seen", 0, &pool));
    std::uint32_t tag = 0;
    ASSERT_OK(weir_tag_named("c memory seen", &tag));
    for (std::uint64_t i = 1; i <= 5; ++i) {
      void* p = nullptr;
      ASSERT_OK(weir_tag_set_current(i % 2 == 0 ? tag : 0, nullptr));
      ASSERT_OK(weir_pool_allocate(pool, i * 1000, 0, i < 3 ? stream : other, &p));
      blocks.push_back(p);
    }
    ASSERT_OK(weir_tag_set_current(0, nullptr));
    ASSERT_OK(weir_pool_allocate(pool, 5 * mib, 0, stream, &blocks.emplace_back()));
    ASSERT_OK(weir_allocator_free(memory, std::exchange(blocks[3], nullptr)));
    void* const own = allocate(mib, other);
    blocks.push_back(own);
    ASSERT_OK(weir_snapshot_take(memory, &snapshot));
    expected = capi::find(memory).value()->memory.snapshot();
  }
  void TearDown() override {
    for (void* const each : blocks) EXPECT_OK(weir_allocator_free(memory, each));
    EXPECT_OK(weir_pool_close(pool));
    EXPECT_OK(weir_snapshot_close(snapshot));
    c_memory::TearDown();
  }
  std::vector<void*> blocks;
  weir_pool* pool = nullptr;
  weir_snapshot* snapshot = nullptr;
  allocator_snapshot expected;
};

TEST_F(c_snapshots, show_the_pools) {
  const auto info =
      read<weir_snapshot_info>([&](auto* into) { return weir_snapshot_get_info(snapshot, into); });
  EXPECT_EQ(info.device, 0);
  EXPECT_EQ(info.pool_count, 2u);
  EXPECT_EQ(info.stats.struct_size, sizeof(info.stats));
  EXPECT_EQ(info.stats.requested.current, expected.stats.requested.current.count());
  EXPECT_EQ(info.stats.requested.current, 6 * mib + 11000);
  for (std::uint64_t i : {0, 1}) {
    const auto about =
        read<weir_pool_info>([&](auto* into) { return weir_snapshot_get_pool(snapshot, i, into); });
    EXPECT_EQ(about.name, expected.pools[i].name);
    EXPECT_EQ(about.id, expected.pools[i].id.number());
    EXPECT_EQ(about.block_count, expected.pools[i].blocks.size());
    EXPECT_EQ(about.physical_count, expected.pools[i].physical.size());
    EXPECT_EQ(about.stats.requested.current, i == 0 ? mib : 5 * mib + 11000);
    EXPECT_EQ(about.stats.struct_size, sizeof(about.stats));
  }
  auto none = unset<weir_pool_info>();
  EXPECT_EQ(said(weir_snapshot_get_pool(snapshot, 2, &none)),
            "not_found: index exceeds the number of pools of the snapshot");

  weir_snapshot* far = nullptr;
  ASSERT_OK(weir_snapshot_take(far_memory, &far));
  EXPECT_EQ(read<weir_snapshot_info>([&](auto* into) {
              return weir_snapshot_get_info(far, into);
            }).device,
            1);
  EXPECT_OK(weir_snapshot_close(far));
}

TEST_F(c_snapshots, of_a_pool_show_that_pool_alone) {
  weir_snapshot* of_pool = nullptr;
  ASSERT_OK(weir_snapshot_take_pool(pool, &of_pool));
  const auto info =
      read<weir_snapshot_info>([&](auto* into) { return weir_snapshot_get_info(of_pool, into); });
  EXPECT_EQ(info.device, 0);
  EXPECT_EQ(info.pool_count, 1u);
  EXPECT_EQ(info.stats.requested.current, 5 * mib + 11000);
  const auto about =
      read<weir_pool_info>([&](auto* into) { return weir_snapshot_get_pool(of_pool, 0, into); });
  EXPECT_STREQ(about.name, "seen");
  EXPECT_EQ(about.block_count, expected.pools[1].blocks.size());
  EXPECT_OK(weir_snapshot_close(of_pool));

  weir_pool* far_pool = nullptr;
  ASSERT_OK(weir_pool_create(far_memory, "far", 0, &far_pool));
  ASSERT_OK(weir_snapshot_take_pool(far_pool, &of_pool));
  EXPECT_EQ(read<weir_snapshot_info>([&](auto* into) {
              return weir_snapshot_get_info(of_pool, into);
            }).device,
            1);
  EXPECT_OK(weir_snapshot_close(of_pool));
  EXPECT_OK(weir_pool_close(far_pool));
}

TEST_F(c_snapshots, are_read_from_any_block_on) {
  const auto& all = expected.pools[1].blocks;
  ASSERT_GE(all.size(), 6u);
  for (std::uint64_t first = 0; first <= all.size() + 1; ++first) {
    for (const std::uint64_t capacity : {std::uint64_t{1}, std::uint64_t{3}, all.size() + 1}) {
      SCOPED_TRACE(std::to_string(first) + ", " + std::to_string(capacity));
      std::vector<weir_block_info> page(all.size() + 2, unset<weir_block_info>());
      std::uint64_t count = 99;
      ASSERT_OK(weir_snapshot_get_blocks(snapshot, 1, first, page.data(), capacity, &count));
      const std::uint64_t rest = first < all.size() ? all.size() - first : 0;
      ASSERT_EQ(count, std::min(rest, capacity));
      for (std::uint64_t i = 0; i < count; ++i) {
        const block_info& block = all[first + i];
        EXPECT_EQ(page[i].address, block.address);
        EXPECT_EQ(page[i].size, block.size.count());
        EXPECT_EQ(page[i].requested, block.requested.count());
        EXPECT_EQ(page[i].state, static_cast<std::int32_t>(block.state));
        EXPECT_EQ(page[i].stream, block.stream.number());
        EXPECT_EQ(page[i].tag, block.tag.number());
        EXPECT_EQ(page[i].pool, expected.pools[1].id.number());
      }
      EXPECT_EQ(page[count].pool, 0xa5a5a5a5u) << "no more is written";
    }
  }
  std::uint64_t count = 99;
  EXPECT_OK(weir_snapshot_get_blocks(snapshot, 1, 0, nullptr, 0, &count));
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(weir_snapshot_get_blocks(snapshot, 2, 0, nullptr, 0, &count), weir_error_not_found);
}

TEST_F(c_snapshots, show_physical_memory_from_any_piece_on) {
  const auto& all = expected.pools[1].physical;
  ASSERT_GE(all.size(), 2u);
  std::uint64_t reserved = 0;
  for (std::uint64_t first = 0; first <= all.size(); ++first) {
    std::vector<weir_physical_info> page(2, unset<weir_physical_info>());
    std::uint64_t count = 99;
    ASSERT_OK(weir_snapshot_get_physical(snapshot, 1, first, page.data(), 1, &count));
    ASSERT_EQ(count, first < all.size() ? 1u : 0u);
    if (count == 0) continue;
    EXPECT_EQ(page[0].address, all[first].address);
    EXPECT_EQ(page[0].size, all[first].size.count());
    reserved += page[0].size;
  }
  EXPECT_EQ(reserved, expected.pools[1].stats.reserved.current.count());
  std::uint64_t count = 99;
  EXPECT_EQ(weir_snapshot_get_physical(snapshot, 2, 0, nullptr, 0, &count), weir_error_not_found);
}

// --- Recordings ----------------------------------------------------------------------------------

class c_recordings : public c_memory {
 protected:
  c_recordings() {
    settings.struct_size = sizeof(settings);
    settings.program = "a program";
  }
  /// What is in the file after `act(recorder)`.
  [[nodiscard]] recording record(const std::function<void(weir_recorder*)>& act) {
    weir_recorder* recorder = nullptr;
    EXPECT_OK(weir_recorder_start(memory, path.c_str(), &settings, &recorder));
    act(recorder);
    EXPECT_OK(weir_recorder_close(recorder));
    return read_trace(path).value();
  }
  void allocate_and_free(std::uint64_t size, int times = 1) const {
    for (int i = 0; i < times; ++i)
      EXPECT_OK(weir_allocator_deallocate(memory, allocate(size, stream), stream));
  }
  [[nodiscard]] static weir_recorder_stats stats_of(weir_recorder* recorder) {
    return read<weir_recorder_stats>(
        [&](auto* into) { return weir_recorder_get_stats(recorder, into); });
  }
  [[nodiscard]] std::string start() {
    weir_recorder* none = nullptr;
    return said(weir_recorder_start(memory, path.c_str(), &settings, &none));
  }

  scratch_folder folder;
  std::string path = folder.path("c.weirtrace");
  weir_recorder_options settings{};
};

TEST_F(c_recordings, have_what_happened_and_where) {
  const auto seen = record([&](weir_recorder* recorder) {
    EXPECT_OK(weir_recorder_marker(recorder, "a remark"));
    allocate_and_free(3 * mib);
    EXPECT_OK(weir_recorder_flush(recorder));
    const weir_recorder_stats now = stats_of(recorder);
    EXPECT_EQ(now.dropped, 0u);
    EXPECT_EQ(now.threads, 1u);
    EXPECT_GE(now.written, 3u);
    EXPECT_EQ(now.file_size, read_bytes(path + "." + std::to_string(::getpid()) + ".part").size());
  });
  EXPECT_EQ(seen.program, "a program");
  EXPECT_EQ(seen.device, "first device");
  EXPECT_EQ(seen.device_capacity, bytes{1024 * mib});
  EXPECT_THAT(seen.texts, ElementsAre("a remark"));
  std::vector<trace_kind> kinds;
  for (const trace_event& each : seen.events)
    if (each.kind != trace_kind::reserve) kinds.push_back(each.kind);
  EXPECT_THAT(kinds, ElementsAre(trace_kind::marker, trace_kind::allocate, trace_kind::deallocate));
  EXPECT_TRUE(seen.stacks.empty());
}

TEST_F(c_recordings, end_when_they_are_stopped) {
  weir_recorder* recorder = nullptr;
  ASSERT_OK(weir_recorder_start(memory, path.c_str(), nullptr, &recorder));
  EXPECT_FALSE(std::filesystem::exists(path));
  allocate_and_free(1000);
  EXPECT_OK(weir_recorder_close(recorder));
  allocate_and_free(2000);
  for (const trace_event& each : read_trace(path).value().events) EXPECT_NE(each.size, 2000u);
  EXPECT_EQ(said(weir_recorder_close(recorder)), "closed: the recorder is closed");
}

TEST_F(c_recordings, say_whether_all_was_written) {
  weir_recorder* none = nullptr;
  EXPECT_EQ(weir_recorder_start(memory, "/no/such/folder/x", nullptr, &none), weir_error_system);
  weir_recorder* recorder = nullptr;
  ASSERT_OK(weir_recorder_start(memory, path.c_str(), nullptr, &recorder));
  EXPECT_EQ(said(weir_recorder_marker(recorder, nullptr)), "invalid_argument: text is null");
  auto wrong = unset<weir_recorder_stats>();
  wrong.struct_size = sizeof(wrong) - 1;
  EXPECT_EQ(said(weir_recorder_get_stats(recorder, &wrong)),
            "bad_version: struct_size must be from 40 to 65536, got 39");
  EXPECT_OK(weir_recorder_close(recorder));
}

TEST_F(c_recordings, are_made_as_they_were_asked_for) {
  const std::string text(4000, 'x');
  const auto size_of_file = [&] {
    static_cast<void>(record([&](weir_recorder* recorder) {
      for (int i = 0; i < 20; ++i) EXPECT_OK(weir_recorder_marker(recorder, text.c_str()));
    }));
    return read_bytes(path).size();
  };
  const std::size_t compressed = size_of_file();
  settings.flags = weir_recorder_uncompressed;
  settings.level = 7;  // means nothing then
  EXPECT_GT(size_of_file(), compressed);
  settings.flags = weir_recorder_stacks;
  EXPECT_FALSE(record([&](weir_recorder*) { allocate_and_free(1000); }).stacks.empty());
  settings.flags = 0;
  settings.level = 20;
  EXPECT_EQ(start(), "invalid_argument: level must be from 0 to 19");
  settings.level = 19;
  settings.ring_events = 15;
  EXPECT_EQ(start(), "invalid_argument: ring_events must be from 16 to 2^24");
  settings.ring_events = 0;
  settings.program = nullptr;
  EXPECT_EQ(record([](weir_recorder*) {}).program, program_invocation_short_name);
  settings.struct_size = sizeof(settings) - 1;
  EXPECT_EQ(start(), "bad_version: struct_size must be from 32 to 65536, got 31");
}

// A ring of 16 events is full long before the writer has woken up.
TEST_F(c_recordings, drop_events_only_where_that_was_asked_for) {
  settings.ring_events = 16;
  settings.flush_every = 3'600'000;
  constexpr int times = 2000;
  const auto complete = record([&](weir_recorder*) { allocate_and_free(1000, times); });
  EXPECT_EQ(complete.dropped, 0u);
  EXPECT_GE(complete.events.size(), 2u * times);
  settings.flags = weir_recorder_drop_when_full;
  const auto seen = record([&](weir_recorder*) { allocate_and_free(1000, times); });
  EXPECT_GT(seen.dropped, 0u);
}

}  // namespace
}  // namespace weir::testing_support
