// Graph memory: addresses for good, pages while they are needed.
#include "sim/graph_memory.hpp"

#include <algorithm>
#include <utility>

#include "sim/state.hpp"

namespace weir::inline v0::sim {

namespace {

/// What an H200's driver takes from the device for graphs, and how it aligns a block of it.
constexpr std::uint64_t block_unit = std::uint64_t{32} << 20;
/// How allocations in a block are aligned.
constexpr std::uint64_t alignment = 512;

}  // namespace

bool graph_block::idle() const noexcept {
  return live == 0 &&
         std::all_of(users.begin(), users.end(), [](const dependency& each) { return each.met(); });
}

void graph_block::used_by(dependency what) {
  std::erase_if(users, [](const dependency& each) { return each.met(); });
  users.push_back(std::move(what));
}

void graph_allocation::set_live(bool now) noexcept {
  if (live == now) return;
  live = now;
  block->live += now ? 1U : -1U;
}

graph_memory::graph_memory(state& machine) : machine_{machine} {
  usage_.resize(machine.options.devices.size());
  cached_.resize(machine.options.devices.size());
}

// --- Addresses ----------------------------------------------------------------------------------

std::shared_ptr<graph_block> graph_memory::room_for(std::uint64_t owner, int device,
                                                    std::size_t bytes,
                                                    std::vector<CUmemAccess_flags> rights) {
  for (const auto& each : blocks_) {
    if (each->owner == owner && each->device == device && each->size - each->taken >= bytes &&
        each->rights == rights) {
      return each;
    }
  }
  if (bytes > ~std::uint64_t{0} - block_unit) return nullptr;
  auto made = std::make_shared<graph_block>();
  made->size = (bytes + block_unit - 1) / block_unit * block_unit;
  made->device = device;
  made->rights = std::move(rights);
  made->owner = owner;
  made->address = machine_.space.reserve_addresses(made->size, block_unit);
  if (made->address == 0) return nullptr;
  blocks_.push_back(made);
  return made;
}

std::shared_ptr<graph_allocation> graph_memory::create(std::uint64_t owner, int device,
                                                       std::size_t bytes,
                                                       std::vector<CUmemAccess_flags> rights) {
  auto block = room_for(owner, device, bytes, std::move(rights));
  if (!block) return nullptr;
  auto made = std::make_shared<graph_allocation>();
  made->address = block->address + block->taken;
  made->bytes = bytes;
  block->taken =
      std::min(block->size, (block->taken + bytes + alignment - 1) / alignment * alignment);
  made->block = std::move(block);
  all_.emplace(made->address, made);
  return made;
}

std::shared_ptr<graph_allocation> graph_memory::find(CUdeviceptr address) const {
  const auto found = all_.find(address);
  return found == all_.end() ? nullptr : found->second;
}

// --- Pages --------------------------------------------------------------------------------------

std::shared_ptr<physical> graph_memory::take_cached(int device, std::uint64_t size) {
  auto& here = cached_[static_cast<std::size_t>(device)];
  const auto fit = std::find_if(here.begin(), here.end(),
                                [&](const auto& pages) { return pages->size() == size; });
  if (fit == here.end()) return nullptr;
  auto taken = std::move(*fit);
  here.erase(fit);
  taken->history.forget(0, size);  // only pages whose work is done are cached
  return taken;
}

bool graph_memory::attach(graph_block& what) {
  if (what.attached) return true;
  auto pages = take_cached(what.device, what.size);
  if (!pages) {
    if (!machine_.space.reserve(what.device, what.size)) return false;
    pages = physical::create(machine_, what.size, false);
    if (!pages) {
      machine_.space.give_back(what.device, what.size);
      return false;
    }
    usage& here = of(what.device);
    here.reserved += what.size;
    here.reserved_high = std::max(here.reserved_high, here.reserved);
    here.used_high = std::max(here.used_high, here.reserved);
  }
  if (pages->map_at(what.address, 0, what.size, true) != 0) {
    cached_[static_cast<std::size_t>(what.device)].push_back(std::move(pages));
    return false;
  }
  machine_.space.insert({.base = what.address,
                         .size = what.size,
                         .kind = memory_kind::graph,
                         .device = what.device,
                         .pages = std::move(pages),
                         .rights = what.rights});
  what.attached = true;
  return true;
}

void graph_memory::cache_pages(graph_block& of) {
  if (!std::exchange(of.attached, false)) return;
  auto pages = machine_.space.find(of.address)->pages;
  machine_.space.erase(of.address);
  cached_[static_cast<std::size_t>(of.device)].push_back(std::move(pages));
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
    machine_.space.give_back(device, pages->size());
    of(device).reserved -= pages->size();
  }
  unused.clear();
}

void graph_memory::reset(int device) {
  for (const auto& [address, what] : all_) {
    if (what->block->device == device) what->set_live(false);
  }
  for (const auto& each : blocks_) {
    if (each->device == device) each->users.clear();
  }
  trim(device);
  of(device) = {};
}

// --- Lifetimes ----------------------------------------------------------------------------------

work graph_memory::allocating(const graph_allocation& what) {
  return {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
          .label = "graph allocation",
          .accesses = {writes(what.address, what.bytes)},
          .lifetime = deed::allocate};
}

work graph_memory::freeing(const graph_allocation& what) {
  return {.type = CU_GRAPH_NODE_TYPE_MEM_FREE,
          .label = "graph free",
          .accesses = {writes(what.address, what.bytes)},
          .lifetime = deed::free};
}

void graph_memory::free_by_host(const graph_allocation& what) {
  if (!machine_.options.check_hazards) return;
  const region& in = *machine_.space.find(what.address);
  const moment now = machine_.flow.host_deed();
  const auto story = std::make_shared<const party>(
      party{"free", stream_id{0}, now.at.tick, {what.address, what.bytes}, true, machine_.clock});
  in.pages->history.touch(what.address - in.base, what.bytes, deed::free, now, story, what.address,
                          machine_.hazards);
}

}  // namespace weir::inline v0::sim
