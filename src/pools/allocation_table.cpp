// SPDX-License-Identifier: Apache-2.0
// The live allocations of a stream pool, by address.
#include "pools/allocation_table.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "observe/misuse.hpp"
#include "pools/thread_stream.hpp"

namespace weir { inline namespace v0 { namespace pools {

using detail::mutex_lock;

namespace {

/// So many dead addresses are kept at least.
constexpr std::size_t remembered_frees = 4096;

observe::accused_block accused(device_address address, const stream_block& block) {
  return {.address = address,
          .size = block.size,
          .tag = block.tag,
          .stream = block.stream.known_id(),
          .life = {}};
}

}  // namespace

void allocation_table::count_in(const stream_block& block) noexcept {
  if (block.capture) return;  // of the graph, not of the pool
  ++counts_.active;
  counts_.size += block.size;
  counts_.peak = std::max(counts_.peak, counts_.active);
}

void allocation_table::count_out(const stream_block& block) noexcept {
  if (block.capture) return;
  --counts_.active;
  counts_.size -= block.size;
}

void allocation_table::add(device_address address, const stream_block& block) {
  const mutex_lock lock{mutex_};
  enter(address, block);
}

bool allocation_table::add_unless_live(device_address address, const stream_block& block) {
  const mutex_lock lock{mutex_};
  if (is_live(address)) return false;
  enter(address, block);
  return true;
}

void allocation_table::enter(device_address address, const stream_block& block) {
  const auto [at, is_new] = entries_.try_emplace(address, entry{block});
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

result<allocation_table::table::const_iterator> allocation_table::live_entry(
    device_address address) const {
  const auto at = entries_.find(address);
  if (at == entries_.end()) return why_not_live(address);
  if (!at->second.live) return observe::double_free(accused(address, at->second.block));
  return at;
}

error allocation_table::why_not_live(device_address address) const {
  for (const auto& [start, each] : entries_) {
    if (each.live && address > start && address - start < each.block.size.count())
      return observe::foreign_pointer(address, accused(start, each.block));
  }
  return observe::foreign_pointer(address, "pool");
}

result<stream_block> allocation_table::check(device_address address,
                                             const stream_ref& stream) const {
  WEIR_TRY_VALUE(block, find(address));
  // The handle alone says nothing: another stream may have it by now.
  const bool same_stream = stream == block.stream && stream.known_id() == block.stream.known_id();
  if (block.stream_gone && same_stream && stream.known_id() != stream_id{}) {
    return error{
        {.code = errc::bad_stream, .detail = "the stream was destroyed; free on a live stream"}};
  }
  return block;
}

result<allocation_table::taken_block> allocation_table::take(
    device_address address, const std::optional<capture_id>& capture) {
  const mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(at, live_entry(address));
  const stream_block& block = at->second.block;
  if (capture && !block.capture) {
    return error{{.code = errc::capture_forbidden,
                  .requested = block.size,
                  .detail = "memory allocated outside a capture cannot be freed inside it"}};
  }
  // Freed in its own capture it is over; freed elsewhere it comes again with the next launch.
  if (block.capture && block.capture != capture) return taken_block{block, true};

  const taken_block taken{block};
  if (dead_ >= remembered_frees + counts_.active) {
    std::erase_if(entries_, [](const auto& each) { return !each.second.live; });
    dead_ = 0;
  }
  count_out(taken.block);
  entries_.find(address)->second.live = false;
  ++dead_;
  return taken;
}

result<stream_block> allocation_table::find(device_address address) const {
  const mutex_lock lock{mutex_};
  WEIR_TRY_VALUE(at, live_entry(address));
  return at->second.block;
}

bool allocation_table::contains(device_address address) const {
  const mutex_lock lock{mutex_};
  return is_live(address);
}

bool allocation_table::is_live(device_address address) const {
  const auto at = entries_.find(address);
  return at != entries_.end() && at->second.live;
}

void allocation_table::stream_closing(const stream_ref& stream) noexcept {
  const std::uint64_t thread = detail::thread_of(stream);
  const mutex_lock lock{mutex_};
  for (auto& [address, each] : entries_) {
    if (each.block.stream == stream && each.block.thread == thread) each.block.stream_gone = true;
  }
}

allocation_table::counts allocation_table::count() const {
  const mutex_lock lock{mutex_};
  return counts_;
}

error allocation_table::leak() const {
  const mutex_lock lock{mutex_};
  std::vector<observe::accused_block> live;
  for (const auto& [address, each] : entries_)
    if (each.live && !each.block.capture) live.push_back(accused(address, each.block));
  return observe::leak("a stream pool was closed", counts_.active, counts_.size, std::move(live));
}

void allocation_table::reset_peak() {
  const mutex_lock lock{mutex_};
  counts_.peak = counts_.active;
}

}}}  // namespace weir::v0::pools
