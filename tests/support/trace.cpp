// SPDX-License-Identifier: Apache-2.0
// Reading traces: blocks and streams get numbers without gaps.
#include "support/trace.hpp"

#include <unordered_map>
#include <utility>

#include "weir/trace/trace_file.hpp"

namespace weir::testing_support {
namespace {

/// Builds a trace event by event and refuses what cannot have happened.
class trace_builder {
 public:
  /// What is wrong with the event; null if nothing.
  const char* add(const trace_event& event) {
    trace::event next{.time = event.time / 1000};
    next.stream = streams_.try_emplace(event.stream, static_cast<std::uint32_t>(streams_.size()))
                      .first->second;
    switch (event.kind) {
      case trace_kind::allocate:
        return allocate(event, next);
      case trace_kind::deallocate:
        return advance(event, trace::event_kind::allocate, trace::event_kind::free, next);
      case trace_kind::reusable:
        return advance(event, trace::event_kind::free, trace::event_kind::reusable, next);
      default:
        return "not an event of a recorded program";
    }
  }

  trace finish() && {
    built_.blocks = blocks_;
    built_.streams = streams_.size();
    return std::move(built_);
  }

 private:
  struct block_state {
    std::uint32_t block;
    std::uint64_t size;
    trace::event_kind stage;
  };

  const char* allocate(const trace_event& event, trace::event next) {
    next.size = event.size;
    next.block = static_cast<std::uint32_t>(blocks_);
    const block_state fresh{next.block, next.size, trace::event_kind::allocate};
    if (!live_.try_emplace(event.address, fresh).second) return "the block is allocated twice";
    ++blocks_;
    built_.events.push_back(next);
    return nullptr;
  }

  const char* advance(const trace_event& event, trace::event_kind from, trace::event_kind to,
                      trace::event next) {
    const auto block = live_.find(event.address);
    if (block == live_.end()) return "the block was not allocated before";
    if (block->second.stage != from) return "the block is freed twice, or freed before its release";
    block->second.stage = to;
    next.kind = to;
    next.block = block->second.block;
    next.size = block->second.size;
    built_.events.push_back(next);
    return nullptr;
  }

  trace built_;
  std::size_t blocks_ = 0;
  std::unordered_map<std::uint64_t, block_state> live_;  // by address, which is not used again
  std::unordered_map<std::uint32_t, std::uint32_t> streams_;
};

}  // namespace

const std::vector<std::string>& recorded_programs() {
  static const std::vector<std::string> names{
      "vit_train",  "gpt2_train",        "gpt2_two_steps",       "bert_varlen", "moe_train",
      "gnn_sample", "llama_ckpt_varlen", "multistream_prefetch", "serve_short"};
  return names;
}

result<trace> trace_of(const recording& recorded) {
  trace_builder building;
  for (std::size_t i = 0; i < recorded.events.size(); ++i) {
    if (const char* const wrong = building.add(recorded.events[i])) {
      return error{
          {.code = errc::invalid_argument, .detail = "event " + std::to_string(i) + ": " + wrong}};
    }
  }
  trace read = std::move(building).finish();
  for (const recorded_peak& each : recorded.peaks) {
    if (each.policy == "torch-default") {
      read.requested_peak = each.requested.count();
      read.fixed_reserved_peak = each.reserved.count();
    }
    if (each.policy == "torch-expandable") read.expandable_reserved_peak = each.reserved.count();
  }
  return read;
}

result<trace> read_trace(const std::string& name) {
  WEIR_TRY_VALUE(recorded,
                 weir::read_trace(std::string{WEIR_TRACES_FOLDER} + "/" + name + ".weirtrace"));
  if (recorded.damage)
    return error{{.code = errc::invalid_argument, .detail = to_string(*recorded.damage)}};
  return trace_of(recorded);
}

}  // namespace weir::testing_support
