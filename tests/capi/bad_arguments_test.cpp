// SPDX-License-Identifier: Apache-2.0
// Every function of weir.h with handles that are null, of another kind or closed, without the
// pointers it writes through, and with structures of other versions.
#include <functional>

#include "c_fixture.hpp"

namespace weir::testing_support { namespace {

/// A call that fails because of one handle; `takes_null`: null means something.
struct handle_row {
  const char* call;
  std::string noun;
  std::function<weir_error(void*)> with;
  bool takes_null = false;
};

#define WEIR_HANDLE_ROW(type, noun, expression)                          \
  handle_row {                                                           \
#expression, noun, [&](void* raw) {                                    \
      [[maybe_unused]] auto* const bad = static_cast<weir_##type*>(raw);   \
      return expression;                                                   \
    } \
  }
/// Of a stream that may be null.
#define WEIR_STREAM_ROW(expression)                                      \
  handle_row {                                                           \
#expression, "stream", [&](void* raw) {                                \
      [[maybe_unused]] auto* const bad = static_cast<weir_stream*>(raw);   \
      return expression;                                                   \
    },                                                                     \
        true \
  }

/// One live object of every kind, and the handle of one that was closed.
class c_arguments : public c_memory {
 protected:
  void SetUp() override {
    weir_stream_pool_config shared_pool = WEIR_STREAM_POOL_CONFIG_INIT;
    shared_pool.flags = weir_stream_pool_posix_descriptor;
    ASSERT_OK(weir_event_create(runtime, 0, 0, &event));
    ASSERT_OK(weir_pool_create(memory, "pool", weir_pool_exportable, &pool));
    ASSERT_OK(weir_stream_pool_create(runtime, 0, &shared_pool, &stream_pool));
    ASSERT_OK(weir_bin_pool_create(runtime, 0, nullptr, &block_pool));
    ASSERT_OK(weir_buffer_pool_create(nullptr, &buffer_pool));
    ASSERT_OK(weir_buffer_create(memory, 4096, 0, stream, &buffer));
    ASSERT_OK(
        weir_buffer_create_managed(runtime, 0, 4096, 0, weir_attach_global, stream, &managed));
    ASSERT_OK(weir_snapshot_take(memory, &snapshot));
    ASSERT_OK(weir_shared_create(runtime, 0, 2 * mib, 0, &shared));
    block = allocate(2 * mib, stream);

    close_one<weir_runtime>("runtime", runtime_over(machine->driver()), weir_runtime_close);
    close_one<weir_stream>("stream", made<weir_stream>([&](auto** into) {
                             return weir_stream_create(runtime, 0, 0, 0, into);
                           }),
                           weir_stream_close);
    close_one<weir_event>("event", made<weir_event>([&](auto** into) {
                            return weir_event_create(runtime, 0, 0, into);
                          }),
                          weir_event_close);
    close_one<weir_allocator>("allocator", made<weir_allocator>([&](auto** into) {
                                return weir_allocator_create(runtime, 0, nullptr, into);
                              }),
                              weir_allocator_close);
    close_one<weir_pool>("pool", made<weir_pool>([&](auto** into) {
                           return weir_pool_create(memory, "gone", 0, into);
                         }),
                         weir_pool_close);
    close_one<weir_callback>("callback", made<weir_callback>([&](auto** into) {
                               return weir_allocator_on_out_of_memory(memory, reclaim, nullptr,
                                                                      into);
                             }),
                             weir_callback_close);
    close_one<weir_capture>("capture", made<weir_capture>([&](auto** into) {
                              return weir_capture_begin(memory, other, into);
                            }),
                            weir_capture_close);
    close_one<weir_capture_guard>("capture notice", made<weir_capture_guard>([&](auto** into) {
                                    return weir_capture_guard_open(memory, into);
                                  }),
                                  weir_capture_guard_close);
    close_one<weir_snapshot>("snapshot", made<weir_snapshot>([&](auto** into) {
                               return weir_snapshot_take(memory, into);
                             }),
                             weir_snapshot_close);
    close_one<weir_stream_pool>(
        "stream pool", made<weir_stream_pool>([&](auto** into) {
          return weir_stream_pool_create(runtime, 0, nullptr, into);
        }),
        [](weir_stream_pool* handle) { return weir_stream_pool_close(handle, nullptr); });
    close_one<weir_block_pool>("block pool", made<weir_block_pool>([&](auto** into) {
                                 return weir_bin_pool_create(runtime, 0, nullptr, into);
                               }),
                               weir_block_pool_close);
    close_one<weir_buffer_pool>("buffer pool", made<weir_buffer_pool>([&](auto** into) {
                                  return weir_buffer_pool_create(nullptr, into);
                                }),
                                weir_buffer_pool_close);
    close_one<weir_buffer>("buffer", made<weir_buffer>([&](auto** into) {
                             return weir_buffer_create_plain(runtime, 0, 1, into);
                           }),
                           weir_buffer_close);
    close_one<weir_shared>("shared", made<weir_shared>([&](auto** into) {
                             return weir_shared_create(runtime, 0, 1, 0, into);
                           }),
                           weir_shared_close);
  }
  void TearDown() override {
    EXPECT_OK(weir_allocator_free(memory, block));
    EXPECT_OK(weir_shared_close(shared));
    EXPECT_OK(weir_snapshot_close(snapshot));
    EXPECT_OK(weir_buffer_close(managed));
    EXPECT_OK(weir_buffer_close(buffer));
    EXPECT_OK(weir_buffer_pool_close(buffer_pool));
    EXPECT_OK(weir_block_pool_close(block_pool));
    EXPECT_OK(weir_stream_pool_close(stream_pool, nullptr));
    EXPECT_OK(weir_pool_close(pool));
    EXPECT_OK(weir_event_close(event));
    c_memory::TearDown();
  }

  static std::int32_t reclaim(void*, std::uint64_t) { return 0; }
  static std::int32_t give_up(void*, weir_allocator*, std::uint64_t, weir_error) { return 0; }

