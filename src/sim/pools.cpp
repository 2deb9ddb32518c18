// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory pools: all pools of a machine.
#include "sim/pools.hpp"

#include <algorithm>

#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

pool_set::pool_set(state& machine)
    : machine_{machine},
      defaults_(machine.options.devices.size(), nullptr),
      current_(machine.options.devices.size(), nullptr) {}

pool_set::~pool_set() = default;

// --- Handles -------------------------------------------------------------------------------------

CUmemoryPool pool_set::add(const CUmemPoolProps& properties, bool is_default) {
  auto created = std::make_shared<pool>(machine_, properties, is_default);
  pools_.push_back(created);
  pool& added = *created;
  added.handle = own_handles_.insert(std::move(created));
  return added.handle;
}

CUmemoryPool pool_set::create(const CUmemPoolProps& properties) { return add(properties, false); }

CUmemoryPool pool_set::default_of(int device) {
  CUmemoryPool& handle = defaults_[static_cast<std::size_t>(device)];
  if (handle == nullptr) {
    handle = add({.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                  .handleTypes = CU_MEM_HANDLE_TYPE_NONE,
                  .location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
                  .win32SecurityAttributes = nullptr,
                  .maxSize = 0,
                  .usage = 0,
                  .reserved = {}},
                 true);
  }
  return handle;
}

CUmemoryPool pool_set::current_of(int device) {
  const CUmemoryPool chosen = current_[static_cast<std::size_t>(device)];
  return chosen == nullptr ? default_of(device) : chosen;
}

void pool_set::make_current(int device, CUmemoryPool handle) {
  current_[static_cast<std::size_t>(device)] = handle;
}

CUresult pool_set::destroy(CUmemoryPool handle) {
  if (imported_pool* const foreign = find_imported(handle)) {
    if (foreign->has_pointers()) return CUDA_ERROR_INVALID_VALUE;
    if (--foreign->references != 0) return CUDA_SUCCESS;
    const auto destroyed = imported_handles_.erase(handle);
    std::erase(imported_, destroyed);
    if (destroyed->in_use()) leaving_.push_back(destroyed);
    return CUDA_SUCCESS;
  }
  const pool* const own = find(handle);
  if (own == nullptr || own->is_default()) return CUDA_ERROR_INVALID_VALUE;
  for (CUmemoryPool& current : current_) {
    if (current == handle) current = nullptr;
  }
  own_handles_.erase(handle)->retire();
  drop_finished();
  return CUDA_SUCCESS;
}

void pool_set::drop_finished() {
  last_held_ = nullptr;
  std::erase_if(pools_, [](const auto& each) { return each->is_finished(); });
}

// --- Addresses -----------------------------------------------------------------------------------

pool* pool_set::holding(std::uint64_t address) noexcept {
  if (last_held_ != nullptr && last_held_->contains(address)) return last_held_;
  const auto holder = std::find_if(pools_.begin(), pools_.end(),
                                   [&](const auto& each) { return each->contains(address); });
  if (holder == pools_.end()) return nullptr;
  return last_held_ = holder->get();
}

imported_pool* pool_set::importing(std::uint64_t address) noexcept {
  const auto importer = std::find_if(imported_.begin(), imported_.end(),
                                     [&](const auto& each) { return each->contains(address); });
  return importer == imported_.end() ? nullptr : importer->get();
}

bool pool_set::allocation(CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes,
                          CUmemoryPool* pool, std::uint64_t* id) {
  if (const auto* const owner = holding(address)) {
    const block* const allocated = owner->find(address);
    if (allocated == nullptr) return false;
    *base = allocated->address;
    *bytes = allocated->requested;
    if (pool != nullptr) *pool = owner->handle;
    if (id != nullptr) *id = allocated->id;
    return true;
  }
  if (const auto* const owner = importing(address)) {
    const region* const allocated = owner->find(address);
    if (allocated == nullptr) return false;
    *base = allocated->base;
    *bytes = allocated->size;
    if (pool != nullptr) *pool = owner->handle;
    if (id != nullptr) *id = allocated->id;
    return true;
  }
  return false;
}

CUresult pool_set::free_now(CUdeviceptr address) {
  if (pool* const owner = holding(address)) {
    block* const freed = owner->find(address);
    if (freed == nullptr || freed->address != address) return CUDA_ERROR_INVALID_VALUE;
    owner->free_now(*freed);
    return CUDA_SUCCESS;
  }
  imported_pool* const owner = importing(address);
  return owner != nullptr && owner->free_now(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// --- Releasing -----------------------------------------------------------------------------------

void pool_set::after_synchronize(int) {
  // A stream can free memory of any device's pool, so all of them settle.
  bool any_finished = false;
  for (const auto& each : pools_) {
    each->after_synchronize();
    any_finished = any_finished || each->is_finished();
  }
  if (any_finished) drop_finished();
  std::erase_if(leaving_, [](const auto& each) { return !each->in_use(); });
}

void pool_set::release_unused(int device) {
  for (const auto& each : pools_) {
    if (each->device() == device) each->release_unused();
  }
}

void pool_set::reset(int device) {
  const auto all = pools_;
  for (const auto& each : all) {
    if (each->device() != device) continue;
    each->clear();
    if (!each->is_default()) destroy(each->handle);
  }
  make_current(device, nullptr);
  std::erase_if(imported_, [&](const auto& each) {
    if (each->device() != device) return false;
    each->clear();
    imported_handles_.erase(each->handle);
    return true;
  });
  std::erase_if(leaving_, [&](const auto& each) { return each->device() == device; });
}

std::string pool_set::inconsistency() const {
  for (const auto& each : pools_) {
    if (std::string text = each->inconsistency(); !text.empty()) return text;
  }
  return {};
}

}}}  // namespace weir::v0::sim
