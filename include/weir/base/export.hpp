// SPDX-License-Identifier: Apache-2.0
// WEIR_API: marks the symbols that the shared library exports; everything else stays hidden.
#pragma once

#if defined(__GNUC__)
/// Exports a symbol from the shared library.
#define WEIR_API __attribute__((visibility("default")))
#else
#define WEIR_API
#endif
