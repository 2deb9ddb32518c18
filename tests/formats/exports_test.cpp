// The files for other programs, compared with those that a person checked.
#include <cstdlib>
#include <fstream>

#include "formats/chrome_trace.hpp"
#include "formats/csv_trace.hpp"
#include "formats/memory_map.hpp"
#include "formats/output.hpp"
#include "formats/torch_snapshot.hpp"
#include "gtest/gtest.h"
#include "support/scratch.hpp"

namespace weir::testing_support {
namespace {

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

TEST(exports, torch_snapshot) {
  expect_golden(formats::torch_snapshot_of(sample()), "snapshot.pickle");
}

TEST(exports, csv_trace) {
  // Without a word on when memory could be used again, that is at the free; ids are numbers.
  EXPECT_EQ(formats::csv_trace_of(sample()),
            "op,id,bytes,stream,t_us\n"
            "a,1,1000,0,2\n"
            "a,2,500,7,2\n"
            "r,1,,0,4\n"
            "f,1,,0,4\n");
}

TEST(exports, csv_traces_are_read_back_as_they_were) {
  const std::string text =
      "op,id,bytes,stream,t_us\n"
      "a,9,1000,3,2\n"
      "r,9,,3,4\n"
      "a,4,10,3,5\n"
      "f,9,,3,6\n";
  EXPECT_EQ(formats::csv_trace_of(formats::read_csv_trace(text, "x").value()), text);
}

using change = std::pair<std::uint64_t, std::int64_t>;

/// What each event did to reserved memory: addresses, and sizes with their sign.
std::vector<std::vector<change>> changes_in(const recording& recorded) {
  formats::memory_map map{recorded};
  std::vector<std::vector<change>> all;
  for (const trace_event& each : recorded.events) {
    map.apply(each);
    all.emplace_back();
    for (const auto& one : map.changes()) {
      const auto size = static_cast<std::int64_t>(one.size);
      all.back().emplace_back(one.address, one.reserved ? size : -size);
    }
  }
  return all;
}

TEST(exports, memory_that_was_reserved_before_the_recording_appears_with_its_first_block) {
  using enum trace_kind;
  recording recorded;
  recorded.streams = {0};
  recorded.events = {
      {.address = 0x1000, .size = 0x1000, .kind = reserve},
      {.address = 0x800, .size = 0x1800, .extra = 0x2000, .kind = allocate},  // both sides missing
      {.address = 0x800, .size = 0x1800, .kind = deallocate},
      {.address = 0x900, .size = 0x200, .extra = 0x200, .kind = allocate},  // known by now
      {.address = 0x0, .size = 0x1200, .kind = reserve},                    // half of it known
      {.address = 0x2400, .size = 0x1000, .kind = release},                 // most of it unknown
      {.address = 0x9000, .size = 0x1000, .extra = 0x1000, .kind = move},
  };
  using list = std::vector<std::vector<change>>;
  EXPECT_EQ(changes_in(recorded), (list{{{0x1000, 0x1000}},
                                        {{0x800, 0x800}, {0x2000, 0x800}},
                                        {},
                                        {},
                                        {{0x0, 0x800}},
                                        {{0x2400, -0x400}},
                                        {{0x1000, -0x1000}, {0x9000, 0x1000}}}));
}

TEST(exports, memory_comes_and_goes_with_blocks_where_no_reservation_is_recorded) {
  using enum trace_kind;
  recording recorded;
  recorded.streams = {0};
  recorded.events = {{.address = 0x1000, .size = 100, .kind = allocate},
                     {.address = 0x1200, .size = 513, .kind = allocate},
                     {.address = 0x1000, .size = 100, .kind = deallocate},
                     {.address = 0x1200, .size = 513, .kind = deallocate}};
  using list = std::vector<std::vector<change>>;
  EXPECT_EQ(changes_in(recorded),
            (list{{{0x1000, 512}}, {{0x1200, 1024}}, {{0x1000, -512}}, {{0x1200, -1024}}}));
  // Freed in two steps, it stays until the second.
  recorded.real_addresses = false;
  recorded.events[2].kind = deallocate;
  recorded.events[3] = {.address = 0x1000, .size = 100, .kind = reusable};
  const std::uint64_t first = std::uint64_t{1} << 40;
  EXPECT_EQ(changes_in(recorded),
            (list{{{first, 512}}, {{first + 512, 1024}}, {}, {{first, -512}}}));
}

TEST(exports, files_appear_whole_or_not_at_all) {
  const scratch_folder folder;
  ASSERT_TRUE(formats::write_chrome_trace(sample(), folder.path("a")));
  EXPECT_EQ(read_bytes(folder.path("a")), formats::chrome_trace_of(sample()));
  ASSERT_TRUE(formats::write_torch_snapshot(sample(), folder.path("a")));
  ASSERT_TRUE(formats::write_csv_trace(sample(), folder.path("a")));
  EXPECT_EQ(folder.files(), 1u);
  EXPECT_EQ(formats::write_file(folder.path("no/such"), "x").code(), errc::system);
  EXPECT_EQ(formats::write_file("/dev/full/x", "x").code(), errc::system);
}

}  // namespace
}  // namespace weir::testing_support
