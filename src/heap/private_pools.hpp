// SPDX-License-Identifier: Apache-2.0
// A pool: memory kept apart, with a store of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "heap/backup.hpp"
#include "heap/vocabulary.hpp"
#include "order/stream_order.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/device/memory_source.hpp"
#include "weir/observe/events.hpp"

namespace weir { inline namespace v0 {

class pool_scope;

namespace heap {

class central_heap;

/// Whether a pool's memory is there. While it is on its way one thread changes it (residency.hpp),
/// and nobody else asks its store for memory.
enum class residence : std::uint8_t { resident, suspending, suspended, resuming };

/// Contents of a suspended pool, and where the host keeps them.
struct saved_range {
  std::uint64_t address = 0;
  backup_piece to{};
};

/// The allocator's side of a pool.
///
/// Has a store from its first request on. Alive while somebody holds it or a block of it is out;
/// afterwards its memory is released as streams get past it, and then the record goes. Owned by the
/// central heap.
struct pool_state {
  pool_id id{};
  std::string name;
  std::unique_ptr<backing_store> memory;
  std::uint32_t holders = 0;              // a handle, a claim, graphs
  std::uint64_t blocks = 0;               // handed out, pending ones included
  bool exportable = false;                // its handles can be sent to other processes
  bool segments = false;                  // PyTorch's, whatever the policy
  bool splits = true;                     // false: its segments are not divided
  std::shared_ptr<memory_source> source;  // of its segments; null: the driver
  bool of_capture = false;     // belongs to a graph: nothing of it is released or moved while held
  bool for_graphs = false;     // belongs to graphs of its holders: the same
  bool takes_requests = true;  // a graph's pool does only during the capture
  bool forsaken = false;       // the last holder went, and that was noticed
  bool is_fallback = false;    // serves requests to the allocator that find no memory
  bool guards_due = false;     // the last holder went, and there was no host memory for `guards`
  /// Of graphs: replays may have been queued up to here when the last holder went.
  std::vector<stamp> guards;

  residence where = residence::resident;
  bool queued = false;         // while it is on its way: a thread of the heap's carries that on
  bool taken_back = false;     // … and the suspension was called off: the memory stays
  std::thread::id moved_by{};  // … and the thread that does it; none: one of the heap's
  std::optional<suspendable_options> suspendable;  // it is meant to be suspended
  bool handles_seen = false;  // somebody was told its handles, and may have mapped them elsewhere
  std::uint32_t lent = 0;     // handles that are mapped in growable memory
  // While it is suspended:
  suspended_requests requests{};   // what they do
  std::vector<saved_range> saved;  // by address
  host_memory_kind saved_in{};
  bytes chunk{};  // of copies back
  /// What was reserved and suspended together when the peaks were last reset. Later the sum falls
  /// until the pool is resumed, and from then on it is what is reserved.
  std::uint64_t with_suspended_at_reset = 0;

  [[nodiscard]] std::uint64_t suspended_bytes() const noexcept {
    return memory == nullptr ? 0 : memory->suspended_bytes();
  }
  [[nodiscard]] bool is_moving() const noexcept {
    return where == residence::suspending || where == residence::resuming;
  }
  /// Whether it will be suspended once the work of before is done.
  [[nodiscard]] bool is_leaving() const noexcept {
    return where == residence::suspending && queued && !taken_back;
  }
  /// One of the heap's threads brings it back, or ends a suspension that was called off. All its
  /// memory is there, so nothing but that thread is waited for.
  [[nodiscard]] bool is_arriving() const noexcept {
    return queued &&
           (where == residence::resuming || (where == residence::suspending && taken_back));
  }
  /// Whether captured graphs know its addresses.
  [[nodiscard]] bool of_graphs() const noexcept { return of_capture || for_graphs; }
  /// Whether what a stream freed stays that stream's. No event tells when replays are done with it,
  /// and inside a graph only the order of the capture keeps two uses apart.
  [[nodiscard]] bool keeps_to_streams() const noexcept { return of_graphs() && holders != 0; }
  /// Whether its free memory may be released to the driver.
  [[nodiscard]] bool may_release(const order::stream_order& order) const noexcept;

  [[nodiscard]] std::uint64_t reserved() const noexcept {
    return memory == nullptr ? 0 : memory->reserved();
  }
};

/// What memory_pool shares: as long as it lives the pool takes requests.
class pool {
 public:
  pool(std::weak_ptr<central_heap> owner, pool_id id, std::string name) noexcept
      : owner_{std::move(owner)}, id_{id}, name_{std::move(name)} {}
  ~pool();
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;

  [[nodiscard]] std::shared_ptr<central_heap> owner() const noexcept { return owner_.lock(); }
  [[nodiscard]] bool is_of(const central_heap& candidate) const noexcept;
  [[nodiscard]] pool_id id() const noexcept { return id_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  std::weak_ptr<central_heap> owner_;
  pool_id id_;
  std::string name_;
};

/// The innermost pool_scope of this thread; null: none.
[[nodiscard]] const pool_scope*& innermost_scope() noexcept;

}  // namespace heap

}}  // namespace weir::v0
