// Which store a policy stands for.
#include "placement/backing_store.hpp"

#include "placement/arena.hpp"
#include "placement/guarded_store.hpp"
#include "placement/torch_segments.hpp"

namespace weir::inline v0::placement {

result<std::unique_ptr<backing_store>> make_backing_store(placement_context& shared, pool_id pool,
                                                          const store_traits& traits,
                                                          const context_scope& bound) {
  if (traits.checks != debug_checks::off) {
    return guarded_store::create(shared, pool,
                                 {.shares_memory = traits.checks == debug_checks::red_zones,
                                  .exportable = traits.exportable,
                                  .quarantine = traits.quarantine.count()},
                                 bound);
  }
  if (traits.segments) {
    const auto& can = shared.device.capabilities();
    const bool mapped = traits.source == nullptr && can.virtual_memory &&
                        torch_segments::segment_step % can.granularity.count() == 0;
    return make_torch_segments(shared, pool,
                               {.splits = traits.splits,
                                .mapped = mapped,
                                .exportable = mapped && traits.exportable,
                                .source = traits.source},
                               bound);
  }
  // Segments never move, but only an arena gives room at an address.
  const bool takes_addresses =
      traits.takes_addresses && shared.device.capabilities().virtual_memory;
  if (is_classic(traits.policy) && !traits.exportable && !traits.suspendable && !takes_addresses) {
    return make_torch_segments(
        shared, pool, {.expandable = traits.policy == placement_policy::classic_expandable}, bound);
  }
  growth_rules rules = growth_rules::of(traits.policy);
  rules.moves = rules.moves && traits.moves;
  rules.resumes_free = traits.of_graphs;
  if (traits.suspendable) rules = rules.for_suspension();
  if (traits.one_slot_handles) {
    rules.largest_handle = 0;
    rules.unit_share = 0;
  }
  return arena::create(shared, pool, rules, bound, {.posix_descriptor = traits.exportable});
}

}  // namespace weir::inline v0::placement
