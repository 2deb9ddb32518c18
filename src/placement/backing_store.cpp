// SPDX-License-Identifier: Apache-2.0
// Which store a policy stands for.
#include "placement/backing_store.hpp"

#include "device/rdma_probe.hpp"
#include "placement/arena.hpp"
#include "placement/guarded_store.hpp"
#include "placement/torch_segments.hpp"

namespace weir { inline namespace v0 { namespace placement {

store_kind kind_of_store(const store_traits& traits, weir::device device) noexcept {
  if (traits.checks != debug_checks::off) return store_kind::guarded;
  if (traits.segments) return store_kind::segments;
  // Segments never move, but only an arena gives room at an address.
  const bool takes_addresses = traits.takes_addresses && device.capabilities().virtual_memory;
  const bool needs_arena = traits.exportable || traits.suspendable || takes_addresses;
  return is_classic(traits.policy) && !needs_arena ? store_kind::segments : store_kind::arena;
}

namespace {

/// What physical handles of a store are made with. All stores of an allocator have the same answer
/// for network cards: handles of one store are interchangeable.
physical_properties properties_of(const placement_context& shared, const store_traits& traits,
                                  const context_scope& bound) {
  const bool rdma = shared.rdma == rdma_use::on ||
                    (shared.rdma == rdma_use::automatic && detail::maps_with_rdma(bound));
  return {.posix_descriptor = traits.exportable, .rdma = rdma};
}

segment_rules segment_rules_of(const store_traits& traits, const placement_context& shared,
                               const context_scope& bound) {
  if (!traits.segments) {
    if (traits.policy != placement_policy::classic_expandable) return {};  // plain memory
    return {.expandable = true, .properties = {.rdma = properties_of(shared, {}, bound).rdma}};
  }
  const auto& can = shared.device.capabilities();
  // The classic policy is for programs that give addresses to cuIpcGetMemHandle() and to others who
  // know plain memory only.
  const bool mapped = traits.policy != placement_policy::classic && traits.source == nullptr &&
                      can.virtual_memory &&
                      torch_segments::segment_step % can.granularity.count() == 0;
  return {.splits = traits.splits,
          .mapped = mapped,
          .properties = mapped ? properties_of(shared, traits, bound) : physical_properties{},
          .source = traits.source};
}

growth_rules growth_rules_of(const store_traits& traits) {
  growth_rules rules = growth_rules::of(traits.policy);
  rules.moves = rules.moves && traits.moves;
  rules.resumes_free = traits.of_graphs;
  if (traits.suspendable) rules = rules.for_suspension();
  if (traits.one_slot_handles) {
    rules.largest_handle = 0;
    rules.unit_share = 0;
  }
  return rules;
}

}  // namespace

result<std::unique_ptr<backing_store>> make_backing_store(placement_context& shared, pool_id pool,
                                                          const store_traits& traits,
                                                          const context_scope& bound) {
  switch (kind_of_store(traits, shared.device)) {
    case store_kind::guarded:
      return guarded_store::create(shared, pool,
                                   {.shares_memory = traits.checks == debug_checks::red_zones,
                                    .properties = properties_of(shared, traits, bound),
                                    .quarantine = traits.quarantine.count()},
                                   bound);
    case store_kind::segments:
      return make_torch_segments(shared, pool, segment_rules_of(traits, shared, bound), bound);
    case store_kind::arena:
      break;
  }
  return arena::create(shared, pool, growth_rules_of(traits), bound,
                       properties_of(shared, traits, bound));
}

}}}  // namespace weir::v0::placement
