// SPDX-License-Identifier: Apache-2.0
// Says which planted faults each test came by: to the file WEIR_MUTANTS_TESTS names, a line a test
// with its name, its milliseconds and the numbers. Linked into every test program of the build
// `mutate`.
#include <gtest/gtest.h>
#include <fstream>
#include <memory>

// A program may hold several copies of this file: the first one listens.
namespace weir_mutants {
inline bool listening = false;
}

namespace {

class reach_listener final : public testing::EmptyTestEventListener {
 public:
  explicit reach_listener(const char* path) : out_(path, std::ios::app) {}

 private:
  void OnTestEnd(const testing::TestInfo& test) override {
    out_ << test.test_suite_name() << '.' << test.name() << '\t' << test.result()->elapsed_time();
    out_ << '\t' << (test.result()->Passed() ? "passed" : "not passed");
    for (std::size_t number = 0; number < weir_mutants::numbers; ++number) {
      if (weir_mutants::chosen.reached[number] == 0) continue;
      weir_mutants::chosen.reached[number] = 0;
      out_ << '\t' << number;
    }
    out_ << std::endl;
  }

  std::ofstream out_;
};

[[maybe_unused]] const bool installed = [] {
  const char* path = std::getenv("WEIR_MUTANTS_TESTS");
  if (path == nullptr || weir_mutants::chosen.reached == nullptr || weir_mutants::listening)
    return false;
  weir_mutants::listening = true;
  testing::UnitTest::GetInstance()->listeners().Append(new reach_listener(path));
  return true;
}();

}  // namespace
