// SPDX-License-Identifier: Apache-2.0
// The allocation history of a recording, in one pass.
#include "report/history.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "formats/two_step_frees.hpp"
#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace report {

namespace {

/// A range that does not wrap, whatever the recording says.
std::uint64_t size_within(std::uint64_t address, std::uint64_t size) {
  return std::min(size, std::numeric_limits<std::uint64_t>::max() - address);
}

/// Physical memory as it is mapped, moved and unmapped; pieces of a reservation may go on their
/// own.
class mapping_tracker {
 public:
  explicit mapping_tracker(std::vector<mapped_range>& out) : out_{out} {}

  void map(std::uint64_t address, std::uint64_t size, std::uint32_t event, std::uint16_t pool) {
    size = size_within(address, size);
    unmap(address, size, event);  // the release of what was mapped there before was not recorded
    if (size != 0) mapped_.emplace(address, piece{size, event, pool});
  }

  void unmap(std::uint64_t address, std::uint64_t size, std::uint32_t event) {
    const std::uint64_t end = address + size_within(address, size);
    auto entry = mapped_.upper_bound(address);
    if (entry != mapped_.begin()) --entry;
    while (entry != mapped_.end() && entry->first < end) {
      const auto [from, mapped] = *entry;
      const std::uint64_t to = from + mapped.size;
      if (to <= address) {
        ++entry;
        continue;
      }
      entry = mapped_.erase(entry);
      const std::uint64_t cut = std::max(from, address);
      const std::uint64_t cut_end = std::min(to, end);
      out_.push_back({cut, cut_end - cut, mapped.since, event, mapped.pool});
      if (from < cut) mapped_.emplace(from, piece{cut - from, mapped.since, mapped.pool});
      if (cut_end < to) mapped_.emplace(cut_end, piece{to - cut_end, mapped.since, mapped.pool});
    }
  }

  void finish(std::uint32_t events) {
    for (const auto& [address, remaining] : mapped_) {
      out_.push_back({address, remaining.size, remaining.since, events, remaining.pool});
    }
    std::sort(out_.begin(), out_.end(), [](const mapped_range& a, const mapped_range& b) {
      return std::pair{a.start, a.address} < std::pair{b.start, b.address};
    });
  }

 private:
  struct piece {
    std::uint64_t size;
    std::uint32_t since;
    std::uint16_t pool;
  };
  std::map<std::uint64_t, piece> mapped_;
  std::vector<mapped_range>& out_;
};

class history_builder {
 public:
  history_builder(const recording& recording, const placement* placement, history& out)
      : recording_{recording},
        placement_{placement},
        out_{out},
        mappings_{out.mappings},
        has_own_addresses_{placement == nullptr && recording.real_addresses} {}

  void build() {
    const auto count = static_cast<std::uint32_t>(recording_.events.size());
    out_.live.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      apply(recording_.events[i], i);
      out_.live.push_back(live_);
      if (live_ > out_.live[out_.peak]) out_.peak = i;
      if (has_physical_) out_.reserved.resize(i, 0);
      if (has_physical_) out_.reserved.push_back(reserved_);
    }
    mappings_.finish(count);
  }

 private:
  void apply(const trace_event& event, std::uint32_t index) {
    switch (event.kind) {
      case trace_kind::allocate:
        allocate(event, index);
        break;
      case trace_kind::deallocate:
        end(event.address, index);
        break;
      case trace_kind::reserve:
        if (has_own_addresses_) reserve(event.address, event.size, index, event.pool);
        break;
      case trace_kind::move:
        if (has_own_addresses_) move(event.address, event.size, event.extra, index, event.pool);
        break;
      case trace_kind::release:
        if (has_own_addresses_) release(event.address, event.size, index);
        break;
      case trace_kind::suspended:
        resume(event.pool, index);  // that it came back was not recorded
        suspend(event, index);
        break;
      case trace_kind::resumed:
        resume(event.pool, index);
        break;
      default:
        break;
    }
  }

  void suspend(const trace_event& event, std::uint32_t index) {
    suspended_[event.pool] = out_.suspensions.size();
    out_.suspensions.push_back({.pool = event.pool,
                                .start = index,
                                .end = static_cast<std::uint32_t>(recording_.events.size()),
                                .size = event.size,
                                .kept = event.extra});
  }

  void resume(std::uint16_t pool, std::uint32_t index) {
    const auto entry = suspended_.find(pool);
    if (entry == suspended_.end()) return;
    out_.suspensions[entry->second].end = index;
    suspended_.erase(entry);
  }

  void reserve(std::uint64_t address, std::uint64_t size, std::uint32_t index, std::uint16_t pool) {
    has_physical_ = true;
    reserved_ += size;
    mappings_.map(address, size, index, pool);
  }

  void move(std::uint64_t to, std::uint64_t size, std::uint64_t from, std::uint32_t index,
            std::uint16_t pool) {
    mappings_.unmap(from, size, index);
    mappings_.map(to, size, index, pool);
  }

