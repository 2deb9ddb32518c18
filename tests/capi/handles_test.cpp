// SPDX-License-Identifier: Apache-2.0
// Handles of the C ABI: closed under other threads' hands, never used twice, safe in a child.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "c_tests.h"
#include "capi/objects.hpp"
#include "heap/asymmetric_barrier.hpp"
#include "weir.h"

namespace weir { namespace {

/// A machine, an allocator and a stream, by handle.
class c_handles : public ::testing::Test {
 protected:
  c_handles() {
    EXPECT_EQ(weir_runtime_open(SMALL_MACHINE, &machine), weir_ok);
    EXPECT_EQ(weir_allocator_create(machine, 0, nullptr, &memory), weir_ok);
    EXPECT_EQ(weir_stream_create(machine, 0, 0, 0, &stream), weir_ok);
  }
  ~c_handles() override {
    weir_set_error_handler(nullptr, nullptr);
    weir_allocator_close(memory);
    weir_stream_close(stream);
    weir_runtime_close(machine);
  }
  /// Makes `work(thread)` run on three threads until it answers false on each, and `meanwhile`
  /// here.
  template <class Work, class Meanwhile>
  static void race(const Work& work, const Meanwhile& meanwhile) {
    std::atomic<int> running{0};
    std::vector<std::thread> users;
    users.reserve(3);
    for (int i = 0; i < 3; ++i) {
      users.emplace_back([&, i] {
        bool goes_on = work(i);
        ++running;
        while (goes_on) goes_on = work(i);
      });
    }
    while (running < 3) std::this_thread::yield();
    meanwhile();
    for (auto& user : users) user.join();
  }

