// SPDX-License-Identifier: Apache-2.0
// The files for other programs, compared with those that a person checked.
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "formats/chrome_trace.hpp"
#include "formats/csv_trace.hpp"
#include "formats/output.hpp"
#include "formats/torch_snapshot.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/scratch.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;

recording sample() {
  recording recorded;
  recorded.program = "a \"program\"";
  recorded.tags = {"", "weights"};
  recorded.streams = {0, 7};
  recorded.threads = {4000};
  recorded.texts = {"step 1\n"};
  recorded.frames = {"run at run.cpp:70", "0x1234"};
  recorded.stacks = {{0, 1}};
  using enum trace_kind;
  recorded.events = {
      {.time = 1000, .address = 0x200000, .size = 0x200000, .kind = reserve},
      {.time = 2000,
       .address = 0x200000,
       .size = 1000,
       .extra = 1024,
       .other = 1,
       .tag = 1,
       .kind = allocate},
      {.time = 2500, .address = 0x200400, .size = 500, .extra = 512, .stream = 1, .kind = allocate},
      {.time = 3000, .other = 0, .kind = marker},
      {.time = 4000, .address = 0x200000, .size = 1000, .kind = deallocate},
      {.time = 5000, .address = 0x800000, .size = 0x100000, .extra = 0x300000, .kind = move},
      {.time = 6000, .size = 1 << 30, .stream = 1, .kind = out_of_memory},
      {.time = 7000, .stream = 1, .other = 0, .kind = wait},
  };
  return recorded;
}

/// Written anew with WEIR_WRITE_DOCUMENTS set.
void expect_golden(const std::string& text, const std::string& file) {
  const std::string path = std::string{WEIR_DATA_FOLDER} + "/formats/" + file;
  if (std::getenv("WEIR_WRITE_DOCUMENTS") != nullptr) write_bytes(path, text);
  EXPECT_EQ(text, read_bytes(path)) << file;
}

TEST(exports, chrome_trace) {
  expect_golden(formats::chrome_trace_of(sample()), "chrome.json");
  EXPECT_EQ(formats::chrome_trace_of(sample(), {.blocks = false}).find("\"ph\":\"b\""),
            std::string::npos);
}

/// The lines of a Chrome trace between its first and its last.
std::vector<std::string> chrome_lines(const recording& recorded,
                                      const formats::chrome_options& options = {}) {
  std::istringstream text{formats::chrome_trace_of(recorded, options)};
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  EXPECT_EQ(lines.front(), R"({"displayTimeUnit":"ns","traceEvents":[)");
  EXPECT_EQ(lines.back(), "]}");
  return {lines.begin() + 1, lines.end() - 1};
}

TEST(exports, chrome_trace_of_counters_alone) {
  EXPECT_THAT(
      chrome_lines(sample(), {.blocks = false}),
      ElementsAre(
          R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"a \"program\""}},)",
          R"({"ph":"M","pid":1,"tid":0,"name":"thread_name","args":{"name":"thread 4000"}},)",
          R"({"ph":"C","pid":1,"ts":1.000,"name":"memory","args":{"live":0,"reserved":2097152}},)",
          R"({"ph":"C","pid":1,"ts":1.000,"name":"live by tag","args":{"no tag":0,"weights":0}},)",
          R"({"ph":"C","pid":1,"ts":2.500,"name":"memory","args":{"live":1500,"reserved":2097152}},)",
          R"({"ph":"C","pid":1,"ts":2.500,"name":"live by tag","args":{"no tag":500,"weights":1000}},)",
          R"({"ph":"i","s":"p","pid":1,"tid":0,"ts":3.000,"name":"step 1\u000a"},)",
          R"({"ph":"C","pid":1,"ts":4.000,"name":"memory","args":{"live":500,"reserved":2097152}},)",
          R"({"ph":"C","pid":1,"ts":4.000,"name":"live by tag","args":{"no tag":500,"weights":0}},)",
          R"({"ph":"i","s":"p","pid":1,"tid":0,"ts":5.000,"name":"move"},)",
          R"({"ph":"i","s":"p","pid":1,"tid":0,"ts":6.000,"name":"out of memory: 1073741824 bytes"},)",
          R"({"ph":"i","s":"p","pid":1,"tid":0,"ts":7.000,"name":"wait"})"));
}

