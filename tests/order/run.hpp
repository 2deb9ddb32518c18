// SPDX-License-Identifier: Apache-2.0
// Whole programs, from an empty machine to the last check of it.
#pragma once

#include <cstdint>
#include <string>

namespace weir::order_test {

/// One random program of so many steps on threads that take turns: the same seed is the same
/// program. Returns the first failure; empty if there is none.
[[nodiscard]] std::string run_serialized(std::uint64_t seed, std::uint64_t steps);

/// A random program on each of three threads that share an allocator and send each other blocks, so
/// many steps in all. Threads run as the system schedules them: not repeatable.
[[nodiscard]] std::string run_concurrent(std::uint64_t seed, std::uint64_t steps);

/// The same with programs that declare no use on another stream (discipline::undeclared).
[[nodiscard]] std::string run_undeclared_serialized(std::uint64_t seed, std::uint64_t steps);
[[nodiscard]] std::string run_undeclared_concurrent(std::uint64_t seed, std::uint64_t steps);

/// One program without declared uses twice, under PyTorch's policy and under another, with room for
/// all it asks for. Also a failure: a kernel that read something else the second time.
[[nodiscard]] std::string run_under_two_policies(std::uint64_t seed, std::uint64_t steps);

}  // namespace weir::order_test
