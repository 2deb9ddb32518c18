// SPDX-License-Identifier: Apache-2.0
// Events as bytes: what each column may say, and what is refused.
#include "trace/event_codec.hpp"

#include <functional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trace/frame.hpp"
#include "trace/varint.hpp"

namespace weir::testing_support { namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;
using trace::event_decoder;
using trace::event_encoder;
using trace::table_sizes;
using trace::zigzag;

constexpr table_sizes tables{
    .tags = 3, .pools = 4, .streams = 5, .threads = 6, .texts = 7, .stacks = 8};

// --- Numbers ------------------------------------------------------------------------------------

std::string varint(std::uint64_t value) {
  std::string text;
  trace::put_varint(text, value);
  return text;
}

TEST(varint, has_seven_bits_a_byte) {
  EXPECT_EQ(varint(0), "\0"sv);
  EXPECT_EQ(varint(0x7f), "\x7f");
  EXPECT_EQ(varint(0x80), "\x80\x01");
  EXPECT_EQ(varint(300), "\xac\x02");
  EXPECT_EQ(varint(UINT64_MAX), "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  for (const std::uint64_t each : {0ull, 1ull, 0x7full, 0x80ull, 0x3fffull, 0x4000ull, 1ull << 62,
                                   1ull << 63, (1ull << 63) - 1, ~0ull}) {
    const std::string text = varint(each) + "x";
    trace::byte_reader bytes{text};
    EXPECT_EQ(bytes.varint(), each);
    EXPECT_EQ(bytes.size(), 1u);
  }
}

TEST(varint, of_more_than_64_bits_is_none) {
  const std::string nine(9, '\xff');
  for (const std::string& text : {nine + "\x02", nine + "\x81", nine + "\xff", nine, ""s}) {
    trace::byte_reader bytes{text};
    EXPECT_EQ(bytes.varint(), std::nullopt) << text.size();
  }
}

TEST(varint, is_the_length_of_what_follows) {
  trace::byte_reader bytes{
      "\x03"
      "abcd\x02"
      "e"sv};
  EXPECT_EQ(bytes.sized(), "abc"sv);
  EXPECT_EQ(bytes.take(0), ""sv);
  EXPECT_EQ(bytes.take(1), "d"sv);
  EXPECT_EQ(bytes.sized(), std::nullopt);
  EXPECT_EQ(bytes.take(2), std::nullopt);
  EXPECT_EQ(bytes.take(1), "e"sv);
  EXPECT_TRUE(bytes.empty());
}

TEST(zigzag, makes_small_differences_small) {
  const auto minus = [](std::uint64_t value) { return std::uint64_t{0} - value; };
  const std::pair<std::uint64_t, std::uint64_t> all[] = {
      {0, 0}, {minus(1), 1}, {1, 2}, {minus(2), 3}, {1ull << 62, 1ull << 63}, {1ull << 63, ~0ull}};
  for (const auto& [difference, coded] : all) {
    EXPECT_EQ(zigzag(difference), coded);
    EXPECT_EQ(trace::unzigzag(coded), difference);
  }
}

