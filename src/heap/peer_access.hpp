// SPDX-License-Identifier: Apache-2.0
// Other devices: who may reach the memory of a heap, and streams of theirs that use it.
#pragma once

#include "heap/foreign_uses.hpp"
#include "heap/heap_core.hpp"
#include "heap/residency.hpp"
#include "heap/vocabulary.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace heap {

/// What peer_access asks of the heap. Implemented by the central heap. Called with the heap's lock.
class peer_access_host {
 public:
  /// The record of a live block, or why the address is not that of one.
  [[nodiscard]] virtual result<block_index> find_live(const void* pointer) = 0;
  /// The block is used on a stream, too: from now on its free waits for the slot.
  virtual void record_use(block_index index, stream_slot slot, stream_id stream) = 0;

 protected:
  ~peer_access_host() = default;
};

/// Access of other devices to a heap's memory.
///
/// Memory that is mapped is given the rights of all peers, now and later. Uses by streams of other
/// devices are kept in the core (foreign_uses). The heap is told of the ends of such streams until
/// stop_listening().
///
/// Owned by the central heap. Any thread, without the heap's lock. To enable a peer costs a driver
/// call for each handle, the first recorded use of a device a registration.
class peer_access {
 public:
  peer_access(heap_core& core, heap::residency& residency, peer_access_host& host,
              detail::stream_listener& listener) noexcept
      : core_{core}, residency_{residency}, host_{host}, listening_{listener} {}
  peer_access(const peer_access&) = delete;
  peer_access& operator=(const peer_access&) = delete;

  /// The peer may reach the memory from now on.
  result<void> enable(weir::device peer) WEIR_EXCLUDES(core_.mutex_);
  /// A stream of another device uses the live block.
  [[nodiscard]] result<void> record_stream(void* pointer, const stream_ref& stream)
      WEIR_EXCLUDES(core_.mutex_);
  /// The heap is closed: it is told of no stream any more.
  void stop_listening() noexcept WEIR_EXCLUDES(core_.mutex_) { listening_.end(); }

 private:
  heap_core& core_;
  heap::residency& residency_;
  peer_access_host& host_;
  foreign_listening listening_;
};

}}}  // namespace weir::v0::heap
