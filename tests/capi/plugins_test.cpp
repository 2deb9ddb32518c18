// SPDX-License-Identifier: Apache-2.0
// The hooks of other programs, on the process's own runtime and allocators.
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capi/defaults.hpp"
#include "capi/plugin_memory.hpp"
#include "support/reports.hpp"
#include "weir/base/error.hpp"
#include "weir_plugins.h"

namespace weir { namespace {

using ::testing::HasSubstr;
using testing_support::reports;

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr const char* small_process =
    "runtime=sim,sim_devices=2,sim_capacity=1GiB,sim_mode=manual,heap_limit=64MiB";

/// The process's own things can be made once a process, and are of a simulated machine here.
class plugins : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Nothing is opened that was not asked for: a machine without a driver is an error, not a
    // simulated one.
    ASSERT_EQ(weir_default_set_options("driver_path=libweir_no_such_driver.so"), weir_ok);
    weir_runtime* none = nullptr;
    EXPECT_EQ(weir_default_runtime(&none), weir_error_driver_unavailable);
    EXPECT_EQ(weir_torch_malloc(100, 0, nullptr), nullptr);
    EXPECT_THAT(weir_last_error_message(), HasSubstr("libweir_no_such_driver.so"));
    EXPECT_THROW(static_cast<void>(weir_torch_malloc_or_throw(100, 0, nullptr)), failure);
    weir_torch_init(1);
    const std::uint64_t errors = weir_reported_errors();
    weir_torch_free(nullptr, 0, 0, nullptr);
    EXPECT_EQ(weir_reported_errors(), errors) << "there is nothing to free";
    EXPECT_EQ(weir_plugin_release_stream(0, nullptr), weir_ok);  // there is nothing to say it to

    ASSERT_EQ(weir_default_set_options("runtime=sim,sim_devices=3"), weir_ok);
    ASSERT_EQ(weir_default_set_options(small_process), weir_ok);  // instead
    weir_torch_init(1);
    EXPECT_EQ(weir_default_set_options("runtime=sim,sim_devices=3"), weir_error_not_permitted);
    EXPECT_THAT(weir_last_error_message(),
                HasSubstr("the process's default runtime is already open with other options; set "
                          "options before the first use"));
    // Allocators that there are not yet are made as was said last.
    ASSERT_EQ(limit_of(0), 64 * mib);
    const std::string other_limit = std::string{small_process} + ",heap_limit=48MiB";
    ASSERT_EQ(weir_default_set_options(other_limit.c_str()), weir_ok);
    ASSERT_EQ(limit_of(0), 64 * mib);
    ASSERT_EQ(limit_of(1), 48 * mib);
    ASSERT_EQ(weir_default_set_options(small_process), weir_ok);
  }
  [[nodiscard]] static weir_allocator* memory_of(int device) {
    weir_allocator* memory = nullptr;
    EXPECT_EQ(weir_default_allocator(device, &memory), weir_ok) << weir_last_error_message();
    return memory;
  }
  [[nodiscard]] static std::uint64_t limit_of(int device) {
    std::uint64_t most = 0;
    EXPECT_EQ(weir_allocator_get_limit(memory_of(device), &most), weir_ok);
    return most;
  }
  [[nodiscard]] static weir_memory_stats stats_of(int device) {
    weir_memory_stats stats{};
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(weir_allocator_get_stats(memory_of(device), &stats), weir_ok)
        << weir_last_error_message();
    return stats;
  }
  [[nodiscard]] static std::uint64_t legacy_id(int device = 0) {
    return capi::default_allocator_of(device).value().object->legacy.id().value().number();
  }
  void TearDown() override {
    for (const error& each : reported.take()) ADD_FAILURE() << each.message();
  }
  [[nodiscard]] static weir_block_info block_of(const void* pointer, int device = 0) {
    weir_block_info block{};
    block.struct_size = sizeof(block);
    EXPECT_EQ(weir_allocator_find_block(memory_of(device), pointer, &block), weir_ok)
        << weir_last_error_message();
    return block;
  }
  /// A stream of the device, with its number; closed with the test.
  struct raw_stream {
    explicit raw_stream(int device = 0) {
      weir_runtime* machine = nullptr;
      EXPECT_EQ(weir_default_runtime(&machine), weir_ok);
      EXPECT_EQ(weir_stream_create(machine, device, 0, 0, &handle), weir_ok);
      EXPECT_EQ(weir_stream_get_native(handle, &native), weir_ok);
      EXPECT_EQ(weir_stream_get_id(handle, &id), weir_ok);
    }
    ~raw_stream() { EXPECT_EQ(weir_stream_close(handle), weir_ok); }
    raw_stream(const raw_stream&) = delete;
    raw_stream& operator=(const raw_stream&) = delete;

