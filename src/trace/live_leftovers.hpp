// SPDX-License-Identifier: Apache-2.0
// Live pages of processes that ended without removing them.
#pragma once

#include <string>

namespace weir { inline namespace v0 { namespace trace { namespace live {

/// Removes those of this user that were written by processes whose numbers mean the same here, and
/// of which none runs. Pages of other containers that share the folder stay: who runs there is not
/// known. Costs a look at every page; any thread.
void remove_leftovers() noexcept;
/// The same of the page with that name, where this process would write its own: what stands there
/// is not this process's. A page of another container, whose process may have the same number, and
/// what is no page of this version stay.
void remove_leftover(const std::string& path) noexcept;

}}}}  // namespace weir::v0::trace::live
