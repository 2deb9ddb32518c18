// SPDX-License-Identifier: Apache-2.0
// Keeping each stack once.
#include "trace/stacks.hpp"

#include <utility>

namespace weir { inline namespace v0 { namespace trace {

void stack_table::prepare() const noexcept {
  try {
    static_cast<void>(detail::call_stack(nullptr));
  } catch (...) {  // no memory: the first event tries again
  }
}

std::uint32_t stack_table::capture(const void* caller) noexcept {
  try {
    addresses stack = detail::call_stack(caller);
    const std::lock_guard lock{mutex_};
    const auto [entry, inserted] =
        numbers_.try_emplace(std::move(stack), static_cast<std::uint32_t>(all_.size()));
    if (inserted) all_.push_back(&entry->first);
    return entry->second + 1;
  } catch (...) {
    return 0;
  }
}

std::vector<stack_table::addresses> stack_table::since(std::size_t first) const {
  const std::lock_guard lock{mutex_};
  std::vector<addresses> stacks;
  for (std::size_t i = first; i < all_.size(); ++i) stacks.push_back(*all_[i]);
  return stacks;
}

}}}  // namespace weir::v0::trace
