// What the simulated driver answers, call by call, pinned by digests: seeded random programs are
// played against it, one family of them for each area, and every code, output, byte, counter and
// hazard is compared with what answers.txt says. The other tests of this folder say what must be
// true; this one says that nothing has changed.
//
// With WEIR_WRITE_DOCUMENTS set the file is written anew. A change of what the simulator answers
// renews it, on purpose and in the same commit.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "sim/answers.hpp"
#include "support/pinned_file.hpp"

namespace weir::sim_tests::answers {

void PrintTo(const setting& printed, std::ostream* to) { *to << printed.name; }

namespace {

constexpr auto manual = sim::progress::manual;
constexpr auto seeded = sim::progress::seeded;
constexpr auto timed = sim::progress::timed;

void compare(program& plays, const std::string& name) {
  static testing_support::pinned_file file{WEIR_ANSWERS};
  file.expect(name, plays.play(), [&](std::size_t line) { return plays.story(line); });
}

// --- Families: programs that differ in the seed, which is the name, and in how work goes on
// -------

#define FAMILY(family, ...)                                                                    \
  class family : public ::testing::TestWithParam<setting> {};                                  \
  TEST_P(family, answers_as_written) {                                                         \
    const auto plays = play_##family(GetParam());                                              \
    compare(*plays, GetParam().name);                                                          \
  }                                                                                            \
  INSTANTIATE_TEST_SUITE_P(sim, family, ::testing::ValuesIn(std::vector<setting> __VA_ARGS__), \
                           [](const auto& instance) { return instance.param.name; })

FAMILY(memory, {{.name = "memory_manual"},
                {.name = "memory_manual_again"},
                {.name = "memory_seeded", .mode = seeded},
                {.name = "memory_timed", .mode = timed},
                {.name = "memory_short", .mode = seeded, .capacity = 40 * mib}});
FAMILY(streams,
       {{.name = "streams_manual", .steps = 800},
        {.name = "streams_manual_again", .steps = 800},
        {.name = "streams_seeded", .mode = seeded, .steps = 800},
        {.name = "streams_timed", .mode = timed, .steps = 800},
        {.name = "streams_lag", .mode = timed, .lag = sim::duration{3'000}, .steps = 800},
        {.name = "streams_long_lag", .mode = timed, .lag = sim::duration{70'000}, .steps = 800}});
FAMILY(virtual_memory, {{.name = "virtual_manual"},
                        {.name = "virtual_manual_again"},
                        {.name = "virtual_seeded", .mode = seeded},
                        {.name = "virtual_short", .capacity = 32 * mib}});
FAMILY(pools, {{.name = "pools_manual", .steps = 800, .capacity = 640 * mib},
               {.name = "pools_manual_again", .steps = 800, .capacity = 640 * mib},
               {.name = "pools_seeded", .mode = seeded, .steps = 800, .capacity = 640 * mib},
               {.name = "pools_timed",
                .mode = timed,
                .lag = sim::duration{9'000},
                .steps = 800,
                .capacity = 640 * mib},
               {.name = "pools_short", .mode = seeded, .steps = 800, .capacity = 200 * mib}});
FAMILY(managed,
       {{.name = "managed_manual", .capacity = 24 * mib},
        {.name = "managed_seeded", .mode = seeded, .capacity = 24 * mib},
        {.name = "managed_timed", .mode = timed, .capacity = 24 * mib},
        {.name = "managed_unshared", .mode = seeded, .capacity = 24 * mib, .shares_pages = false}});
FAMILY(graphs, {{.name = "graphs_manual", .steps = 3000, .capacity = 400 * mib},
                {.name = "graphs_manual_again", .steps = 3000, .capacity = 400 * mib},
                {.name = "graphs_seeded", .mode = seeded, .steps = 3000, .capacity = 400 * mib},
                {.name = "graphs_timed", .mode = timed, .steps = 3000, .capacity = 400 * mib}});
FAMILY(hazards, {{.name = "hazards_manual"},
                 {.name = "hazards_manual_again"},
                 {.name = "hazards_seeded", .mode = seeded},
                 {.name = "hazards_timed", .mode = timed, .lag = sim::duration{5'000}}});

}  // namespace
}  // namespace weir::sim_tests::answers
