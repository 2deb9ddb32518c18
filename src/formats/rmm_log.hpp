// SPDX-License-Identifier: Apache-2.0
// RMM's CSV logs: `Thread,Time,Action,Pointer,Size,Stream`.
#pragma once

#include <string_view>

#include "formats/input.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace formats {

[[nodiscard]] bool is_rmm_log(std::string_view text) noexcept;

/// Reads what RMM's logging_resource_adaptor wrote. Streams are hexadecimal with or without 0x,
/// times of day count from the first line on and may pass midnight, `allocate failure` becomes
/// out_of_memory. A free of a block that the log never allocated is left out, and a block whose
/// address is allocated again was freed. invalid_argument with `name` and line: a line that is no
/// event.
[[nodiscard]] result<recording> read_rmm_log(std::string_view text, std::string_view name,
                                             const input_limits& limits = {});

}}}  // namespace weir::v0::formats
