// SPDX-License-Identifier: Apache-2.0
// The C ABI's version and errors.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "capi/guard.hpp"
#include "capi/thread_locals.hpp"
#include "weir.h"
#include "weir/base/error.hpp"
#include "weir/base/version.hpp"

namespace weir { inline namespace v0 { namespace capi {
namespace {

constinit thread_local std::int32_t last_native = 0;

void write_message(std::string_view code, const char* detail) noexcept {
  if (thread_locals* const locals = own_thread_locals(); locals != nullptr)
    std::snprintf(locals->message.data(), locals->message.size(), "%.*s: %s",
                  static_cast<int>(code.size()), code.data(), detail);
}

struct c_handler {
  weir_error_handler handler;
  void* context;
  c_handler* next;
};

// Kept for good, each once: a report that had begun may still use one that was replaced. Null where
// the host has no memory. No lock, which a forked child might find locked for ever; two threads
// that set a new handler at once may keep it twice.
c_handler* kept_handler(weir_error_handler handler, void* context) noexcept {
  static constinit std::atomic<c_handler*> all{nullptr};
  c_handler* const newest = all.load(std::memory_order_acquire);
  for (c_handler* each = newest; each != nullptr; each = each->next)
    if (each->handler == handler && each->context == context) return each;
  auto* const kept = new (std::nothrow) c_handler{handler, context, newest};
  while (kept != nullptr &&
         !all.compare_exchange_weak(kept->next, kept, std::memory_order_release)) {
  }
  return kept;
}

void forward_report(const error& failed, void* registered) noexcept {
  const auto& receiver = *static_cast<const c_handler*>(registered);
  const auto code = static_cast<weir_error>(failed.code());
  try {
    receiver.handler(receiver.context, code, failed.message().c_str());
  } catch (const std::bad_alloc&) {
    receiver.handler(receiver.context, code, "out of host memory for the message");
  }
}

}  // namespace

weir_error remember(const error& failed) noexcept {
  try {
    const std::string message = failed.message();
    if (thread_locals* const locals = own_thread_locals(); locals != nullptr) {
      const std::size_t length = std::min(message.size(), locals->message.size() - 1);
      std::memcpy(locals->message.data(), message.data(), length);
      locals->message[length] = '\0';
    }
  } catch (const std::bad_alloc&) {
    write_message(name(failed.code()), "out of host memory for the message");
  }
  last_native = failed.native();
  return static_cast<weir_error>(failed.code());
}

weir_error remember(errc code, const char* detail) noexcept {
  write_message(name(code), detail);
  last_native = 0;
  return static_cast<weir_error>(code);
}

}}}  // namespace weir::v0::capi

using weir::errc;

extern "C" {

int32_t weir_version(void) { return weir::version(); }

// The texts below come from string literals, so they end with a null character.
const char* weir_version_text(void) { return weir::version_text().data(); }

const char* weir_error_name(weir_error code) {
  return code == weir_ok ? "ok" : weir::name(static_cast<errc>(code)).data();
}

const char* weir_error_meaning(weir_error code) {
  return code == weir_ok ? "no error" : weir::meaning(static_cast<errc>(code)).data();
}

const char* weir_last_error_message(void) {
  const auto* const locals = weir::capi::existing_thread_locals();
  return locals != nullptr ? locals->message.data() : "";
}

int32_t weir_last_error_native(void) { return weir::capi::last_native; }

uint64_t weir_reported_errors(void) { return weir::reported_errors(); }

void weir_mark_debug_program(void) { weir::detail::mark_debug_program(); }

void weir_set_error_handler(weir_error_handler handler, void* context) {
  using namespace weir::capi;
  if (handler == nullptr) {
    weir::set_error_handler(nullptr);
    return;
  }
  if (c_handler* const kept = kept_handler(handler, context))
    weir::set_error_handler(forward_report, kept);
}
}
