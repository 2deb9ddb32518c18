// SPDX-License-Identifier: Apache-2.0
// Names and messages of errors, the exceptions, and the handler for failures nobody can return.
#include "weir/base/error.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "base/environment.hpp"
#include "base/error_output.hpp"

namespace weir { inline namespace v0 {

std::string_view name(errc code) noexcept {
  switch (code) {
#define WEIR_ERRC(name, value, meaning) \
  case errc::name:                      \
    return #name;
#include "weir/base/errc.def"
#undef WEIR_ERRC
  }
  return "unknown";
}

std::string_view meaning(errc code) noexcept {
  switch (code) {
#define WEIR_ERRC(name, value, meaning) \
  case errc::name:                      \
    return meaning;
#include "weir/base/errc.def"
#undef WEIR_ERRC
  }
  return "an error code that this version of weir does not define";
}

std::string to_string(errc code) { return std::string{name(code)}; }

namespace {

/// What an error of a code alone has besides. Never destroyed: errors are made at the end of the
/// process, too. Needs no memory of the host.
const error_fields& no_fields() noexcept {
  alignas(error_fields) static std::byte storage[sizeof(error_fields)];
  static const error_fields* const made = new (storage) error_fields{};
  return *made;
}

}  // namespace

error::error(error_fields fields) noexcept : code_{std::exchange(fields.code, errc::internal)} {
  if (fields == no_fields()) return;
  try {
    more_ = std::make_shared<const error_fields>(std::move(fields));
  } catch (const std::bad_alloc&) {  // then without the rest
  }
}

const error_fields& error::fields() const noexcept {
  return more_ == nullptr ? no_fields() : *more_;
}

void error::set_code(errc code) noexcept { code_ = code; }

void error::set_requested(bytes requested) noexcept {
  try {
    auto changed = std::make_shared<error_fields>(fields());
    changed->requested = requested;
    more_ = std::move(changed);
  } catch (const std::bad_alloc&) {  // then as it was
  }
}

void error::set_detail(std::string detail) noexcept {
  try {
    auto changed = std::make_shared<error_fields>(fields());
    changed->detail = std::move(detail);
    more_ = std::move(changed);
  } catch (const std::bad_alloc&) {  // then as it was
  }
}

std::string error::message() const {
  std::string facts{call()};
  if (native() != 0) {
    facts += call().empty() ? "native code " : " = ";
    facts += std::to_string(native());
  }
  if (requested() != bytes{}) {
    if (!facts.empty()) facts += ", ";
    facts += to_string(requested());
  }

  std::string text{name(code())};
  text += ": ";
  text += meaning(code());
  if (!facts.empty()) text += " (" + facts + ")";
  if (!detail().empty()) text += ": " + detail();
  return text;
}

std::string to_string(const error& reason) { return reason.message(); }

failure::failure(error reason) : std::runtime_error{reason.message()}, reason_{std::move(reason)} {}
failure::~failure() = default;

out_of_memory::out_of_memory(error reason, std::string report)
    : reason_{std::move(reason)}, report_{std::move(report)}, message_{reason_.message()} {}
out_of_memory::~out_of_memory() = default;

const char* out_of_memory::what() const noexcept { return message_.c_str(); }

void raise(error reason) {
  if (reason.code() == errc::out_of_memory) throw out_of_memory{std::move(reason)};
  throw failure{std::move(reason)};
}

void raise(errc code) { raise(error{code}); }

namespace {

// Handler and context belong together, and report_error() runs where nothing may be locked or
// waited for: in destructors, at exit, in a forked child. So there are two slots, and `turn` counts
// how often the handler was set; its last bit says which slot is in force. A writer fills the other
// slot and then moves `turn` on. A reader that finds `turn` unchanged afterwards has read a pair,
// because its slot can be overwritten only once `turn` has moved.
struct handler_slot {
  std::atomic<error_handler> handler{nullptr};
  std::atomic<void*> context{nullptr};
};
constinit handler_slot slots[2];
constinit std::atomic<std::uint64_t> turn{0};
constinit std::atomic<std::uint64_t> reported{0};
constinit std::mutex writers;

/// Handlers that were given as functions, the latest first; kept for good.
struct kept_function {
  std::function<void(const error&)> call;
  kept_function* before;
};
constinit kept_function* functions = nullptr;  // guarded by `writers`

void call_function(const error& reason, void* context) noexcept {
  try {
    static_cast<kept_function*>(context)->call(reason);
  } catch (...) {  // nobody is there to catch it
  }
}

void report(const error& reason, detail::error_output::subject subject) noexcept {
  reported.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    const std::uint64_t seen = turn.load();
    const error_handler handler = slots[seen & 1].handler.load();
    void* const context = slots[seen & 1].context.load();
    if (turn.load() != seen) continue;
    if (handler != nullptr) handler(reason, context);
    if (detail::standard_error.is_wanted(subject, handler != nullptr))
      detail::standard_error.write(reason);
    return;
  }
}

}  // namespace

void set_error_handler(error_handler handler, void* context) noexcept {
  const std::lock_guard one_at_a_time{writers};
  const std::uint64_t next = turn.load() + 1;
  slots[next & 1].handler.store(handler);
  slots[next & 1].context.store(context);
  turn.store(next);
}

void set_error_handler(std::function<void(const error&)> handler) {
  if (!handler) return set_error_handler(nullptr, nullptr);
  auto kept = std::make_unique<kept_function>(kept_function{std::move(handler), nullptr});
  {
    const std::lock_guard lock{writers};
    kept->before = functions;
    functions = kept.get();
  }
  set_error_handler(call_function, kept.release());
}

void report_error(const error& reason) noexcept {
  report(reason, detail::error_output::subject::failure);
}

void detail::report_mistake(const error& reason) noexcept {
  report(reason, error_output::subject::mistake);
}

void detail::mark_debug_program() noexcept { standard_error.mark_debug_program(); }

void set_error_printing(error_printing when) noexcept { detail::standard_error.choose(when); }

std::uint64_t reported_errors() noexcept { return reported.load(std::memory_order_relaxed); }

}}  // namespace weir::v0
