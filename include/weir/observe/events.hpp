// SPDX-License-Identifier: Apache-2.0
// Memory events as plain records, and the sink that receives them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// A pool inside an allocator; 0 is the allocator's own.
using pool_id = id<struct pool_kind, std::uint32_t>;

/// What happened; the comments list the fields of memory_event that the kind sets.
enum class memory_event_kind : std::uint8_t {
  allocate,       ///< address, size (as requested), rounded, stream
  deallocate,     ///< address, size, rounded, stream (of the free)
  record_stream,  ///< address, stream
  wait,           ///< `stream` waits for `other` before it reuses memory
  reserve,        ///< address, size: physical memory was created and mapped there
  move,           ///< size bytes of physical memory were remapped from `other_address` to address
  release,        ///< address, size: physical memory is returned to the driver, after this event; a
                  ///< `reserve` follows if the driver refuses
  out_of_memory,  ///< a request of this size failed: not enough memory, or the tag's limit
  capture_begin,  ///< stream, pool: allocations on the stream come from the pool from now on
  capture_end,    ///< stream, pool
  pool_created,   ///< pool
  pool_released,  ///< pool: its last handle is gone
  limit,          ///< size: the new limit, of all memory or of the tag's
  suspended,      ///< pool, tag it was declared for, size: live blocks lost their memory; rounded:
                  ///< contents that the host keeps
  resumed,        ///< the same, and rounded: contents that came back
};

/// "allocate", "record_stream", …
[[nodiscard]] WEIR_API std::string_view name(memory_event_kind kind) noexcept;
/// The same.
[[nodiscard]] WEIR_API std::string to_string(memory_event_kind kind);

/// One memory event. Fields that its kind does not set are 0.
struct memory_event {
  memory_event_kind kind{};         ///< what happened
  std::uint16_t tag = 0;            ///< tag::number()
  device_id device{};               ///< the allocator's device
  pool_id pool{};                   ///< the pool of the memory; 0 is the allocator's own
  stream_id stream{};               ///< the stream of the request, free or use
  stream_id other{};                ///< of a wait: the stream that is waited for
  std::uint64_t address = 0;        ///< the start of the block or of the physical memory
  std::uint64_t other_address = 0;  ///< of a move: where the memory was mapped before
  std::uint64_t size = 0;           ///< in bytes, as requested
  std::uint64_t rounded = 0;        ///< in bytes, rounded to whole blocks
};

/// "allocate 0x7f0000000000 size 1000 rounded 1024 stream 7": the fields that are not 0, sizes in
/// bytes.
[[nodiscard]] WEIR_API std::string to_string(const memory_event& event);

/// Receives the events of an allocator, in an order in which they can have happened: a block's
/// allocate comes before its deallocate, and before it is allocated again.
///
/// on_event() is called on the thread that causes the event, many threads at a time, sometimes with
/// the allocator's lock held: it must be quick, must not throw and must not call the allocator.
/// Outlives its registration.
class WEIR_API event_sink {
 public:
  virtual ~event_sink();
  /// Receives one event.
  virtual void on_event(const memory_event& event) noexcept = 0;

  /// Whether on_existing() is to be called when the sink is added. The default is false.
  [[nodiscard]] virtual bool wants_existing() const noexcept;
  /// Receives what the allocator holds when the sink is added, before any on_event(): pool_created
  /// for each pool, reserve for mapped memory, allocate for live blocks, suspended for pools that
  /// are. The same rules as for on_event() hold. Ignored by default.
  virtual void on_existing(const memory_event& event) noexcept;
};

}}  // namespace weir::v0
