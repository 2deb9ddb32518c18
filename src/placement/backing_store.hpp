// SPDX-License-Identifier: Apache-2.0
// What a pool's memory comes from: the arena with movable handles, or PyTorch's segments.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "order/stream_order.hpp"
#include "placement/block.hpp"
#include "placement/memory_supply.hpp"
#include "placement/suspension.hpp"
#include "placement/unlocked_work.hpp"
#include "weir/allocator/snapshot.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/options.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/memory_source.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// Bytes that were written though nobody had them: in a red zone, or in a block after its free.
struct damage {
  std::uint64_t block = 0;  // its address
  std::uint64_t requested = 0;
  std::uint64_t first = 0;  // address of the first such byte
  std::uint64_t last = 0;   // and of the last
  std::uint64_t count = 0;  // of damaged bytes, which need not lie side by side
  std::uint8_t expected = 0;
  std::array<std::uint8_t, 8> seen{};  // from the first on
  std::uint8_t seen_count = 0;
  bool after_free = false;  // the block had been freed, and was sound then
};

/// Is told of damage as it is found, with the heap's lock held.
class damage_sink {
 public:
  virtual void on_damage(const damage& found) noexcept = 0;

 protected:
  ~damage_sink() = default;
};

/// Mappings of a store's handles at addresses outside of the store. Called with the heap's lock.
class outside_mappings {
 public:
  /// The handle goes to the driver, and all work on it is done: unmaps it wherever else it is
  /// mapped. After an error it may be mapped still.
  [[nodiscard]] virtual result<void> unmap(const vmm::physical& memory,
                                           const context_scope& bound) = 0;
  /// The same of all handles.
  [[nodiscard]] virtual result<void> unmap_all(const context_scope& bound) = 0;
  /// Lets another device reach them.
  [[nodiscard]] virtual result<void> grant(const vmm::access& peer, const context_scope& bound) = 0;
  /// What an address is, in words; empty: it is none of theirs.
  [[nodiscard]] virtual std::string describe(std::uint64_t address) const = 0;

 protected:
  ~outside_mappings() = default;
};

/// What all stores of an allocator share.
struct placement_context {
  weir::device device;
  block_store& blocks;
  order::stream_order& order;
  bool unmap_at_once = false;
  bool queues_waits = true;
  /// Whether what is mapped is to be reached by network cards.
  rdma_use rdma = rdma_use::off;
  /// What the driver can still give.
  memory_supply supply{device};
  /// Who may reach what is mapped from now on: the device itself, then its peers.
  std::vector<vmm::access> rights = {vmm::access_for(device)};

  // Totals of all stores.
  std::uint64_t reserved = 0;
  std::uint64_t reserved_limit = std::numeric_limits<std::uint64_t>::max();
  /// What was reserved when the driver last refused more; no bound once it gave more than that.
  std::uint64_t refused_at = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t reserved_peak = 0;
  /// Memory that stores are being resumed with, not reserved yet; it counts against the limit.
  std::uint64_t pledged = 0;
  std::uint64_t handles_created = 0;
  std::uint64_t handles_moved = 0;
  std::uint64_t handles_returned = 0;
  std::uint64_t handles_released = 0;

  /// Null: there is no lock to let go of.
  unlocked_calls* unlocked = nullptr;
  /// Makes a driver call that waits for the device without the heap's lock.
  template <class Work>
  void without_lock(Work& work) {
    if (unlocked == nullptr) return work();
    unlocked->call_unlocked([](void* of) { (*static_cast<Work*>(of))(); }, &work);
  }

  /// Null: nothing is mapped outside of the stores.
  outside_mappings* outside = nullptr;
  /// Null: nobody listens.
  event_sink* observer = nullptr;
  damage_sink* damaged = nullptr;

