// What the adaptors share: the check of their upstream.
#pragma once

#include "weir/resource/resource.hpp"

namespace weir::inline v0::resources {

/// invalid_argument: an adaptor over nothing.
[[nodiscard]] inline result<void> check_upstream(const any_resource& upstream) {
  if (upstream) return {};
  return error{.code = errc::invalid_argument, .detail = "there is no resource under the adaptor"};
}

/// Whether more memory, freed by somebody or of another resource, could meet the request.
[[nodiscard]] constexpr bool is_shortage(errc code) noexcept {
  return code == errc::out_of_memory || code == errc::limit_exceeded;
}

}  // namespace weir::inline v0::resources
