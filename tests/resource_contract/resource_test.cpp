// SPDX-License-Identifier: Apache-2.0
// Opening a resource on the machine under test, and judging.
#include "resource_contract/resource_test.hpp"

#include <utility>

namespace weir::testing_support {

std::string case_name(const std::tuple<resource_case, std::uint64_t>& of) {
  return std::string{std::get<0>(of).name} + "_seed" + std::to_string(std::get<1>(of));
}

void PrintTo(const resource_case& tested, std::ostream* out) { *out << tested.name; }

void resource_test::SetUp() {
  auto opened = open_machine(std::get<1>(GetParam()));
  if (!opened) {
    if (machine_may_be_absent())
      GTEST_SKIP() << "no machine: " << opened.error().message();
    else
      FAIL() << "no machine: " << opened.error().message();
  }
  open(std::move(*opened));
  runtime_ = weir::runtime::open_table(*cu, "machine under test", machine).value();
  gpu_ = runtime_->device(device_id{device}).value();
  memory_ = another();
}

void resource_test::TearDown() {
  if (machine == nullptr) return;
  cu->ctx_set_current(context);
  EXPECT_EQ(CUDA_SUCCESS, cu->ctx_synchronize());
  for (const auto& each : lanes_) EXPECT_EQ(each->mismatches(), 0U) << "a pattern was overwritten";
  memory_ = {};
  lanes_.clear();
  for (const error& each : heard.take()) ADD_FAILURE() << "reported: " << each.message();
  runtime_.reset();
  clean_up();
  for (const auto& story : machine->take_hazards()) ADD_FAILURE() << story;
}

lane& resource_test::new_lane() {
  lanes_.push_back(std::make_unique<lane>(*this, gpu()));
  return *lanes_.back();
}

filled_block resource_test::make(bytes size, const lane& on) {
  const filled_block block{memory().allocate(size, on), size, new_value()};
  on.fill(block.memory, block.size, block.value);
  return block;
}

void resource_test::finish(const filled_block& block, const lane& on) {
  on.check(block.memory, block.size, block.value);
  const auto freed = memory().try_deallocate(block.memory, block.size, on);
  EXPECT_TRUE(freed) << freed.error().message();
}

}  // namespace weir::testing_support
