// SPDX-License-Identifier: Apache-2.0
// PyTorch's segments: how they come from the driver, and how they are released.
#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "device/state.hpp"
#include "device/surely.hpp"
#include "placement/torch_segments.hpp"
#include "weir/device/event.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

constexpr std::uint64_t small_segment = std::uint64_t{2} << 20;
constexpr std::uint64_t large_segment = std::uint64_t{20} << 20;
constexpr std::uint64_t own_segment_from = std::uint64_t{10}
                                           << 20;  // such a request gets a segment to its measure

/// The exception under way as an error. Destructors come here, too: it must not throw.
error thrown_by_source(bytes size) noexcept {
  error reason{{.code = errc::internal, .requested = size}};
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  } catch (const std::exception& thrown) {
    try {
      reason.set_detail(std::string{"a memory_source threw: "} + thrown.what());
    } catch (const std::bad_alloc&) {
      // The code has to do.
    }
  } catch (...) {
    reason.set_detail({});
  }
  return reason;
}

}  // namespace

result<block_index> torch_segments::grow(const request& wanted, const context_scope& bound) {
  if (!bound) return bound.error();
  const std::uint64_t units = units_to_look_for(wanted);
  if (units > most_units) return no_block;
  if (!shared_.blocks.prepare(4)) return no_host_memory();
  if (!rules_.splits && wanted.alignment != 1) {
    return error{
        {.code = errc::not_supported,
         .detail =
             "a pool with one block per segment does not support alignments above 512 bytes"}};
  }
  return rules_.expandable ? grow_expandable(wanted, units, bound)
                           : grow_fixed(wanted, units, bound);
}

result<bytes> torch_segments::release(bytes most, const context_scope& bound) {
  if (!bound) return bound.error();
  return rules_.expandable ? release_pages(most, bound) : release_fixed(most, bound);
}

