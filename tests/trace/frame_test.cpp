// SPDX-License-Identifier: Apache-2.0
// Frames and the files that they are written to: what stands around the contents.
#include "trace/frame.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/file_size_limit.hpp"
#include "support/scratch.hpp"
#include "trace/file_writer.hpp"
#include "trace/varint.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using namespace std::string_view_literals;
using trace::frame;
using trace::frame_kind;
using trace::frame_reader;

// --- Frames -------------------------------------------------------------------------------------

std::string little(std::uint32_t value) {
  std::string text;
  for (int shift = 0; shift < 32; shift += 8) text += static_cast<char>(value >> shift);
  return text;
}

/// A file of one frame that says what it is told to, with a checksum that is right.
struct raw_frame {
  std::string begin{"\x02\0\0\0", 4};  // events, stored
  std::uint32_t records = 1;
  std::string content = "abc";
  std::uint32_t stored = 3;
  std::uint32_t size = 3;

  [[nodiscard]] std::string file() const {
    const std::string header = begin + little(records) + little(stored) + little(size);
    return trace::file_header() + header + little(trace::crc32(header + content)) + content;
  }
};

/// What a reader says of the first frame: its content, or why there is none.
std::string read_first(const std::string& file) {
  frame_reader reader{file, trace::find_zstd()};
  const auto next = reader.next().value();
  if (const auto* const damage = std::get_if<trace_damage>(&next)) {
    EXPECT_EQ(damage->offset, 16u);
    EXPECT_EQ(reader.offset(), 16u);
    return damage->reason;
  }
  EXPECT_TRUE(reader.at_end());
  return std::string{std::get<frame>(next).content};
}

TEST(frame, is_written_byte_by_byte_as_documented) {
  EXPECT_EQ(trace::file_header(), "\x89WEIR\r\n\x1a\x02\0\0\0\xb4\xd3\x8a\x8a"sv);
  EXPECT_EQ(trace::file_header(1), "\x89WEIR\r\n\x1a\x01\0\0\0\x5a\x7c\x3f\x98"sv);
  std::string out = "before";
  trace::put_frame(out, frame_kind::names, 0x01020304, "abc", nullptr, 3);
  const std::string header{"\x01\0\0\0\x04\x03\x02\x01\x03\0\0\0\x03\0\0\0", 16};
  EXPECT_EQ(out, "before" + header + little(trace::crc32(header + "abc")) + "abc");
}

TEST(frame, is_compressed_where_there_is_something_to_gain) {
  const auto codec_of = [](std::string_view content, const trace::zstd* library, int level) {
    std::string out;
    trace::put_frame(out, frame_kind::events, 1, content, library, level);
    return static_cast<int>(out[1]);
  };
  const std::string zeros(1000, '\0');
  const trace::zstd* const library = trace::find_zstd();
  ASSERT_NE(library, nullptr);
  EXPECT_EQ(codec_of(zeros, library, 1), 1);
  EXPECT_EQ(codec_of(zeros, library, 0), 0);
  EXPECT_EQ(codec_of(zeros, nullptr, 1), 0);
  EXPECT_EQ(codec_of("abc", library, 1), 0);
  EXPECT_EQ(codec_of("", library, 1), 0);
}

TEST(frame, is_read_back_one_after_the_other) {
  std::string file = trace::file_header();
  const std::string zeros(1000, '\0');
  trace::put_frame(file, frame_kind::names, 7, "abc", nullptr, 0);
  trace::put_frame(file, frame_kind::events, 8, zeros, trace::find_zstd(), 3);
  trace::put_frame(file, frame_kind::end, 9, "", nullptr, 0);
  frame_reader reader{file, trace::find_zstd()};
  const auto next = [&] { return std::get<frame>(reader.next().value()); };
  EXPECT_EQ(reader.offset(), 16u);
  EXPECT_EQ(reader.next_size(), 3u);
  const frame names = next();
  EXPECT_EQ(names.kind, frame_kind::names);
  EXPECT_EQ(names.records, 7u);
  EXPECT_EQ(names.content, "abc");
  EXPECT_EQ(reader.offset(), 16u + 20 + 3);
  EXPECT_EQ(reader.next_size(), 1000u);
  const frame events = next();
  EXPECT_EQ(events.kind, frame_kind::events);
  EXPECT_EQ(events.records, 8u);
  EXPECT_EQ(events.content, zeros);
  EXPECT_FALSE(reader.at_end());
  EXPECT_EQ(reader.offset(), file.size() - 20);
  EXPECT_EQ(reader.next_size(), 0u);
  EXPECT_EQ(next().kind, frame_kind::end);
  EXPECT_TRUE(reader.at_end());
  EXPECT_EQ(reader.next_size(), 0u);
}