  template <class Handle, class Create>
  Handle* made(const Create& create) {
    Handle* handle = nullptr;
    EXPECT_OK(create(&handle));
    return handle;
  }
  template <class Handle>
  void close_one(const char* noun, Handle* handle, weir_error (*close)(Handle*)) {
    EXPECT_OK(close(handle));
    EXPECT_EQ(said(close(handle)), std::string{"closed: the "} + noun + " is closed");
    EXPECT_OK(close(nullptr));
    closed.emplace_back(noun, handle);
  }
  void* closed_one(const std::string& noun) const {
    for (const auto& [name, handle] : closed)
      if (name == noun) return handle;
    return nullptr;
  }
  void expect_refused(const std::vector<handle_row>& rows) {
    for (const handle_row& row : rows) {
      SCOPED_TRACE(row.call);
      if (!row.takes_null) {
        EXPECT_EQ(said(row.with(nullptr)), "invalid_argument: the " + row.noun + " is null");
      }
      const bool is_event = row.noun == "event";
      void* const of_another_kind = is_event ? static_cast<void*>(snapshot) : event;
      EXPECT_EQ(said(row.with(of_another_kind)),
                "invalid_argument: expected a handle of kind " + row.noun);
      EXPECT_EQ(said(row.with(&number)), "invalid_argument: expected a handle of kind " + row.noun);
      if (void* const gone = closed_one(row.noun)) {
        EXPECT_EQ(said(row.with(gone)), "closed: the " + row.noun + " is closed");
      }
    }
    // What a failed call should have written is untouched.
    EXPECT_EQ(out, &number);
    EXPECT_EQ(number, 4711u);
    EXPECT_EQ(half, 4712u);
    EXPECT_EQ(whole, -4713);
    EXPECT_EQ(real, 47.14F);
  }

  weir_event* event = nullptr;
  weir_pool* pool = nullptr;
  weir_stream_pool* stream_pool = nullptr;
  weir_block_pool* block_pool = nullptr;
  weir_buffer_pool* buffer_pool = nullptr;
  weir_buffer* buffer = nullptr;
  weir_buffer* managed = nullptr;
  weir_snapshot* snapshot = nullptr;
  weir_shared* shared = nullptr;
  void* block = nullptr;

  std::vector<std::pair<std::string, void*>> closed;

  // Where calls write that must not.
  void* out = &number;
  std::uint64_t number = 4711;
  std::uint32_t half = 4712;
  std::int32_t whole = -4713;
  float real = 47.14F;
  std::uint8_t bytes64[64] = {};

  template <class Handle>
  Handle** handle_out() {
    return reinterpret_cast<Handle**>(&out);
  }
  template <class Info>
  Info* info_out() {
    static Info info;
    info = unset<Info>();
    return &info;
  }
};

