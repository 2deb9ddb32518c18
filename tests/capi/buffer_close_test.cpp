// SPDX-License-Identifier: Apache-2.0
// Buffers that are closed while other threads use them: calls finish first, later ones fail.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "c_fixture.hpp"
#include "capi/buffers.hpp"

namespace weir::testing_support { namespace {

class c_buffer_close : public c_memory {
 public:
  using c_memory::other;
  using c_memory::stream;
  weir_buffer_pool* pool = nullptr;

 protected:
  void SetUp() override { ASSERT_OK(weir_buffer_pool_create(nullptr, &pool)); }
  void TearDown() override {
    EXPECT_OK(weir_buffer_pool_close(pool));
    c_memory::TearDown();
  }
  /// A buffer of each kind.
  [[nodiscard]] std::vector<weir_buffer*> one_of_each() const {
    std::vector<weir_buffer*> made(5, nullptr);
    EXPECT_OK(weir_buffer_create(memory, mib, 0, stream, &made[0]));
    EXPECT_OK(weir_buffer_create_plain(runtime, 0, mib, &made[1]));
    EXPECT_OK(weir_buffer_create_pinned(runtime, 0, 4096, &made[2]));
    EXPECT_OK(
        weir_buffer_create_managed(runtime, 0, 4096, 0, weir_attach_global, stream, &made[3]));
    EXPECT_OK(weir_buffer_pool_take(pool, mib, 0, stream, &made[4]));
    return made;
  }
};

// As a call that found the handle, and then waits for the lock that weir_buffer_close holds.
TEST_F(c_buffer_close, is_seen_by_a_call_that_had_found_the_buffer) {
  for (weir_buffer* const each : one_of_each()) {
    const auto object = capi::find(each).value();
    EXPECT_TRUE(object->lock_open().has_value());
    EXPECT_OK(weir_buffer_close(each));
    const auto lock = object->lock_open();
    ASSERT_FALSE(lock.has_value());
    EXPECT_EQ(lock.error().code(), errc::closed);
    EXPECT_EQ(lock.error().detail(), "the buffer is closed");
  }
  weir_buffer* freed = nullptr;
  ASSERT_OK(weir_buffer_pool_take(pool, mib, 0, stream, &freed));
  const auto object = capi::find(freed).value();
  EXPECT_OK(weir_buffer_pool_free(pool, freed, other));
  EXPECT_EQ(object->lock_open().code(), errc::closed);
  EXPECT_EQ(said(weir_buffer_close(freed)), "closed: the buffer is closed");
}

// Another thread may be in a call that waits, and is not there in the child.
TEST_F(c_buffer_close, and_every_other_call_end_in_a_forked_child_too) {
  const std::vector<weir_buffer*> buffers = one_of_each();
  std::vector<std::shared_ptr<capi::buffer_object>> objects;
  for (weir_buffer* const each : buffers) objects.push_back(capi::find(each).value());
  pid_t child = -1;
  {
    std::vector<result<std::unique_lock<std::mutex>>> held;
    for (const auto& each : objects) held.push_back(each->lock_open());
    child = ::fork();
    if (child == 0) {
      ::alarm(20);  // ends it if it waits
      for (weir_buffer* const each : buffers) {
        weir_buffer_info info{};
        info.struct_size = sizeof(info);
        if (weir_buffer_get_info(each, &info) != weir_error_driver_gone) ::_exit(1);
        if (weir_buffer_record_stream(each, other) != weir_error_driver_gone) ::_exit(2);
        if (weir_buffer_begin_host(each) != weir_error_driver_gone) ::_exit(3);
        if (weir_buffer_close(each) != weir_error_driver_gone) ::_exit(4);
      }
      ::_exit(0);
    }
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (weir_buffer* const each : buffers) EXPECT_OK(weir_buffer_close(each));
}

TEST_F(c_buffer_close, beside_every_other_call_is_safe) {
  // One of them at a time, started with the close.
  using call = weir_error (*)(weir_buffer*, const c_buffer_close&);
  constexpr std::array<call, 8> calls = {
      [](weir_buffer* buffer, const c_buffer_close&) {
        weir_buffer_info info{};
        info.struct_size = sizeof(info);
        return weir_buffer_get_info(buffer, &info);
      },
      [](weir_buffer* buffer, const c_buffer_close& test) {
        return weir_buffer_record_stream(buffer, test.other);
      },
      [](weir_buffer* buffer, const c_buffer_close&) {
        return weir_buffer_resize(buffer, 2 * mib);
      },
      [](weir_buffer* buffer, const c_buffer_close& test) {
        return weir_buffer_hand_over(buffer, test.other);
      },
      [](weir_buffer* buffer, const c_buffer_close& test) {
        return weir_buffer_pool_free(test.pool, buffer, test.other);
      },
      [](weir_buffer* buffer, const c_buffer_close&) { return weir_buffer_begin_host(buffer); },
      [](weir_buffer* buffer, const c_buffer_close& test) {
        return weir_buffer_prefetch(buffer, 0, 0, WEIR_PLACE_HOST, test.stream);
      },
      [](weir_buffer* buffer, const c_buffer_close&) { return weir_buffer_close(buffer); },
  };
  std::vector<weir_buffer*> buffers;
  weir_error answer = weir_ok;
  std::barrier start{2};
  std::thread closer{[&] {
    for (int round = 0; round < 15; ++round)
      for (std::size_t which = 0; which < calls.size(); ++which)
        for (std::size_t kind = 0; kind < 5; ++kind) {
          start.arrive_and_wait();  // the buffers are there
          answer = weir_buffer_close(buffers[kind]);
          start.arrive_and_wait();  // both calls are over
        }
  }};
  for (int round = 0; round < 15; ++round)
    for (std::size_t which = 0; which < calls.size(); ++which) {
      buffers = one_of_each();
      for (std::size_t kind = 0; kind < 5; ++kind) {
        start.arrive_and_wait();
        const weir_error code = calls[which](buffers[kind], *this);
        start.arrive_and_wait();
        const bool frees = which == 7 || (which == 4 && kind == 4);
        if (frees) {
          EXPECT_TRUE((code == weir_ok) != (answer == weir_ok)) << "one of them frees it";
          EXPECT_EQ(code == weir_ok ? answer : code, weir_error_closed) << which << " " << kind;
        } else {
          EXPECT_EQ(answer, weir_ok) << which << " " << kind;
          EXPECT_TRUE(code == weir_ok || code == weir_error_closed ||
                      code == weir_error_not_supported || code == weir_error_foreign_pointer)
              << which << " " << kind << ": " << weir_error_name(code);
        }
        EXPECT_EQ(weir_buffer_close(buffers[kind]), weir_error_closed);
      }
    }
  closer.join();
  wait_for_all();
  EXPECT_EQ(read<weir_buffer_pool_stats>([&](auto* into) {
              return weir_buffer_pool_get_stats(pool, nullptr, 0, into);
            }).taken.current,
            0u);
  EXPECT_EQ(stats().blocks.current, 0u);
}

}  // namespace
}  // namespace weir::testing_support
