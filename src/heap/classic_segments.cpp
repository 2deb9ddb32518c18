// Segments of the classic store: fixed ones from the driver's plain allocation, and their books.
#include <algorithm>
#include <new>

#include "heap/classic.hpp"
#include "weir/device/event.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir::inline v0::heap {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t small_segment = 2 * mib;
constexpr std::uint64_t large_segment = 20 * mib;
constexpr std::uint64_t own_segment_from =
    10 * mib;  // such a request gets a segment to its measure
constexpr std::uint64_t own_segment_step = 2 * mib;

}  // namespace

result<block_index> classic_store::grow(const request& wanted, const context_scope& bound) {
  if (!bound) return bound.error();
  const std::uint64_t units = units_to_look_for(wanted);
  if (units > most_units) return no_block;
  if (!shared_.blocks.prepare(4)) return no_host_memory();
  return expandable_ ? grow_expandable(wanted, units, bound) : grow_fixed(wanted, units, bound);
}

result<bytes> classic_store::release(bytes most, const context_scope& bound) {
  if (!bound) return bound.error();
  return expandable_ ? release_pages(most, bound) : release_fixed(most, bound);
}

result<classic_store::segment_map::iterator> classic_store::enter(std::uint64_t base,
                                                                  const segment& what,
                                                                  block_kind kind) {
  segment_map::iterator entered;
  try {
    entered = segments_.emplace(base, what).first;
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
  segment& made = entered->second;
  made.rank = last_rank_--;
  made.first = shared_.blocks.make();
  block& first = shared_.blocks[made.first];
  first.address = base;
  first.units = static_cast<std::uint32_t>(made.size / unit);
  first.stream = made.stream;
  first.become(kind);
  first.in = {};
  first.in.freed = shared_.order.completed_epoch(made.stream);
  first.in.older = made.rank;
  list(made.first, made);
  return entered;
}

classic_store::segment_map::iterator classic_store::forget(segment_map::iterator which) noexcept {
  block_store& blocks = shared_.blocks;
  for (block_index at = which->second.first; at != no_block;) {
    const block_index next = blocks[at].after;
    const block_kind kind = blocks[at].is();
    if (kind == block_kind::run || kind == block_kind::hole) unlist(at, which->second);
    blocks.recycle(at);
    at = next;
  }
  return segments_.erase(which);
}

result<block_index> classic_store::grow_fixed(const request& wanted, std::uint64_t units,
                                              const context_scope& bound) {
  const size_class holds = class_of(units);
  std::uint64_t size = holds == size_class::small ? small_segment : large_segment;
  if (units * unit >= own_segment_from) {
    size = (units * unit + own_segment_step - 1) / own_segment_step * own_segment_step;
  }
  if (size / unit > most_units || !shared_.may_reserve(size)) return no_block;

  const thread_capture_mode_guard relaxed{shared_.device};
  auto address = allocate_plain(bound, bytes{size});
  if (!address) {
    if (address.code() == errc::out_of_memory) return no_block;
    return std::move(address).error();
  }
  auto entered =
      enter(*address, {.size = size, .stream = wanted.stream, .holds = holds}, block_kind::run);
  if (!entered) {
    const auto freed = free_plain(bound, *address);
    if (!freed) report_error(freed.error());
    return std::move(entered).error();
  }
  add_reserved(size);
  ++shared_.handles_created;
  tell(memory_event_kind::reserve, wanted.stream, *address, size);
  return hand_out((*entered)->second.first, wanted, holds);
}

bool classic_store::wholly_free(const segment& which) const noexcept {
  for (block_index at = which.first; at != no_block; at = shared_.blocks[at].after) {
    if (shared_.blocks[at].is() != block_kind::run) return false;
  }
  return true;
}

bool classic_store::releasable(const segment& which) const noexcept {
  for (block_index at = which.first; at != no_block; at = shared_.blocks[at].after) {
    const block& of = shared_.blocks[at];
    if (of.is() != block_kind::run || !at_rest(of)) return false;
  }
  return true;
}

result<bytes> classic_store::release_fixed(bytes most, const context_scope& bound) {
  const thread_capture_mode_guard relaxed{shared_.device};
  std::uint64_t gone = 0;
  for (auto at = segments_.begin(); at != segments_.end() && gone < most.count();) {
    const auto& [base, which] = *at;
    const std::uint64_t size = which.size;
    if (!releasable(which)) {
      ++at;
      continue;
    }
    WEIR_TRY(free_plain(bound, base));
    remove_reserved(size);
    ++shared_.handles_released;
    tell(memory_event_kind::release, which.stream, base, size);
    at = forget(at);
    gone += size;
  }
  return bytes{gone};
}

std::uint64_t classic_store::fragments() const noexcept {
  std::uint64_t whole = 0;
  for (const auto& [base, each] : segments_) {
    if (!expandable_) {
      whole += wholly_free(each) ? each.size : 0;
      continue;
    }
    for (block_index at = each.first; at != no_block; at = shared_.blocks[at].after) {
      const block& of = shared_.blocks[at];
      if (of.is() == block_kind::run) whole += whole_pages(of, base, page_size(each.holds)).size;
    }
  }
  return reserved_ - handed_out_ - whole;
}

result<void> classic_store::close(const context_scope& bound) {
  const thread_capture_mode_guard relaxed{shared_.device};
  result<void> first_failure;
  const auto note = [&](const result<void>& outcome) {
    if (!outcome && first_failure) first_failure = outcome;
  };
  for (auto at = segments_.begin(); at != segments_.end();) {
    const std::uint64_t base = at->first;
    const segment& which = at->second;
    const std::uint64_t page = expandable_ ? page_size(which.holds) : which.size;
    for_each_stretch(which, [&](stretch with_memory) {
      if (expandable_) {
        note(vmm::unmap(bound, with_memory.address, bytes{with_memory.size}));
      } else {
        note(free_plain(bound, with_memory.address));
      }
      shared_.handles_released += with_memory.size / page;
      tell(memory_event_kind::release, which.stream, with_memory.address, with_memory.size);
    });
    if (expandable_) note(vmm::free(bound, base, bytes{which.size}));
    at = forget(at);
  }
  remove_reserved(reserved_);
  handed_out_ = 0;
  return first_failure;
}

void classic_store::describe_memory(const segment& of, pool_snapshot& into) const {
  const std::uint64_t page = expandable_ ? page_size(of.holds) : of.size;
  for_each_stretch(of, [&](stretch with_memory) {
    for (std::uint64_t done = 0; done < with_memory.size; done += page) {
      into.physical.push_back({with_memory.address + done, bytes{page}});
    }
  });
}

}  // namespace weir::inline v0::heap
