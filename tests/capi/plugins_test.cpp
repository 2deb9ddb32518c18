// The hooks of other programs, on the process's own runtime and allocators.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capi/defaults.hpp"
#include "support/reports.hpp"
#include "weir/base/error.hpp"
#include "weir_plugins.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using testing_support::reports;

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr const char* small_process =
    "runtime=sim,sim_devices=2,sim_capacity=1GiB,heap_limit=64MiB";

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
    weir_torch_free(nullptr, 0, 0, nullptr);
    ASSERT_EQ(weir_default_set_options(small_process), weir_ok);
  }
  void TearDown() override {
    for (const error& each : reported.take()) ADD_FAILURE() << each.message();
  }
  [[nodiscard]] static weir_block_info block_of(const void* pointer, int device = 0) {
    weir_allocator* memory = nullptr;
    EXPECT_EQ(weir_default_allocator(device, &memory), weir_ok);
    weir_block_info block{};
    block.struct_size = sizeof(block);
    EXPECT_EQ(weir_allocator_find_block(memory, pointer, &block), weir_ok)
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
  EXPECT_EQ(weir_default_set_options("runtime=sim,sim_devices=3"), weir_error_not_permitted);
  EXPECT_EQ(weir_default_set_options(small_process), weir_ok);
}

TEST_F(plugins, of_torch_follow_streams) {
  const raw_stream stream;
  const raw_stream other;
  void* p = weir_torch_malloc(3 * mib, 0, stream.native);
  ASSERT_NE(p, nullptr) << weir_last_error_message();
  EXPECT_EQ(block_of(p).stream, stream.id);
  std::size_t size = 0;
  EXPECT_EQ(weir_torch_base_alloc(static_cast<char*>(p) + mib, &size), p);
  EXPECT_EQ(size, 3 * mib);
  EXPECT_EQ(weir_torch_base_alloc(&size, &size), nullptr);
  weir_torch_record_stream(p, other.native);
  weir_torch_record_stream(nullptr, other.native);
  weir_torch_free(p, 3 * mib, 0, stream.native);
  EXPECT_EQ(weir_torch_malloc(0, 0, nullptr), nullptr);

  p = weir_torch_malloc_or_throw(mib, 1, nullptr);
  EXPECT_EQ(block_of(p, 1).state, weir_block_live);
  weir_torch_free(p, mib, 1, nullptr);
  EXPECT_EQ(weir_torch_malloc(1, 7, nullptr), nullptr);
  EXPECT_THROW(static_cast<void>(weir_torch_malloc_or_throw(1, 7, nullptr)), failure);
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
  weir_torch_memory_fraction(0.5, 0);
  std::uint64_t most = 0;
  ASSERT_EQ(weir_allocator_get_limit(memory, &most), weir_ok);
  EXPECT_EQ(most, 512 * mib);
  ASSERT_EQ(weir_allocator_set_limit(memory, 64 * mib), weir_ok);
  weir_torch_memory_fraction(7, 0);
  EXPECT_EQ(reported.take().size(), 1u);
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
    EXPECT_EQ(thrown.reason().requested, bytes{100 * mib});
    EXPECT_THAT(thrown.report(), HasSubstr("100 MiB"));
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
  EXPECT_NE(block_of(on_other_device, 1).stream, stream.id);
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
  EXPECT_EQ(weir_plugin_release_stream(0, stream.native), weir_ok);  // and it is not named any more
  void* const t = weir_cupy_malloc(nullptr, 4096, 0);
  EXPECT_NE(block_of(t).stream, stream.id);
  weir_cupy_free(nullptr, t, 0);
  EXPECT_EQ(weir_plugin_set_stream(0, nullptr), weir_ok);
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
  EXPECT_GT(available, 0u);
  EXPECT_LT(available, total);
  EXPECT_EQ(weir_plugin_get_memory(0, nullptr, nullptr), weir_ok);
  EXPECT_EQ(weir_plugin_get_memory(5, nullptr, nullptr), weir_error_no_device);

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
  EXPECT_EQ(errors[0].code, errc::foreign_pointer);
  void* const p = weir_torch_malloc(100, 0, nullptr);
  weir_cupy_free(nullptr, p, 0);
  weir_ort_free(p);
  errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code, errc::double_free);
  weir_torch_record_stream(&foreign, nullptr);
  EXPECT_EQ(reported.take().size(), 1u);
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
