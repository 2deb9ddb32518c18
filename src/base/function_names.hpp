// SPDX-License-Identifier: Apache-2.0
// Names of functions that a program does not export.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weir { inline namespace v0 { namespace detail {

/// A function as the linker knows it, and how far into it an address is.
struct named_function {
  std::string symbol;
  std::uint64_t offset = 0;
};

/// The function at an address of a program or library, from the symbol table (.symtab) in the file.
/// It also has the functions that dladdr() cannot name, unless the file was stripped. Nothing: the
/// file has no such function, or cannot be read. Reads the file each time. Throws std::bad_alloc.
[[nodiscard]] std::optional<named_function> function_in_file(const char* path,
                                                             std::uint64_t address);

}}}  // namespace weir::v0::detail
