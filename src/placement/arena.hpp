// The arena: one address range for all streams and sizes, over handles that can be moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "placement/arena_runs.hpp"
#include "placement/arena_slots.hpp"
#include "placement/arena_types.hpp"
#include "placement/backing_store.hpp"
#include "placement/careful_places.hpp"
#include "placement/growth.hpp"
#include "placement/planned_places.hpp"
#include "placement/usual_places.hpp"
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
/// fit() and free() cost some tens of nanoseconds, whatever the number of blocks. The other
/// calls walk all blocks and make driver calls.
class arena final : public backing_store {
 public:
  [[nodiscard]] static result<std::unique_ptr<backing_store>> create(
      placement_context& shared, pool_id pool, growth_rules rules, const context_scope& bound,
      physical_properties properties = {});
  ~arena() override;

  [[nodiscard]] block_index fit(const request& wanted) override {
    return take(planned_.fit(wanted), wanted);
  }
  [[nodiscard]] result<block_index> fit_at(std::uint64_t address, const request& wanted) override;
  [[nodiscard]] bool prefers_growth(const request& wanted) const override;
  [[nodiscard]] result<block_index> rearrange(const request& wanted, reach whose,
                                              const context_scope& bound) override;
  [[nodiscard]] result<block_index> grow(const request& wanted,
                                         const context_scope& bound) override;
  void prepare_free(stream_slot stream) override { runs_.prepare_owner(stream); }
  void free(block_index index, stamp freed) noexcept override;
  void retire(stream_slot stream) noexcept override { runs_.retire(stream); }
  [[nodiscard]] result<bytes> release(bytes most, const context_scope& bound) override;
  [[nodiscard]] result<void> grant(const vmm::access& peer, const context_scope& bound) override;
  result<void> close(const context_scope& bound) override;
  [[nodiscard]] bool can_be_suspended() const noexcept override { return true; }
  [[nodiscard]] result<suspension> plan_suspend() const override;
  [[nodiscard]] result<suspension> plan_resume() override;
  void apply(const suspension& plan, bool suspended) noexcept override;
  [[nodiscard]] std::uint64_t suspended_bytes() const noexcept override;

  [[nodiscard]] std::uint64_t bound_to(stream_slot stream) const noexcept override;
  [[nodiscard]] std::uint64_t longest_fit(stream_slot stream) const noexcept override;
  [[nodiscard]] std::uint64_t fragments() const noexcept override;
  void describe(pool_snapshot& into) const override;
  [[nodiscard]] block_index block_over(std::uint64_t address) const noexcept override;
  [[nodiscard]] result<block_handles> handles_under(block_index index) const override;
  [[nodiscard]] std::size_t footprint() const noexcept override;
  [[nodiscard]] std::string check() const override;

 private:
  /// What the last walk over the arena found. A request that cannot be met by moving is met by
  /// growing next, and the walk would be the same.
  struct survey {
    std::uint64_t at = ~std::uint64_t{0};  // of runs_.changes(): it holds while nothing changes
    request wanted;
    reach whose = reach::usable;
    room_window best;
    std::vector<run_stretch> stretches;
  };
  arena(placement_context& shared, pool_id pool, growth_rules rules, address_range range,
        std::uint64_t slot_size, physical_properties properties);

  // arena.cpp: room in what is free as it lies
  [[nodiscard]] arena_figures figures() const noexcept {
    return {.reserved = reserved_, .handed_out = handed_out_, .peak_handed_out = peak_handed_out_};
  }
  [[nodiscard]] block_index take(const free_place& place, const request& wanted) noexcept;
  [[nodiscard]] block_index hand_out(block_index index, const request& wanted) noexcept;

