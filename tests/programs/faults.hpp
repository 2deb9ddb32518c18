// SPDX-License-Identifier: Apache-2.0
// Calls that fail once: host memory that runs out, and driver calls that answer an error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "host_memory.hpp"
#include "weir/base/result.hpp"
#include "world.hpp"

namespace weir::programs_test {

/// Makes single calls of a program fail, as the seed says; in some programs none.
///
/// call() makes one call of weir. Now and then one allocation of host memory, or one driver call,
/// fails meanwhile; struck() then tells that an error is legitimate. One thread at a time.
class faults {
 public:
  explicit faults(world& in);

  /// The result of one call of weir. An exception is a failure of the program.
  template <class Call>
  auto call(const char* name, Call action) -> decltype(action()) {
    begin(name);
    try {
      auto outcome = [&] {
        const arming armed{*this};
        return action();
      }();
      return outcome;
    } catch (const std::exception& thrown) {
      world_.fail(std::string{name} + " threw " + thrown.what());
    }
    return errc::internal;
  }

  /// Whether the last call succeeded. An error that is neither in `allowed` nor caused by an
  /// injected failure is a failure of the program.
  template <class T>
  bool accept(const result<T>& outcome, const char* name,
              std::initializer_list<errc> allowed = {}) {
    if (outcome) return true;
    world_.log("  = " + outcome.error().message());
    const bool expected =
        std::find(allowed.begin(), allowed.end(), outcome.code()) != allowed.end();
    if (!expected && !struck_) world_.fail(std::string{name} + ": " + outcome.error().message());
    return false;
  }
  /// Whether a failure was injected into the last call.
  [[nodiscard]] bool struck() const { return struck_; }
  /// No more failures: what follows must succeed.
  void stop() { kind_ = kind::none; }

 private:
  enum class kind : std::uint8_t { none, host, driver, both };
  enum class armed_fault : std::uint8_t { none, host, driver };

  /// The time in which the chosen fault can strike.
  class arming {
   public:
    explicit arming(faults& owner);
    ~arming();
    arming(const arming&) = delete;
    arming& operator=(const arming&) = delete;

   private:
    faults& owner_;
    std::uint64_t calls_before_ = 0;
    std::optional<scarce_memory> scarce_;
  };

  void begin(const char* name);

  world& world_;
  kind kind_ = kind::none;
  armed_fault armed_ = armed_fault::none;
  driver::call target_{};
  std::uint64_t nth_ = 0;
  driver::CUresult answer_{};
  bool struck_ = false;
};

}  // namespace weir::programs_test