TEST(exports, chrome_trace_of_little_says_no_more_than_is_known) {
  using enum trace_kind;
  recording recorded;  // no title, tags, reservations, nor frees
  recorded.streams = {0};
  recorded.events = {
      {.time = 1999, .address = 1, .size = 10, .thread = 3, .kind = allocate},
      {.time = 2000, .address = 2, .size = 5, .stream = 1, .tag = 4, .kind = allocate},
      {.time = 2001, .address = 7, .kind = deallocate},
      {.time = 2002, .address = 1, .kind = reusable},
      {.time = 2003, .other = 9, .kind = marker},
      {.time = 2004, .other = 0, .kind = marker},
      {.time = 2999, .address = 2, .thread = 5, .kind = deallocate}};
  EXPECT_THAT(
      chrome_lines(recorded),
      ElementsAre(
          R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"weir"}},)",
          R"({"ph":"b","cat":"block","pid":1,"tid":3,"id":1,"ts":1.999,"name":"10 bytes","args":{"address":"0x1","stream":0}},)",
          R"({"ph":"C","pid":1,"ts":1.999,"name":"memory","args":{"live":10}},)",
          R"({"ph":"b","cat":"block","pid":1,"tid":0,"id":2,"ts":2.000,"name":"5 bytes","args":{"address":"0x2","stream":0}},)",
          R"({"ph":"i","s":"p","pid":1,"tid":0,"ts":2.003,"name":"marker"},)",
          R"({"ph":"i","s":"p","pid":1,"tid":0,"ts":2.004,"name":"marker"},)",
          R"({"ph":"e","cat":"block","pid":1,"tid":5,"id":2,"ts":2.999,"name":"5 bytes","args":{"address":"0x2","stream":0}},)",
          R"({"ph":"C","pid":1,"ts":2.000,"name":"memory","args":{"live":15}},)",
          R"({"ph":"C","pid":1,"ts":2.999,"name":"memory","args":{"live":10}})"));
}

TEST(exports, chrome_trace_of_released_memory_never_falls_below_zero) {
  using enum trace_kind;
  recording recorded;
  recorded.events = {{.time = 1000, .address = 1, .size = 100, .kind = reserve},
                     {.time = 2000, .address = 1, .size = 60, .kind = trace_kind::release},
                     {.time = 3000, .address = 1, .size = 60, .kind = trace_kind::release}};
  std::vector<std::string> counters = chrome_lines(recorded);
  counters.erase(counters.begin());
  EXPECT_THAT(
      counters,
      ElementsAre(
          R"({"ph":"C","pid":1,"ts":1.000,"name":"memory","args":{"live":0,"reserved":100}},)",
          R"({"ph":"C","pid":1,"ts":2.000,"name":"memory","args":{"live":0,"reserved":40}},)",
          R"({"ph":"C","pid":1,"ts":3.000,"name":"memory","args":{"live":0,"reserved":0}})"));
}

TEST(exports, chrome_trace_escapes_what_json_cannot_hold) {
  recording recorded;
  recorded.program = "\"\\ \x1f\x7f\xc3\xa9~";
  EXPECT_THAT(
      chrome_lines(recorded),
      ElementsAre(
          R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"\"\\ \u001f\u007fé~"}})"));
}

/// The lines of a counter, from its arguments on.
std::vector<std::string> counter_lines(const recording& recorded, const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& line : chrome_lines(recorded, {.blocks = false})) {
    if (line.find("\"name\":\"" + name + "\"") == line.npos) continue;
    const auto begin = line.find("\"args\":{") + 7;
    found.push_back(line.substr(begin, line.find('}', begin) + 1 - begin));
  }
  return found;
}

TEST(exports, chrome_trace_has_the_most_of_each_microsecond) {
  using enum trace_kind;
  recording recorded;
  recorded.streams = {0};
  recorded.events = {{.time = 0, .address = 1, .size = 2, .kind = allocate},
                     {.time = 5000, .address = 2, .size = 1000, .kind = allocate},
                     {.time = 5000, .address = 3, .size = 50, .kind = reserve},
                     {.time = 5300, .address = 2, .size = 1000, .kind = deallocate},
                     {.time = 5400, .address = 3, .size = 50, .kind = trace_kind::release}};
  EXPECT_THAT(counter_lines(recorded, "memory"),
              ElementsAre(R"({"live":2,"reserved":0})", R"({"live":1002,"reserved":0})",
                          R"({"live":1002,"reserved":50})", R"({"live":2,"reserved":0})"));
}

TEST(exports, chrome_trace_tells_tags_apart_whatever_their_names) {
  using enum trace_kind;
  recording recorded;
  recorded.streams = {0};
  recorded.tags = {"", "no tag", "gr\xc3\xb6\xc3\x9f\x65", "no tag", "bad\xff"};
  for (std::uint16_t tag = 0; tag < 5; ++tag)
    recorded.events.push_back(
        {.address = 100u + tag, .size = 1u << tag, .tag = tag, .kind = allocate});
  EXPECT_THAT(
      counter_lines(recorded, "live by tag"),
      ElementsAre("{\"(no tag)\":1,\"no tag\":10,\"gr\xc3\xb6\xc3\x9f\x65\":4,\"bad\\ufffd\":16}"));
}

