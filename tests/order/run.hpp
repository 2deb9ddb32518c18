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

/// The same with programs that are natively right.
[[nodiscard]] std::string run_natively_right(std::uint64_t seed, std::uint64_t steps);
[[nodiscard]] std::string run_natively_right_at_once(std::uint64_t seed, std::uint64_t steps);

/// One natively right program twice, under PyTorch's policy and under another, with room for all it
/// asks for. Also wrong: a kernel that read something else the second time.
[[nodiscard]] std::string run_under_two_policies(std::uint64_t seed, std::uint64_t steps);

}  // namespace weir::order_test
