// SPDX-License-Identifier: Apache-2.0
// Opening the machine for a test and judging it afterwards.
#include "support/contract_test.hpp"

namespace weir::testing_support {
namespace {

std::vector<const refusal_list*>& registered() {
  static std::vector<const refusal_list*> lists;
  return lists;
}

}  // namespace

void contract_test::SetUp() {
  auto opened = open_machine(GetParam());
  if (!opened) {
    if (machine_may_be_absent())
      GTEST_SKIP() << "no machine: " << opened.error().message();
    else
      FAIL() << "no machine: " << opened.error().message();
  }
  open(std::move(*opened));
}

void contract_test::TearDown() {
  clean_up();
  if (machine == nullptr) return;
  for (const auto& hazard : machine->take_hazards()) ADD_FAILURE() << hazard;
}

refusal_list::refusal_list(const char* name, std::vector<refusal> wrong_uses)
    : concept_name{name}, rows{std::move(wrong_uses)} {
  registered().push_back(this);
}

const std::vector<const refusal_list*>& all_refusals() { return registered(); }

void expect_refusals(const refusal_list& list, const std::shared_ptr<machine_under_test>& machine) {
  for (const refusal& row : list.rows) {
    SCOPED_TRACE(list.concept_name + ": " + row.description);
    driver_fixture fixture;
    fixture.open(machine);
    EXPECT_EQ(row.answer, row.misuse(fixture));
  }
}

}  // namespace weir::testing_support
