// SPDX-License-Identifier: Apache-2.0
// The traces that are shipped. Of three of them the text that they were made of is kept.
#include <cstdint>
#include <string>

#include "formats/open.hpp"
#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using formats::read_recording;

TEST(shipped_traces, say_what_was_recorded) {
  for (const std::string name : {"gpt2_two_steps", "gnn_sample", "multistream_prefetch"}) {
    const std::string path = std::string{WEIR_TRACES_FOLDER} + "/" + name + ".weirtrace";
    auto shipped = read_recording(path).value();
    ASSERT_FALSE(shipped.events.empty());
    // A CSV trace begins with its first event.
    const std::uint64_t start = shipped.events.front().time;
    for (trace_event& each : shipped.events) each.time -= start;
    const auto text =
        read_recording(std::string{WEIR_DATA_FOLDER} + "/traces/" + name + ".trace.gz").value();
    EXPECT_FALSE(shipped.damage);
    EXPECT_EQ(shipped.events, text.events) << name;
    EXPECT_EQ(shipped.streams, text.streams);
    EXPECT_EQ(shipped.peaks, text.peaks);
    EXPECT_EQ(shipped.peaks.size(), 2u);
    EXPECT_FALSE(shipped.real_addresses);
  }
}

TEST(shipped_traces, are_whole_and_carry_their_program_and_its_peaks) {
  struct expected {
    std::string name;
    std::size_t events;
  };
  for (const expected& each :
       {expected{"vit_train", 37161}, expected{"gpt2_train", 35727},
        expected{"gpt2_two_steps", 9933}, expected{"bert_varlen", 180813},
        expected{"moe_train", 301881}, expected{"gnn_sample", 13404},
        expected{"llama_ckpt_varlen", 190733}, expected{"multistream_prefetch", 65980},
        expected{"serve_short", 642411}}) {
    const auto shipped =
        read_recording(std::string{WEIR_TRACES_FOLDER} + "/" + each.name + ".weirtrace").value();
    EXPECT_FALSE(shipped.damage) << each.name;
    EXPECT_EQ(shipped.events.size(), each.events) << each.name;
    EXPECT_EQ(shipped.program, each.name);
    EXPECT_EQ(shipped.peaks.size(), 2u) << each.name;
  }
}

}  // namespace
}  // namespace weir::testing_support
