// SPDX-License-Identifier: Apache-2.0
// The table of handles, and the threads that read it without its lock.
#include "capi/handles.hpp"

#include <pthread.h>

#include <array>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "capi/thread_locals.hpp"

namespace weir { inline namespace v0 { namespace capi { namespace table {

constinit std::atomic<slot*> chunks[most_chunks] = {};
constinit thread_local reader* this_reader = nullptr;

namespace {

constexpr std::uint32_t last_generation = 0x7fffffff;

// One lock for all kinds, held for a few instructions. Constant and without a destructor: other
// threads, and destructors of static objects, may still call at exit.
constinit std::mutex table_mutex;
constinit std::uint32_t slot_count = 0;
constinit std::uint32_t first_idle = 0;  // index + 1; 0: none
constinit std::atomic<reader*> readers{nullptr};

// A child has no other threads: those that were reading when it was forked will never stop.
void stop_lost_readers() noexcept {
  for (reader* each = readers.load(); each != nullptr; each = each->next)
    if (each != this_reader) each->is_reading.store(false);
  table_mutex.unlock();
}

void prepare_once() noexcept {
  static const bool done = [] {
    heap::asymmetric_barrier::prepare();
    return pthread_atfork([] { table_mutex.lock(); }, [] { table_mutex.unlock(); },
                          stop_lost_readers) == 0;
  }();
  static_cast<void>(done);
}

std::string_view name_of(handle_kind kind) noexcept {
  constexpr std::array<std::string_view, 21> names = {
      "runtime",      "stream",         "event",       "allocator",       "pool",
      "callback",     "capture",        "snapshot",    "recorder",        "stream pool",
      "block pool",   "buffer",         "imported",    "shared",          "link",
      "offer",        "capture notice", "buffer pool", "growable memory", "growable plan",
      "growable hold"};
  return names[static_cast<std::uint8_t>(kind) / 2];
}

// The next three need the lock.

slot* slot_at(std::uint32_t index) noexcept {
  slot* const chunk = chunks[index / chunk_slots].load(std::memory_order_relaxed);
  return chunk == nullptr ? nullptr : chunk + index % chunk_slots;
}

result<std::uint32_t> idle_slot() {
  if (first_idle != 0) {
    const std::uint32_t index = first_idle - 1;
    first_idle = slot_at(index)->next_idle;
    return index;
  }
  if (slot_count == chunk_slots * most_chunks)
    return error{{.code = errc::limit_exceeded, .detail = "too many open handles; close some"}};
  std::atomic<slot*>& chunk = chunks[slot_count / chunk_slots];
  if (chunk.load(std::memory_order_relaxed) == nullptr)
    chunk.store(new slot[chunk_slots], std::memory_order_release);
  return slot_count++;
}

result<slot*> open_slot(handle_kind kind, std::uint64_t number) {
  const std::string noun{name_of(kind)};
  if (number == 0)
    return error{{.code = errc::invalid_argument, .detail = "the " + noun + " is null"}};
  slot* const entry =
      (number & 0xff) == static_cast<std::uint8_t>(kind) && index_in(number) < slot_count
          ? slot_at(index_in(number))
          : nullptr;
  if (entry != nullptr && entry->number.load(std::memory_order_relaxed) == number) return entry;
  if (entry != nullptr && (number >> 32) != 0 && (number >> 32) <= entry->generation)
    return error{{.code = errc::closed, .detail = "the " + noun + " is closed"}};
  return error{{.code = errc::invalid_argument, .detail = "expected a handle of kind " + noun}};
}

/// Waits until every read section that may have seen the slot as it was is over. They are short,
/// and with pauses: a moment without one comes.
void wait_for_readers() noexcept {
  heap::asymmetric_barrier::heavy();
  for (reader* each = readers.load(std::memory_order_acquire); each != nullptr; each = each->next)
    while (each != this_reader && each->is_reading.load(std::memory_order_acquire))
      std::this_thread::yield();
}

}  // namespace

reader* enroll() noexcept {
  prepare_once();
  thread_locals* const locals = own_thread_locals();
  if (locals == nullptr || !heap::asymmetric_barrier::is_free()) return nullptr;
  for (reader* each = readers.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    bool is_taken = false;
    if (each->is_taken.compare_exchange_strong(is_taken, true, std::memory_order_acquire))
      return this_reader = locals->reader = each;
  }
  auto* const added = new (std::nothrow) reader;
  if (added == nullptr) return nullptr;
  added->next = readers.load(std::memory_order_relaxed);
  while (!readers.compare_exchange_weak(added->next, added, std::memory_order_release)) {
  }
  return this_reader = locals->reader = added;
}

void leave(reader& marks) noexcept {
  this_reader = nullptr;
  marks.is_taken.store(false, std::memory_order_release);
}

result<std::uint64_t> add(handle_kind kind, std::shared_ptr<void> object) {
  prepare_once();
  const std::lock_guard lock{table_mutex};
  WEIR_TRY_VALUE(index, idle_slot());
  slot& entry = *slot_at(index);
  const std::uint64_t number = std::uint64_t{++entry.generation} << 32 | std::uint64_t{index} << 8 |
                               static_cast<std::uint8_t>(kind);
  entry.object.store(object.get(), std::memory_order_relaxed);
  entry.holder = std::move(object);
  entry.number.store(number, std::memory_order_release);
  return number;
}

result<std::shared_ptr<void>> find(handle_kind kind, std::uint64_t number) {
  const std::lock_guard lock{table_mutex};
  WEIR_TRY_VALUE(entry, open_slot(kind, number));
  return entry->holder;
}

result<std::shared_ptr<void>> take(handle_kind kind, std::uint64_t number) {
  std::shared_ptr<void> object;
  slot* entry = nullptr;
  {
    const std::lock_guard lock{table_mutex};
    WEIR_TRY_VALUE(open, open_slot(kind, number));
    entry = open;
    entry->number.store(0, std::memory_order_relaxed);
    object = std::move(entry->holder);
  }
  // Only these are read without the lock.
  if (kind == handle_kind::allocator || kind == handle_kind::stream) wait_for_readers();
  const std::lock_guard lock{table_mutex};
  if (entry->generation < last_generation) {
    entry->next_idle = first_idle;
    first_idle = index_in(number) + 1;
  }
  return object;
}

}}}}  // namespace weir::v0::capi::table