TEST(frame, says_what_is_wrong_with_it) {
  EXPECT_EQ(read_first(raw_frame{}.file()), "abc");
  const std::string whole = raw_frame{}.file();
  EXPECT_EQ(read_first(whole.substr(0, 16 + 19)), "the file ends within a frame's header");
  EXPECT_EQ(read_first(whole.substr(0, 16 + 20)), "the file ends within a frame");
  EXPECT_EQ(read_first(whole.substr(0, whole.size() - 1)), "the file ends within a frame");
  for (const auto begin :
       {"\0\0\0\0"sv, "\x04\0\0\0"sv, "\x02\x02\0\0"sv, "\x02\0\x01\0"sv, "\x02\0\0\x01"sv})
    EXPECT_EQ(read_first(raw_frame{.begin = std::string{begin}}.file()),
              "not the start of a frame");
  for (const auto begin : {"\x01\0\0\0"sv, "\x03\0\0\0"sv})
    EXPECT_EQ(read_first(raw_frame{.begin = std::string{begin}}.file()), "abc");
  std::string changed = whole;
  changed.back() = 'd';
  EXPECT_EQ(read_first(changed), "a frame's checksum is wrong");
  EXPECT_EQ(read_first(raw_frame{.size = 4}.file()), "a frame's sizes are inconsistent");
}

TEST(frame, names_no_size_beyond_the_limits) {
  const auto none_has = "a frame's size is invalid";
  EXPECT_EQ(read_first(raw_frame{.records = trace::most_records}.file()), "abc");
  EXPECT_EQ(read_first(raw_frame{.records = trace::most_records + 1}.file()), none_has);
  EXPECT_EQ(read_first(raw_frame{.stored = trace::most_frame_bytes}.file()),
            "the file ends within a frame");
  EXPECT_EQ(read_first(raw_frame{.stored = trace::most_frame_bytes + 1}.file()), none_has);
  EXPECT_EQ(read_first(raw_frame{.size = trace::most_frame_bytes}.file()),
            "a frame's sizes are inconsistent");
  EXPECT_EQ(read_first(raw_frame{.size = trace::most_frame_bytes + 1}.file()), none_has);
}

TEST(frame, whose_compression_says_another_size_is_damaged) {
  std::string packed;
  trace::put_frame(packed, frame_kind::events, 1, std::string(1000, 'x'), trace::find_zstd(), 3);
  const std::string content = packed.substr(trace::frame_header_size);
  const auto read_as = [&](const std::string& bytes, std::uint32_t size) {
    return read_first(raw_frame{.begin = {"\x02\x01\0\0", 4},
                                .content = bytes,
                                .stored = static_cast<std::uint32_t>(bytes.size()),
                                .size = size}
                          .file());
  };
  EXPECT_EQ(read_as(content, 1000), std::string(1000, 'x'));
  EXPECT_EQ(read_as(content, 999), "a frame's compression is damaged");
  EXPECT_EQ(read_as(content, 1001), "a frame's compression is damaged");
  EXPECT_EQ(read_as("garbage", 1000), "a frame's compression is damaged");
}

// --- Files --------------------------------------------------------------------------------------

class file_writer_test : public ::testing::Test {
 protected:
  trace::file_writer writer() {
    return trace::file_writer::create(folder_.path("a"), nullptr, 0).value();
  }
  /// Kinds and records of a file's frames.
  std::vector<std::pair<frame_kind, std::uint32_t>> frames(const std::string& path) {
    const std::string bytes = read_bytes(path);
    std::vector<std::pair<frame_kind, std::uint32_t>> all;
    for (frame_reader reader{bytes, nullptr}; !reader.at_end();) {
      const frame next = std::get<frame>(reader.next().value());
      all.emplace_back(next.kind, next.records);
    }
    return all;
  }

  scratch_folder folder_;
  const std::string part_ = folder_.path("a.") + std::to_string(getpid()) + ".part";
  const std::vector<trace_event> events_{{.kind = trace_kind::limit}, {.kind = trace_kind::limit}};
};