TEST_F(c_arguments, are_a_runtime_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_runtime_get_info(bad, info_out<weir_runtime_info>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_device_get_info(bad, 0, info_out<weir_device_info>())),
      WEIR_HANDLE_ROW(runtime, "runtime", weir_device_get_memory(bad, 0, &number, &number)),
      WEIR_HANDLE_ROW(runtime, "runtime", weir_device_synchronize(bad, 0)),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_device_get_stream_priorities(bad, 0, nullptr, nullptr)),
      WEIR_HANDLE_ROW(runtime, "runtime", weir_device_can_access_peer(bad, 0, 0, nullptr)),
      WEIR_HANDLE_ROW(runtime, "runtime", weir_device_set_peer_access(bad, 0, 0, 1)),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_stream_create(bad, 0, 0, 0, handle_out<weir_stream>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_stream_wrap(bad, 0, nullptr, handle_out<weir_stream>())),
      WEIR_HANDLE_ROW(runtime, "runtime", weir_event_create(bad, 0, 0, handle_out<weir_event>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_allocator_create(bad, 0, nullptr, handle_out<weir_allocator>())),
      WEIR_HANDLE_ROW(
          runtime, "runtime",
          weir_allocator_create_from_environment(bad, 0, nullptr, handle_out<weir_allocator>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_stream_pool_create(bad, 0, nullptr, handle_out<weir_stream_pool>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_stream_pool_open_default(bad, 0, handle_out<weir_stream_pool>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_stream_pool_import(bad, 0, -1, handle_out<weir_stream_pool>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_bin_pool_create(bad, 0, nullptr, handle_out<weir_block_pool>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_pinned_pool_create(bad, 0, nullptr, handle_out<weir_block_pool>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_buffer_create_plain(bad, 0, 1, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_buffer_create_pinned(bad, 0, 1, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(
          runtime, "runtime",
          weir_buffer_create_managed(bad, 0, 1, 0, 0, nullptr, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_buffer_create_managed_copy(bad, 0, &number, 1, 0, nullptr,
                                                      handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_import_pieces(bad, 0, info_out<weir_shared_piece>(), 1, 0, 1, weir_read,
                                         handle_out<weir_imported>())),
      WEIR_HANDLE_ROW(runtime, "runtime",
                      weir_shared_create(bad, 0, 1, 0, handle_out<weir_shared>())),
      WEIR_HANDLE_ROW(runtime, "runtime", weir_link_open(bad, -1, 0, handle_out<weir_link>())),
  });
}

TEST_F(c_arguments, are_a_stream_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(stream, "stream", weir_stream_duplicate(bad, handle_out<weir_stream>())),
      WEIR_HANDLE_ROW(stream, "stream", weir_stream_get_native(bad, &out)),
      WEIR_HANDLE_ROW(stream, "stream", weir_stream_get_id(bad, &number)),
      WEIR_HANDLE_ROW(stream, "stream", weir_stream_synchronize(bad)),
      WEIR_HANDLE_ROW(stream, "stream", weir_stream_is_complete(bad, &whole)),
      WEIR_HANDLE_ROW(stream, "stream", weir_stream_get_capture(bad, &whole, &number)),
      WEIR_HANDLE_ROW(stream, "stream", weir_watch_stream(bad)),
      WEIR_HANDLE_ROW(stream, "stream", weir_unwatch_stream(bad)),
      WEIR_HANDLE_ROW(stream, "stream", weir_copy(block, block, 1, bad)),
      WEIR_HANDLE_ROW(stream, "stream", weir_fill(block, 1, 1, bad)),
      WEIR_HANDLE_ROW(stream, "stream",
                      weir_buffer_pool_take(buffer_pool, 1, 0, bad, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(
          stream, "stream",
          weir_buffer_pool_take_cached(buffer_pool, 1, 0, bad, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(stream, "stream", weir_buffer_pool_free(buffer_pool, buffer, bad)),
      WEIR_STREAM_ROW(weir_event_record(event, bad)),
      WEIR_STREAM_ROW(weir_stream_wait(bad, event)),
      WEIR_STREAM_ROW(weir_allocator_deallocate(memory, block, bad)),
      WEIR_STREAM_ROW(weir_allocator_deallocate_sized(memory, block, 2 * mib, bad)),
      WEIR_STREAM_ROW(weir_allocator_record_stream(memory, block, bad)),
      WEIR_STREAM_ROW(weir_allocator_explain(memory, 1, bad, nullptr, 0, &number)),
      WEIR_STREAM_ROW(weir_allocator_release_stream(memory, bad)),
      WEIR_STREAM_ROW(weir_pool_allocate_at(pool, block, 512, bad)),
      WEIR_STREAM_ROW(weir_capture_begin(memory, bad, handle_out<weir_capture>())),
      WEIR_STREAM_ROW(weir_stream_pool_deallocate(stream_pool, block, bad)),
      WEIR_STREAM_ROW(weir_stream_pool_deallocate_sized(stream_pool, block, 1, bad)),
      WEIR_STREAM_ROW(weir_stream_pool_record_stream(stream_pool, block, bad)),
      WEIR_STREAM_ROW(weir_stream_pool_import_pointer(stream_pool, bytes64, bad, &out, &number)),
      WEIR_STREAM_ROW(weir_block_pool_deallocate(block_pool, block, bad)),
      WEIR_STREAM_ROW(weir_block_pool_record_stream(block_pool, block, bad)),
      WEIR_STREAM_ROW(weir_block_pool_release_stream(block_pool, bad)),
      WEIR_STREAM_ROW(weir_buffer_create(memory, 1, 0, bad, handle_out<weir_buffer>())),
      WEIR_STREAM_ROW(weir_buffer_record_stream(buffer, bad)),
      WEIR_STREAM_ROW(weir_buffer_join(buffer, bad)),
      WEIR_STREAM_ROW(weir_buffer_use_on(managed, bad)),
      WEIR_STREAM_ROW(weir_buffer_hand_over(buffer, bad)),
      WEIR_STREAM_ROW(
          weir_buffer_create_managed(runtime, 0, 1, 0, 0, bad, handle_out<weir_buffer>())),
      WEIR_STREAM_ROW(weir_buffer_create_managed_copy(runtime, 0, &number, 1, 0, bad,
                                                      handle_out<weir_buffer>())),
      WEIR_STREAM_ROW(weir_buffer_prefetch(managed, 0, 0, 0, bad)),
      WEIR_STREAM_ROW(weir_buffer_attach(managed, weir_attach_global, bad)),
      WEIR_STREAM_ROW(weir_buffer_resize_managed(managed, 1, bad)),
      WEIR_STREAM_ROW(weir_shared_allocate(memory, pool, 1, bad, handle_out<weir_shared>())),
  });
}

TEST_F(c_arguments, are_an_event_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(event, "event", weir_event_record(bad, stream)),
      WEIR_HANDLE_ROW(event, "event", weir_event_record_all(bad)),
      WEIR_HANDLE_ROW(event, "event", weir_event_is_complete(bad, &whole)),
      WEIR_HANDLE_ROW(event, "event", weir_event_synchronize(bad)),
      WEIR_HANDLE_ROW(event, "event", weir_event_get_elapsed(bad, event, &real)),
      WEIR_HANDLE_ROW(event, "event", weir_event_get_elapsed(event, bad, &real)),
      WEIR_HANDLE_ROW(event, "event", weir_event_get_native(bad, &out)),
      WEIR_HANDLE_ROW(event, "event", weir_stream_wait(stream, bad)),
      WEIR_HANDLE_ROW(event, "event", weir_buffer_begin_host_after(managed, bad)),
  });
}

TEST_F(c_arguments, are_an_allocator_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_get_device(bad, &whole)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_deallocate(bad, block, stream)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_deallocate_sized(bad, block, 2 * mib, stream)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_free(bad, block)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_reset_counters(bad)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_get_block_streams(bad, block, nullptr, 0, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_allocate_cached(bad, 1, stream, &out)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_buffer_create_copy(bad, &number, 8, stream, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_record_stream(bad, block, stream)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_deallocate_native(bad, block, nullptr)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_record_stream_native(bad, block, nullptr)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_size_of(bad, block, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_find_block(bad, block, info_out<weir_block_info>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_get_stats(bad, info_out<weir_memory_stats>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_get_tag_stats(bad, 0, info_out<weir_memory_stats>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_get_stats_by_tag(bad, nullptr, 0, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_reset_peaks(bad)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_explain(bad, 1, stream, nullptr, 0, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_describe_address(bad, block, nullptr, 0, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_trim(bad, 0, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_empty_cache(bad, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_shrink(bad, 0, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_assume_joined(bad, block, nullptr)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_enable_peer(bad, 0)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_release_stream(bad, stream)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_set_limit(bad, 1)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_set_limit_fraction(bad, 0.5)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_get_limit(bad, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_set_tag_limit(bad, 0, 1)),
      WEIR_HANDLE_ROW(
          allocator, "allocator",
          weir_allocator_on_out_of_memory(bad, reclaim, nullptr, handle_out<weir_callback>())),
      WEIR_HANDLE_ROW(
          allocator, "allocator",
          weir_allocator_before_growth(bad, reclaim, nullptr, handle_out<weir_callback>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_set_out_of_memory_handler(bad, give_up, nullptr)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_pool_create(bad, "x", 0, handle_out<weir_pool>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_pool_create_suspendable(bad, "x", 0, nullptr, handle_out<weir_pool>())),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_declare_suspendable(bad, 0, nullptr)),
      WEIR_HANDLE_ROW(
          allocator, "allocator",
          weir_allocator_suspend_tag(bad, 0, nullptr, info_out<weir_suspend_outcome>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_suspend(bad, nullptr, info_out<weir_suspend_outcome>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_resume_tag(bad, 0, nullptr, info_out<weir_resume_outcome>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_resume(bad, nullptr, info_out<weir_resume_outcome>())),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_suspend_tag_async(bad, 0, nullptr)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_suspend_async(bad, nullptr)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_resume_tag_async(bad, 0, stream, nullptr)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_resume_async(bad, stream, nullptr)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_is_tag_suspended(bad, 0, &whole)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_is_address_suspended(bad, block, &whole)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_get_suspend_stats(bad, info_out<weir_suspend_stats>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_get_tag_suspend_stats(bad, 0, info_out<weir_suspend_stats>())),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_reserve_backup(bad, 1, 0)),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_trim_backup(bad, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_capture_begin(bad, stream, handle_out<weir_capture>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_capture_guard_open(bad, handle_out<weir_capture_guard>())),
      WEIR_HANDLE_ROW(allocator, "allocator", weir_snapshot_take(bad, handle_out<weir_snapshot>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_recorder_start(bad, "/dev/null", nullptr, handle_out<weir_recorder>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_buffer_create(bad, 1, 0, stream, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_export_block(bad, block, nullptr, 0, &number, &number)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_shared_allocate(bad, pool, 1, stream, handle_out<weir_shared>())),
  });
}

TEST_F(c_arguments, are_a_pool_or_a_capture_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_allocate_at(bad, block, 512, stream)),
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_get_id(bad, &half)),
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_set_fallback(bad, 1)),
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_get_stats(bad, info_out<weir_memory_stats>())),
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_empty_cache(bad, &number)),
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_enter(bad)),
      WEIR_HANDLE_ROW(pool, "pool",
                      weir_pool_suspend(bad, nullptr, info_out<weir_suspend_outcome>())),
      WEIR_HANDLE_ROW(pool, "pool",
                      weir_pool_resume(bad, nullptr, info_out<weir_resume_outcome>())),
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_suspend_async(bad, nullptr)),
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_resume_async(bad, stream, nullptr)),
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_is_suspended(bad, &whole)),
      WEIR_HANDLE_ROW(pool, "pool",
                      weir_pool_get_suspend_stats(bad, info_out<weir_suspend_stats>())),
      WEIR_HANDLE_ROW(pool, "pool", weir_snapshot_take_pool(bad, handle_out<weir_snapshot>())),
      WEIR_HANDLE_ROW(pool, "pool",
                      weir_shared_allocate(memory, bad, 1, stream, handle_out<weir_shared>())),
      WEIR_HANDLE_ROW(capture, "capture", weir_capture_end(bad)),
      WEIR_HANDLE_ROW(capture, "capture", weir_capture_tie_to_graph(bad, &number)),
      WEIR_HANDLE_ROW(capture, "capture", weir_capture_get_pool(bad, handle_out<weir_pool>())),
  });
}

TEST_F(c_arguments, are_a_snapshot_or_a_recorder_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(snapshot, "snapshot",
                      weir_snapshot_get_info(bad, info_out<weir_snapshot_info>())),
      WEIR_HANDLE_ROW(snapshot, "snapshot",
                      weir_snapshot_get_pool(bad, 0, info_out<weir_pool_info>())),
      WEIR_HANDLE_ROW(snapshot, "snapshot",
                      weir_snapshot_get_blocks(bad, 0, 0, nullptr, 0, &number)),
      WEIR_HANDLE_ROW(snapshot, "snapshot",
                      weir_snapshot_get_physical(bad, 0, 0, nullptr, 0, &number)),
      WEIR_HANDLE_ROW(recorder, "recorder", weir_recorder_marker(bad, "x")),
      WEIR_HANDLE_ROW(recorder, "recorder", weir_recorder_flush(bad)),
      WEIR_HANDLE_ROW(recorder, "recorder",
                      weir_recorder_get_stats(bad, info_out<weir_recorder_stats>())),
  });
}

TEST_F(c_arguments, are_a_stream_pool_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_deallocate(bad, block, stream)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool",
                      weir_stream_pool_deallocate_sized(bad, block, 1, stream)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_get_native(bad, &out)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_get_device(bad, &whole)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool",
                      weir_stream_pool_record_stream(bad, block, stream)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool",
                      weir_stream_pool_get_stats(bad, info_out<weir_stream_pool_stats>())),
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_get_attribute(bad, 1, &number)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_set_attribute(bad, 1, 1)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_reset_peaks(bad)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_trim(bad, 0, &number)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_set_peer(bad, 1, 1)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_get_peer(bad, 1, &whole)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool", weir_stream_pool_export(bad, &whole)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool",
                      weir_stream_pool_export_pointer(bad, block, bytes64)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool",
                      weir_stream_pool_import_pointer(bad, bytes64, stream, &out, &number)),
  });
}

TEST_F(c_arguments, are_a_block_pool_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_deallocate(bad, block, stream)),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_free(bad, block)),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_get_device(bad, &whole)),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_get_threshold(bad, &number)),
      WEIR_HANDLE_ROW(block_pool, "block pool",
                      weir_buffer_create_pooled(bad, 1, 0, stream, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_record_stream(bad, block, stream)),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_release_stream(bad, stream)),
      WEIR_HANDLE_ROW(block_pool, "block pool",
                      weir_block_pool_get_stats(bad, info_out<weir_block_pool_stats>())),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_reset_peaks(bad)),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_reset_counters(bad)),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_trim(bad, 0, &number)),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_empty_cache(bad, &number)),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_set_threshold(bad, 1)),
  });
}

