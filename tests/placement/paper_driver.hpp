// SPDX-License-Identifier: Apache-2.0
// The memory calls of a driver on paper: addresses and sizes with nothing behind them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string_view>
#include <vector>

#include "support/digest.hpp"
#include "weir/driver/table.hpp"

namespace weir::placement_test {

using testing_support::digest;

/// Takes the place of a table's calls for memory, so that addresses depend on the calls alone, on
/// every machine, and gigabytes cost nothing. Reservations and plain allocations lie side by side:
/// each second one above all others, the rest below them.
///
/// Adds every call to the digest, with its arguments and its answer, and refuses what a driver
/// would refuse: more than there is, a mapping over another, a part of a mapping. One at a time in
/// a process; not for several threads.
class paper_driver {
 public:
  struct rules {
    std::uint64_t memory = 0;          // that it gives away; the device may say it has more
    std::uint64_t most_addresses = 0;  // of one reservation; 0: any
  };
  /// Which calls it has, and which can be made to fail.
  enum class call : std::uint8_t {
    allocate,
    free,
    reserve,
    free_addresses,
    create,
    release,
    map,
    unmap,
    set_access
  };
  static constexpr std::size_t call_count = 9;

  paper_driver(const driver::table& others, rules chosen, digest& told);
  ~paper_driver();
  paper_driver(const paper_driver&) = delete;
  paper_driver& operator=(const paper_driver&) = delete;

  [[nodiscard]] const driver::table& calls() const noexcept { return calls_; }
  /// The `nth` call of the kind from now on (1 is the next) answers `result` and does nothing.
  void fail(call which, std::uint64_t nth, driver::CUresult result);
  void clear_faults() { faults_.clear(); }
  [[nodiscard]] std::uint64_t count(call which) const noexcept {
    return counts_[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }
  /// Whether all was given back: memory, mappings and addresses.
  [[nodiscard]] bool is_empty() const noexcept {
    return used_ == 0 && mappings_.empty() && reservations_.empty() && plain_.empty();
  }

 private:
  struct handle {
    std::uint64_t size = 0;
    std::uint64_t mappings = 0;
    bool released = false;
  };
  struct mapping {
    std::uint64_t size = 0;
    std::uint64_t handle = 0;
  };
  struct fault {
    call which;
    std::uint64_t left;
    driver::CUresult result;
  };

  /// Runs one call of the table: counted, told, and refused where a fault is due.
  template <class Act>
  driver::CUresult answer(call which, std::initializer_list<std::uint64_t> arguments, Act act);
  [[nodiscard]] std::uint64_t place(std::uint64_t size, std::uint64_t alignment);
  [[nodiscard]] bool take(std::uint64_t size) noexcept;
  /// The mappings that fill [address, address + size); none if they do not.
  [[nodiscard]] std::vector<std::uint64_t> mappings_in(std::uint64_t address,
                                                       std::uint64_t size) const;
  void drop_if_unused(std::map<std::uint64_t, handle>::iterator position);

  driver::table calls_;
  rules rules_;
  digest& told_;
  std::vector<fault> faults_;
  std::array<std::uint64_t, call_count> counts_{};
  std::uint64_t refused_ = 0;
  std::uint64_t used_ = 0;
  std::uint64_t below_ = std::uint64_t{1} << 46;  // the lowest address that was given away
  std::uint64_t above_ = std::uint64_t{1} << 46;
  std::uint64_t places_ = 0;
  std::uint64_t next_handle_ = 1;
  std::map<std::uint64_t, std::uint64_t> plain_;         // size by address
  std::map<std::uint64_t, std::uint64_t> reservations_;  // the same
  std::map<std::uint64_t, handle> handles_;
  std::map<std::uint64_t, mapping> mappings_;  // by address

  static paper_driver* current_;
};

}  // namespace weir::placement_test