/// Room for the entry of a segment: what comes from the driver then needs no host memory.
result<torch_segments::segment_map> torch_segments::make_entry(const segment& blueprint) try {
  segment_map entry;
  entry.emplace(0, blueprint);
  return entry;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

torch_segments::segment_map::iterator torch_segments::enter(std::uint64_t base, segment_map entry,
                                                            block_kind kind) noexcept {
  auto node = entry.extract(entry.begin());
  node.key() = base;
  const segment_map::iterator entered = segments_.insert(std::move(node)).position;
  segment& home = entered->second;
  home.rank = last_rank_--;
  link(*entered);
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
  unlist_all(position->second);
  unlink(position->second);
  recycle(position->second);
  return segments_.erase(position);
}

void torch_segments::recycle(const segment& gone) noexcept {
  for (block_index at = gone.first; at != no_block;) {
    const block_index next = shared_.blocks[at].after;
    shared_.blocks.recycle(at);
    at = next;
  }
}

void torch_segments::unlist_all(const segment& home) noexcept {
  for (block_index at = home.first; at != no_block; at = shared_.blocks[at].after) {
    const block_kind kind = shared_.blocks[at].is();
    if (kind == block_kind::run || kind == block_kind::hole) unlist(at, home);
  }
}

void torch_segments::list_all(const segment& home) noexcept {
  for (block_index at = home.first; at != no_block; at = shared_.blocks[at].after) {
    const block_kind kind = shared_.blocks[at].is();
    if (kind == block_kind::run || kind == block_kind::hole) list(at, home);
  }
}

void torch_segments::link(segment_entry& entry) noexcept {
  segment& home = entry.second;
  segment_entry* newer = nullptr;
  segment_entry* older = newest_;
  while (older != nullptr && older->second.rank < home.rank) {
    newer = older;
    older = older->second.older;
  }
  home.newer = newer;
  home.older = older;
  (newer == nullptr ? newest_ : newer->second.older) = &entry;
  (older == nullptr ? oldest_ : older->second.newer) = &entry;
}

void torch_segments::unlink(const segment& home) noexcept {
  (home.older == nullptr ? oldest_ : home.older->second.newer) = home.newer;
  (home.newer == nullptr ? newest_ : home.newer->second.older) = home.older;
}

const torch_segments::segment_entry* torch_segments::newest_before(
    std::uint32_t rank) const noexcept {
  const segment_entry* at = newest_;
  while (at != nullptr && at->second.rank <= rank) at = at->second.older;
  return at;
}

result<block_index> torch_segments::grow_fixed(const request& wanted, std::uint64_t units,
                                               const context_scope& bound) {
  const size_class holds = class_of(units);
  std::uint64_t size = holds == size_class::small ? small_segment : large_segment;
  if (units * unit >= own_segment_from) {
    size = (units * unit + segment_step - 1) / segment_step * segment_step;
  }
  if (size / unit > most_units || !shared_.may_reserve(size)) return no_block;

  const bool from_driver = rules_.source == nullptr;
  if (from_driver && shared_.supply.cannot_give(size)) return no_block;

  const thread_capture_mode_guard relaxed{shared_.device};
  WEIR_TRY_VALUE(entry, make_entry({.size = size, .stream = wanted.stream, .holds = holds}));
  segment& fresh = entry.begin()->second;
  std::uint64_t base = 0;
  if (auto taken = take(fresh, base, bound); !taken) {
    if (taken.code() != errc::out_of_memory) return std::move(taken).error();
    if (from_driver) shared_.supply.refused(size);
    return no_block;
  }
  const auto entered = enter(base, std::move(entry), block_kind::run);
  add_reserved(size);
  ++shared_.handles_created;
  emit(memory_event_kind::reserve, wanted.stream, base, size);
  return hand_out(entered->second.first, wanted, holds);
}

result<void> torch_segments::take(segment& fresh, std::uint64_t& base, const context_scope& bound) {
  if (rules_.source != nullptr) return take_from_source(fresh, base);
  if (rules_.mapped) return map_segment(fresh, base, bound);
  WEIR_TRY_VALUE(address, allocate_plain(bound, bytes{fresh.size}));
  base = address;
  return {};
}

result<void> torch_segments::map_segment(segment& fresh, std::uint64_t& base,
                                         const context_scope& bound) const {
  const bytes size{fresh.size};
  WEIR_TRY_VALUE(memory, vmm::create(bound, size, rules_.properties));
  std::uint64_t range = 0;
  bool mapped = false;
  const auto attempt = [&]() -> result<void> {
    WEIR_TRY_VALUE(reserved, vmm::reserve(bound, size));
    range = reserved;
    WEIR_TRY(vmm::map(bound, range, memory));
    mapped = true;
    return vmm::set_access(bound, range, size, shared_.rights);
  };
  auto outcome = attempt();
  if (outcome) {
    fresh.memory = memory;
    base = range;
    return outcome;
  }
  if (mapped) detail::report_failure(vmm::unmap_surely(bound, range, size));
  if (range != 0) detail::report_failure(vmm::free_surely(bound, range, size));
  detail::report_failure(vmm::release_surely(bound, memory));
  return outcome;
}

result<void> torch_segments::take_from_source(const segment& fresh, std::uint64_t& base) const {
  const bytes size{fresh.size};
  void* memory = nullptr;
  try {
    WEIR_TRY_VALUE(taken, rules_.source->allocate(size, shared_.order.ref(fresh.stream)));
    memory = taken;
  } catch (...) {
    return thrown_by_source(size);
  }
  if (memory == nullptr) return error{{.code = errc::out_of_memory, .requested = size}};
  const auto address = reinterpret_cast<std::uint64_t>(memory);
  if (address % unit != 0) {
    detail::report_failure(give_to_source(address, fresh.size));
    return error{{.code = errc::bad_alignment,
                  .requested = size,
                  .detail = "a memory_source must return memory aligned to 512 bytes"}};
  }
  const auto above = segments_.lower_bound(address);
  const bool overlaps = address + fresh.size < address ||
                        (above != segments_.end() && above->first - address < fresh.size) ||
                        (above != segments_.begin() &&
                         address - std::prev(above)->first < std::prev(above)->second.size);
  if (overlaps) {
    return error{{.code = errc::invalid_argument,
                  .requested = size,
                  .detail = "a memory_source returned memory that the pool already has"}};
  }
  base = address;
  return {};
}

result<void> torch_segments::give_back(std::uint64_t base, const segment& home,
                                       const context_scope& bound) {
  if (!bound) return bound.error();  // no driver, or a forked child: a source is not called either
  if (rules_.source != nullptr) return give_to_source(base, home.size);
  if (!rules_.mapped) return free_without_lock(base, bound);
  WEIR_TRY(vmm::unmap(bound, base, bytes{home.size}));
  // The memory is gone from here; what fails now is reported.
  detail::report_failure(vmm::release_surely(bound, home.memory));
  detail::report_failure(vmm::free_surely(bound, base, bytes{home.size}));
  return {};
}

result<void> torch_segments::give_to_source(std::uint64_t base, std::uint64_t size) const try {
  return rules_.source->deallocate(reinterpret_cast<void*>(base), bytes{size});
} catch (...) {
  return thrown_by_source(bytes{size});
}

result<void> torch_segments::release_segment(segment_map::iterator position,
                                             const context_scope& bound) {
  const auto& [base, home] = *position;
  const std::uint64_t size = home.size;
  const stream_slot stream = home.stream;
  const std::uint64_t address = base;
  // Before it goes: who registered the memory elsewhere must deregister it while it is there.
  emit(memory_event_kind::release, stream, address, size);
  const bool plain = !rules_.mapped && rules_.source == nullptr && bound;
  auto freed = plain ? release_plain(position, bound) : give_back(address, home, bound);
  if (!freed) {
    emit(memory_event_kind::reserve, stream, address, size);
    return freed;
  }
  if (!plain) forget(position);
  remove_reserved(size);
  ++shared_.handles_released;
  return {};
}

result<void> torch_segments::release_plain(segment_map::iterator position,
                                           const context_scope& bound) {
  const std::uint64_t base = position->first;
  unlist_all(position->second);
  unlink(position->second);
  const auto leaving = leaving_.insert(segments_.extract(position));
  auto freed = free_without_lock(base, bound);
  if (freed) {
    recycle(leaving->second);
    leaving_.erase(leaving);
  } else {
    const auto back = segments_.insert(leaving_.extract(leaving)).position;
    list_all(back->second);
    link(*back);
  }
  return freed;
}

/// cuMemFree waits for the device, and other threads may need the lock before that goes on.
result<void> torch_segments::free_without_lock(std::uint64_t base, const context_scope& bound) {
  result<void> freed;
  auto free = [&] { freed = free_plain(bound, base); };
  ends_ ? free() : shared_.without_lock(free);
  return freed;
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
  result<void> source_trouble;
  // Newest first. Others may change the list while a segment is released, so the next one is found
  // by its rank.
  const segment_entry* at = newest_;
  while (at != nullptr && released < most.count()) {
    const std::uint32_t rank = at->second.rank;
    const std::uint64_t size = at->second.size;
    if (!releasable(at->second)) {
      at = at->second.older;
      continue;
    }
    auto freed = release_segment(segments_.find(at->first), bound);
    at = newest_before(rank);
    if (freed) {
      released += size;
      continue;
    }
    if (rules_.source == nullptr) return std::move(freed).error();
    // One that the source does not take must not keep the others here.
    if (source_trouble) source_trouble = std::move(freed);
  }
  if (released == 0) WEIR_TRY(source_trouble);
  detail::report_failure(source_trouble);
  return bytes{released};
}

std::uint64_t torch_segments::fragments() const noexcept {
  std::uint64_t whole = 0;
  for (const auto& [base, each] : leaving_) whole += each.size;
  for (const auto& [base, each] : segments_) {
    if (!rules_.expandable) {
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
  while (!segments_.empty()) {
    // Out of the store first: memory that the driver has taken can be another segment's at once.
    unlink(segments_.begin()->second);
    const auto at = leaving_.insert(segments_.extract(segments_.begin()));
    const std::uint64_t base = at->first;
    const segment& home = at->second;
    unlist_all(home);
    const std::uint64_t page = rules_.expandable ? page_size(home.holds) : home.size;
    for_each_stretch(home, [&](stretch with_memory) {
      emit(memory_event_kind::release, home.stream, with_memory.address, with_memory.size);
      if (rules_.expandable) {
        note(vmm::unmap(bound, with_memory.address, bytes{with_memory.size}));
      } else {
        note(give_back(base, home, bound));
      }
      shared_.handles_released += with_memory.size / page;
    });
    if (rules_.expandable) note(vmm::free(bound, base, bytes{home.size}));
    recycle(home);
    leaving_.erase(at);
  }
  remove_reserved(reserved_);
  handed_out_ = 0;
  return first_failure;
}

void torch_segments::describe_memory(const segment& of, pool_snapshot& into) const {
  const std::uint64_t page = rules_.expandable ? page_size(of.holds) : of.size;
  const std::uint32_t number = std::numeric_limits<std::uint32_t>::max() - of.rank + 1;
  for_each_stretch(of, [&](stretch with_memory) {
    for (std::uint64_t done = 0; done < with_memory.size; done += page) {
      into.physical.push_back({with_memory.address + done, bytes{page}, number});
    }
  });
}

}}}  // namespace weir::v0::placement
