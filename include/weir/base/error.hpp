// SPDX-License-Identifier: Apache-2.0
// What can go wrong, in one vocabulary: codes, the error that carries one, and the exceptions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// Every failure weir can report. Values are part of the C ABI and never change meaning.
enum class errc : std::int32_t {
/// One row of errc.def as an enumerator.
#define WEIR_ERRC(name, value, meaning) name = value,
#include "weir/base/errc.def"
#undef WEIR_ERRC
};

/// The identifier, e.g. "driver_unavailable"; "unknown" for a number outside the list.
[[nodiscard]] WEIR_API std::string_view name(errc code) noexcept;
/// One line in plain words.
[[nodiscard]] WEIR_API std::string_view meaning(errc code) noexcept;
/// The same as name().
[[nodiscard]] WEIR_API std::string to_string(errc code);

/// What an error is made of: `error{{.code = errc::bad_stream, .detail = "…"}}`.
struct error_fields {
  /// What kind of failure it is.
  errc code = errc::internal;
  /// The driver's own result, 0 where no driver call was involved.
  int native = 0;
  /// The driver call, e.g. "cuMemCreate"; static storage, empty where none was involved.
  std::string_view call{};
  /// The requested bytes, if the failure is about a size.
  bytes requested{};
  /// What the code does not say: the missing symbol, the file, the refused value.
  std::string detail{};

  friend bool operator==(const error_fields&, const error_fields&) = default;
};

/// One failure: its code, the driver call and its native result, the size, and a detail text.
///
/// A value; copies share everything except the code. An error with a code alone needs no host
/// memory. If the host is out of memory for the rest, only the code is kept. Its members are not
/// part of the ABI.
class WEIR_API error {
 public:
  /// errc::internal.
  error() noexcept = default;
  /// An error with this code and nothing else; allocates nothing.
  explicit error(errc code) noexcept : code_{code} {}
  /// An error with these fields; keeps the code alone if the host is out of memory.
  error(error_fields fields) noexcept;

  /// What kind of failure it is.
  [[nodiscard]] errc code() const noexcept { return code_; }
  /// The driver's own result; 0 if no driver call was involved.
  [[nodiscard]] int native() const noexcept { return fields().native; }
  /// The driver call that failed, e.g. "cuMemCreate"; empty if none was involved.
  [[nodiscard]] std::string_view call() const noexcept { return fields().call; }
  /// The requested size; 0 if the failure is not about a size.
  [[nodiscard]] bytes requested() const noexcept { return fields().requested; }
  /// What the code does not say; may be empty.
  [[nodiscard]] const std::string& detail() const noexcept { return fields().detail; }
  /// "out_of_memory: not enough memory for the request (cuMemCreate = 2, 64 MiB): detail".
  [[nodiscard]] std::string message() const;

  /// Change one field; if the host is out of memory, the error stays as it was.
  void set_code(errc code) noexcept;
  void set_requested(bytes requested) noexcept;
  void set_detail(std::string detail) noexcept;

  friend bool operator==(const error& a, const error& b) noexcept {
    return a.code_ == b.code_ && a.fields() == b.fields();
  }

 private:
  [[nodiscard]] const error_fields& fields() const noexcept;

  errc code_ = errc::internal;
  std::shared_ptr<const error_fields> more_;  // null: the code is all; its own code is `internal`
};

/// The same as reason.message().
[[nodiscard]] WEIR_API std::string to_string(const error& reason);

/// Thrown by allocate(), by result::value(), and by accessors of an object that is
/// default-constructed, moved from or closed (moved_from, closed). The message is error::message().
class WEIR_API failure : public std::runtime_error {
 public:
  /// An exception that carries `reason`.
  explicit failure(error reason);
  ~failure() override;
  /// The error that it was thrown for.
  [[nodiscard]] const error& reason() const noexcept { return reason_; }
  /// The code of that error.
  [[nodiscard]] errc code() const noexcept { return reason_.code(); }

 private:
  error reason_;
};

/// A request could not be met. Derives from std::bad_alloc so that existing handlers catch it;
/// carries the error and a report, in plain text, of what holds the memory.
class WEIR_API out_of_memory : public std::bad_alloc {
 public:
  /// An exception that carries `reason` and the allocator's report.
  explicit out_of_memory(error reason, std::string report = {});
  ~out_of_memory() override;
  /// The message of the error: error::message().
  [[nodiscard]] const char* what() const noexcept override;
  /// The error that it was thrown for.
  [[nodiscard]] const error& reason() const noexcept { return reason_; }
  /// What holds the memory, in plain text; empty if the thrower made no report.
  [[nodiscard]] const std::string& report() const noexcept { return report_; }

 private:
  error reason_;
  std::string report_;
  std::string message_;
};

/// Throws out_of_memory for errc::out_of_memory, failure for everything else.
[[noreturn]] WEIR_API void raise(error reason);
/// raise() of an error without details: a precondition of an accessor was violated.
[[noreturn]] WEIR_API void raise(errc code);

/// Receives failures that cannot be returned or thrown: those of destructors and deallocation.
///
/// Called on the thread that found the failure, possibly with weir's locks held: it must not throw
/// and must not call weir. set_error_printing() controls when they are also written to standard
/// error.
using error_handler = void (*)(const error& reason, void* context) noexcept;

/// Replaces the process-wide handler; null removes it. Thread-safe. A call of the old handler that
/// began on another thread may still be running when this returns: keep its context alive.
WEIR_API void set_error_handler(error_handler handler, void* context = nullptr) noexcept;

/// The same for any callable that takes a `const error&`, such as a lambda with captures. It is
/// kept until the process ends, because a call of it may be running. Exceptions that it throws are
/// dropped. An empty function removes the handler. Throws std::bad_alloc.
WEIR_API void set_error_handler(std::function<void(const error&)> handler);

/// When failures are written to standard error: "auto", "on" or "off" in text.
enum class error_printing : std::uint8_t {
  /// As WEIR_PRINT_ERRORS in the environment says. If it is not set: if no handler is set and a
  /// source file that includes weir/device/runtime.hpp or weir.h was compiled without NDEBUG.
  automatic,
  on,   ///< also if there is a handler
  off,  ///< never
};

/// Chooses it for the process, before the environment. The option print_errors of a runtime does
/// the same. After the first 100 failures the others are only counted. Any thread.
WEIR_API void set_error_printing(error_printing when) noexcept;

namespace detail {
/// A source of this program was compiled without NDEBUG: error_printing::automatic.
WEIR_API void mark_debug_program() noexcept;
}  // namespace detail

/// Passes `reason` to the handler. Never throws.
WEIR_API void report_error(const error& reason) noexcept;

/// How many failures were reported since the process began, with or without a handler.
[[nodiscard]] WEIR_API std::uint64_t reported_errors() noexcept;

}}  // namespace weir::v0