    weir_stream* handle = nullptr;
    void* native = nullptr;
    std::uint64_t id = 0;
  };

  /// A stream that weir did not make and hears nothing of.
  struct foreign_stream {
    foreign_stream() {
      const context_scope bound{home()};
      EXPECT_EQ(bound.driver().stream_create(&handle, driver::CU_STREAM_NON_BLOCKING),
                driver::CUDA_SUCCESS);
    }
    void destroy() const {
      const context_scope bound{home()};
      EXPECT_EQ(bound.driver().stream_destroy(handle), driver::CUDA_SUCCESS);
    }
    [[nodiscard]] static device home() {
      return capi::default_allocator_of(0).value().object->legacy.device();
    }
    driver::CUstream handle = nullptr;
  };

  reports reported;
};

TEST_F(plugins, share_what_belongs_to_the_process) {
  weir_runtime* machine = nullptr;
  weir_runtime* same_machine = nullptr;
  weir_allocator* memory = nullptr;
  weir_allocator* same = nullptr;
  weir_allocator* other = nullptr;
  ASSERT_EQ(weir_default_runtime(&machine), weir_ok) << weir_last_error_message();
  ASSERT_EQ(weir_default_runtime(&same_machine), weir_ok);
  ASSERT_EQ(weir_default_allocator(0, &memory), weir_ok);
  ASSERT_EQ(weir_default_allocator(0, &same), weir_ok);
  ASSERT_EQ(weir_default_allocator(1, &other), weir_ok);
  EXPECT_EQ(machine, same_machine);
  EXPECT_EQ(memory, same);
  EXPECT_NE(memory, other);
  EXPECT_EQ(weir_default_allocator(2, &same), weir_error_no_device);
  EXPECT_EQ(weir_default_allocator(-1, &same), weir_error_no_device);
  EXPECT_EQ(weir_default_allocator(0, nullptr), weir_error_invalid_argument);
  EXPECT_EQ(weir_default_runtime(nullptr), weir_error_invalid_argument);

  EXPECT_EQ(weir_allocator_close(memory), weir_error_not_permitted);
  EXPECT_EQ(weir_runtime_close(machine), weir_error_not_permitted);
  EXPECT_EQ(weir_runtime_open("runtime=sim", &same_machine), weir_ok);
  EXPECT_EQ(weir_runtime_close(same_machine), weir_ok);

  EXPECT_EQ(weir_default_set_options("heap_policy=lavish"), weir_error_bad_option);
  for (const char* other_machine :
       {"runtime=auto", "driver_path=x", "sim_devices=3", "sim_capacity=2GiB", "sim_seed=77",
        "sim_mode=timed", "sim_lag=1ms", "sim_hazards=off"}) {
    const std::string list = std::string{small_process} + "," + other_machine;
    EXPECT_EQ(weir_default_set_options(list.c_str()), weir_error_not_permitted) << other_machine;
  }
  EXPECT_EQ(weir_default_set_options(nullptr), weir_error_not_permitted) << "the real machine";
  EXPECT_EQ(weir_default_set_options(small_process), weir_ok);
}