TEST_F(c_arguments, are_a_buffer_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_get_info(bad, info_out<weir_buffer_info>())),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_resize(bad, 1)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_hand_over(bad, stream)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_record_stream(bad, stream)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_join(bad, stream)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_use_on(bad, stream)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_begin_host(bad)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_begin_host_after(bad, event)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_try_begin_host(bad)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_end_host(bad)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_prefetch(bad, 0, 0, 0, stream)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_advise_read_mostly(bad, 0, 0, 1)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_advise_preferred(bad, 0, 0, 0)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_advise_accessed_by(bad, 0, 0, 0, 1)),
      WEIR_HANDLE_ROW(buffer, "buffer",
                      weir_buffer_get_managed_info(bad, 0, 0, info_out<weir_managed_info>())),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_attach(bad, weir_attach_global, stream)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_resize_managed(bad, 1, stream)),
      WEIR_HANDLE_ROW(buffer, "buffer", weir_buffer_pool_free(buffer_pool, bad, stream)),
      WEIR_HANDLE_ROW(buffer_pool, "buffer pool",
                      weir_buffer_pool_take(bad, 1, 0, stream, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(buffer_pool, "buffer pool",
                      weir_buffer_pool_take_cached(bad, 1, 0, stream, handle_out<weir_buffer>())),
      WEIR_HANDLE_ROW(buffer_pool, "buffer pool", weir_buffer_pool_free(bad, buffer, stream)),
      WEIR_HANDLE_ROW(
          buffer_pool, "buffer pool",
          weir_buffer_pool_get_stats(bad, runtime, 0, info_out<weir_buffer_pool_stats>())),
      WEIR_HANDLE_ROW(buffer_pool, "buffer pool", weir_buffer_pool_reset_peaks(bad, runtime, 0)),
      WEIR_HANDLE_ROW(buffer_pool, "buffer pool", weir_buffer_pool_reset_counters(bad, runtime, 0)),
      WEIR_HANDLE_ROW(buffer_pool, "buffer pool",
                      weir_buffer_pool_trim(bad, runtime, 0, 0, &number)),
      WEIR_HANDLE_ROW(buffer_pool, "buffer pool",
                      weir_buffer_pool_empty_cache(bad, runtime, 0, &number)),
  });
  EXPECT_EQ(
      said(weir_buffer_create_managed(runtime, 0, 1, 0, 0, elsewhere, handle_out<weir_buffer>())),
      "bad_stream: the stream belongs to another device");
}

