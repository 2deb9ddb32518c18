// The live allocations of a stream pool, by address.
#include "pools/stream_pool_books.hpp"

#include <algorithm>

namespace weir::inline v0::pools {
namespace {

/// So many dead addresses are kept at least.
constexpr std::size_t remembered_frees = 4096;

}  // namespace

void stream_pool_books::count_in(const stream_block& block) noexcept {
  if (block.capture) return;  // of the graph, not of the pool
  ++counts_.active;
  counts_.size += block.size;
  counts_.peak = std::max(counts_.peak, counts_.active);
}

void stream_pool_books::count_out(const stream_block& block) noexcept {
  if (block.capture) return;
  --counts_.active;
  counts_.size -= block.size;
}

void stream_pool_books::add(device_address address, const stream_block& block) {
  const std::lock_guard lock{mutex_};
  const auto [at, is_new] = blocks_.try_emplace(address, entry{block});
  if (!is_new) {
    if (at->second.live) {
      count_out(at->second.block);
    } else {
      --dead_;
    }
    at->second = entry{block};
  }
  count_in(block);
}

result<stream_pool_books::table::const_iterator> stream_pool_books::live_entry(
    device_address address) const {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return errc::foreign_pointer;
  if (!found->second.live) return errc::double_free;
  return found;
}

result<stream_block> stream_pool_books::check(device_address address,
                                              const stream_ref& stream) const {
  WEIR_TRY_VALUE(block, find(address));
  // The handle alone says nothing: another stream may have it by now.
  const bool same_stream = stream == block.stream && stream.known_id() == block.stream.known_id();
  if (block.stream_gone && same_stream && stream.known_id() != stream_id{}) {
    return error{.code = errc::bad_stream, .detail = "the stream was destroyed"};
  }
  return block;
}

result<stream_pool_books::taken_block> stream_pool_books::take(
    device_address address, const std::optional<capture_id>& capture) {
  const std::lock_guard lock{mutex_};
  WEIR_TRY_VALUE(found, live_entry(address));
  const stream_block& block = found->second.block;
  if (capture && !block.capture) {
    return error{.code = errc::capture_forbidden,
                 .requested = block.size,
                 .detail = "memory from outside a capture cannot be freed inside"};
  }
  // Freed in its own capture it is over; freed elsewhere it comes again with the next launch.
  if (block.capture && block.capture != capture) return taken_block{block, true};

  const taken_block taken{block};
  if (dead_ >= remembered_frees + counts_.active) {
    std::erase_if(blocks_, [](const auto& each) { return !each.second.live; });
    dead_ = 0;
  }
  count_out(taken.block);
  blocks_.find(address)->second.live = false;
  ++dead_;
  return taken;
}

result<stream_block> stream_pool_books::find(device_address address) const {
  const std::lock_guard lock{mutex_};
  WEIR_TRY_VALUE(found, live_entry(address));
  return found->second.block;
}

bool stream_pool_books::contains(device_address address) const { return find(address).has_value(); }

void stream_pool_books::stream_closing(const stream_ref& which) noexcept {
  const std::lock_guard lock{mutex_};
  for (auto& [address, each] : blocks_) {
    if (each.live && each.block.stream == which) each.block.stream_gone = true;
  }
}

stream_pool_books::counts stream_pool_books::count() const {
  const std::lock_guard lock{mutex_};
  return counts_;
}

void stream_pool_books::reset_peak() {
  const std::lock_guard lock{mutex_};
  counts_.peak = counts_.active;
}

}  // namespace weir::inline v0::pools