TEST_F(plugins, of_torch_follow_streams) {
  const raw_stream stream;
  const raw_stream other;
  void* p = weir_torch_malloc(3 * mib, 0, stream.native);
  ASSERT_NE(p, nullptr) << weir_last_error_message();
  EXPECT_EQ(block_of(p).stream, stream.id);
  EXPECT_EQ(block_of(p).requested, 3 * mib);
  std::size_t size = 0;
  EXPECT_EQ(weir_torch_base_alloc(static_cast<char*>(p) + mib, &size), p);
  EXPECT_EQ(size, 3 * mib);
  EXPECT_EQ(weir_torch_base_alloc(&size, &size), nullptr);
  weir_torch_record_stream(nullptr, other.native);
  weir_torch_free(p, 3 * mib, 0, stream.native);
  EXPECT_EQ(weir_torch_malloc(0, 0, nullptr), nullptr);

  p = weir_torch_malloc_or_throw(mib, 1, nullptr);
  EXPECT_EQ(block_of(p, 1).state, weir_block_live);
  EXPECT_EQ(block_of(p, 1).stream, legacy_id(1));
  EXPECT_EQ(block_of(p, 1).requested, mib);
  weir_torch_free(p, mib, 0, nullptr);  // it is found on the other device
  EXPECT_EQ(stats_of(1).blocks.current, 0u);
  p = weir_torch_malloc_or_throw(mib, 0, other.native);
  EXPECT_EQ(block_of(p).stream, other.id);
  weir_torch_free(p, mib, 1, nullptr);
  EXPECT_EQ(stats_of(0).blocks.current, 0u);
  EXPECT_EQ(weir_torch_malloc(1, 7, nullptr), nullptr);
  try {
    static_cast<void>(weir_torch_malloc_or_throw(77, 7, nullptr));
    FAIL() << "nothing was thrown";
  } catch (const failure& thrown) {
    EXPECT_EQ(thrown.code(), errc::no_device);
    EXPECT_EQ(thrown.reason().requested(), bytes{77});
    EXPECT_EQ(thrown.reason().detail(), weir_last_error_message());
  }
}

TEST_F(plugins, of_torch_keep_memory_for_the_streams_that_were_recorded) {
  const raw_stream stream;
  const raw_stream other;
  for (const bool is_recorded : {false, true}) {
    void* const p = weir_torch_malloc(3 * mib, 0, stream.native);
    ASSERT_EQ(weir_fill(p, 1, 3 * mib, other.handle), weir_ok);  // stays queued
    if (is_recorded) weir_torch_record_stream(p, other.native);
    ASSERT_EQ(weir_stream_synchronize(stream.handle), weir_ok);
    if (!is_recorded) {
      ASSERT_EQ(weir_stream_synchronize(other.handle), weir_ok);
    }
    weir_torch_free(p, 3 * mib, 0, stream.native);
    EXPECT_EQ(stats_of(0).pending, is_recorded ? 3 * mib : 0u);
    ASSERT_EQ(weir_stream_synchronize(other.handle), weir_ok);
    weir_torch_empty_cache();
  }
}

TEST_F(plugins, of_torch_record_streams_on_whatever_device_the_memory_is) {
  const raw_stream stream{1};
  const raw_stream other{1};
  void* const p = weir_torch_malloc(3 * mib, 1, stream.native);
  ASSERT_NE(p, nullptr) << weir_last_error_message();
  ASSERT_EQ(weir_fill(p, 1, 3 * mib, other.handle), weir_ok);  // stays queued
  weir_torch_record_stream(p, other.native);
  ASSERT_EQ(weir_stream_synchronize(stream.handle), weir_ok);
  weir_torch_free(p, 3 * mib, 1, stream.native);
  EXPECT_EQ(stats_of(1).pending, 3 * mib);
  EXPECT_TRUE(reported.take().empty());

  weir_torch_record_stream(p, other.native);  // freed, as only its own allocator knows
  auto errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), errc::double_free);
  weir_torch_record_stream(&errors, nullptr);
  errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), errc::foreign_pointer);
  EXPECT_EQ(errors[0].detail(), "the pointer belongs to none of the process's default allocators");
  ASSERT_EQ(weir_stream_synchronize(other.handle), weir_ok);
  weir_torch_empty_cache();
}