TEST_F(c_arguments, are_of_a_link_where_one_is_needed) {
  expect_refused({
      WEIR_HANDLE_ROW(shared, "shared", weir_shared_get_info(bad, info_out<weir_shared_info>())),
      WEIR_HANDLE_ROW(imported, "imported",
                      weir_imported_get_info(bad, info_out<weir_imported_info>())),
      WEIR_HANDLE_ROW(link, "link", weir_link_check(bad)),
      WEIR_HANDLE_ROW(link, "link", weir_link_offer_memory(bad, shared, 0, 0, weir_read, &number)),
      WEIR_HANDLE_ROW(link, "link", weir_link_offer_event(bad, event, &number)),
      WEIR_HANDLE_ROW(link, "link", weir_link_offer_stream_pool(bad, stream_pool, &number)),
      WEIR_HANDLE_ROW(link, "link", weir_link_send_note(bad, "x", 1)),
      WEIR_HANDLE_ROW(link, "link", weir_link_revoke(bad, 1, 0)),
      WEIR_HANDLE_ROW(link, "link", weir_link_get_outstanding(bad, &number)),
      WEIR_HANDLE_ROW(link, "link", weir_link_receive(bad, 0, handle_out<weir_offer>())),
      WEIR_HANDLE_ROW(offer, "offer", weir_offer_get_info(bad, info_out<weir_offer_info>())),
      WEIR_HANDLE_ROW(offer, "offer", weir_offer_get_note(bad, bytes64, 1)),
      WEIR_HANDLE_ROW(offer, "offer", weir_offer_open_memory(bad, handle_out<weir_imported>())),
      WEIR_HANDLE_ROW(offer, "offer", weir_offer_open_event(bad, handle_out<weir_event>())),
      WEIR_HANDLE_ROW(offer, "offer",
                      weir_offer_open_stream_pool(bad, handle_out<weir_stream_pool>())),
  });
  for (weir_error code :
       {weir_imported_close(nullptr), weir_link_close(nullptr), weir_offer_close(nullptr),
        weir_recorder_close(nullptr), weir_stream_pool_close(nullptr, &number)})
    EXPECT_EQ(code, weir_ok);
}

// The pointer to memory alone is null after a failure.
TEST_F(c_arguments, of_an_allocation_that_fails_leave_a_null_pointer) {
  const std::vector<handle_row> rows = {
      WEIR_HANDLE_ROW(allocator, "allocator", weir_allocator_allocate(bad, 1, stream, &out)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_allocate_aligned(bad, 1, 512, stream, &out)),
      WEIR_HANDLE_ROW(allocator, "allocator",
                      weir_allocator_allocate_native(bad, 1, nullptr, &out)),
      WEIR_HANDLE_ROW(pool, "pool", weir_pool_allocate(bad, 1, 0, stream, &out)),
      WEIR_HANDLE_ROW(stream_pool, "stream pool",
                      weir_stream_pool_allocate(bad, 1, 0, stream, &out)),
      WEIR_HANDLE_ROW(block_pool, "block pool", weir_block_pool_allocate(bad, 1, 0, stream, &out)),
      WEIR_STREAM_ROW(weir_allocator_allocate(memory, 1, bad, &out)),
      WEIR_STREAM_ROW(weir_allocator_allocate_aligned(memory, 1, 512, bad, &out)),
      WEIR_STREAM_ROW(weir_pool_allocate(pool, 1, 0, bad, &out)),
      WEIR_STREAM_ROW(weir_stream_pool_allocate(stream_pool, 1, 0, bad, &out)),
      WEIR_STREAM_ROW(weir_block_pool_allocate(block_pool, 1, 0, bad, &out)),
  };
  for (const handle_row& row : rows) {
    SCOPED_TRACE(row.call);
    const auto with = [&](void* handle) {
      out = &number;
      const std::string refusal = said(row.with(handle));
      EXPECT_EQ(out, nullptr);
      return refusal;
    };
    if (!row.takes_null) {
      EXPECT_EQ(with(nullptr), "invalid_argument: the " + row.noun + " is null");
    }
    EXPECT_EQ(with(event), "invalid_argument: expected a handle of kind " + row.noun);
    EXPECT_EQ(with(closed_one(row.noun)), "closed: the " + row.noun + " is closed");
  }
  for (weir_error code : {weir_allocator_allocate(memory, 1, stream, nullptr),
                          weir_allocator_allocate_aligned(memory, 1, 512, stream, nullptr),
                          weir_allocator_allocate_native(memory, 1, nullptr, nullptr),
                          weir_pool_allocate(pool, 1, 0, stream, nullptr),
                          weir_stream_pool_allocate(stream_pool, 1, 0, stream, nullptr),
                          weir_block_pool_allocate(block_pool, 1, 0, stream, nullptr)}) {
    EXPECT_EQ(code, weir_error_invalid_argument);
    EXPECT_STREQ(weir_last_error_message(), "invalid_argument: pointer is null");
  }
}