  weir_runtime* machine = nullptr;
  weir_allocator* memory = nullptr;
  weir_stream* stream = nullptr;
};

// Each call either finishes or finds the handle closed.
TEST_F(c_handles, of_a_runtime_may_be_closed_while_in_use) {
  for (int round = 0; round < 10; ++round) {
    weir_runtime* shared = nullptr;
    ASSERT_EQ(weir_runtime_open(SMALL_MACHINE, &shared), weir_ok);
    race(
        [&](int) {
          weir_device_info info{};
          info.struct_size = sizeof(info);
          const weir_error code = weir_device_get_info(shared, 0, &info);
          if (code != weir_ok) {
            EXPECT_EQ(code, weir_error_closed);
            return false;
          }
          EXPECT_EQ(info.total_memory, std::uint64_t{1} << 30);
          return true;
        },
        [&] { EXPECT_EQ(weir_runtime_close(shared), weir_ok); });
  }
}

TEST_F(c_handles, of_an_allocator_may_be_closed_while_in_use) {
  weir_set_error_handler([](void*, weir_error, const char*) {}, nullptr);  // live blocks
  for (int round = 0; round < 10; ++round) {
    weir_allocator* shared = nullptr;
    ASSERT_EQ(weir_allocator_create(machine, 0, nullptr, &shared), weir_ok);
    race(
        [&](int) {
          void* p = nullptr;
          weir_error code = weir_allocator_allocate(shared, 4096, stream, &p);
          EXPECT_EQ(p == nullptr, code != weir_ok);
          if (code == weir_ok) code = weir_allocator_deallocate(shared, p, stream);
          if (code == weir_ok) return true;
          EXPECT_EQ(code, weir_error_closed);
          return false;
        },
        [&] { EXPECT_EQ(weir_allocator_close(shared), weir_ok) << weir_last_error_message(); });
  }
}

TEST_F(c_handles, of_a_stream_may_be_closed_while_in_use) {
  for (int round = 0; round < 20; ++round) {
    weir_stream* shared = nullptr;
    ASSERT_EQ(weir_stream_create(machine, 0, 0, 0, &shared), weir_ok);
    race(
        [&](int) {
          void* p = nullptr;
          const weir_error code = weir_allocator_allocate(memory, 4096, shared, &p);
          if (code != weir_ok) {
            EXPECT_EQ(code, weir_error_closed);
            return false;
          }
          EXPECT_EQ(weir_allocator_deallocate(memory, p, stream), weir_ok);
          return true;
        },
        [&] { EXPECT_EQ(weir_stream_close(shared), weir_ok) << weir_last_error_message(); });
  }
}

TEST_F(c_handles, are_never_used_twice) {
  std::set<weir_event*> events;
  for (int round = 0; round < 300; ++round) {
    weir_event* event = nullptr;
    ASSERT_EQ(weir_event_create(machine, 0, 0, &event), weir_ok);
    EXPECT_TRUE(events.insert(event).second);
    ASSERT_EQ(weir_event_close(event), weir_ok);
  }
  for (weir_event* each : events) EXPECT_EQ(weir_event_synchronize(each), weir_error_closed);
}

TEST_F(c_handles, are_found_without_a_lock_as_long_as_they_are_open) {
  weir_stream* second = nullptr;
  ASSERT_EQ(weir_stream_create(machine, 0, 0, 0, &second), weir_ok);
  capi::table::reader* const reader = capi::read_section::reader();
  if (reader == nullptr) GTEST_SKIP() << "the kernel has no membarrier";
  {
    const capi::read_section section{*reader};
    EXPECT_NE(capi::peek(section, second), nullptr);
    EXPECT_NE(capi::peek(section, memory), nullptr);
    EXPECT_EQ(capi::peek(section, reinterpret_cast<weir_stream*>(memory)), nullptr);
    EXPECT_EQ(capi::peek<weir_stream>(section, nullptr), nullptr);
    EXPECT_EQ(capi::peek(section, reinterpret_cast<weir_stream*>(std::uintptr_t{0xffffff03})),
              nullptr);
  }
  ASSERT_EQ(weir_stream_close(second), weir_ok);
  const capi::read_section later{*reader};
  EXPECT_EQ(capi::peek(later, second), nullptr);
}

// Who closes a handle waits for those who read what it stands for.
TEST_F(c_handles, are_closed_when_nobody_reads_them_any_more) {
  weir_stream* shared = nullptr;
  ASSERT_EQ(weir_stream_create(machine, 0, 0, 0, &shared), weir_ok);
  capi::table::reader* const reader = capi::read_section::reader();
  if (reader == nullptr) GTEST_SKIP() << "the kernel has no membarrier";
  std::atomic<bool> is_closed{false};
  std::thread closer;
  {
    const capi::read_section section{*reader};
    closer = std::thread{[&] {
      EXPECT_EQ(weir_stream_close(shared), weir_ok);
      is_closed = true;
    }};
    while (capi::peek(section, shared) != nullptr) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    EXPECT_FALSE(is_closed);
  }
  closer.join();
}

// Nobody waits for itself.
TEST_F(c_handles, are_closed_by_a_thread_that_reads) {
  capi::table::reader* const reader = capi::read_section::reader();
  if (reader == nullptr) GTEST_SKIP() << "the kernel has no membarrier";
  const auto object = std::make_shared<int>(7);
  const std::uint64_t number = capi::table::add(capi::handle_kind::stream, object).value();
  {
    const capi::read_section section{*reader};
    EXPECT_EQ(capi::table::take(capi::handle_kind::stream, number).value(), object);
    EXPECT_TRUE(reader->is_reading);
  }
  EXPECT_FALSE(reader->is_reading);
}

TEST_F(c_handles, pass_a_threads_mark_on_to_the_next_thread) {
  if (capi::read_section::reader() == nullptr) GTEST_SKIP() << "the kernel has no membarrier";
  std::set<capi::table::reader*> marks;
  for (int i = 0; i < 10; ++i) {
    std::thread{[&] {
      marks.insert(capi::read_section::reader());
      EXPECT_EQ(capi::read_section::reader(), capi::read_section::reader());
    }}.join();
  }
  EXPECT_EQ(marks.size(), 1u);
  EXPECT_FALSE(marks.contains(capi::read_section::reader()));
}

TEST_F(c_handles, give_threads_that_live_together_marks_of_their_own) {
  capi::table::reader* const own = capi::read_section::reader();
  if (own == nullptr) GTEST_SKIP() << "the kernel has no membarrier";
  std::set<capi::table::reader*> marks{own};
  std::atomic<std::size_t> enrolled{0};
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      capi::table::reader* const mark = capi::read_section::reader();
      EXPECT_TRUE(mark->is_taken);
      EXPECT_FALSE(mark->is_reading);
      marks.insert(mark);
      ++enrolled;
      while (!is_over) std::this_thread::yield();
    });
    while (enrolled <= i) std::this_thread::yield();
  }
  is_over = true;
  for (auto& each : threads) each.join();
  EXPECT_EQ(marks.size(), 9u);
}

