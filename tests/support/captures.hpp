// SPDX-License-Identifier: Apache-2.0
// Stream captures that must stay valid, whatever is done beside them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/driver/table.hpp"

namespace weir::testing_support {

inline constexpr driver::CUstreamCaptureMode capture_modes[] = {
    driver::CU_STREAM_CAPTURE_MODE_GLOBAL, driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    driver::CU_STREAM_CAPTURE_MODE_RELAXED};

/// A capture of a stream, from its construction to end() or to the end of the scope, when it must
/// be valid. Stays on its thread.
class checked_capture {
 public:
  explicit checked_capture(const stream_ref& captured,
                           driver::CUstreamCaptureMode mode = driver::CU_STREAM_CAPTURE_MODE_GLOBAL)
      : captured_{captured} {
    const context_scope bound{captured_.device()};
    EXPECT_EQ(bound.driver().stream_begin_capture(captured_.handle(), mode), driver::CUDA_SUCCESS);
  }
  ~checked_capture() {
    if (!ended_) static_cast<void>(end());
  }
  checked_capture(const checked_capture&) = delete;
  checked_capture& operator=(const checked_capture&) = delete;

  /// Ends it. Returns how many nodes its graph has.
  std::size_t end() {
    ended_ = true;
    const context_scope bound{captured_.device()};
    driver::CUgraph graph = nullptr;
    EXPECT_EQ(bound.driver().stream_end_capture(captured_.handle(), &graph), driver::CUDA_SUCCESS)
        << "the capture was broken";
    if (graph == nullptr) return 0;
    std::size_t nodes = 0;
    EXPECT_EQ(bound.driver().graph_get_nodes(graph, nullptr, &nodes), driver::CUDA_SUCCESS);
    EXPECT_EQ(bound.driver().graph_destroy(graph), driver::CUDA_SUCCESS);
    return nodes;
  }

 private:
  const stream_ref captured_;
  bool ended_ = false;
};

/// A stream of the program's own, which weir is not told of, until the end of the scope.
class foreign_stream {
 public:
  explicit foreign_stream(weir::device home, int flags = driver::CU_STREAM_NON_BLOCKING)
      : home_{home} {
    const context_scope bound{home_};
    EXPECT_EQ(bound.driver().stream_create(&handle_, static_cast<unsigned>(flags)),
              driver::CUDA_SUCCESS);
  }
  ~foreign_stream() {
    const context_scope bound{home_};
    if (bound) {
      EXPECT_EQ(bound.driver().stream_destroy(handle_), driver::CUDA_SUCCESS);
    }
  }
  foreign_stream(const foreign_stream&) = delete;
  foreign_stream& operator=(const foreign_stream&) = delete;

  [[nodiscard]] stream_ref ref() const noexcept { return {home_, handle_}; }
  operator stream_ref() const noexcept { return ref(); }

 private:
  weir::device home_;
  driver::CUstream handle_ = nullptr;
};

}  // namespace weir::testing_support
