// Captured graphs: memory of their own, safe to replay, given back when the graph is gone.
#include "heap/graph_fixture.hpp"

namespace weir::testing_support {
namespace {

using ::testing::IsEmpty;

using graph_memory_test = graph_test;

TEST_F(graph_memory_test, a_declared_capture_has_a_pool_of_its_own) {
  auto memory = make();
  const auto stream = new_stream();
  const auto other = new_stream();
  memory.deallocate(memory.allocate(1_MiB, stream), stream);  // in the thread's cache
  auto own = memory.begin_capture(stream).value();
  EXPECT_EQ(code_of(memory.begin_capture(stream)), errc::invalid_argument);
  begin(stream);
  void* const a = memory.allocate(1_MiB, stream);
  write(stream, a, 1_MiB);
  memory.deallocate(a, stream);
  void* const b = memory.allocate(1_MiB, stream);
  EXPECT_EQ(b, a) << "reused inside the capture";
  write(stream, b, 1_MiB);
  void* const c = memory.allocate(3_MiB, stream);
  write(stream, c, 3_MiB);
  memory.deallocate(b, stream);
  memory.deallocate(c, stream);
  EXPECT_EQ(own.pool().stats().blocks.current, 0u);
  void* const outside = memory.allocate(1_MiB, other);  // others go on meanwhile
  write(other, outside, 1_MiB);
  const auto graph = end(stream);
  own.end();
  own.end();
  EXPECT_EQ(code_of(own.pool().try_allocate(1_KiB, stream)), errc::invalid_argument);

  const auto replay = instantiate(graph);
  for (int i = 0; i < 5; ++i) {
    launch(replay, stream);
    std::vector<void*> meanwhile;
    for (const bytes size : {1_MiB, 3_MiB, 100_KiB}) {
      meanwhile.push_back(memory.allocate(size, other));
      write(other, meanwhile.back(), size);
    }
    for (void* const p : meanwhile) memory.deallocate(p, other);
    ASSERT_TRUE(memory.trim());
    ASSERT_TRUE(memory.empty_cache());
  }
  EXPECT_THAT(machine->hazards(), IsEmpty());
  EXPECT_GE(memory.stats().reserved.current, 4_MiB);
  machine->run_until_idle();
  destroy(replay);
  destroy(graph);
  memory.deallocate(outside, other);
  own = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(check(memory), "");
}

TEST_F(graph_memory_test, a_declared_stream_is_not_asked_before_its_capture_begins) {
  auto memory = make();
  auto stream = new_stream();
  void* const a = memory.allocate(32_MiB, stream);
  auto own = memory.begin_capture(stream).value();
  memory.deallocate(a, stream);
  const auto asked = machine->calls(driver::call::stream_get_id);
  const auto marks = machine->calls(driver::call::event_record);
  ASSERT_TRUE(memory.trim());  // on another thread it could meet the beginning of the capture
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(machine->calls(driver::call::stream_get_id), asked);
  EXPECT_EQ(machine->calls(driver::call::event_record), marks);
  EXPECT_GE(memory.stats().reserved.current, 32_MiB);
  own.end();
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  own = memory.begin_capture(stream).value();
  memory.deallocate(memory.allocate(1_MiB, stream), stream);
  ASSERT_TRUE(stream.close()) << "its end is marked all the same";
  own = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(graph_memory_test, forked_streams_belong_to_the_capture) {
  auto memory = make();
  const auto stream = new_stream();
  const auto branch = new_stream();
  memory.deallocate(memory.allocate(1_KiB, branch), branch);  // known before
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  void* const a = memory.allocate(1_MiB, stream);
  auto fork = event::create(gpu()).value();
  auto join = event::create(gpu()).value();
  ASSERT_TRUE(fork.record(stream));
  ASSERT_TRUE(branch.wait(fork));
  void* const b = memory.allocate(1_MiB, branch);
  write(branch, b, 1_MiB);
  memory.deallocate(b, branch);
  void* const c = memory.allocate(1_MiB, stream);
  EXPECT_NE(c, b) << "another stream's, even inside the capture";
  write(stream, c, 1_MiB);
  EXPECT_EQ(own.pool().stats().blocks.current, 2u);
  ASSERT_TRUE(join.record(branch));
  ASSERT_TRUE(stream.wait(join));
  memory.deallocate(a, stream);
  memory.deallocate(c, stream);
  const auto graph = end(stream);
  own.end();
  const auto replay = instantiate(graph);
  launch(replay, stream);
  machine->run_until_idle();
  EXPECT_THAT(machine->hazards(), IsEmpty());
  destroy(replay);
  destroy(graph);
}

TEST_F(graph_memory_test, tied_to_the_graph_it_lives_as_long_as_that) {
  auto memory = make();
  const auto stream = new_stream();
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  void* const a = memory.allocate(8_MiB, stream);
  write(stream, a, 8_MiB);
  memory.deallocate(a, stream);
  const auto graph = end(stream);
  ASSERT_TRUE(own.keep_with(graph));
  EXPECT_EQ(code_of(own.keep_with(nullptr)), errc::invalid_argument);
  own = {};
  const auto replay = instantiate(graph);
  destroy(graph);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 8_MiB) << "the executable still needs it";
  launch(replay, stream);
  machine->run_until_idle();
  destroy(replay);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

TEST_F(graph_memory_test, an_undeclared_capture_is_noticed_by_a_miss) {
  auto memory = make();
  const auto stream = new_stream();
  void* const outside = memory.allocate(1_MiB, stream);
  begin(stream);
  void* const a = memory.allocate(64_MiB, stream);
  write(stream, a, 64_MiB);
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  memory.deallocate(a, stream);
  const auto graph = end(stream);
  const auto replay = instantiate(graph);
  destroy(graph);
  launch(replay, stream);
  machine->run_until_idle();
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_GE(memory.stats().reserved.current, 64_MiB);
  destroy(replay);
  memory.deallocate(outside, stream);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(graph_memory_test, every_request_asks_where_detection_is_on) {
  allocator_options settings;
  settings.detect_captures = true;
  auto memory = make(settings);
  const auto stream = new_stream();
  memory.deallocate(memory.allocate(64_KiB, stream), stream);
  memory.deallocate(memory.allocate(64_KiB, stream), stream);
  begin(stream);
  void* const a = memory.allocate(64_KiB, stream);
  EXPECT_EQ(memory.snapshot().pools.size(), 2u);
  memory.deallocate(a, stream);
  const auto graph = end(stream);
  void* const b = memory.allocate(64_KiB, stream);
  EXPECT_NE(a, b);
  memory.deallocate(b, stream);
  destroy(graph);
}

TEST_F(graph_memory_test, no_call_ends_a_capture) {
  for (const auto mode :
       {driver::CU_STREAM_CAPTURE_MODE_GLOBAL, driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        driver::CU_STREAM_CAPTURE_MODE_RELAXED}) {
    for (const auto policy : {placement_policy::balanced, placement_policy::classic,
                              placement_policy::classic_expandable}) {
      allocator_options settings;
      settings.policy = policy;
      settings.limit = 512_MiB;
      auto memory = make(settings);
      const auto stream = new_stream();
      const auto other = new_stream();
      auto own = memory.begin_capture(stream).value();
      void* const shared = memory.allocate(1_MiB, other);
      ASSERT_TRUE(memory.record_stream(shared, stream));
      begin(stream, mode);
      void* const a = memory.allocate(1_MiB, stream);
      write(stream, a, 1_MiB);
      std::vector<void*> all;
      for (int i = 0; i < 4; ++i) {
        all.push_back(memory.allocate(50_MiB, other));
        write(other, all.back(), 50_MiB);
      }
      for (void* const p : all) memory.deallocate(p, other);
      memory.deallocate(shared, other);
      void* const large = memory.allocate(100_MiB, stream);
      write(stream, large, 100_MiB);
      memory.deallocate(large, stream);
      EXPECT_EQ(code_of(memory.try_allocate(1_GiB, other)), errc::out_of_memory);
      EXPECT_EQ(code_of(memory.try_allocate(1_GiB, stream)), errc::out_of_memory);
      static_cast<void>(memory.stats());
      static_cast<void>(memory.snapshot());
      static_cast<void>(memory.explain(1_GiB, stream));
      ASSERT_TRUE(memory.trim());
      ASSERT_TRUE(memory.empty_cache());
      ASSERT_TRUE(memory.release_stream(stream));
      ASSERT_TRUE(memory.release_stream(other));
      memory.deallocate(a, stream);
      const auto status = stream.ref().capture().value();
      EXPECT_EQ(status.status, capture_status::active);
      const auto graph = end(stream);
      own.end();
      machine->run_until_idle();
      destroy(graph);
      EXPECT_EQ(check(memory), "");
    }
  }
}

TEST_F(graph_memory_test, blocks_that_leave_the_capture_keep_its_memory) {
  auto memory = make();
  const auto stream = new_stream();
  auto own = memory.begin_capture(stream).value();
  begin(stream);
  void* const a = memory.allocate(16_MiB, stream);
  write(stream, a, 16_MiB);
  const auto graph = end(stream);
  destroy(graph);
  own = {};
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().blocks.current, 1u);
  EXPECT_GE(memory.stats().reserved.current, 16_MiB);
  memory.deallocate(a, stream);
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(check(memory), "");
}

/// A driver where somebody begins to capture a stream in the moment before an event is recorded on
/// it, and ends the capture at once or later.
class capture_race_test : public graph_test {
 protected:
  capture_race_test() {
    beneath = machine->driver();
    driver::table racing = beneath;
    racing.event_record = [](driver::CUevent event, driver::CUstream on) {
      if (on != seized) return beneath.event_record(event, on);
      seized = nullptr;
      EXPECT_EQ(beneath.stream_begin_capture(on, driver::CU_STREAM_CAPTURE_MODE_RELAXED),
                driver::CUDA_SUCCESS);
      const auto answer = beneath.event_record(event, on);
      driver::CUgraph graph = nullptr;
      if (ends_at_once) {
        EXPECT_EQ(beneath.stream_end_capture(on, &graph), driver::CUDA_SUCCESS);
        EXPECT_EQ(beneath.graph_destroy(graph), driver::CUDA_SUCCESS);
      }
      return answer;
    };
    runtime_ = runtime::open_table(racing, "racing", machine).value();
  }
  static inline driver::table beneath{};
  static inline driver::CUstream seized = nullptr;
  static inline bool ends_at_once = false;
};

TEST_F(capture_race_test, an_event_that_went_into_a_capture_is_not_used) {
  for (const bool at_once : {false, true}) {
    SCOPED_TRACE(at_once);
    auto memory = make({.limit = 16_MiB});
    const auto one = new_stream();
    const auto two = new_stream();
    void* const p = memory.allocate(16_MiB, one);
    write(one, p, 16_MiB);
    memory.deallocate(p, one);
    ends_at_once = at_once;
    seized = one.handle();
    const auto during = memory.try_allocate(16_MiB, two);
    EXPECT_EQ(seized, nullptr) << "no event was recorded";
    if (at_once) {
      ASSERT_TRUE(during) << "another event could be recorded";
      memory.deallocate(*during, two);
    } else {
      EXPECT_EQ(code_of(during), errc::out_of_memory);
    }
    EXPECT_FALSE(stream_ref{two}.is_capturing().value());
    if (!at_once) destroy(end(one));
    void* const q = memory.allocate(16_MiB, two);
    write(two, q, 16_MiB);
    memory.deallocate(q, two);
    machine->run_until_idle();
    EXPECT_EQ(check(memory), "");
  }
}

}  // namespace
}  // namespace weir::testing_support