TEST_F(plugins, of_torch_give_back_and_limit) {
  weir_allocator* memory = nullptr;
  ASSERT_EQ(weir_default_allocator(0, &memory), weir_ok);
  void* const p = weir_torch_malloc(30 * mib, 0, nullptr);
  ASSERT_NE(p, nullptr);
  weir_torch_free(p, 30 * mib, 0, nullptr);
  weir_torch_empty_cache();
  weir_memory_stats stats{};
  stats.struct_size = sizeof(stats);
  ASSERT_EQ(weir_allocator_get_stats(memory, &stats), weir_ok);
  EXPECT_LT(stats.reserved.current, 30 * mib);
  const std::uint64_t of_other = limit_of(1);
  weir_torch_memory_fraction(0.5, 0);
  EXPECT_EQ(limit_of(0), 512 * mib);
  EXPECT_EQ(limit_of(1), of_other);
  weir_torch_memory_fraction(0.25, 1);
  EXPECT_EQ(limit_of(0), 512 * mib);
  EXPECT_EQ(limit_of(1), 256 * mib);
  ASSERT_EQ(weir_allocator_set_limit(memory, 64 * mib), weir_ok);
  ASSERT_EQ(weir_allocator_set_limit(memory_of(1), 64 * mib), weir_ok);
  weir_torch_memory_fraction(7, 0);
  const auto errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), errc::invalid_argument);
}

TEST_F(plugins, say_out_of_memory_as_the_caller_wants_it) {
  EXPECT_EQ(weir_torch_malloc(100 * mib, 0, nullptr), nullptr);
  EXPECT_THAT(weir_last_error_message(), HasSubstr("out_of_memory"));
  EXPECT_EQ(weir_cupy_malloc(nullptr, 100 * mib, 0), nullptr);
  EXPECT_EQ(weir_ort_alloc(100 * mib), nullptr);
  EXPECT_THROW(static_cast<void>(weir_cupy_malloc_or_throw(nullptr, 100 * mib, 0)), std::bad_alloc);
  EXPECT_THROW(static_cast<void>(weir_ort_alloc_or_throw(100 * mib)), std::bad_alloc);
  try {
    static_cast<void>(weir_torch_malloc_or_throw(100 * mib, 0, nullptr));
    FAIL() << "nothing was thrown";
  } catch (const out_of_memory& thrown) {
    EXPECT_EQ(thrown.reason().code(), errc::out_of_memory);
    EXPECT_EQ(thrown.reason().requested(), bytes{100 * mib});
    const auto& source = *capi::default_allocator_of(0).value().object;
    EXPECT_EQ(thrown.report(), source.memory.explain(bytes{100 * mib}, source.legacy).text());
  }
  // Whatever else goes wrong is no lack of memory.
  try {
    static_cast<void>(weir_cupy_malloc_or_throw(nullptr, static_cast<std::size_t>(-1), 0));
    FAIL() << "nothing was thrown";
  } catch (const failure& thrown) {
    EXPECT_EQ(thrown.reason().code(), errc::size_overflow);
    EXPECT_EQ(thrown.reason().requested(), bytes{static_cast<std::size_t>(-1)});
    EXPECT_THAT(thrown.reason().detail(), HasSubstr("size_overflow"));
  }
  // The last word counts here, too.
  weir_allocator* memory = nullptr;
  ASSERT_EQ(weir_default_allocator(0, &memory), weir_ok);
  ASSERT_EQ(
      weir_allocator_set_out_of_memory_handler(
          memory, [](void*, weir_allocator*, std::uint64_t, weir_error) -> int32_t { throw 42; },
          nullptr),
      weir_ok);
  EXPECT_THROW(static_cast<void>(weir_torch_malloc(100 * mib, 0, nullptr)), int);
  ASSERT_EQ(weir_allocator_set_out_of_memory_handler(memory, nullptr, nullptr), weir_ok);
}

