// SPDX-License-Identifier: Apache-2.0
// Pickles: data is read; classes, cycles, depth and absurd sizes are refused.
#include "formats/pickle.hpp"

#include <bit>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using formats::pickle;
using ::testing::HasSubstr;
using namespace std::string_view_literals;

/// A value as Python writes it.
std::string text_of(const pickle& read, const formats::pickle_value& value) {
  using enum formats::pickle_value::value_type;
  const auto joined = [&](std::string_view begin, std::string_view end) {
    std::string text{begin};
    for (const auto& each : read.elements(value)) text += text_of(read, each) + ",";
    return text.append(end);
  };
  switch (value.type) {
    case none:
      return "None";
    case boolean:
      return value.bits == 1 ? "True" : "False";
    case natural:
      return std::to_string(read.natural(value).value());
    case negative:
      return std::to_string(read.integer(value).value());
    case real:
      return std::to_string(std::bit_cast<double>(value.bits));
    case formats::pickle_value::value_type::text:
      return "'" + std::string{read.text(value).value()} + "'";
    case list:
      return joined("[", "]");
    case tuple:
      return joined("(", ")");
    case dict:
      return "{}";
  }
  return "?";
}
/// The value of a pickle of these instructions, or why there is none.
std::string evaluated(std::string_view body) {
  const std::string whole = "\x80\x04" + std::string{body};
  const auto read = pickle::read(whole);
  return read ? text_of(*read, read->root()) : read.error().detail();
}

std::string refusal(std::string_view body) {
  const std::string whole = "\x80\x04" + std::string{body};
  const auto read = pickle::read(whole);
  if (read) return "";
  EXPECT_EQ(read.code(), errc::invalid_argument);
  return read.error().detail();
}

