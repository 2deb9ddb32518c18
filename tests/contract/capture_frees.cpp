// SPDX-License-Identifier: Apache-2.0
// Contract: freeing memory on a thread in relaxed mode waits for everything that was queued, and
// leaves captures of every mode as they are.
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/contract_test.hpp"

namespace weir::testing_support { namespace {

using std::chrono::milliseconds;

/// A way to wait for the device: something is allocated and freed.
struct freeing {
  const char* name;
  CUresult (*allocate_and_free)(const table& cu);
};

constexpr freeing freeings[] = {
    {"pinned memory",
     [](const table& cu) {
       void* pointer = nullptr;
       const CUresult answer = cu.mem_host_alloc(&pointer, 64, 0);
       return answer == CUDA_SUCCESS ? cu.mem_free_host(pointer) : answer;
     }},
    {"device memory",
     [](const table& cu) {
       CUdeviceptr address = 0;
       const CUresult answer = cu.mem_alloc(&address, 64);
       return answer == CUDA_SUCCESS ? cu.mem_free(address) : answer;
     }},
    {"registered memory",
     [](const table& cu) {
       const std::unique_ptr<void, decltype(&std::free)> host{std::aligned_alloc(4096, 4096),
                                                              &std::free};
       const CUresult answer = cu.mem_host_register(host.get(), 4096, 0);
       return answer == CUDA_SUCCESS ? cu.mem_host_unregister(host.get()) : answer;
     }},
};

constexpr CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                         CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                         CU_STREAM_CAPTURE_MODE_RELAXED};

/// Puts the calling thread into relaxed mode while it lives.
class relaxed_thread {
 public:
  explicit relaxed_thread(const table& cu) : cu_{cu} { exchange(); }
  ~relaxed_thread() { exchange(); }
  relaxed_thread(const relaxed_thread&) = delete;
  relaxed_thread& operator=(const relaxed_thread&) = delete;

 private:
  void exchange() { EXPECT_EQ(CUDA_SUCCESS, cu_.thread_exchange_stream_capture_mode(&mode_)); }
  const table& cu_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// Work on several streams, each of which writes a word of pinned memory when it is done.
class marked_work {
 public:
  explicit marked_work(driver_fixture& b) : b_{b}, markers_{b.new_pinned(64 * sizeof(word))} {}

  void queue(CUstream stream, std::string name) {
    const auto place = reinterpret_cast<std::uintptr_t>(markers_ + names_.size());
    names_.push_back(std::move(name));
    EXPECT_EQ(CUDA_SUCCESS, b_.spin(milliseconds{5}, stream));
    EXPECT_EQ(CUDA_SUCCESS, b_.fill(place, 1, 1, stream));
  }
  /// The streams whose work is not done yet.
  [[nodiscard]] std::vector<std::string> unfinished() const {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (static_cast<volatile word*>(markers_)[i] != 1) names.push_back(names_[i]);
    }
    return names;
  }

 private:
  driver_fixture& b_;
  word* markers_;
  std::vector<std::string> names_;
};

using no_streams = std::vector<std::string>;

class capture_frees : public contract_test {
 protected:
  struct captured_stream {
    const char* name;
    std::function<CUstream(driver_fixture&)> make;
  };
  const std::vector<captured_stream> captured_streams{
      {"a non-blocking stream",
       [](driver_fixture& b) { return b.new_stream(CU_STREAM_NON_BLOCKING); }},
      {"a blocking stream", [](driver_fixture& b) { return b.new_stream(CU_STREAM_DEFAULT); }},
      {"the per-thread stream", [](driver_fixture&) { return per_thread_stream(); }},
  };

