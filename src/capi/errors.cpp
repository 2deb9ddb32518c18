// The C ABI's version and errors.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "capi/guard.hpp"
#include "weir.h"
#include "weir/error.hpp"
#include "weir/version.hpp"

namespace weir::inline v0::capi {
namespace {

// Plain storage without a destructor: a thread's last calls may come while it is being taken down.
struct last_error {
  char message[1024] = "";
  std::int32_t native = 0;
};
constinit thread_local last_error last;

}  // namespace

weir_error remember(const error& found) noexcept {
  try {
    const std::string message = found.message();
    const std::size_t length = std::min(message.size(), sizeof(last.message) - 1);
    std::memcpy(last.message, message.data(), length);
    last.message[length] = '\0';
  } catch (const std::bad_alloc&) {
    remember(found.code, "no host memory for the message");
  }
  last.native = found.native;
  return static_cast<weir_error>(found.code);
}

weir_error remember(errc code, const char* detail) noexcept {
  const std::string_view code_name = name(code);
  std::snprintf(last.message, sizeof(last.message), "%.*s: %s", static_cast<int>(code_name.size()),
                code_name.data(), detail);
  last.native = 0;
  return static_cast<weir_error>(code);
}

}  // namespace weir::inline v0::capi

using weir::errc;

extern "C" {

int32_t weir_version(void) { return weir::version(); }

// The texts below come from string literals, so they end with a null character.
const char* weir_version_text(void) { return weir::version_text().data(); }

const char* weir_error_name(weir_error code) {
  return code == weir_ok ? "ok" : weir::name(static_cast<errc>(code)).data();
}

const char* weir_error_meaning(weir_error code) {
  return code == weir_ok ? "nothing went wrong" : weir::meaning(static_cast<errc>(code)).data();
}

const char* weir_last_error_message(void) { return weir::capi::last.message; }

int32_t weir_last_error_native(void) { return weir::capi::last.native; }

uint64_t weir_reported_errors(void) { return weir::reported_errors(); }
}