  void emit(memory_event event) const noexcept {
    if (observer == nullptr) return;
    event.device = device.id();
    observer->on_event(event);
  }
  /// stream_order::wait(), and tells of it if a wait was queued.
  [[nodiscard]] result<bool> wait(stream_slot waiter, stamp until, const context_scope& bound) {
    const std::uint64_t before = order.waits_queued();
    WEIR_TRY_VALUE(waits, order.wait(waiter, until, bound));
    emit_wait(waiter, until.stream, before);
    return waits;
  }
  /// The same for stream_order::wait_for_stream().
  [[nodiscard]] result<bool> wait_for_stream(stream_slot waiter, stamp until,
                                             const context_scope& bound) {
    const std::uint64_t before = order.waits_queued();
    WEIR_TRY_VALUE(waits, order.wait_for_stream(waiter, until, bound));
    emit_wait(waiter, until.stream, before);
    return waits;
  }
  void emit_wait(stream_slot waiter, stream_slot other, std::uint64_t waits_before) const noexcept {
    if (order.waits_queued() == waits_before) return;
    emit({.kind = memory_event_kind::wait, .stream = order.id(waiter), .other = order.id(other)});
  }
  [[nodiscard]] bool may_reserve(std::uint64_t more) const noexcept {
    const std::uint64_t taken = reserved + pledged;
    return taken <= reserved_limit && more <= reserved_limit - taken;
  }
  /// Whether less than 1 GiB, or less than an eighth, is left of what there is: of the limit, or of
  /// the device, as far as the driver gave it. Arenas are then careful with what is left.
  [[nodiscard]] bool is_short() const noexcept {
    constexpr std::uint64_t enough = std::uint64_t{1} << 30;
    const std::uint64_t most = std::min({reserved_limit, supply.total(), refused_at});
    return reserved > most - most / 8 || reserved + enough > most;
  }
  void note_refusal() noexcept { refused_at = reserved; }
  /// Whether memory can be created that takes several handles: it is found out before the first one
  /// is. One handle is created or refused by itself.
  [[nodiscard]] result<bool> can_create(std::uint64_t size, std::uint64_t handle,
                                        const physical_properties& properties,
                                        const context_scope& bound) {
    return size <= handle ? result<bool>{true} : supply.can_give(size, properties, bound);
  }
  void reserve(std::uint64_t more) noexcept {
    reserved += more;
    if (reserved > refused_at) refused_at = std::numeric_limits<std::uint64_t>::max();
    reserved_peak = reserved_peak < reserved ? reserved : reserved_peak;
  }
};

/// Where memory is short: how a request may treat handles that are wholly free. Each allows what
/// those above it do.
enum class care : std::uint8_t {
  full,     ///< small and large blocks share no handle, and a free one is not used for small ones
  may_pin,  ///< a small block may use a free handle, and keeps it from being moved and released
  may_mix,  ///< blocks of all sizes may share a handle
};

/// What is asked of a store. Sizes in units.
struct request {
  unit_count units;
  std::uint32_t alignment = 1;  // a power of two; 1 is one unit
  stream_slot stream = no_stream;
  placement::care care = placement::care::full;
  /// How much less than its units the user asked for; of interest to stores that check blocks.
  std::uint32_t waste = 0;
  /// The block is one physical handle of exactly its size, and nothing else lies in it; it may be
  /// smaller than the request, but only where others make up the rest. Only arenas serve such
  /// requests.
  bool whole_handle = false;

  /// What is long enough wherever it begins.
  [[nodiscard]] std::uint64_t units_with_alignment() const noexcept {
    return units + alignment - 1;
  }
  friend bool operator==(const request&, const request&) = default;
};

/// The block that an address belongs to: it lies in it, or beside it in bytes that are no block's.
struct nearest_block {
  std::uint64_t address = 0;
  std::uint64_t requested = 0;
  bool is_live = false;
};

/// Memory of one pool: free runs, and the physical memory under them.
///
/// Hands out blocks of kind live, with `stream` set to the request's, and takes them back. Every
/// byte of its physical memory is in exactly one block it handed out or one run. All calls need the
/// heap's lock. A call that returns an error left everything as it was, but for memory that it
/// created and kept as free.
class backing_store {
 public:
  /// `of_device`: its memory is the device's and comes from the driver, not from a source.
  explicit backing_store(placement_context& shared, pool_id pool, bool of_device = true)
      : shared_{shared}, pool_{pool}, of_device_{of_device} {}
  virtual ~backing_store() = default;
  backing_store(const backing_store&) = delete;
  backing_store& operator=(const backing_store&) = delete;

  /// Whose free memory a request may be given.
  enum class reach : std::uint8_t {
    usable,      ///< what its stream may use at once
    behind_wait  ///< any stream's; the stream is made to wait for the others
  };

