// SPDX-License-Identifier: Apache-2.0
// The table of driver calls, and the loader that fills it from libcuda.
//
// All code above this header uses a GPU only through a table. load() fills one from libcuda, and a
// simulated machine (weir/sim/machine.hpp) fills one, too; other code does not distinguish them.
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

/// The driver's calls as function pointers. An optional call that the driver lacks is null; in a
/// table of load() no required call is null. Calls follow the driver's own thread rules.
struct table {
/// One row of calls.def as a function pointer.
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  CUresult(*member) parameters = nullptr;
#include "weir/driver/calls.def"
};

/// Each row of the table as a number, for counters and fault injection.
enum class call : std::uint16_t {
/// One row of calls.def as an enumerator.
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) member,
#include "weir/driver/calls.def"
};

/// The number of rows of the table.
inline constexpr std::size_t call_count = 0
/// One row of calls.def as a summand.
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) +1
#include "weir/driver/calls.def"
    ;

/// The description of a row of the table.
struct call_info {
  std::string_view member;    ///< "mem_create"
  std::string_view symbol;    ///< "cuMemCreate"
  int version;                ///< 10020
  std::string_view exported;  ///< "cuMemCreate"
  bool required;              ///< load() fails without it
};

/// The description of a call.
[[nodiscard]] WEIR_API const call_info& info(call row) noexcept;

/// The oldest supported driver: CUDA 11.2, the first with stream-ordered pools.
inline constexpr int oldest_driver = 11020;

/// A table with the library it came from. libcuda is never unloaded: destructors of other threads
/// may still call it when the process ends.
struct library {
  table calls;                            ///< the filled table
  int driver_version = 0;                 ///< 13000 is CUDA 13.0
  std::string path;                       ///< what was opened
  std::vector<std::string_view> missing;  ///< optional calls that the driver lacks
};

/// Fills a table from `path`. Costs one dlopen and one look-up for each row; makes no call that
/// needs a device and does not initialise the driver.
///
/// driver_unavailable: the library does not exist; driver_too_old: it is older than oldest_driver;
/// symbol_missing: required calls are missing; the detail names all of them.
[[nodiscard]] WEIR_API result<std::unique_ptr<library>> load(
    const char* path = "libcuda.so.1") noexcept;

/// The errc of a driver result; errc::internal for CUDA_SUCCESS, which is not an error.
[[nodiscard]] WEIR_API errc to_errc(CUresult native) noexcept;

/// "CUDA_ERROR_OUT_OF_MEMORY", without a driver call; "CUDA_ERROR_UNKNOWN" for unknown numbers.
[[nodiscard]] WEIR_API std::string_view result_name(CUresult native) noexcept;

/// The error for a call that returned `native`.
[[nodiscard]] WEIR_API error make_error(call source, CUresult native, bytes requested = {},
                                        std::string detail = {});

/// Success for CUDA_SUCCESS, otherwise the error of make_error().
[[nodiscard]] inline result<void> check(call source, CUresult native, bytes requested = {}) {
  if (native == CUDA_SUCCESS) [[likely]]
    return {};
  return make_error(source, native, requested);
}

}}}  // namespace weir::v0::driver
