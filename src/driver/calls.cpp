// SPDX-License-Identifier: Apache-2.0
// What the table of driver calls says about its own rows.
#include <array>

#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace driver {
namespace {

constexpr bool required = true;
constexpr bool optional = false;

constexpr std::array<call_info, call_count> rows{{
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  {#member, #symbol, version, #exported, need},
#include "weir/driver/calls.def"
}};

}  // namespace

const call_info& info(call row) noexcept { return rows[static_cast<std::size_t>(row)]; }

}}}  // namespace weir::v0::driver
