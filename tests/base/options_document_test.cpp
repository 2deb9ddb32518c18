// SPDX-License-Identifier: Apache-2.0
// docs/options.md is what the table of options says. With WEIR_WRITE_DOCUMENTS set, it is
// rewritten.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "weir/base/options.hpp"

namespace weir { namespace {

constexpr const char* path = WEIR_SOURCE_DIR "/docs/options.md";

std::string document() {
  std::ostringstream text;
  text
      << "# Options\n"
         "\n"
         "<!-- Made from include/weir/base/options.def by the test `options_document`; do not "
         "edit. "
         "-->\n"
         "\n"
         "Every option is a member of `weir::options`. In text, and in the lists that\n"
         "`weir::set_all()` and `weir_runtime_open()` read, it is `name=value`, separated by "
         "commas;\n"
         "a comma or backslash within a value is written `\\,` or `\\\\`.\n"
         "\n"
         "What a program sets has precedence over the environment, and the environment over the "
         "initial value, in C++,\n"
         "C and Python ([0034](decisions/0034-mistakes-are-visible.md)). A variable that is empty "
         "counts as unset. One\n"
         "that is unknown, or whose value cannot be read, is reported once and counts as "
         "unset.\n"
         "\n"
         "Sizes are numbers of bytes, or numbers with a unit: `KiB` to `EiB` are of 1024 (a `GiB` "
         "is\n"
         "2^30), `kB` to `EB` of 1000 (a `GB` is 10^9); `1.5GiB` may have decimals. Durations are\n"
         "whole numbers with `ns`, `us`, `ms` or `s`. Switches are `on` or `off`, `true` or "
         "`false`,\n"
         "`1` or `0`.\n"
         "\n"
         "| option | environment | initial | type | values | unit | meaning |\n"
         "|---|---|---|---|---|---|---|\n";
  for (const option_info& row : describe_options()) {
    text << "| `" << row.name << "` | `" << row.environment << "` | `" << row.initial << "` | "
         << row.type << " | " << row.values << " | " << row.unit << " | " << row.meaning << " |\n";
  }
  return text.str();
}

TEST(options_document, says_what_the_table_says) {
  if (std::getenv("WEIR_WRITE_DOCUMENTS") != nullptr) std::ofstream{path} << document();
  std::ifstream file{path};
  std::ostringstream found;
  found << file.rdbuf();
  EXPECT_EQ(found.str(), document())
      << "docs/options.md is stale. Run this test with WEIR_WRITE_DOCUMENTS=1, or make it:\n\n"
      << document();
}

}  // namespace
}  // namespace weir
