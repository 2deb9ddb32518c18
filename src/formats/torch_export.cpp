// SPDX-License-Identifier: Apache-2.0
// Exporting recordings as PyTorch snapshots.
#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/memory_map.hpp"
#include "formats/output.hpp"
#include "formats/pickle.hpp"
#include "formats/torch_snapshot.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

/// Writes the parts of a snapshot. Everything is of device 0.
class snapshot_writer {
 public:
  explicit snapshot_writer(const recording& source) : source_{source}, map_{source} {}

  std::string write() && {
    // The history comes first: the segments are what it leaves.
    out_.begin_dict();
    out_.word("device_traces");
    out_.begin_list();
    out_.begin_list();
    for (const trace_event& each : source_.events) history(each);
    out_.end_list();
    out_.end_list();
    out_.word("segments");
    out_.begin_list();
    std::uint64_t segments = 0;
    for (const auto& [first, last] : map_.reserved()) {
      item(segments);
      segment(first, last);
    }
    out_.end_list();
    out_.word("allocator_settings");
    settings();
    out_.word("external_annotations");
    out_.begin_list();
    for (const trace_event& each : source_.events) annotation(each);
    out_.end_list();
    write_own_events();
    out_.end_dict();
    return std::move(out_).finish();
  }

 private:
  /// Before each item of a list that may be long; `count` is the list's own.
  void item(std::uint64_t& count) {
    if (++count % batch == 0) out_.next_batch();
  }
  void number(std::string_view key, std::uint64_t value) {
    out_.word(key);
    out_.natural(value);
  }
  void text(std::string_view key, std::string_view value) {
    out_.word(key);
    out_.text(value);
  }
  /// A value that comes often and outlives this writer.
  void word(std::string_view key, std::string_view value) {
    out_.word(key);
    out_.word(value);
  }
  [[nodiscard]] std::uint64_t stream_id(std::uint32_t number) const noexcept {
    return number < source_.streams.size() ? source_.streams[number] : 0;
  }

  void entry(std::string_view action, const trace_event& event, std::uint32_t stack,
             bool is_invented = false) {
    item(entries_);
    out_.begin_dict();
    word("action", action);
    if (event.kind == trace_kind::out_of_memory) {
      number("device_free", 0);
    } else {
      number("addr", event.address);
    }
    number("size", event.size);
    number("stream", stream_id(event.stream));
    number("time_us", event.time / 1000);
    word("compile_context", "N/A");
    word("user_metadata",
         event.tag < source_.tags.size() ? source_.tags[event.tag] : std::string_view{});
    out_.word("pool_id");
    out_.pair(0, event.pool);
    if (is_invented) number(invented_key, 1);
    if (stack != 0) frames(stack);
    out_.end_dict();
  }

  void history(const trace_event& recorded) {
    const trace_event event = map_.apply(recorded);
    if (event.kind != trace_kind::allocate) block_entries(event);
    for (const memory_map::change& each : map_.changes()) segment_entry(each, event);
    if (event.kind == trace_kind::allocate) block_entries(event);
  }

  void block_entries(const trace_event& event) {
    switch (event.kind) {
      case trace_kind::allocate:
        return entry("alloc", event, event.other);
      case trace_kind::deallocate:
        entry("free_requested", event, event.other);
        if (!map_.is_pending_free()) entry("free_completed", event, 0, true);
        return;
      case trace_kind::reusable:
        return entry("free_completed", event, 0);
      case trace_kind::out_of_memory:
        return entry("oom", event, 0);
      case trace_kind::record_stream:
      case trace_kind::pool_released:
        own_events_.emplace_back(entries_, event);
        return;
      default:
        return;  // torch has no such action
    }
  }

  /// The viewer steps back through these from the segments at the end, and joins or splits only
  /// what has one stream: segments have all the same.
  void segment_entry(const memory_map::change& change, const trace_event& cause) {
    const trace_event event{
        .time = cause.time, .address = change.address, .size = change.size, .pool = cause.pool};
    entry(change.reserved ? "segment_map" : "segment_unmap", event, 0);
  }

  void frames(std::uint32_t stack) {
    out_.word("frames");
    out_.begin_list();
    if (stack != 0 && stack <= source_.stacks.size())
      for (const std::uint32_t each : source_.stacks[stack - 1])
        if (each < source_.frames.size()) frame(source_.frames[each]);
    out_.end_list();
  }

