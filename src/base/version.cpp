// SPDX-License-Identifier: Apache-2.0
// The version that was compiled into the library.
#include "weir/base/version.hpp"

#define WEIR_TEXT_OF(number) #number
#define WEIR_TEXT(number) WEIR_TEXT_OF(number)

namespace weir { inline namespace v0 {

int version() noexcept { return WEIR_VERSION; }

std::string_view version_text() noexcept {
  return WEIR_TEXT(WEIR_VERSION_MAJOR) "." WEIR_TEXT(WEIR_VERSION_MINOR) "." WEIR_TEXT(
      WEIR_VERSION_PATCH);
}

}}  // namespace weir::v0
