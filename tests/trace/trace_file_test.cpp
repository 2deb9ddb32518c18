// SPDX-License-Identifier: Apache-2.0
// .weirtrace files: what is written is read back; what is cut, damaged or hostile gives what is
// whole.
#include "trace/trace_file.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <span>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/scratch.hpp"
#include "trace/event_codec.hpp"
#include "trace/frame.hpp"
#include "trace/names.hpp"
#include "trace/varint.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::string_view_literals;

/// Something of everything, with addresses that are used again.
recording sample(std::size_t blocks = 100) {
  recording recorded;
  recorded.program = "program";
  recorded.device = "a device";
  recorded.device_capacity = bytes{80'000'000'000};
  recorded.tags = {"", "weights", "cache"};
  recorded.pools = {"", "graph"};
  recorded.streams = {0, 77, 12};
  recorded.threads = {4000, 4001};
  recorded.texts = {"step 1", "a remark with \"quotes\""};
  recorded.frames = {"main at main.cpp:3", "run at run.cpp:70"};
  recorded.stacks = {{0}, {1, 0}, {}};
  recorded.peaks = {{"torch-default", bytes{10}, bytes{20}}, {"balanced", bytes{10}, bytes{11}}};
  recorded.dropped = 3;
  std::uint64_t time = 0;
  const auto add = [&](trace_event event) {
    event.time = time += 37;
    recorded.events.push_back(event);
  };
  add({.size = 1 << 30, .kind = trace_kind::limit});
  add({.address = 0x7f0000000000, .size = 2 << 20, .kind = trace_kind::reserve});
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t address = 0x7f0000000000 + 512 * (i % 50);
    const auto stream = static_cast<std::uint32_t>(i % 3);
    const auto thread = static_cast<std::uint16_t>(i % 2);
    add({.address = address,
         .size = 100 + i,
         .extra = 512,
         .stream = stream,
         .other = static_cast<std::uint32_t>(i % 4),
         .thread = thread,
         .tag = static_cast<std::uint16_t>(i % 3),
         .pool = thread,
         .kind = trace_kind::allocate});
    if (i % 5 == 0)
      add({.address = address, .size = 100 + i, .stream = 2, .kind = trace_kind::record_stream});
    add({.address = address,
         .size = 100 + i,
         .stream = (stream + 1) % 3,
         .thread = 1,
         .kind = trace_kind::deallocate});
    if (i % 2 == 0) add({.address = address, .size = 100 + i, .kind = trace_kind::reusable});
    if (i % 10 == 0) add({.other = 1, .kind = trace_kind::marker});
  }
  add({.stream = 1, .other = 2, .kind = trace_kind::wait});
  add({.address = 4096, .size = 512, .extra = 8192, .kind = trace_kind::move});
  add({.size = std::uint64_t{1} << 63, .stream = 1, .kind = trace_kind::out_of_memory});
  return recorded;
}

void expect_equal(const recording& a, const recording& b) {
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.tags, b.tags);
  EXPECT_EQ(a.pools, b.pools);
  EXPECT_EQ(a.streams, b.streams);
  EXPECT_EQ(a.threads, b.threads);
  EXPECT_EQ(a.texts, b.texts);
  EXPECT_EQ(a.stacks, b.stacks);
  EXPECT_EQ(a.frames, b.frames);
  EXPECT_EQ(a.program, b.program);
  EXPECT_EQ(a.device, b.device);
  EXPECT_EQ(a.device_capacity, b.device_capacity);
  EXPECT_EQ(a.real_addresses, b.real_addresses);
  EXPECT_EQ(a.dropped, b.dropped);
  EXPECT_EQ(a.peaks, b.peaks);
}

TEST(trace_file, reads_back_what_was_written) {
  const scratch_folder folder;
  auto recorded = sample();
  for (const int level : {0, 1, 19}) {
    recorded.real_addresses = level == 0;
    ASSERT_TRUE(write_trace(recorded, folder.path("a"), {.level = level}));
    const auto read = read_trace(folder.path("a")).value();
    EXPECT_FALSE(read.damage);
    expect_equal(read, recorded);
  }
  EXPECT_EQ(folder.files(), 1u);
}