TEST(exports, chrome_trace_of_many_tags_has_those_that_held_most) {
  using enum trace_kind;
  recording recorded;
  recorded.streams = {0};
  for (std::uint16_t tag = 1; tag <= 200; ++tag) {
    recorded.tags.push_back("tag " + std::to_string(tag));
    recorded.events.push_back(
        {.time = tag * 1000u, .address = tag, .size = tag, .tag = tag, .kind = allocate});
  }
  const auto lines = counter_lines(recorded, "live by tag");
  ASSERT_EQ(lines.size(), 200u);
  EXPECT_EQ(std::count(lines.back().begin(), lines.back().end(), ':'), 34);
  EXPECT_NE(lines.back().find("\"tag 169\":169,"), std::string::npos) << lines.back();
  EXPECT_EQ(lines.back().find("\"tag 168\""), std::string::npos);
  EXPECT_NE(lines.back().find("\"other tags\":14196}"), std::string::npos);  // 1 + … + 168
}

TEST(exports, torch_snapshot) {
  expect_golden(formats::torch_snapshot_of(sample()), "snapshot.pickle");
}

TEST(exports, csv_trace) {
  // Where the recording does not say when memory could be used again, nor does the trace.
  EXPECT_EQ(formats::csv_trace_of(sample()),
            "op,id,bytes,stream,t_us\n"
            "a,1,1000,0,2\n"
            "a,2,500,7,2.500\n"
            "r,1,,0,4\n");
}

TEST(exports, csv_traces_are_read_back_as_they_were) {
  const std::string text =
      "op,id,bytes,stream,t_us\n"
      "a,9,1000,3,0\n"
      "s,9,,5,1\n"
      "r,9,,3,4\n"
      "a,4,10,3,5.007\n"
      "f,9,,3,6\n"
      "r,4,,5,7\n"
      "a,4,20,3,8\n";
  EXPECT_EQ(formats::csv_trace_of(formats::read_csv_trace(text, "x").value()), text);
}

TEST(exports, csv_traces_number_the_blocks_of_real_addresses) {
  using enum trace_kind;
  recording recorded;
  recorded.streams = {5};
  recorded.events = {{.time = 1999, .address = 0x100, .size = 10, .kind = allocate},
                     {.time = 2000, .address = 0x100, .stream = 9, .kind = deallocate},
                     {.time = 3000, .address = 0x100, .kind = reusable},
                     {.time = 4000, .address = 0x100, .size = 20, .kind = allocate},
                     {.time = 5000, .address = 0x100, .kind = deallocate}};
  EXPECT_EQ(formats::csv_trace_of(recorded),
            "op,id,bytes,stream,t_us\n"
            "a,1,10,5,1.999\n"
            "r,1,,0,2\n"
            "f,1,,5,3\n"
            "a,2,20,5,4\n"
            "r,2,,5,5\n");  // it says elsewhere when memory can be used again
}

TEST(exports, files_appear_whole_or_not_at_all) {
  const scratch_folder folder;
  ASSERT_TRUE(formats::write_chrome_trace(sample(), folder.path("a")));
  EXPECT_EQ(read_bytes(folder.path("a")), formats::chrome_trace_of(sample()));
  ASSERT_TRUE(formats::write_chrome_trace(sample(), folder.path("a"), {.blocks = false}));
  EXPECT_EQ(read_bytes(folder.path("a")), formats::chrome_trace_of(sample(), {.blocks = false}));
  ASSERT_TRUE(formats::write_torch_snapshot(sample(), folder.path("a")));
  EXPECT_EQ(read_bytes(folder.path("a")), formats::torch_snapshot_of(sample()));
  ASSERT_TRUE(formats::write_csv_trace(sample(), folder.path("a")));
  EXPECT_EQ(read_bytes(folder.path("a")), formats::csv_trace_of(sample()));
  EXPECT_EQ(folder.files(), 1u);
  const auto refused = formats::write_file(folder.path("no/such"), "x");
  EXPECT_EQ(refused.code(), errc::system);
  EXPECT_EQ(refused.error().detail(), folder.path("no/such") + ": No such file or directory");
  EXPECT_EQ(formats::write_file("/dev/full/x", "x").code(), errc::system);
  // What cannot be put in its place leaves nothing.
  std::filesystem::create_directory(folder.path("folder"));
  EXPECT_EQ(formats::write_file(folder.path("folder"), "x").error().detail(),
            folder.path("folder") + ": Is a directory");
  EXPECT_EQ(folder.files(), 2u);
}

TEST(exports, files_that_the_disk_has_no_room_for_leave_what_was_there) {
  const scratch_folder folder;
  write_bytes(folder.path("a"), "precious");
  // The system's own limit stands in for a full disk; it also sends a signal.
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 4096, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto large = formats::write_file(folder.path("a"), std::string(1 << 20, 'x'));
  const auto buffered = formats::write_file(folder.path("a"), std::string(4097, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(large.error().detail(), folder.path("a") + ": File too large");
  EXPECT_EQ(buffered.error().detail(), folder.path("a") + ": File too large");
  EXPECT_EQ(read_bytes(folder.path("a")), "precious");
  EXPECT_EQ(folder.files(), 1u);
}

}  // namespace
}  // namespace weir::testing_support
