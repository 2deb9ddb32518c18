// SPDX-License-Identifier: Apache-2.0
// The recorder and tags where the host has no memory: whichever allocation fails, it is an error.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "support/scarce_memory.hpp"
#include "support/scratch.hpp"
#include "weir/observe/tag.hpp"
#include "weir/trace/recorder.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::testing_support { namespace {

using outcome = std::optional<errc>;  // nothing: it worked

/// Runs `attempt` with each of its allocations failing in turn, and once with all of them.
void sweep(const std::function<outcome()>& attempt, outcome expected = {}) {
  for (long enough = 0;; ++enough) {
    ASSERT_LT(enough, 10'000);
    outcome found;
    bool failed = false;
    {
      const scarce_memory scarce{enough};
      ASSERT_NO_THROW(found = attempt()) << "allocation " << enough;
      failed = scarce_memory::take_failure();
    }
    // What a failure spoils is told, or it was not needed.
    const bool is_told = failed && found == errc::no_host_memory;
    EXPECT_TRUE(found == expected || is_told) << "allocation " << enough;
    if (!failed) break;
  }
}

TEST(scarce_recorder, starts_or_says_that_there_is_no_host_memory) {
  const scratch_folder folder;
  const std::string path = folder.path("recording with a name that is longer than a short string");
  const recorder_options options{.level = 0, .program = std::string(100, 'p')};
  sweep([&]() -> outcome {
    const auto started = recorder::start(path, options);
    const spared_memory spared;
    EXPECT_FALSE(std::filesystem::exists(path));
    if (!started) return started.code();
    EXPECT_TRUE((*started)->close());
    EXPECT_TRUE(read_trace(path));
    std::filesystem::remove(path);
    return {};
  });
  EXPECT_EQ(folder.files(), 0u) << "nothing is left behind";
}

TEST(scarce_recorder, traces_are_read_and_written_or_there_is_no_host_memory) {
  const scratch_folder folder;
  const std::string path = folder.path("recording");
  const std::string copy = folder.path("copy with a name that is longer than a short string");
  const std::string missing = folder.path("there is no file with this name, which is long");
  ASSERT_TRUE(recorder::start(path, {.program = std::string(100, 'p')}).value()->close());
  sweep([&]() -> outcome {
    const auto read = read_trace(path);
    if (!read) return read.code();
    const auto written = write_trace(*read, copy);
    const spared_memory spared;
    EXPECT_EQ(std::filesystem::exists(copy), written.has_value());
    EXPECT_EQ(folder.files(), written ? 2u : 1u) << "no part is left behind";
    std::filesystem::remove(copy);
    return written ? outcome{} : written.code();
  });
  sweep([&]() -> outcome { return read_trace(missing).code(); }, errc::not_found);
}

TEST(scarce_recorder, tags_are_made_or_there_is_no_host_memory) {
  const std::string name(200, 't');
  const auto make = [](std::string_view of) -> outcome {
    const auto made = tag::named(of);
    return made ? outcome{} : made.code();
  };
  sweep([&] { return make(name); });
  EXPECT_EQ(tag::named(name).value().name(), name);
  sweep([&] { return make(""); }, errc::invalid_argument);
}

}  // namespace
}  // namespace weir::testing_support
