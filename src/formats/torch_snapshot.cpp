// Importing PyTorch snapshots.
#include "formats/torch_snapshot.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/builder.hpp"
#include "formats/pickle.hpp"

namespace weir::inline v0::formats {
namespace {

/// A history entry with the fields that all have.
struct entry {
  std::string_view action{};
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t stream = 0;
  std::uint64_t time = 0;  // microseconds
  const pickle_value* source = nullptr;
};

error no_snapshot(std::string why) {
  return {.code = errc::invalid_argument, .detail = "not a PyTorch snapshot: " + std::move(why)};
}

/// Turns a pickle into a recording.
///
/// A container may be part of many others, so a small pickle can name an endless walk. Everything
/// real takes a byte at least: no walk has more steps than the file has bytes.
class snapshot_reader {
 public:
  snapshot_reader(const pickle& from, std::size_t size, const input_limits& most) noexcept
      : from_{from}, steps_{size}, most_{most} {}

  result<recording> read() {
    const pickle_value& root = from_.root();
    const pickle_value* segments = &root;  // a bare list is the segments alone
    const pickle_value* traces = nullptr;
    if (root.is == pickle_value::type::dict) {
      segments = from_.find(root, "segments");
      traces = from_.find(root, "device_traces");
    }
    if (segments == nullptr || segments->is != pickle_value::type::list)
      return no_snapshot("there is no list of segments");
    device_ = choose_device(*segments, traces);
    WEIR_TRY(read_history(traces));
    WEIR_TRY(find_leftovers(*segments));
    if (root.is == pickle_value::type::dict)
      read_annotations(from_.find(root, "external_annotations"));
    WEIR_TRY(build());
    recording whole = std::move(building_).finish();
    whole.device = "cuda:" + std::to_string(device_);
    return whole;
  }

 private:
  [[nodiscard]] bool step() noexcept { return steps_ != 0 && steps_-- != 0; }
  static error too_many() { return no_snapshot("its parts refer to each other too often"); }

  [[nodiscard]] std::uint64_t natural(const pickle_value& dict, std::string_view key) const {
    const pickle_value* const found = from_.find(dict, key);
    if (found == nullptr) return 0;
    // Handles of streams may have been written as signed numbers.
    if (const auto value = from_.integer(*found)) return static_cast<std::uint64_t>(*value);
    return from_.natural(*found).value_or(0);
  }
  [[nodiscard]] std::string_view text(const pickle_value& dict, std::string_view key) const {
    const pickle_value* const found = from_.find(dict, key);
    return found == nullptr ? std::string_view{} : from_.text(*found).value_or("");
  }

  std::uint64_t choose_device(const pickle_value& segments, const pickle_value* traces) const {
    std::size_t most_events = 0;
    std::uint64_t chosen = 0;
    if (traces != nullptr) {
      const auto& all = from_.elements(*traces);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (from_.elements(all[i]).size() <= most_events) continue;
        most_events = from_.elements(all[i]).size();
        chosen = i;
      }
    }
    const auto& first = from_.elements(segments);
    if (most_events == 0 && !first.empty()) chosen = natural(first.front(), "device");
    return chosen;
  }

  result<void> read_history(const pickle_value* traces) {
    if (traces == nullptr) return {};
    const auto& all = from_.elements(*traces);
    if (device_ >= all.size()) return {};
    for (const pickle_value& each : from_.elements(all[device_])) {
      if (!step()) return too_many();
      if (history_.size() >= most_.events) {
        return error{.code = errc::limit_exceeded,
                     .detail = "the snapshot has more events than a reader takes"};
      }
      if (each.is != pickle_value::type::dict || from_.find(each, "action") == nullptr)
        return no_snapshot("entry " + std::to_string(history_.size()) + " has no action");
      history_.push_back({.action = text(each, "action"),
                          .address = natural(each, "addr"),
                          .size = natural(each, "size"),
                          .stream = natural(each, "stream"),
                          .time = natural(each, "time_us"),
                          .source = &each});
    }
    return {};
  }