TEST_F(c_arguments, that_are_written_through_must_not_be_null) {
  struct row {
    std::string parameter;
    std::function<weir_error()> call;
  };
  const std::vector<row> rows = {
      {"runtime", [&] { return weir_runtime_open("runtime=sim", nullptr); }},
      {"runtime", [&] { return weir_default_runtime(nullptr); }},
      {"allocator", [&] { return weir_default_allocator(0, nullptr); }},
      {"stream", [&] { return weir_stream_create(runtime, 0, 0, 0, nullptr); }},
      {"stream", [&] { return weir_stream_wrap(runtime, 0, nullptr, nullptr); }},
      {"duplicate", [&] { return weir_stream_duplicate(stream, nullptr); }},
      {"native", [&] { return weir_stream_get_native(stream, nullptr); }},
      {"id", [&] { return weir_stream_get_id(stream, nullptr); }},
      {"complete", [&] { return weir_stream_is_complete(stream, nullptr); }},
      {"status", [&] { return weir_stream_get_capture(stream, nullptr, &number); }},
      {"event", [&] { return weir_event_create(runtime, 0, 0, nullptr); }},
      {"complete", [&] { return weir_event_is_complete(event, nullptr); }},
      {"milliseconds", [&] { return weir_event_get_elapsed(event, event, nullptr); }},
      {"native", [&] { return weir_event_get_native(event, nullptr); }},
      {"name", [&] { return weir_tag_named(nullptr, &half); }},
      {"number", [&] { return weir_tag_named("x", nullptr); }},
      {"name", [&] { return weir_option_get_value("", nullptr, nullptr, 0, &number); }},
      {"text", [&] { return weir_option_get_value("", "heap_policy", nullptr, 1, &number); }},
      {"into", [&] { return weir_allocator_create(runtime, 0, nullptr, nullptr); }},
      {"device", [&] { return weir_allocator_get_device(memory, nullptr); }},
      {"size", [&] { return weir_allocator_size_of(memory, block, nullptr); }},
      {"count", [&] { return weir_allocator_get_stats_by_tag(memory, nullptr, 0, nullptr); }},
      {"the array", [&] { return weir_allocator_get_stats_by_tag(memory, nullptr, 1, &number); }},
      {"text", [&] { return weir_allocator_explain(memory, 1, stream, nullptr, 1, &number); }},
      {"text", [&] { return weir_allocator_describe_address(memory, block, nullptr, 1, &number); }},
      {"most", [&] { return weir_allocator_get_limit(memory, nullptr); }},
      {"callback",
       [&] {
         return weir_allocator_on_out_of_memory(memory, nullptr, nullptr,
                                                handle_out<weir_callback>());
       }},
      {"registration",
       [&] { return weir_allocator_on_out_of_memory(memory, reclaim, nullptr, nullptr); }},
      {"callback",
       [&] {
         return weir_allocator_before_growth(memory, nullptr, nullptr, handle_out<weir_callback>());
       }},
      {"registration",
       [&] { return weir_allocator_before_growth(memory, reclaim, nullptr, nullptr); }},
      {"name", [&] { return weir_pool_create(memory, nullptr, 0, handle_out<weir_pool>()); }},
      {"pool", [&] { return weir_pool_create(memory, "x", 0, nullptr); }},
      {"name",
       [&] {
         return weir_pool_create_suspendable(memory, nullptr, 0, nullptr, handle_out<weir_pool>());
       }},
      {"pool", [&] { return weir_pool_create_suspendable(memory, "x", 0, nullptr, nullptr); }},
      {"suspended", [&] { return weir_allocator_is_tag_suspended(memory, 0, nullptr); }},
      {"suspended", [&] { return weir_pool_is_suspended(pool, nullptr); }},
      {"suspended", [&] { return weir_allocator_is_address_suspended(memory, block, nullptr); }},
      {"id", [&] { return weir_pool_get_id(pool, nullptr); }},
      {"capture", [&] { return weir_capture_begin(memory, stream, nullptr); }},
      {"guard", [&] { return weir_capture_guard_open(memory, nullptr); }},
      {"snapshot", [&] { return weir_snapshot_take(memory, nullptr); }},
      {"snapshot", [&] { return weir_snapshot_take_pool(pool, nullptr); }},
      {"count", [&] { return weir_snapshot_get_blocks(snapshot, 0, 0, nullptr, 0, nullptr); }},
      {"count", [&] { return weir_snapshot_get_physical(snapshot, 0, 0, nullptr, 0, nullptr); }},
      {"the array", [&] { return weir_snapshot_get_blocks(snapshot, 0, 0, nullptr, 1, &number); }},
      {"the array",
       [&] { return weir_snapshot_get_physical(snapshot, 0, 0, nullptr, 1, &number); }},
      {"path",
       [&] { return weir_recorder_start(memory, nullptr, nullptr, handle_out<weir_recorder>()); }},
      {"recorder", [&] { return weir_recorder_start(memory, "/dev/null", nullptr, nullptr); }},
      {"pool", [&] { return weir_stream_pool_create(runtime, 0, nullptr, nullptr); }},
      {"pool", [&] { return weir_stream_pool_open_default(runtime, 0, nullptr); }},
      {"pool", [&] { return weir_stream_pool_import(runtime, 0, -1, nullptr); }},
      {"native", [&] { return weir_stream_pool_get_native(stream_pool, nullptr); }},
      {"value", [&] { return weir_stream_pool_get_attribute(stream_pool, 1, nullptr); }},
      {"rights", [&] { return weir_stream_pool_get_peer(stream_pool, 1, nullptr); }},
      {"descriptor", [&] { return weir_stream_pool_export(stream_pool, nullptr); }},
      {"into", [&] { return weir_stream_pool_export_pointer(stream_pool, block, nullptr); }},
      {"from",
       [&] {
         return weir_stream_pool_import_pointer(stream_pool, nullptr, stream, &out, &number);
       }},
      {"pointer",
       [&] {
         return weir_stream_pool_import_pointer(stream_pool, bytes64, stream, nullptr, &number);
       }},
      {"size",
       [&] {
         return weir_stream_pool_import_pointer(stream_pool, bytes64, stream, &out, nullptr);
       }},
      {"pool", [&] { return weir_bin_pool_create(runtime, 0, nullptr, nullptr); }},
      {"pool", [&] { return weir_pinned_pool_create(runtime, 0, nullptr, nullptr); }},
      {"buffer", [&] { return weir_buffer_create(memory, 1, 0, stream, nullptr); }},
      {"buffer", [&] { return weir_buffer_create_pooled(block_pool, 1, 0, stream, nullptr); }},
      {"buffer", [&] { return weir_buffer_create_copy(memory, &number, 8, stream, nullptr); }},
      {"data",
       [&] {
         return weir_buffer_create_copy(memory, nullptr, 8, stream, handle_out<weir_buffer>());
       }},
      {"device", [&] { return weir_block_pool_get_device(block_pool, nullptr); }},
      {"threshold", [&] { return weir_block_pool_get_threshold(block_pool, nullptr); }},
      {"rounded", [&] { return weir_block_pool_rounded_size(1, nullptr); }},
      {"rounded", [&] { return weir_allocator_rounded_size(1, nullptr); }},
      {"segment", [&] { return weir_segment_size(1, nullptr); }},
      {"device", [&] { return weir_stream_pool_get_device(stream_pool, nullptr); }},
      {"config", [&] { return weir_stream_pool_config_validate(nullptr); }},
      {"count",
       [&] { return weir_allocator_get_block_streams(memory, block, nullptr, 0, nullptr); }},
      {"pointer", [&] { return weir_allocator_allocate_cached(memory, 1, stream, nullptr); }},
      {"buffer", [&] { return weir_buffer_create_plain(runtime, 0, 1, nullptr); }},
      {"buffer", [&] { return weir_buffer_create_pinned(runtime, 0, 1, nullptr); }},
      {"buffer", [&] { return weir_buffer_create_managed(runtime, 0, 1, 0, 0, nullptr, nullptr); }},
      {"buffer",
       [&] {
         return weir_buffer_create_managed_copy(runtime, 0, &number, 1, 0, nullptr, nullptr);
       }},
      {"data",
       [&] {
         return weir_buffer_create_managed_copy(runtime, 0, nullptr, 1, 0, nullptr,
                                                handle_out<weir_buffer>());
       }},
      {"pool", [&] { return weir_buffer_pool_create(nullptr, nullptr); }},
      {"buffer", [&] { return weir_buffer_pool_take(buffer_pool, 1, 0, stream, nullptr); }},
      {"buffer", [&] { return weir_buffer_pool_take_cached(buffer_pool, 1, 0, stream, nullptr); }},
      {"count",
       [&] { return weir_allocator_export_block(memory, block, nullptr, 0, nullptr, &number); }},
      {"offset",
       [&] { return weir_allocator_export_block(memory, block, nullptr, 0, &number, nullptr); }},
      {"imported",
       [&] {
         return weir_import_pieces(runtime, 0, info_out<weir_shared_piece>(), 1, 0, 1, weir_read,
                                   nullptr);
       }},
      {"pieces",
       [&] {
         return weir_import_pieces(runtime, 0, nullptr, 1, 0, 1, weir_read,
                                   handle_out<weir_imported>());
       }},
      {"shared", [&] { return weir_shared_create(runtime, 0, 1, 0, nullptr); }},
      {"shared", [&] { return weir_shared_allocate(memory, pool, 1, stream, nullptr); }},
      {"sockets", [&] { return weir_link_create_sockets(nullptr); }},
      {"link", [&] { return weir_link_open(runtime, -1, 0, nullptr); }},
  };
  for (const row& each : rows) {
    const std::string refusal = said(each.call());
    EXPECT_EQ(refusal, "invalid_argument: " + each.parameter + " is null") << &each - rows.data();
  }
  EXPECT_EQ(out, &number);
  EXPECT_EQ(number, 4711u);
}

