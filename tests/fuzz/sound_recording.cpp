// SPDX-License-Identifier: Apache-2.0
#include "sound_recording.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "formats/chrome_trace.hpp"
#include "formats/csv_trace.hpp"
#include "formats/torch_snapshot.hpp"
#include "fuzz_input.hpp"
#include "trace/event_codec.hpp"
#include "trace/frame.hpp"

namespace weir::fuzz {
namespace {

/// What happens to blocks, which are numbered in the order of their allocation.
struct block_step {
  trace_kind kind{};
  std::uint64_t block = 0;
  std::uint64_t size = 0;
  std::uint64_t stream = 0;

  friend bool operator==(const block_step&, const block_step&) = default;
};

std::vector<block_step> block_steps(const recording& recorded, bool with_sizes) {
  std::vector<block_step> steps;
  std::map<std::uint64_t, std::uint64_t> numbers;
  std::uint64_t count = 0;
  for (const trace_event& each : recorded.events) {
    const bool begins = each.kind == trace_kind::allocate;
    if (!begins && each.kind != trace_kind::deallocate) continue;
    if (begins) numbers[each.address] = count++;
    steps.push_back({each.kind, numbers.at(each.address), begins || with_sizes ? each.size : 0,
                     recorded.streams.at(each.stream)});
  }
  return steps;
}

}  // namespace

void require_sound(const recording& read) {
  const auto tables = trace::table_sizes::of(read);
  for (const auto& stack : read.stacks)
    for (const std::uint32_t frame : stack)
      require(frame < read.frames.size(), "a stack names a frame that there is not");
  require(!read.tags.empty() && read.tags.front().empty(), "tag 0 has a name");
  require(!read.pools.empty() && read.pools.front().empty(), "pool 0 has a name");
  trace::event_encoder encoder;
  trace::event_decoder decoder;
  std::vector<trace_event> again;
  for (std::span<const trace_event> rest = read.events; !rest.empty();) {
    const auto some = rest.first(std::min<std::size_t>(rest.size(), trace::most_records));
    rest = rest.subspan(some.size());
    std::string violation;
    const std::string content = encoder.encode(some, tables, violation);
    require(violation.empty(), violation);
    const char* const refusal =
        decoder.decode(content, static_cast<std::uint32_t>(some.size()), tables, again);
    require(refusal == nullptr, refusal == nullptr ? "" : refusal);
  }
  require(again == read.events, "events are not what was written");
}

void require_exportable(const recording& read) {
  require(!formats::chrome_trace_of(read).empty(), "an empty Chrome trace");
  const auto csv = formats::read_csv_trace(formats::csv_trace_of(read), "again");
  require(csv.has_value(), csv ? "" : csv.error().message());
  require(block_steps(*csv, false) == block_steps(read, false), "a CSV trace says something else");
  const auto snapshot = formats::read_torch_snapshot(formats::torch_snapshot_of(read), "again");
  require(snapshot.has_value(), snapshot ? "" : snapshot.error().message());
  require_sound(*snapshot);
  require(block_steps(*snapshot, true) == block_steps(read, true),
          "a snapshot says something else");
}

}  // namespace weir::fuzz
