// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own, gone with it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace weir::testing_support {

class scratch_folder {
 public:
  scratch_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "weir_test_XXXXXX").string();
    path_ = ::mkdtemp(name.data()) != nullptr ? name : std::string{};
  }
  ~scratch_folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;

  [[nodiscard]] std::string path(std::string_view file) const {
    return path_ + "/" + std::string{file};
  }
  /// The folder stays; its path is the caller's.
  [[nodiscard]] std::string release() noexcept { return std::exchange(path_, {}); }
  /// How many files it holds.
  [[nodiscard]] std::size_t files() const {
    const std::filesystem::directory_iterator all{path_};
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  }

 private:
  std::string path_;
};

[[nodiscard]] inline std::string read_bytes(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}
inline void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream{path, std::ios::binary} << bytes;
}

}  // namespace weir::testing_support