  /// What was there before the history: blocks that it frees without having allocated them, and
  /// blocks that are live at the end and that it never touched.
  result<void> find_leftovers(const pickle_value& segments) {
    std::unordered_map<std::uint64_t, bool> live;
    for (const entry& each : history_) {
      if (each.action == "alloc") live[each.address] = true;
      if (each.action != "free_requested") continue;
      if (live.try_emplace(each.address, false).second) leftovers_.emplace(each.address, each);
      live[each.address] = false;
    }
    for (const pickle_value& segment : from_.elements(segments)) {
      if (!step()) return too_many();
      if (segment.is != pickle_value::type::dict) return no_snapshot("a segment is no dict");
      if (natural(segment, "device") != device_) continue;
      std::uint64_t address = natural(segment, "address");
      const pickle_value* const blocks = from_.find(segment, "blocks");
      if (blocks == nullptr) continue;
      for (const pickle_value& block : from_.elements(*blocks)) {
        if (!step()) return too_many();
        if (from_.find(block, "address") != nullptr) address = natural(block, "address");
        const std::uint64_t size = natural(block, "size");
        if (text(block, "state") == "active_allocated" && !live.contains(address)) {
          const bool knows = from_.find(block, "requested_size") != nullptr;
          leftovers_.emplace(address, entry{.address = address,
                                            .size = knows ? natural(block, "requested_size") : size,
                                            .stream = natural(segment, "stream"),
                                            .source = &block});
        }
        address += size;  // old snapshots name only the first block's place
      }
    }
    return {};
  }

