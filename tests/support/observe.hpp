// SPDX-License-Identifier: Apache-2.0
// Facts that a machine shows, printed as a table: what the simulator's figures are taken from.
#pragma once

#include <cstdint>
#include <string>

#include "support/driver_fixture.hpp"

namespace weir::testing_support {

/// Prints the facts of one observation, one a line.
class fact_sheet {
 public:
  explicit fact_sheet(std::string subject) : subject_{std::move(subject)} {}
  void result(const std::string& fact, CUresult value);
  void number(const std::string& fact, std::int64_t value);
  /// By reference: the call that answers also writes the value, and either may be evaluated first.
  template <class T>
  void number(const std::string& fact, CUresult answered, const T& value) {
    answer(fact, answered, static_cast<std::int64_t>(value));
  }
  void text(const std::string& fact, const std::string& value);

 private:
  void answer(const std::string& fact, CUresult answered, std::int64_t value);
  std::string subject_;
};

using observation = void (*)(driver_fixture& fixture, fact_sheet& facts);

struct observation_registration {
  observation_registration(const char* subject, observation function);
};

/// Handles --observe and --observe=<subject>: the exit status, or -1 if not asked for. Each subject
/// runs in a process of its own, so that one that ends badly costs only its own facts.
int run_as_observer(int argc, char** argv);

}  // namespace weir::testing_support

/// Defines and registers an observation: WEIR_OBSERVE(subject) { facts.number(...); }
#define WEIR_OBSERVE(subject)                                                                \
  static void weir_observe_##subject(::weir::testing_support::driver_fixture& fixture,       \
                                     ::weir::testing_support::fact_sheet& facts);            \
  static const ::weir::testing_support::observation_registration weir_observation_##subject{ \
      #subject, &weir_observe_##subject};                                                    \
  static void weir_observe_##subject(                                                        \
      [[maybe_unused]] ::weir::testing_support::driver_fixture& fixture,                     \
      [[maybe_unused]] ::weir::testing_support::fact_sheet& facts)
