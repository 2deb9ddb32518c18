// SPDX-License-Identifier: Apache-2.0
// The addresses of one pool, cut into blocks, and indexes that find a free block by size.
#include "sim/pool_blocks.hpp"

#include <new>
#include <utility>

namespace weir { inline namespace v0 { namespace sim {

void fit_index::insert(block& run) {
  const fit_key key{run.size, run.order, &run};
  if (run.node.empty()) {
    run.place = runs_.insert(runs_.end(), key);
  } else {
    run.node.value() = key;
    // The hint is often right: equal ones queue up.
    run.place = runs_.insert(runs_.end(), std::move(run.node));
  }
  run.index = this;
}

void fit_index::remove(block& run) {
  run.node = runs_.extract(run.place);
  run.index = nullptr;
}

block_map::block_map(std::uint64_t base, std::uint64_t size) : base_{base} {
  note_start(storage_.emplace_back(block{.address = base, .size = size}));
}

namespace {

constexpr std::uint64_t units_in_a_page = pool_page / pool_unit;

}  // namespace

block* block_map::starting_at(std::uint64_t address) const noexcept {
  const std::uint64_t offset = address - base_;
  const std::uint64_t page = offset / pool_page;
  if (page >= pages_.size() || offset % pool_unit != 0 || !pages_[page].starts) return nullptr;
  return pages_[page].starts[offset % pool_page / pool_unit];
}

block& block_map::containing(std::uint64_t address) const noexcept {
  const std::uint64_t offset = address - base_;
  std::uint64_t page = offset / pool_page;
  std::uint64_t unit = offset % pool_page / pool_unit;
  if (page >= pages_.size()) {
    page = pages_.size() - 1;
    unit = units_in_a_page - 1;
  }
  // A block starts at base_, so the walk back ends there at the latest.
  for (;; --page, unit = units_in_a_page - 1) {
    if (pages_[page].count == 0) continue;
    const auto& starts = pages_[page].starts;
    for (std::uint64_t i = unit + 1; i-- > 0;) {
      if (starts[i] != nullptr) return *starts[i];
    }
  }
}

block* block_map::cut(block& from, std::uint64_t size) {
  if (from.size == size) return nullptr;
  block* rest = nullptr;
  if (spare_.empty()) {
    rest = &storage_.emplace_back();
  } else {
    rest = spare_.back();
    spare_.pop_back();
  }
  rest->address = from.address + size;
  rest->size = from.size - size;
  rest->before = &from;
  rest->after = from.after;
  note_start(*rest);
  if (from.after != nullptr) from.after->before = rest;
  from.after = rest;
  from.size = size;
  return rest;
}

void block_map::merge_next(block& into) {
  block& absorbed = *into.after;
  forget_start(absorbed);
  into.size += absorbed.size;
  into.after = absorbed.after;
  if (into.after != nullptr) into.after->before = &into;
  absorbed.freed = {};
  spare_.push_back(&absorbed);
}

void block_map::note_start(block& run) {
  const std::uint64_t offset = run.address - base_;
  const std::uint64_t page = offset / pool_page;
  if (page >= pages_.size()) pages_.resize(page + 1);
  page_starts& entry = pages_[page];
  if (!entry.starts) {
    // Not value-initialised: memory that calloc gets from the system is zero without being touched.
    entry.starts.reset(static_cast<block**>(std::calloc(units_in_a_page, sizeof(block*))));
    if (!entry.starts) throw std::bad_alloc{};
  }
  entry.starts[offset % pool_page / pool_unit] = &run;
  ++entry.count;
}

void block_map::forget_start(const block& run) {
  const std::uint64_t offset = run.address - base_;
  page_starts& entry = pages_[offset / pool_page];
  entry.starts[offset % pool_page / pool_unit] = nullptr;
  --entry.count;
}

}}}  // namespace weir::v0::sim
