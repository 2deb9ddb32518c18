// SPDX-License-Identifier: Apache-2.0
// A pool of another process, seen from here.
#include "sim/pool_import.hpp"

#include <unistd.h>

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "sim/state.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

constexpr std::uint32_t format_version = 1;

/// The bytes of an exported pointer. Everything not used must be 0, so that a later version can
/// tell.
struct pointer_bytes {
  std::array<char, 8> magic{'w', 'e', 'i', 'r', 'p', 't', 'r', '\0'};
  std::uint32_t version = format_version;
  std::uint32_t check = 0;
  std::uint64_t nonce = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::array<std::uint64_t, 3> unused{};
};
static_assert(sizeof(pointer_bytes) == sizeof(CUmemPoolPtrExportData));

struct note_bytes {
  std::array<char, 8> magic{'w', 'e', 'i', 'r', 'p', 'o', 'o', 'l'};
  std::uint32_t version = format_version;
  std::int32_t device = 0;
  std::uint64_t nonce = 0;
};

/// FNV-1a over everything but itself: catches bytes that were damaged on the way.
std::uint32_t checksum(pointer_bytes pointer) {
  pointer.check = 0;
  std::array<unsigned char, sizeof(pointer)> raw{};
  std::memcpy(raw.data(), &pointer, sizeof(pointer));
  std::uint32_t hash = 2166136261U;
  for (const unsigned char byte : raw) hash = (hash ^ byte) * 16777619U;
  return hash;
}

}  // namespace

CUmemPoolPtrExportData pool_pointer::encode() const {
  pointer_bytes raw{.nonce = nonce, .offset = offset, .size = size};
  raw.check = checksum(raw);
  CUmemPoolPtrExportData data{};
  std::memcpy(&data, &raw, sizeof(raw));
  return data;
}

bool pool_pointer::decode(const CUmemPoolPtrExportData& data, pool_pointer& decoded) {
  pointer_bytes raw;
  std::memcpy(static_cast<void*>(&raw), &data, sizeof(raw));
  const pointer_bytes expected;
  if (raw.magic != expected.magic || raw.version != expected.version ||
      raw.unused != expected.unused || raw.check != checksum(raw)) {
    return false;
  }
  decoded = {raw.nonce, raw.offset, raw.size};
  return true;
}

std::string pool_note::encode() const {
  const note_bytes raw{.device = device, .nonce = nonce};
  std::string note(sizeof(raw), '\0');
  std::memcpy(note.data(), &raw, sizeof(raw));
  return note;
}

bool pool_note::decode(std::string_view note, pool_note& decoded) {
  note_bytes raw;
  if (note.size() != sizeof(raw)) return false;
  std::memcpy(static_cast<void*>(&raw), note.data(), sizeof(raw));
  const note_bytes expected;
  if (raw.magic != expected.magic || raw.version != expected.version) return false;
  decoded = {raw.nonce, raw.device};
  return true;
}

imported_pool::imported_pool(state& machine, const pool_note& note, std::shared_ptr<physical> pages,
                             std::uint64_t base)
    : machine_{machine},
      nonce_{note.nonce},
      device_{note.device},
      pages_{std::move(pages)},
      base_{base},
      rights_(machine.devices.size(), CU_MEM_ACCESS_FLAGS_PROT_NONE) {
  rights_[static_cast<std::size_t>(device_)] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

std::shared_ptr<imported_pool> imported_pool::create(state& machine, const pool_note& note,
                                                     std::shared_ptr<physical> pages) {
  const std::uint64_t base = machine.space.reserve_addresses(pages->size());
  if (base == 0) return nullptr;
  return std::shared_ptr<imported_pool>{new imported_pool{machine, note, std::move(pages), base}};
}

imported_pool::~imported_pool() {
  clear();
  machine_.space.free_addresses(base_, pages_->size());
}

CUresult imported_pool::import(const pool_pointer& pointer, CUdeviceptr* address) {
  const auto end = checked_add(pointer.offset, pointer.size);
  if (pointer.nonce != nonce_ || pointer.size == 0 || !end || *end > pages_->size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint64_t base = base_ + pointer.offset;
  if (const region* const existing = find(base)) {
    if (existing->base != base || existing->size != pointer.size) return CUDA_ERROR_INVALID_VALUE;
    *address = base;
    return CUDA_SUCCESS;
  }
  // A region on its way out may be replaced, but regions never overlap.
  bool overlaps = false;
  machine_.space.each_in(base, pointer.size,
                         [&](const region& other) { overlaps |= other.base != base; });
  if (overlaps) return CUDA_ERROR_INVALID_VALUE;

  const auto unit = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t from = pointer.offset / unit * unit;
  const std::uint64_t length = checked_round_up(*end - from, unit).value_or(0);
  if (pages_->map_at(base_ + from, from, length, true) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  // Neighbours share host pages, so the mapping outlives the region: it goes with the pool.
  const region& imported = machine_.space.insert({.base = base,
                                                  .size = pointer.size,
                                                  .kind = memory_kind::imported,
                                                  .device = device_,
                                                  .pages = pages_,
                                                  .offset = pointer.offset,
                                                  .rights = rights_,
                                                  .pool = handle,
                                                  .mapping_base = base_ + from,
                                                  .mapping_size = length});
  pages_->history.forget(pointer.offset, pointer.size);
  live_.emplace(base, imported.id);
  *address = base;
  return CUDA_SUCCESS;
}

const region* imported_pool::find(std::uint64_t address) const {
  const region* const area = machine_.space.find(address);
  if (area == nullptr) return nullptr;
  const auto known = live_.find(area->base);
  return known != live_.end() && known->second == area->id ? area : nullptr;
}

bool imported_pool::free_now(std::uint64_t address) {
  if (live_.erase(address) == 0) return false;
  machine_.space.check_removal(*machine_.space.find(address), "mem_free");
  machine_.space.erase(address);
  return true;
}

bool imported_pool::free(std::uint64_t address, const std::shared_ptr<stream_state>& stream) {
  const auto known = live_.find(address);
  if (known == live_.end()) return false;
  const std::uint64_t size = machine_.space.find(address)->size;
  const auto leave = [&machine = machine_, address, id = known->second] {
    // Work queued before still reaches the memory; a new import of it has a region of its own.
    const region* const area = machine.space.find(address);
    if (area != nullptr && area->base == address && area->id == id) machine.space.erase(address);
    return CUDA_SUCCESS;
  };
  live_.erase(known);
  machine_.flow.enqueue(stream, work{.type = CU_GRAPH_NODE_TYPE_MEM_FREE,
                                     .label = "free",
                                     .accesses = {writes(address, size)},
                                     .body = leave,
                                     .lifetime = access_kind::free});
  return true;
}

bool imported_pool::in_use() const {
  bool any = false;
  machine_.space.each_in(base_, pages_->size(), [&](const region&) { any = true; });
  return any;
}

void imported_pool::clear() {
  live_.clear();
  machine_.space.erase_in(base_, pages_->size());
}

void imported_pool::grant(int to, CUmemAccess_flags flags) {
  const CUmemAccess_flags before = std::exchange(rights_[static_cast<std::size_t>(to)], flags);
  for (const auto& [address, id] : live_) {
    region& area = *machine_.space.find(address);
    area.rights = rights_;
    machine_.space.check_revocation(area, to, before, flags, "mem_pool_set_access");
  }
}

CUmemAccess_flags imported_pool::granted(int to) const {
  return to < 0 ? CU_MEM_ACCESS_FLAGS_PROT_NONE : rights_[static_cast<std::size_t>(to)];
}

}}}  // namespace weir::v0::sim
