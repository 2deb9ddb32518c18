// Pickles: data is read; classes, cycles, depth and absurd sizes are refused.
#include "formats/pickle.hpp"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support {
namespace {

using formats::pickle;
using ::testing::HasSubstr;
using namespace std::string_view_literals;

std::string refusal(std::string_view body) {
  const std::string whole = "\x80\x04" + std::string{body};
  const auto read = pickle::read(whole);
  if (read) return "";
  EXPECT_EQ(read.code(), errc::invalid_argument);
  return read.error().detail;
}

TEST(pickle, reads_numbers_and_texts) {
  const auto bytes =
      "\x80\x02]("
      "K\x07M\x01\x02J\xff\xff\xff\xff\x8a\x00\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"
      "\x8a\x01\xfeN\x88X\x02\x00\x00\x00hi\x8c\x03you"
      "G\x3f\xf0\x00\x00\x00\x00\x00\x00"
      "e."sv;
  const auto read = pickle::read(bytes).value();
  const auto& all = read.elements(read.root());
  ASSERT_EQ(all.size(), 11u);
  EXPECT_EQ(read.natural(all[0]), 7u);
  EXPECT_EQ(read.natural(all[1]), 0x201u);
  EXPECT_EQ(read.integer(all[2]), -1);
  EXPECT_FALSE(read.natural(all[2]));
  EXPECT_EQ(read.natural(all[3]), 0u);
  EXPECT_EQ(read.natural(all[4]), std::uint64_t{1} << 63);
  EXPECT_FALSE(read.integer(all[4]));
  EXPECT_EQ(read.integer(all[5]), -2);
  EXPECT_EQ(read.text(all[8]), "hi");
  EXPECT_EQ(read.text(all[9]), "you");
  EXPECT_EQ(all[10].type, formats::pickle_value::value_type::real);
  EXPECT_FALSE(read.natural(all[10]));
}

TEST(pickle, reads_dicts_tuples_and_the_memo) {
  // {"a": (1, 2), "b": <the same>}, with a batch of one and a frame.
  const auto read = pickle::read(
                        "\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
                        "a\x94K\x01K\x02\x86\x94\x8c\x01"
                        "bh\x02u\x8c\x01"
                        "cK\x09s."sv)
                        .value();
  const auto* const a = read.find(read.root(), "a");
  const auto* const b = read.find(read.root(), "b");
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(read.elements(*a).size(), 2u);
  EXPECT_EQ(a->bits, b->bits);
  EXPECT_EQ(read.natural(*read.find(read.root(), "c")), 9u);
  EXPECT_EQ(read.find(read.root(), "d"), nullptr);
}

TEST(pickle, refuses_instructions_that_build_objects) {
  EXPECT_THAT(refusal("cos\nsystem\n."), HasSubstr("GLOBAL"));
  for (const auto op : {"\x93"sv, "R"sv, "b"sv, "i"sv, "o"sv, "\x81"sv, "\x92"sv, "\x82\x01"sv,
                        "\x83\x01\x01"sv, "\x84\x01\x01\x01\x01"sv, "P1\n"sv, "Q"sv})
    EXPECT_THAT(refusal("NN" + std::string{op} + "."), HasSubstr("objects of classes")) << op;
}

TEST(pickle, refuses_containers_inside_themselves) {
  EXPECT_THAT(refusal("]\x94h\x00"
                      "a."sv),
              HasSubstr("into itself"));
  EXPECT_THAT(refusal("]\x94]\x94h\x00"
                      "a0h\x00h\x01"
                      "a."sv),
              HasSubstr("part of another"));
}

TEST(pickle, refuses_depth) {
  EXPECT_EQ(refusal(std::string(20, ']') + std::string(19, 'a') + "."), "");
  EXPECT_THAT(refusal(std::string(1000, ']') + std::string(999, 'a') + "."), HasSubstr("too deep"));
  EXPECT_THAT(refusal(std::string(1000, '(')), HasSubstr("too deep"));
}

TEST(pickle, refuses_sizes_that_are_not_there) {
  EXPECT_THAT(refusal("X\xff\xff\xff\xffx."sv), HasSubstr("ends too early"));
  EXPECT_THAT(refusal("\x8d\xff\xff\xff\xff\xff\xff\xff\xffx."sv), HasSubstr("ends too early"));
  EXPECT_THAT(refusal("\x8b\xff\xff\xff\x7f"
                      "1."sv),
              HasSubstr("ends too early"));
  EXPECT_THAT(refusal("\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01."sv),
              HasSubstr("out of range"));
  EXPECT_THAT(refusal("Nr\xff\xff\xff\x7f."sv), HasSubstr("gap"));
  EXPECT_THAT(refusal("j\xff\xff\xff\x7f."sv), HasSubstr("no such entry"));
  EXPECT_EQ(pickle::read("\x80\x04" + std::string(100'000, ']'), {.bytes = 1 << 20}).code(),
            errc::limit_exceeded);
}

TEST(pickle, refuses_what_takes_more_than_there_is) {
  for (const auto body :
       {"."sv, "a."sv, "Na."sv, "u."sv, "e."sv, "]K\x01s."sv, "}(K\x01u."sv, "0."sv,
        "(]K\x01"
        "a."sv,
        "NN."sv, "\x86."sv, "N(\x94."sv, ""sv, "t."sv, "(."sv})
    EXPECT_NE(refusal(body), "") << body;
  EXPECT_FALSE(pickle::read(""));
  EXPECT_FALSE(pickle::read("\x80\x06."));
  EXPECT_FALSE(pickle::read("\x80\x01."));
}

TEST(pickle, writes_what_it_reads) {
  formats::pickle_writer out;
  out.begin_list();
  for (const std::uint64_t each : {0ull, 255ull, 256ull, 65'536ull, 1ull << 62, ~0ull})
    out.natural(each);
  out.integer(-5);
  out.text(std::string(300, 'x'));
  out.pair(-1, 3);
  out.end_list();
  const std::string bytes = std::move(out).finish();
  const auto read = pickle::read(bytes).value();
  const auto& all = read.elements(read.root());
  EXPECT_EQ(read.natural(all[3]), 65'536u);
  EXPECT_EQ(read.natural(all[4]), 1ull << 62);
  EXPECT_EQ(read.natural(all[5]), ~0ull);
  EXPECT_EQ(read.integer(all[6]), -5);
  EXPECT_EQ(read.text(all[7])->size(), 300u);
  EXPECT_EQ(read.integer(read.elements(all[8])[0]), -1);
}

}  // namespace
}  // namespace weir::testing_support