  /// "function at file:line" in its parts.
  void frame(std::string_view line) {
    const auto separator = line.rfind(" at ");
    std::string_view file =
        separator == line.npos ? std::string_view{} : line.substr(separator + 4);
    std::uint64_t line_number = 0;
    if (const auto colon = file.rfind(':'); colon != file.npos) {
      const std::string_view digits = file.substr(colon + 1);
      const char* const end = digits.data() + digits.size();
      if (std::from_chars(digits.data(), end, line_number).ptr == end) file = file.substr(0, colon);
    }
    out_.begin_dict();
    word("name", line.substr(0, separator));
    word("filename", file);
    number("line", line_number);
    out_.end_dict();
  }

  void segment(std::uint64_t first, std::uint64_t last) {
    const auto& blocks = map_.blocks();
    const auto begin = blocks.lower_bound(first);
    const auto end = blocks.lower_bound(last);
    std::uint64_t allocated = 0;
    std::uint64_t active = 0;
    std::uint64_t requested = 0;
    for (auto entry = begin; entry != end; ++entry) {
      active += entry->second.rounded;
      requested += entry->second.size;
      if (!entry->second.pending) allocated += entry->second.rounded;
    }
    out_.begin_dict();
    number("device", 0);
    number("address", first);
    number("total_size", last - first);
    number("allocated_size", allocated);
    number("active_size", active);
    number("requested_size", requested);
    number("stream", stream_id(0));
    word("segment_type", "large");
    out_.word("segment_pool_id");
    out_.pair(0, 0);
    out_.word("is_expandable");
    out_.boolean(true);
    frames(0);
    out_.word("blocks");
    out_.begin_list();
    std::uint64_t position = first;
    blocks_ = 0;
    for (auto entry = begin; entry != end; ++entry) {
      if (entry->first > position) block(position, entry->first - position, 0, "inactive", 0);
      const auto& placed = entry->second;
      block(entry->first, placed.rounded, placed.size,
            placed.pending ? "active_pending_free" : "active_allocated", placed.stack);
      position = entry->first + placed.rounded;
    }
    if (position < last) block(position, last - position, 0, "inactive", 0);
    out_.end_list();
    out_.end_dict();
  }

  void block(std::uint64_t address, std::uint64_t size, std::uint64_t requested,
             std::string_view state, std::uint32_t stack) {
    item(blocks_);
    out_.begin_dict();
    number("address", address);
    number("size", size);
    number("requested_size", requested);
    word("state", state);
    frames(stack);
    out_.end_dict();
  }

  void settings() {
    out_.begin_dict();
    text("PYTORCH_CUDA_ALLOC_CONF", "");
    out_.word("max_split_size");
    out_.integer(-1);
    out_.word("garbage_collection_threshold");
    out_.real(0);
    out_.word("expandable_segments");
    out_.boolean(true);
    out_.end_dict();
  }

  void write_own_events() {
    out_.word(own_events_key);
    out_.begin_list();
    std::uint64_t count = 0;
    for (const auto& [position, event] : own_events_) {
      item(count);
      out_.begin_dict();
      word("action", name(event.kind));
      number("before", position);
      number("addr", event.address);
      number("stream", stream_id(event.stream));
      number("time_us", event.time / 1000);
      out_.word("pool_id");
      out_.pair(0, event.pool);
      out_.end_dict();
    }
    out_.end_list();
  }

  /// A marker is a moment: it begins and ends, unless it says which of both it is.
  void annotation(const trace_event& event) {
    if (event.kind != trace_kind::marker || event.other >= source_.texts.size()) return;
    constexpr std::string_view begin = "begin of ";
    constexpr std::string_view end = "end of ";
    const std::string_view marker = source_.texts[event.other];
    if (marker.starts_with(begin)) return stage("START", marker.substr(begin.size()), event);
    if (marker.starts_with(end)) return stage("END", marker.substr(end.size()), event);
    stage("START", marker, event);
    stage("END", marker, event);
  }

  void stage(std::string_view stage, std::string_view name, const trace_event& event) {
    item(annotations_);
    out_.begin_dict();
    text("stage", stage);
    text("name", name);
    number("device", 0);
    number("time_us", event.time / 1000);
    out_.end_dict();
  }

  /// Items that a reader takes at once; Python's own pickles have as many.
  static constexpr std::uint64_t batch = 1000;

  const recording& source_;
  memory_map map_;
  std::uint64_t entries_ = 0;
  std::uint64_t blocks_ = 0;  // of the segment that is being written
  std::uint64_t annotations_ = 0;
  std::vector<std::pair<std::uint64_t, trace_event>> own_events_;  // with their places
  pickle_writer out_;
};

}  // namespace

std::string torch_snapshot_of(const recording& recording) {
  return snapshot_writer{recording}.write();
}

result<void> write_torch_snapshot(const recording& recording, const std::string& path) {
  return write_file(path, torch_snapshot_of(recording));
}

}}}  // namespace weir::v0::formats
