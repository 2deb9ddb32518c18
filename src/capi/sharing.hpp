// SPDX-License-Identifier: Apache-2.0
// Memory of another process: received over a link, or mapped from descriptors.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "capi/objects.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/share/session.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// Physical handles of another process, mapped one behind the other. They are unmapped before the
/// addresses go.
struct mapped_pieces {
  weir::device device;
  address_range range;
  std::vector<mapping> mappings;
  bytes offset{};
  bytes size{};
  access_rights rights{};
};

struct imported_object {
  std::variant<imported_memory, mapped_pieces> memory;
};

[[nodiscard]] inline result<access_rights> rights_from(std::int32_t number) {
  static_assert(static_cast<int>(access_rights::read) == weir_read &&
                static_cast<int>(access_rights::read_write) == weir_read_write);
  if (number != weir_read && number != weir_read_write)
    return error{{.code = errc::invalid_argument, .detail = "access: unknown value"}};
  return static_cast<access_rights>(number);
}

}}}  // namespace weir::v0::capi
