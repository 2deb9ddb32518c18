// SPDX-License-Identifier: Apache-2.0
// Contract of the allocator: recorded traces replayed with real memory, every block verified.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "allocator_contract/effort.hpp"
#include "allocator_contract/pieces.hpp"
#include "support/driver_fixture.hpp"
#include "support/trace.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;

/// Reads each trace once.
const trace& the_trace(const std::string& name) {
  static std::map<std::string, trace> known;
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  return known.emplace(name, read_trace(name).value()).first->second;
}

class trace_replay : public ::testing::TestWithParam<std::tuple<std::string, placement_policy>>,
                     public driver_fixture {
 protected:
  /// A stream of the trace, with the count of words that were not as they were left.
  struct track {
    stream own;
    CUdeviceptr mismatches = 0;
  };
  struct placed {
    void* memory = nullptr;
    std::uint64_t size = 0;
    std::uint32_t stream = 0;
  };

  void SetUp() override {
    auto opened = open_machine(machine_seeds().front());
    if (!opened) {
      if (machine_may_be_absent())
        GTEST_SKIP() << "no machine: " << opened.error().message();
      else
        FAIL() << "no machine: " << opened.error().message();
    }
    open(std::move(*opened));
    runtime_ = runtime::open_table(*cu, "machine under test", machine).value();
    const weir::device where = runtime_->device(device_id{device}).value();
    memory_ = caching_allocator::create(where, {.policy = std::get<1>(GetParam())}).value();
    for (std::size_t i = 0; i < recorded().streams; ++i) {
      tracks_.push_back({stream::create(where).value(), new_memory(sizeof(word))});
      const track& made = tracks_.back();
      ASSERT_EQ(CUDA_SUCCESS, cu->memset_d32_async(made.mismatches, 0, 1, made.own.handle()));
    }
  }

  void TearDown() override {
    if (machine == nullptr) return;
    if (memory_) {
      EXPECT_TRUE(memory_->close());
    }
    memory_.reset();
    tracks_.clear();
    runtime_.reset();
    clean_up();
    for (const auto& story : machine->take_hazards()) ADD_FAILURE() << story;
  }

  [[nodiscard]] static const trace& recorded() { return the_trace(std::get<0>(GetParam())); }
  [[nodiscard]] caching_allocator& memory() { return *memory_; }

  void begin(std::uint32_t block, const trace::event& what) {
    const auto made = memory().try_allocate(bytes{what.size}, tracks_[what.stream].own);
    ASSERT_TRUE(made) << made.error().message();
    live_[block] = {*made, what.size, what.stream};
    for_each_piece(*made, bytes{what.size}, effort_.whole_up_to,
                   [&](CUdeviceptr at, std::uint64_t count) {
                     ASSERT_EQ(CUDA_SUCCESS,
                               fill(at, pattern(block), count, tracks_[what.stream].own.handle()));
                   });
  }

  void end(std::uint32_t block) {
    const placed& what = live_[block];
    const track& on = tracks_[what.stream];
    for_each_piece(what.memory, bytes{what.size}, effort_.whole_up_to,
                   [&](CUdeviceptr at, std::uint64_t count) {
                     ASSERT_EQ(CUDA_SUCCESS,
                               check(at, pattern(block), count, on.mismatches, on.own.handle()));
                   });
    ASSERT_TRUE(memory().try_deallocate(what.memory, on.own));
    live_[block] = {};
  }

  /// Unlike any neighbour's, and never 0.
  [[nodiscard]] static word pattern(std::uint32_t block) { return 0x9e3779b9U * (block + 1); }

  void play() {
    const trace& all = recorded();
    live_.resize(all.blocks);
    const std::size_t most =
        std::get<0>(GetParam()) == "gpt2_two_steps" ? all.events.size() : effort_.replayed_events;
    const std::size_t count = std::min(most, all.events.size());
    for (std::size_t i = 0; i < count; ++i) {
      const trace::event& each = all.events[i];
      if (each.kind == trace::event_kind::allocate && each.size != 0) begin(each.block, each);
      if (each.kind == trace::event_kind::reusable && live_[each.block].memory != nullptr)
        end(each.block);
      if (HasFatalFailure()) return;
    }
    for (std::uint32_t block = 0; block < live_.size(); ++block)
      if (live_[block].memory != nullptr) end(block);
  }

  std::vector<track> tracks_;

 private:
  const effort effort_ = machine_effort();
  std::shared_ptr<runtime> runtime_;
  std::optional<caching_allocator> memory_;
  std::vector<placed> live_;
};

TEST_P(trace_replay, no_block_is_ever_overwritten) {
  play();
  ASSERT_EQ(CUDA_SUCCESS, cu->ctx_synchronize());
  for (const track& each : tracks_) EXPECT_EQ(words(each.mismatches, 1).front(), 0U);
  const memory_stats after = memory().stats();
  EXPECT_EQ(after.blocks.current, 0U);
  EXPECT_EQ(after.allocations, after.frees);
  EXPECT_LE(after.allocated.peak, after.reserved.peak);
  RecordProperty("requested_peak", std::to_string(after.requested.peak.count()));
  RecordProperty("reserved_peak", std::to_string(after.reserved.peak.count()));
  RecordProperty("handles_created", std::to_string(after.handles_created));
  RecordProperty("handles_moved", std::to_string(after.handles_moved));
  EXPECT_TRUE(memory().empty_cache());
  EXPECT_EQ(memory().stats().reserved.current, 0_B);
}

INSTANTIATE_TEST_SUITE_P(
    contract, trace_replay,
    ::testing::Combine(::testing::ValuesIn(recorded_programs()),
                       ::testing::Values(placement_policy::balanced, placement_policy::compact,
                                         placement_policy::classic_expandable)),
    [](const auto& each) {
      options settings;
      settings.heap_policy = std::get<1>(each.param);
      return std::get<0>(each.param) + "_" + get(settings, "heap_policy").value();
    });

}  // namespace
}  // namespace weir::testing_support
