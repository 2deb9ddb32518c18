// SPDX-License-Identifier: Apache-2.0
// weir::options: every setting of weir in one struct, generated from the table in options.def.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/error.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 {

/// Which machine to open: "auto", "cuda" or "sim" in text.
enum class runtime_choice {
  automatic,  ///< the real driver if it has a device, otherwise a simulated machine
  cuda,       ///< the real driver
  simulated,  ///< a simulated machine
};

/// What moves simulated work forward: "seeded", "timed" or "manual" in text.
enum class sim_progress {
  seeded,  ///< random choices from the seed
  timed,   ///< simulated time
  manual,  ///< only calls that wait
};

/// How the caching allocator places memory; docs/tuning.md compares them.
enum class placement_policy {
  balanced,            ///< little memory at little driver time; the default
  throughput,          ///< fewer driver calls, more memory
  compact,             ///< less memory, more driver calls
  never_move,          ///< physical memory is never mapped elsewhere
  classic,             ///< PyTorch's rules with fixed segments
  classic_expandable,  ///< PyTorch's rules with expandable segments
};

/// Which work must be complete before freed memory leaves the stream that freed it: "all_work" or
/// "declared_uses" in text; docs/allocator.md explains the risk of the second one.
enum class crossing_rule {
  all_work,       ///< everything that was queued on any stream at the time of the free
  declared_uses,  ///< what was queued on that stream and on recorded streams
};

/// How memory bugs are detected: "off", "red_zones" or "guard_pages" in text; docs/debugging.md
/// lists what each finds and costs.
enum class debug_checks {
  off,          ///< no checks
  red_zones,    ///< small blocks share physical memory, with checked bytes between them
  guard_pages,  ///< each block has memory of its own, with unmapped addresses on both sides
};

/// Whether network cards can reach mapped memory: "auto", "on" or "off" in text.
enum class rdma_use {
  automatic,  ///< if the device and the driver support it
  on,         ///< always: creating an allocator fails if the device does not support it
  off,        ///< never
};

/// The text that set() reads for the value.
[[nodiscard]] WEIR_API std::string to_string(runtime_choice choice);
[[nodiscard]] WEIR_API std::string to_string(sim_progress progress);
[[nodiscard]] WEIR_API std::string to_string(placement_policy policy);
[[nodiscard]] WEIR_API std::string to_string(crossing_rule rule);
[[nodiscard]] WEIR_API std::string to_string(debug_checks checks);
[[nodiscard]] WEIR_API std::string to_string(rdma_use use);
[[nodiscard]] WEIR_API std::string to_string(error_printing when);

/// The options with their initial values. docs/options.md lists each with its meaning. A plain
/// value that does not read the environment.
///
/// What a program sets has precedence over the environment, and the environment over the initial
/// value: for runtime::open() without options, for each member of allocator_options that is not
/// set, and for the lists that C and Python pass. WEIR_RECORD, WEIR_LIVE and WEIR_BUDGET apply to
/// all allocators, because the person who starts the program sets them.
struct options {
/// One row of options.def as a member with its initial value.
#define WEIR_OPTION(name, type, initial, values, unit, environment, meaning) type name = initial;
#include "weir/base/options.def"

  friend bool operator==(const options&, const options&) = default;
};

/// Sets the option `name` from text. Sizes read as parse_bytes() does ("20MiB"); durations are a
/// whole number with ns, us, ms or s; switches are on, off, true, false, 1 or 0.
///
/// bad_option: the option is unknown (the detail names the nearest), or the value is invalid or out
/// of range (the detail names both). `target` is then unchanged.
[[nodiscard]] WEIR_API result<void> set(options& target, std::string_view name,
                                        std::string_view value);

/// Sets options from a list "name=value,name=value". A comma or backslash that belongs to a value
/// is written "\," or "\\". All or none: if one entry is invalid, `target` is unchanged.
[[nodiscard]] WEIR_API result<void> set_all(options& target, std::string_view list);

/// The value of the option `name` as set() reads it.
[[nodiscard]] WEIR_API result<std::string> get(const options& source, std::string_view name);

/// Every option as a list that set_all() reads.
[[nodiscard]] WEIR_API std::string to_string(const options& source);

/// Returns the value of an environment variable, or null. An empty function reads the process's
/// environment, which is ignored in programs that run with other rights than their caller (set-uid,
/// file capabilities).
using environment = std::function<const char*(const char* variable)>;

/// `initial`, overridden by the variables that are set; an empty variable counts as unset. The
/// detail of an error begins with the variable's name.
[[nodiscard]] WEIR_API result<options> options_from_environment(const environment& source = {},
                                                                options initial = {});

namespace detail {
// The option's initial value, or what its environment variable says. A value that cannot be read is
// reported once and counts as unset.
[[nodiscard]] WEIR_API bool environment_default(bool options::*option);
[[nodiscard]] WEIR_API int environment_default(int options::*option);
[[nodiscard]] WEIR_API bytes environment_default(bytes options::*option);
[[nodiscard]] WEIR_API crossing_rule environment_default(crossing_rule options::*option);
[[nodiscard]] WEIR_API debug_checks environment_default(debug_checks options::*option);
[[nodiscard]] WEIR_API placement_policy environment_default(placement_policy options::*option);
[[nodiscard]] WEIR_API rdma_use environment_default(rdma_use options::*option);
}  // namespace detail

/// One row of the table, for help texts and documentation.
struct option_info {
  std::string name;         ///< "heap_limit"
  std::string type;         ///< "size", "whole number", "switch", "choice", "duration", "text"
  std::string initial;      ///< as set() reads it
  std::string values;       ///< "1 to 16", "auto, cuda, sim"; empty if the type allows every value
  std::string unit;         ///< "devices", "bytes"; may be empty
  std::string environment;  ///< the variable that sets it, "WEIR_HEAP_LIMIT"
  std::string meaning;      ///< one or two sentences, for people
};

/// All options, in the order of the table.
[[nodiscard]] WEIR_API std::vector<option_info> describe_options();

}}  // namespace weir::v0