  /// Room that costs no driver call, from what the stream may use at once; no_block if none.
  [[nodiscard]] virtual block_index fit(const request& wanted) = 0;
  /// The same at exactly that address. foreign_pointer: it has no memory there; not_ready: not all
  /// of it is free for the stream.
  [[nodiscard]] virtual result<block_index> fit_at(std::uint64_t /*address*/,
                                                   const request& /*wanted*/) {
    return error{{.code = errc::not_supported,
                  .detail = "pools in segments cannot allocate at a chosen address"}};
  }
  /// Whether growing is to be preferred to rearranging for this request.
  [[nodiscard]] virtual bool prefers_growth(const request& wanted) const = 0;
  /// Room made of free memory alone, whose handles are moved; no_block if that cannot be. Asked for
  /// what is behind waits only where what is usable was not enough.
  [[nodiscard]] virtual result<block_index> rearrange(const request& wanted, reach whose,
                                                      const context_scope& bound) = 0;
  /// Room with new physical memory. no_block: the limit or the driver refuses.
  [[nodiscard]] virtual result<block_index> grow(const request& wanted,
                                                 const context_scope& bound) = 0;

  /// Sees to it that free() on the stream needs no memory of the host. The streams of requests are
  /// prepared.
  virtual void prepare_free(stream_slot /*stream*/) {}
  /// A block it handed out is free: usable at once by `freed.stream`, which is prepared, by others
  /// once that has passed the epoch. Never fails.
  virtual void free(block_index index, stamp freed) noexcept = 0;
  /// The stream is known to have passed its epochs up to what is completed: its runs of those
  /// epochs become quiescent.
  virtual void retire(stream_slot stream) noexcept = 0;
  /// Releases physical memory under quiescent runs to the driver, until `most` bytes
  /// or more went or none is left. Returns how much went. Lets go of the lock where the driver
  /// waits for the device: what is on its way then counts as reserved, and serves no request.
  [[nodiscard]] virtual result<bytes> release(bytes most, const context_scope& bound) = 0;
  /// Lets another device reach what is mapped, mappings that were left behind included; what is
  /// mapped later follows placement_context::rights. After an error some of it may be reachable.
  [[nodiscard]] virtual result<void> grant(const vmm::access& peer, const context_scope& bound) = 0;
  /// Gives everything back, whatever it is used for: the store ends. The first error is returned;
  /// all is attempted. Lets go of the lock as release() does; nobody else may use the store then.
  virtual result<void> close(const context_scope& bound) = 0;

  // --- Stores that check their blocks: see guarded_store.hpp
  // -----------------------------------------

  /// Whether freed blocks have to be inspected before their memory goes.
  [[nodiscard]] virtual bool inspects() const noexcept { return false; }
  /// Looks at blocks that were freed and whose stamps are completed, tells of damage, and lets
  /// their memory go. After an error the rest waits for the next call.
  [[nodiscard]] virtual result<void> inspect(const context_scope& /*bound*/) { return {}; }
  /// Of such a store, live or freed: the block there, as long as its addresses are nobody else's.
  [[nodiscard]] virtual std::optional<nearest_block> block_near(
      std::uint64_t /*address*/) const noexcept {
    return {};
  }

  // --- Suspended stores: see suspension.hpp ------------------------------------------------------
  //
  // From plan_suspend() to the apply() that ends it, while the store is suspended, and until it is
  // resumed, of the calls above only prepare_free(), free(), retire() and close() may be made.

  [[nodiscard]] virtual bool can_be_suspended() const noexcept { return false; }
  /// What would have to go and what would have to be saved. All work on the memory is done.
  [[nodiscard]] virtual result<suspension> plan_suspend() const { return errc::not_supported; }
  /// What has to come back: places under blocks. Others become addresses without memory.
  [[nodiscard]] virtual result<suspension> plan_resume() { return errc::not_supported; }
  /// A plan was carried out, or as much of it as it says; the store is suspended now, or not.
  virtual void apply(const suspension& /*plan*/, bool /*suspended*/) noexcept {}
  [[nodiscard]] bool is_suspended() const noexcept { return suspended_; }
  /// The memory that plan_resume() would lack. Walks.
  [[nodiscard]] virtual std::uint64_t suspended_bytes() const noexcept { return 0; }

