// The traces that are shipped, against what was recorded.
#include <cstdint>
#include <filesystem>
#include <string>

#include "formats/open.hpp"
#include "gtest/gtest.h"

namespace weir::testing_support { namespace {

using formats::read_recording;

TEST(shipped_traces, say_what_was_recorded) {
  std::uint64_t total = 0;
  for (const std::string name :
       {"vit_train", "gpt2_train", "gpt2_two_steps", "bert_varlen", "moe_train", "gnn_sample",
        "llama_ckpt_varlen", "multistream_prefetch", "serve_short"}) {
    const std::string path = std::string{WEIR_TRACES_FOLDER} + "/" + name + ".weirtrace";
    total += std::filesystem::file_size(path);
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
    EXPECT_EQ(shipped.program, name);
    EXPECT_FALSE(shipped.real_addresses);
  }
  EXPECT_LT(total, 4'000'000u);
}

}  // namespace
}  // namespace weir::testing_support
