// Whole programs: who plays, in which turns, and what must be true in the end.
#include "run.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <vector>

#include "crew.hpp"
#include "program.hpp"
#include "world.hpp"

namespace weir::order_test {
namespace {

std::string outcome(const world& at, std::uint64_t seed) {
  if (!at.faults()->found()) return {};
  return "seed " + std::to_string(seed) + " (" + at.describe() + "): " + at.faults()->first();
}

void play_in_turns(world& at, std::uint64_t seed, std::uint64_t steps) {
  chance turns{seed + 1};
  {
    program played{at, seed};
    crew threads{3};
    // A thread that is replaced comes back as another: every number is one thread's alone.
    std::vector<std::size_t> numbers{0, 1, 2};
    std::size_t next_number = 3;
    std::size_t who = 0;
    for (std::uint64_t done = 0; done < steps && !at.faults()->found();) {
      if (!played.keeps_thread()) who = turns.below(threads.size());
      const std::uint64_t turn = std::min(steps - done, 1 + turns.below(40));
      threads.run(who, [&] { played.play(turn, numbers[who]); });
      done += turn;
      if (turns.one_in(40) && !played.keeps_thread()) {
        threads.run(who, [&] { played.end_thread(numbers[who]); });
        threads.replace(who);
        numbers[who] = next_number++;
      }
    }
    threads.run(who, [&] { played.finish(numbers[who]); });
  }
  at.check_end();
}

void play_at_once(world& at, std::uint64_t seed, std::uint64_t steps) {
  constexpr std::size_t players = 3;
  mailbox shared;
  {
    std::vector<std::unique_ptr<program>> played;
    for (std::size_t i = 0; i < players; ++i)
      played.push_back(std::make_unique<program>(at, seed * players + i, &shared));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < players; ++i) {
      threads.emplace_back([&, i] {
        played[i]->play(steps / players, i);
        played[i]->finish(i);
      });
    }
    for (std::thread& each : threads) each.join();
    while (const auto left = shared.take()) {
      // Nobody took it: its event says when its sender was done with it.
      const stream_ref legacy = stream_ref::legacy(at.gpu());
      if (!at.done(legacy.wait(*left->ready), "wait")) break;
      at.done(at.memory().try_deallocate(reinterpret_cast<void*>(left->address), legacy), "free");
    }
  }
  at.check_end();
}

}  // namespace

std::string run_in_turns(std::uint64_t seed, std::uint64_t steps) {
  world at{seed};
  play_in_turns(at, seed, steps);
  return outcome(at, seed);
}

std::string run_at_once(std::uint64_t seed, std::uint64_t steps) {
  world at{seed};
  play_at_once(at, seed, steps);
  return outcome(at, seed);
}

std::string run_natively_right(std::uint64_t seed, std::uint64_t steps) {
  world at{seed, {.discipline = discipline::native}};
  play_in_turns(at, seed, steps);
  return outcome(at, seed);
}

std::string run_natively_right_at_once(std::uint64_t seed, std::uint64_t steps) {
  world at{seed, {.discipline = discipline::native}};
  play_at_once(at, seed, steps);
  return outcome(at, seed);
}

std::string run_under_two_policies(std::uint64_t seed, std::uint64_t steps) {
  using enum placement_policy;
  const std::array others{balanced, throughput, compact, never_move, classic_expandable};
  std::optional<std::uint64_t> expected;
  for (const placement_policy policy : {classic, others[seed % others.size()]}) {
    world at{seed, {.discipline = discipline::native, .policy = policy, .ample = true}};
    play_in_turns(at, seed, steps);
    if (at.faults()->found()) return outcome(at, seed);
    const std::uint64_t read = at.contents()->sum();
    if (expected && *expected != read)
      return "seed " + std::to_string(seed) + " (" + at.describe() + "): other contents were read";
    expected = read;
  }
  return {};
}

}  // namespace weir::order_test
