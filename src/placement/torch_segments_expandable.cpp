// SPDX-License-Identifier: Apache-2.0
// Expandable segments of the classic store: ranges of addresses that get memory page by page.
#include <algorithm>
#include <new>
#include <vector>

#include "device/state.hpp"
#include "device/surely.hpp"
#include "placement/torch_segments.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

constexpr std::uint64_t round_up(std::uint64_t size, std::uint64_t step) noexcept {
  return (size + step - 1) / step * step;
}

}  // namespace

std::uint64_t torch_segments::page_size(size_class of) const noexcept {
  const std::uint64_t wanted = of == size_class::small ? 2 * mib : 20 * mib;
  return round_up(wanted, shared_.device.capabilities().granularity.count());
}

result<block_index> torch_segments::grow_expandable(const request& wanted, std::uint64_t units,
                                                    const context_scope& bound) {
  block_store& blocks = shared_.blocks;
  const size_class holds = class_of(units);
  const std::uint64_t page = page_size(holds);
  block_index at = room_to_expand(index_of(holds), wanted.stream, units);
  const std::uint64_t missing =
      at == no_block ? round_up(units * unit, page) : pages_missing(at, units, page);
  if (!shared_.may_reserve(missing)) return no_block;
  WEIR_TRY_VALUE(given, shared_.can_create(missing, page, rules_.properties, bound));
  if (!given) return no_block;
  if (at == no_block) {
    WEIR_TRY_VALUE(fresh, reserve_range(wanted.stream, holds, units, bound));
    at = fresh;
  }
  if (at != no_block && blocks[at].is() == block_kind::hole) {
    WEIR_TRY_VALUE(filled, fill(at, units, bound));
    at = filled;
  }
  while (at != no_block && blocks[at].units < units) {
    // A run, a hole behind it, and perhaps a run behind that: filling the hole joins them.
    WEIR_TRY_VALUE(filled, fill(blocks[at].after, units - blocks[at].units, bound));
    at = filled;
  }
  if (at == no_block) return no_block;
  if (!blocks.prepare(2)) return no_host_memory();
  return hand_out(at, wanted, holds);
}

block_index torch_segments::room_to_expand(const class_index& in, stream_slot stream,
                                           std::uint64_t units) const noexcept {
  const block_store& blocks = shared_.blocks;
  const auto usable = [&](block_index index) {
    if (index == no_block) return false;
    const block_kind kind = blocks[index].is();
    return (kind == block_kind::run || kind == block_kind::hole) && blocks[index].stream == stream;
  };
  for (block_index hole = in.holes.first(stream); hole != no_block; hole = in.holes.next(hole)) {
    const block_index start = usable(blocks[hole].before) ? blocks[hole].before : hole;
    std::uint64_t room = 0;
    for (block_index at = start; room < units && usable(at); at = blocks[at].after) {
      room += blocks[at].units;
    }
    if (room >= units) return start;
  }
  return no_block;
}

std::uint64_t torch_segments::pages_missing(block_index start, std::uint64_t units,
                                            std::uint64_t page) const noexcept {
  std::uint64_t sum = 0;
  for (block_index at = start; units != 0; at = shared_.blocks[at].after) {
    const block& of = shared_.blocks[at];
    const std::uint64_t used = std::min<std::uint64_t>(of.units, units);
    if (of.is() == block_kind::hole) sum += round_up(used * unit, page);
    units -= used;
  }
  return sum;
}

result<block_index> torch_segments::reserve_range(stream_slot stream, size_class holds,
                                                  std::uint64_t units, const context_scope& bound) {
  const std::uint64_t page = page_size(holds);
  const std::uint64_t memory = shared_.device.total_memory().count();
  // More addresses than memory: holes between pages in use must not stop it from growing.
  const std::uint64_t size =
      std::min(round_up(memory + memory / 8, page), most_units * unit / page * page);
  if (units * unit > size) return no_block;
  WEIR_TRY_VALUE(entry, make_entry({.size = size, .stream = stream, .holds = holds}));
  WEIR_TRY_VALUE(base, vmm::reserve(bound, bytes{size}));
  return enter(base, std::move(entry), block_kind::hole)->second.first;
}

result<block_index> torch_segments::fill(block_index hole, std::uint64_t units,
                                         const context_scope& bound) {
  block_store& blocks = shared_.blocks;
  if (!blocks.prepare(1)) return no_host_memory();
  const segment& home = segment_with(blocks[hole].address);
  const std::uint64_t page = page_size(home.holds);
  const std::uint64_t address = blocks[hole].address;
  const std::uint64_t size =
      round_up(std::min<std::uint64_t>(units, blocks[hole].units) * unit, page);
  if (auto mapped = map_pages(address, size, page, bound); !mapped) {
    if (mapped.code() == errc::out_of_memory) return no_block;
    return std::move(mapped).error();
  }
  add_reserved(size);
  shared_.handles_created += size / page;
  emit(memory_event_kind::reserve, home.stream, address, size);

  unlist(hole, home);
  if (size < blocks[hole].size()) {
    list(cut(hole, static_cast<std::uint32_t>(size / unit)), home);
  }
  blocks[hole].become(block_kind::run);
  blocks[hole].in.freed = shared_.order.completed_epoch(home.stream);
  return settle(hole, home);
}