/// Leaves the lowest descriptor, which is a program's input, to the next file that is opened.
class without_input {
 public:
  without_input() { ::close(STDIN_FILENO); }
  ~without_input() {
    if (input_ < 0) return;
    ::dup2(input_, STDIN_FILENO);
    ::close(input_);
  }
  without_input(const without_input&) = delete;
  without_input& operator=(const without_input&) = delete;

 private:
  const int input_ = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
};

TEST_F(file_writer_test, writes_names_before_events_and_an_end) {
  auto file = writer();
  EXPECT_EQ(file.part(), part_);
  EXPECT_EQ(file.bytes_written(), 16u);
  file.names().text(trace::name_kind::program, "p");
  file.names().text(trace::name_kind::device, "d");
  ASSERT_TRUE(file.write_events(events_, {}));
  EXPECT_TRUE(file.names().empty());
  EXPECT_EQ(file.bytes_written(), std::filesystem::file_size(part_));
  ASSERT_TRUE(file.write_events({}, {}));
  ASSERT_TRUE(file.write_names());
  ASSERT_TRUE(file.write_events(events_, {}));
  file.names().number(trace::name_kind::dropped, 3);
  ASSERT_TRUE(file.finish());
  EXPECT_EQ(file.bytes_written(), std::filesystem::file_size(folder_.path("a")));
  using enum frame_kind;
  EXPECT_THAT(frames(folder_.path("a")),
              ElementsAre(std::pair{names, 2}, std::pair{events, 2}, std::pair{events, 2},
                          std::pair{names, 1}, std::pair{end, 1}));
  EXPECT_TRUE(read_bytes(folder_.path("a")).ends_with('\x04')) << "how many events there are";
  EXPECT_EQ(folder_.files(), 1u);
}

TEST_F(file_writer_test, leaves_its_part_if_there_is_something_in_it) {
  {
    auto file = writer();
    file.names().text(trace::name_kind::program, "p");
    ASSERT_TRUE(file.write_names());
    EXPECT_TRUE(std::filesystem::exists(part_));
  }
  EXPECT_EQ(folder_.files(), 0u) << "names are nothing";
  {
    auto file = writer();
    ASSERT_TRUE(file.write_events(events_, {}));
  }
  EXPECT_TRUE(std::filesystem::exists(part_));
  {
    auto file = writer();
    ASSERT_TRUE(file.write_events(events_, {}));
    EXPECT_EQ(file.part(), folder_.path("a.") + std::to_string(getpid()) + ".2.part");
    file.abandon();
    file.abandon();
  }
  EXPECT_TRUE(std::filesystem::exists(part_)) << "the part of another is left alone";
  EXPECT_EQ(folder_.files(), 1u);
}

TEST_F(file_writer_test, follows_no_link_and_opens_nothing_that_exists) {
  write_bytes(folder_.path("other"), "of another");
  std::filesystem::create_symlink(folder_.path("other"), part_);
  ASSERT_EQ(::mkfifo((folder_.path("a.") + std::to_string(getpid()) + ".2.part").c_str(), 0600), 0);
  auto file = writer();
  EXPECT_EQ(file.part(), folder_.path("a.") + std::to_string(getpid()) + ".3.part");
  ASSERT_TRUE(file.write_events(events_, {}));
  ASSERT_TRUE(file.finish());
  EXPECT_EQ(read_bytes(folder_.path("other")), "of another");
  EXPECT_TRUE(std::filesystem::is_symlink(part_));
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder_.path("a"))));
}

