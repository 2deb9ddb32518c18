// Building a recording event by event, keeping what a recording promises.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir::inline v0::formats {

/// Gives numbers to keys in the order in which they are first seen.
template <class Key>
class numbering {
 public:
  /// The key's number, and whether it is new.
  std::pair<std::uint32_t, bool> of(const Key& key) {
    const auto [at, fresh] = numbers_.try_emplace(key, static_cast<std::uint32_t>(numbers_.size()));
    return {at->second, fresh};
  }

 private:
  std::unordered_map<Key, std::uint32_t> numbers_;
};

/// A recording under construction. Times that go back are lifted to the one before; streams get
/// their numbers. Who calls it sees to it that blocks are allocated before they are freed: live()
/// helps. One thread.
class recording_builder {
 public:
  struct block {
    std::uint64_t size = 0;
    std::uint32_t stream = 0;
  };

  /// The live block at that address, or null.
  [[nodiscard]] const block* live(std::uint64_t address) const {
    const auto found = live_.find(address);
    return found == live_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::uint32_t stream(std::uint64_t id) {
    const auto [number, fresh] = streams_.of(id);
    if (fresh) built_.streams.push_back(id);
    return number;
  }
  [[nodiscard]] std::uint16_t thread(std::uint64_t id) {
    const auto [number, fresh] = threads_.of(id);
    // Threads past what a number can hold are told as one.
    if (number > last_thread) return last_thread;
    if (fresh) built_.threads.push_back(id);
    return static_cast<std::uint16_t>(number);
  }
  void add(trace_event what) {
    if (what.time < last_time_) what.time = last_time_;
    last_time_ = what.time;
    if (what.kind == trace_kind::allocate) live_[what.address] = {what.size, what.stream};
    if (what.kind == trace_kind::deallocate) live_.erase(what.address);
    built_.events.push_back(what);
  }
  [[nodiscard]] recording& built() noexcept { return built_; }
  [[nodiscard]] recording finish() && {
    if (built_.streams.empty()) built_.streams.push_back(0);
    if (built_.threads.empty()) built_.threads.push_back(0);
    return std::move(built_);
  }

 private:
  static constexpr std::uint16_t last_thread = 65'535;

  recording built_;
  numbering<std::uint64_t> streams_;
  numbering<std::uint64_t> threads_;
  std::unordered_map<std::uint64_t, block> live_;
  std::uint64_t last_time_ = 0;
};

}  // namespace weir::inline v0::formats
