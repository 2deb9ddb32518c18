// SPDX-License-Identifier: Apache-2.0
// Byte sizes: arithmetic, and text in both directions.
#include "weir/base/bytes.hpp"

#include <gtest/gtest.h>

#include <type_traits>

namespace weir { namespace {

using namespace weir::literals;

// A size is no number: neither direction is implicit.
static_assert(!std::is_convertible_v<std::uint64_t, bytes>);
static_assert(!std::is_convertible_v<bytes, std::uint64_t>);
static_assert(sizeof(bytes) == sizeof(std::uint64_t) && std::is_trivially_copyable_v<bytes>);

TEST(bytes, arithmetic_keeps_the_unit) {
  EXPECT_EQ(2_MiB + 512_KiB, bytes{2621440});
  EXPECT_EQ(2_MiB - 1_B, bytes{2097151});
  EXPECT_EQ(3 * 512_B, bytes{1536});
  EXPECT_EQ(512_B * 3, bytes{1536});
  EXPECT_EQ(1_GiB / 2_MiB, 512u);
  EXPECT_EQ(1_GiB / 4, 256_MiB);
  EXPECT_EQ(1000_B % 512_B, 488_B);
  EXPECT_EQ(1_TiB, bytes{std::uint64_t{1} << 40});
  bytes sum = 1_KiB;
  sum += 1_KiB;
  sum -= 1_B;
  EXPECT_EQ(sum.count(), 2047u);
  EXPECT_LT(1_MiB, 1_GiB);
  EXPECT_EQ(bytes{}.count(), 0u);
}

TEST(bytes, text_uses_the_largest_unit_that_fits) {
  EXPECT_EQ(to_string(0_B), "0 B");
  EXPECT_EQ(to_string(512_B), "512 B");
  EXPECT_EQ(to_string(1023_B), "1023 B");
  EXPECT_EQ(to_string(1_KiB), "1 KiB");
  EXPECT_EQ(to_string(20_MiB), "20 MiB");
  EXPECT_EQ(to_string(1536_MiB), "1.5 GiB");
  EXPECT_EQ(to_string(1_GiB + 256_MiB), "1.25 GiB");
  EXPECT_EQ(to_string(143771_MiB), "140.4 GiB");
  EXPECT_EQ(to_string(3_TiB), "3 TiB");
  EXPECT_EQ(to_string(1024 * 1_TiB), "1 PiB");
}

TEST(bytes, text_rounds_into_the_next_unit) {
  EXPECT_EQ(to_string(1_MiB - 1_B), "1 MiB");
  EXPECT_EQ(to_string(1_GiB - 1_B), "1 GiB");
  EXPECT_EQ(to_string(2_GiB - 1_B), "2 GiB");
  EXPECT_EQ(to_string(1_KiB + 6_B), "1.01 KiB");
  EXPECT_EQ(to_string(1_KiB + 5_B), "1 KiB");
  EXPECT_EQ(to_string(bytes::max()), "16 EiB");
}

TEST(bytes, text_is_read) {
  EXPECT_EQ(parse_bytes("0"), 0_B);
  EXPECT_EQ(parse_bytes("4096"), 4096_B);
  EXPECT_EQ(parse_bytes("64B"), 64_B);
  EXPECT_EQ(parse_bytes("512KiB"), 512_KiB);
  EXPECT_EQ(parse_bytes("20MiB"), 20_MiB);
  EXPECT_EQ(parse_bytes("20 MiB"), 20_MiB);
  EXPECT_EQ(parse_bytes("2GiB"), 2_GiB);
  EXPECT_EQ(parse_bytes("1TiB"), 1_TiB);
  EXPECT_EQ(parse_bytes("18446744073709551615"), bytes::max());
  EXPECT_EQ(parse_bytes("15EiB"), bytes{std::uint64_t{15} << 60});
}

TEST(bytes, text_is_read_in_decimal_units_and_with_decimals) {
  EXPECT_EQ(parse_bytes("3kB"), bytes{3'000});
  EXPECT_EQ(parse_bytes("3KB"), bytes{3'000});
  EXPECT_EQ(parse_bytes("5MB"), bytes{5'000'000});
  EXPECT_EQ(parse_bytes("24GB"), bytes{24'000'000'000});
  EXPECT_EQ(parse_bytes("24 GB"), bytes{24'000'000'000});
  EXPECT_EQ(parse_bytes("2TB"), bytes{2'000'000'000'000});
  EXPECT_EQ(parse_bytes("2PB"), bytes{2'000'000'000'000'000});
  EXPECT_EQ(parse_bytes("18EB"), bytes{18'000'000'000'000'000'000U});
  EXPECT_EQ(parse_bytes("1.5GiB"), bytes{3 * (std::uint64_t{1} << 29)});
  EXPECT_EQ(parse_bytes("0.25KiB"), 256_B);
  EXPECT_EQ(parse_bytes("1.9kB"), bytes{1'900});
  EXPECT_EQ(parse_bytes("7.001 GB"), bytes{7'001'000'000});
  EXPECT_EQ(parse_bytes("1.0006kB"), bytes{1'001});
  EXPECT_EQ(parse_bytes("1.0005kB"), bytes{1'001});
  EXPECT_EQ(parse_bytes("1.0004kB"), bytes{1'000});
}

TEST(bytes, decimals_are_read_to_the_byte_in_every_unit) {
  EXPECT_EQ(parse_bytes("0.999999EB"), bytes{999'999'000'000'000'000});
  EXPECT_EQ(parse_bytes("17.123456789012345678EB"), bytes{17'123'456'789'012'345'678U});
  EXPECT_EQ(parse_bytes("0.999999999999999999EB"), bytes{999'999'999'999'999'999});
  EXPECT_EQ(parse_bytes("0.99999999999999999999EB"), bytes{999'999'999'999'999'999});
  EXPECT_EQ(parse_bytes("0.5EiB"), bytes{std::uint64_t{1} << 59});
  EXPECT_EQ(parse_bytes("0.1EiB"), bytes{115'292'150'460'684'698});
  EXPECT_EQ(parse_bytes("0.33333333333333333333PiB"), bytes{375'299'968'947'541});
}

TEST(bytes, text_that_is_no_size_is_refused) {
  for (const char* text : {"",
                           " ",
                           "KiB",
                           "-1",
                           "+1",
                           " 1",
                           "1 ",
                           "1  KiB",
                           "20M",
                           "20mib",
                           "0x10",
                           "1KiBx",
                           "1gb",
                           "1,000",
                           "1.5",
                           "1.5B",
                           "1.GiB",
                           ".5GB",
                           "1e3",
                           "inf",
                           "1.5.5GB",
                           "16EiB",
                           "18.5EB",
                           "-1GB",
                           "1,5GB",
                           "24 pounds",
                           "18446744073709551616",
                           "18014398509481984KiB"})
    EXPECT_FALSE(parse_bytes(text)) << '"' << text << '"';
  EXPECT_FALSE(parse_bytes(std::string_view{}));
}

}  // namespace
}  // namespace weir
