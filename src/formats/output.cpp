// Writing to a file beside the one that is meant, and renaming it.
#include "formats/output.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace weir::inline v0::formats {

result<void> write_file(const std::string& path, std::string_view content) {
  const std::string part = path + "." + std::to_string(getpid()) + ".part";
  const auto fail = [&](int reason) {
    std::remove(part.c_str());
    return error{.code = errc::system, .detail = path + ": " + std::strerror(reason)};
  };
  std::FILE* const file = std::fopen(part.c_str(), "wb");
  if (file == nullptr) return fail(errno);
  const bool all_written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const int reason = errno;
  // Buffered bytes may find the disk full only here.
  const bool closed = std::fclose(file) == 0;
  if (!all_written) return fail(reason);
  if (!closed) return fail(errno);
  if (std::rename(part.c_str(), path.c_str()) != 0) return fail(errno);
  return {};
}

}  // namespace weir::inline v0::formats