  void release(std::uint64_t address, std::uint64_t size, std::uint32_t index) {
    has_physical_ = true;
    reserved_ -= std::min(reserved_, size);
    mappings_.unmap(address, size, index);
  }

  /// The placement's steps before this block's allocation.
  void apply_placement_until(std::uint32_t block, std::uint32_t index) {
    for (; next_step_ < placement_->steps.size() && placement_->steps[next_step_].before <= block;
         ++next_step_) {
      const placement::physical& step = placement_->steps[next_step_];
      if (step.kind == memory_event_kind::reserve)
        reserve(step.address, step.size, index, step.pool);
      if (step.kind == memory_event_kind::move)
        move(step.address, step.size, step.from, index, step.pool);
      if (step.kind == memory_event_kind::release) release(step.address, step.size, index);
    }
  }

  /// Gives a new block its place.
  void place(block_lifetime& block, std::uint32_t number, std::uint32_t index) {
    block.placed = has_own_addresses_;
    if (placement_ == nullptr) return;
    apply_placement_until(number, index);
    if (number >= placement_->places.size() || placement_->places[number].address == 0) return;
    block.placed = true;
    block.address = placement_->places[number].address;
    block.rounded = std::max(block.size, placement_->places[number].rounded);
  }

  void allocate(const trace_event& event, std::uint32_t index) {
    end(event.address, index);
    // An address that only tells blocks apart says nothing about how far a block can reach.
    const auto bounded = [&](std::uint64_t size) {
      return recording_.real_addresses ? size_within(event.address, size) : size;
    };
    const std::uint64_t size = bounded(event.size);
    const auto block = static_cast<std::uint32_t>(out_.blocks.size());
    out_.blocks.push_back({event.address, size, bounded(std::max(size, event.extra)), index,
                           static_cast<std::uint32_t>(recording_.events.size()), site_of(event),
                           event.stream, event.tag, event.pool});
    place(out_.blocks.back(), block, index);
    live_blocks_[event.address] = block;
    live_ += size;
  }

  void end(std::uint64_t address, std::uint32_t index) {
    const auto entry = live_blocks_.find(address);
    if (entry == live_blocks_.end()) return;
    block_lifetime& block = out_.blocks[entry->second];
    block.end = index;
    live_ -= block.size;
    out_.freed.push_back(entry->second);
    live_blocks_.erase(entry);
  }

  std::uint32_t site_of(const trace_event& event) {
    const bool by_stack = !recording_.stacks.empty();
    const bool known = by_stack && event.other <= recording_.stacks.size();
    const site key{known ? event.other : 0, by_stack ? 0 : event.size};
    const auto [entry, inserted] = sites_.try_emplace(by_stack ? key.stack : key.size, 0);
    if (inserted) entry->second = by_stack ? add_site(key) : site_of_size(key);
    return entry->second;
  }

  std::uint32_t add_site(const site& key) {
    out_.sites.push_back(key);
    return static_cast<std::uint32_t>(out_.sites.size() - 1);
  }

  std::uint32_t site_of_size(const site& key) {
    const auto [entry, inserted] = sites_by_text_.try_emplace(to_string(bytes{key.size}), 0);
    if (inserted) entry->second = add_site(key);
    return entry->second;
  }

  const recording& recording_;
  const placement* placement_;
  history& out_;
  mapping_tracker mappings_;
  const bool has_own_addresses_;
  std::size_t next_step_ = 0;                                     // of the placement's steps
  std::unordered_map<std::uint64_t, std::uint32_t> live_blocks_;  // by address
  std::unordered_map<std::uint64_t, std::uint32_t> sites_;        // by stack, or size
  std::unordered_map<std::string, std::uint32_t> sites_by_text_;
  std::unordered_map<std::uint16_t, std::size_t> suspended_;  // by pool: of history::suspensions
  std::uint64_t live_ = 0;
  std::uint64_t reserved_ = 0;
  bool has_physical_ = false;
};

}  // namespace

history make_history(const recording& recording, const placement* placement) {
  history out;
  history_builder{recording, placement, out}.build();
  return out;
}

std::uint64_t most_in_use(const recording& recording, const history& history) {
  const auto& events = recording.events;
  const formats::two_step_frees frees{recording};
  if (frees.empty()) return history.live.empty() ? 0 : history.live[history.peak];
  std::unordered_map<std::uint64_t, std::uint64_t> sizes;  // of what is in use, by address
  std::uint64_t in_use = 0;
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const trace_event& event = events[i];
    const bool is_request = event.kind == trace_kind::allocate;
    const bool is_end = event.kind == trace_kind::reusable ||
                        (event.kind == trace_kind::deallocate && !frees.contains(i));
    if (!is_request && !is_end) continue;
    std::uint64_t& size = sizes[event.address];
    in_use -= std::exchange(size, is_request ? event.size : 0);
    in_use += size;
    if (size == 0) sizes.erase(event.address);
    most = std::max(most, in_use);
  }
  return most;
}

}}}  // namespace weir::v0::report
