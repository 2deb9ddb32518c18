// SPDX-License-Identifier: Apache-2.0
// Any file by its content: compressed or not, whatever its name.
#include "formats/open.hpp"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <optional>

#include "formats/lines.hpp"
#include "formats/output.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/scratch.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::testing_support { namespace {

using formats::read_recording;

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

/// A CSV trace of so many bytes.
std::string csv_of(std::size_t size) {
  std::string text = csv;
  text.resize(size, '#');
  return text;
}

constexpr std::size_t piece = 1 << 18;  // in which files are read and inflated

TEST(open, reads_files_of_any_size) {
  const scratch_folder folder;
  for (const std::size_t size : {piece - 1, piece, piece + 1, 2 * piece, 5 * piece + 7}) {
    const std::string plain = csv_of(size);
    write_bytes(folder.path("f"), plain);
    EXPECT_EQ(formats::read_file(folder.path("f")).value(), plain);
    EXPECT_EQ(formats::decompress(gzipped(plain)).value(), plain);
    EXPECT_EQ(formats::decompress(zstded(plain)).value(), plain);
    EXPECT_EQ(formats::decompress(gzipped(csv) + gzipped(plain)).value(), csv + plain);
    EXPECT_EQ(formats::decompress(zstded(csv) + zstded(plain)).value(), csv + plain);
    EXPECT_EQ(formats::decompress(plain).value(), plain);
  }
}

TEST(open, refuses_what_is_compressed_and_cut) {
  for (const std::size_t size : {csv.size(), piece, 2 * piece}) {
    const std::string gzip = gzipped(csv_of(size));
    for (std::size_t missing = 1; missing < gzip.size() - 2; missing += missing < 20 ? 1 : 50) {
      const auto cut = formats::decompress(gzip.substr(0, gzip.size() - missing));
      ASSERT_FALSE(cut) << size << " without " << missing;
      EXPECT_EQ(cut.code(), errc::system);
      EXPECT_EQ(cut.error().detail(), "gzip: the file is incomplete");
    }
    const std::string zstd = zstded(csv_of(size));
    for (std::size_t missing = 1; missing < zstd.size() - 4; missing += missing < 20 ? 1 : 50) {
      const auto cut = formats::decompress(zstd.substr(0, zstd.size() - missing));
      ASSERT_FALSE(cut) << size << " without " << missing;
      EXPECT_EQ(cut.code(), errc::system);
      EXPECT_EQ(cut.error().detail(), "zstd: the file is incomplete");
    }
  }
}

TEST(open, titles_recordings_by_their_files) {
  const auto title = [](std::string_view name) {
    return formats::read_recording_from(csv, name).value().program;
  };
  EXPECT_EQ(title("runs/of.today/gpt2.trace.gz"), "gpt2");
  EXPECT_EQ(title("gpt2.csv.zst"), "gpt2");
  EXPECT_EQ(title("a/gpt2.snapshot.pickle.gz"), "gpt2");
  EXPECT_EQ(title("gpt2.snapshot"), "gpt2");
  EXPECT_EQ(title("gpt2.pkl"), "gpt2");
  EXPECT_EQ(title("gpt2.log"), "gpt2");
  EXPECT_EQ(title("gpt2.weirtrace"), "gpt2");
  EXPECT_EQ(title("gpt2"), "gpt2");
  // What has a title keeps it.
  const scratch_folder folder;
  recording recorded;
  recorded.program = "its own";
  ASSERT_TRUE(write_trace(recorded, folder.path("t")));
  EXPECT_EQ(read_recording(folder.path("t")).value().program, "its own");
}

TEST(open, takes_peaks_from_beside_the_trace) {
  const scratch_folder folder;
  write_bytes(folder.path("run.trace.gz"), gzipped(csv));
  EXPECT_TRUE(read_recording(folder.path("run.trace.gz")).value().peaks.empty());
  write_bytes(folder.path("peaks.csv"), "t,s,a,r,a,d,e,x\nrun,1,1,30,4,50,60,70\n");
  const auto read = read_recording(folder.path("run.trace.gz")).value();
  EXPECT_EQ(read.program, "run");
  EXPECT_EQ(read.peaks, (std::vector<recorded_peak>{{"torch-default", bytes{30}, bytes{50}},
                                                    {"torch-expandable", bytes{60}, bytes{70}}}));
  recording with_peaks;  // its own
  with_peaks.program = "run";
  with_peaks.peaks = {{"balanced", bytes{1}, bytes{2}}};
  ASSERT_TRUE(write_trace(with_peaks, folder.path("run.weirtrace")));
  EXPECT_EQ(read_recording(folder.path("run.weirtrace")).value().peaks, with_peaks.peaks);
  write_bytes(folder.path("peaks.csv"), "something else\n");
  EXPECT_TRUE(read_recording(folder.path("run.trace.gz")).value().peaks.empty());
}

