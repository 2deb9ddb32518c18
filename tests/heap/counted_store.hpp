// SPDX-License-Identifier: Apache-2.0
// A store that has as much memory as a test says, none of it handed out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "heap/private_pools.hpp"
#include "placement/suspension.hpp"
#include "weir/base/error.hpp"
#include "weir/base/result.hpp"

namespace weir::testing_support {

/// What became of a store; outlives it.
struct store_record {
  int released = 0;
  int retired = 0;
  int closed = 0;
  std::optional<errc> refuses{};  // what release() returns
};

/// Its memory counts as reserved, and can be released and suspended. Fits nothing.
class counted_store final : public placement::backing_store {
 public:
  counted_store(placement::placement_context& shared, pool_id pool, bytes size,
                store_record& record)
      : backing_store{shared, pool}, record_{record} {
    add_reserved(size.count());
  }

  /// So much of it is in blocks.
  void hand_out(bytes size) noexcept { handed_out_ = size.count(); }

  placement::block_index fit(const placement::request&) override { return placement::no_block; }
  bool prefers_growth(const placement::request&) const override { return false; }
  result<placement::block_index> rearrange(const placement::request&, reach,
                                           const context_scope&) override {
    return placement::no_block;
  }
  result<placement::block_index> grow(const placement::request&, const context_scope&) override {
    return placement::no_block;
  }
  void free(placement::block_index, order::stamp) noexcept override {}
  void retire(order::stream_slot) noexcept override { ++record_.retired; }
  result<bytes> release(bytes most, const context_scope&) override {
    ++record_.released;
    if (record_.refuses) return *record_.refuses;
    const std::uint64_t size = std::min(most.count(), reserved());
    remove_reserved(size);
    return bytes{size};
  }
  result<void> grant(const vmm::access&, const context_scope&) override { return {}; }
  result<void> close(const context_scope&) override {
    ++record_.closed;
    remove_reserved(reserved());
    return {};
  }
  bool can_be_suspended() const noexcept override { return true; }
  result<placement::suspension> plan_suspend() const override { return placement::suspension{}; }
  void apply(const placement::suspension&, bool suspended) noexcept override {
    remove_reserved(reserved());
    suspended_ = suspended;
  }
  std::uint64_t bound_to(order::stream_slot) const noexcept override { return 0; }
  std::uint64_t longest_fit(order::stream_slot) const noexcept override { return 0; }
  std::uint64_t fragments() const noexcept override { return 0; }
  void describe(pool_snapshot&) const override {}
  placement::block_index block_over(std::uint64_t) const noexcept override {
    return placement::no_block;
  }
  result<block_handles> handles_under(placement::block_index index) const override {
    return block_handles{.handles = {}, .offset = bytes{index}};
  }
  std::size_t footprint() const noexcept override { return 0; }
  std::string check() const override { return {}; }

 private:
  store_record& record_;
};

}  // namespace weir::testing_support
