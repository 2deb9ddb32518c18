// Whole programs, from an empty machine to the last look at it.
#pragma once

#include <cstdint>
#include <string>

namespace weir::order_test {

/// One random program of so many steps, its threads taking turns: the same seed is the same
/// program. Returns what went wrong; empty if nothing did.
[[nodiscard]] std::string run_in_turns(std::uint64_t seed, std::uint64_t steps);

/// A random program on each of three threads that share an allocator and send each other blocks, so
/// many steps in all. Threads run as they like: not repeatable.
[[nodiscard]] std::string run_at_once(std::uint64_t seed, std::uint64_t steps);

}  // namespace weir::order_test
