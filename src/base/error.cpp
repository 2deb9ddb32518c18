// Names and messages of errors, the exceptions, and the handler for failures nobody can return.
#include "weir/base/error.hpp"

#include <atomic>
#include <mutex>
#include <utility>

namespace weir::inline v0 {

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
  return "a failure that this version of weir does not know";
}

std::string to_string(errc code) { return std::string{name(code)}; }

std::string error::message() const {
  std::string facts{call};
  if (native != 0) {
    facts += call.empty() ? "native code " : " = ";
    facts += std::to_string(native);
  }
  if (requested != bytes{}) {
    if (!facts.empty()) facts += ", ";
    facts += to_string(requested);
  }

  std::string text{name(code)};
  text += ": ";
  text += meaning(code);
  if (!facts.empty()) text += " (" + facts + ")";
  if (!detail.empty()) text += ": " + detail;
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
  if (reason.code == errc::out_of_memory) throw out_of_memory{std::move(reason)};
  throw failure{std::move(reason)};
}

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

}  // namespace

void set_error_handler(error_handler handler, void* context) noexcept {
  const std::lock_guard one_at_a_time{writers};
  const std::uint64_t next = turn.load() + 1;
  slots[next & 1].handler.store(handler);
  slots[next & 1].context.store(context);
  turn.store(next);
}

void report_error(const error& reason) noexcept {
  reported.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    const std::uint64_t seen = turn.load();
    const error_handler handler = slots[seen & 1].handler.load();
    void* const context = slots[seen & 1].context.load();
    if (turn.load() != seen) continue;
    if (handler != nullptr) handler(reason, context);
    return;
  }
}

std::uint64_t reported_errors() noexcept { return reported.load(std::memory_order_relaxed); }

}  // namespace weir::inline v0