result<void> torch_segments::map_pages(std::uint64_t address, std::uint64_t size,
                                       std::uint64_t page, const context_scope& bound) const {
  std::vector<vmm::physical> pages;
  try {
    pages.reserve(size / page);
  } catch (const std::bad_alloc&) {
    return no_host_memory();
  }
  bool mapped = false;
  const auto attempt = [&]() -> result<void> {
    while (pages.size() < size / page) {
      WEIR_TRY_VALUE(memory, vmm::create(bound, bytes{page}, rules_.properties));
      pages.push_back(memory);
    }
    WEIR_TRY(vmm::map(bound, address, pages));
    mapped = true;
    WEIR_TRY(vmm::set_access(bound, address, bytes{size}, shared_.rights));
    // The mapping keeps the memory; its name would only have to be kept in step with it.
    while (!pages.empty()) {
      WEIR_TRY(vmm::release(bound, pages.back()));
      pages.pop_back();
    }
    return {};
  };
  auto outcome = attempt();
  if (outcome) return outcome;
  if (mapped) detail::report_failure(vmm::unmap_surely(bound, address, bytes{size}));
  for (const vmm::physical& each : pages) detail::report_failure(vmm::release_surely(bound, each));
  return outcome;
}

result<void> torch_segments::grant(const vmm::access& peer, const context_scope& bound) {
  if (rules_.mapped) {
    for (const auto& [base, home] : segments_)
      WEIR_TRY(vmm::set_access(bound, base, bytes{home.size}, {&peer, 1}));
  }
  if (!rules_.expandable) return {};
  result<void> outcome;
  for (const auto& [base, home] : segments_) {
    for_each_stretch(home, [&](stretch with_memory) {
      if (!outcome) return;
      outcome = vmm::set_access(bound, with_memory.address, bytes{with_memory.size}, {&peer, 1});
    });
    if (!outcome) break;
  }
  return outcome;
}

torch_segments::stretch torch_segments::whole_pages(const block& run, std::uint64_t base,
                                                    std::uint64_t page) const noexcept {
  const std::uint64_t begin = base + round_up(run.address - base, page);
  const std::uint64_t end = base + (run.end() - base) / page * page;
  return {begin, end > begin ? end - begin : 0};
}

result<bytes> torch_segments::release_pages(bytes most, const context_scope& bound) {
  block_store& blocks = shared_.blocks;
  std::uint64_t released = 0;
  const segment_entry* next = nullptr;
  for (const segment_entry* entry = newest_; entry != nullptr; entry = next) {
    const auto& [base, home] = *entry;
    next = home.older;
    const std::uint64_t page = page_size(home.holds);
    for (block_index at = home.first; at != no_block && released < most.count();
         at = blocks[at].after) {
      if (blocks[at].is() != block_kind::run || !at_rest(blocks[at])) continue;
      const stretch whole = whole_pages(blocks[at], base, page);
      const std::uint64_t pages_left = (most.count() - released - 1) / page + 1;
      const std::uint64_t size = pages_left < whole.size / page ? pages_left * page : whole.size;
      if (size == 0) continue;
      // The highest first: growth takes the lowest.
      WEIR_TRY_VALUE(hole, empty(at, home, whole.address + whole.size - size, size, bound));
      released += size;
      at = hole;
    }
    const block& first = blocks[home.first];
    if (first.is() == block_kind::hole && first.after == no_block) {
      // Addresses run out, too, where streams come and go.
      const auto freed = vmm::free(bound, base, bytes{home.size});
      detail::report_failure(freed);
      if (freed) forget(segments_.find(base));
    }
  }
  return bytes{released};
}

result<block_index> torch_segments::empty(block_index run, const segment& home,
                                          std::uint64_t address, std::uint64_t size,
                                          const context_scope& bound) {
  block_store& blocks = shared_.blocks;
  if (!blocks.prepare(2)) return no_host_memory();
  emit(memory_event_kind::release, home.stream, address, size);
  if (auto unmapped = vmm::unmap(bound, address, bytes{size}); !unmapped) {
    emit(memory_event_kind::reserve, home.stream, address, size);
    return std::move(unmapped).error();
  }
  remove_reserved(size);
  shared_.handles_released += size / page_size(home.holds);

  unlist(run, home);
  block_index hole = run;
  if (address != blocks[run].address) {
    hole = cut(run, static_cast<std::uint32_t>((address - blocks[run].address) / unit));
    list(run, home);
  }
  if (size != blocks[hole].size()) {
    list(cut(hole, static_cast<std::uint32_t>(size / unit)), home);
  }
  blocks[hole].become(block_kind::hole);
  blocks[hole].stream = home.stream;
  return settle(hole, home);
}

}}}  // namespace weir::v0::placement
