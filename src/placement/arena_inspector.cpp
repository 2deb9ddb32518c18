// SPDX-License-Identifier: Apache-2.0
// Figures and snapshot of an arena.
#include "placement/arena_inspector.hpp"

namespace weir { inline namespace v0 { namespace placement {

std::uint64_t arena_inspector::fragments() const noexcept {
  std::uint64_t whole = 0;
  for (block_index at = core_.runs.first(); at != no_block;) {
    if (core_.runs[at].is() != block_kind::run) {
      at = core_.runs[at].after;
      continue;
    }
    const std::uint64_t start = core_.runs[at].address;
    std::uint64_t end = start;
    for (; at != no_block && core_.runs[at].is() == block_kind::run; at = core_.runs[at].after)
      end = core_.runs[at].end();
    std::uint64_t i = core_.slots.slot_behind(start);
    while (i < core_.slots.slot_of(end)) {
      const handle_record& there = core_.slots.handle_at(i);
      if (there.slot == i && i + there.slots <= core_.slots.slot_of(end))
        whole += core_.slots.bytes_of(there.slots);
      i = there.slot + there.slots;
    }
  }
  const arena_figures figures = host_.figures();
  return figures.reserved - figures.handed_out - whole;
}

result<block_handles> arena_inspector::handles_under(block_index index) const {
  if (!core_.properties.posix_descriptor) return errc::not_supported;
  const block& block = core_.runs[index];
  std::uint64_t at = core_.slots.handle_at(core_.slots.slot_of(block.address)).slot;
  block_handles handles{.handles = {}, .offset = bytes{block.address - core_.slots.address_of(at)}};
  while (at < core_.slots.count() && core_.slots.address_of(at) < block.end()) {
    const handle_record& there = core_.slots.handle_at(at);
    handles.handles.push_back(there.memory);
    at += there.slots;
  }
  return handles;
}

void arena_inspector::describe(pool_snapshot& into, bool suspended) const {
  for (block_index at = core_.runs.first(); at != no_block; at = core_.runs[at].after) {
    const block& there = core_.runs[at];
    block_info info{.address = there.address, .size = bytes{there.size()}, .pool = core_.pool};
    switch (there.is()) {
      case block_kind::run:
        info.state = there.stream == no_stream ? block_state::free : block_state::stream_bound;
        if (suspended) info.state = block_state::hole;
        break;
      case block_kind::hole:
      case block_kind::stuck:
        info.state = block_state::hole;
        break;
      case block_kind::thread_cached:
      case block_kind::given_back:
        info.state = block_state::thread_cached;
        break;
      case block_kind::pending:
        info.state = block_state::pending;
        break;
      case block_kind::live:
      case block_kind::questioned:
      case block_kind::unused:
        info.state = block_state::live;
        break;
    }
    info.suspended = suspended && info.state != block_state::hole;
    if (there.stream != no_stream && info.state != block_state::hole)
      info.stream = core_.shared.order.id(there.stream);
    into.blocks.push_back(info);
  }
  core_.slots.each_place([&](std::uint64_t at, const handle_record& there) {
    auto& list = there.memory.handle != 0 ? into.physical : into.suspended;
    list.push_back({core_.slots.address_of(at), bytes{core_.slots.bytes_of(there.slots)}});
  });
}

}}}  // namespace weir::v0::placement
