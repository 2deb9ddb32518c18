// SPDX-License-Identifier: Apache-2.0
// The C ABI where the host has no memory: whichever allocation fails, it is told and nothing is
// lost.
#include <unistd.h>

#include <array>
#include <filesystem>
#include <iterator>

#include "capi/objects.hpp"
#include "support/scarce_machine.hpp"
#include "weir.h"

namespace weir::testing_support { namespace {

constexpr std::uint64_t one_mib = std::uint64_t{1} << 20;

/// With handles of the machine and of a stream on it.
class scarce_capi : public scarce_machine {
 protected:
  scarce_capi() {
    auto object = std::make_shared<capi::runtime_object>();
    object->machine = runtime_;
    machine_handle = capi::hand_out_handle<weir_runtime>(std::move(object)).value();
    EXPECT_TRUE(did(weir_stream_create(machine_handle, 0, 0, 0, &stream_handle)));
    EXPECT_TRUE(did(weir_stream_create(machine_handle, 0, 0, 0, &other_handle)));
  }
  void TearDown() override {
    EXPECT_TRUE(did(weir_stream_close(other_handle)));
    EXPECT_TRUE(did(weir_stream_close(stream_handle)));
    EXPECT_TRUE(did(weir_runtime_close(machine_handle)));
    scarce_machine::TearDown();
  }

  /// Whether a call did what it was asked for. Of those that did not, the host is out of memory.
  static bool did(weir_error code) {
    if (code == weir_ok) return true;
    const spared_memory spared;
    if (code != weir_error_no_host_memory) ADD_FAILURE() << weir_last_error_message();
    EXPECT_STRNE(weir_last_error_message(), "");
    return false;
  }
  /// A close or a free: once there is memory again it can be repeated, unless it was done all the
  /// same.
  template <class Call>
  static void end(const Call& call, weir_error done) {
    if (did(call())) return;
    const weir_error again = call();
    const spared_memory spared;
    EXPECT_TRUE(again == weir_ok || again == done) << weir_last_error_message();
  }
  template <class Handle>
  static void close(weir_error (*call)(Handle*), Handle* handle) {
    if (handle != nullptr) end([&] { return call(handle); }, weir_error_closed);
  }
  template <class Info>
  static Info sized() {
    Info info{};
    info.struct_size = sizeof(info);
    return info;
  }
  static std::size_t descriptors() {
    const spared_memory spared;
    const std::filesystem::directory_iterator open{"/proc/self/fd"};
    return static_cast<std::size_t>(
        std::distance(begin(open), std::filesystem::directory_iterator{}));
  }

