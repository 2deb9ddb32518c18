// logging_resource: RMM's rows, and a log whose troubles are its own.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <thread>

#include "resources/resources_fixture.hpp"
#include "weir/resource/logging_resource.hpp"

namespace weir::testing_support {
namespace {

class logging_test : public resources_test {
 public:
  [[nodiscard]] csv_sink rows_here() {
    return [this](std::string_view row) -> result<void> {
      rows.emplace_back(row);
      return {};
    };
  }
  std::vector<std::string> rows;
};

std::string text_of(void* pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", pointer);
  return text;
}

TEST_F(logging_test, rows_are_those_of_rmm) {
  auto logged = logging_resource::create(ledger, rows_here()).value();
  void* const p = logged.try_allocate(1_KiB, stream).value();
  EXPECT_TRUE(logged.try_deallocate(p, 1_KiB, stream));
  ledger.refuse({errc::out_of_memory});
  EXPECT_EQ(code_of(logged.try_allocate(3_KiB, stream_ref::legacy(gpu))), errc::out_of_memory);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0], "Thread,Time,Action,Pointer,Size,Stream\n");
  const std::string begin = std::to_string(::gettid()) + R"(,\d\d:\d\d:\d\d\.\d{6},)";
  const std::string columns = text_of(p) + ",1024," + text_of(stream.handle()) + "\n";
  EXPECT_TRUE(std::regex_match(rows[1], std::regex{begin + "allocate," + columns})) << rows[1];
  EXPECT_TRUE(std::regex_match(rows[2], std::regex{begin + "free," + columns})) << rows[2];
  EXPECT_TRUE(std::regex_match(rows[3], std::regex{begin + R"(allocate failure,\(nil\),3072,0x1)"
                                                           "\n"}))
      << rows[3];
}

TEST_F(logging_test, nothing_leaves_no_row) {
  auto logged = logging_resource::create(ledger, rows_here()).value();
  EXPECT_EQ(logged.try_allocate(0_B, stream).value(), nullptr);
  EXPECT_TRUE(logged.try_deallocate(nullptr, 0_B, stream));
  EXPECT_EQ(rows.size(), 1U);
}

TEST_F(logging_test, errors_of_the_upstream_pass_through_whole) {
  auto logged = logging_resource::create(ledger, rows_here()).value();
  ledger.refuse({errc::device_lost});
  const auto refused = logged.try_allocate(1_KiB, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(),
            (error{.code = errc::device_lost, .requested = 1_KiB, .detail = "the ledger says so"}));
  void* const p = logged.try_allocate(1_KiB, stream).value();
  ledger.refuse_free({errc::capture_forbidden});
  EXPECT_EQ(code_of(logged.try_deallocate(p, 1_KiB, stream)), errc::capture_forbidden);
  EXPECT_TRUE(logged.try_deallocate(p, 1_KiB, stream));
  EXPECT_TRUE(logged.log_state());
}

TEST_F(logging_test, a_sink_that_fails_harms_only_the_log) {
  int calls = 0;
  auto logged = logging_resource::create(ledger, [&](std::string_view) -> result<void> {
                  switch (++calls) {
                    case 2:
                      return error{.code = errc::system, .detail = "no"};
                    case 3:
                      throw std::runtime_error{"worse"};
                    default:
                      return {};
                  }
                }).value();
  void* const p = logged.try_allocate(1_KiB, stream).value();
  EXPECT_TRUE(logged.try_deallocate(p, 1_KiB, stream));
  void* const q = logged.try_allocate(1_KiB, stream).value();
  EXPECT_TRUE(logged.try_deallocate(q, 1_KiB, stream));
  EXPECT_EQ(calls, 5) << "the log goes on after an error";
  EXPECT_EQ(logged.lost_rows(), 2U);
  ASSERT_FALSE(logged.log_state());
  EXPECT_EQ(logged.log_state().error().detail, "no") << "the first reason is kept";
  logged.reset_stats();
  EXPECT_EQ(logged.lost_rows(), 0U);
  EXPECT_TRUE(logged.log_state());
}

TEST_F(logging_test, a_full_disk_is_the_state_of_the_log) {
  auto logged = logging_resource::create(ledger, "/dev/full").value();
  void* const p = logged.try_allocate(1_KiB, stream).value();
  EXPECT_TRUE(logged.try_deallocate(p, 1_KiB, stream));
  EXPECT_EQ(code_of(logged.log_state()), errc::system);
  EXPECT_EQ(logged.lost_rows(), 3U);
}

TEST_F(logging_test, a_file_that_cannot_be_made_is_told_at_once) {
  const auto refused = logging_resource::create(ledger, "/no/such/folder/log.csv");
  ASSERT_EQ(code_of(refused), errc::system);
  EXPECT_THAT(refused.error().detail, ::testing::HasSubstr("/no/such/folder/log.csv"));
  EXPECT_EQ(code_of(logging_resource::create(ledger, csv_sink{})), errc::invalid_argument);
}

TEST_F(logging_test, a_file_is_emptied_and_filled) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("weir_logging_test_" + std::to_string(::getpid()) + ".csv");
  std::ofstream{path} << "something old\n";
  auto logged = logging_resource::create(ledger, path.string()).value();
  void* const p = logged.try_allocate(1_KiB, stream).value();
  EXPECT_TRUE(logged.try_deallocate(p, 1_KiB, stream));
  std::ifstream file{path};
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::filesystem::remove(path);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], "Thread,Time,Action,Pointer,Size,Stream");
  EXPECT_THAT(lines[2], ::testing::HasSubstr(",free," + text_of(p) + ",1024,"));
}

TEST_F(logging_test, rows_of_threads_stay_whole) {
  auto logged = logging_resource::create(ledger, rows_here()).value();
  std::vector<std::thread> crowd;
  for (int t = 0; t < 3; ++t) {
    crowd.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        void* const p = logged.try_allocate(16_B, stream).value();
        EXPECT_TRUE(logged.try_deallocate(p, 16_B, stream));
      }
    });
  }
  for (std::thread& each : crowd) each.join();
  EXPECT_EQ(rows.size(), 1U + 3U * 200U * 2U);
  for (const std::string& row : rows) EXPECT_EQ(std::count(row.begin(), row.end(), ','), 5);
}

}  // namespace
}  // namespace weir::testing_support
