// SPDX-License-Identifier: Apache-2.0
// The driver's results in weir's vocabulary.
#include <utility>

#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace driver {

// Neither switch has a default: a result that weir/driver/types.hpp declares and results.def
// forgets is a warning, and warnings are errors.
errc to_errc(CUresult native) noexcept {
  switch (native) {
#define WEIR_DRIVER_RESULT(result, code) \
  case result:                           \
    return errc::code;
#include "driver/results.def"
  }
  return errc::driver_error;  // of a driver newer than this file
}

std::string_view result_name(CUresult native) noexcept {
  switch (native) {
#define WEIR_DRIVER_RESULT(result, code) \
  case result:                           \
    return #result;
#include "driver/results.def"
  }
  return "CUDA_ERROR_UNKNOWN";
}

error make_error(call source, CUresult native, bytes requested, std::string detail) {
  return {{.code = to_errc(native),
           .native = static_cast<int>(native),
           .call = info(source).symbol,
           .requested = requested,
           .detail = std::move(detail)}};
}

}}}  // namespace weir::v0::driver