  // arena_plan.cpp: where room could be made
  /// The size of new handles for the request.
  [[nodiscard]] std::uint64_t handle_for(const request& wanted) const noexcept {
    if (planned_.growth_for(wanted).one_slot_handles) return slots_.slot_size();
    return rules_.handle_for(wanted.units * unit, reserved_, slots_.slot_size(),
                             runs_.last_owner());
  }
  [[nodiscard]] bool worth_a_plan(const request& wanted, reach whose) const noexcept;
  void add_to(std::vector<run_stretch>& stretches, block_index run) const;
  [[nodiscard]] std::vector<run_stretch> usable_stretches(const request& wanted) const;
  [[nodiscard]] room_window best_window(const request& wanted, reach whose,
                                        std::vector<run_stretch>& stretches) const;
  [[nodiscard]] room_window window_at_end(const request& wanted, reach whose) const;
  [[nodiscard]] bool is_quiescent_up_to(block_index from, std::uint64_t end) const noexcept;
  [[nodiscard]] std::vector<free_handle> free_handles(
      const room_window& outside, const std::vector<run_stretch>& stretches) const;
  [[nodiscard]] std::vector<window_gap> gaps_of(const room_window& room) const;
  [[nodiscard]] std::vector<window_gap> plan_returns(room_plan& into, const window_gap& in,
                                                     std::vector<free_handle>& sources) const;
  void plan_move(room_plan& into, const window_gap& in, std::uint64_t at, free_handle& with,
                 bool returns) const;
  [[nodiscard]] std::vector<free_handle*> choose(const window_gap& in,
                                                 std::vector<free_handle>& sources) const;
  void plan_creation(room_plan& into, const window_gap& in, const request& wanted) const;
  [[nodiscard]] bool better_new(const window_gap& in, const std::vector<free_handle*>& chosen,
                                std::uint64_t planned, const request& wanted) const;
  [[nodiscard]] const survey& look_around(const request& wanted, reach whose);
  [[nodiscard]] room_plan make_plan(const request& wanted, reach whose, fill_with by);
  [[nodiscard]] room_plan fill(const room_window& room, const std::vector<run_stretch>& stretches,
                               const request& wanted, fill_with by) const;

  // arena_moves.cpp: making it
  void plan_round();
  [[nodiscard]] result<block_index> make_planned_room(const request& wanted,
                                                      const context_scope& bound);
  [[nodiscard]] result<block_index> grow_apart(const request& wanted, const context_scope& bound);
  [[nodiscard]] result<bool> lacks_memory_for(const request& wanted,
                                              const context_scope& bound) const;
  [[nodiscard]] result<block_index> carry_out(room_plan& room, const request& wanted,
                                              const context_scope& bound);
  [[nodiscard]] result<block_index> borrow(const request& wanted, const context_scope& bound);
  void prepare_records(room_plan& room, const request& wanted);
  [[nodiscard]] result<bool> wait_for_others(const room_plan& room, const request& wanted,
                                             const context_scope& bound);
  [[nodiscard]] result<void> create_handles(room_plan& room, const context_scope& bound);
  [[nodiscard]] result<void> clear_the_way(const room_plan& room, const context_scope& bound);
  [[nodiscard]] result<void> map_handles(const room_plan& room, const context_scope& bound);
  void undo_mapping(const gap_filling& undone, const context_scope& bound) noexcept;
  void undo_creation(gap_filling& undone, const context_scope& bound) noexcept;
  void append_hole(std::uint64_t high) noexcept;
  void block_off(std::uint64_t low, std::uint64_t high) noexcept;  // slots
  void unblock(const context_scope& bound) noexcept;
  [[nodiscard]] result<void> unmap_retained(std::uint32_t at_slot, const context_scope& bound);
  [[nodiscard]] bool may_be_released(const block& run) const noexcept;
  [[nodiscard]] result<bool> release_handle(handle_number number, block_index run,
                                            const context_scope& bound);

  // arena_suspend.cpp
  [[nodiscard]] std::vector<block_index> free_places() const;

  // arena_commit.cpp: entering it
  [[nodiscard]] block_index commit(room_plan& room, const request& wanted) noexcept;
  void find_relocations(room_plan& room, const request& wanted) const noexcept;
  [[nodiscard]] block_index append_fresh(const std::vector<relocation>& relocations) noexcept;
  [[nodiscard]] block_index apply_changes(room_plan& room, block_index first) noexcept;
  void update_slots(const std::vector<relocation>& relocations) noexcept;
  [[nodiscard]] block_index hand_out_window(block_index taken, const request& wanted) noexcept;
  void leave_hole(handle_number number, block_index hint, stamp used) noexcept;
  void fill_hole(const gap_filling& with, stamp ready) noexcept;
  void drop_trailing_holes() noexcept;

  growth_rules rules_;
  address_range range_;
  physical_properties properties_;
  arena_slots slots_;
  arena_runs runs_;
  std::uint64_t peak_handed_out_ = 0;  // since memory was last released
  survey seen_;
  usual_places usual_;
  careful_places careful_;  // on top of that
  planned_places planned_;  // and on top of both
};

}}}  // namespace weir::v0::placement
