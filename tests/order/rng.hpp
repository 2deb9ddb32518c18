// SPDX-License-Identifier: Apache-2.0
// A random number generator whose choices depend on the seed alone, on every machine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace weir::order_test {

class rng {
 public:
  explicit rng(std::uint64_t seed) : state_{seed * 0x9e3779b97f4a7c15ULL + 1} {}

  /// Any of 0 … n - 1.
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T>
  T any_of(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }
  /// 1 … most, every power of two as likely as the next.
  std::uint64_t magnitude(std::uint64_t most) {
    const std::uint64_t top = std::uint64_t{1}
                              << below(static_cast<std::uint64_t>(std::bit_width(most)));
    const std::uint64_t value = top + below(top);
    return value > most ? most : value;
  }

 private:
  std::uint64_t next() {  // splitmix64
    std::uint64_t mixed = state_ += 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
  }

  std::uint64_t state_;
};

}  // namespace weir::order_test