TEST_F(plugins, without_a_stream_use_the_threads_own) {
  const raw_stream stream;
  const raw_stream elsewhere{1};
  void* const before = weir_cupy_malloc(nullptr, 4096, 0);
  ASSERT_EQ(weir_plugin_set_stream(0, stream.native), weir_ok) << weir_last_error_message();
  void* const p = weir_cupy_malloc(nullptr, 4096, 0);
  EXPECT_EQ(block_of(p).stream, stream.id);
  EXPECT_NE(block_of(before).stream, stream.id);
  std::thread{[&] {
    void* const q = weir_cupy_malloc_or_throw(nullptr, 4096, 0);
    EXPECT_NE(block_of(q).stream, stream.id);
    weir_cupy_free(nullptr, q, 0);
    weir_cupy_free(nullptr, p, 0);  // on the stream it was allocated for
  }}.join();
  void* const on_other_device = weir_cupy_malloc(nullptr, 4096, 1);
  EXPECT_EQ(block_of(on_other_device, 1).stream, legacy_id(1));
  weir_cupy_free(nullptr, on_other_device, 0);  // CuPy may name any device
  weir_cupy_free(nullptr, before, 0);

  void* const r = weir_ort_alloc(100);
  EXPECT_EQ(block_of(r).stream, stream.id);
  weir_ort_free(r);
  void* const s = weir_ort_alloc_or_throw(100);
  weir_ort_free(s);
  weir_ort_free(nullptr);
  weir_ort_empty_cache();

  EXPECT_EQ(weir_plugin_set_stream(0, elsewhere.native), weir_error_bad_stream);
  EXPECT_EQ(weir_plugin_set_stream(9, nullptr), weir_error_no_device);
  for (int device : {-1, 1, 2})
    EXPECT_EQ(weir_plugin_release_stream(device, elsewhere.native), weir_ok);  // says nothing of it
  void* const still = weir_cupy_malloc(nullptr, 4096, 0);
  EXPECT_EQ(block_of(still).stream, stream.id);
  weir_cupy_free(nullptr, still, -1);
  EXPECT_EQ(weir_plugin_release_stream(0, stream.native), weir_ok);  // and it is not named any more
  void* const t = weir_cupy_malloc(nullptr, 4096, 0);
  EXPECT_EQ(block_of(t).stream, legacy_id());
  weir_cupy_free(nullptr, t, 2);
  EXPECT_EQ(weir_plugin_set_stream(0, nullptr), weir_ok);
}

TEST_F(plugins, let_threads_that_named_no_stream_release_one) {
  const raw_stream stream;
  ASSERT_EQ(weir_plugin_set_stream(0, stream.native), weir_ok) << weir_last_error_message();
  std::thread{[&] {
    EXPECT_EQ(weir_plugin_release_stream(0, stream.native), weir_ok);
    EXPECT_EQ(weir_plugin_release_stream(0, nullptr), weir_ok);
  }}.join();
  // What another thread named is its own.
  void* const p = weir_cupy_malloc(nullptr, 4096, 0);
  EXPECT_EQ(block_of(p).stream, stream.id);
  weir_cupy_free(nullptr, p, 0);
  ASSERT_EQ(weir_plugin_set_stream(0, nullptr), weir_ok);
}

TEST_F(plugins, look_at_the_likeliest_allocator_first) {
  const auto seen_from = [](std::int32_t first, std::size_t most) {
    std::vector<weir_allocator*> seen;
    const bool stopped = capi::any_default_allocator(first, [&](const auto& each) {
      seen.push_back(each.handle);
      return seen.size() == most;
    });
    return std::pair{stopped, seen};
  };
  using handles = std::vector<weir_allocator*>;
  weir_allocator* const zero = memory_of(0);
  weir_allocator* const one = memory_of(1);
  EXPECT_EQ(seen_from(0, 9), std::pair(false, handles{zero, one}));
  EXPECT_EQ(seen_from(1, 9), std::pair(false, handles{one, zero}));
  EXPECT_EQ(seen_from(-1, 9), std::pair(false, handles{zero, one}));
  EXPECT_EQ(seen_from(2, 9), std::pair(false, handles{zero, one}));
  EXPECT_EQ(seen_from(1, 1), std::pair(true, handles{one}));
  EXPECT_EQ(seen_from(1, 2), std::pair(true, handles{one, zero}));
  EXPECT_EQ(seen_from(2, 1), std::pair(true, handles{zero}));
}

