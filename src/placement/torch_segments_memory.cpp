// PyTorch's segments: how they come from the driver, and how they are released.
#include <algorithm>
#include <limits>
#include <new>

#include "placement/torch_segments.hpp"
#include "weir/device/event.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir::inline v0::placement {
namespace {

constexpr std::uint64_t small_segment = std::uint64_t{2} << 20;
constexpr std::uint64_t large_segment = std::uint64_t{20} << 20;
constexpr std::uint64_t own_segment_from = std::uint64_t{10}
                                           << 20;  // such a request gets a segment to its measure
constexpr std::uint64_t own_segment_step = std::uint64_t{2} << 20;

}  // namespace

result<block_index> torch_segments::grow(const request& wanted, const context_scope& bound) {
  if (!bound) return bound.error();
  const std::uint64_t units = units_to_look_for(wanted);
  if (units > most_units) return no_block;
  if (!shared_.blocks.prepare(4)) return no_host_memory();
  return expandable_ ? grow_expandable(wanted, units, bound) : grow_fixed(wanted, units, bound);
}

result<bytes> torch_segments::release(bytes most, const context_scope& bound) {
  if (!bound) return bound.error();
  return expandable_ ? release_pages(most, bound) : release_fixed(most, bound);
}

result<torch_segments::segment_map::iterator> torch_segments::enter(std::uint64_t base,
                                                                    const segment& blueprint,
                                                                    block_kind kind) {
  segment_map::iterator entered;
  try {
    entered = segments_.emplace(base, blueprint).first;
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
  segment& home = entered->second;
  home.rank = last_rank_--;
  home.first = shared_.blocks.make();
  block& first = shared_.blocks[home.first];
  first.address = base;
  first.units = static_cast<std::uint32_t>(home.size / unit);
  first.stream = home.stream;
  first.become(kind);
  first.in = {};
  first.in.freed = shared_.order.completed_epoch(home.stream);
  first.in.older = home.rank;
  list(home.first, home);
  return entered;
}

torch_segments::segment_map::iterator torch_segments::forget(
    segment_map::iterator position) noexcept {
  block_store& blocks = shared_.blocks;
  for (block_index at = position->second.first; at != no_block;) {
    const block_index next = blocks[at].after;
    const block_kind kind = blocks[at].is();
    if (kind == block_kind::run || kind == block_kind::hole) unlist(at, position->second);
    blocks.recycle(at);
    at = next;
  }
  return segments_.erase(position);
}

result<block_index> torch_segments::grow_fixed(const request& wanted, std::uint64_t units,
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
  emit(memory_event_kind::reserve, wanted.stream, *address, size);
  return hand_out((*entered)->second.first, wanted, holds);
}

bool torch_segments::wholly_free(const segment& home) const noexcept {
  for (block_index at = home.first; at != no_block; at = shared_.blocks[at].after) {
    if (shared_.blocks[at].is() != block_kind::run) return false;
  }
  return true;
}

bool torch_segments::releasable(const segment& home) const noexcept {
  for (block_index at = home.first; at != no_block; at = shared_.blocks[at].after) {
    const block& of = shared_.blocks[at];
    if (of.is() != block_kind::run || !at_rest(of)) return false;
  }
  return true;
}

result<bytes> torch_segments::release_fixed(bytes most, const context_scope& bound) {
  const thread_capture_mode_guard relaxed{shared_.device};
  std::uint64_t released = 0;
  for (auto at = segments_.begin(); at != segments_.end() && released < most.count();) {
    const auto& [base, home] = *at;
    const std::uint64_t size = home.size;
    if (!releasable(home)) {
      ++at;
      continue;
    }
    WEIR_TRY(free_plain(bound, base));
    remove_reserved(size);
    ++shared_.handles_released;
    emit(memory_event_kind::release, home.stream, base, size);
    at = forget(at);
    released += size;
  }
  return bytes{released};
}

std::uint64_t torch_segments::fragments() const noexcept {
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

result<void> torch_segments::close(const context_scope& bound) {
  const thread_capture_mode_guard relaxed{shared_.device};
  result<void> first_failure;
  const auto note = [&](const result<void>& outcome) {
    if (!outcome && first_failure) first_failure = outcome;
  };
  for (auto at = segments_.begin(); at != segments_.end();) {
    const std::uint64_t base = at->first;
    const segment& home = at->second;
    const std::uint64_t page = expandable_ ? page_size(home.holds) : home.size;
    for_each_stretch(home, [&](stretch with_memory) {
      if (expandable_) {
        note(vmm::unmap(bound, with_memory.address, bytes{with_memory.size}));
      } else {
        note(free_plain(bound, with_memory.address));
      }
      shared_.handles_released += with_memory.size / page;
      emit(memory_event_kind::release, home.stream, with_memory.address, with_memory.size);
    });
    if (expandable_) note(vmm::free(bound, base, bytes{home.size}));
    at = forget(at);
  }
  remove_reserved(reserved_);
  handed_out_ = 0;
  return first_failure;
}

void torch_segments::describe_memory(const segment& of, pool_snapshot& into) const {
  const std::uint64_t page = expandable_ ? page_size(of.holds) : of.size;
  const std::uint32_t number = std::numeric_limits<std::uint32_t>::max() - of.rank + 1;
  for_each_stretch(of, [&](stretch with_memory) {
    for (std::uint64_t done = 0; done < with_memory.size; done += page) {
      into.physical.push_back({with_memory.address + done, bytes{page}, number});
    }
  });
}

}  // namespace weir::inline v0::placement
