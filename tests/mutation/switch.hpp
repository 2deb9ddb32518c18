// SPDX-License-Identifier: Apache-2.0
#pragma once
// Planted faults: what cpp_mutants.py writes into the sources calls these. Every fault is compiled
// in and asleep; WEIR_MUTANT=<number> wakes one. This file is forced into every source of the build
// `mutate` and is part of nothing else.
//
// WEIR_MUTANTS_REACHED=<file of one byte a number> collects which faults a process and its children
// came by, whether or not they end well: the file is mapped, and a byte is set at each passing.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstddef>
#include <cstdlib>

namespace weir_mutants {

inline constexpr std::size_t numbers = std::size_t{1} << 20;

struct state {
  unsigned active = 0;  // no fault has the number 0
  volatile unsigned char* reached = nullptr;
};

inline state read_environment() noexcept {
  state read;
  if (const char* number = std::getenv("WEIR_MUTANT")) {
    read.active = static_cast<unsigned>(std::strtoul(number, nullptr, 10));
  }
  if (const char* path = std::getenv("WEIR_MUTANTS_REACHED")) {
    if (const int file = ::open(path, O_RDWR | O_CLOEXEC); file >= 0) {
      void* memory = ::mmap(nullptr, numbers, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (memory != MAP_FAILED) read.reached = static_cast<volatile unsigned char*>(memory);
      ::close(file);
    }
  }
  return read;
}

// Zero, so that no fault is awake, until this is initialised.
inline const state chosen = read_environment();

inline bool is_awake(unsigned number) noexcept {
  if (chosen.reached != nullptr) chosen.reached[number] = 1;
  return number == chosen.active;
}

// Constant expressions are always as they were written.
constexpr bool on(unsigned number) noexcept {
  if (__builtin_is_constant_evaluated()) return false;
  return is_awake(number);
}

template <class T>
constexpr bool flip(unsigned number, const T& condition) {
  return on(number) != static_cast<bool>(condition);
}
template <class T>
constexpr bool always(unsigned number, const T& condition) {
  return on(number) | static_cast<bool>(condition);
}
template <class T>
constexpr bool never(unsigned number, const T& condition) {
  return !on(number) & static_cast<bool>(condition);
}
template <class T>
constexpr T next(unsigned number, T value) {
  return on(number) ? static_cast<T>(value + 1) : value;
}
template <class T>
constexpr const T& pick(unsigned number, const T& written, const T& other) {
  return on(number) ? other : written;
}

#define WEIR_MUTANTS_BINARY(name, written, other)                        \
  template <class A, class B>                                            \
  constexpr auto name(unsigned number, const A& a, const B& b) {         \
    return on(number) ? static_cast<decltype(a written b)>(a other b)    \
                      : static_cast<decltype(a written b)>(a written b); \
  }
WEIR_MUTANTS_BINARY(less, <, <=)
WEIR_MUTANTS_BINARY(less_equal, <=, <)
WEIR_MUTANTS_BINARY(greater, >, >=)
WEIR_MUTANTS_BINARY(greater_equal, >=, >)
WEIR_MUTANTS_BINARY(equal, ==, !=)
WEIR_MUTANTS_BINARY(not_equal, !=, ==)
WEIR_MUTANTS_BINARY(plus, +, -)
WEIR_MUTANTS_BINARY(minus, -, +)
WEIR_MUTANTS_BINARY(times, *, +)
WEIR_MUTANTS_BINARY(divide, /, *)
WEIR_MUTANTS_BINARY(modulo, %, +)
WEIR_MUTANTS_BINARY(bit_and, &, |)
WEIR_MUTANTS_BINARY(bit_or, |, &)
WEIR_MUTANTS_BINARY(shift_left, <<, >>)
WEIR_MUTANTS_BINARY(shift_right, >>, <<)
#undef WEIR_MUTANTS_BINARY

#define WEIR_MUTANTS_ASSIGN(name, written, other)        \
  template <class A, class B>                            \
  constexpr A& name(unsigned number, A& a, const B& b) { \
    if (on(number)) {                                    \
      a other b;                                         \
    } else {                                             \
      a written b;                                       \
    }                                                    \
    return a;                                            \
  }
WEIR_MUTANTS_ASSIGN(add_to, +=, -=)
WEIR_MUTANTS_ASSIGN(subtract_from, -=, +=)
WEIR_MUTANTS_ASSIGN(or_into, |=, &=)
WEIR_MUTANTS_ASSIGN(and_into, &=, |=)
#undef WEIR_MUTANTS_ASSIGN

}  // namespace weir_mutants