TEST_F(plugins, of_onnx_runtime_use_the_current_device) {
  const auto reserved = [](int device) {
    weir_allocator* memory = nullptr;
    weir_memory_stats stats{};
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(weir_default_allocator(device, &memory), weir_ok);
    EXPECT_EQ(weir_allocator_get_stats(memory, &stats), weir_ok) << weir_last_error_message();
    return stats.reserved.current;
  };
  const raw_stream stream{1};
  ASSERT_EQ(weir_plugin_set_stream(1, stream.native), weir_ok) << weir_last_error_message();
  void* p = nullptr;
  {
    const context_scope bound{capi::default_allocator_of(1).value().object->legacy.device()};
    p = weir_ort_alloc(3 * mib);
    ASSERT_NE(p, nullptr) << weir_last_error_message();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 512, 0u);
    EXPECT_EQ(block_of(p, 1).stream, stream.id);
    EXPECT_EQ(block_of(p, 1).requested, 3 * mib);
    EXPECT_THROW(static_cast<void>(weir_ort_alloc_or_throw(100 * mib)), out_of_memory);
    EXPECT_EQ(weir_ort_alloc(0), nullptr);
  }
  weir_ort_free(p);  // of whatever device is current
  EXPECT_EQ(weir_plugin_set_stream(1, nullptr), weir_ok);

  void* const q = weir_ort_alloc(3 * mib);
  ASSERT_NE(q, nullptr) << weir_last_error_message();
  EXPECT_EQ(block_of(q, 0).state, weir_block_live);
  weir_ort_empty_cache();
  EXPECT_GE(reserved(0), 3 * mib);  // what is live stays
  EXPECT_EQ(reserved(1), 0u);
  weir_ort_free(q);
  weir_ort_empty_cache();
  EXPECT_LT(reserved(0), 3 * mib);
}

TEST_F(plugins, let_streams_end_without_notice) {
  const raw_stream one;
  const raw_stream two;
  /// Whether what the first stream freed goes to the second at once.
  const auto crosses = [&, &from = one, &to = two] {
    weir_torch_empty_cache();
    void* const p = weir_torch_malloc(9 * mib, 0, from.native);
    weir_torch_free(p, 9 * mib, 0, from.native);
    void* const q = weir_torch_malloc(9 * mib, 0, to.native);
    weir_torch_free(q, 9 * mib, 0, to.native);
    return p == q;
  };
  EXPECT_TRUE(crosses());
  const foreign_stream polite;
  weir_torch_free(weir_torch_malloc(mib, 0, polite.handle), mib, 0, polite.handle);
  EXPECT_FALSE(crosses()) << "it may be gone, and must not be asked";
  EXPECT_EQ(weir_plugin_release_stream(0, polite.handle), weir_ok) << weir_last_error_message();
  polite.destroy();
  EXPECT_TRUE(crosses());

  const foreign_stream silent;
  void* const p = weir_torch_malloc(mib, 0, silent.handle);
  ASSERT_NE(p, nullptr) << weir_last_error_message();
  silent.destroy();
  EXPECT_FALSE(crosses());
  weir_torch_free(p, mib, 0, silent.handle);
  weir_torch_empty_cache();
}

