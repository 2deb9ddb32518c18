// SPDX-License-Identifier: Apache-2.0
// Counting the bytes of a snapshot: what pins each handle, then what is free in it.
#include "replay/free_space.hpp"

#include <algorithm>
#include <optional>

namespace weir { inline namespace v0 { namespace replay {

namespace {

constexpr std::array<std::string_view, pin_count> pin_names{"long_lived", "small", "large",
                                                            "thread_cache", "unfinished_use"};
constexpr std::array<std::string_view, sliver_count> sliver_names{
    "to_4_kib", "to_64_kib", "to_256_kib", "to_1_mib", "to_2_mib", "longer"};
constexpr std::uint64_t small_up_to = std::uint64_t{1} << 20;

std::uint64_t end_of(const block_info& block) { return block.address + block.size.count(); }
std::uint64_t end_of(const physical_info& handle) { return handle.address + handle.size.count(); }

bool is_free(const block_info& block) {
  return block.state == block_state::free || block.state == block_state::stream_bound;
}

std::size_t sliver_of(std::uint64_t length) {
  const auto* const limit = std::lower_bound(sliver_limits.begin(), sliver_limits.end(), length);
  return static_cast<std::size_t>(limit - sliver_limits.begin());
}

/// Adds pools to one free_space. The blocks of a pool, and its handles, are sorted by address.
class surveyor {
 public:
  explicit surveyor(const std::unordered_set<device_address>& long_lived)
      : long_lived_{long_lived} {}

  void add(const pool_snapshot& pool) {
    handles_.clear();
    for (const physical_info& each : pool.physical) handles_.push_back({&each});
    find_pins(pool.blocks);
    is_private_ = pool.id != pool_id{};
    for (const block_info& each : pool.blocks) is_free(each) ? add_free(each) : add_taken(each);
    for (const handle& each : handles_) add(each);
  }

  [[nodiscard]] const free_space& found() const noexcept { return found_; }

 private:
  struct handle {
    const physical_info* at = nullptr;
    std::optional<replay::pin> pin{};
    std::uint64_t free = 0;
  };

  /// Calls see(handle, bytes) for each handle under the block, by address.
  template <class See>
  void each_under(const block_info& block, const See& see) {
    const auto first =
        std::partition_point(handles_.begin(), handles_.end(),
                             [&](const handle& each) { return end_of(*each.at) <= block.address; });
    for (auto each = first; each != handles_.end() && each->at->address < end_of(block); ++each) {
      const std::uint64_t start = std::max(block.address, each->at->address);
      see(*each, std::min(end_of(block), end_of(*each->at)) - start);
    }
  }

  void find_pins(const std::vector<block_info>& blocks) {
    for (const block_info& block : blocks) {
      const auto pin = pin_of(block);
      if (!pin) continue;
      each_under(block, [&](handle& under, std::uint64_t) {
        if (!under.pin || *pin < *under.pin) under.pin = pin;
      });
    }
  }

  [[nodiscard]] std::optional<replay::pin> pin_of(const block_info& block) const {
    switch (block.state) {
      case block_state::live:
        if (long_lived_.count(block.address) != 0) return pin::long_lived;
        return block.size.count() <= small_up_to ? pin::small : pin::large;
      case block_state::thread_cached:
        return pin::thread_cache;
      case block_state::pending:
        return pin::unfinished_use;
      case block_state::stream_bound:
      case block_state::free:
      case block_state::hole:
        break;
    }
    return std::nullopt;
  }

  void add_taken(const block_info& block) {
    const std::uint64_t size = block.size.count();
    const std::uint64_t requested = block.requested.count();
    if (block.state == block_state::thread_cached) found_.thread_caches.add(size);
    if (block.state == block_state::pending) found_.unfinished_uses.add(size);
    if (block.state != block_state::live) return;
    found_.requested.add(requested);
    if (size != requested) found_.rounding.add(size - requested);
  }

  void add_free(const block_info& run) {
    std::uint64_t piece = 0;  // of the run, without a handle that can move in between
    const auto end_piece = [&] {
      if (piece != 0 && !is_private_) found_.slivers[sliver_of(piece)].add(piece);
      piece = 0;
    };
    each_under(run, [&](handle& under, std::uint64_t size) {
      under.free += size;
      under.pin ? void(piece += size) : end_piece();
    });
    end_piece();
    if (is_private_) found_.private_pools.add(run.size.count());
    if (run.state == block_state::stream_bound) found_.stream_bound.add(run.size.count());
  }

  void add(const handle& each) {
    found_.reserved.add(each.at->size.count());
    if (each.free == 0 || is_private_) return;
    (each.pin ? found_.pinned[static_cast<std::size_t>(*each.pin)] : found_.headroom)
        .add(each.free);
  }

  free_space found_;
  std::vector<handle> handles_;  // of the pool
  bool is_private_ = false;
  const std::unordered_set<device_address>& long_lived_;
};

}  // namespace

std::string_view name(pin pin) noexcept { return pin_names[static_cast<std::size_t>(pin)]; }

std::string_view sliver_name(std::size_t index) noexcept { return sliver_names[index]; }

std::unordered_set<device_address> long_lived_blocks(const script& script,
                                                     const std::vector<void*>& blocks) {
  std::vector<std::size_t> begins(script.blocks, 0);
  std::vector<std::size_t> ends(script.blocks, script.steps.size());
  for (std::size_t i = 0; i < script.steps.size(); ++i) {
    const step& each = script.steps[i];
    if (each.action == action::allocate) begins[each.block] = i;
    if (each.action == action::free) ends[each.block] = i;
  }
  std::unordered_set<device_address> found;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i] != nullptr && 2 * (ends[i] - begins[i]) >= script.steps.size())
      found.insert(reinterpret_cast<device_address>(blocks[i]));
  return found;
}

free_space survey(const allocator_snapshot& snapshot,
                  const std::unordered_set<device_address>& long_lived) {
  surveyor survey{long_lived};
  for (const pool_snapshot& each : snapshot.pools) survey.add(each);
  return survey.found();
}

}}}  // namespace weir::v0::replay
