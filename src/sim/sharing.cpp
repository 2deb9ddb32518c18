// SPDX-License-Identifier: Apache-2.0
// Handles that travel to other processes: exported memory, and events both sides can see.
#include "sim/sharing.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

using magic_bytes = std::array<char, 8>;
constexpr magic_bytes memory_magic = {'w', 'e', 'i', 'r', 'i', 'p', 'c', 'm'};
constexpr magic_bytes event_magic = {'w', 'e', 'i', 'r', 'i', 'p', 'c', 'e'};
constexpr std::uint32_t layout_version = 1;

/// The bytes of a handle. Nothing in them is believed before it was checked.
struct handle_bytes {
  magic_bytes magic{};
  std::uint32_t version = layout_version;
  std::int32_t process = 0;
  std::int32_t descriptor = -1;
  std::int32_t device = 0;
  std::uint64_t nonce = 0;
  std::uint64_t offset = 0;  // of the allocation in the file
  std::uint64_t size = 0;
};
static_assert(sizeof(handle_bytes) <= sizeof(CUipcMemHandle));
static_assert(sizeof(handle_bytes) <= sizeof(CUipcEventHandle));

template <class Handle>
Handle pack(const handle_bytes& bytes) {
  Handle handle{};
  std::memcpy(handle.reserved, &bytes, sizeof(bytes));
  return handle;
}

template <class Handle>
handle_bytes unpack(const Handle& handle) {
  handle_bytes bytes;
  std::memcpy(&bytes, handle.reserved, sizeof(bytes));
  return bytes;
}

/// The note in the file of exported memory.
struct memory_note {
  magic_bytes magic{};
  std::uint64_t nonce = 0;
};

bool read_memory_note(int descriptor, memory_note& note, std::uint64_t& size) {
  std::string bytes;
  if (!physical::read_note(descriptor, bytes, size) || bytes.size() != sizeof(note)) return false;
  std::memcpy(&note, bytes.data(), sizeof(note));
  return note.magic == memory_magic;
}