  /// Calls `test` for each way to free, each mode and each kind of captured stream, on a fixture of
  /// its own.
  template <class Test>
  void for_each_case(Test test) {
    for (const freeing& way : freeings) {
      for (const CUstreamCaptureMode mode : modes) {
        for (const captured_stream& kind : captured_streams) {
          SCOPED_TRACE(std::string{way.name} + ", mode " + std::to_string(mode) + ", " + kind.name);
          driver_fixture b;
          b.open(machine);
          test(b, way, mode, kind.make(b));
        }
      }
    }
  }
};
WEIR_CONTRACT(capture_frees);

TEST_P(capture_frees, WaitForWhatWasQueuedOnEveryStreamBeforeTheCapture) {
  for_each_case(
      [](driver_fixture& b, const freeing& way, CUstreamCaptureMode mode, CUstream captured) {
        marked_work work{b};
        work.queue(nullptr, "legacy");
        work.queue(b.new_stream(CU_STREAM_NON_BLOCKING), "non-blocking");
        work.queue(b.new_stream(CU_STREAM_DEFAULT), "blocking");
        work.queue(per_thread_stream(), "per-thread");
        work.queue(captured, "captured");
        ASSERT_EQ(CUDA_SUCCESS, b.cu->stream_begin_capture(captured, mode));
        {
          const relaxed_thread relaxed{*b.cu};
          EXPECT_EQ(CUDA_SUCCESS, way.allocate_and_free(*b.cu));
        }
        EXPECT_EQ(no_streams{}, work.unfinished());
        EXPECT_NE(nullptr, b.end_capture(captured));
      });
}

TEST_P(capture_frees, WaitForWhatWasQueuedOnOtherStreamsDuringTheCapture) {
  for_each_case(
      [](driver_fixture& b, const freeing& way, CUstreamCaptureMode mode, CUstream captured) {
        marked_work work{b};
        const CUstream free_one = b.new_stream(CU_STREAM_NON_BLOCKING);
        const CUstream blocking = b.new_stream(CU_STREAM_DEFAULT);
        ASSERT_EQ(CUDA_SUCCESS, b.cu->stream_begin_capture(captured, mode));
        work.queue(free_one, "non-blocking");
        work.queue(blocking, "blocking");
        {
          const relaxed_thread relaxed{*b.cu};
          EXPECT_EQ(CUDA_SUCCESS, way.allocate_and_free(*b.cu));
        }
        EXPECT_EQ(no_streams{}, work.unfinished());
        EXPECT_NE(nullptr, b.end_capture(captured));
      });
}

TEST_P(capture_frees, LeaveTheCapturedWorkToTheGraph) {
  for_each_case(
      [](driver_fixture& b, const freeing& way, CUstreamCaptureMode mode, CUstream captured) {
        volatile word* const counter = b.new_pinned(64);
        const auto address = reinterpret_cast<std::uintptr_t>(counter);
        ASSERT_EQ(CUDA_SUCCESS, b.cu->stream_begin_capture(captured, mode));
        ASSERT_EQ(CUDA_SUCCESS, b.increment(address, 1, captured));
        {
          const relaxed_thread relaxed{*b.cu};
          EXPECT_EQ(CUDA_SUCCESS, way.allocate_and_free(*b.cu));
        }
        ASSERT_EQ(CUDA_SUCCESS, b.increment(address, 1, captured));
        const CUgraph graph = b.end_capture(captured);
        ASSERT_NE(nullptr, graph);
        EXPECT_EQ(0u, *counter);
        ASSERT_EQ(CUDA_SUCCESS, b.cu->graph_launch(b.new_exec(graph), captured));
        ASSERT_EQ(CUDA_SUCCESS, b.cu->ctx_synchronize());
        EXPECT_EQ(2u, *counter);
      });
}

TEST_P(capture_frees, LeaveCapturesOfOtherThreadsAsTheyAre) {
  for (const freeing& way : freeings) {
    for (const CUstreamCaptureMode mode : modes) {
      for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
        SCOPED_TRACE(std::string{way.name} + ", mode " + std::to_string(mode) +
                     (flags == CU_STREAM_DEFAULT ? ", blocking" : ""));
        driver_fixture b;
        b.open(machine);
        const CUstream captured = b.new_stream(flags);
        marked_work work{b};
        work.queue(captured, "captured");
        std::promise<void> begun;
        std::promise<void> freed;
        CUresult ended = CUDA_ERROR_UNKNOWN;
        CUgraph graph = nullptr;
        std::thread other{[&] {
          EXPECT_EQ(CUDA_SUCCESS, b.cu->ctx_set_current(b.context));
          EXPECT_EQ(CUDA_SUCCESS, b.cu->stream_begin_capture(captured, mode));
          begun.set_value();
          freed.get_future().wait();
          ended = b.cu->stream_end_capture(captured, &graph);
        }};
        begun.get_future().wait();
        {
          const relaxed_thread relaxed{*b.cu};
          EXPECT_EQ(CUDA_SUCCESS, way.allocate_and_free(*b.cu));
        }
        EXPECT_EQ(no_streams{}, work.unfinished());
        freed.set_value();
        other.join();
        EXPECT_EQ(CUDA_SUCCESS, ended);
        if (graph != nullptr) b.cu->graph_destroy(graph);
      }
    }
  }
}

}  // namespace
}  // namespace weir::testing_support
