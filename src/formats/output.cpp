// SPDX-License-Identifier: Apache-2.0
// Writing to a file beside the one that is meant, and renaming it.
#include "formats/output.hpp"

#include <cstring>

#include "base/part_file.hpp"

namespace weir { inline namespace v0 { namespace formats {

result<void> write_file(const std::string& path, std::string_view content) {
  detail::part_file file;
  int reason = file.create(path);
  if (reason == 0) reason = file.write(content);
  // Some file systems notice only here that there was no room.
  if (reason == 0) reason = file.flush();
  if (reason == 0) reason = file.rename();
  if (reason == 0) return {};
  file.remove();
  return error{{.code = errc::system, .detail = path + ": " + std::strerror(reason)}};
}

}}}  // namespace weir::v0::formats
