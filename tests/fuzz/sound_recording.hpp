// SPDX-License-Identifier: Apache-2.0
// What every recording promises that came out of a reader, whatever went in.
#pragma once

#include "weir/trace/trace.hpp"

namespace weir::fuzz {

/// Its events keep a recording's rules and refer to nothing outside its tables: it can be written
/// as a .weirtrace, and reads back equal.
void require_sound(const recording& read);

/// It can be exported to everything weir exports to. What weir reads itself says the same again
/// about its blocks.
void require_exportable(const recording& read);

}  // namespace weir::fuzz