TEST(pickle, reads_numbers_and_texts) {
  EXPECT_EQ(evaluated("N."), "None");
  EXPECT_EQ(evaluated("\x88."), "True");
  EXPECT_EQ(evaluated("\x89."), "False");
  EXPECT_EQ(evaluated("K\xff."), "255");
  EXPECT_EQ(evaluated("M\x01\xff."), "65281");
  EXPECT_EQ(evaluated("J\x01\x02\x03\x04."), "67305985");
  EXPECT_EQ(evaluated("J\xff\xff\xff\xff."), "-1");
  EXPECT_EQ(evaluated("\x8a\0."sv), "0");
  EXPECT_EQ(evaluated("\x8a\x01\xfe."), "-2");
  EXPECT_EQ(evaluated("\x8a\x02\xfe\0."sv), "254");
  EXPECT_EQ(evaluated("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), "9223372036854775807");
  EXPECT_EQ(evaluated("\x8a\x08\0\0\0\0\0\0\0\x80."sv), "-9223372036854775808");
  EXPECT_EQ(evaluated("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."sv), "18446744073709551615");
  EXPECT_EQ(evaluated("\x8a\x0a\x05\0\0\0\0\0\0\0\0\0."sv), "5");
  EXPECT_EQ(evaluated("\x8a\x0a\xfb\xff\xff\xff\xff\xff\xff\xff\xff\xff."), "-5");
  EXPECT_EQ(evaluated("\x8b\x02\0\0\0\x01\x02."sv), "513");
  EXPECT_EQ(evaluated("G\x40\x09\x21\xfb\x54\x44\x2d\x18."), "3.141593");
  EXPECT_EQ(evaluated("\x8c\x03you."), "'you'");
  EXPECT_EQ(evaluated("\x8c\0."sv), "''");
  EXPECT_EQ(evaluated("X\x02\0\0\0hi."sv), "'hi'");
  EXPECT_EQ(evaluated("\x8d\x02\0\0\0\0\0\0\0ho."sv), "'ho'");
}

TEST(pickle, gives_values_only_as_what_they_are) {
  const auto whole =
      "\x80\x02](K\x07J\xff\xff\xff\xff\x8a\x09\0\0\0\0\0\0\0\x80\0\x8c\x01xG\0\0\0\0\0\0\0\0e."sv;
  const auto read = pickle::read(whole).value();
  const auto& all = read.elements(read.root());
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(read.natural(all[0]), 7u);
  EXPECT_EQ(read.integer(all[0]), 7);
  EXPECT_EQ(read.natural(all[1]), std::nullopt);
  EXPECT_EQ(read.integer(all[1]), -1);
  EXPECT_EQ(read.natural(all[2]), std::uint64_t{1} << 63);
  EXPECT_EQ(read.integer(all[2]), std::nullopt);
  EXPECT_EQ(read.text(all[3]), "x");
  EXPECT_EQ(read.natural(all[3]), std::nullopt);
  EXPECT_EQ(read.integer(all[3]), std::nullopt);
  EXPECT_EQ(read.text(all[0]), std::nullopt);
  EXPECT_EQ(read.natural(all[4]), std::nullopt);
  EXPECT_TRUE(read.elements(all[0]).empty());
  EXPECT_EQ(read.find(all[0], "x"), nullptr);
  EXPECT_EQ(read.find(read.root(), "x"), nullptr);
}

TEST(pickle, reads_lists_and_tuples) {
  EXPECT_EQ(evaluated("]."), "[]");
  EXPECT_EQ(evaluated(")."), "()");
  EXPECT_EQ(evaluated("]K\x01"
                      "aK\x02"
                      "a."),
            "[1,2,]");
  EXPECT_EQ(evaluated("](K\x01K\x02"
                      "e(K\x03"
                      "e."),
            "[1,2,3,]");
  EXPECT_EQ(evaluated("(K\x01K\x02l."), "[1,2,]");
  EXPECT_EQ(evaluated("(K\x01K\x02t."), "(1,2,)");
  EXPECT_EQ(evaluated("K\x01\x85."), "(1,)");
  EXPECT_EQ(evaluated("K\x01K\x02\x86."), "(1,2,)");
  EXPECT_EQ(evaluated("K\x01K\x02K\x03\x87."), "(1,2,3,)");
  EXPECT_EQ(evaluated("K\x01K\x02\x85\x86."), "(1,(2,),)");
  EXPECT_EQ(evaluated("K\x01(K\x02t\x86."), "(1,(2,),)");
  EXPECT_EQ(evaluated("K\x01K\x02"
                      "0."),
            "1");
}

TEST(pickle, remembers_values) {
  EXPECT_EQ(evaluated("](K\x05\x94K\x06\x94h\x01h\0"
                      "e."sv),
            "[5,6,6,5,]");
  EXPECT_EQ(evaluated("](K\x05q\0K\x06q\x01h\x01h\0"
                      "e."sv),
            "[5,6,6,5,]");
  EXPECT_EQ(evaluated("](K\x05r\0\0\0\0K\x06q\0j\0\0\0\0"
                      "e."sv),
            "[5,6,6,]");  // the second time is what counts
}

TEST(pickle, finds_the_last_of_equal_keys) {
  for (const auto dict : {"}(\x8c\x01"
                          "aK\x01\x8c\x01"
                          "bK\x02\x8c\x01"
                          "aK\x03u."sv,
                          "(\x8c\x01"
                          "aK\x01\x8c\x01"
                          "bK\x02\x8c\x01"
                          "aK\x03"
                          "d."sv}) {
    const std::string whole = "\x80\x04" + std::string{dict};
    const auto read = pickle::read(whole).value();
    EXPECT_EQ(read.natural(*read.find(read.root(), "a")), 3u);
    EXPECT_EQ(read.natural(*read.find(read.root(), "b")), 2u);
    EXPECT_EQ(read.find(read.root(), "K"), nullptr);
    EXPECT_TRUE(read.elements(read.root()).empty()) << "a dict has members";
  }
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
  EXPECT_EQ(text_of(read, *a), "(1,2,)");
  EXPECT_EQ(a->bits, b->bits);
  EXPECT_EQ(read.natural(*read.find(read.root(), "c")), 9u);
  EXPECT_EQ(read.find(read.root(), "d"), nullptr);
}

TEST(pickle, refuses_instructions_that_build_objects) {
  const auto refused = [](std::string_view op, const std::string& name) {
    EXPECT_EQ(refusal("NN" + std::string{op} + "."),
              "offset 4: the pickle creates objects of classes (" + name + "), which is refused");
  };
  refused("cos\nsystem\n", "GLOBAL");
  refused("\x93", "STACK_GLOBAL");
  refused("R", "REDUCE");
  refused("b", "BUILD");
  refused("i", "INST");
  refused("o", "OBJ");
  refused("\x81", "NEWOBJ");
  refused("\x92", "NEWOBJ_EX");
  for (const auto op : {"\x82\x01"sv, "\x83\x01\x01"sv, "\x84\x01\x01\x01\x01"sv})
    refused(op, "EXT");
  refused("P1\n", "PERSID");
  refused("Q", "PERSID");
  EXPECT_EQ(refusal("\x01."), "offset 2: an instruction that snapshots do not use");
}

TEST(pickle, refuses_containers_inside_themselves) {
  EXPECT_THAT(refusal("]\x94h\x00"
                      "a."sv),
              HasSubstr("contains itself"));
  EXPECT_THAT(refusal("]\x94]\x94h\x00"
                      "a0h\x00h\x01"
                      "a."sv),
              HasSubstr("nested container is changed"));
}

TEST(pickle, refuses_depth) {
  EXPECT_EQ(refusal(std::string(32, ']') + std::string(31, 'a') + "."), "");
  EXPECT_THAT(refusal(std::string(33, ']') + std::string(32, 'a') + "."), HasSubstr("too deep"));
  EXPECT_THAT(refusal(std::string(1000, ']') + std::string(999, 'a') + "."), HasSubstr("too deep"));
  EXPECT_THAT(refusal("N" + std::string(33, '\x85') + "."), HasSubstr("too deep"));
  EXPECT_EQ(refusal(std::string(64, '(')), "offset 66: the pickle is incomplete");
  EXPECT_EQ(refusal(std::string(65, '(')), "offset 66: the pickle is nested too deep");
}

TEST(pickle, refuses_sizes_that_are_not_there) {
  EXPECT_THAT(refusal("X\xff\xff\xff\xffx."sv), HasSubstr("the pickle is incomplete"));
  EXPECT_THAT(refusal("\x8d\xff\xff\xff\xff\xff\xff\xff\xffx."sv),
              HasSubstr("the pickle is incomplete"));
  EXPECT_THAT(refusal("\x8b\xff\xff\xff\x7f"
                      "1."sv),
              HasSubstr("the pickle is incomplete"));
  EXPECT_THAT(refusal("\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01."sv),
              HasSubstr("out of range"));
  EXPECT_THAT(refusal("Nr\xff\xff\xff\x7f."sv), HasSubstr("gap"));
  EXPECT_THAT(refusal("j\xff\xff\xff\x7f."sv), HasSubstr("unknown memo entry"));
  EXPECT_EQ(pickle::read("\x80\x04" + std::string(100'000, ']'), {.bytes = 1 << 20}).code(),
            errc::limit_exceeded);
}

TEST(pickle, refuses_what_is_cut) {
  // Each instruction with what follows it, in a pickle that is good: cut at every byte.
  for (const auto body : {"K\x01."sv, "M\x01\x02."sv, "J\x01\x02\x03\x04."sv, "\x8a\x02\x01\x01."sv,
                          "\x8b\x01\0\0\0\x01."sv, "G\0\0\0\0\0\0\0\0."sv, "\x8c\x02hi."sv,
                          "X\x02\0\0\0hi."sv, "\x8d\x02\0\0\0\0\0\0\0hi."sv,
                          "Nq\0"
                          "0h\0."sv,
                          "Nr\0\0\0\0"
                          "0j\0\0\0\0."sv,
                          "\x95\0\0\0\0\0\0\0\0N."sv, "\x80\x05N."sv}) {
    EXPECT_EQ(refusal(body), "");
    for (std::size_t length = 0; length < body.size(); ++length)
      EXPECT_THAT(refusal(body.substr(0, length)), HasSubstr("the pickle is incomplete"));
  }
}

TEST(pickle, says_where_it_is_cut) {
  for (const auto& [body, offset] : {std::pair{"K"sv, 0},
                                     {"K\x01"sv, 2},
                                     {"\x8a"sv, 0},
                                     {"\x8a\0"sv, 2},
                                     {"\x8a\x01"sv, 0},
                                     {"\x8a\x01\x07"sv, 3},
                                     {"\x80"sv, 0},
                                     {"\x80\x04"sv, 2},
                                     {"\x8b\0\0\0\0"sv, 5},
                                     {"M\x01"sv, 0},
                                     {"M\x01\x02"sv, 3},
                                     {"J\x01\x02\x03"sv, 0},
                                     {"J\x01\x02\x03\x04"sv, 5},
                                     {"G\0\0\0\0\0\0\0"sv, 0},
                                     {"G\0\0\0\0\0\0\0\0"sv, 9},
                                     {"\x95\0\0\0\0\0\0\0"sv, 0},
                                     {"\x95\0\0\0\0\0\0\0\0"sv, 9},
                                     {"\x8c\0"sv, 2},
                                     {"X\0\0\0\0"sv, 5},
                                     {"\x8d\0\0\0\0\0\0\0"sv, 0},
                                     {"\x8d\0\0\0\0\0\0\0\0"sv, 9},
                                     {"Nq\0"sv, 3},
                                     {"Nr\0\0\0"sv, 1},
                                     {"Nr\0\0\0\0"sv, 6},
                                     {"Nq\0h\0"sv, 5},
                                     {"Nq\0j\0\0\0"sv, 3},
                                     {"Nq\0j\0\0\0\0"sv, 8},
                                     {""sv, 0}})
    EXPECT_EQ(refusal(body), "offset " + std::to_string(2 + offset) + ": the pickle is incomplete");
}

TEST(pickle, refuses_what_takes_more_than_there_is) {
  constexpr auto underflow = "the pickle reads more values than it pushed";
  for (const auto body :
       {"a."sv, "Na."sv, "u."sv, "e."sv, "]K\x01s."sv, "0."sv, "\x85."sv, "N\x86."sv, "NN\x87."sv,
        "N(\x94."sv, "t."sv, "l."sv, "d."sv, "\x94."sv, "N(0."sv, "N(\x85."sv, "](a."sv})
    EXPECT_THAT(refusal(body), HasSubstr(underflow)) << body;
  for (const auto body : {"."sv, "NN."sv, "(."sv, "N(."sv})
    EXPECT_THAT(refusal(body), HasSubstr("the pickle is incomplete")) << body;
  for (const auto body : {"}(K\x01u."sv,
                          "(K\x01"
                          "d."sv})
    EXPECT_THAT(refusal(body), HasSubstr("a dict has a key without a value")) << body;
  for (const auto body : {"NNa."sv, "}Na."sv, ")Na."sv, "]NNs."sv, "](NNu."sv, "}(Ne."sv})
    EXPECT_THAT(refusal(body), HasSubstr("an item is added to a value that is not a list or dict"))
        << body;
  EXPECT_EQ(refusal("(]K\x01"
                    "a."sv),
            "offset 7: the pickle is incomplete");
}

TEST(pickle, has_a_protocol_from_2_to_5) {
  for (const char protocol : {'\x02', '\x03', '\x04', '\x05'}) {
    EXPECT_TRUE(formats::is_pickle(std::string{'\x80', protocol}));
    EXPECT_TRUE(pickle::read(std::string{'\x80', protocol, 'N', '.'}));
    EXPECT_EQ(refusal(std::string{'\x80', protocol, 'N', '.'}), "");
  }
  for (const char protocol : {'\x01', '\x06', '\xff'}) {
    EXPECT_FALSE(formats::is_pickle(std::string{'\x80', protocol}));
    EXPECT_EQ(pickle::read(std::string{'\x80', protocol, 'N', '.'}).error().detail(),
              "not a pickle of protocol 2 to 5");
    EXPECT_THAT(refusal(std::string{'\x80', protocol, 'N', '.'}),
                HasSubstr("unsupported pickle protocol; expected 2 to 5"));
  }
  for (const auto none : {""sv, "\x80"sv, "x\x04"sv}) {
    EXPECT_FALSE(formats::is_pickle(none));
    EXPECT_FALSE(pickle::read(none));
  }
}

TEST(pickle, takes_no_more_memory_than_allowed) {
  const std::string values = "\x80\x04(" + std::string(1000, 'N') + "t.";
  EXPECT_TRUE(pickle::read(values, {.bytes = 32'000}));
  EXPECT_EQ(pickle::read(values, {.bytes = 15'000}).code(), errc::limit_exceeded);
  const std::string memo = "\x80\x04N" + std::string(1000, '\x94') + ".";
  EXPECT_TRUE(pickle::read(memo, {.bytes = 32'000}));
  EXPECT_EQ(pickle::read(memo, {.bytes = 15'000}).code(), errc::limit_exceeded);
}

// --- Writing ------------------------------------------------------------------------------------

/// The instructions that `write` makes.
template <class Function>
std::string written(Function write) {
  formats::pickle_writer out;
  write(out);
  std::string whole = std::move(out).finish();
  EXPECT_TRUE(whole.starts_with("\x80\x04") && whole.ends_with('.'));
  return whole.substr(2, whole.size() - 3);
}

TEST(pickle_writer, writes_numbers_as_short_as_they_can_be) {
  const auto natural = [](std::uint64_t value) {
    return written([=](auto& out) { out.natural(value); });
  };
  EXPECT_EQ(natural(0), "K\0"sv);
  EXPECT_EQ(natural(0xff), "K\xff");
  EXPECT_EQ(natural(0x100), "M\0\x01"sv);
  EXPECT_EQ(natural(0xffff), "M\xff\xff");
  EXPECT_EQ(natural(0x10000), "\x8a\x03\0\0\x01"sv);
  EXPECT_EQ(natural(0x7fffff), "\x8a\x03\xff\xff\x7f");
  EXPECT_EQ(natural(0x800000), "\x8a\x04\0\0\x80\0"sv);  // or it would be below zero
  EXPECT_EQ(natural(UINT64_MAX), "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0"sv);
  const auto integer = [](std::int64_t value) {
    return written([=](auto& out) { out.integer(value); });
  };
  EXPECT_EQ(integer(0), "K\0"sv);
  EXPECT_EQ(integer(-1), "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xff");
  EXPECT_EQ(integer(INT64_MIN), "\x8a\x08\0\0\0\0\0\0\0\x80"sv);
  EXPECT_EQ(written([](auto& out) { out.real(1.5); }), "G\x3f\xf8\0\0\0\0\0\0"sv);
  EXPECT_EQ(written([](auto& out) { out.boolean(true); }), "\x88");
  EXPECT_EQ(written([](auto& out) { out.boolean(false); }), "\x89");
}

TEST(pickle_writer, writes_texts_and_words) {
  const std::string longest(255, 'x');
  EXPECT_EQ(written([&](auto& out) { out.text(longest); }), "\x8c\xff" + longest);
  const std::string header{"X\0\x01\0\0", 5};
  EXPECT_EQ(written([&](auto& out) { out.text(longest + "x"); }), header + longest + "x");
  // Words are written once; those behind the first 256 have longer numbers.
  std::vector<std::string> words;
  for (int i = 0; i < 258; ++i) words.push_back(std::to_string(1000 + i));
  const std::string text = written([&](auto& out) {
    for (const std::string& each : words) out.word(each);
    for (const std::size_t i : {0, 255, 256, 257}) out.word(words[i]);
  });
  EXPECT_TRUE(
      text.starts_with("\x8c\x04"
                       "1000\x94\x8c\x04"
                       "1001\x94"));
  EXPECT_TRUE(text.ends_with("1257\x94h\0h\xffj\0\x01\0\0j\x01\x01\0\0"sv));
}

/// A reader refuses the whole file for one byte that is not UTF-8.
TEST(pickle_writer, replaces_what_is_not_utf8) {
  const std::string replaced =
      "a\xef\xbf\xbd"
      "b\xef\xbf\xbd";
  EXPECT_EQ(written([](auto& out) {
              out.text(
                  "a\xff"
                  "b\xc3");
            }),
            "\x8c\x08" + replaced);
  EXPECT_EQ(written([](auto& out) {
              out.word(
                  "a\xff"
                  "b\xc3");
            }),
            "\x8c\x08" + replaced + "\x94");
  EXPECT_EQ(written([](auto& out) { out.text("Größe 模型"); }), "\x8c\x0eGröße 模型");
  // A text that was short enough may be a long one then.
  EXPECT_EQ(written([](auto& out) { out.text(std::string(100, '\x80')); }).substr(0, 8),
            std::string("X\x2c\x01\0\0\xef\xbf\xbd", 8));
}

TEST(pickle_writer, writes_containers_that_are_read_back) {
  formats::pickle_writer out;
  out.begin_list();
  out.natural(1);
  out.next_batch();
  out.begin_dict();
  out.word("key");
  out.pair(-1, 300);
  out.word("other");
  out.word("key");
  out.end_dict();
  out.next_batch();
  out.begin_list();
  out.end_list();
  out.end_list();
  const std::string whole = std::move(out).finish();
  EXPECT_EQ(
      whole,
      "\x80\x04](K\x01"
      "e(}(\x8c\x03key\x94\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xffM\x2c\x01\x86\x8c\x05other\x94h\0ue(](ee."sv);
  const auto read = pickle::read(whole).value();
  EXPECT_EQ(text_of(read, read.root()), "[1,{},[],]");
  const auto& dict = read.elements(read.root())[1];
  EXPECT_EQ(text_of(read, *read.find(dict, "key")), "(-1,300,)");
  EXPECT_EQ(text_of(read, *read.find(dict, "other")), "'key'");
}

}  // namespace
}  // namespace weir::testing_support
