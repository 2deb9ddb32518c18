// SPDX-License-Identifier: Apache-2.0
// Building a recording event by event, keeping a recording's invariants.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// Gives numbers to keys in the order in which they are first seen.
template <class Key>
class numbering {
 public:
  /// The key's number, and whether it is new.
  std::pair<std::uint32_t, bool> number(const Key& key) {
    const auto [entry, inserted] =
        numbers_.try_emplace(key, static_cast<std::uint32_t>(numbers_.size()));
    return {entry->second, inserted};
  }

 private:
  std::unordered_map<Key, std::uint32_t> numbers_;
};

/// A recording under construction. Times that go back are lifted to the one before; streams get
/// their numbers. The caller ensures that blocks are allocated before they are freed: live() helps.
/// One thread.
class recording_builder {
 public:
  struct block {
    std::uint64_t size = 0;
    std::uint32_t stream = 0;
  };

  /// The live block at that address, or null.
  [[nodiscard]] const block* live(std::uint64_t address) const {
    const auto entry = live_.find(address);
    return entry == live_.end() ? nullptr : &entry->second;
  }
  /// Whether a block of that size can live beside those that do: sums of sizes stay numbers.
  [[nodiscard]] bool has_room(std::uint64_t size) const noexcept {
    return size <= UINT64_MAX - live_bytes_;
  }
  [[nodiscard]] std::uint32_t stream(std::uint64_t id) {
    const auto [number, inserted] = streams_.number(id);
    if (inserted) recording_.streams.push_back(id);
    return number;
  }
  [[nodiscard]] std::uint16_t thread(std::uint64_t id) {
    const auto [number, inserted] = threads_.number(id);
    // Threads past what a number can hold count as one.
    if (number > last_thread) return last_thread;
    if (inserted) recording_.threads.push_back(id);
    return static_cast<std::uint16_t>(number);
  }
  void add(trace_event event) {
    if (event.time < last_time_) event.time = last_time_;
    last_time_ = event.time;
    if (event.kind == trace_kind::allocate) {
      live_[event.address] = {event.size, event.stream};
      live_bytes_ += event.size;
    }
    if (event.kind == trace_kind::deallocate) end(event.address);
    recording_.events.push_back(event);
  }
  [[nodiscard]] recording& draft() noexcept { return recording_; }
  [[nodiscard]] recording finish() && {
    if (recording_.streams.empty()) recording_.streams.push_back(0);
    if (recording_.threads.empty()) recording_.threads.push_back(0);
    return std::move(recording_);
  }

 private:
  static constexpr std::uint16_t last_thread = 65'535;

  void end(std::uint64_t address) {
    const auto entry = live_.find(address);
    if (entry == live_.end()) return;
    live_bytes_ -= entry->second.size;
    live_.erase(entry);
  }

  recording recording_;
  numbering<std::uint64_t> streams_;
  numbering<std::uint64_t> threads_;
  std::unordered_map<std::uint64_t, block> live_;
  std::uint64_t last_time_ = 0;
  std::uint64_t live_bytes_ = 0;
};

inline constexpr const char* no_room = "the live bytes exceed the address space";

}}}  // namespace weir::v0::formats
