// SPDX-License-Identifier: Apache-2.0
// What the adaptors share: the checks of their upstream.
#pragma once

#include "device/state.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 { namespace resources {

/// invalid_argument: an adaptor over nothing.
[[nodiscard]] inline result<void> check_upstream(const any_resource& upstream) {
  if (upstream) return {};
  return error{
      {.code = errc::invalid_argument, .detail = "the adaptor was created with an empty resource"}};
}

/// Whether this is a forked child, where a thread that is not there may hold an adaptor's lock. To
/// be asked before a lock is taken.
[[nodiscard]] inline bool is_forked(const any_resource& upstream) {
  return detail::device_state::of(upstream.device()).forked();
}

/// Whether more memory, freed by somebody or of another resource, could meet the request.
[[nodiscard]] constexpr bool is_shortage(errc code) noexcept { return code == errc::out_of_memory; }

}}}  // namespace weir::v0::resources