TEST_F(plugins, answer_questions_about_memory) {
  std::size_t available = 0;
  std::size_t total = 0;
  ASSERT_EQ(weir_plugin_get_memory(0, &available, &total), weir_ok);
  EXPECT_EQ(total, 1024 * mib);
  weir_torch_free(weir_torch_malloc(20 * mib, 0, nullptr), 20 * mib, 0, nullptr);
  weir_runtime* machine = nullptr;
  std::uint64_t free = 0;
  ASSERT_EQ(weir_default_runtime(&machine), weir_ok);
  ASSERT_EQ(weir_device_get_memory(machine, 0, &free, nullptr), weir_ok);
  ASSERT_EQ(weir_plugin_get_memory(0, &available, nullptr), weir_ok);
  EXPECT_GE(stats_of(0).cached, 20 * mib);
  EXPECT_EQ(available, free + stats_of(0).cached);
  EXPECT_EQ(weir_plugin_get_memory(0, nullptr, nullptr), weir_ok);
  for (const std::int32_t none : {2, 5, -1, std::numeric_limits<std::int32_t>::min(),
                                  std::numeric_limits<std::int32_t>::max()}) {
    EXPECT_EQ(weir_plugin_get_memory(none, nullptr, nullptr), weir_error_no_device);
    EXPECT_EQ(weir_torch_malloc(100, none, nullptr), nullptr);
    EXPECT_THAT(weir_last_error_message(), HasSubstr("no_device"));
    weir_allocator* memory = nullptr;
    EXPECT_EQ(weir_default_allocator(none, &memory), weir_error_no_device);
    EXPECT_EQ(capi::existing_allocator_of(none).object, nullptr);
  }

  void* const p = weir_torch_malloc(1000, 1, nullptr);
  void* base = nullptr;
  std::size_t size = 0;
  ASSERT_EQ(weir_plugin_base_range(static_cast<char*>(p) + 999, &base, &size), weir_ok);
  EXPECT_EQ(base, p);
  EXPECT_EQ(size, 1024u);
  EXPECT_EQ(weir_plugin_base_range(p, nullptr, nullptr), weir_ok);
  EXPECT_EQ(weir_plugin_base_range(&base, &base, &size), weir_error_foreign_pointer);
  weir_torch_free(p, 1000, 1, nullptr);
}

TEST_F(plugins, report_what_is_wrong_with_a_free) {
  int foreign = 0;
  weir_torch_free(&foreign, 4, 0, nullptr);
  auto errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), errc::foreign_pointer);
  void* const p = weir_torch_malloc(100, 0, nullptr);
  weir_cupy_free(nullptr, p, 0);
  weir_ort_free(p);
  errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), errc::double_free);
  weir_torch_record_stream(&foreign, nullptr);
  errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), errc::foreign_pointer);
  EXPECT_EQ(errors[0].detail(), "the pointer belongs to none of the process's default allocators");
}

