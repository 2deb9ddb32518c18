// Every deliberate mistake in the ordering code is found by the random programs, and nothing is
// found without one.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

#include "order/mutation.hpp"
#include "run.hpp"

namespace weir::order_test {
namespace {

using order::mutation;

constexpr std::uint64_t steps_a_program = 1000;
constexpr std::uint64_t most_programs = 1000;

struct mistake {
  mutation which;
  const char* name;
};

#define WEIR_MISTAKE(name) \
  mistake { mutation::name, #name }
constexpr std::array mistakes{
    WEIR_MISTAKE(free_run_is_everybodys),
    WEIR_MISTAKE(foreign_run_absorbed),
    WEIR_MISTAKE(older_free_counts),
    WEIR_MISTAKE(one_epoch_too_many),
    WEIR_MISTAKE(epoch_not_marked),
    WEIR_MISTAKE(others_work_forgotten),
    WEIR_MISTAKE(one_stream_not_marked),
    WEIR_MISTAKE(unmarked_stream_counts_as_idle),
    WEIR_MISTAKE(new_stream_holds_up_nothing),
    WEIR_MISTAKE(watched_streams_forgotten),
    WEIR_MISTAKE(ended_stream_forgotten),
    WEIR_MISTAKE(lost_stream_forgotten),
    WEIR_MISTAKE(mark_counts_for_open_epoch),
    WEIR_MISTAKE(wait_for_owner_alone),
    WEIR_MISTAKE(hole_forgets_others_work),
    WEIR_MISTAKE(release_forgets_others_work),
    WEIR_MISTAKE(hole_filled_early),
    WEIR_MISTAKE(hole_forgets_its_use),
    WEIR_MISTAKE(mapping_not_retained),
    WEIR_MISTAKE(surplus_is_everybodys),
    WEIR_MISTAKE(no_wait_for_window),
    WEIR_MISTAKE(no_wait_for_borrowed),
    WEIR_MISTAKE(wait_for_older_epoch),
    WEIR_MISTAKE(bound_memory_released),
    WEIR_MISTAKE(recorded_stream_forgotten),
    WEIR_MISTAKE(first_of_recorded_streams),
    WEIR_MISTAKE(pending_taken_without_waits),
    WEIR_MISTAKE(stream_of_free_forgotten),
    WEIR_MISTAKE(streams_known_by_handle),
    WEIR_MISTAKE(cache_of_any_stream),
    WEIR_MISTAKE(large_block_of_any_stream),
    WEIR_MISTAKE(device_never_waited_for),
    WEIR_MISTAKE(graph_memory_let_go_at_end),
    WEIR_MISTAKE(graph_memory_without_guards),
    WEIR_MISTAKE(capture_served_by_the_heap),
    WEIR_MISTAKE(guest_goes_home_at_once),
};
#undef WEIR_MISTAKE
static_assert(mistakes.size() + 1 == static_cast<std::size_t>(mutation::count));

class Mutations : public ::testing::TestWithParam<mistake> {
 protected:
  ~Mutations() override { order::chosen_mutation = mutation::none; }
};

TEST(no_mutation, is_not_found) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    for (const auto run : {run_in_turns, run_natively_right})
      ASSERT_EQ(run(seed, steps_a_program), "");
}

TEST_P(Mutations, is_found) {
  order::chosen_mutation = GetParam().which;
  for (std::uint64_t seed = 1; seed <= most_programs; ++seed) {
    for (const auto run : {run_in_turns, run_natively_right}) {
      const std::string fault = run(seed, steps_a_program);
      if (fault.empty()) continue;
      RecordProperty("programs", std::to_string(seed));
      RecordProperty("kind", run == run_in_turns ? "uses declared" : "natively right");
      RecordProperty("fault", fault);
      return;
    }
  }
  FAIL() << "not found by " << most_programs << " programs";
}

INSTANTIATE_TEST_SUITE_P(Each, Mutations, ::testing::ValuesIn(mistakes),
                         [](const auto& tested) { return std::string{tested.param.name}; });

}  // namespace
}  // namespace weir::order_test