  weir_runtime* machine_handle = nullptr;
  weir_stream* stream_handle = nullptr;
  weir_stream* other_handle = nullptr;
};

TEST_F(scarce_capi, LosesNoStreamAndNoEvent) {
  sweep([&] {
    auto info = sized<weir_runtime_info>();
    did(weir_runtime_get_info(machine_handle, &info));
    weir_stream* own = nullptr;
    weir_stream* wrapped = nullptr;
    weir_stream* duplicate = nullptr;
    weir_event* event = nullptr;
    if (did(weir_stream_create(machine_handle, 0, 0, 0, &own))) {
      did(weir_stream_duplicate(own, &duplicate));
      did(weir_watch_stream(own));
      void* native = nullptr;
      if (did(weir_stream_get_native(own, &native)))
        did(weir_stream_wrap(machine_handle, 0, native, &wrapped));
    }
    if (did(weir_event_create(machine_handle, 0, 0, &event)) && own != nullptr) {
      did(weir_event_record(event, own));
      did(weir_stream_wait(stream_handle, event));
    }
    close(weir_stream_close, wrapped);
    close(weir_stream_close, own);
    close(weir_stream_close, duplicate);
    close(weir_event_close, event);
  });
}

TEST_F(scarce_capi, LosesNoMemoryOfAnAllocator) {
  sweep([&] {
    weir_allocator* memory = nullptr;
    if (!did(weir_allocator_create(machine_handle, 0, "heap_exportable=on", &memory))) return;
    std::uint32_t tag = 0;
    if (did(weir_tag_named("scarce", &tag))) did(weir_tag_set_current(tag, nullptr));
    std::array<void*, 4> blocks{};
    did(weir_allocator_allocate(memory, 4096, stream_handle, &blocks[0]));
    did(weir_allocator_allocate_aligned(memory, 3 * one_mib, 4096, stream_handle, &blocks[1]));
    did(weir_allocator_allocate(memory, 24 * one_mib, nullptr, &blocks[2]));
    if (blocks[0] != nullptr) did(weir_allocator_record_stream(memory, blocks[0], other_handle));
    did(weir_tag_set_current(0, nullptr));

    weir_pool* pool = nullptr;
    if (did(weir_pool_create(memory, "apart", 0, &pool))) {
      if (did(weir_pool_enter(pool))) {
        did(weir_allocator_allocate(memory, one_mib, stream_handle, &blocks[3]));
        did(weir_pool_leave());
      }
      auto stats = sized<weir_memory_stats>();
      did(weir_pool_get_stats(pool, &stats));
    }
    std::array<weir_tag_stats, 4> tags{};
    for (auto& each : tags) each.struct_size = sizeof(each);
    std::uint64_t count = 0;
    did(weir_allocator_get_stats_by_tag(memory, tags.data(), tags.size(), &count));
    std::array<char, 256> text{};
    did(weir_allocator_explain(memory, one_mib, stream_handle, text.data(), text.size(), &count));
    weir_snapshot* snapshot = nullptr;
    if (did(weir_snapshot_take(memory, &snapshot))) {
      auto shown = sized<weir_pool_info>();
      did(weir_snapshot_get_pool(snapshot, 0, &shown));
    }
    weir_callback* callback = nullptr;
    did(weir_allocator_on_out_of_memory(
        memory, [](void*, std::uint64_t) { return 0; }, nullptr, &callback));

    close(weir_callback_close, callback);
    close(weir_snapshot_close, snapshot);
    for (void* const each : blocks)
      if (each != nullptr)
        end([&] { return weir_allocator_deallocate(memory, each, stream_handle); },
            weir_error_double_free);
    close(weir_pool_close, pool);
    did(weir_allocator_empty_cache(memory, nullptr));
    close(weir_allocator_close, memory);
  });
}

TEST_F(scarce_capi, LosesNoMemoryOfAPool) {
  using create = weir_error (*)(weir_runtime*, std::int32_t, const weir_block_pool_options*,
                                weir_block_pool**);
  sweep([&] {
    for (const create each : {create{weir_bin_pool_create}, create{weir_pinned_pool_create}}) {
      weir_block_pool* pool = nullptr;
      if (!did(each(machine_handle, 0, nullptr, &pool))) continue;
      void* pointer = nullptr;
      if (did(weir_block_pool_allocate(pool, one_mib, 0, stream_handle, &pointer))) {
        did(weir_block_pool_record_stream(pool, pointer, other_handle));
        end([&] { return weir_block_pool_free(pool, pointer); }, weir_error_double_free);
      }
      close(weir_block_pool_close, pool);
    }
    weir_stream_pool_config config = WEIR_STREAM_POOL_CONFIG_INIT;
    weir_stream_pool* pool = nullptr;
    if (!did(weir_stream_pool_create(machine_handle, 0, &config, &pool))) return;
    void* pointer = nullptr;
    if (did(weir_stream_pool_allocate(pool, one_mib, 0, stream_handle, &pointer)))
      end([&] { return weir_stream_pool_deallocate(pool, pointer, stream_handle); },
          weir_error_double_free);
    end([&] { return weir_stream_pool_close(pool, nullptr); }, weir_error_closed);
  });
}

TEST_F(scarce_capi, LosesNoBuffer) {
  weir_allocator* memory = nullptr;
  ASSERT_TRUE(did(weir_allocator_create(machine_handle, 0, nullptr, &memory)));
  sweep([&] {
    weir_buffer_pool* pool = nullptr;
    did(weir_buffer_pool_create(nullptr, &pool));
    std::array<weir_buffer*, 6> buffers{};
    did(weir_buffer_create(memory, one_mib, 0, stream_handle, buffers.data()));
    did(weir_buffer_create_plain(machine_handle, 0, one_mib, &buffers[1]));
    did(weir_buffer_create_pinned(machine_handle, 0, 4096, &buffers[2]));
    did(weir_buffer_create_managed(machine_handle, 0, 4096, weir_buffer_zeroed, weir_attach_global,
                                   stream_handle, &buffers[3]));
    if (pool != nullptr) {
      did(weir_buffer_pool_take(pool, one_mib, 0, stream_handle, &buffers[4]));
      did(weir_buffer_pool_take(pool, one_mib, weir_buffer_zeroed, stream_handle, &buffers[5]));
    }
    for (weir_buffer* const each : buffers) {
      if (each == nullptr) continue;
      auto info = sized<weir_buffer_info>();
      did(weir_buffer_get_info(each, &info));
      if (each == buffers[3])
        did(weir_buffer_use_on(each, other_handle));
      else if (each != buffers[2])
        did(weir_buffer_record_stream(each, other_handle));
    }
    if (buffers[0] != nullptr) {
      did(weir_buffer_resize(buffers[0], 3 * one_mib));
      did(weir_buffer_join(buffers[0], other_handle));
      did(weir_buffer_hand_over(buffers[0], other_handle));
    }
    if (buffers[3] != nullptr && did(weir_buffer_begin_host(buffers[3])))
      did(weir_buffer_end_host(buffers[3]));
    if (buffers[5] != nullptr && did(weir_buffer_pool_free(pool, buffers[5], other_handle)))
      buffers[5] = nullptr;
    for (weir_buffer* const each : buffers) close(weir_buffer_close, each);
    close(weir_buffer_pool_close, pool);
    // A freed block of a recorded stream waits for it, which empty_cache() needs host memory for.
    if (!did(weir_allocator_empty_cache(memory, nullptr))) {
      const spared_memory spared;
      EXPECT_EQ(weir_allocator_empty_cache(memory, nullptr), weir_ok);
    }
  });
  EXPECT_TRUE(did(weir_allocator_close(memory)));
}

TEST_F(scarce_capi, LosesNoDescriptorAndNothingThatIsShared) {
  weir_allocator* memory = nullptr;
  ASSERT_TRUE(did(weir_allocator_create(machine_handle, 0, "heap_exportable=on", &memory)));
  void* block = nullptr;
  ASSERT_TRUE(did(weir_allocator_allocate(memory, 8 * one_mib, stream_handle, &block)));
  const auto share = [&] {
    std::array<weir_shared_piece, 8> pieces{};
    for (auto& each : pieces) each = {sizeof(each), -1, 0};
    std::uint64_t count = 0;
    std::uint64_t offset = 0;
    if (did(weir_allocator_export_block(memory, block, pieces.data(), pieces.size(), &count,
                                        &offset))) {
      weir_imported* imported = nullptr;
      did(weir_import_pieces(machine_handle, 0, pieces.data(), count, offset, one_mib, weir_read,
                             &imported));
      close(weir_imported_close, imported);
      for (std::uint64_t i = 0; i < count; ++i) ::close(pieces[i].descriptor);
    }
    weir_shared* shared = nullptr;
    did(weir_shared_create(machine_handle, 0, 2 * one_mib, 0, &shared));
    close(weir_shared_close, shared);
  };
  share();  // what is opened once is open from now on
  const std::size_t before = descriptors();
  sweep([&] {
    share();
    EXPECT_EQ(descriptors(), before);
  });
  EXPECT_TRUE(did(weir_allocator_free(memory, block)));
  EXPECT_TRUE(did(weir_allocator_close(memory)));
}

}  // namespace
}  // namespace weir::testing_support
