// SPDX-License-Identifier: Apache-2.0
// Call stacks of the calling thread, each kept once.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/call_stack.hpp"

namespace weir { inline namespace v0 { namespace trace {

/// Return addresses, innermost first, by number. Any thread.
class stack_table {
 public:
  using addresses = std::vector<void*>;

  /// The first walk loads a library; done here so that it does not happen inside an event.
  void prepare() const noexcept;
  /// Walks the calling thread's stack from the return address `caller` outwards, or all of it if
  /// that is not on it: its number plus one; 0 without memory for it.
  [[nodiscard]] std::uint32_t capture(const void* caller) noexcept;
  /// Those with number `first` and later.
  [[nodiscard]] std::vector<addresses> since(std::size_t first) const;

 private:
  mutable std::mutex mutex_;
  std::map<addresses, std::uint32_t> numbers_;
  std::vector<const addresses*> all_;
};

using detail::describe_address;
using detail::describe_frame;

}}}  // namespace weir::v0::trace