TEST(crc32, is_that_of_zlib) {
  EXPECT_EQ(trace::crc32(""), 0u);
  EXPECT_EQ(trace::crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(trace::crc32("6789", trace::crc32("12345")), 0xcbf43926u);
}

// --- Writing ------------------------------------------------------------------------------------

std::string encoded(const std::vector<trace_event>& events) {
  event_encoder encoder;
  std::string problem;
  std::string content = encoder.encode(events, tables, problem);
  EXPECT_EQ(problem, "");
  return content;
}

TEST(event_encoder, writes_times_in_the_largest_unit_that_divides_them_all) {
  const auto unit_of = [](std::uint64_t first, std::uint64_t second) {
    const std::string content = encoded(
        {{.time = first, .kind = trace_kind::move}, {.time = second, .kind = trace_kind::move}});
    trace::byte_reader bytes{content};
    return bytes.varint();
  };
  EXPECT_EQ(unit_of(2'000'000, 3'000'000), 1'000'000u);
  EXPECT_EQ(unit_of(2'000'000, 3'001'000), 1'000u);
  EXPECT_EQ(unit_of(2'001'000, 3'000'000), 1'000u);
  EXPECT_EQ(unit_of(2'000'000, 3'000'001), 1u);
  EXPECT_EQ(unit_of(1, 1), 1u);
}

TEST(event_encoder, writes_what_can_be_predicted_as_nothing) {
  using enum trace_kind;
  // One block and its end: a byte a kind, a column of times, and columns that are not all zero.
  const std::string content = encoded({
      {.time = 5, .address = 0x40, .size = 9, .stream = 2, .kind = allocate},
      {.time = 6, .address = 0x40, .size = 9, .stream = 2, .kind = deallocate},
      {.time = 6, .address = 0x40, .size = 9, .stream = 2, .kind = reusable},
  });
  EXPECT_EQ(
      content,
      "\x01"                                    // nanoseconds
      "\x01\x02\x03"                            // kinds
      "\x03\x05\x01\0"                          // times
      "\x02\x80\x01\x01\x09\0\x01\x02\0\0\0\0"  // the address as a difference to 0, size, stream
      "\x01\x02\0\0\0\0\0\0\0"                  // the block before the next one
      "\0\0\0\0\0\0\0\0"sv);                    // that was freed last
}

TEST(event_encoder, refuses_what_the_tables_do_not_have) {
  const auto refusal = [](trace_event event) {
    event_encoder encoder;
    std::string problem;
    const std::string content = encoder.encode({&event, 1}, tables, problem);
    EXPECT_EQ(content.empty(), !problem.empty());
    return problem;
  };
  using enum trace_kind;
  // The last of each table, and the one behind it.
  EXPECT_EQ(refusal({.stream = 4, .kind = limit}), "");
  EXPECT_EQ(refusal({.stream = 5, .kind = limit}), "event 0: a stream is not in the table");
  EXPECT_EQ(refusal({.thread = 5, .kind = limit}), "");
  EXPECT_EQ(refusal({.thread = 6, .kind = limit}), "event 0: a thread is not in the table");
  EXPECT_EQ(refusal({.tag = 2, .kind = limit}), "");
  EXPECT_EQ(refusal({.tag = 3, .kind = limit}), "event 0: a tag is not in the table");
  EXPECT_EQ(refusal({.pool = 3, .kind = limit}), "");
  EXPECT_EQ(refusal({.pool = 4, .kind = limit}), "event 0: a pool is not in the table");
  EXPECT_EQ(refusal({.other = 4, .kind = wait}), "");
  EXPECT_EQ(refusal({.other = 5, .kind = wait}), "event 0: a stream is not in the table");
  EXPECT_EQ(refusal({.other = 6, .kind = marker}), "");
  EXPECT_EQ(refusal({.other = 7, .kind = marker}), "event 0: a text is not in the table");
  EXPECT_EQ(refusal({.other = 8, .kind = allocate}), "");  // a stack's number plus one
  EXPECT_EQ(refusal({.other = 9, .kind = allocate}), "event 0: a stack is not in the table");
  EXPECT_EQ(refusal({.kind = trace_kind{0}}), "event 0: unknown kind of event");
  EXPECT_EQ(refusal({.kind = trace_kind{18}}), "event 0: unknown kind of event");
  EXPECT_EQ(refusal({.other = 99, .kind = reserve}), "") << "which it does not mean";
}

TEST(event_encoder, tells_the_first_of_several_reasons) {
  using enum trace_kind;
  const auto refusal = [](trace_event event) {
    event_encoder encoder;
    std::string problem;
    const trace_event before{.time = 10, .address = 0x40, .kind = allocate};
    EXPECT_FALSE(encoder.encode({&before, 1}, tables, problem).empty());
    EXPECT_EQ(encoder.encode({&event, 1}, tables, problem), "");
    return problem;
  };
  // The tables, the time, whether the block is known, and what may happen to it.
  EXPECT_EQ(refusal({.time = 9, .address = 0x80, .stream = 5, .kind = deallocate}),
            "event 1: a stream is not in the table");
  EXPECT_EQ(refusal({.time = 10, .address = 0x80, .stream = 5, .kind = deallocate}),
            "event 1: a stream is not in the table");
  EXPECT_EQ(refusal({.time = 9, .address = 0x80, .kind = deallocate}),
            "event 1: the time decreases");
  EXPECT_EQ(refusal({.time = 10, .address = 0x80, .kind = deallocate}),
            "event 1: an event names a block that was not allocated");
  EXPECT_EQ(refusal({.time = 9, .address = 0x40, .stream = 5, .kind = allocate}),
            "event 1: a stream is not in the table");
  EXPECT_EQ(refusal({.time = 9, .address = 0x40, .kind = allocate}), "event 1: the time decreases");
}

TEST(event_encoder, needs_no_tables_for_number_zero) {
  event_encoder encoder;
  std::string problem;
  const trace_event event{.address = 1, .kind = trace_kind::allocate};
  EXPECT_FALSE(encoder.encode({&event, 1}, {}, problem).empty());
  EXPECT_EQ(problem, "");
  const trace_event freed{.address = 1, .other = 1, .kind = trace_kind::deallocate};
  EXPECT_TRUE(encoder.encode({&freed, 1}, {}, problem).empty());
  EXPECT_EQ(problem, "event 1: a stack is not in the table");
}

TEST(table_sizes, are_those_of_the_recording) {
  recording recorded;
  recorded.tags.resize(1);
  recorded.pools.resize(2);
  recorded.streams.resize(3);
  recorded.threads.resize(4);
  recorded.texts.resize(5);
  recorded.stacks.resize(6);
  const auto sizes = table_sizes::of(recorded);
  EXPECT_EQ(sizes.tags, 1u);
  EXPECT_EQ(sizes.pools, 2u);
  EXPECT_EQ(sizes.streams, 3u);
  EXPECT_EQ(sizes.threads, 4u);
  EXPECT_EQ(sizes.texts, 5u);
  EXPECT_EQ(sizes.stacks, 6u);
}

// --- Reading ------------------------------------------------------------------------------------

/// A frame of events of one kind under construction: every column is empty where nothing is said.
struct columns {
  std::uint64_t unit = 1;
  std::string kinds = "\x06";  // one reserve
  std::string times{};
  std::array<std::string, 8> fields{};
  std::string rest{};

  [[nodiscard]] std::string content() const {
    std::string text = varint(unit) + kinds + varint(times.size()) + times;
    for (const std::string& each : fields) text += varint(each.size()) + each;
    return text + rest;
  }
};

/// Why the frame is refused; its events where it is not. Whatever was there before stays.
std::string decoded(event_decoder& decoder, const std::string& content, std::uint32_t count) {
  const std::vector<trace_event> before(2, trace_event{.size = 77});
  std::vector<trace_event> events = before;
  const char* const problem = decoder.decode(content, count, tables, events);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), events.begin()));
  if (problem != nullptr) {
    EXPECT_EQ(events.size(), 2u);
    return problem;
  }
  std::string text;
  for (std::size_t i = 2; i < events.size(); ++i) text += to_string(events[i]) + "\n";
  return text;
}
std::string decoded(const columns& frame, std::uint32_t count = 1) {
  event_decoder decoder;
  return decoded(decoder, frame.content(), count);
}

