// SPDX-License-Identifier: Apache-2.0
// Every deliberate mistake in the ordering code is found by the random programs, and nothing is
// found without one.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "order/mutation.hpp"
#include "run.hpp"

namespace weir::order_test { namespace {

using order::mutation;

constexpr std::uint64_t steps_a_program = 1000;
constexpr std::uint64_t most_programs = 1000;

struct mutant {
  mutation change;
  const char* name;
};

#define WEIR_MUTANT(name) \
  mutant { mutation::name, #name }
constexpr std::array mutants{
    WEIR_MUTANT(free_run_is_everybodys),
    WEIR_MUTANT(foreign_run_absorbed),
    WEIR_MUTANT(older_free_counts),
    WEIR_MUTANT(one_epoch_too_many),
    WEIR_MUTANT(epoch_not_marked),
    WEIR_MUTANT(others_work_forgotten),
    WEIR_MUTANT(one_stream_not_marked),
    WEIR_MUTANT(unmarked_stream_counts_as_idle),
    WEIR_MUTANT(new_stream_holds_up_nothing),
    WEIR_MUTANT(watched_streams_forgotten),
    WEIR_MUTANT(ended_stream_forgotten),
    WEIR_MUTANT(lost_stream_forgotten),
    WEIR_MUTANT(mark_counts_for_open_epoch),
    WEIR_MUTANT(wait_for_owner_alone),
    WEIR_MUTANT(bystanders_wait_for_nothing),
    WEIR_MUTANT(hole_forgets_others_work),
    WEIR_MUTANT(release_forgets_others_work),
    WEIR_MUTANT(hole_filled_early),
    WEIR_MUTANT(hole_forgets_its_use),
    WEIR_MUTANT(mapping_not_retained),
    WEIR_MUTANT(surplus_is_everybodys),
    WEIR_MUTANT(no_wait_for_window),
    WEIR_MUTANT(no_wait_for_borrowed),
    WEIR_MUTANT(wait_for_older_epoch),
    WEIR_MUTANT(bound_memory_released),
    WEIR_MUTANT(recorded_stream_forgotten),
    WEIR_MUTANT(first_of_recorded_streams),
    WEIR_MUTANT(pending_taken_without_waits),
    WEIR_MUTANT(stream_of_free_forgotten),
    WEIR_MUTANT(streams_known_by_handle),
    WEIR_MUTANT(cache_of_any_stream),
    WEIR_MUTANT(large_block_of_any_stream),
    WEIR_MUTANT(device_never_waited_for),
    WEIR_MUTANT(graph_memory_let_go_at_end),
    WEIR_MUTANT(graph_memory_without_guards),
    WEIR_MUTANT(capture_served_by_the_heap),
    WEIR_MUTANT(guest_goes_home_at_once),
};
#undef WEIR_MUTANT
static_assert(mutants.size() + 1 == static_cast<std::size_t>(mutation::count));

class Mutations : public ::testing::TestWithParam<mutant> {
 protected:
  ~Mutations() override { order::chosen_mutation = mutation::none; }
};

TEST(no_mutation, is_not_found) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    for (const auto run : {run_serialized, run_undeclared_serialized})
      ASSERT_EQ(run(seed, steps_a_program), "");
}

TEST_P(Mutations, is_found) {
  order::chosen_mutation = GetParam().change;
  for (std::uint64_t seed = 1; seed <= most_programs; ++seed) {
    for (const auto run : {run_serialized, run_undeclared_serialized}) {
      const std::string failure = run(seed, steps_a_program);
      if (failure.empty()) continue;
      RecordProperty("programs", std::to_string(seed));
      RecordProperty("kind", run == run_serialized ? "uses declared" : "uses undeclared");
      RecordProperty("failure", failure);
      return;
    }
  }
  FAIL() << "not found by " << most_programs << " programs";
}

INSTANTIATE_TEST_SUITE_P(Each, Mutations, ::testing::ValuesIn(mutants),
                         [](const auto& tested) { return std::string{tested.param.name}; });

}  // namespace
}  // namespace weir::order_test