/// What a thread finds when it is taken down, after the library's own part of that.
struct last_look {
  pthread_key_t key{};
  int rounds = 0;
  capi::table::reader* first = nullptr;
  capi::table::reader* left = nullptr;
  bool has_new_mark = false;
};

// A mark that was left may be another thread's by now.
TEST_F(c_handles, do_not_use_a_mark_that_the_thread_has_left) {
  if (capi::read_section::reader() == nullptr) GTEST_SKIP() << "the kernel has no membarrier";
  last_look look;
  const auto look_again = [](void* context) {
    auto& at = *static_cast<last_look*>(context);
    if (at.rounds++ == 0) {
      // The library's destructor runs in the same round, before this one or after it.
      pthread_setspecific(at.key, context);
      return;
    }
    at.left = capi::table::this_reader;
    capi::table::reader* const mark = capi::read_section::reader();
    at.has_new_mark = mark != nullptr && mark->is_taken;
  };
  ASSERT_EQ(pthread_key_create(&look.key, look_again), 0);
  std::thread{[&] {
    look.first = capi::read_section::reader();
    pthread_setspecific(look.key, &look);
  }}.join();
  EXPECT_EQ(pthread_key_delete(look.key), 0);
  EXPECT_NE(look.first, nullptr);
  EXPECT_EQ(look.rounds, 2);
  EXPECT_EQ(look.left, nullptr);
  EXPECT_TRUE(look.has_new_mark);
  EXPECT_FALSE(look.first->is_taken) << "whichever it had last is left, too";
}

// A thread that was reading when the process was forked is not there, and must not be waited for.
TEST_F(c_handles, are_closed_in_a_forked_child_whoever_read_them) {
  std::atomic<int> stage{0};
  std::thread reads{[&] {
    capi::table::reader* const reader = capi::read_section::reader();
    if (reader != nullptr) {
      const capi::read_section section{*reader};
      stage = 1;
      while (stage == 1) std::this_thread::yield();
    }
    stage = 2;
  }};
  while (stage == 0) std::this_thread::yield();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);
    const weir_error code = weir_stream_close(stream);
    ::_exit(code == weir_ok || code == weir_error_driver_gone ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  stage = 2;
  reads.join();
}

/// The choice is made once in a process, so one of its own makes it.
class c_handles_without_membarrier : public ::testing::Test {
 protected:
  c_handles_without_membarrier() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  [[noreturn]] static void ask_for_a_mark() {
    heap::asymmetric_barrier::refuse_membarrier();
    ::_exit(capi::read_section::reader() == nullptr ? 0 : 1);
  }
};

TEST_F(c_handles_without_membarrier, are_never_read_without_the_lock) {
  EXPECT_EXIT(ask_for_a_mark(), ::testing::ExitedWithCode(0), "");
}