TEST_F(file_writer_test, does_not_write_to_a_descriptor_that_is_the_programs_now) {
  const without_input freed;
  auto file = writer();
  ASSERT_TRUE(file.write_events(events_, {}));
  ::close(STDIN_FILENO);  // as closefrom() does
  const int own = ::open(folder_.path("own").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(own, STDIN_FILENO);
  ASSERT_EQ(::write(own, "own", 3), 3);
  ASSERT_TRUE(file.write_events(events_, {}));
  ASSERT_TRUE(file.finish());
  EXPECT_EQ(read_bytes(folder_.path("own")), "own");
  EXPECT_EQ(::lseek(own, 0, SEEK_CUR), 3) << "it is still open";
  EXPECT_THAT(frames(folder_.path("a")),
              ElementsAre(std::pair{frame_kind::events, 2}, std::pair{frame_kind::events, 2},
                          std::pair{frame_kind::end, 1}));
}

TEST_F(file_writer_test, keeps_a_file_that_appeared_in_the_meantime) {
  write_bytes(folder_.path("a"), "before");
  auto file = writer();
  ASSERT_TRUE(file.finish());
  EXPECT_NE(read_bytes(folder_.path("a")), "before");
  auto second = trace::file_writer::create(folder_.path("b.weirtrace"), nullptr, 0).value();
  write_bytes(folder_.path("b.weirtrace"), "of another");
  write_bytes(folder_.path("b.2.weirtrace"), "of a third");
  ASSERT_TRUE(second.write_events(events_, {}));
  ASSERT_TRUE(second.finish());
  EXPECT_EQ(read_bytes(folder_.path("b.weirtrace")), "of another");
  EXPECT_EQ(read_bytes(folder_.path("b.2.weirtrace")), "of a third");
  EXPECT_THAT(frames(folder_.path("b.3.weirtrace")),
              ElementsAre(std::pair{frame_kind::events, 2}, std::pair{frame_kind::end, 1}));
}

TEST_F(file_writer_test, leaves_the_standard_descriptors_to_the_program) {
  const without_input freed;
  const auto is_input_open = [] { return ::fcntl(STDIN_FILENO, F_GETFD) >= 0; };
  const auto next = [] {
    const int number = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    ::close(number);
    return number;
  };
  const int before = next();
  {
    auto file = writer();
    EXPECT_FALSE(is_input_open());
    EXPECT_NE(next(), before);
    ASSERT_TRUE(file.write_events(events_, {}));
    ASSERT_TRUE(file.finish());
    EXPECT_EQ(next(), before);
  }
  EXPECT_THAT(frames(folder_.path("a")),
              ElementsAre(std::pair{frame_kind::events, 2}, std::pair{frame_kind::end, 1}));
  EXPECT_EQ(folder_.files(), 1u);
  {
    auto file = writer();
    file.abandon();
    EXPECT_EQ(next(), before);
    EXPECT_EQ(folder_.files(), 1u);
  }
  {
    auto file = writer();
    const trace::file_writer moved{std::move(file)};
    EXPECT_NE(next(), before);
  }
  EXPECT_EQ(next(), before);
  EXPECT_FALSE(is_input_open());
  EXPECT_EQ(folder_.files(), 1u);
}

/// The levels that were asked for.
std::vector<int> compression_levels;

/// Makes nothing smaller.
constexpr trace::zstd idle_library{
    .compress =
        [](void*, std::size_t, const void*, std::size_t size, int level) {
          compression_levels.push_back(level);
          return size;
        },
    .decompress = [](void*, std::size_t, const void*, std::size_t) { return std::size_t{0}; },
    .bound = [](std::size_t size) { return size; },
    .is_error = [](std::size_t) { return 0u; },
};

TEST_F(file_writer_test, compresses_all_but_the_end_by_its_level) {
  const std::vector<trace_event> events(1000, {.kind = trace_kind::limit});
  for (const int level : {1, 19}) {
    compression_levels.clear();
    auto file = trace::file_writer::create(folder_.path("a"), &idle_library, level).value();
    file.names().text(trace::name_kind::program, std::string(1000, 'p'));
    ASSERT_TRUE(file.write_names());
    EXPECT_THAT(compression_levels, ElementsAre(level));
    trace::file_writer moved{std::move(file)};
    ASSERT_TRUE(moved.write_events(events, {}));
    EXPECT_THAT(compression_levels, ElementsAre(level, level));
    ASSERT_TRUE(moved.finish());
    EXPECT_THAT(compression_levels, ElementsAre(level, level));
    EXPECT_THAT(frames(folder_.path("a")),
                ElementsAre(std::pair{frame_kind::names, 1}, std::pair{frame_kind::events, 1000},
                            std::pair{frame_kind::end, 1}));
  }
}

TEST_F(file_writer_test, whose_part_is_gone_leaves_that_of_the_next_alone) {
  using writer_state = void (*)(trace::file_writer&);
  const auto finish = [](trace::file_writer& done) { EXPECT_TRUE(done.finish()); };
  const auto abandon = [](trace::file_writer& done) { done.abandon(); };
  const auto move = [](trace::file_writer& done) { trace::file_writer{std::move(done)}.abandon(); };
  for (const writer_state end : {writer_state{finish}, writer_state{abandon}, writer_state{move}}) {
    std::optional<trace::file_writer> first{writer()};
    end(*first);
    EXPECT_FALSE(std::filesystem::exists(part_));
    auto second = writer();
    first.reset();
    EXPECT_TRUE(std::filesystem::exists(part_));
    ASSERT_TRUE(second.write_events(events_, {}));
    ASSERT_TRUE(second.finish());
    EXPECT_THAT(frames(folder_.path("a")),
                ElementsAre(std::pair{frame_kind::events, 2}, std::pair{frame_kind::end, 1}));
  }
}

TEST_F(file_writer_test, writes_once_what_was_written_whatever_failed_before) {
  const file_size_limit small{1 << 20};  // for one that does not stop
  errno = EINTR;
  auto file = trace::file_writer::create(folder_.path("a"), nullptr, 0);
  ASSERT_TRUE(file);
  EXPECT_EQ(std::filesystem::file_size(part_), 16u);
  errno = EINTR;
  ASSERT_TRUE(file->write_events(events_, {}));
  EXPECT_EQ(std::filesystem::file_size(part_), file->bytes_written());
  ASSERT_TRUE(file->finish());
  EXPECT_THAT(frames(folder_.path("a")),
              ElementsAre(std::pair{frame_kind::events, 2}, std::pair{frame_kind::end, 1}));
}

TEST_F(file_writer_test, stays_failed) {
  auto file = writer();
  const trace_event wrong{.kind = trace_kind{}};
  const auto refused = file.write_events({&wrong, 1}, {});
  EXPECT_EQ(refused.code(), errc::invalid_argument);
  EXPECT_EQ(refused.error().detail(), "event 0: unknown kind of event");
  EXPECT_EQ(file.write_events(events_, {}).error().detail(), refused.error().detail());
  EXPECT_EQ(file.write_names().error().detail(), refused.error().detail());
  EXPECT_EQ(file.finish().error().detail(), refused.error().detail());
  EXPECT_FALSE(std::filesystem::exists(folder_.path("a")));
}

/// Makes a byte of anything.
constexpr trace::zstd shrinking_library{
    .compress = [](void*, std::size_t, const void*, std::size_t, int) { return std::size_t{1}; },
    .decompress = [](void*, std::size_t, const void*, std::size_t) { return std::size_t{0}; },
    .bound = [](std::size_t) { return std::size_t{1}; },
    .is_error = [](std::size_t) { return 0u; },
};

TEST_F(file_writer_test, refuses_names_that_are_larger_than_a_frame) {
  auto file = trace::file_writer::create(folder_.path("a"), &shrinking_library, 1).value();
  constexpr std::size_t longest = trace::most_frame_bytes - (1 + 4);  // its kind and its length
  file.names().text(trace::name_kind::program, std::string(longest, 'x'));
  EXPECT_TRUE(file.write_names());
  EXPECT_EQ(file.bytes_written(), 16u + 20u + 1u);
  file.names().text(trace::name_kind::program, std::string(longest + 1, 'x'));
  const auto refused = file.write_names();
  EXPECT_EQ(refused.code(), errc::size_overflow);
  EXPECT_EQ(refused.error().detail(), part_ + ": too many names");

  auto many = writer();
  for (std::uint32_t i = 0; i < trace::most_records; ++i)
    many.names().number(trace::name_kind::stream, 0);
  EXPECT_TRUE(many.write_names());
  for (std::uint32_t i = 0; i <= trace::most_records; ++i)
    many.names().number(trace::name_kind::stream, 0);
  EXPECT_EQ(many.write_names().code(), errc::size_overflow);
}

TEST_F(file_writer_test, says_what_cannot_be_done) {
  const auto refused = trace::file_writer::create(folder_.path("no/such"), nullptr, 0);
  EXPECT_EQ(refused.code(), errc::system);
  EXPECT_EQ(refused.error().detail(), folder_.path("no/such.") + std::to_string(getpid()) +
                                          ".part: No such file or directory");
  auto file = writer();
  ASSERT_TRUE(std::filesystem::create_directory(folder_.path("a")));
  const auto finished = file.finish();
  EXPECT_EQ(finished.code(), errc::system);
  EXPECT_EQ(finished.error().detail(), part_ + ": could not be renamed: Is a directory");
}

}  // namespace
}  // namespace weir::testing_support
