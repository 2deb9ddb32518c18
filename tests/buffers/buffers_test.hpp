// SPDX-License-Identifier: Apache-2.0
// The fixture of the buffers' tests: a machine with a runtime on it, memory to take, streams.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "support/driver_fixture.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/resource/resource.hpp"

namespace weir::testing_support {

using namespace weir::literals;

/// The error's code, or nothing where there was none.
template <class Result>
[[nodiscard]] std::optional<errc> code_of(const Result& outcome) {
  if (outcome) return std::nullopt;
  return outcome.code();
}

/// Collects what reaches the process-wide error handler while it lives.
class error_reports {
 public:
  error_reports();
  ~error_reports();
  error_reports(const error_reports&) = delete;
  error_reports& operator=(const error_reports&) = delete;
  [[nodiscard]] std::vector<error> take();

 private:
  std::vector<error> errors_;
};

/// As ::testing::Each() for a value, without a matcher for each element: for large buffers in code
/// that is not optimised.
MATCHER_P(AllAre, value, "") {
  std::size_t place = 0;
  for (const auto& each : arg) {
    if (each != value) {
      *result_listener << "element " << place << " is " << each;
      return false;
    }
    ++place;
  }
  return true;
}

/// 0, 1, 2, … from `first` on.
[[nodiscard]] std::vector<word> counting(std::size_t count, word first = 0);
[[nodiscard]] CUdeviceptr address_of(const void* pointer);

/// A test on the machine under test. At its end nothing may have raced or been reported.
class buffers_test : public ::testing::TestWithParam<std::uint64_t>, public driver_fixture {
 protected:
  void SetUp() override;
  void TearDown() override;

  [[nodiscard]] weir::device gpu(int index = 0) const;
  [[nodiscard]] bool has_two() const { return runtime_->device_count() > 1; }
  /// A caching allocator's memory, one a device for the whole test.
  [[nodiscard]] any_resource memory(int index = 0);
  [[nodiscard]] stream make_stream(int index = 0) const {
    return stream::create(gpu(index)).value();
  }
  /// The words as the stream leaves them.
  [[nodiscard]] std::vector<word> words_of(const void* from, std::size_t count,
                                           const stream_ref& on) const;

  error_reports heard;

 private:
  std::shared_ptr<runtime> runtime_;
  std::vector<any_resource> memories_;
};

}  // namespace weir::testing_support

#define WEIR_BUFFERS_TEST(name)                                                      \
  INSTANTIATE_TEST_SUITE_P(                                                          \
      contract, name, ::testing::ValuesIn(::weir::testing_support::machine_seeds()), \
      [](const auto& parameter) { return "seed" + std::to_string(parameter.param); })

/// Ends the test unless the call succeeds.
#define WEIR_DONE(expression)                                            \
  do {                                                                   \
    const auto& weir_done_ = (expression);                               \
    ASSERT_TRUE(weir_done_.has_value()) << weir_done_.error().message(); \
  } while (false)
