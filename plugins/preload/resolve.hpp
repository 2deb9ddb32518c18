// SPDX-License-Identifier: Apache-2.0
// The functions that a program gets when it looks up the driver's functions.
#pragma once

namespace weir_preload {

/// Whether the name can be a driver call's: "cu" and a capital letter, unlike "cudaMalloc".
[[nodiscard]] constexpr bool is_driver_name(const char* name) noexcept {
  return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
}

/// Our function, where `address` is the driver's that it replaces; else `address`.
[[nodiscard]] void* replaced(void* address) noexcept;

/// Whether the address is a function of ours, found because we are preloaded, of which the
/// program's driver has none.
[[nodiscard]] bool is_absent(const void* address) noexcept;

/// While one lives, this thread's look-ups are answered as they are: they are our own.
class own_lookups {
 public:
  own_lookups() noexcept;
  ~own_lookups();
  own_lookups(const own_lookups&) = delete;
  own_lookups& operator=(const own_lookups&) = delete;

  [[nodiscard]] static bool any() noexcept;
};

}  // namespace weir_preload
