// SPDX-License-Identifier: Apache-2.0
// The arena: one address range for all streams and sizes, over handles that can be moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "placement/arena_core.hpp"
#include "placement/arena_inspector.hpp"
#include "placement/arena_mover.hpp"
#include "placement/arena_planner.hpp"
#include "placement/arena_suspender.hpp"
#include "placement/arena_types.hpp"
#include "placement/backing_store.hpp"
#include "placement/careful_places.hpp"
#include "placement/growth.hpp"
#include "placement/planned_places.hpp"
#include "placement/usual_places.hpp"
#include "placement/whole_handles.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// A store with one reserved address range, cut into slots of one granularity.
///
/// Physical memory comes in handles of one or more slots, each mapped whole at its current place.
/// Blocks are runs of bytes that know nothing of handles. A run belongs to the stream that freed it
/// until the free's epoch is completed; then it is quiescent and coalesces with what is quiescent
/// beside it.
///
/// A handle that is wholly free can be mapped somewhere else, where contiguous room is missing. Its
/// old slots become a hole. Nothing is unmapped there at once: work in flight may still use the old
/// address, and if the handle comes back no driver call is needed. A hole can be filled once the
/// streams have passed the last use of its old mapping.
///
/// A mapping that the driver neither finishes nor takes back blocks its addresses until it does.
///
/// Always true (check() verifies it): the blocks cover the arena from its base to its end without
/// gaps; a byte of a block that is no hole lies under a handle at its current place; no retained
/// mapping lies under anything but a hole; handed out + free = reserved, with what is suspended.
///
/// While it is suspended, its handles keep their places and lack their memory.
///
/// Joins its parts, which do not know each other and ask for the rest by arena_host:
///
///   planned_places, careful_places, usual_places    where a block goes, one on top of the other
///   whole_handles                                   where a block goes that is a handle by itself
///   arena_planner                                   where room could be made, and with what
///   arena_mover                                     makes it, and gives memory back
///   arena_suspender                                 what goes and comes back with a suspension
///   arena_inspector                                 figures, snapshots, check()
///   arena_core: arena_runs, arena_slots             the records: blocks; slots and handles
///
/// fit() and free() cost some tens of nanoseconds, whatever the number of blocks. The other
/// calls walk all blocks and make driver calls.
class arena final : public backing_store, private arena_host {
 public:
  [[nodiscard]] static result<std::unique_ptr<backing_store>> create(
      placement_context& shared, pool_id pool, growth_rules rules, const context_scope& bound,
      physical_properties properties = {});
  ~arena() override;

  [[nodiscard]] block_index fit(const request& wanted) override {
    if (wanted.whole_handle) [[unlikely]]
      return take_handle(whole_.find(wanted, reach::usable), wanted);
    return take(planned_.fit(wanted), wanted);
  }
  [[nodiscard]] result<block_index> fit_at(std::uint64_t address, const request& wanted) override;
  [[nodiscard]] bool prefers_growth(const request& wanted) const override {
    return planner_.prefers_growth(wanted);
  }
  [[nodiscard]] result<block_index> rearrange(const request& wanted, reach whose,
                                              const context_scope& bound) override;
  [[nodiscard]] result<block_index> grow(const request& wanted,
                                         const context_scope& bound) override;
  void prepare_free(stream_slot stream) override { core_.runs.prepare_owner(stream); }
  void free(block_index index, stamp freed) noexcept override;
  void retire(stream_slot stream) noexcept override { core_.runs.retire(stream); }
  [[nodiscard]] result<bytes> release(bytes most, const context_scope& bound) override;
  [[nodiscard]] result<void> grant(const vmm::access& peer, const context_scope& bound) override {
    return mover_.grant(peer, bound);
  }
  result<void> close(const context_scope& bound) override;
  [[nodiscard]] bool can_be_suspended() const noexcept override { return true; }
  [[nodiscard]] result<suspension> plan_suspend() const override {
    return suspender_.plan_suspend();
  }
  [[nodiscard]] result<suspension> plan_resume() override { return suspender_.plan_resume(); }
  void apply(const suspension& plan, bool suspended) noexcept override {
    suspender_.apply(plan);
    suspended_ = suspended;
  }
  [[nodiscard]] std::uint64_t suspended_bytes() const noexcept override {
    return suspended_ ? suspender_.missing_bytes() : 0;
  }

  [[nodiscard]] std::uint64_t bound_to(stream_slot stream) const noexcept override {
    return core_.runs.bound_to(stream);
  }
  [[nodiscard]] std::uint64_t longest_fit(stream_slot stream) const noexcept override {
    return core_.runs.longest_fit(stream);
  }
  [[nodiscard]] std::uint64_t fragments() const noexcept override {
    return suspended_ ? 0 : inspector_.fragments();
  }
  void describe(pool_snapshot& into) const override { inspector_.describe(into, suspended_); }
  [[nodiscard]] block_index block_over(std::uint64_t address) const noexcept override;
  [[nodiscard]] result<block_handles> handles_under(block_index index) const override {
    return inspector_.handles_under(index);
  }
  [[nodiscard]] vmm::physical handle_of(block_index index) const noexcept override {
    return core_.slots.handle_at(core_.slots.slot_of(core_.runs[index].address)).memory;
  }
  [[nodiscard]] std::size_t footprint() const noexcept override {
    return core_.slots.footprint() + core_.runs.footprint() + planned_.footprint();
  }
  [[nodiscard]] std::string check() const override { return inspector_.check(suspended_); }

 private:
  arena(placement_context& shared, pool_id pool, growth_rules rules, address_range range,
        std::uint64_t slot_size, physical_properties properties);

  // --- arena_host -------------------------------------------------------------------------------

  [[nodiscard]] arena_figures figures() const noexcept override {
    return {.reserved = reserved_, .handed_out = handed_out_, .peak_handed_out = peak_handed_out_};
  }
  void count_created(std::uint64_t size) noexcept override { add_reserved(size); }
  void count_released(std::uint64_t size) noexcept override { remove_reserved(size); }
  void moved(std::uint64_t slots) noexcept override {
    if (core_.rules.plans) planned_.moved(slots);
  }
  void hand_out(block_index index, const request& wanted) noexcept override;

  // --- arena.cpp --------------------------------------------------------------------------------

  [[nodiscard]] block_index take(const free_place& place, const request& wanted) noexcept;
  [[nodiscard]] block_index take_handle(const handle_place& found, const request& wanted) noexcept;
  [[nodiscard]] result<block_index> borrow(const request& wanted, const context_scope& bound);
  [[nodiscard]] result<block_index> borrow_handle(const request& wanted,
                                                  const context_scope& bound);
  [[nodiscard]] result<block_index> create_handle(const request& wanted,
                                                  const context_scope& bound);
  void plan_round();
  [[nodiscard]] result<block_index> make_planned_room(const request& wanted,
                                                      const context_scope& bound);
  [[nodiscard]] result<block_index> grow_apart(const request& wanted, const context_scope& bound);
  [[nodiscard]] result<bool> lacks_memory_for(const request& wanted,
                                              const context_scope& bound) const;

  address_range range_;
  arena_core core_;
  std::uint64_t peak_handed_out_ = 0;  // since memory was last released
  usual_places usual_;
  careful_places careful_;  // on top of that
  planned_places planned_;  // and on top of both
  arena_planner planner_;
  arena_mover mover_;
  arena_suspender suspender_;
  arena_inspector inspector_;
  whole_handles whole_;
};

}}}  // namespace weir::v0::placement