  void read_annotations(const pickle_value* list) {
    if (list == nullptr) return;
    for (const pickle_value& each : from_.elements(*list)) {
      if (!step()) return;
      if (natural(each, "device") != device_) continue;
      const bool ends = text(each, "stage") == "END";
      annotations_.emplace_back(natural(each, "time_us"),
                                (ends ? "end of " : "begin of ") + std::string{text(each, "name")});
    }
    std::stable_sort(annotations_.begin(), annotations_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
  }

  // --- Building ---------------------------------------------------------------------------------

  result<void> build() {
    if (!history_.empty()) began_ = history_.front().time;
    for (const auto& [address, what] : leftovers_) {
      WEIR_TRY_VALUE(stack, stack_of(*what.source));
      building_.add({.address = address,
                     .size = what.size,
                     .stream = building_.stream(what.stream),
                     .other = stack,
                     .kind = trace_kind::allocate});
    }
    if (!leftovers_.empty()) add_marker("what was there before the recording began", 0);
    auto next = annotations_.begin();
    for (const entry& each : history_) {
      for (; next != annotations_.end() && next->first <= each.time; ++next)
        add_marker(next->second, since(next->first));
      WEIR_TRY(add(each));
    }
    for (; next != annotations_.end(); ++next) add_marker(next->second, since(next->first));
    return {};
  }

  [[nodiscard]] std::uint64_t since(std::uint64_t microseconds) const noexcept {
    const std::uint64_t passed = microseconds - std::min(microseconds, began_);
    return passed > UINT64_MAX / 1000 ? UINT64_MAX : passed * 1000;
  }

  void add_marker(std::string text, std::uint64_t time) {
    recording& to = building_.built();
    building_.add({.time = time,
                   .other = static_cast<std::uint32_t>(to.texts.size()),
                   .kind = trace_kind::marker});
    to.texts.push_back(std::move(text));
  }

  result<void> add(const entry& from) {
    trace_event next{.time = since(from.time), .address = from.address, .size = from.size};
    next.stream = building_.stream(from.stream);
    next.pool = pool_of(*from.source);
    next.tag = tag_of(text(*from.source, "user_metadata"));
    if (from.action == "alloc") {
      WEIR_TRY_VALUE(stack, stack_of(*from.source));
      next.other = stack;
      next.kind = trace_kind::allocate;
      // The history of graph pools that are restored has blocks again that it never freed.
      if (const auto* const there = building_.live(from.address)) {
        trace_event missing = next;
        missing.kind = trace_kind::deallocate;
        missing.size = there->size;
        missing.stream = there->stream;
        missing.other = 0;
        building_.add(missing);
      }
      building_.add(next);
      pending_.erase(from.address);
    } else if (from.action == "free_requested") {
      if (building_.live(from.address) == nullptr) return {};
      WEIR_TRY_VALUE(stack, stack_of(*from.source));
      next.other = stack;
      next.kind = trace_kind::deallocate;
      building_.add(next);
      pending_[from.address] = true;
    } else if (from.action == "free_completed") {
      if (pending_.erase(from.address) == 0) return {};
      next.kind = trace_kind::reusable;
      building_.add(next);
    } else if (from.action == "segment_alloc" || from.action == "segment_map") {
      next.kind = trace_kind::reserve;
      building_.add(next);
    } else if (from.action == "segment_free" || from.action == "segment_unmap") {
      next.kind = trace_kind::release;
      building_.add(next);
    } else if (from.action == "oom") {
      next.address = 0;
      next.kind = trace_kind::out_of_memory;
      building_.add(next);
    } else if (from.action == "snapshot" || from.action == "annotate") {
      const std::string_view remark = text(*from.source, "user_metadata");
      add_marker(std::string{remark.empty() ? from.action : remark}, next.time);
    }
    return {};
  }

  std::uint16_t pool_of(const pickle_value& source) {
    const pickle_value* const found = from_.find(source, "pool_id");
    if (found == nullptr) return 0;
    const auto& ids = from_.elements(*found);
    if (ids.size() != 2) return 0;
    const std::pair key{from_.integer(ids[0]).value_or(0), from_.integer(ids[1]).value_or(0)};
    if (key == std::pair<std::int64_t, std::int64_t>{0, 0}) return 0;
    auto& names = building_.built().pools;
    if (names.size() > UINT16_MAX) return 0;
    const auto [at, fresh] = pools_.try_emplace(key, static_cast<std::uint16_t>(names.size()));
    if (fresh) {
      names.push_back("pool " + std::to_string(key.first) + "," + std::to_string(key.second));
    }
    return at->second;
  }

  std::uint16_t tag_of(std::string_view name) {
    auto& names = building_.built().tags;
    if (name.empty() || name.size() > 255 || names.size() > UINT16_MAX) return 0;
    const auto [at, fresh] = tags_.try_emplace(name, static_cast<std::uint16_t>(names.size()));
    if (fresh) names.emplace_back(name);
    return at->second;
  }

  /// A stack is told once however often it is referred to: by the container, then by its frames.
  result<std::uint32_t> stack_of(const pickle_value& source) {
    const pickle_value* const found = from_.find(source, "frames");
    if (found == nullptr || from_.elements(*found).empty()) return 0u;
    const auto [at, fresh] = by_container_.try_emplace(found->bits, 0);
    if (!fresh) return at->second;
    std::vector<std::uint32_t> frames;
    for (const pickle_value& each : from_.elements(*found)) {
      if (!step()) return too_many();
      frames.push_back(frame_of(each));
    }
    recording& to = building_.built();
    const auto [stack, new_stack] =
        stacks_.try_emplace(frames, static_cast<std::uint32_t>(to.stacks.size()));
    if (new_stack) to.stacks.push_back(std::move(frames));
    at->second = stack->second + 1;
    return stack->second + 1;
  }

  std::uint32_t frame_of(const pickle_value& source) {
    std::string line{text(source, "name")};
    if (const auto file = text(source, "filename"); !file.empty())
      line.append(" at ").append(file).append(":").append(std::to_string(natural(source, "line")));
    recording& to = building_.built();
    const auto [at, fresh] =
        frames_.try_emplace(line, static_cast<std::uint32_t>(to.frames.size()));
    if (fresh) to.frames.push_back(std::move(line));
    return at->second;
  }

  const pickle& from_;
  std::size_t steps_;
  input_limits most_;
  std::uint64_t device_ = 0;
  std::uint64_t began_ = 0;
  std::vector<entry> history_;
  std::map<std::uint64_t, entry> leftovers_;
  std::vector<std::pair<std::uint64_t, std::string>> annotations_;
  recording_builder building_;
  std::unordered_map<std::uint64_t, bool> pending_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint16_t> pools_;
  std::unordered_map<std::string_view, std::uint16_t> tags_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_container_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> stacks_;
  std::unordered_map<std::string, std::uint32_t> frames_;
};

}  // namespace

result<recording> read_torch_snapshot(std::string_view bytes, std::string_view /*name*/,
                                      const input_limits& most) {
  WEIR_TRY_VALUE(tree, pickle::read(bytes, most));
  return snapshot_reader{tree, bytes.size(), most}.read();
}

}  // namespace weir::inline v0::formats
