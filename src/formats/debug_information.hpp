// SPDX-License-Identifier: Apache-2.0
// Function, file and line of an address in a program or library.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/frames.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// The programs and libraries that were asked for, each opened once and read as far as needed. One
/// thread at a time. Without libdw it knows nothing.
class debug_information {
 public:
  debug_information();
  ~debug_information();
  debug_information(const debug_information&) = delete;
  debug_information& operator=(const debug_information&) = delete;

  /// "function at file:12", innermost first: the calls that were inlined there, and the function
  /// they ended up in. "function+0x1c at library" where the file has a name for it and no lines.
  /// Nothing where it has neither, is not there, or is another build.
  [[nodiscard]] std::vector<std::string> lines_at(const coded_frame& frame);

 private:
  class file;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<file>> files_;  // by path and build
};

}}}  // namespace weir::v0::formats
