// Any file by its content: compressed or not, whatever its name; the shipped traces.
#include "formats/open.hpp"

#include <zlib.h>
#include <zstd.h>

#include "formats/output.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/scratch.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::testing_support {
namespace {

using formats::read_recording;
using ::testing::HasSubstr;

std::string gzipped(std::string_view text) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}
std::string zstded(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

const std::string csv = "# op,id,bytes,stream,t_us\na,1,100,0,3\nr,1,,0,5\n";

TEST(open, tells_files_apart_by_their_content) {
  const scratch_folder folder;
  recording recorded;
  recorded.events = {{.address = 1, .size = 2, .kind = trace_kind::allocate}};
  ASSERT_TRUE(write_trace(recorded, folder.path("t")));
  const std::string trace = read_bytes(folder.path("t"));
  const std::string log =
      "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.000001,allocate,0x10,4,0x0\n";
  const std::string pickle{"\x80\x04]."};
  const std::pair<std::string, std::size_t> all[] = {{csv, 2}, {trace, 1}, {log, 1}, {pickle, 0}};
  for (const auto& [plain, events] : all) {
    for (const auto& bytes : {plain, gzipped(plain), zstded(plain),
                              gzipped(plain.substr(0, 3)) + gzipped(plain.substr(3))}) {
      write_bytes(folder.path("name.says.nothing"), bytes);
      const auto read = read_recording(folder.path("name.says.nothing"));
      ASSERT_TRUE(read) << read.error().message();
      EXPECT_EQ(read->events.size(), events);
      EXPECT_FALSE(read->damage);
    }
  }
}

TEST(open, takes_peaks_from_beside_the_trace) {
  const scratch_folder folder;
  write_bytes(folder.path("run.trace.gz"), gzipped(csv));
  EXPECT_TRUE(read_recording(folder.path("run.trace.gz")).value().peaks.empty());
  write_bytes(folder.path("peaks.csv"), "t,s,a,r,a,d,e,x\nrun,1,1,30,4,50,60,70\n");
  const auto read = read_recording(folder.path("run.trace.gz")).value();
  EXPECT_EQ(read.program, "run");
  ASSERT_EQ(read.peaks.size(), 2u);
  EXPECT_EQ(read.peaks[0], (recorded_peak{"torch-default", bytes{30}, bytes{50}}));
  write_bytes(folder.path("peaks.csv"), "something else\n");
  EXPECT_TRUE(read_recording(folder.path("run.trace.gz")).value().peaks.empty());
}

TEST(open, refuses_with_the_path) {
  const scratch_folder folder;
  const auto refused = [&](std::string bytes, errc code, std::string why) {
    write_bytes(folder.path("f"), bytes);
    const auto read = read_recording(folder.path("f"));
    ASSERT_FALSE(read) << why;
    EXPECT_EQ(read.code(), code) << read.error().message();
    EXPECT_THAT(read.error().detail, ::testing::AllOf(HasSubstr(folder.path("f")), HasSubstr(why)));
  };
  EXPECT_EQ(read_recording(folder.path("none")).code(), errc::not_found);
  EXPECT_EQ(read_recording(folder.path("")).code(), errc::system);
  refused("", errc::invalid_argument, "empty");
  refused(gzipped(""), errc::invalid_argument, "empty");
  refused(
      "\x7f"
      "ELF and so on",
      errc::invalid_argument, "neither a .weirtrace");
  refused(gzipped(csv).substr(0, 40), errc::system, "gzip");
  refused(zstded(csv).substr(0, 30), errc::system, "zstd");
  refused("\x1f\x8b garbage", errc::system, "gzip");
  refused("\x28\xb5\x2f\xfd garbage", errc::system, "zstd");
  refused(csv + "r,9,,0,0\n", errc::invalid_argument, ":4: the block was not allocated");
}

TEST(open, refuses_files_that_grow_without_end) {
  const std::string zeros(std::size_t{1} << 22, '\0');
  const formats::input_limits small{.bytes = 1 << 20};
  for (const auto& bytes : {gzipped(zeros), zstded(zeros)}) {
    ASSERT_LT(bytes.size(), 1u << 14);
    EXPECT_EQ(formats::read_recording_from(bytes, "x", small).code(), errc::limit_exceeded);
  }
}

TEST(open, shipped_traces_say_what_was_recorded) {
  std::uint64_t total = 0;
  for (const std::string name :
       {"vit_train", "gpt2_train", "gpt2_two_steps", "bert_varlen", "moe_train", "gnn_sample",
        "llama_ckpt_varlen", "multistream_prefetch", "serve_short"}) {
    const std::string path = std::string{WEIR_TRACES_FOLDER} + "/" + name + ".weirtrace";
    total += std::filesystem::file_size(path);
    const auto shipped = read_recording(path).value();
    const auto text =
        read_recording(std::string{WEIR_DATA_FOLDER} + "/traces/" + name + ".trace.gz").value();
    EXPECT_FALSE(shipped.damage);
    EXPECT_EQ(shipped.events, text.events) << name;
    EXPECT_EQ(shipped.streams, text.streams);
    EXPECT_EQ(shipped.peaks, text.peaks);
    EXPECT_EQ(shipped.peaks.size(), 2u);
    EXPECT_EQ(shipped.program, name);
    EXPECT_FALSE(shipped.real_addresses);
  }
  EXPECT_LT(total, 4'000'000u);
}

}  // namespace
}  // namespace weir::testing_support
