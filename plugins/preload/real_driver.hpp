// SPDX-License-Identifier: Apache-2.0
// The driver's own functions, called without the hooks.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "weir/driver/table.hpp"

namespace weir_preload {

using namespace weir::driver;

/// The replaced functions as numbers.
enum class hook : std::size_t {
#define WEIR_HOOK(exported, symbol, version, flags) exported,
#include "hooks.def"
};

inline constexpr std::size_t hook_count = 0
#define WEIR_HOOK(exported, symbol, version, flags) +1
#include "hooks.def"
    ;

/// How symbols are looked up past our own dlsym. It throws nothing: a call that could, in a
/// function that may not, would never be a jump.
using symbol_lookup = void* (*)(void* library, const char* name) noexcept;

/// The functions of the driver library that the program uses.
///
/// Made when a replaced function is first looked for or called, never before: a program without
/// CUDA has none. Never destroyed or changed, so that any thread may use it at any time. Several
/// threads that make one at the same time make one each, and the first counts: a lock would be
/// held while the dynamic loader's own is taken, by threads that hold that one.
class real_driver {
 public:
  /// Null: the program has no driver library. `load`: it is loaded where it is not.
  [[nodiscard]] static const real_driver* get(bool load) noexcept;
  /// For tests: this one counts, which stays alive; null: none does.
  static void replace(const real_driver* other) noexcept;

  /// Of every row of calls.def what the driver has; its null stream is the legacy one.
  table calls{};
  std::array<void*, hook_count> originals{};
  int version = 0;

  /// What the program gets instead of an address of the driver's: our function, or the address.
  [[nodiscard]] void* replacement_of(void* address) const noexcept;
  /// Takes `address` for the function of that row, unless it is one already.
  void add(hook row, void* address);

 private:
  static real_driver* open(bool load);

  std::vector<std::pair<void*, void*>> replacements_{};  // by address
};

/// Our function for a row.
[[nodiscard]] void* function_of(hook row) noexcept;
/// The row of our function; none: it is none of ours.
[[nodiscard]] std::optional<hook> row_of(const void* function) noexcept;

/// The real dlsym.
[[nodiscard]] symbol_lookup real_dlsym() noexcept;

/// Hands a call to the driver as it came. The arguments have the types of the function's
/// parameters.
template <hook Row, class... Parameters>
[[nodiscard]] CUresult pass(Parameters... arguments) noexcept {
  const real_driver* const driver = real_driver::get(true);
  void* const original =
      driver == nullptr ? nullptr : driver->originals[static_cast<std::size_t>(Row)];
  // A program that is linked with the driver does not start without it.
  if (original == nullptr) return CUDA_ERROR_NO_DEVICE;
  return reinterpret_cast<CUresult (*)(Parameters...)>(original)(arguments...);
}

}  // namespace weir_preload
