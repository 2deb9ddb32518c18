// SPDX-License-Identifier: Apache-2.0
// Random programs that mix streams of every kind, captures, suspended memory, pools, peers and
// failing calls: no hazard, no wrong byte, no broken capture, nothing left in the end.
//
// WEIR_PROGRAMS_SECONDS chooses how long that goes on, WEIR_PROGRAMS_SEED runs the one program with
// that seed, WEIR_PROGRAMS_FIRST_SEED begins with another seed than 1.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "../order/serialized_threads.hpp"
#include "captures_beside_requests.hpp"
#include "closing_beside_requests.hpp"
#include "mixed_program.hpp"
#include "support/environment.hpp"
#include "support/sanitizers.hpp"
#include "watchdog.hpp"

namespace weir::programs_test { namespace {

using steady = std::chrono::steady_clock;
using testing_support::number_from;

constexpr std::uint64_t steps_a_program = 400;
constexpr std::size_t thread_count = 3;
constexpr std::chrono::seconds patience{testing_support::is_sanitized ? 240 : 60};

/// The first failure of the program with that seed; empty if there is none.
std::string run_program(std::uint64_t seed) {
  world machine{seed};
  const watchdog guard{patience,
                       [&] { return "seed " + std::to_string(seed) + machine.last_steps(); }};
  rng turns{seed + 1};
  {
    mixed_program program{machine};
    order_test::serialized_threads threads{thread_count};
    for (std::uint64_t done = 0; done < steps_a_program && !machine.failed();) {
      const std::size_t thread = turns.below(thread_count);
      const std::uint64_t turn = 1 + turns.below(40);
      threads.run(thread, [&] { program.run(turn, thread); });
      done += turn;
    }
    for (std::size_t i = 0; i < thread_count; ++i) threads.run(i, [&] { program.end_captures(i); });
    threads.run(0, [&] { program.finish(0); });
  }
  return machine.outcome();
}

/// Runs programs with one seed after the other: so many, the same on every machine, or for as long
/// as WEIR_PROGRAMS_SECONDS says; or the one that was asked for.
template <class Run>
void run_all(const Run& run, std::uint64_t count, std::uint64_t seconds) {
  if (const std::uint64_t seed = number_from("WEIR_PROGRAMS_SEED", 0); seed != 0) {
    const std::string failure = run(seed);
    ASSERT_TRUE(failure.empty()) << failure;
    return;
  }
  const auto end = steady::now() + std::chrono::seconds{seconds};
  const std::uint64_t first = number_from("WEIR_PROGRAMS_FIRST_SEED", 1);
  std::uint64_t seed = first;
  for (; seconds == 0 ? seed < first + count : steady::now() < end; ++seed) {
    const std::string failure = run(seed);
    ASSERT_TRUE(failure.empty()) << failure << "\nWEIR_PROGRAMS_SEED=" << seed << " runs it again";
  }
  ::testing::Test::RecordProperty("programs", std::to_string(seed - first));
}

TEST(mixed_programs, threads_that_take_turns) {
  run_all(run_program, 40, number_from("WEIR_PROGRAMS_SECONDS", 0) * 3 / 4);
}

TEST(mixed_programs, closing_an_allocator_beside_requests) {
  run_all(close_beside_requests, 12, number_from("WEIR_PROGRAMS_SECONDS", 0) / 4);
}

TEST(mixed_programs, capturing_beside_requests_and_ending_threads) {
  run_all(capture_beside_requests, 12, number_from("WEIR_PROGRAMS_SECONDS", 0) / 4);
}

}  // namespace
}  // namespace weir::programs_test