/// Nobody asked for it: it must not make the command wait, or read without end.
TEST(open, peaks_beside_the_trace_are_those_of_a_short_regular_file) {
  const scratch_folder folder;
  write_bytes(folder.path("run.csv"), csv);
  ASSERT_EQ(::mkfifo(folder.path("peaks.csv").c_str(), 0600), 0);
  EXPECT_TRUE(read_recording(folder.path("run.csv")).value().peaks.empty());
  const auto pipe = formats::read_regular_file(folder.path("peaks.csv"));
  EXPECT_EQ(pipe.code(), errc::system);
  EXPECT_EQ(pipe.error().detail(), folder.path("peaks.csv") + ": expected a regular file");
  ASSERT_EQ(::unlink(folder.path("peaks.csv").c_str()), 0);
  EXPECT_EQ(formats::read_regular_file(folder.path("peaks.csv")).code(), errc::not_found);
  EXPECT_EQ(formats::read_regular_file(folder.path("")).code(), errc::system) << "a folder";
  std::string peaks = "t,s,a,r,a,d,e,x\nrun,1,1,30,4,50,60,70\n";
  write_bytes(folder.path("peaks.csv"), peaks);
  EXPECT_EQ(read_recording(folder.path("run.csv")).value().peaks.size(), 2u);
  for (int i = 0; i < 20; ++i) peaks += std::string(1 << 20, 'x') + ",1,1,30,4,50,60,70\n";
  write_bytes(folder.path("peaks.csv"), peaks);
  EXPECT_TRUE(read_recording(folder.path("run.csv")).value().peaks.empty());
}

TEST(open, a_choice_of_device_has_no_effect_on_what_is_not_a_snapshot) {
  const auto is_ignored = [](std::string_view bytes, std::optional<std::uint64_t> device) {
    bool ignored = false;
    EXPECT_TRUE(
        formats::read_recording_from(bytes, "x", {}, {.device = device, .is_ignored = &ignored}));
    return ignored;
  };
  EXPECT_TRUE(is_ignored(csv, 7));
  EXPECT_FALSE(is_ignored(csv, {}));
  EXPECT_FALSE(is_ignored("\x80\x04].", {}));
}

TEST(open, refuses_with_the_path) {
  const scratch_folder folder;
  const auto refused = [&](std::string bytes, errc code, std::string why) {
    write_bytes(folder.path("f"), bytes);
    const auto read = read_recording(folder.path("f"));
    ASSERT_FALSE(read) << why;
    EXPECT_EQ(read.code(), code) << read.error().message();
    EXPECT_EQ(read.error().detail(), folder.path("f") + ":" + why);
    EXPECT_EQ(formats::read_recording_from(bytes, folder.path("f")).error().detail(),
              read.error().detail());
  };
  EXPECT_EQ(read_recording(folder.path("none")).code(), errc::not_found);
  EXPECT_EQ(read_recording(folder.path("none")).error().detail(),
            folder.path("none") + ": No such file or directory");
  EXPECT_EQ(read_recording(folder.path("")).code(), errc::system);
  refused("", errc::invalid_argument, " the file is empty");
  refused(gzipped(""), errc::invalid_argument, " the file is empty");
  refused(
      "\x7f"
      "ELF and so on",
      errc::invalid_argument,
      " unknown format; expected a .weirtrace, a CSV trace, a PyTorch snapshot or an RMM log");
  refused(gzipped(csv).substr(0, 40), errc::system, " gzip: the file is incomplete");
  refused(zstded(csv).substr(0, 30), errc::system, " zstd: the file is incomplete");
  refused("\x1f\x8b garbage", errc::system, " gzip: unknown compression method");
  std::string checksum = gzipped(csv);
  checksum[checksum.size() - 8] ^= 1;
  refused(checksum, errc::system, " gzip: incorrect data check");
  refused(gzipped(csv) + "x", errc::system, " gzip: the file is incomplete");
  refused("\x28\xb5\x2f\xfd garbage", errc::system, " zstd: Data corruption detected");
  refused(csv + "r,9,,0,0\n", errc::invalid_argument, "4: the block was not allocated before");
}

