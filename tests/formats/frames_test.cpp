// SPDX-License-Identifier: Apache-2.0
// Frames of recorded stacks get function, file and line.
#include <sys/stat.h>

#include "formats/frames.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/call_stack.hpp"
#include "support/scratch.hpp"

// This file is compiled with debug information, whatever the others are.

extern "C" void* weir_test_return_address();
extern "C" void* weir_test_outer();
void* weir_test_plain(int unused);

[[gnu::noinline]] void* weir_test_return_address() {
  asm volatile("");
  return __builtin_return_address(0);
}

// The lines of the calls count.
constexpr int plain_line = __LINE__ + 2;
[[gnu::noinline]] void* weir_test_plain(int /*unused*/) {
  void* const at = weir_test_return_address();
  asm volatile("");
  return at;
}

extern "C" {  // and not static: else clang tells its mangled name, and gcc the plain one
constexpr int inlined_line = __LINE__ + 2;
[[gnu::always_inline]] inline void* weir_test_inlined() {
  void* const at = weir_test_return_address();
  asm volatile("");
  return at;
}
}
constexpr int outer_line = __LINE__ + 2;
[[gnu::noinline]] void* weir_test_outer() {
  void* const at = weir_test_inlined();
  asm volatile("");
  return at;
}

namespace weir::testing_support { namespace {

using formats::coded_frame;
using ::testing::ElementsAre;

/// The frames that one recorded frame turns into.
std::vector<std::string> named(std::string frame) {
  recording recorded;
  recorded.frames = {"forward at model.py:12", std::move(frame)};
  recorded.stacks = {{1, 0}};
  formats::name_frames(recorded);
  std::vector<std::string> texts;
  for (const std::uint32_t each : recorded.stacks.at(0)) texts.push_back(recorded.frames.at(each));
  EXPECT_EQ(texts.back(), "forward at model.py:12") << "what has words keeps them";
  texts.pop_back();
  return texts;
}

std::string text_of(const coded_frame& frame) {
  char address[32];
  std::snprintf(address, sizeof address, "+0x%llx", static_cast<unsigned long long>(frame.address));
  return (frame.function.empty() ? "" : frame.function + " at ") + frame.file + address +
         " (build " + frame.build + ")";
}

/// A frame of this file, however the compiler was told its path.
::testing::Matcher<std::string> is_line(const std::string& function, int line) {
  return ::testing::AllOf(::testing::StartsWith(function + " at "),
                          ::testing::EndsWith("/frames_test.cpp:" + std::to_string(line)));
}

TEST(frames, are_told_apart_by_their_form) {
  const auto whole =
      formats::parse_frame("f(int)+0x1c at /opt/some at +0x place/lib.so+0x4711 (build 00ab)");
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->function, "f(int)+0x1c");
  EXPECT_EQ(whole->file, "/opt/some at +0x place/lib.so");
  EXPECT_EQ(whole->address, 0x4711u);
  EXPECT_EQ(whole->build, "00ab");
  EXPECT_EQ(formats::plain_text(*whole), "f(int)+0x1c at /opt/some at +0x place/lib.so");
  const auto nameless = formats::parse_frame("/usr/bin/prog+0x10 (build 01)");
  ASSERT_TRUE(nameless);
  EXPECT_EQ(nameless->function, "");
  EXPECT_EQ(formats::plain_text(*nameless), "/usr/bin/prog+0x10");
  for (const char* const other :
       {"", "f at a.py:1", "f+0x1 at /lib.so", "/lib.so+0x1", "/lib.so (build 01)",
        "/lib.so+0x (build 01)", "/lib.so+0x1 (build )", "/lib.so+0x1 (build xy)",
        "/lib.so+0x1g (build 01)", "/lib.so+0x1 (build 01",
        "/lib.so+0x11112222333344445 (build 01)"})
    EXPECT_FALSE(formats::parse_frame(other)) << other;
}

TEST(frames, of_this_program_say_where_it_is) {
  const auto frame = formats::parse_frame(detail::describe_frame(weir_test_outer()));
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->file, std::filesystem::canonical("/proc/self/exe").string());
  // A SHA-1, or eight bytes of LLVM's linker.
  EXPECT_TRUE(frame->build.size() == 40u || frame->build.size() == 16u) << frame->build;
  EXPECT_EQ(detail::describe_frame(reinterpret_cast<void*>(0xabc)), "0xabc");
}

TEST(frames, get_lines_just_where_debug_information_is_read) {
  const auto texts = named(detail::describe_frame(weir_test_plain(1)));
  const bool has_line =
      ::testing::Value(texts, ElementsAre(is_line("weir_test_plain(int)", plain_line)));
  EXPECT_EQ(has_line, formats::reads_debug_information()) << ::testing::PrintToString(texts);
}

TEST(frames, get_function_file_and_line) {
  if (!formats::reads_debug_information()) GTEST_SKIP() << "without libdw";
  EXPECT_THAT(named(detail::describe_frame(weir_test_plain(1))),
              ElementsAre(is_line("weir_test_plain(int)", plain_line)));
}