  [[nodiscard]] std::uint64_t reserved() const noexcept { return reserved_; }
  [[nodiscard]] std::uint64_t reserved_peak() const noexcept { return reserved_peak_; }
  void reset_peak() noexcept { reserved_peak_ = reserved_; }
  /// Bytes of blocks that are handed out.
  [[nodiscard]] std::uint64_t handed_out() const noexcept { return handed_out_; }
  /// Bytes that are reserved and in no such block. Blocks of a suspended store have no memory.
  [[nodiscard]] std::uint64_t unused() const noexcept {
    return reserved_ > handed_out_ ? reserved_ - handed_out_ : 0;
  }
  /// Bytes in runs that only one stream may use, by stream slot.
  [[nodiscard]] virtual std::uint64_t bound_to(stream_slot stream) const noexcept = 0;
  /// The longest piece that fit() could give to the stream.
  [[nodiscard]] virtual std::uint64_t longest_fit(stream_slot stream) const noexcept = 0;
  /// Free bytes under handles or segments that are not wholly free.
  [[nodiscard]] virtual std::uint64_t fragments() const noexcept = 0;
  /// Blocks by address (live ones carry kind, stream and sizes; the caller adds the rest) and
  /// physical memory.
  virtual void describe(pool_snapshot& into) const = 0;
  /// The block, run or hole that the address lies in; no_block: it is none of the store's. Walks.
  [[nodiscard]] virtual block_index block_over(std::uint64_t address) const noexcept = 0;
  /// The physical memory under a block it handed out, if the store is exportable.
  [[nodiscard]] virtual result<block_handles> handles_under(block_index) const {
    return errc::not_supported;
  }
  /// The physical memory of a block that was handed out as a whole handle.
  [[nodiscard]] virtual vmm::physical handle_of(block_index) const noexcept { return {}; }
  [[nodiscard]] virtual std::size_t footprint() const noexcept = 0;
  /// Walks everything and says what contradicts itself; empty if nothing. For tests.
  [[nodiscard]] virtual std::string check() const = 0;

 protected:
  void add_reserved(std::uint64_t more) noexcept {
    reserved_ += more;
    reserved_peak_ = reserved_peak_ < reserved_ ? reserved_ : reserved_peak_;
    shared_.reserve(more);
    if (of_device_) shared_.supply.created(more);
  }
  void remove_reserved(std::uint64_t less) noexcept {
    reserved_ -= less;
    shared_.reserved -= less;
    shared_.supply.released(of_device_ ? less : 0);
  }

  placement_context& shared_;
  pool_id pool_;
  const bool of_device_;
  std::uint64_t reserved_ = 0;
  std::uint64_t reserved_peak_ = 0;
  std::uint64_t handed_out_ = 0;
  bool suspended_ = false;
};

/// Whether the policy is one of PyTorch's, with segments instead of an arena.
[[nodiscard]] constexpr bool is_classic(placement_policy policy) noexcept {
  return policy == placement_policy::classic || policy == placement_policy::classic_expandable;
}

/// What is asked of a store beyond memory.
struct store_traits {
  placement_policy policy{};
  bool exportable = false;  // other processes can be sent descriptors of its handles
  /// A handle goes to another process whole: one slot is as little as can be given away.
  bool one_slot_handles = false;
  bool moves = true;             // false: where a handle is mapped it stays, whatever the policy
  bool takes_addresses = false;  // requests may name the address of their block
  bool segments = false;         // PyTorch's fixed ones, whatever the policy
  bool splits = true;            // of segments: whether they are divided
  /// Captured graphs write to what is free here, too: when it is resumed all of it comes back.
  bool of_graphs = false;
  /// It will be suspended and resumed, which costs by the handle: they are large.
  bool suspendable = false;
  std::shared_ptr<memory_source> source{};  // of segments; null: the driver
  /// Blocks lie apart and are checked, whatever the policy.
  debug_checks checks = debug_checks::off;
  bytes quarantine{};  // addresses that stay unmapped after the free of a checked block
};

enum class store_kind : std::uint8_t {
  arena,
  segments,  // PyTorch's
  guarded,   // blocks lie apart (heap_debug)
};
/// What make_backing_store() makes.
[[nodiscard]] store_kind kind_of_store(const store_traits& traits, weir::device device) noexcept;

/// The store of the policy; an arena if that alone has the traits. The driver is asked for
/// addresses, not for memory.
[[nodiscard]] result<std::unique_ptr<backing_store>> make_backing_store(placement_context& shared,
                                                                        pool_id pool,
                                                                        const store_traits& traits,
                                                                        const context_scope& bound);

}}}  // namespace weir::v0::placement
