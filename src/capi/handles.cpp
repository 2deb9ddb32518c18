// The table of handles, and the readers that look at it without its lock.
#include "capi/handles.hpp"

#include <pthread.h>

#include <array>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "capi/thread_room.hpp"

namespace weir::inline v0::capi::table {

constinit std::atomic<slot*> chunks[most_chunks] = {};
constinit thread_local reader* this_reader = nullptr;

namespace {

constexpr std::uint32_t last_generation = 0x7fffffff;

// One lock for all kinds, held for a few instructions. Constant and without a destructor: other
// threads, and destructors of static objects, may still call at exit.
constinit std::mutex table_mutex;
constinit std::uint32_t slots_made = 0;
constinit std::uint32_t first_idle = 0;  // index + 1; 0: none
constinit std::atomic<reader*> readers{nullptr};

// A child has no other threads: those that looked when it was forked will never stop.
void only_this_thread_is_left() noexcept {
  for (reader* each = readers.load(); each != nullptr; each = each->next)
    if (each != this_reader) each->looks.store(false);
  table_mutex.unlock();
}

void prepare_once() noexcept {
  static const bool done = [] {
    heap::asymmetric_barrier::prepare();
    return pthread_atfork([] { table_mutex.lock(); }, [] { table_mutex.unlock(); },
                          only_this_thread_is_left) == 0;
  }();
  static_cast<void>(done);
}

std::string_view name_of(handle_kind kind) noexcept {
  constexpr std::array<std::string_view, 17> names = {
      "runtime",  "stream",   "event",    "allocator",   "pool",          "callback",
      "capture",  "snapshot", "recorder", "stream pool", "block pool",    "buffer",
      "imported", "shared",   "link",     "offer",       "capture notice"};
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
  if (slots_made == chunk_slots * most_chunks)
    return error{.code = errc::limit_exceeded, .detail = "there are too many open handles"};
  std::atomic<slot*>& chunk = chunks[slots_made / chunk_slots];
  if (chunk.load(std::memory_order_relaxed) == nullptr)
    chunk.store(new slot[chunk_slots], std::memory_order_release);
  return slots_made++;
}

result<slot*> open_slot(handle_kind kind, std::uint64_t number) {
  const std::string what{name_of(kind)};
  if (number == 0)
    return error{.code = errc::invalid_argument, .detail = "the " + what + " is null"};
  slot* const at =
      (number & 0xff) == static_cast<std::uint8_t>(kind) && index_in(number) < slots_made
          ? slot_at(index_in(number))
          : nullptr;
  if (at != nullptr && at->number.load(std::memory_order_relaxed) == number) return at;
  if (at != nullptr && (number >> 32) != 0 && (number >> 32) <= at->generation)
    return error{.code = errc::already_freed, .detail = "the " + what + " was closed"};
  return error{.code = errc::invalid_argument, .detail = "this is no " + what};
}

/// Waits until every look that may have seen the slot as it was is over. Looks are short, and with
/// pauses: a moment without one comes.
void wait_for_readers() noexcept {
  heap::asymmetric_barrier::heavy();
  for (reader* each = readers.load(std::memory_order_acquire); each != nullptr; each = each->next)
    while (each != this_reader && each->looks.load(std::memory_order_acquire))
      std::this_thread::yield();
}

}  // namespace

reader* enroll() noexcept {
  prepare_once();
  thread_room* const room = own_room();
  if (room == nullptr || !heap::asymmetric_barrier::is_free()) return nullptr;
  for (reader* each = readers.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    bool taken = false;
    if (each->taken.compare_exchange_strong(taken, true, std::memory_order_acquire))
      return this_reader = room->reader = each;
  }
  auto* const made = new (std::nothrow) reader;
  if (made == nullptr) return nullptr;
  made->next = readers.load(std::memory_order_relaxed);
  while (!readers.compare_exchange_weak(made->next, made, std::memory_order_release)) {
  }
  return this_reader = room->reader = made;
}

void leave(reader& mine) noexcept {
  this_reader = nullptr;
  mine.taken.store(false, std::memory_order_release);
}

result<std::uint64_t> add(handle_kind kind, std::shared_ptr<void> object) {
  prepare_once();
  const std::lock_guard lock{table_mutex};
  WEIR_TRY_VALUE(index, idle_slot());
  slot& at = *slot_at(index);
  const std::uint64_t number = std::uint64_t{++at.generation} << 32 | std::uint64_t{index} << 8 |
                               static_cast<std::uint8_t>(kind);
  at.object.store(object.get(), std::memory_order_relaxed);
  at.holder = std::move(object);
  at.number.store(number, std::memory_order_release);
  return number;
}

result<std::shared_ptr<void>> find(handle_kind kind, std::uint64_t number) {
  const std::lock_guard lock{table_mutex};
  WEIR_TRY_VALUE(at, open_slot(kind, number));
  return at->holder;
}

result<std::shared_ptr<void>> take(handle_kind kind, std::uint64_t number) {
  std::shared_ptr<void> taken;
  slot* at = nullptr;
  {
    const std::lock_guard lock{table_mutex};
    WEIR_TRY_VALUE(found, open_slot(kind, number));
    at = found;
    at->number.store(0, std::memory_order_relaxed);
    taken = std::move(at->holder);
  }
  // Only these are looked at without the lock.
  if (kind == handle_kind::allocator || kind == handle_kind::stream) wait_for_readers();
  const std::lock_guard lock{table_mutex};
  if (at->generation < last_generation) {
    at->next_idle = first_idle;
    first_idle = index_in(number) + 1;
  }
  return taken;
}

}  // namespace weir::inline v0::capi::table