TEST_F(plugins, are_silent_when_the_driver_is_gone) {
  void* const p = weir_torch_malloc(100, 0, nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::uint64_t before = weir_reported_errors();
    weir_torch_free(p, 100, 0, nullptr);
    weir_torch_record_stream(p, nullptr);
    weir_torch_empty_cache();
    ::_exit(weir_reported_errors() == before ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  weir_torch_free(p, 100, 0, nullptr);
}

// Its errors have no messages then, and nothing else is wrong.
TEST(c_errors_of_a_thread, need_a_key_that_the_process_may_not_have) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        pthread_key_t last{};
        bool has_any = false;
        for (pthread_key_t key{}; ::pthread_key_create(&key, nullptr) == 0; last = key)
          has_any = true;
        if (!has_any || ::pthread_setspecific(last, &last) != 0) ::_exit(3);
        const void* const first = ::pthread_getspecific(0);  // a sanitizer's, say
        if (weir_runtime_open("runtime=none", nullptr) != weir_error_invalid_argument) ::_exit(4);
        if (weir_last_error_message() != std::string{}) ::_exit(5);
        if (weir_plugin_set_stream(0, nullptr) == weir_ok) ::_exit(6);
        if (::pthread_getspecific(last) != &last || ::pthread_getspecific(0) != first) ::_exit(7);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

/// Ends the process with the line of what does not hold.
void require(bool holds, int line) {
  if (!holds) ::_exit(line % 200 + 1);
}

// Nothing is allocated yet: the first request is served like any other.
TEST(plugins_at_first, serve_the_device_that_is_current) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto serve = [](void* (*allocate)(std::size_t)) {
    require(weir_default_set_options(small_process) == weir_ok, __LINE__);
    weir_runtime* machine = nullptr;
    require(weir_default_runtime(&machine) == weir_ok, __LINE__);
    {
      const context_scope bound{capi::find(machine).value()->machine->device(device_id{1}).value()};
      void* const pointer = allocate(mib);
      require(pointer != nullptr, __LINE__);
      require(capi::existing_allocator_of(0).object == nullptr, __LINE__);
      require(
          capi::existing_allocator_of(1).object->memory.block_at(pointer)->requested == bytes{mib},
          __LINE__);
      weir_ort_free(pointer);
    }
    require(weir_reported_errors() == 0, __LINE__);
    ::_exit(0);
  };
  EXPECT_EXIT(serve(weir_ort_alloc), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(serve(weir_ort_alloc_or_throw), ::testing::ExitedWithCode(0), "");
}

TEST(plugins_at_first, open_the_runtime) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        require(weir_default_set_options(small_process) == weir_ok, __LINE__);
        require(capi::plugin_current_device() == 0, __LINE__);
        require(capi::default_device_count() == 0, __LINE__);
        require(capi::plugin_requested_device() == 0, __LINE__);
        require(capi::default_device_count() == 2, __LINE__);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// The driver's library is a pipe: whoever loads it waits until it is closed at the other end.
TEST(plugins_in_a_forked_child, refuse_what_another_thread_was_opening) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fork_while_opening = [] {
    std::string folder = ::testing::TempDir() + "/weir_pipe_XXXXXX";
    require(::mkdtemp(folder.data()) != nullptr, __LINE__);
    const std::string pipe = folder + "/libcuda.so";
    require(::mkfifo(pipe.c_str(), 0600) == 0, __LINE__);
    require(weir_default_set_options(("runtime=cuda,driver_path=" + pipe).c_str()) == weir_ok,
            __LINE__);
    std::thread opener{[] {
      weir_allocator* memory = nullptr;
      require(weir_default_allocator(0, &memory) == weir_error_driver_unavailable, __LINE__);
    }};
    const int end = ::open(pipe.c_str(), O_WRONLY);  // returns when the thread loads the library
    require(end >= 0, __LINE__);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // ends it if it waits for the thread, which it does not have
      weir_runtime* machine = nullptr;
      weir_allocator* memory = nullptr;
      require(weir_default_runtime(&machine) == weir_error_driver_gone, __LINE__);
      require(weir_default_allocator(0, &memory) == weir_error_driver_gone, __LINE__);
      require(weir_default_set_options(small_process) == weir_error_driver_gone, __LINE__);
      require(weir_ort_alloc(100) == nullptr, __LINE__);
      weir_set_error_handler([](void*, weir_error, const char*) {}, nullptr);
      ::_exit(0);
    }
    int status = -1;
    require(::waitpid(child, &status, 0) == child, __LINE__);
    ::close(end);
    opener.join();
    ::unlink(pipe.c_str());
    ::rmdir(folder.c_str());
    require(WIFEXITED(status), __LINE__);
    ::_exit(WEXITSTATUS(status));
  };
  EXPECT_EXIT(fork_while_opening(), ::testing::ExitedWithCode(0), "");
}

void* kept_to_the_end = nullptr;

// Frees arrive when the process goes down, from destructors that know of no order.
TEST(plugins_at_exit, take_frees_in_silence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atexit([] {
          weir_cupy_free(nullptr, kept_to_the_end, 0);
          if (weir_reported_errors() != 0) ::_exit(3);
        });
        if (weir_default_set_options(small_process) != weir_ok) ::_exit(4);
        kept_to_the_end = weir_cupy_malloc(nullptr, 100, 0);
        if (kept_to_the_end == nullptr) ::_exit(5);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weir