TEST(frames, of_inlined_calls_are_frames_of_their_own) {
  if (!formats::reads_debug_information()) GTEST_SKIP() << "without libdw";
  EXPECT_THAT(named(detail::describe_frame(weir_test_outer())),
              ElementsAre(is_line("weir_test_inlined", inlined_line),
                          is_line("weir_test_outer", outer_line)));
}

TEST(frames, that_become_one_text_become_one_frame) {
  const auto frame = formats::parse_frame(detail::describe_frame(weir_test_plain(1))).value();
  recording recorded;
  coded_frame elsewhere = frame;
  elsewhere.build = "00";
  elsewhere.function = "";
  recorded.frames = {text_of(elsewhere), "g at b.py:2", formats::plain_text(elsewhere)};
  recorded.stacks = {{0, 1}, {2, 1, 77}};
  formats::name_frames(recorded);
  EXPECT_THAT(recorded.frames, ElementsAre(formats::plain_text(elsewhere), "g at b.py:2"));
  EXPECT_THAT(recorded.stacks, ElementsAre(ElementsAre(0u, 1u), ElementsAre(0u, 1u)));
}

TEST(frames, of_a_pipe_or_a_device_are_not_waited_for) {
  const scratch_folder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string{"/dev/zero"}}) {
    recording recorded;
    recorded.frames = {"f+0x1 at " + path + "+0x10 (build ab)"};
    recorded.stacks = {{0}};
    formats::name_frames(recorded);
    EXPECT_EQ(recorded.frames, std::vector<std::string>{"f+0x1 at " + path});
  }
}

TEST(frames, of_another_build_or_of_no_file_keep_what_is_known) {
  coded_frame frame = formats::parse_frame(detail::describe_frame(weir_test_plain(1))).value();
  frame.function = "f+0x1";
  for (const auto change : {+[](coded_frame& f) { f.build = std::string(40, '0'); },
                            +[](coded_frame& f) { f.file = "/nowhere/at/all"; },
                            +[](coded_frame& f) { f.address = std::uint64_t{1} << 60; }}) {
    coded_frame other = frame;
    change(other);
    EXPECT_THAT(named(text_of(other)), ElementsAre("f+0x1 at " + other.file));
    other.function = "";
    EXPECT_THAT(named(text_of(other)), ElementsAre(formats::plain_text(other)));
  }
}

TEST(frames, of_a_stripped_program_are_named_by_its_debug_file) {
  if (!formats::reads_debug_information()) GTEST_SKIP() << "without libdw";
  const scratch_folder folder;
  const auto run = [](const std::string& command) {
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  };
  const std::string stripped = folder.path("program");
  const std::string debug = folder.path("program.debug");
  const std::string self = std::filesystem::canonical("/proc/self/exe").string();
  run("objcopy --only-keep-debug '" + self + "' '" + debug + "'");
  run("cd '" + folder.path("") + "' && objcopy --strip-all --add-gnu-debuglink=program.debug '" +
      self + "' program");
  coded_frame frame = formats::parse_frame(detail::describe_frame(weir_test_plain(1))).value();
  frame.file = stripped;
  frame.function = "";
  const auto line = is_line("weir_test_plain(int)", plain_line);
  EXPECT_THAT(named(text_of(frame)), ElementsAre(line)) << "beside it";
  std::filesystem::create_directory(folder.path(".debug"));
  std::filesystem::rename(debug, folder.path(".debug/program.debug"));
  EXPECT_THAT(named(text_of(frame)), ElementsAre(line)) << "in .debug";
  std::filesystem::remove_all(folder.path(".debug"));
  EXPECT_THAT(named(text_of(frame)), ElementsAre(formats::plain_text(frame))) << "nowhere";

  // With symbols and without lines.
  run("objcopy --strip-debug '" + self + "' '" + stripped + "'");
  const auto texts = named(text_of(frame));
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_THAT(texts[0],
              ::testing::MatchesRegex("weir_test_plain\\(int\\)\\+0x[0-9a-f]+ at .*/program"));
}

TEST(sites, are_the_innermost_frame_that_is_the_users) {
  recording recorded;
  recorded.frames = {"weir::allocate at a.cpp:1", "operator new at /usr/include/c++/new:2",
                     "mine at b.cpp:3", "main at c.cpp:4"};
  recorded.stacks = {{0, 1, 2, 3}, {0, 1}, {}, {9}, {3}};
  EXPECT_EQ(formats::site_frame(recorded, 1), "mine at b.cpp:3");
  EXPECT_EQ(formats::site_frame(recorded, 2), "weir::allocate at a.cpp:1");
  EXPECT_EQ(formats::site_frame(recorded, 5), "main at c.cpp:4");
  for (const std::uint32_t none : {0u, 3u, 4u, 6u})
    EXPECT_EQ(formats::site_frame(recorded, none), "") << none;
}

}  // namespace
}  // namespace weir::testing_support
