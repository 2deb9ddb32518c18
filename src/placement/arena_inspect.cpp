// Looking at an arena: figures, snapshot, and the check of everything that must be true.
#include <algorithm>
#include <string>

#include "placement/arena.hpp"

namespace weir { inline namespace v0 { namespace placement {

std::uint64_t arena::bound_to(stream_slot stream) const noexcept {
  return stream == no_stream || stream >= core_.runs.owners() ? 0 : core_.runs.of(stream).total();
}

std::uint64_t arena::longest_fit(stream_slot stream) const noexcept {
  std::uint64_t longest = core_.runs.of(no_stream).longest();
  if (stream < core_.runs.owners())
    longest = std::max<std::uint64_t>(longest, core_.runs.of(stream).longest());
  return longest * unit;
}

std::uint64_t arena::fragments() const noexcept {
  if (suspended_) return 0;
  std::uint64_t whole = 0;
  const block_store& blocks = shared_.blocks;
  for (block_index at = core_.runs.first(); at != no_block;) {
    if (blocks[at].is() != block_kind::run) {
      at = blocks[at].after;
      continue;
    }
    const std::uint64_t start = blocks[at].address;
    std::uint64_t end = start;
    for (; at != no_block && blocks[at].is() == block_kind::run; at = blocks[at].after)
      end = blocks[at].end();
    std::uint64_t i = core_.slots.slot_behind(start);
    while (i < core_.slots.slot_of(end)) {
      const handle_record& there = core_.slots.handle_at(i);
      if (there.slot == i && i + there.slots <= core_.slots.slot_of(end))
        whole += core_.slots.bytes_of(there.slots);
      i = there.slot + there.slots;
    }
  }
  return reserved_ - handed_out_ - whole;
}

std::size_t arena::footprint() const noexcept {
  return core_.slots.footprint() + core_.runs.footprint() + planned_.footprint();
}

block_index arena::block_over(std::uint64_t address) const noexcept {
  if (address < core_.slots.base() || address >= core_.slots.end_address()) return no_block;
  return core_.runs.over(address);
}

result<block_handles> arena::handles_under(block_index index) const {
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

void arena::describe(pool_snapshot& into) const {
  for (block_index at = core_.runs.first(); at != no_block; at = core_.runs[at].after) {
    const block& there = core_.runs[at];
    block_info info{.address = there.address, .size = bytes{there.size()}, .pool = pool_};
    switch (there.is()) {
      case block_kind::run:
        info.state = there.stream == no_stream ? block_state::free : block_state::stream_bound;
        if (suspended_) info.state = block_state::hole;
        break;
      case block_kind::hole:
      case block_kind::stuck:
        info.state = block_state::hole;
        break;
      case block_kind::thread_cached:
        info.state = block_state::thread_cached;
        break;
      case block_kind::pending:
        info.state = block_state::pending;
        break;
      case block_kind::live:
      case block_kind::unused:
        info.state = block_state::live;
        break;
    }
    info.suspended = suspended_ && info.state != block_state::hole;
    if (there.stream != no_stream && info.state != block_state::hole)
      info.stream = shared_.order.id(there.stream);
    into.blocks.push_back(info);
  }
  core_.slots.each_place([&](std::uint64_t at, const handle_record& there) {
    auto& list = there.memory.handle != 0 ? into.physical : into.suspended;
    list.push_back({core_.slots.address_of(at), bytes{core_.slots.bytes_of(there.slots)}});
  });
}

std::string arena::check() const {
  const block_store& blocks = shared_.blocks;
  std::string wrong;
  const auto complain = [&](const char* text, std::uint64_t address) {
    if (wrong.size() < 2000)
      wrong.append(text)
          .append(" at +")
          .append(std::to_string(address - core_.slots.base()))
          .append("\n");
  };
  std::uint64_t expected = core_.slots.base();
  std::uint64_t out = 0;
  std::size_t holes = 0;
  std::size_t blocked = 0;
  std::uint64_t free_bytes = 0;
  std::vector<std::uint64_t> by_owner(core_.runs.owners());
  block_index before = no_block;
  for (block_index at = core_.runs.first(); at != no_block; before = at, at = blocks[at].after) {
    const block& there = blocks[at];
    if (there.address != expected) complain("a gap or overlap of blocks", there.address);
    if (there.before != before) complain("a broken link", there.address);
    if (there.units == 0) complain("an empty block", there.address);
    expected = there.end();
    const bool stuck = there.is() == block_kind::stuck;
    const bool hole = there.is() == block_kind::hole || stuck;
    if (stuck) ++blocked;
    for (std::uint64_t i = core_.slots.slot_of(there.address);
         i < core_.slots.slot_of(there.end() - 1) + 1; ++i) {
      if (i >= core_.slots.count()) {
        complain("a block beyond the end", there.address);
      } else if (hole && core_.slots[i].current != 0) {
        complain("a hole over memory", there.address);
      } else if (!hole && core_.slots[i].current == 0) {
        complain("a block over no memory", there.address);
      } else if (!hole && core_.slots[i].retained != 0) {
        complain("a block over a mapping left behind", there.address);
      }
    }
    if (hole) {
      if (!stuck) ++holes;
      if (there.address % core_.slots.slot_size() != 0 ||
          there.size() % core_.slots.slot_size() != 0)
        complain("a hole that is not of whole slots", there.address);
    } else if (there.is() == block_kind::run) {
      free_bytes += there.size();
      if (there.stream >= core_.runs.owners()) {
        complain("a run of an unknown owner", there.address);
      } else {
        by_owner[there.stream] += there.size();
      }
      const block_index next = there.after;
      if (next != no_block && blocks[next].is() == block_kind::run &&
          blocks[next].stream == there.stream && there.stream == no_stream)
        complain("two runs that should be one", there.address);
    } else if (there.is() == block_kind::unused) {
      complain("a recycled record", there.address);
    } else {
      out += there.size();
    }
  }
  if (before != core_.runs.last()) complain("a wrong last block", expected);
  if (expected != core_.slots.end_address())
    complain("an end that is not the slots' end", expected);
  if (holes != core_.runs.holes() || blocked != core_.runs.stuck())
    complain("a wrong count of holes", expected);
  for (block_index at = core_.runs.any_hole(); at != no_block; at = blocks[at].in.newer) {
    if (blocks[at].is() != block_kind::hole)
      complain("no hole among the holes", blocks[at].address);
    --holes;
  }
  if (holes != 0) complain("a list that misses holes", expected);
  if (out != handed_out_) complain("a wrong sum of what is handed out", expected);
  std::uint64_t gone = 0;
  for (handle_number number = 1; number < core_.slots.handle_count(); ++number) {
    const handle_record& each = core_.slots.handle(number);
    if (each.memory.handle == 0) gone += core_.slots.bytes_of(each.slots);
  }
  if (out + free_bytes != reserved_ + gone) complain("handed out + free is not reserved", expected);
  for (stream_slot i = 0; i < core_.runs.owners(); ++i) {
    if (core_.runs.of(i).total() != by_owner[i])
      complain("a wrong sum of an owner's runs", expected);
    block_index last_in_queue = no_block;
    std::uint64_t queued = 0;
    for (block_index at = core_.runs.oldest(i); at != no_block; at = blocks[at].in.newer) {
      queued += blocks[at].size();
      if (blocks[at].in.older != last_in_queue) complain("a broken queue", blocks[at].address);
      if (last_in_queue != no_block &&
          is_after(blocks[last_in_queue].in.freed, blocks[at].in.freed))
        complain("a queue out of order", blocks[at].address);
      last_in_queue = at;
    }
    if (core_.runs.newest(i) != last_in_queue) complain("a wrong end of a queue", expected);
    if (i != no_stream && queued != by_owner[i]) complain("a queue that misses runs", expected);
  }
  std::uint64_t physical = 0;
  std::vector<std::uint64_t> retained(core_.slots.handle_count());
  core_.slots.each_retained([&](std::uint64_t, handle_number number) { ++retained[number]; });
  for (handle_number number = 1; number < core_.slots.handle_count(); ++number) {
    const handle_record& each = core_.slots.handle(number);
    physical += core_.slots.bytes_of(each.slots);
    if (each.away && !suspended_) complain("a handle is away from a store that is not", expected);
    if (each.memory.handle == 0 && each.slots != 0 && !each.away)
      complain("a handle without memory", core_.slots.address_of(each.slot));
    if (each.retained != retained[number])
      complain("a wrong count of mappings", core_.slots.address_of(each.slot));
    for (std::uint32_t i = each.slot; i < each.slot + each.slots; ++i)
      if (core_.slots[i].current != number)
        complain("a handle that is not where it is", core_.slots.address_of(i));
  }
  if (physical != reserved_ + gone) complain("a wrong sum of handles", expected);
  return wrong;
}

}}}  // namespace weir::v0::placement