TEST_F(c_arguments, name_a_device_that_there_is) {
  const std::vector<std::function<weir_error(std::int32_t)>> calls = {
      [&](auto n) { return weir_device_get_info(runtime, n, info_out<weir_device_info>()); },
      [&](auto n) { return weir_device_get_memory(runtime, n, &number, &number); },
      [&](auto n) { return weir_device_synchronize(runtime, n); },
      [&](auto n) { return weir_stream_create(runtime, n, 0, 0, handle_out<weir_stream>()); },
      [&](auto n) { return weir_stream_wrap(runtime, n, nullptr, handle_out<weir_stream>()); },
      [&](auto n) { return weir_event_create(runtime, n, 0, handle_out<weir_event>()); },
      [&](auto n) {
        return weir_allocator_create(runtime, n, nullptr, handle_out<weir_allocator>());
      },
      [&](auto n) {
        return weir_stream_pool_create(runtime, n, nullptr, handle_out<weir_stream_pool>());
      },
      [&](auto n) {
        return weir_stream_pool_open_default(runtime, n, handle_out<weir_stream_pool>());
      },
      [&](auto n) {
        return weir_stream_pool_import(runtime, n, -1, handle_out<weir_stream_pool>());
      },
      [&](auto n) { return weir_stream_pool_set_peer(stream_pool, n, 1); },
      [&](auto n) { return weir_stream_pool_get_peer(stream_pool, n, &whole); },
      [&](auto n) {
        return weir_bin_pool_create(runtime, n, nullptr, handle_out<weir_block_pool>());
      },
      [&](auto n) {
        return weir_pinned_pool_create(runtime, n, nullptr, handle_out<weir_block_pool>());
      },
      [&](auto n) { return weir_buffer_create_plain(runtime, n, 1, handle_out<weir_buffer>()); },
      [&](auto n) { return weir_buffer_create_pinned(runtime, n, 1, handle_out<weir_buffer>()); },
      [&](auto n) {
        return weir_buffer_create_managed(runtime, n, 1, 0, 0, nullptr, handle_out<weir_buffer>());
      },
      [&](auto n) {
        return weir_buffer_pool_get_stats(buffer_pool, runtime, n,
                                          info_out<weir_buffer_pool_stats>());
      },
      [&](auto n) { return weir_buffer_pool_reset_peaks(buffer_pool, runtime, n); },
      [&](auto n) { return weir_buffer_pool_reset_counters(buffer_pool, runtime, n); },
      [&](auto n) { return weir_buffer_pool_trim(buffer_pool, runtime, n, 0, &number); },
      [&](auto n) { return weir_buffer_pool_empty_cache(buffer_pool, runtime, n, &number); },
      [&](auto n) { return weir_shared_create(runtime, n, 1, 0, handle_out<weir_shared>()); },
      [&](auto n) {
        return weir_import_pieces(runtime, n, info_out<weir_shared_piece>(), 1, 0, 1, weir_read,
                                  handle_out<weir_imported>());
      },
  };
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (const std::int32_t outside : {-1, 2})
      EXPECT_EQ(calls[i](outside), weir_error_no_device) << i << ", " << outside;
  EXPECT_EQ(out, &number);
  EXPECT_EQ(number, 4711u);
}

TEST_F(c_arguments, have_only_flags_that_there_are) {
  weir_recorder_options of_recorder = {};
  of_recorder.struct_size = sizeof(of_recorder);
  weir_stream_pool_config of_pool = WEIR_STREAM_POOL_CONFIG_INIT;
  weir_buffer_pool_options of_buffers = WEIR_BUFFER_POOL_OPTIONS_INIT;
  const auto call = [&](int row, std::uint32_t flags) {
    switch (row) {
      case 0:
        return weir_stream_create(runtime, 0, flags, 0, handle_out<weir_stream>());
      case 1:
        return weir_event_create(runtime, 0, flags, handle_out<weir_event>());
      case 2:
        return weir_pool_create(memory, "x", flags, handle_out<weir_pool>());
      case 3:
        return weir_buffer_create_managed(runtime, 0, 1, flags, 0, stream,
                                          handle_out<weir_buffer>());
      case 4:
        return weir_buffer_pool_take(buffer_pool, 1, flags, stream, handle_out<weir_buffer>());
      case 5:
        return weir_buffer_pool_take_cached(buffer_pool, 1, flags, stream,
                                            handle_out<weir_buffer>());
      case 6:
        of_recorder.flags = flags;
        return weir_recorder_start(memory, "/dev/null/x", &of_recorder,
                                   handle_out<weir_recorder>());
      case 7:
        of_pool.flags = flags;
        return weir_stream_pool_create(runtime, 0, &of_pool, handle_out<weir_stream_pool>());
      case 8:
        return weir_pool_create_suspendable(memory, "x", flags, nullptr, handle_out<weir_pool>());
      default:
        of_buffers.flags = flags;
        return weir_buffer_pool_create(&of_buffers, handle_out<weir_buffer_pool>());
    }
  };
  // The first bit that means nothing, and the last.
  const std::uint32_t first_unknown[] = {1 << 1, 1 << 3, 1 << 2, 1 << 1, 1 << 1,
                                         1 << 1, 1 << 3, 1 << 4, 1 << 2, 1 << 1};
  for (int row = 0; row < 10; ++row) {
    EXPECT_EQ(said(call(row, first_unknown[row])),
              "invalid_argument: flags contains an unknown bit")
        << row;
    EXPECT_EQ(said(call(row, 1U << 31)), "invalid_argument: flags contains an unknown bit") << row;
  }
  EXPECT_EQ(out, &number);
}

// --- Structures of other versions ----------------------------------------------------------------

/// A structure as a newer program has it.
template <class Info>
struct newer {
  Info known;
  std::uint8_t rest[40];
};

