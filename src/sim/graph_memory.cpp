// SPDX-License-Identifier: Apache-2.0
// Graph memory: addresses for good, pages while they are needed.
#include "sim/graph_memory.hpp"

#include <algorithm>
#include <utility>

#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// What an H200's driver takes from the device for graphs, and how it aligns a block of it.
constexpr std::uint64_t block_unit = std::uint64_t{32} << 20;
/// How allocations in a block are aligned.
constexpr std::uint64_t alignment = 512;

}  // namespace

bool graph_block::idle() const noexcept {
  return live == 0 && std::all_of(users.begin(), users.end(),
                                  [](const dependency& each) { return each.is_met(); });
}

void graph_block::used_by(dependency user) {
  std::erase_if(users, [](const dependency& each) { return each.is_met(); });
  users.push_back(std::move(user));
}

void graph_allocation::set_live(bool now) noexcept {
  if (live == now) return;
  live = now;
  block->live += now ? 1U : -1U;
}

graph_memory::graph_memory(state& machine) : machine_{machine} {
  counters_.resize(machine.options.devices.size());
  cached_.resize(machine.options.devices.size());
}

// --- Addresses ----------------------------------------------------------------------------------

std::shared_ptr<graph_block> graph_memory::find_block(std::uint64_t owner, int device,
                                                      std::size_t bytes,
                                                      std::vector<CUmemAccess_flags> rights) {
  for (const auto& existing : blocks_) {
    if (existing->owner == owner && existing->device == device &&
        existing->size - existing->taken >= bytes && existing->rights == rights) {
      return existing;
    }
  }
  if (bytes > ~std::uint64_t{0} - block_unit) return nullptr;
  auto block = std::make_shared<graph_block>();
  block->size = (bytes + block_unit - 1) / block_unit * block_unit;
  block->device = device;
  block->rights = std::move(rights);
  block->owner = owner;
  block->address = machine_.space.reserve_addresses(block->size, block_unit);
  if (block->address == 0) return nullptr;
  blocks_.push_back(block);
  return block;
}

std::shared_ptr<graph_allocation> graph_memory::create(std::uint64_t owner, int device,
                                                       std::size_t bytes,
                                                       std::vector<CUmemAccess_flags> rights) {
  auto block = find_block(owner, device, bytes, std::move(rights));
  if (!block) return nullptr;
  auto allocated = std::make_shared<graph_allocation>();
  allocated->address = block->address + block->taken;
  allocated->bytes = bytes;
  block->taken =
      std::min(block->size, (block->taken + bytes + alignment - 1) / alignment * alignment);
  allocated->block = std::move(block);
  all_.emplace(allocated->address, allocated);
  return allocated;
}

std::shared_ptr<graph_allocation> graph_memory::find(CUdeviceptr address) const {
  const auto known = all_.find(address);
  return known == all_.end() ? nullptr : known->second;
}

int graph_memory::device_of(const range& extent) const noexcept {
  for (const auto& block : blocks_) {
    const std::uint64_t offset = extent.address - block->address;
    if (offset < block->size && extent.size <= block->size - offset) return block->device;
  }
  return -1;
}

// --- Pages --------------------------------------------------------------------------------------

std::shared_ptr<physical> graph_memory::take_cached(int device, std::uint64_t size) {
  auto& cached = cached_[static_cast<std::size_t>(device)];
  const auto fit = std::find_if(cached.begin(), cached.end(),
                                [&](const auto& pages) { return pages->size() == size; });
  if (fit == cached.end()) return nullptr;
  auto reused = std::move(*fit);
  cached.erase(fit);
  reused->history.forget(0, size);  // only pages whose work is done are cached
  return reused;
}

bool graph_memory::attach(graph_block& block) {
  if (block.attached) return true;
  auto pages = take_cached(block.device, block.size);
  if (!pages) {
    if (!machine_.space.reserve_capacity(block.device, block.size)) return false;
    pages = physical::create(machine_, block.size, false);
    if (!pages) {
      machine_.space.release_capacity(block.device, block.size);
      return false;
    }
    counters& memory = of(block.device);
    memory.reserved += block.size;
    memory.reserved_peak = std::max(memory.reserved_peak, memory.reserved);
    memory.used_peak = std::max(memory.used_peak, memory.reserved);
  }
  if (pages->map_at(block.address, 0, block.size, true) != 0) {
    cached_[static_cast<std::size_t>(block.device)].push_back(std::move(pages));
    return false;
  }
  machine_.space.insert({.base = block.address,
                         .size = block.size,
                         .kind = memory_kind::graph,
                         .device = block.device,
                         .pages = std::move(pages),
                         .rights = block.rights});
  block.attached = true;
  return true;
}

void graph_memory::cache_pages(graph_block& block) {
  if (!std::exchange(block.attached, false)) return;
  auto pages = machine_.space.find(block.address)->pages;
  machine_.space.erase(block.address);
  cached_[static_cast<std::size_t>(block.device)].push_back(std::move(pages));
}

void graph_memory::sweep() {
  std::erase_if(
      all_, [](const auto& each) { return each.second.use_count() == 1 && !each.second->live; });
  std::erase_if(blocks_, [&](const auto& each) {
    if (each.use_count() > 1 || !each->idle()) return false;
    cache_pages(*each);
    machine_.space.free_addresses(each->address, each->size);
    return true;
  });
}

void graph_memory::trim(int device) {
  sweep();
  for (const auto& each : blocks_) {
    if (each->device == device && each->idle()) cache_pages(*each);
  }
  auto& unused = cached_[static_cast<std::size_t>(device)];
  for (const auto& pages : unused) {
    machine_.space.release_capacity(device, pages->size());
    of(device).reserved -= pages->size();
  }
  unused.clear();
}

void graph_memory::reset(int device) {
  for (const auto& [address, allocated] : all_) {
    if (allocated->block->device == device) allocated->set_live(false);
  }
  for (const auto& each : blocks_) {
    if (each->device == device) each->users.clear();
  }
  trim(device);
  of(device) = {};
}

// --- Lifetimes ----------------------------------------------------------------------------------

work graph_memory::allocating(const graph_allocation& allocated) {
  return {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
          .label = "graph allocation",
          .accesses = {writes(allocated.address, allocated.bytes)},
          .lifetime = access_kind::allocate};
}

work graph_memory::freeing(const graph_allocation& allocated) {
  return {.type = CU_GRAPH_NODE_TYPE_MEM_FREE,
          .label = "graph free",
          .accesses = {writes(allocated.address, allocated.bytes)},
          .lifetime = access_kind::free};
}

void graph_memory::free_by_host(const graph_allocation& allocated) {
  if (!machine_.options.check_hazards) return;
  const region& area = *machine_.space.find(allocated.address);
  const moment now = machine_.flow.host_moment();
  const auto accessor =
      std::make_shared<const party>(party{.label = "free",
                                          .order = now.at.tick,
                                          .extent = {allocated.address, allocated.bytes},
                                          .writes = true,
                                          .queued = machine_.clock,
                                          .action = party_action::lifetime,
                                          .step = ++machine_.steps});
  area.pages->history.touch(allocated.address - area.base, allocated.bytes, access_kind::free, now,
                            accessor, allocated.address, machine_.hazards);
}

}}}  // namespace weir::v0::sim
