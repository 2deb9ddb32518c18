// Graph memory: addresses for good, pages while they are needed.
#include "sim/graph_memory.hpp"

#include <algorithm>
#include <utility>

#include "sim/state.hpp"

namespace weir::inline v0::sim {

graph_memory::graph_memory(state& machine) : machine_{machine} {
  usage_.resize(machine.options.devices.size());
  cached_.resize(machine.options.devices.size());
}

std::shared_ptr<graph_allocation> graph_memory::create(int device, std::size_t bytes) {
  const std::uint64_t unit =
      machine_.devices[static_cast<std::size_t>(device)].spec.granularity.count();
  if (bytes > ~std::uint64_t{0} - unit) return nullptr;
  auto made = std::make_shared<graph_allocation>();
  made->bytes = bytes;
  made->size = (bytes + unit - 1) / unit * unit;
  made->device = device;
  made->rights.resize(machine_.devices.size(), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  made->rights[static_cast<std::size_t>(device)] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  made->address = machine_.space.reserve_addresses(made->size);
  if (made->address == 0) return nullptr;
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

bool graph_memory::attach(graph_allocation& what) {
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
                         .rights = what.rights,
                         .id = machine_.space.next_id++});
  what.attached = true;
  return true;
}

std::shared_ptr<physical> graph_memory::detach(graph_allocation& what) {
  auto pages = machine_.space.find(what.address)->pages;
  machine_.space.erase(what.address);
  what.attached = false;
  return pages;
}

bool graph_memory::idle(const graph_allocation& what) noexcept {
  return !what.live && (!what.used_until.stream || what.used_until.met());
}

void graph_memory::sweep() {
  for (auto each = all_.begin(); each != all_.end();) {
    graph_allocation& what = *each->second;
    if (each->second.use_count() > 1 || !idle(what)) {
      ++each;
      continue;
    }
    if (what.attached) cached_[static_cast<std::size_t>(what.device)].push_back(detach(what));
    machine_.space.free_addresses(what.address, what.size);
    each = all_.erase(each);
  }
}

void graph_memory::trim(int device) {
  sweep();
  auto& unused = cached_[static_cast<std::size_t>(device)];
  for (const auto& [address, what] : all_) {
    if (what->device == device && what->attached && idle(*what)) unused.push_back(detach(*what));
  }
  for (const auto& pages : unused) {
    machine_.space.give_back(device, pages->size());
    of(device).reserved -= pages->size();
  }
  unused.clear();
}

void graph_memory::reset(int device) {
  for (const auto& [address, what] : all_) {
    if (what->device != device) continue;
    what->live = false;
    what->used_until = {};
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

void graph_memory::count_allocation(const graph_allocation& what) noexcept {
  usage& here = of(what.device);
  here.used += what.size;
  here.used_high = std::max(here.used_high, here.used);
}

void graph_memory::count_free(const graph_allocation& what) noexcept {
  of(what.device).used -= what.size;
}

void graph_memory::free_by_host(const graph_allocation& what) {
  if (!machine_.options.check_hazards) return;
  region& in = *machine_.space.find(what.address);
  const moment now = machine_.flow.host_deed();
  const auto story = std::make_shared<const party>(
      party{"free", stream_id{0}, now.at.tick, {what.address, what.bytes}, true, machine_.clock});
  in.pages->history.touch(in.offset, what.bytes, deed::free, now, story, what.address,
                          machine_.hazards);
}

}  // namespace weir::inline v0::sim
