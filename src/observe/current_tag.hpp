// SPDX-License-Identifier: Apache-2.0
// The calling thread's tag, for code that cannot afford a call to read it.
#pragma once

#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace observe {

// Initial-exec: one load from a register's offset, also inside the shared library.
extern constinit thread_local tag thread_tag __attribute__((tls_model("initial-exec")));

}}}  // namespace weir::v0::observe
