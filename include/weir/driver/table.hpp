// SPDX-License-Identifier: Apache-2.0
// The seam to the machine: the table of driver calls, and how it is filled from libcuda.
//
// Everything above this header reaches a GPU only through a table. libcuda fills one (load()), and
// so does a simulated machine (weir/sim/machine.hpp); no code above can tell which, nor should it
// ask.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/driver/types.hpp"

namespace weir { inline namespace v0 { namespace driver {

/// The driver's calls as function pointers. An optional call the driver lacks is null; a required
/// one never is in a table that load() returned. Calls follow the driver's own thread rules.
struct table {
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  CUresult(*member) parameters = nullptr;
#include "weir/driver/calls.def"
};

/// Each row of the table as a number, for counters and fault injection.
enum class call : std::uint16_t {
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) member,
#include "weir/driver/calls.def"
};

inline constexpr std::size_t call_count = 0
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) +1
#include "weir/driver/calls.def"
    ;

/// What the table knows about a row.
struct call_info {
  std::string_view member;    ///< "mem_create"
  std::string_view symbol;    ///< "cuMemCreate"
  int version;                ///< 10020
  std::string_view exported;  ///< "cuMemCreate"
  bool required;
};

[[nodiscard]] WEIR_API const call_info& info(call row) noexcept;

/// The oldest driver weir works with: CUDA 11.2, the first with stream-ordered pools.
inline constexpr int oldest_driver = 11020;

/// A table with the library it came from. Once loaded, libcuda is never closed: calls from other
/// threads' destructors may still be on their way when the process ends.
struct library {
  table calls;
  int driver_version = 0;                 ///< 13000 is CUDA 13.0
  std::string path;                       ///< what was opened
  std::vector<std::string_view> missing;  ///< optional calls this driver does not have
};

/// Fills a table from `path`. Costs one dlopen and one look-up a row; makes no call that needs a
/// device and does not initialise the driver.
///
/// driver_unavailable: there is no such library; driver_too_old: it is older than oldest_driver;
/// symbol_missing: required calls are absent, all of them named in the detail.
[[nodiscard]] WEIR_API result<std::unique_ptr<library>> load(
    const char* path = "libcuda.so.1") noexcept;

/// The errc that a driver result stands for; CUDA_SUCCESS is not an error and gives errc::internal.
[[nodiscard]] WEIR_API errc to_errc(CUresult native) noexcept;

/// "CUDA_ERROR_OUT_OF_MEMORY" without asking a driver; "CUDA_ERROR_UNKNOWN" for other numbers.
[[nodiscard]] WEIR_API std::string_view result_name(CUresult native) noexcept;

/// The error for a call that answered `native`.
[[nodiscard]] WEIR_API error make_error(call source, CUresult native, bytes requested = {},
                                        std::string detail = {});

/// CUDA_SUCCESS becomes success, anything else the error for it.
[[nodiscard]] inline result<void> check(call source, CUresult native, bytes requested = {}) {
  if (native == CUDA_SUCCESS) [[likely]]
    return {};
  return make_error(source, native, requested);
}

}}}  // namespace weir::v0::driver
