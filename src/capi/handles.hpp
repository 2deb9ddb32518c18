// SPDX-License-Identifier: Apache-2.0
// Handles: numbers that are never used twice, what they stand for, and how to read it without a
// lock.
//
// A number has the kind of the object, the index of a slot and the slot's generation in it, so that
// a closed handle is told from a live one, from one of another kind, and from a pointer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "heap/asymmetric_barrier.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// What a handle stands for. Odd, in the lowest byte of the number: no pointer to anything but
/// bytes ends so.
enum class handle_kind : std::uint8_t {
  runtime = 0x01,
  stream = 0x03,
  event = 0x05,
  allocator = 0x07,
  pool = 0x09,
  callback = 0x0b,
  capture = 0x0d,
  snapshot = 0x0f,
  recorder = 0x11,
  stream_pool = 0x13,
  block_pool = 0x15,
  buffer = 0x17,
  imported = 0x19,
  shared = 0x1b,
  link = 0x1d,
  offer = 0x1f,
  capture_guard = 0x21,
  buffer_pool = 0x23,
  growable = 0x25,
  growable_plan = 0x27,
  growable_hold = 0x29,
};

namespace table {

// --- Reading without a lock ---------------------------------------------------------------------

/// A thread's mark that it reads objects it does not hold. Never freed; left to another thread when
/// its own ends.
struct alignas(64) reader {
  std::atomic<bool> is_reading{false};
  std::atomic<bool> is_taken{true};
  reader* next = nullptr;
};
/// Null until the thread's first read, and when it is being taken down. Initial-exec: one load,
/// also inside the shared library.
extern constinit thread_local reader* this_reader __attribute__((tls_model("initial-exec")));
/// Null where there is none to be had.
[[nodiscard]] reader* enroll() noexcept;
/// The thread that it belonged to is at its end.
void leave(reader& marks) noexcept;

struct slot {
  std::atomic<std::uint64_t> number{0};  // 0: closed, or never used
  std::atomic<void*> object{nullptr};    // good while `number` is the handle's
  std::shared_ptr<void> holder;          // the table's lock
  std::uint32_t generation = 0;          // of the last handle
  std::uint32_t next_idle = 0;           // index + 1
};

constexpr std::uint32_t chunk_slots = 4096;
constexpr std::uint32_t most_chunks = 4096;
extern std::atomic<slot*> chunks[most_chunks];

[[nodiscard]] constexpr std::uint32_t index_in(std::uint64_t number) noexcept {
  return static_cast<std::uint32_t>(number >> 8) & 0xffffff;
}

[[nodiscard]] result<std::uint64_t> add(handle_kind kind, std::shared_ptr<void> object);
[[nodiscard]] result<std::shared_ptr<void>> find(handle_kind kind, std::uint64_t number);
/// When it returns nobody reads the object through the handle any more.
[[nodiscard]] result<std::shared_ptr<void>> take(handle_kind kind, std::uint64_t number);

}  // namespace table

/// A read-side section: while one lives, objects found by peek() stay. For a few instructions,
/// never around a lock, a driver call or the user's code: who closes a handle waits for it. Does
/// not nest.
class read_section {
 public:
  /// The calling thread's mark; null: it has none, and must use find(). So it is where the kernel
  /// has no membarrier, without which the mark would have to be fenced at every call.
  [[nodiscard, gnu::always_inline]] static table::reader* reader() noexcept {
    table::reader* const enrolled = table::this_reader;
    return enrolled != nullptr ? enrolled : table::enroll();
  }
  [[gnu::always_inline]] explicit read_section(table::reader& reader) noexcept : reader_{reader} {
    reader_.is_reading.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  [[gnu::always_inline]] ~read_section() {
    reader_.is_reading.store(false, std::memory_order_release);
  }
  read_section(const read_section&) = delete;
  read_section& operator=(const read_section&) = delete;

 private:
  table::reader& reader_;
};

/// The kind and the object of a handle type; specialised in objects.hpp.
template <class Handle>
struct handle_traits;
template <class Handle>
using object_of = typename handle_traits<Handle>::object;

template <class Handle>
[[nodiscard]] std::uint64_t number_of(const Handle* handle) noexcept {
  return reinterpret_cast<std::uintptr_t>(handle);
}

/// The object, without a lock; null: find() says what is wrong. For as long as the section lives.
template <class Handle>
[[nodiscard, gnu::always_inline]] inline object_of<Handle>* peek(const read_section&,
                                                                 const Handle* handle) noexcept {
  const std::uint64_t number = number_of(handle);
  if ((number & 0xff) != static_cast<std::uint8_t>(handle_traits<Handle>::kind)) return nullptr;
  const std::uint32_t index = table::index_in(number);
  // Whoever has the number has seen what was written before it was handed out, so nothing here
  // needs to be acquired: a slot's next owner writes only when this section is over.
  constexpr auto order = heap::asymmetric_barrier::load_order;
  const table::slot* const chunk = table::chunks[index / table::chunk_slots].load(order);
  if (chunk == nullptr) return nullptr;
  const table::slot& entry = chunk[index % table::chunk_slots];
  if (entry.number.load(order) != number) return nullptr;
  return static_cast<object_of<Handle>*>(entry.object.load(order));
}

/// A handle to `object`. limit_exceeded: there are 16 million.
template <class Handle>
[[nodiscard]] result<Handle*> hand_out_handle(std::shared_ptr<object_of<Handle>> object) {
  WEIR_TRY_VALUE(number, table::add(handle_traits<Handle>::kind, std::move(object)));
  return reinterpret_cast<Handle*>(static_cast<std::uintptr_t>(number));
}

/// The object, kept alive by the result. invalid_argument: null, of another kind, or from nowhere;
/// closed: it was closed.
template <class Handle>
[[nodiscard]] result<std::shared_ptr<object_of<Handle>>> find(const Handle* handle) {
  WEIR_TRY_VALUE(object, table::find(handle_traits<Handle>::kind, number_of(handle)));
  return std::static_pointer_cast<object_of<Handle>>(std::move(object));
}

/// The same, and the handle is closed.
template <class Handle>
[[nodiscard]] result<std::shared_ptr<object_of<Handle>>> take(const Handle* handle) {
  WEIR_TRY_VALUE(object, table::take(handle_traits<Handle>::kind, number_of(handle)));
  return std::static_pointer_cast<object_of<Handle>>(std::move(object));
}

}}}  // namespace weir::v0::capi
