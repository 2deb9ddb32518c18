// Which store a policy stands for.
#include "heap/store.hpp"

#include "heap/arena.hpp"
#include "heap/classic.hpp"

namespace weir::inline v0::heap {

result<std::unique_ptr<store>> make_store(core& shared, pool_id pool, const store_traits& traits,
                                          const context_scope& bound) {
  // Segments do not move, either; but an arena grows in any capture, and gives room at an address.
  const bool stays = !traits.moves && shared.device.capabilities().virtual_memory;
  if (is_classic(traits.policy) && !traits.exportable && !stays) {
    return make_classic_store(shared, pool, traits.policy == placement_policy::classic_expandable,
                              bound);
  }
  growth_rules rules = growth_rules::of(traits.policy);
  rules.moves = rules.moves && traits.moves;
  if (traits.one_slot_handles) {
    rules.largest_handle = 0;
    rules.unit_share = 0;
  }
  return arena::create(shared, pool, rules, bound, {.posix_descriptor = traits.exportable});
}

}  // namespace weir::inline v0::heap