TEST(lines, are_cut_at_their_ends) {
  std::vector<std::pair<std::string, std::size_t>> lines;
  const auto collect = [&](std::string_view line, std::size_t count) -> result<void> {
    lines.emplace_back(line, count);
    if (line == "stop") return errc::invalid_argument;
    return {};
  };
  EXPECT_TRUE(formats::for_each_line("a\r\n\nb\rc\nd", collect));
  EXPECT_THAT(lines, ::testing::ElementsAre(std::pair{"a", 1}, std::pair{"", 2},
                                            std::pair{"b\rc", 3}, std::pair{"d", 4}));
  lines.clear();
  EXPECT_EQ(formats::for_each_line("stop\nx", collect).code(), errc::invalid_argument);
  EXPECT_EQ(lines.size(), 1u);
}

TEST(lines, have_fields_and_numbers) {
  EXPECT_THAT(*formats::fields<3>("a,,c"), ::testing::ElementsAre("a", "", "c"));
  EXPECT_FALSE(formats::fields<3>("a,b"));
  EXPECT_FALSE(formats::fields<3>("a,b,c,d"));
  EXPECT_EQ(formats::number("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(formats::number("ff", 16), 255u);
  for (const char* const text : {"", "18446744073709551616", "-1", "1 ", " 1", "0x1", "1.0"})
    EXPECT_FALSE(formats::number(text)) << text;
}

TEST(open, refuses_files_that_grow_without_end) {
  const std::string zeros(std::size_t{1} << 22, '\0');
  const formats::input_limits small{.bytes = 1 << 20};
  for (const auto& bytes : {gzipped(zeros), zstded(zeros)}) {
    ASSERT_LT(bytes.size(), 1u << 14);
    const auto refused = formats::read_recording_from(bytes, "x", small);
    EXPECT_EQ(refused.code(), errc::limit_exceeded);
    EXPECT_EQ(refused.error().detail(), "x: the file is too large");
    EXPECT_EQ(refused.error().requested(), weir::bytes{1 << 20});
  }
  // Without limits of the caller's own, what a file of this size is believed to hold.
  const formats::input_limits of_small = formats::input_limits{}.of_file(1000);
  EXPECT_EQ(of_small.bytes, (256u << 20) + 1024u * 1000);
  EXPECT_EQ(of_small.events, (4u << 20) + 128u * 1000);
  EXPECT_EQ(formats::input_limits{}.of_file(std::uint64_t{1} << 40).bytes, std::uint64_t{8} << 30);
  EXPECT_EQ(small.of_file(1).bytes, small.bytes);
  const auto bomb = formats::read_recording_from(
      zstded(std::string((std::size_t{256} << 20) + (std::size_t{2} << 20) * 64, '\0')), "x");
  EXPECT_EQ(bomb.code(), errc::limit_exceeded);
  // The limit itself is allowed.
  const scratch_folder folder;
  for (const std::uint64_t size : {std::uint64_t{1000}, std::uint64_t{piece}}) {
    const std::string text = csv_of(size);
    write_bytes(folder.path("f"), text);
    EXPECT_TRUE(formats::read_file(folder.path("f"), {.bytes = size}));
    EXPECT_TRUE(formats::decompress(gzipped(text), {.bytes = size}));
    EXPECT_TRUE(formats::decompress(zstded(text), {.bytes = size}));
    EXPECT_EQ(formats::read_file(folder.path("f"), {.bytes = size - 1}).error().detail(),
              folder.path("f") + ": the file is too large");
    EXPECT_EQ(formats::decompress(gzipped(text), {.bytes = size - 1}).code(), errc::limit_exceeded);
    EXPECT_EQ(formats::decompress(zstded(text), {.bytes = size - 1}).code(), errc::limit_exceeded);
  }
  // And so are the events of any format.
  ASSERT_TRUE(write_trace(formats::read_recording_from(csv, "x").value(), folder.path("t")));
  for (const std::string& text : {csv, read_bytes(folder.path("t"))}) {
    EXPECT_TRUE(formats::read_recording_from(text, "x", {.events = 2}));
    EXPECT_EQ(formats::read_recording_from(text, "x", {.events = 1}).code(), errc::limit_exceeded);
  }
}

}  // namespace
}  // namespace weir::testing_support