/// Kinds and records of a file's frames.
std::vector<std::pair<trace::frame_kind, std::uint32_t>> frames(const std::string& path) {
  const std::string bytes = read_bytes(path);
  std::vector<std::pair<trace::frame_kind, std::uint32_t>> all;
  for (trace::frame_reader reader{bytes, trace::find_zstd()}; !reader.at_end();) {
    const auto next = std::get<trace::frame>(reader.next().value());
    all.emplace_back(next.kind, next.records);
  }
  return all;
}

TEST(trace_file, crosses_frames) {
  const scratch_folder folder;
  const auto recorded = sample(200'000);  // more events than a frame has
  ASSERT_TRUE(write_trace(recorded, folder.path("a"), {.level = 1}));
  const auto read = read_trace(folder.path("a")).value();
  EXPECT_FALSE(read.damage);
  EXPECT_EQ(read.events, recorded.events);
  using enum trace::frame_kind;
  const auto rest = static_cast<std::uint32_t>(recorded.events.size()) - 2 * 262'144;
  // Each is as long as all before it, until they are as long as they may be.
  EXPECT_THAT(
      frames(folder.path("a")),
      ElementsAre(std::pair{names, 21}, std::pair{events, 1'024}, std::pair{events, 1'024},
                  std::pair{events, 2'048}, std::pair{events, 4'096}, std::pair{events, 8'192},
                  std::pair{events, 16'384}, std::pair{events, 32'768}, std::pair{events, 65'536},
                  std::pair{events, 131'072}, std::pair{events, 262'144}, std::pair{events, rest},
                  std::pair{end, 1}));
}

TEST(trace_file, has_names_in_as_many_frames_as_they_need) {
  const scratch_folder folder;
  recording recorded;
  recorded.texts.assign(4, std::string(700'000, 'x'));
  recorded.frames = {"f"};
  recorded.stacks.assign(300'000, {0, 0});
  ASSERT_TRUE(write_trace(recorded, folder.path("a"), {.level = 1}));
  const auto read = read_trace(folder.path("a")).value();
  EXPECT_FALSE(read.damage);
  EXPECT_EQ(read.texts, recorded.texts);
  EXPECT_EQ(read.stacks, recorded.stacks);
  // A frame ends with what makes it larger than a mebibyte: four bytes a stack.
  using enum trace::frame_kind;
  EXPECT_THAT(frames(folder.path("a")),
              ElementsAre(std::pair{names, 2}, std::pair{names, 2}, std::pair{names, 262'145},
                          std::pair{names, 37'856}, std::pair{end, 1}));
}

/// Every byte as docs/trace-format.md has it.
TEST(trace_file, has_the_bytes_that_are_documented) {
  recording recorded;
  recorded.program = "p";
  recorded.device = "d";
  recorded.device_capacity = bytes{300};
  recorded.real_addresses = false;
  recorded.dropped = 5;
  recorded.peaks = {{"b", bytes{1}, bytes{200}}};
  recorded.tags = {"", "t"};
  recorded.pools = {"", "q"};
  recorded.streams = {9, 300};
  recorded.threads = {7};
  recorded.texts = {"x"};
  recorded.frames = {"f", "g"};
  recorded.stacks = {{1, 0}};
  using enum trace_kind;
  recorded.events = {{.time = 1000,
                      .address = 0x40,
                      .size = 100,
                      .extra = 127,
                      .stream = 1,
                      .other = 1,
                      .tag = 1,
                      .pool = 1,
                      .kind = allocate},
                     {.time = 2000, .address = 0x30, .size = 10, .kind = allocate},
                     {.time = 2000, .address = 0x40, .size = 100, .kind = record_stream},
                     {.time = 5000, .address = 0x30, .size = 10, .stream = 1, .kind = deallocate},
                     {.time = 6000, .address = 0x40, .size = 99, .stream = 1, .kind = deallocate},
                     {.time = 6000, .address = 0x30, .size = 10, .kind = reusable},
                     {.time = 6000, .other = 1, .kind = wait},
                     {.time = 7000, .other = 0, .kind = marker}};
  const scratch_folder folder;
  ASSERT_TRUE(write_trace(recorded, folder.path("a"), {.level = 0}));

  const auto expected_names =
      "\x08\x01p\x09\x01"
      "d\x0a\xac\x02\x0b\x01\x0c\x05\x0d\x01"
      "b\x01\xc8\x01"                // the peak
      "\x01\x01t\x02\x01q"           // tag, pool
      "\x03\x09\x03\xac\x02"         // streams
      "\x04\x07\x05\x01x"            // thread, text
      "\x06\x01"                     // frames
      "f\x06\x01g\x07\x02\x01\0"sv;  // and a stack of them
  const auto expected_events =
      "\xe8\x07"                                    // microseconds
      "\x01\x01\x04\x02\x02\x03\x05\x0f"            // kinds
      "\x08\x01\x01\0\x03\x01\0\0\x01"              // times
      "\x03\x80\x01\x1f\x02\x64\x0a\x02\x7f\0"      // allocations: address, size, rounded
      "\x02\x01\0\x02\x01\0\0\x02\x01\0\x02\x01\0"  // stream, stack, thread, tag, pool
      "\x02\x02\x04\x02\0\x01\0\x02\x02\0\0\0\0\0"  // frees: 1 and 2 blocks back, a byte less
      "\x01\x01\0\0\0\0\0\0\0"                      // reusable: one later than what was freed last
      "\x01\x04\0\0\x01\x01\0\0\0\0"                // record_stream: two back, a stream less
      "\0\0\0\0\x01\x01\0\0\0"                      // wait
      "\0\0\0\0\0\0\0\0"sv;                         // marker
  std::string expected = trace::file_header();
  trace::put_frame(expected, trace::frame_kind::names, 15, expected_names, nullptr, 0);
  trace::put_frame(expected, trace::frame_kind::events, 8, expected_events, nullptr, 0);
  trace::put_frame(expected, trace::frame_kind::end, 1, "\x08", nullptr, 0);
  EXPECT_EQ(read_bytes(folder.path("a")), expected);
  expect_equal(read_trace_from(expected).value(), recorded);
}

TEST(trace_file, holds_an_empty_recording) {
  const scratch_folder folder;
  ASSERT_TRUE(write_trace({}, folder.path("a")));
  const auto read = read_trace(folder.path("a")).value();
  EXPECT_FALSE(read.damage);
  EXPECT_TRUE(read.events.empty());
  EXPECT_EQ(read.streams, std::vector<std::uint64_t>{0});
  EXPECT_EQ(read.threads, std::vector<std::uint64_t>{0});
  EXPECT_THAT(read.tags, ElementsAre(""));
  EXPECT_THAT(read.pools, ElementsAre(""));
  EXPECT_TRUE(read.real_addresses);
}

TEST(trace_file, is_read_whatever_its_size) {
  const scratch_folder folder;
  auto recorded = sample(20'000);
  ASSERT_TRUE(write_trace(recorded, folder.path("a"), {.level = 0}));
  const auto size = std::filesystem::file_size(folder.path("a"));
  ASSERT_GT(size, 3u << 16);
  EXPECT_EQ(read_trace(folder.path("a")).value().events, recorded.events);
  EXPECT_TRUE(read_trace(folder.path("a"), {.bytes = size}));
  const auto refused = read_trace(folder.path("a"), {.bytes = size - 1});
  EXPECT_EQ(refused.code(), errc::limit_exceeded);
  EXPECT_EQ(refused.error().detail(), folder.path("a") + ": larger than allowed");
}

/// A file of several frames of ten events each.
std::string framed(const recording& recorded) {
  trace::name_encoder names;
  for (std::size_t i = 1; i < recorded.tags.size(); ++i)
    names.text(trace::name_kind::tag, recorded.tags[i]);
  names.text(trace::name_kind::pool, recorded.pools[1]);
  for (const auto each : recorded.streams) names.number(trace::name_kind::stream, each);
  for (const auto each : recorded.threads) names.number(trace::name_kind::thread, each);
  for (const auto& each : recorded.texts) names.text(trace::name_kind::text, each);
  for (const auto& each : recorded.frames) names.text(trace::name_kind::frame, each);
  for (const auto& each : recorded.stacks) names.stack(each);
  std::string bytes = trace::file_header();
  trace::put_frame(bytes, trace::frame_kind::names, names.entries(), names.content(), nullptr, 0);
  trace::event_encoder encoder;
  std::string problem;
  for (std::span<const trace_event> rest{recorded.events}; !rest.empty();) {
    const auto batch = rest.first(std::min<std::size_t>(rest.size(), 10));
    const auto content = encoder.encode(batch, trace::table_sizes::of(recorded), problem);
    trace::put_frame(bytes, trace::frame_kind::events, static_cast<std::uint32_t>(batch.size()),
                     content, trace::find_zstd(), 3);
    rest = rest.subspan(batch.size());
  }
  EXPECT_EQ(problem, "");
  std::string end;
  trace::put_varint(end, recorded.events.size());
  trace::put_frame(bytes, trace::frame_kind::end, 1, end, nullptr, 0);
  return bytes;
}

/// The events are a beginning of those that were written, and no frame is there in part.
void expect_beginning(const recording& read, const recording& whole) {
  ASSERT_LE(read.events.size(), whole.events.size());
  EXPECT_TRUE(std::equal(read.events.begin(), read.events.end(), whole.events.begin()));
  EXPECT_TRUE(read.events.size() % 10 == 0 || read.events.size() == whole.events.size());
}

TEST(trace_file, gives_everything_before_a_cut) {
  const auto recorded = sample(20);
  const std::string whole = framed(recorded);
  ASSERT_FALSE(read_trace_from(whole).value().damage);
  std::size_t most = 0;
  for (std::size_t length = 8; length < whole.size(); ++length) {
    const auto read = read_trace_from(std::string_view{whole}.substr(0, length)).value();
    ASSERT_TRUE(read.damage) << length;
    EXPECT_LE(read.damage->offset, length);
    EXPECT_THAT(read.damage->reason,
                ::testing::AnyOf(HasSubstr("ends within"), HasSubstr("no end")));
    expect_beginning(read, recorded);
    EXPECT_GE(read.events.size(), most);
    most = read.events.size();
  }
  EXPECT_EQ(most, recorded.events.size());
  // In the header there is nothing before it.
  const auto header = read_trace_from(std::string_view{whole}.substr(0, 15)).value();
  EXPECT_EQ(header.damage->reason, "the file ends within its header");
  EXPECT_EQ(header.damage->offset, 15u);
  EXPECT_THAT(header.streams, ElementsAre(0));
  EXPECT_THAT(header.threads, ElementsAre(0));
  const auto nothing = read_trace_from(std::string_view{whole}.substr(0, 16)).value();
  EXPECT_EQ(nothing.damage->reason,
            "the file has no end: the recording was interrupted, or the file was cut");
  EXPECT_EQ(nothing.damage->offset, 16u);
}

TEST(trace_file, has_as_many_events_as_its_end_says) {
  for (const auto content : {"\x01"sv, ""sv}) {
    std::string bytes = trace::file_header();
    trace::put_frame(bytes, trace::frame_kind::end, 1, content, nullptr, 0);
    const auto read = read_trace_from(bytes).value();
    ASSERT_TRUE(read.damage);
    EXPECT_EQ(read.damage->reason, "the number of events differs from the one at the end");
    EXPECT_EQ(read.damage->offset, 16u);
  }
}

TEST(trace_file, says_in_which_frame_names_and_events_are_wrong) {
  std::string bytes = trace::file_header();
  trace::put_frame(bytes, trace::frame_kind::names, 1, "\x03\x07", nullptr, 0);
  const std::size_t first = bytes.size();
  trace::put_frame(bytes, trace::frame_kind::names, 1, "\x77", nullptr, 0);
  const auto names = read_trace_from(bytes).value();
  EXPECT_EQ(names.damage->reason, "unknown name");
  EXPECT_EQ(names.damage->offset, first);
  EXPECT_THAT(names.streams, ElementsAre(7));
  bytes.resize(first);
  trace::put_frame(bytes, trace::frame_kind::events, 1, "\x01\x77", nullptr, 0);
  const auto events = read_trace_from(bytes).value();
  EXPECT_EQ(events.damage->reason, "unknown kind of event");
  EXPECT_EQ(events.damage->offset, first);
}

TEST(trace_file, gives_everything_before_damage) {
  const auto recorded = sample(20);
  const std::string whole = framed(recorded);
  for (std::size_t at = trace::file_header_size; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const auto read = read_trace_from(damaged).value();
    ASSERT_TRUE(read.damage) << at;
    EXPECT_LE(read.damage->offset, at);
    expect_beginning(read, recorded);
  }
  const auto longer = read_trace_from(whole + "x").value();
  ASSERT_TRUE(longer.damage);
  EXPECT_EQ(longer.damage->offset, whole.size());
  EXPECT_EQ(longer.damage->reason, "data follows the end of the trace");
  EXPECT_EQ(longer.events, recorded.events);
}

TEST(trace_file, refuses_what_is_none) {
  const scratch_folder folder;
  EXPECT_EQ(read_trace(folder.path("missing")).code(), errc::not_found);
  EXPECT_EQ(read_trace(folder.path("")).code(), errc::system);  // a folder
  write_bytes(folder.path("empty"), "");
  EXPECT_EQ(read_trace(folder.path("empty")).code(), errc::invalid_argument);
  EXPECT_EQ(read_trace_from("# op,id\n").code(), errc::invalid_argument);
  EXPECT_FALSE(is_trace(trace::magic.substr(0, 7)));
  EXPECT_TRUE(is_trace(trace::magic));
  std::string later = trace::file_header();
  later.replace(8, 4, "\x04\x03\x02\x01");
  const auto refused = read_trace_from(later);
  EXPECT_EQ(refused.code(), errc::bad_version);
  EXPECT_EQ(refused.error().detail(), "the trace has version 16909060, not 1 to 2");
  std::string damaged = trace::file_header();
  damaged[12] = static_cast<char>(damaged[12] ^ 1);
  EXPECT_EQ(read_trace_from(damaged).error().detail(), "the trace's header is damaged");
  // Of a file the path is said, too.
  write_bytes(folder.path("damaged"), damaged);
  EXPECT_EQ(read_trace(folder.path("damaged")).error().detail(),
            folder.path("damaged") + ": the trace's header is damaged");
  EXPECT_EQ(read_trace(folder.path("missing")).error().detail(),
            folder.path("missing") + ": No such file or directory");
}

TEST(trace_file, believes_no_size) {
  const auto frame_of = [](std::uint32_t records, std::string content) {
    std::string bytes = trace::file_header();
    trace::put_frame(bytes, trace::frame_kind::events, records, content, nullptr, 0);
    return bytes;
  };
  // More records than bytes, a column longer than the frame, a block that nobody allocated.
  std::string column{"\x01\x02", 2};
  trace::put_varint(column, std::uint64_t{1} << 60);
  for (const auto& bytes : {frame_of(trace::most_records, "\x01"), frame_of(1, column),
                            frame_of(1, std::string{"\x01\x02\0\0\0\0\0\0\0\0\0", 11})}) {
    const auto read = read_trace_from(bytes).value();
    ASSERT_TRUE(read.damage);
    EXPECT_TRUE(read.events.empty());
    EXPECT_LE(read.events.capacity(), 1u);
  }
  // A header that names four gigabytes is refused before they are allocated.
  std::string huge = frame_of(1, "x");
  huge.replace(trace::file_header_size + 12, 4, "\xff\xff\xff\xff");
  EXPECT_THAT(read_trace_from(huge).value().damage->reason, HasSubstr("size is invalid"));
}

TEST(trace_file, keeps_to_limits) {
  const auto recorded = sample(20);
  const std::string bytes = framed(recorded);
  const std::uint64_t events = recorded.events.size();
  EXPECT_TRUE(read_trace_from(bytes, {.events = events}));
  for (const std::uint64_t few : {events - 1, std::uint64_t{5}, std::uint64_t{0}})
    EXPECT_EQ(read_trace_from(bytes, {.events = few}).error().detail(),
              "the trace has more than " + std::to_string(few) +
                  " events, the most that may be read of it");
  std::uint64_t size = 0;  // uncompressed
  for (trace::frame_reader reader{bytes, trace::find_zstd()}; !reader.at_end();)
    size += std::get<trace::frame>(reader.next().value()).content.size();
  EXPECT_TRUE(read_trace_from(bytes, {.bytes = size}));
  const auto refused = read_trace_from(bytes, {.bytes = size - 1});
  EXPECT_EQ(refused.code(), errc::limit_exceeded);
  EXPECT_EQ(refused.error().detail(), "the trace is larger than allowed");
}

/// Names of no length: a frame of a million compresses to a few hundred bytes.
TEST(trace_file, believes_no_small_file_that_has_millions_of_names) {
  trace::name_encoder names;
  for (std::uint32_t i = 0; i < trace::most_records; ++i) names.text(trace::name_kind::text, "");
  const auto file_of = [&](int frames) {
    std::string bytes = trace::file_header();
    for (int i = 0; i < frames; ++i)
      trace::put_frame(bytes, trace::frame_kind::names, names.entries(), names.content(),
                       trace::find_zstd(), 3);
    std::string end;
    trace::put_varint(end, 0);
    trace::put_frame(bytes, trace::frame_kind::end, 1, end, nullptr, 0);
    return bytes;
  };
  const std::string plausible = file_of(4);
  ASSERT_LT(plausible.size(), 4096u);
  EXPECT_EQ(read_trace_from(plausible).value().texts.size(), 4u * trace::most_records);
  const std::string bomb = file_of(5);
  const auto refused = read_trace_from(bomb);
  ASSERT_EQ(refused.code(), errc::limit_exceeded);
  EXPECT_EQ(refused.error().detail(), "the trace has more than " +
                                          std::to_string((4u << 20) + 128 * bomb.size()) +
                                          " names, the most that may be read of it");
  EXPECT_EQ(read_trace_from(bomb, {.records_per_byte = 1 << 20}).value().texts.size(),
            5u * trace::most_records);
}

TEST(trace_file, does_without_zstd) {
  const scratch_folder folder;
  const auto recorded = sample();
  ASSERT_TRUE(trace::write_trace_with(recorded, folder.path("a"), {}, nullptr));
  const std::string stored = read_bytes(folder.path("a"));
  expect_equal(trace::read_trace_with(stored, {}, nullptr).value(), recorded);
  ASSERT_NE(trace::find_zstd(), nullptr) << "the other half needs libzstd.so.1";
  ASSERT_TRUE(write_trace(recorded, folder.path("b")));
  const std::string packed = read_bytes(folder.path("b"));
  EXPECT_LT(packed.size(), stored.size() / 2);
  const auto refused = trace::read_trace_with(packed, {}, nullptr);
  EXPECT_EQ(refused.code(), errc::not_supported);
  EXPECT_THAT(refused.error().message(), HasSubstr("libzstd.so.1"));
}

TEST(trace_file, refuses_recordings_that_cannot_be) {
  const scratch_folder folder;
  const auto refused = [&](std::vector<trace_event> events, std::string_view why) {
    recording recorded;
    recorded.events = std::move(events);
    const auto done = write_trace(recorded, folder.path("a"));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.code(), errc::invalid_argument);
    EXPECT_EQ(done.error().detail(), why);
    EXPECT_EQ(folder.files(), 0u);
  };
  const trace_event allocated{.address = 1, .size = 1, .kind = trace_kind::allocate};
  const trace_event freed{.address = 1, .size = 1, .kind = trace_kind::deallocate};
  const trace_event reusable{.address = 1, .size = 1, .kind = trace_kind::reusable};
  refused({freed}, "event 0: an event names a block that was not allocated");
  refused({allocated, allocated}, "event 1: a block is allocated over a live block");
  refused({allocated, freed, freed}, "event 2: a block is used after its free");
  refused({allocated, reusable}, "event 1: a block becomes reusable before its free");
  refused({{.kind = trace_kind{}}}, "event 0: unknown kind of event");
  refused({{.time = 2, .kind = trace_kind::reserve}, {.time = 1, .kind = trace_kind::reserve}},
          "event 1: the time decreases");
  refused({{.stream = 1, .kind = trace_kind::allocate}}, "event 0: a stream is not in the table");
  refused({{.other = 1, .kind = trace_kind::allocate}}, "event 0: a stack is not in the table");
  refused({{.other = 0, .kind = trace_kind::marker}}, "event 0: a text is not in the table");
  for (const int level : {-1, 20})
    EXPECT_EQ(write_trace({}, folder.path("a"), {.level = level}).code(), errc::invalid_argument);
  EXPECT_EQ(folder.files(), 0u);
}

TEST(trace_file, leaves_what_was_there_when_writing_fails) {
  const scratch_folder folder;
  write_bytes(folder.path("a"), "precious");
  EXPECT_EQ(write_trace(sample(), folder.path("no/such/folder")).code(), errc::system);
  // The system's own limit stands in for a full disk; it also sends a signal.
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 200, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto done = write_trace(sample(), folder.path("a"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(done.code(), errc::system);
  EXPECT_EQ(read_bytes(folder.path("a")), "precious");
  EXPECT_EQ(folder.files(), 1u);
}

}  // namespace
}  // namespace weir::testing_support