std::uint64_t draw_nonce() {
  std::uint64_t drawn = 0;
  if (::getrandom(&drawn, sizeof(drawn), 0) != static_cast<ssize_t>(sizeof(drawn))) {
    drawn = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  return drawn;
}

/// A descriptor of another process as one of our own; -1 if there is no such thing.
int open_foreign(const handle_bytes& fields) {
  if (fields.process <= 0 || fields.descriptor < 0) return -1;
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/fd/%d", fields.process, fields.descriptor);
  return ::open(path.data(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

}  // namespace

// --- Events --------------------------------------------------------------------------------------

/// The page that both processes map.
struct shared_event::counters {
  magic_bytes magic{};
  std::uint64_t nonce = 0;
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> completed{0};

  static constexpr std::uint64_t file_size = 4096;
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
};

shared_event::~shared_event() {
  if (counters_ != nullptr) ::munmap(counters_, counters::file_size);
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::shared_ptr<shared_event> shared_event::create() {
  auto event = std::shared_ptr<shared_event>{new shared_event};
  event->descriptor_ = make_sealed_file("weir simulated event", counters::file_size);
  if (event->descriptor_ < 0) return nullptr;
  void* const at = ::mmap(nullptr, counters::file_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                          event->descriptor_, 0);
  if (at == MAP_FAILED) return nullptr;
  event->counters_ = new (at) counters{.magic = event_magic, .nonce = draw_nonce()};
  return event;
}

std::shared_ptr<shared_event> shared_event::open(const CUipcEventHandle& handle) {
  const handle_bytes fields = unpack(handle);
  if (fields.magic != event_magic || fields.version != layout_version) return nullptr;
  auto event = std::shared_ptr<shared_event>{new shared_event};
  event->descriptor_ = open_foreign(fields);
  if (event->descriptor_ < 0) return nullptr;
  struct stat status {};
  const int seals = ::fcntl(event->descriptor_, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(event->descriptor_, &status) != 0 ||
      status.st_size != static_cast<off_t>(counters::file_size)) {
    return nullptr;
  }
  void* const at = ::mmap(nullptr, counters::file_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                          event->descriptor_, 0);
  if (at == MAP_FAILED) return nullptr;
  event->counters_ = static_cast<counters*>(at);
  if (event->counters_->magic != event_magic || event->counters_->nonce != fields.nonce) {
    return nullptr;
  }
  return event;
}

bool shared_event::is_own(const CUipcEventHandle& handle) noexcept {
  const handle_bytes fields = unpack(handle);
  return fields.magic == event_magic && fields.process == ::getpid();
}

CUipcEventHandle shared_event::handle() const {
  return pack<CUipcEventHandle>({.magic = event_magic,
                                 .process = ::getpid(),
                                 .descriptor = descriptor_,
                                 .nonce = counters_->nonce});
}

std::uint64_t shared_event::next_record() noexcept { return counters_->recorded.fetch_add(1) + 1; }

void shared_event::complete(std::uint64_t record) noexcept {
  std::uint64_t known = counters_->completed.load();
  while (known < record && !counters_->completed.compare_exchange_weak(known, record)) {
  }
}

std::uint64_t shared_event::recorded() const noexcept { return counters_->recorded.load(); }

bool shared_event::is_complete(std::uint64_t record) const noexcept {
  return counters_->completed.load() >= record;
}

// --- Memory --------------------------------------------------------------------------------------

CUresult sharing::export_memory(region& area, CUipcMemHandle& handle) {
  if (!machine_.space.make_shareable(area)) return CUDA_ERROR_OUT_OF_MEMORY;
  memory_note note;
  std::uint64_t size = 0;
  if (!read_memory_note(area.pages->descriptor(), note, size)) {
    note = {.magic = memory_magic, .nonce = draw_nonce()};
    if (!area.pages->write_note({reinterpret_cast<const char*>(&note), sizeof(note)})) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  handle = pack<CUipcMemHandle>({.magic = memory_magic,
                                 .process = ::getpid(),
                                 .descriptor = area.pages->descriptor(),
                                 .device = area.device,
                                 .nonce = note.nonce,
                                 .offset = area.offset,
                                 .size = area.size});
  return CUDA_SUCCESS;
}

sharing::imported_file* sharing::map_file(int descriptor, std::uint64_t nonce) {
  memory_note note;
  std::uint64_t size = 0;
  if (!read_memory_note(descriptor, note, size) || note.nonce != nonce) {
    ::close(descriptor);
    return nullptr;
  }
  imported_file file{.pages = physical::adopt(descriptor, size)};
  file.base = machine_.space.reserve_addresses(size);
  if (file.base == 0) return nullptr;
  if (file.pages->map_at(file.base, 0, size, true) != 0) {
    machine_.space.free_addresses(file.base, size);
    return nullptr;
  }
  return &files_.emplace(nonce, std::move(file)).first->second;
}

CUresult sharing::open_memory(const CUipcMemHandle& handle, int for_device, CUdeviceptr& address) {
  const handle_bytes fields = unpack(handle);
  if (fields.magic != memory_magic || fields.version != layout_version) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (fields.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;  // not within one process
  if (!machine_.valid_device(fields.device)) return CUDA_ERROR_INVALID_DEVICE;

  const auto known = files_.find(fields.nonce);
  imported_file* file = known != files_.end() ? &known->second : nullptr;
  if (file == nullptr) {
    const int descriptor = open_foreign(fields);
    if (descriptor < 0) return CUDA_ERROR_INVALID_VALUE;
    file = map_file(descriptor, fields.nonce);
    if (file == nullptr) return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint64_t length = file->pages->size();
  const bool fits =
      fields.size != 0 && fields.offset < length && fields.size <= length - fields.offset;
  const std::uint64_t base = file->base + fields.offset;
  if (const auto again = opened_.find(base); fits && again != opened_.end()) {
    ++again->second.references;
    address = base;
    return CUDA_SUCCESS;
  }
  bool overlaps = false;
  if (fits) machine_.space.each_in(base, fields.size, [&](const region&) { overlaps = true; });
  if (!fits || overlaps) {  // no handle that an exporter made
    if (file->regions == 0) {
      machine_.space.free_addresses(file->base, length);
      files_.erase(fields.nonce);
    }
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector rights(machine_.devices.size(), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  rights[static_cast<std::size_t>(fields.device)] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  rights[static_cast<std::size_t>(for_device)] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  machine_.space.insert({.base = base,
                         .size = fields.size,
                         .kind = memory_kind::imported,
                         .device = fields.device,
                         .pages = file->pages,
                         .offset = fields.offset,
                         .rights = std::move(rights),
                         .owner = for_device,
                         .mapping_base = file->base,
                         .mapping_size = length});
  ++file->regions;
  opened_.emplace(base, opened_memory{fields.nonce, 1, for_device});
  address = base;
  return CUDA_SUCCESS;
}

bool sharing::close_memory(std::uint64_t address) {
  const auto opened = opened_.find(address);
  if (opened == opened_.end()) return false;
  if (--opened->second.references == 0) unmap(address);
  return true;
}

void sharing::unmap(std::uint64_t base) {
  const auto opened = opened_.find(base);
  const std::uint64_t nonce = opened->second.nonce;
  opened_.erase(opened);
  machine_.space.erase(base);
  imported_file& file = files_.at(nonce);
  if (--file.regions != 0) return;
  machine_.space.free_addresses(file.base, file.pages->size());
  files_.erase(nonce);
}

void sharing::reset(int device) {
  std::vector<std::uint64_t> bases;
  for (const auto& [base, memory] : opened_) {
    if (memory.for_device == device) bases.push_back(base);
  }
  for (const std::uint64_t base : bases) unmap(base);
}

}}}  // namespace weir::v0::sim
