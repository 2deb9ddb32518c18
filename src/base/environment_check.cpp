// SPDX-License-Identifier: Apache-2.0
// Variables of the environment that weir does not know, or whose values it cannot read.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <string>
#include <string_view>

#include "base/environment.hpp"
#include "base/spelling.hpp"

namespace weir { inline namespace v0 { namespace detail {
namespace {

/// Variables that are no options, but that users set.
constexpr std::array<std::string_view, 5> further_variables{
    "WEIR_BUDGET_FOLDER", "WEIR_LIBRARY", "WEIR_LIVE_FOLDER", "WEIR_SOCKET_FOLDER",
    "WEIR_TORCH_EXTENSIONS"};

/// Beginnings of the names that the command, the plug-ins, the build and the tests set for
/// themselves.
constexpr std::array<std::string_view, 34> other_readers{
    "WEIR_CACHE",    "WEIR_CHILD",   "WEIR_CHROMIUM",   "WEIR_CLANGXX",  "WEIR_COMMIT",
    "WEIR_CONTRACT", "WEIR_DATA",    "WEIR_EXIT",       "WEIR_FAKE_",    "WEIR_FUZZ",
    "WEIR_GPU_",     "WEIR_GXX",     "WEIR_HAZARD_",    "WEIR_INSTALL",  "WEIR_JOBS",
    "WEIR_LIMIT_",   "WEIR_LLD",     "WEIR_LONG",       "WEIR_MUTANT",   "WEIR_NIGHTLY_",
    "WEIR_NODE",     "WEIR_ORDER_",  "WEIR_PLANTED",    "WEIR_PROGRAMS", "WEIR_REQUIRE_",
    "WEIR_RUN_",     "WEIR_SIGNING", "WEIR_SIM_REPORT", "WEIR_STRESS_",  "WEIR_TEST_",
    "WEIR_TORCH_",   "WEIR_WHEEL_",  "WEIR_WORKLOADS",  "WEIR_WRITE_"};

constexpr std::array known_variables = {
#define WEIR_OPTION(name, type, initial, values, unit, variable, meaning) \
  std::string_view{variable},
#include "weir/base/options.def"
};

bool is_known(std::string_view variable) {
  const auto is_it = [&](std::string_view known) { return variable == known; };
  const auto begins = [&](std::string_view beginning) { return variable.starts_with(beginning); };
  return std::any_of(known_variables.begin(), known_variables.end(), is_it) ||
         std::any_of(further_variables.begin(), further_variables.end(), is_it) ||
         std::any_of(other_readers.begin(), other_readers.end(), begins);
}

std::string nearest_to(std::string_view variable) {
  std::string_view nearest;
  std::size_t least = variable.size() + 64;
  const auto compare = [&](std::string_view known) {
    const std::size_t distance = edit_distance(variable, known);
    if (distance >= least) return;
    least = distance;
    nearest = known;
  };
  std::for_each(known_variables.begin(), known_variables.end(), compare);
  std::for_each(further_variables.begin(), further_variables.end(), compare);
  return std::string{nearest};
}

void check_name(std::string_view variable) {
  // Only a beginning can resemble a variable of weir.
  const std::string shown{variable.substr(0, 64)};
  if (is_known(variable)) return;
  report_mistake({{.code = errc::bad_option,
                   .detail = "the environment variable " + shown +
                             " is unknown and ignored; did you mean " + nearest_to(shown) + "?"}});
}

}  // namespace

void check_environment() noexcept try {
  static constinit std::atomic<bool> is_done{false};
  if (is_done.exchange(true, std::memory_order_relaxed)) return;
  static_cast<void>(environment_defaults());
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text{*entry};
    const std::string variable{text.substr(0, text.find('='))};
    // An empty variable counts as unset, and every one does in a set-uid program.
    if (variable.starts_with("WEIR_") && !environment_value(variable.c_str()).empty())
      check_name(variable);
  }
} catch (const std::bad_alloc&) {  // then it stays unsaid
}

}}}  // namespace weir::v0::detail
