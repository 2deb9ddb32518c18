// What is written for other programs, compared with what it was when a person looked at it.
#include <cstdlib>
#include <fstream>

#include "formats/chrome_trace.hpp"
#include "formats/output.hpp"
#include "formats/torch_snapshot.hpp"
#include "gtest/gtest.h"
#include "support/scratch.hpp"

namespace weir::testing_support {
namespace {

recording sample() {
  recording made;
  made.program = "a \"program\"";
  made.tags = {"", "weights"};
  made.streams = {0, 7};
  made.threads = {4000};
  made.texts = {"step 1\n"};
  made.frames = {"run at run.cpp:70", "0x1234"};
  made.stacks = {{0, 1}};
  using enum trace_kind;
  made.events = {
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
  return made;
}

/// Written anew with WEIR_WRITE_DOCUMENTS set.
void expect_golden(const std::string& made, const std::string& file) {
  const std::string path = std::string{WEIR_DATA_FOLDER} + "/formats/" + file;
  if (std::getenv("WEIR_WRITE_DOCUMENTS") != nullptr) write_bytes(path, made);
  EXPECT_EQ(made, read_bytes(path)) << file;
}

TEST(exports, chrome_trace) {
  expect_golden(formats::chrome_trace_of(sample()), "chrome.json");
  EXPECT_EQ(formats::chrome_trace_of(sample(), {.blocks = false}).find("\"ph\":\"b\""),
            std::string::npos);
}

TEST(exports, torch_snapshot) {
  expect_golden(formats::torch_snapshot_of(sample()), "snapshot.pickle");
}

TEST(exports, files_appear_whole_or_not_at_all) {
  const scratch_folder folder;
  ASSERT_TRUE(formats::write_chrome_trace(sample(), folder.path("a")));
  EXPECT_EQ(read_bytes(folder.path("a")), formats::chrome_trace_of(sample()));
  ASSERT_TRUE(formats::write_torch_snapshot(sample(), folder.path("a")));
  EXPECT_EQ(folder.files(), 1u);
  EXPECT_EQ(formats::write_file(folder.path("no/such"), "x").code(), errc::system);
  EXPECT_EQ(formats::write_file("/dev/full/x", "x").code(), errc::system);
}

}  // namespace
}  // namespace weir::testing_support
