// Which store a policy stands for.
#include "heap/store.hpp"

#include "heap/arena.hpp"
#include "heap/classic.hpp"

namespace weir::inline v0::heap {

result<std::unique_ptr<store>> make_store(core& shared, pool_id pool, placement_policy policy,
                                          bool exportable, const context_scope& bound) {
  if (exportable) return arena::create_exportable(shared, pool, bound);
  switch (policy) {
    case placement_policy::classic:
      return make_classic_store(shared, pool, /*expandable=*/false, bound);
    case placement_policy::classic_expandable:
      return make_classic_store(shared, pool, /*expandable=*/true, bound);
    case placement_policy::balanced:
    case placement_policy::throughput:
    case placement_policy::compact:
    case placement_policy::never_move:
      break;
  }
  return arena::create(shared, pool, growth_rules::of(policy), bound);
}

}  // namespace weir::inline v0::heap
