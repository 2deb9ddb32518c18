// SPDX-License-Identifier: Apache-2.0
// The fixture of the resources' contract: one resource on the machine under test, streams that
// write and verify patterns, and a judgement at the end.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "allocator_contract/allocator_test.hpp"
#include "resource_contract/resource_cases.hpp"
#include "weir/resource/resource.hpp"

namespace weir::testing_support {

/// A test for one kind of resource and one seed of the machine.
///
/// At its end every lane must have found what it expected, the error handler must have heard
/// nothing, and the machine must have found no fault with the program.
class resource_test : public ::testing::TestWithParam<std::tuple<resource_case, std::uint64_t>>,
                      public driver_fixture {
 public:
  [[nodiscard]] weir::device gpu() const { return *gpu_; }
  [[nodiscard]] const resource_case& about() const { return std::get<0>(GetParam()); }
  [[nodiscard]] any_resource& memory() { return memory_; }
  [[nodiscard]] any_resource another() const { return about().make(gpu()); }
  [[nodiscard]] const std::shared_ptr<weir::runtime>& runtime() const { return runtime_; }

  [[nodiscard]] lane& new_lane();
  [[nodiscard]] word new_value() { return 0x9e3779b9U * next_value_.fetch_add(1); }
  /// A new block, filled on the lane.
  [[nodiscard]] filled_block make(bytes size, const lane& on);
  /// Checks and frees on the lane.
  void finish(const filled_block& block, const lane& on);

  error_log heard;

 protected:
  void SetUp() override;
  void TearDown() override;

 private:
  std::shared_ptr<weir::runtime> runtime_;
  std::optional<weir::device> gpu_;
  any_resource memory_;
  std::vector<std::unique_ptr<lane>> lanes_;
  std::atomic<word> next_value_{1};
};

[[nodiscard]] std::string case_name(const std::tuple<resource_case, std::uint64_t>& of);
void PrintTo(const resource_case& tested, std::ostream* out);

}  // namespace weir::testing_support

/// Instantiates the tests of fixture `name` for every resource on the machine under test.
#define WEIR_RESOURCE_CONTRACT(name)                                                     \
  INSTANTIATE_TEST_SUITE_P(                                                              \
      contract, name,                                                                    \
      ::testing::Combine(::testing::ValuesIn(::weir::testing_support::all_resources()),  \
                         ::testing::ValuesIn(::weir::testing_support::machine_seeds())), \
      [](const auto& parameter) { return ::weir::testing_support::case_name(parameter.param); })
