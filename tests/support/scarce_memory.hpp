// SPDX-License-Identifier: Apache-2.0
// Host memory that runs out. scarce_memory.cpp replaces operator new in the programs that list it
// among their sources: not under ThreadSanitizer, which brings its own.
#pragma once

namespace weir::testing_support {

/// While it lives, one allocation of this thread fails, after `enough` others. One at a time.
class scarce_memory {
 public:
  explicit scarce_memory(long enough) noexcept;
  ~scarce_memory();
  scarce_memory(const scarce_memory&) = delete;
  scarce_memory& operator=(const scarce_memory&) = delete;

  /// The next allocation of this thread fails, that one alone.
  static void fail_next() noexcept;
  /// Whether the failure that was ordered has happened; from here on none is due.
  [[nodiscard]] static bool take_failure() noexcept;
};

/// While it lives, allocations of this thread neither fail nor count: for who has memory of its
/// own.
class spared_memory {
 public:
  spared_memory() noexcept;
  ~spared_memory();
  spared_memory(const spared_memory&) = delete;
  spared_memory& operator=(const spared_memory&) = delete;

 private:
  const bool outer_;
};

}  // namespace weir::testing_support
