// SPDX-License-Identifier: Apache-2.0
// The current resource: one a device, a thread's own before it, and a default.
#include <thread>

#include "resources/resources_fixture.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/resource/current_resource.hpp"
#include "weir/resource/plain_resource.hpp"

namespace weir::testing_support { namespace {

class current_resource_test : public resources_test {
 protected:
  void TearDown() override {
    EXPECT_TRUE(set_current_resource(gpu, {}));
    EXPECT_TRUE(set_current_resource(other_gpu, {}));
    resources_test::TearDown();
  }
};

TEST_F(current_resource_test, is_a_caching_allocator_made_when_asked_for) {
  const std::uint64_t calls = machine->calls();
  const any_resource first = current_resource(gpu).value();
  EXPECT_NE(first.target<caching_allocator>(), nullptr);
  EXPECT_EQ(current_resource(gpu).value(), first);
  EXPECT_NE(current_resource(other_gpu).value(), first);
  EXPECT_EQ(current_resource(other_gpu).value().device(), other_gpu);
  EXPECT_GT(machine->calls(), calls);
  void* const p = first.allocate(1_MiB, stream);
  first.deallocate(p, 1_MiB, stream);
}

TEST_F(current_resource_test, can_be_replaced_for_one_device) {
  const any_resource before = current_resource(gpu).value();
  const any_resource plain = plain_resource::create(gpu).value();
  EXPECT_EQ(set_current_resource(gpu, plain).value(), before);
  EXPECT_EQ(current_resource(gpu).value(), plain);
  EXPECT_NE(current_resource(other_gpu).value(), plain);
  EXPECT_EQ(code_of(set_current_resource(other_gpu, plain)), errc::invalid_argument);
  EXPECT_EQ(set_current_resource(gpu, {}).value(), plain);
  EXPECT_NE(current_resource(gpu).value(), before) << "the default again, but a new one";
}

TEST_F(current_resource_test, a_scope_is_its_threads_own_and_nests) {
  const any_resource process_wide = current_resource(gpu).value();
  const any_resource outer = ledger;
  const any_resource inner = ledger_resource{gpu};
  {
    const resource_scope first{outer};
    EXPECT_EQ(current_resource(gpu).value(), outer);
    EXPECT_NE(current_resource(other_gpu).value(), outer) << "only for its own device";
    {
      const resource_scope second{inner};
      const resource_scope nothing{any_resource{}};
      EXPECT_EQ(current_resource(gpu).value(), inner);
      std::thread{[&] { EXPECT_EQ(current_resource(gpu).value(), process_wide); }}.join();
    }
    EXPECT_EQ(current_resource(gpu).value(), outer);
  }
  EXPECT_EQ(current_resource(gpu).value(), process_wide);
}

TEST_F(current_resource_test, threads_agree_on_the_first_default) {
  std::vector<any_resource> seen(4);
  std::vector<std::thread> crowd;
  for (any_resource& each : seen) crowd.emplace_back([&] { each = current_resource(gpu).value(); });
  for (std::thread& each : crowd) each.join();
  for (const any_resource& each : seen) EXPECT_EQ(each, seen.front());
}

TEST_F(current_resource_test, a_default_that_cannot_be_made_is_an_error_of_the_question) {
  machine->shut_down();
  EXPECT_EQ(code_of(current_resource(gpu)), errc::driver_gone);
}

}  // namespace
}  // namespace weir::testing_support
