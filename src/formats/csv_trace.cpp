// Reading CSV traces and the peaks beside them.
#include "formats/csv_trace.hpp"

#include "formats/builder.hpp"
#include "formats/lines.hpp"

namespace weir::inline v0::formats {
namespace {

constexpr std::string_view columns = "op,id,bytes,stream,t_us";

/// What a line says, checked against the lines before it.
class csv_reader {
 public:
  /// What is wrong with the line; null if nothing.
  const char* add(std::string_view line) {
    const auto parts = fields<5>(line);
    if (!parts) return "not op,id,bytes,stream,t_us";
    const auto& [op, id_text, size_text, stream_text, time_text] = *parts;
    const auto id = number(id_text);
    const auto stream = number(stream_text);
    const auto time = number(time_text);
    if (!id || !stream || !time) return "not a number";
    if (*time > UINT64_MAX / 1000) return "the time is out of range";
    trace_event next{.time = *time * 1000, .address = *id, .stream = building_.stream(*stream)};
    if (op == "a") return allocate(size_text, next);
    if (!size_text.empty()) return "only an allocation has a size";
    if (op == "r") return give_up(next);
    if (op == "f") return reusable(next);
    return "the operation is none of a, r, f";
  }

  recording finish() && {
    building_.built().real_addresses = false;
    return std::move(building_).finish();
  }
  [[nodiscard]] std::size_t size() { return building_.built().events.size(); }

 private:
  const char* allocate(std::string_view size_text, trace_event next) {
    const auto size = number(size_text);
    if (!size) return "not a number";
    if (building_.live(next.address) != nullptr || pending_.contains(next.address))
      return "the block is allocated twice";
    next.kind = trace_kind::allocate;
    next.size = *size;
    building_.add(next);
    return nullptr;
  }

  const char* give_up(trace_event next) {
    const auto* const block = building_.live(next.address);
    if (block == nullptr) {
      return pending_.contains(next.address) ? "the block is freed out of turn"
                                             : "the block was not allocated before";
    }
    next.kind = trace_kind::deallocate;
    next.size = block->size;
    pending_.emplace(next.address, block->size);
    building_.add(next);
    return nullptr;
  }

  const char* reusable(trace_event next) {
    const auto found = pending_.find(next.address);
    if (found == pending_.end()) {
      return building_.live(next.address) != nullptr ? "the block is freed out of turn"
                                                     : "the block was not allocated before";
    }
    next.kind = trace_kind::reusable;
    next.size = found->second;
    pending_.erase(found);
    building_.add(next);
    return nullptr;
  }

  recording_builder building_;
  std::unordered_map<std::uint64_t, std::uint64_t> pending_;  // given up and not yet reusable
};

}  // namespace

bool is_csv_trace(std::string_view text) noexcept {
  const std::string_view line = text.substr(0, text.find('\n'));
  if (line.starts_with('#')) return line.find(columns) != line.npos;
  if (line.starts_with(columns)) return true;
  return line.size() > 2 && (line[0] == 'a' || line[0] == 'r' || line[0] == 'f') &&
         fields<5>(line).has_value();
}

result<recording> read_csv_trace(std::string_view text, std::string_view name,
                                 const input_limits& most) {
  csv_reader reading;
  WEIR_TRY(for_each_line(text, [&](std::string_view line, std::size_t count) -> result<void> {
    if (line.starts_with('#') || (count == 1 && line == columns)) return {};
    if (reading.size() >= most.events) {
      return error{.code = errc::limit_exceeded,
                   .detail = std::string{name} + ": more events than a reader takes"};
    }
    if (const char* const wrong = reading.add(line)) return bad_line(name, count, wrong);
    return {};
  }));
  return std::move(reading).finish();
}

result<std::vector<recorded_peak>> read_csv_peaks(std::string_view text, std::string_view name,
                                                  std::string_view trace) {
  std::vector<recorded_peak> peaks;
  WEIR_TRY(for_each_line(text, [&](std::string_view line, std::size_t count) -> result<void> {
    // trace, streams, allocs, requested, active, default reserved, expandable requested, reserved
    const auto parts = fields<8>(line);
    if (!parts) return bad_line(name, count, "not eight columns");
    if (count == 1 || (*parts)[0] != trace) return {};
    const auto requested = number((*parts)[3]);
    const auto fixed = number((*parts)[5]);
    const auto expandable_requested = number((*parts)[6]);
    const auto expandable = number((*parts)[7]);
    if (!requested || !fixed || !expandable_requested || !expandable)
      return bad_line(name, count, "not a number");
    peaks = {{"torch-default", *requested, *fixed},
             {"torch-expandable", *expandable_requested, *expandable}};
    return {};
  }));
  return peaks;
}

}  // namespace weir::inline v0::formats
