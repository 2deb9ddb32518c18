// Live pages of processes that ended without removing them.
#pragma once

namespace weir { inline namespace v0 { namespace trace { namespace live {

/// Removes those of this user that were written by processes whose numbers mean the same here, and
/// of which none runs. Pages of other containers that share the folder stay: who runs there is not
/// known. Costs a look at every page; any thread.
void remove_leftovers() noexcept;

}}}}  // namespace weir::v0::trace::live
