// SPDX-License-Identifier: Apache-2.0
// logging_resource: RMM's rows, and a log whose troubles are its own.
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "resources/resources_fixture.hpp"
#include "weir/resource/logging_resource.hpp"

namespace weir::testing_support { namespace {

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

std::string time_of_day() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char text[32];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%06ld", local.tm_hour, local.tm_min,
                local.tm_sec, static_cast<long>(micros % 1'000'000));
  return text;
}

TEST_F(logging_test, the_time_is_that_of_the_request) {
  auto logged = logging_resource::create(ledger, rows_here()).value();
  std::string before, after;
  do {  // once more at midnight
    rows.clear();
    before = time_of_day();
    EXPECT_TRUE(logged.try_deallocate(logged.try_allocate(1_KiB, stream).value(), 1_KiB, stream));
    after = time_of_day();
  } while (after < before);
  for (const std::string& row : rows) {
    const std::string time = row.substr(row.find(',') + 1, before.size());
    EXPECT_LE(before, time);
    EXPECT_LE(time, after);
  }
}

TEST_F(logging_test, a_free_is_written_before_it_is_passed_on) {
  std::vector<std::size_t> live;
  auto logged = logging_resource::create(ledger, [&](std::string_view) -> result<void> {
                  live.push_back(ledger.live());
                  return {};
                }).value();
  EXPECT_TRUE(logged.try_deallocate(logged.try_allocate(1_KiB, stream).value(), 1_KiB, stream));
  EXPECT_THAT(live, ::testing::ElementsAre(0, 1, 1));
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
  EXPECT_EQ(
      refused.error(),
      (error{{.code = errc::device_lost, .requested = 1_KiB, .detail = "the ledger says so"}}));
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
                      return error{{.code = errc::system, .detail = "no"}};
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
  EXPECT_EQ(logged.log_state().error().detail(), "no") << "the first reason is kept";
  logged.reset_counters();
  EXPECT_EQ(logged.lost_rows(), 0U);
  EXPECT_TRUE(logged.log_state());
}

TEST_F(logging_test, whatever_a_sink_throws_harms_only_the_log) {
  auto logged =
      logging_resource::create(ledger, [](std::string_view) -> result<void> { throw 7; }).value();
  EXPECT_EQ(logged.lost_rows(), 1U) << "the header";
  EXPECT_EQ(logged.log_state().error(), error{{.code = errc::system}});
  auto other = logging_resource::create(ledger, [](std::string_view) -> result<void> {
                 throw std::runtime_error{"no room"};
               }).value();
  EXPECT_EQ(other.log_state().error(), (error{{.code = errc::system, .detail = "no room"}}));
}

/// Lets no file of this process grow beyond a size while it lives.
class file_size_limit {
 public:
  explicit file_size_limit(rlim_t size) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{size, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~file_size_limit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  file_size_limit(const file_size_limit&) = delete;
  file_size_limit& operator=(const file_size_limit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = SIG_DFL;
};

TEST_F(logging_test, half_a_row_is_ended_before_the_next) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("weir_torn_log_" + std::to_string(::getpid()) + ".csv");
  auto logged = logging_resource::create(ledger, path.string()).value();
  void* p = nullptr;
  {
    const file_size_limit full{std::filesystem::file_size(path) + 5};
    p = logged.try_allocate(1_KiB, stream).value();
    EXPECT_TRUE(logged.try_deallocate(p, 1_KiB, stream)) << "nothing at all can be written";
  }
  EXPECT_EQ(logged.lost_rows(), 2U);
  ASSERT_FALSE(logged.log_state());
  EXPECT_EQ(logged.log_state().error().detail(),
            path.string() + ": " + std::generic_category().message(EFBIG));
  for (int i = 0; i < 2; ++i) p = logged.try_allocate(2_KiB, stream).value();
  std::ifstream file{path};
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::filesystem::remove(path);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[1].size(), 5U) << "what there was room for";
  EXPECT_THAT(lines[2], ::testing::EndsWith(",2048," + text_of(stream.handle())));
  EXPECT_THAT(lines[3], ::testing::HasSubstr(",allocate," + text_of(p) + ",2048,"));
  EXPECT_EQ(logged.lost_rows(), 2U);
}

TEST_F(logging_test, a_row_of_which_nothing_was_written_leaves_nothing_to_end) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("weir_missing_row_log_" + std::to_string(::getpid()) + ".csv");
  auto logged = logging_resource::create(ledger, path.string()).value();
  void* p = nullptr;
  {
    const file_size_limit full{std::filesystem::file_size(path)};
    p = logged.try_allocate(1_KiB, stream).value();
  }
  EXPECT_EQ(logged.lost_rows(), 1U);
  EXPECT_TRUE(logged.try_deallocate(p, 1_KiB, stream));
  std::ifstream file{path};
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::filesystem::remove(path);
  ASSERT_EQ(lines.size(), 2U) << "the header and the free";
  EXPECT_THAT(lines[1], ::testing::HasSubstr(",free," + text_of(p) + ",1024,"));
}

TEST_F(logging_test, what_an_earlier_call_said_is_not_an_interruption) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("weir_errno_log_" + std::to_string(::getpid()) + ".csv");
  auto logged = logging_resource::create(ledger, path.string()).value();
  const auto header = std::filesystem::file_size(path);
  void* p = nullptr;
  {
    const file_size_limit full{1 << 16};  // where it would be written for ever
    errno = EINTR;
    p = logged.try_allocate(1_KiB, stream).value();
  }
  const auto row = std::filesystem::file_size(path) - header;
  EXPECT_GT(row, 0U);
  EXPECT_LT(row, 192U) << "one row";
  EXPECT_EQ(logged.lost_rows(), 0U);
  EXPECT_TRUE(logged.try_deallocate(p, 1_KiB, stream));
  std::filesystem::remove(path);
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
  EXPECT_THAT(refused.error().detail(), ::testing::HasSubstr("/no/such/folder/log.csv"));
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