TEST_F(c_handles, are_numbers_with_a_kind_a_place_and_a_generation) {
  weir_event* first = nullptr;
  weir_event* second = nullptr;
  ASSERT_EQ(weir_event_create(machine, 0, 0, &first), weir_ok);
  ASSERT_EQ(weir_event_close(first), weir_ok);
  ASSERT_EQ(weir_event_create(machine, 0, 0, &second), weir_ok);
  const std::uint64_t old = capi::number_of(first);
  const std::uint64_t now = capi::number_of(second);
  EXPECT_EQ(now & 0xff, 0x05u);
  EXPECT_EQ(capi::table::index_in(now), capi::table::index_in(old)) << "the place is used again";
  EXPECT_EQ(now >> 32, (old >> 32) + 1);

  const auto said = [](std::uint64_t number) {
    const weir_error code = weir_event_synchronize(reinterpret_cast<weir_event*>(number));
    const std::string message = code == weir_ok ? ": " : weir_last_error_message();
    return message.substr(message.rfind(": ") + 2);
  };
  EXPECT_EQ(said(now), "");
  EXPECT_EQ(said(old), "the event is closed");
  EXPECT_EQ(said(now + (std::uint64_t{1} << 32)), "expected a handle of kind event")
      << "it is not there yet";
  EXPECT_EQ(said(now & 0xffff'ffff), "expected a handle of kind event") << "no generation is 0";
  EXPECT_EQ(said((now & ~std::uint64_t{0xff}) | 0x03), "expected a handle of kind event");
  EXPECT_EQ(said((now & ~(std::uint64_t{0xffffff} << 8)) | std::uint64_t{0xffffff} << 8),
            "expected a handle of kind event");
  EXPECT_EQ(weir_event_close(second), weir_ok);
}

TEST_F(c_handles, are_many) {
  using capi::handle_kind;
  // More than ever before, so that the last has a place that nobody had.
  static std::size_t rounds = 0;
  const std::size_t count = ++rounds * (2 * capi::table::chunk_slots + 1);
  std::vector<std::shared_ptr<std::size_t>> objects;
  std::vector<std::uint64_t> numbers;
  std::set<std::uint32_t> places;
  for (std::size_t i = 0; i < count; ++i) {
    objects.push_back(std::make_shared<std::size_t>(i));
    const auto number = capi::table::add(handle_kind::event, objects.back());
    ASSERT_TRUE(number) << i;
    numbers.push_back(*number);
    places.insert(capi::table::index_in(*number));
  }
  EXPECT_EQ(places.size(), count);
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_EQ(capi::table::find(handle_kind::event, numbers[i]).value(), objects[i]);

  constexpr std::uint64_t generation = std::uint64_t{1} << 32;
  EXPECT_EQ(numbers.back() >> 32, 1u);
  const auto before = capi::table::find(handle_kind::event, numbers.back() - generation);
  ASSERT_FALSE(before);
  EXPECT_EQ(before.code(), errc::invalid_argument) << "there was none that could be closed";

  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(capi::table::take(handle_kind::event, numbers[i]).value(), objects[i]);
    ASSERT_EQ(capi::table::find(handle_kind::event, numbers[i]).code(), errc::closed);
  }
  for (const auto& each : objects) ASSERT_EQ(each.use_count(), 1) << "the table keeps nothing";
}

TEST_F(c_handles, use_the_thread_cache) {
  void* first = nullptr;
  ASSERT_EQ(weir_allocator_allocate(memory, 4096, stream, &first), weir_ok);
  ASSERT_EQ(weir_allocator_deallocate(memory, first, stream), weir_ok);
  weir_memory_stats before{};
  before.struct_size = sizeof(before);
  ASSERT_EQ(weir_allocator_get_stats(memory, &before), weir_ok);
  for (int i = 0; i < 100; ++i) {
    void* p = nullptr;
    ASSERT_EQ(weir_allocator_allocate(memory, 4096, stream, &p), weir_ok);
    ASSERT_EQ(weir_allocator_deallocate(memory, p, stream), weir_ok);
  }
  weir_memory_stats after{};
  after.struct_size = sizeof(after);
  ASSERT_EQ(weir_allocator_get_stats(memory, &after), weir_ok);
  EXPECT_GE(after.hits - before.hits, 99u);
}

TEST_F(c_handles, tell_a_forked_child_that_the_driver_is_gone) {
  void* p = nullptr;
  ASSERT_EQ(weir_allocator_allocate(memory, 4096, stream, &p), weir_ok);
  const std::uint64_t reported = weir_reported_errors();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    void* q = nullptr;
    const bool as_expected =
        weir_allocator_allocate(memory, 4096, stream, &q) == weir_error_driver_gone &&
        weir_allocator_deallocate(memory, p, stream) == weir_error_driver_gone &&
        weir_stream_synchronize(stream) == weir_error_driver_gone &&
        weir_reported_errors() == reported;
    ::_exit(as_expected ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(weir_allocator_deallocate(memory, p, stream), weir_ok);
}

struct has_had_enough {
  weir_error why;
};

TEST_F(c_handles, let_a_handlers_exception_pass) {
  ASSERT_EQ(weir_allocator_set_out_of_memory_handler(
                memory,
                [](void*, weir_allocator*, std::uint64_t, weir_error why) -> int32_t {
                  throw has_had_enough{why};
                },
                nullptr),
            weir_ok);
  for (int round = 0; round < 10; ++round) {
    void* p = nullptr;
    try {
      weir_allocator_allocate(memory, std::uint64_t{2} << 30, stream, &p);
      FAIL() << "nothing was thrown";
    } catch (const has_had_enough& thrown) {
      EXPECT_EQ(thrown.why, weir_error_out_of_memory);
    }
  }
  void* p = nullptr;
  ASSERT_EQ(weir_allocator_allocate(memory, 4096, stream, &p), weir_ok);
  EXPECT_EQ(weir_allocator_deallocate(memory, p, stream), weir_ok);
}

TEST_F(c_handles, of_callbacks_stop_exceptions) {
  weir_callback* registration = nullptr;
  ASSERT_EQ(weir_allocator_on_out_of_memory(
                memory, [](void*, std::uint64_t) -> int32_t { throw 42; }, nullptr, &registration),
            weir_ok);
  void* p = nullptr;
  // As much as the device has, of which some is taken: callbacks are asked only where they can
  // help.
  EXPECT_EQ(weir_allocator_allocate(memory, std::uint64_t{1} << 30, stream, &p),
            weir_error_internal);
  EXPECT_EQ(weir_callback_close(registration), weir_ok);
}

TEST(c_error_handler, is_told_what_nobody_could_be) {
  static std::vector<std::string> messages;
  messages.clear();
  weir_set_error_handler(
      [](void* context, weir_error code, const char* message) {
        EXPECT_EQ(context, &messages);
        EXPECT_EQ(code, weir_error_still_live);
        messages.emplace_back(message);
      },
      &messages);
  weir_runtime* machine = nullptr;
  weir_allocator* memory = nullptr;
  void* p = nullptr;
  ASSERT_EQ(weir_runtime_open(SMALL_MACHINE, &machine), weir_ok);
  ASSERT_EQ(weir_allocator_create(machine, 0, nullptr, &memory), weir_ok);
  ASSERT_EQ(weir_allocator_allocate(memory, 4096, nullptr, &p), weir_ok);
  EXPECT_EQ(weir_allocator_close(memory), weir_ok);
  weir_set_error_handler(nullptr, nullptr);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_THAT(messages[0], ::testing::HasSubstr("1 live block"));
  EXPECT_EQ(weir_runtime_close(machine), weir_ok);
}

TEST_F(c_handles, keep_a_graph_s_memory_with_the_graph) {
  weir_capture* capture = nullptr;
  void* native = nullptr;
  ASSERT_EQ(weir_stream_get_native(stream, &native), weir_ok);
  ASSERT_EQ(weir_capture_begin(memory, stream, &capture), weir_ok);
  const auto object = capi::find(memory).value();
  const device home = object->legacy.device();
  const context_scope bound{home};
  const auto& calls = home.driver();
  auto* const raw = static_cast<driver::CUstream>(native);
  ASSERT_EQ(calls.stream_begin_capture(raw, driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
            driver::CUDA_SUCCESS);
  int32_t status = -1;
  std::uint64_t id = 0;
  EXPECT_EQ(weir_stream_get_capture(stream, &status, &id), weir_ok);
  EXPECT_EQ(status, weir_capture_active);
  EXPECT_NE(id, 0u);
  void* p = nullptr;
  EXPECT_EQ(weir_allocator_allocate(memory, 4096, stream, &p), weir_ok);
  weir_block_info block{};
  block.struct_size = sizeof(block);
  EXPECT_EQ(weir_allocator_find_block(memory, p, &block), weir_ok);
  EXPECT_NE(block.pool, 0u);
  EXPECT_EQ(weir_allocator_deallocate(memory, p, stream), weir_ok);
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(calls.stream_end_capture(raw, &graph), driver::CUDA_SUCCESS);
  EXPECT_EQ(weir_capture_end(capture), weir_ok);
  EXPECT_EQ(weir_capture_tie_to_graph(capture, graph), weir_ok) << weir_last_error_message();
  EXPECT_EQ(weir_capture_close(capture), weir_ok);
  EXPECT_EQ(calls.graph_destroy(graph), driver::CUDA_SUCCESS);
}

}  // namespace
}  // namespace weir
