// SPDX-License-Identifier: Apache-2.0
// The fixture of the contract suite, and the lists of calls that a driver must refuse.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/driver_fixture.hpp"

namespace weir::testing_support {

/// How memory is sent to another process.
inline constexpr auto posix_fd = driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A test on the machine under test, for one seed. At its end the device must come to rest without
/// an error and the machine must have found no fault with the program.
class contract_test : public ::testing::TestWithParam<std::uint64_t>, public driver_fixture {
 protected:
  void SetUp() override;
  void TearDown() override;
};

/// One wrong use of a call, with the answer it must get. `misuse` may prepare what it needs; it
/// returns the answer of the call under test.
struct refusal {
  const char* description;
  CUresult answer;
  CUresult (*misuse)(driver_fixture& fixture);
};

/// Registers the refusals of one concept, so that both the suite and the table of observations
/// (observe.hpp) go through them.
struct refusal_list {
  refusal_list(const char* concept_name, std::vector<refusal> rows);
  std::string concept_name;
  std::vector<refusal> rows;
};

[[nodiscard]] const std::vector<const refusal_list*>& all_refusals();

/// Runs every row of `list` on a fixture of its own and expects its answer.
void expect_refusals(const refusal_list& list, const std::shared_ptr<machine_under_test>& machine);

}  // namespace weir::testing_support

/// Instantiates the tests of fixture `name` for the machine under test.
#define WEIR_CONTRACT(name)                                                          \
  INSTANTIATE_TEST_SUITE_P(                                                          \
      contract, name, ::testing::ValuesIn(::weir::testing_support::machine_seeds()), \
      [](const auto& parameter) { return "seed" + std::to_string(parameter.param); })

/// Ends the test unless the call succeeds.
#define WEIR_OK(expression) ASSERT_EQ(::weir::driver::CUDA_SUCCESS, (expression))

/// Skips the test where the driver lacks an optional row.
#define WEIR_NEEDS(member) \
  if (cu->member == nullptr) GTEST_SKIP() << "this driver has no " #member
