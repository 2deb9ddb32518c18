// SPDX-License-Identifier: Apache-2.0
// What seeded programs came to before, line by line, in a file beside their test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace weir::testing_support {

/// A line of the file begins with the name of its program; the lines of a program stand together.
/// With WEIR_WRITE_DOCUMENTS set nothing is compared: each program that is played gets its lines
/// anew, and the others keep theirs. One for each file, for one thread.
class pinned_file {
 public:
  explicit pinned_file(std::string path) : path_{std::move(path)} {
    std::ifstream file{path_};
    for (std::string line; std::getline(file, line);)
      lines_of(line.substr(0, line.find(' '))).push_back(line);
  }

  /// `story(i)` tells what the program did before its line i, for a failure's message.
  void expect(const std::string& program, const std::vector<std::string>& lines,
              const std::function<std::string(std::size_t)>& story) {
    std::vector<std::string>& expected = lines_of(program);
    if (std::getenv("WEIR_WRITE_DOCUMENTS") != nullptr) {
      expected = lines;
      write();
      return;
    }
    ASSERT_FALSE(expected.empty()) << "no such program in " << path_;
    ASSERT_EQ(lines.size(), expected.size());
    for (std::size_t i = 0; i < lines.size(); ++i)
      ASSERT_EQ(lines[i], expected[i])
          << path_ << " says otherwise of the steps before this line.\n"
          << "If that is meant, run this program with WEIR_WRITE_DOCUMENTS=1.\n"
          << story(i);
  }

 private:
  std::vector<std::string>& lines_of(const std::string& program) {
    const auto known = std::find_if(programs_.begin(), programs_.end(),
                                    [&](const auto& each) { return each.first == program; });
    if (known != programs_.end()) return known->second;
    return programs_.emplace_back(program, std::vector<std::string>{}).second;
  }
  void write() const {
    std::ofstream file{path_};
    for (const auto& [program, lines] : programs_)
      for (const std::string& line : lines) file << line << "\n";
  }

  std::string path_;
  std::vector<std::pair<std::string, std::vector<std::string>>> programs_;  // as the file has them
};

}  // namespace weir::testing_support
