// Exporting recordings as PyTorch snapshots.
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "formats/final_state.hpp"
#include "formats/output.hpp"
#include "formats/pickle.hpp"
#include "formats/torch_snapshot.hpp"

namespace weir::inline v0::formats {
namespace {

/// Writes the parts of a snapshot. Everything is of device 0.
class snapshot_writer {
 public:
  explicit snapshot_writer(const recording& from) : from_{from}, map_{from} {}

  std::string write() && {
    // The history comes first: the segments are what it leaves.
    out_.begin_dict();
    out_.text("device_traces");
    out_.begin_list();
    out_.begin_list();
    for (const trace_event& each : from_.events) history(each);
    out_.end_list();
    out_.end_list();
    out_.text("segments");
    out_.begin_list();
    for (const auto& [first, last] : map_.reserved()) segment(first, last);
    out_.end_list();
    out_.text("allocator_settings");
    settings();
    out_.text("external_annotations");
    out_.begin_list();
    for (const trace_event& each : from_.events) annotation(each);
    out_.end_list();
    out_.end_dict();
    return std::move(out_).finish();
  }

 private:
  void number(std::string_view key, std::uint64_t value) {
    out_.text(key);
    out_.natural(value);
  }
  void text(std::string_view key, std::string_view value) {
    out_.text(key);
    out_.text(value);
  }
  [[nodiscard]] std::uint64_t stream_id(std::uint32_t number) const noexcept {
    return number < from_.streams.size() ? from_.streams[number] : 0;
  }

  void entry(std::string_view action, const trace_event& what, std::uint64_t address,
             std::uint32_t stack) {
    out_.begin_dict();
    text("action", action);
    number(what.kind == trace_kind::out_of_memory ? "device_free" : "addr", address);
    number("size", what.size);
    number("stream", stream_id(what.stream));
    number("time_us", what.time / 1000);
    text("compile_context", "N/A");
    text("user_metadata", what.tag < from_.tags.size() ? from_.tags[what.tag] : std::string_view{});
    out_.text("pool_id");
    out_.pair(0, what.pool);
    if (stack != 0) frames(stack);
    out_.end_dict();
  }

  void history(const trace_event& from) {
    const trace_event what = map_.take(from);
    switch (what.kind) {
      case trace_kind::allocate:
        return entry("alloc", what, what.address, what.other);
      case trace_kind::deallocate:
        entry("free_requested", what, what.address, what.other);
        if (!map_.tells_reusable()) entry("free_completed", what, what.address, 0);
        return;
      case trace_kind::reusable:
        return entry("free_completed", what, what.address, 0);
      case trace_kind::reserve:
        return entry("segment_map", what, what.address, 0);
      case trace_kind::release:
        return entry("segment_unmap", what, what.address, 0);
      case trace_kind::move:
        entry("segment_unmap", what, what.extra, 0);
        return entry("segment_map", what, what.address, 0);
      case trace_kind::out_of_memory:
        return entry("oom", what, 0, 0);
      default:
        return;  // torch has no word for it
    }
  }

  void frames(std::uint32_t stack) {
    out_.text("frames");
    out_.begin_list();
    if (stack != 0 && stack <= from_.stacks.size())
      for (const std::uint32_t each : from_.stacks[stack - 1])
        if (each < from_.frames.size()) frame(from_.frames[each]);
    out_.end_list();
  }

  /// "function at file:line" in its parts.
  void frame(std::string_view line) {
    const auto at = line.rfind(" at ");
    std::string_view file = at == line.npos ? std::string_view{} : line.substr(at + 4);
    std::uint64_t number_of_line = 0;
    if (const auto colon = file.rfind(':'); colon != file.npos) {
      const std::string_view digits = file.substr(colon + 1);
      const char* const end = digits.data() + digits.size();
      if (std::from_chars(digits.data(), end, number_of_line).ptr == end)
        file = file.substr(0, colon);
    }
    out_.begin_dict();
    text("name", line.substr(0, at));
    text("filename", file);
    number("line", number_of_line);
    out_.end_dict();
  }

  void segment(std::uint64_t first, std::uint64_t last) {
    const auto& blocks = map_.blocks();
    const auto begin = blocks.lower_bound(first);
    const auto end = blocks.lower_bound(last);
    std::uint64_t allocated = 0;
    std::uint64_t active = 0;
    std::uint64_t requested = 0;
    for (auto each = begin; each != end; ++each) {
      active += each->second.rounded;
      requested += each->second.size;
      if (!each->second.pending) allocated += each->second.rounded;
    }
    out_.begin_dict();
    number("device", 0);
    number("address", first);
    number("total_size", last - first);
    number("allocated_size", allocated);
    number("active_size", active);
    number("requested_size", requested);
    number("stream", begin == end ? 0 : stream_id(begin->second.stream));
    text("segment_type", "large");
    out_.text("segment_pool_id");
    out_.pair(0, 0);
    out_.text("is_expandable");
    out_.boolean(true);
    frames(0);
    out_.text("blocks");
    out_.begin_list();
    std::uint64_t at = first;
    for (auto each = begin; each != end; ++each) {
      if (each->first > at) block(at, each->first - at, 0, "inactive", 0);
      const auto& what = each->second;
      block(each->first, what.rounded, what.size,
            what.pending ? "active_pending_free" : "active_allocated", what.stack);
      at = each->first + what.rounded;
    }
    if (at < last) block(at, last - at, 0, "inactive", 0);
    out_.end_list();
    out_.end_dict();
  }

  void block(std::uint64_t address, std::uint64_t size, std::uint64_t requested,
             std::string_view state, std::uint32_t stack) {
    out_.begin_dict();
    number("address", address);
    number("size", size);
    number("requested_size", requested);
    text("state", state);
    frames(stack);
    out_.end_dict();
  }

  void settings() {
    out_.begin_dict();
    text("PYTORCH_CUDA_ALLOC_CONF", "");
    out_.text("max_split_size");
    out_.integer(-1);
    out_.text("garbage_collection_threshold");
    out_.real(0);
    out_.text("expandable_segments");
    out_.boolean(true);
    out_.end_dict();
  }

  /// A remark is a moment: it begins and ends.
  void annotation(const trace_event& what) {
    if (what.kind != trace_kind::marker || what.other >= from_.texts.size()) return;
    for (const std::string_view stage : {"START", "END"}) {
      out_.begin_dict();
      text("stage", stage);
      text("name", from_.texts[what.other]);
      number("device", 0);
      number("time_us", what.time / 1000);
      out_.end_dict();
    }
  }

  const recording& from_;
  memory_map map_;
  pickle_writer out_;
};

}  // namespace

std::string torch_snapshot_of(const recording& what) { return snapshot_writer{what}.write(); }

result<void> write_torch_snapshot(const recording& what, const std::string& path) {
  return write_file(path, torch_snapshot_of(what));
}

}  // namespace weir::inline v0::formats
