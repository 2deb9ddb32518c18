// SPDX-License-Identifier: Apache-2.0
// The depth of an allocator's own work on this thread.
#include "observe/own_work.hpp"

namespace weir { inline namespace v0 { namespace observe {

constinit thread_local std::uint8_t own_work_depth = 0;

}}}  // namespace weir::v0::observe