template <class Info>
void expect_to_know_its_version(const char* parameter,
                                const std::function<weir_error(Info*)>& call) {
  const std::string null = std::string{"invalid_argument: "} + parameter + " is null";
  EXPECT_EQ(said(call(nullptr)), null);
  newer<Info> info;
  const auto before = [&](std::size_t size) {
    std::memset(static_cast<void*>(&info), 0xa5, sizeof(info));
    info.known.struct_size = static_cast<std::uint32_t>(size);
    return info;
  };
  // One that was forgotten may be anything.
  for (const std::size_t size :
       {std::size_t{0}, sizeof(Info) - 1, std::size_t{65537}, std::size_t{0xffff'ffff}}) {
    const auto untouched = before(size);
    EXPECT_EQ(said(call(&info.known)), "bad_version: struct_size must be from " +
                                           std::to_string(sizeof(Info)) + " to 65536, got " +
                                           std::to_string(size));
    EXPECT_EQ(std::memcmp(&info, &untouched, sizeof(info)), 0);
  }
  static_cast<void>(before(sizeof(Info)));
  EXPECT_OK(call(&info.known));
  EXPECT_EQ(info.known.struct_size, sizeof(Info));
  EXPECT_EQ(info.rest[0], 0xa5) << "it ends where it said";
  static_cast<void>(before(sizeof(info)));
  EXPECT_OK(call(&info.known));
  EXPECT_EQ(info.known.struct_size, sizeof(Info));
  for (const std::uint8_t each : info.rest) EXPECT_EQ(each, 0) << "nobody knows of it here";
}

TEST_F(c_arguments, are_structures_of_any_version_to_be_filled_in) {
  expect_to_know_its_version<weir_option_info>(
      "info", [&](auto* info) { return weir_option_get_info(0, info); });
  expect_to_know_its_version<weir_runtime_info>(
      "info", [&](auto* info) { return weir_runtime_get_info(runtime, info); });
  expect_to_know_its_version<weir_device_info>(
      "info", [&](auto* info) { return weir_device_get_info(runtime, 0, info); });
  expect_to_know_its_version<weir_block_info>(
      "block", [&](auto* info) { return weir_allocator_find_block(memory, block, info); });
  expect_to_know_its_version<weir_memory_stats>(
      "stats", [&](auto* info) { return weir_allocator_get_stats(memory, info); });
  expect_to_know_its_version<weir_memory_stats>(
      "stats", [&](auto* info) { return weir_allocator_get_tag_stats(memory, 0, info); });
  expect_to_know_its_version<weir_memory_stats>(
      "info", [&](auto* info) { return weir_pool_get_stats(pool, info); });
  expect_to_know_its_version<weir_suspend_stats>(
      "stats", [&](auto* info) { return weir_allocator_get_suspend_stats(memory, info); });
  expect_to_know_its_version<weir_suspend_stats>(
      "stats", [&](auto* info) { return weir_allocator_get_tag_suspend_stats(memory, 0, info); });
  expect_to_know_its_version<weir_suspend_stats>(
      "stats", [&](auto* info) { return weir_pool_get_suspend_stats(pool, info); });
  expect_to_know_its_version<weir_tag_stats>("the array", [&](auto* info) {
    return weir_allocator_get_stats_by_tag(memory, info, 1, &number);
  });
  expect_to_know_its_version<weir_snapshot_info>(
      "info", [&](auto* info) { return weir_snapshot_get_info(snapshot, info); });
  expect_to_know_its_version<weir_pool_info>(
      "info", [&](auto* info) { return weir_snapshot_get_pool(snapshot, 0, info); });
  expect_to_know_its_version<weir_block_info>("the array", [&](auto* info) {
    return weir_snapshot_get_blocks(snapshot, 0, 0, info, 1, &number);
  });
  expect_to_know_its_version<weir_physical_info>("the array", [&](auto* info) {
    return weir_snapshot_get_physical(snapshot, 0, 0, info, 1, &number);
  });
  expect_to_know_its_version<weir_stream_pool_stats>(
      "stats", [&](auto* info) { return weir_stream_pool_get_stats(stream_pool, info); });
  expect_to_know_its_version<weir_block_pool_stats>(
      "info", [&](auto* info) { return weir_block_pool_get_stats(block_pool, info); });
  expect_to_know_its_version<weir_buffer_info>(
      "info", [&](auto* info) { return weir_buffer_get_info(buffer, info); });
  expect_to_know_its_version<weir_managed_info>(
      "info", [&](auto* info) { return weir_buffer_get_managed_info(managed, 0, 0, info); });
  expect_to_know_its_version<weir_buffer_pool_stats>("stats", [&](auto* info) {
    return weir_buffer_pool_get_stats(buffer_pool, runtime, 0, info);
  });
  expect_to_know_its_version<weir_shared_info>(
      "info", [&](auto* info) { return weir_shared_get_info(shared, info); });
}

/// A structure that says something: what a newer program adds must be nothing, or is not
/// understood.
template <class Info>
void expect_to_be_understood(Info info, const std::function<weir_error(const Info*)>& call) {
  const Info good = info;
  EXPECT_OK(call(nullptr));
  EXPECT_OK(call(&info));
  info.struct_size = 0xffff'ffff;
  EXPECT_EQ(said(call(&info)), "bad_version: struct_size must be from " +
                                   std::to_string(sizeof(Info)) + " to 65536, got 4294967295");
  info.struct_size = sizeof(Info) - 1;
  EXPECT_EQ(said(call(&info)), "bad_version: struct_size must be from " +
                                   std::to_string(sizeof(Info)) + " to 65536, got " +
                                   std::to_string(sizeof(Info) - 1));
  newer<Info> later{};
  later.known = good;
  later.known.struct_size = sizeof(later);
  EXPECT_OK(call(&later.known));
  for (const std::size_t said_at : {std::size_t{0}, sizeof(later.rest) - 1}) {
    later.rest[said_at] = 1;
    EXPECT_EQ(said(call(&later.known)),
              "bad_version: the structure is larger than this version of weir knows, and its "
              "further members are not zero; use a newer weir");
    later.rest[said_at] = 0;
  }
}

TEST_F(c_arguments, are_structures_of_any_version_to_be_read) {
  expect_to_be_understood<weir_stream_pool_config>(
      WEIR_STREAM_POOL_CONFIG_INIT, [&](const auto* config) {
        weir_stream_pool* created = nullptr;
        const weir_error code = weir_stream_pool_create(runtime, 0, config, &created);
        return code == weir_ok ? weir_stream_pool_close(created, nullptr) : code;
      });
  expect_to_be_understood<weir_buffer_pool_options>(
      WEIR_BUFFER_POOL_OPTIONS_INIT, [&](const auto* settings) {
        weir_buffer_pool* created = nullptr;
        const weir_error code = weir_buffer_pool_create(settings, &created);
        return code == weir_ok ? weir_buffer_pool_close(created) : code;
      });
  std::uint32_t tag = 0;
  ASSERT_OK(weir_tag_named("structures", &tag));
  expect_to_be_understood<weir_suspendable_options>(
      WEIR_SUSPENDABLE_OPTIONS_INIT, [&](const auto* settings) {
        return weir_allocator_declare_suspendable(memory, tag, settings);
      });
  expect_to_be_understood<weir_suspend_options>(
      WEIR_SUSPEND_OPTIONS_INIT,
      [&](const auto* settings) { return weir_pool_suspend(pool, settings, nullptr); });
  expect_to_be_understood<weir_resume_options>(WEIR_RESUME_OPTIONS_INIT, [&](const auto* settings) {
    return weir_pool_resume(pool, settings, nullptr);
  });
}

}  // namespace
}  // namespace weir::testing_support
