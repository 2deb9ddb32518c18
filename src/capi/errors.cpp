// The C ABI's version and errors.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <string_view>

#include "capi/guard.hpp"
#include "capi/thread_room.hpp"
#include "weir.h"
#include "weir/base/error.hpp"
#include "weir/base/version.hpp"

namespace weir::inline v0::capi {
namespace {

constinit thread_local std::int32_t last_native = 0;

void write_message(std::string_view code, const char* detail) noexcept {
  if (thread_room* const room = own_room(); room != nullptr)
    std::snprintf(room->message.data(), room->message.size(), "%.*s: %s",
                  static_cast<int>(code.size()), code.data(), detail);
}

struct c_handler {
  weir_error_handler handler;
  void* context;
  c_handler* next;
};

// Kept for good, each once: a report that had begun may still use one that was replaced. Null where
// the host has no memory.
c_handler* kept_handler(weir_error_handler handler, void* context) noexcept {
  static constinit std::mutex mutex;
  static constinit c_handler* all = nullptr;
  const std::lock_guard lock{mutex};
  for (c_handler* each = all; each != nullptr; each = each->next)
    if (each->handler == handler && each->context == context) return each;
  auto* const made = new (std::nothrow) c_handler{handler, context, all};
  if (made != nullptr) all = made;
  return made;
}

void pass_on(const error& found, void* to) noexcept {
  const auto& told = *static_cast<const c_handler*>(to);
  const auto code = static_cast<weir_error>(found.code);
  try {
    told.handler(told.context, code, found.message().c_str());
  } catch (const std::bad_alloc&) {
    told.handler(told.context, code, "no host memory for the message");
  }
}

}  // namespace

weir_error remember(const error& found) noexcept {
  try {
    const std::string message = found.message();
    if (thread_room* const room = own_room(); room != nullptr) {
      const std::size_t length = std::min(message.size(), room->message.size() - 1);
      std::memcpy(room->message.data(), message.data(), length);
      room->message[length] = '\0';
    }
  } catch (const std::bad_alloc&) {
    write_message(name(found.code), "no host memory for the message");
  }
  last_native = found.native;
  return static_cast<weir_error>(found.code);
}

weir_error remember(errc code, const char* detail) noexcept {
  write_message(name(code), detail);
  last_native = 0;
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

const char* weir_last_error_message(void) {
  const auto* const room = weir::capi::own_room_if_any();
  return room != nullptr ? room->message.data() : "";
}

int32_t weir_last_error_native(void) { return weir::capi::last_native; }

uint64_t weir_reported_errors(void) { return weir::reported_errors(); }

void weir_set_error_handler(weir_error_handler handler, void* context) {
  using namespace weir::capi;
  if (handler == nullptr) {
    weir::set_error_handler(nullptr);
    return;
  }
  if (c_handler* const told = kept_handler(handler, context))
    weir::set_error_handler(pass_on, told);
}
}