constexpr auto cut = "a frame of events is shorter than its header says";
constexpr auto longer = "a column is longer than its events";

TEST(event_decoder, reads_columns) {
  EXPECT_EQ(decoded(columns{}), "0.000000000 s reserve\n");
  const columns full{
      .unit = 1000,
      .kinds = "\x06\x06",
      .times = varint(2) + varint(3),
      .fields = {varint(zigzag(0x500)) + varint(zigzag(0x100)), varint(7) + varint(8),
                 varint(9) + varint(10), varint(3) + varint(4), varint(11) + varint(12),
                 varint(4) + varint(5), varint(1) + varint(2), varint(2) + varint(3)}};
  EXPECT_EQ(
      decoded(full, 2),
      "0.000002000 s reserve 0x500 size 7 rounded 9 stream 3 stack 11 thread 4 tag 1 pool 2\n"
      "0.000005000 s reserve 0x600 size 8 rounded 10 stream 4 stack 12 thread 5 tag 2 pool 3\n");
}

TEST(event_decoder, refuses_columns_that_are_too_short_or_too_long) {
  const std::string whole = columns{}.content();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    event_decoder decoder;
    EXPECT_EQ(decoded(decoder, whole.substr(0, length), 1), cut) << length;
  }
  EXPECT_EQ(decoded(columns{.rest = "x"}), "a frame of events is longer than its header says");
  EXPECT_EQ(decoded(columns{.kinds = "\x06\x06", .times = "\x01"}, 2), cut);
  EXPECT_EQ(decoded(columns{.times = "\x01\x01"}), longer);
  EXPECT_EQ(decoded(columns{.times = "\x80"}), cut);
  for (std::size_t field = 0; field < 8; ++field) {
    columns frame{.kinds = "\x06\x06"};
    frame.fields[field] = "\x01";
    EXPECT_EQ(decoded(frame, 2), cut) << field;
    frame.fields[field] = "\x01\x01\x01";
    EXPECT_EQ(decoded(frame, 2), longer) << field;
    frame.fields[field] = "\x01\x01";
    EXPECT_THAT(decoded(frame, 2), ::testing::HasSubstr("reserve")) << field;
  }
}

