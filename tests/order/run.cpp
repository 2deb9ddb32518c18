// SPDX-License-Identifier: Apache-2.0
// Whole programs: how their threads are scheduled, and what must be true in the end.
#include "run.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "order_fixture.hpp"
#include "program.hpp"
#include "serialized_threads.hpp"

namespace weir::order_test {
namespace {

std::string outcome(const order_fixture& fixture, std::uint64_t seed) {
  if (!fixture.failure()->occurred()) return {};
  return "seed " + std::to_string(seed) + " (" + fixture.describe() +
         "): " + fixture.failure()->message();
}

void run_with_turns(order_fixture& fixture, std::uint64_t seed, std::uint64_t steps) {
  rng turns{seed + 1};
  {
    program random_program{fixture, seed};
    serialized_threads threads{3};
    // A thread that is replaced comes back as another: every number is one thread's alone.
    std::vector<std::size_t> numbers{0, 1, 2};
    std::size_t next_number = 3;
    std::size_t current = 0;
    for (std::uint64_t steps_done = 0; steps_done < steps && !fixture.failure()->occurred();) {
      if (!random_program.keeps_thread()) current = turns.below(threads.size());
      const std::uint64_t turn = std::min(steps - steps_done, 1 + turns.below(40));
      threads.run(current, [&] { random_program.run(turn, numbers[current]); });
      steps_done += turn;
      if (turns.one_in(40) && !random_program.keeps_thread()) {
        threads.run(current, [&] { random_program.end_thread(numbers[current]); });
        threads.replace(current);
        numbers[current] = next_number++;
      }
    }
    threads.run(current, [&] { random_program.finish(numbers[current]); });
  }
  fixture.check_end();
}

void run_on_threads(order_fixture& fixture, std::uint64_t seed, std::uint64_t steps) {
  constexpr std::size_t count = 3;
  mailbox shared;
  {
    std::vector<std::unique_ptr<program>> programs;
    for (std::size_t i = 0; i < count; ++i)
      programs.push_back(std::make_unique<program>(fixture, seed * count + i, &shared));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        programs[i]->run(steps / count, i);
        programs[i]->finish(i);
      });
    }
    for (std::thread& each : threads) each.join();
    while (const auto unclaimed = shared.take()) {
      // Nobody took it: its event says when its sender was done with it.
      const stream_ref legacy = stream_ref::legacy(fixture.gpu());
      if (!fixture.expect_ok(legacy.wait(*unclaimed->ready), "wait")) break;
      fixture.expect_ok(
          fixture.memory().try_deallocate(reinterpret_cast<void*>(unclaimed->address), legacy),
          "free");
    }
  }
  fixture.check_end();
}

}  // namespace

std::string run_serialized(std::uint64_t seed, std::uint64_t steps) {
  order_fixture fixture{seed};
  run_with_turns(fixture, seed, steps);
  return outcome(fixture, seed);
}

std::string run_concurrent(std::uint64_t seed, std::uint64_t steps) {
  order_fixture fixture{seed};
  run_on_threads(fixture, seed, steps);
  return outcome(fixture, seed);
}

std::string run_undeclared_serialized(std::uint64_t seed, std::uint64_t steps) {
  order_fixture fixture{seed, {.discipline = discipline::undeclared}};
  run_with_turns(fixture, seed, steps);
  return outcome(fixture, seed);
}

std::string run_undeclared_concurrent(std::uint64_t seed, std::uint64_t steps) {
  order_fixture fixture{seed, {.discipline = discipline::undeclared}};
  run_on_threads(fixture, seed, steps);
  return outcome(fixture, seed);
}

std::string run_under_two_policies(std::uint64_t seed, std::uint64_t steps) {
  using enum placement_policy;
  const std::array others{balanced, throughput, compact, never_move, classic_expandable};
  std::optional<std::uint64_t> expected;
  for (const placement_policy policy : {classic, others[seed % others.size()]}) {
    order_fixture fixture{seed,
                          {.discipline = discipline::undeclared, .policy = policy, .ample = true}};
    run_with_turns(fixture, seed, steps);
    if (fixture.failure()->occurred()) return outcome(fixture, seed);
    const std::uint64_t read = fixture.checksum()->sum();
    if (expected && *expected != read)
      return "seed " + std::to_string(seed) + " (" + fixture.describe() +
             "): other contents were read";
    expected = read;
  }
  return {};
}

}  // namespace weir::order_test
