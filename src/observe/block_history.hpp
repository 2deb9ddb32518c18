// SPDX-License-Identifier: Apache-2.0
// The lives of blocks, remembered so that misuse can be told with both call stacks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "weir/observe/events.hpp"

namespace weir { inline namespace v0 { namespace observe {

/// Remembers of each address the latest block there: size, tag, streams, and the calls in which it
/// was allocated and freed. Of freed blocks the latest 65536.
///
/// An observer of one allocator; its mutex is taken last. Any thread. Costs a walk of the stack for
/// each allocation and free.
class block_history final : public event_sink {
 public:
  void on_event(const memory_event& event) noexcept override;
  /// Lines that tell the life of the latest block there, each begun by a line's end; empty if there
  /// was none.
  [[nodiscard]] std::string life_of(std::uint64_t address) const;

  /// The latest block whose bytes the address is one of; of size 0 if there was none.
  struct range {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    bool is_freed = false;
  };
  [[nodiscard]] range block_over(std::uint64_t address) const noexcept;

 private:
  using stack = std::vector<void*>;
  struct life {
    std::uint64_t size = 0;
    std::uint16_t tag = 0;
    std::uint64_t allocated_on = 0;
    std::uint64_t freed_on = 0;
    stack allocated_at{};
    stack freed_at{};
    bool is_freed = false;
  };

  void allocated(const memory_event& event, stack at);
  void freed(const memory_event& event, stack at);

  mutable std::mutex mutex_;
  std::map<std::uint64_t, life> lives_;
  std::deque<std::uint64_t> freed_;  // oldest first; may name addresses that are live again
};

}}}  // namespace weir::v0::observe
