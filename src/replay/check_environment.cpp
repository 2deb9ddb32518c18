// SPDX-License-Identifier: Apache-2.0
// The command's way to the check of the environment.
#include "replay/check_environment.hpp"

#include "base/environment.hpp"

namespace weir { inline namespace v0 { namespace replay {

void check_environment() noexcept { detail::check_environment(); }

}}}  // namespace weir::v0::replay