TEST(event_decoder, refuses_numbers_that_do_not_fit) {
  const auto with = [](std::size_t field, std::uint64_t value) {
    columns frame;
    frame.fields[field] = varint(value);
    return decoded(frame);
  };
  EXPECT_EQ(with(1, UINT64_MAX), "0.000000000 s reserve size 18446744073709551615\n");
  EXPECT_EQ(with(2, UINT64_MAX), "0.000000000 s reserve rounded 18446744073709551615\n");
  EXPECT_EQ(with(4, UINT32_MAX), "0.000000000 s reserve stack 4294967295\n");
  for (const std::size_t field : {3, 4})
    EXPECT_EQ(with(field, std::uint64_t{UINT32_MAX} + 1), "a number is out of range") << field;
  for (const std::size_t field : {5, 6, 7})
    EXPECT_EQ(with(field, 65'536), "a number is out of range") << field;
  EXPECT_EQ(with(3, 5), "a stream is not in the table");
  EXPECT_EQ(with(5, 6), "a thread is not in the table");
  EXPECT_EQ(with(6, 3), "a tag is not in the table");
  EXPECT_EQ(with(7, 4), "a pool is not in the table");
}

TEST(event_decoder, refuses_kinds_and_units_that_are_none) {
  EXPECT_EQ(decoded(columns{.kinds = {'\0'}}), "unknown kind of event");
  EXPECT_EQ(decoded(columns{.kinds = "\x12"}), "unknown kind of event");
  EXPECT_EQ(decoded(columns{.unit = 0}), "unknown unit of time");
  EXPECT_EQ(decoded(columns{.unit = 2}), "unknown unit of time");
  EXPECT_EQ(decoded(columns{.unit = 1'000'000, .times = "\x01"}), "0.001000000 s reserve\n");
}

TEST(event_decoder, refuses_times_that_do_not_fit_or_go_back) {
  const std::uint64_t last = UINT64_MAX / 1000;
  EXPECT_EQ(decoded(columns{.unit = 1000, .times = varint(last)}),
            "18446744073.709551000 s reserve\n");
  EXPECT_EQ(decoded(columns{.unit = 1000, .times = varint(last + 1)}), "a time is out of range");
  EXPECT_EQ(decoded(columns{.kinds = "\x06\x06", .times = varint(UINT64_MAX) + varint(1)}, 2),
            "a time is out of range");
  // Each frame begins anew, and not before the end of the last.
  event_decoder decoder;
  EXPECT_EQ(decoded(decoder, columns{.times = "\x05"}.content(), 1), "0.000000005 s reserve\n");
  EXPECT_EQ(decoded(decoder, columns{.times = "\x05"}.content(), 1), "0.000000005 s reserve\n");
  EXPECT_EQ(decoded(decoder, columns{.times = "\x04"}.content(), 1), "the time decreases");
}

TEST(event_decoder, refuses_blocks_that_cannot_be_meant) {
  const auto frame = [](trace_kind kind, std::uint64_t number, std::uint64_t size = 0,
                        std::uint64_t stream = 0) {
    columns made{.kinds = {static_cast<char>(kind)}};
    made.fields[0] = varint(number);
    made.fields[1] = varint(size);
    made.fields[3] = varint(stream);
    return made.content();
  };
  using enum trace_kind;
  event_decoder decoder;
  const auto read = [&](const std::string& content) { return decoded(decoder, content, 1); };
  EXPECT_EQ(read(frame(deallocate, zigzag(1))), "an event names a block that was not allocated");
  EXPECT_EQ(read(frame(allocate, zigzag(0x100), 40, 3)),
            "0.000000000 s allocate 0x100 size 40 stream 3\n");
  EXPECT_EQ(read(frame(deallocate, zigzag(2))), "an event names a block that was not allocated");
  EXPECT_EQ(read(frame(record_stream, zigzag(1), zigzag(2), zigzag(1))),
            "0.000000000 s record_stream 0x100 size 42 stream 4\n");
  EXPECT_EQ(read(frame(record_stream, zigzag(1), 0, zigzag(2))), "a stream is not in the table");
  EXPECT_EQ(read(frame(record_stream, zigzag(1), 0, zigzag(std::uint64_t{0} - 4))),
            "a stream is not in the table");  // below 0
  EXPECT_EQ(read(frame(reusable, 0)), "a block becomes reusable before its free");
  EXPECT_EQ(read(frame(allocate, zigzag(0x100))), "a block is allocated over a live block");
  EXPECT_EQ(read(frame(allocate, zigzag(0x200), UINT64_MAX - 39)),
            "the live bytes exceed the address space");
  EXPECT_EQ(read(frame(deallocate, zigzag(1))),
            "0.000000000 s deallocate 0x100 size 40 stream 3\n");
  EXPECT_EQ(read(frame(deallocate, zigzag(1))), "a block is used after its free");
  EXPECT_EQ(read(frame(record_stream, zigzag(1))), "a block is used after its free");
  EXPECT_EQ(read(frame(reusable, 0)), "0.000000000 s reusable 0x100 size 40 stream 3\n");
  EXPECT_EQ(read(frame(reusable, 0)), "a block becomes reusable before its free");
  EXPECT_EQ(read(frame(allocate, zigzag(0x100))), "0.000000000 s allocate 0x100\n");
  EXPECT_EQ(read(frame(deallocate, zigzag(2))),
            "an event names a block whose address another block has");
  EXPECT_EQ(read(frame(deallocate, zigzag(1))), "0.000000000 s deallocate 0x100\n");
}

TEST(event_decoder, reads_what_was_written_over_several_frames) {
  using enum trace_kind;
  const std::vector<trace_event> frames[] = {
      {{.time = 3, .address = 0x9000, .size = 1, .stream = 1, .kind = allocate},
       {.time = 3, .address = 0x8000, .size = 2, .stream = 2, .kind = allocate},
       {.time = 3, .address = 0x100, .size = 3, .kind = reserve}},
      {{.time = 4, .address = 0x8000, .size = 2, .stream = 4, .kind = deallocate},
       {.time = 4, .address = 0x9000, .size = 9, .stream = 0, .kind = deallocate},
       {.time = 9, .address = 0x8000, .size = 2, .stream = 2, .kind = reusable},
       {.time = 9, .address = 0x9000, .size = 1, .stream = 1, .kind = reusable}},
      {{.time = 9, .address = 0x8000, .size = 5, .stream = 3, .kind = allocate},
       {.time = 9, .address = 0x8000, .size = 5, .stream = 3, .kind = deallocate}}};
  event_encoder encoder;
  event_decoder decoder;
  std::vector<trace_event> read;
  std::vector<trace_event> written;
  for (const auto& each : frames) {
    std::string problem;
    const std::string content = encoder.encode(each, tables, problem);
    ASSERT_EQ(problem, "");
    ASSERT_EQ(decoder.decode(content, static_cast<std::uint32_t>(each.size()), tables, read),
              nullptr);
    written.insert(written.end(), each.begin(), each.end());
  }
  EXPECT_EQ(read, written);
}

TEST(event_decoder, knows_streams_up_to_the_largest_number) {
  using enum trace_kind;
  constexpr table_sizes large{.streams = std::uint64_t{1} << 32};
  const std::vector<trace_event> written = {
      {.time = 1, .address = 0x100, .size = 8, .stream = UINT32_MAX, .kind = allocate},
      {.time = 2, .address = 0x100, .size = 8, .stream = UINT32_MAX, .kind = deallocate}};
  std::string problem;
  event_encoder encoder;
  const std::string content = encoder.encode(written, large, problem);
  ASSERT_EQ(problem, "");
  event_decoder decoder;
  std::vector<trace_event> read;
  EXPECT_EQ(decoder.decode(content, 2, large, read), nullptr);
  EXPECT_EQ(read, written);
}

}  // namespace
}  // namespace weir::testing_support
