// Importing PyTorch snapshots.
#include "formats/torch_snapshot.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
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

error no_snapshot(std::string reason) {
  return {.code = errc::invalid_argument, .detail = "not a PyTorch snapshot: " + std::move(reason)};
}

/// Turns a pickle into a recording.
///
/// A container may be part of many others, so a small pickle can name an endless walk. Everything
/// real takes a byte at least: no walk has more steps than the file has bytes.
class snapshot_reader {
 public:
  snapshot_reader(const pickle& tree, std::size_t size, const input_limits& limits) noexcept
      : tree_{tree}, steps_{size}, limits_{limits} {}

  result<recording> read() {
    const pickle_value& root = tree_.root();
    const pickle_value* segments = &root;  // a bare list is the segments alone
    const pickle_value* traces = nullptr;
    if (root.type == pickle_value::value_type::dict) {
      segments = tree_.find(root, "segments");
      traces = tree_.find(root, "device_traces");
    }
    if (segments == nullptr || segments->type != pickle_value::value_type::list)
      return no_snapshot("there is no list of segments");
    device_ = choose_device(*segments, traces);
    WEIR_TRY(read_history(traces));
    WEIR_TRY(find_leftovers(*segments));
    if (root.type == pickle_value::value_type::dict)
      read_annotations(tree_.find(root, "external_annotations"));
    WEIR_TRY(build());
    recording built = std::move(builder_).finish();
    if (built.events.size() > limits_.events) return too_large();
    built.device = "cuda:" + std::to_string(device_);
    return built;
  }

 private:
  [[nodiscard]] bool step() noexcept { return steps_ != 0 && steps_-- != 0; }
  static error too_many() { return no_snapshot("its parts refer to each other too often"); }
  static error too_large() {
    return {.code = errc::limit_exceeded,
            .detail = "the snapshot has more events than a reader takes"};
  }

  [[nodiscard]] std::uint64_t natural(const pickle_value& dict, std::string_view key) const {
    const pickle_value* const member = tree_.find(dict, key);
    if (member == nullptr) return 0;
    // Handles of streams may have been written as signed numbers.
    if (const auto value = tree_.integer(*member)) return static_cast<std::uint64_t>(*value);
    return tree_.natural(*member).value_or(0);
  }
  [[nodiscard]] std::string_view text(const pickle_value& dict, std::string_view key) const {
    const pickle_value* const member = tree_.find(dict, key);
    return member == nullptr ? std::string_view{} : tree_.text(*member).value_or("");
  }

  std::uint64_t choose_device(const pickle_value& segments, const pickle_value* traces) const {
    std::size_t most_events = 0;
    std::uint64_t chosen = 0;
    if (traces != nullptr) {
      const auto& all = tree_.elements(*traces);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (tree_.elements(all[i]).size() <= most_events) continue;
        most_events = tree_.elements(all[i]).size();
        chosen = i;
      }
    }
    const auto& first = tree_.elements(segments);
    if (most_events == 0 && !first.empty()) chosen = natural(first.front(), "device");
    return chosen;
  }

  result<void> read_history(const pickle_value* traces) {
    if (traces == nullptr) return {};
    const auto& all = tree_.elements(*traces);
    if (device_ >= all.size()) return {};
    for (const pickle_value& each : tree_.elements(all[device_])) {
      if (!step()) return too_many();
      if (history_.size() >= limits_.events) return too_large();
      if (each.type != pickle_value::value_type::dict || tree_.find(each, "action") == nullptr)
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
    std::unordered_set<std::uint64_t> touched;
    for (const entry& each : history_) {
      if (each.action == "alloc") touched.insert(each.address);
      if (each.action != "free_requested") continue;
      if (touched.insert(each.address).second) leftovers_.emplace(each.address, each);
    }
    for (const pickle_value& segment : tree_.elements(segments)) {
      if (!step()) return too_many();
      if (segment.type != pickle_value::value_type::dict)
        return no_snapshot("a segment is no dict");
      if (natural(segment, "device") != device_) continue;
      std::uint64_t address = natural(segment, "address");
      const pickle_value* const blocks = tree_.find(segment, "blocks");
      if (blocks == nullptr) continue;
      for (const pickle_value& block : tree_.elements(*blocks)) {
        if (!step()) return too_many();
        if (tree_.find(block, "address") != nullptr) address = natural(block, "address");
        const std::uint64_t size = natural(block, "size");
        if (text(block, "state") == "active_allocated" && !touched.contains(address)) {
          const bool knows = tree_.find(block, "requested_size") != nullptr;
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
    for (const pickle_value& each : tree_.elements(*list)) {
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
    if (!history_.empty()) start_ = history_.front().time;
    for (const auto& [address, leftover] : leftovers_) {
      WEIR_TRY_VALUE(stack, stack_of(*leftover.source));
      builder_.add({.address = address,
                    .size = leftover.size,
                    .stream = builder_.stream(leftover.stream),
                    .other = stack,
                    .kind = trace_kind::allocate});
    }
    if (!leftovers_.empty()) add_marker("what was there before the recording began", 0);
    auto next = annotations_.begin();
    for (const entry& each : history_) {
      for (; next != annotations_.end() && next->first <= each.time; ++next)
        add_marker(next->second, time_since_start(next->first));
      WEIR_TRY(add(each));
    }
    for (; next != annotations_.end(); ++next)
      add_marker(next->second, time_since_start(next->first));
    return {};
  }

  [[nodiscard]] std::uint64_t time_since_start(std::uint64_t microseconds) const noexcept {
    const std::uint64_t elapsed = microseconds - std::min(microseconds, start_);
    return elapsed > UINT64_MAX / 1000 ? UINT64_MAX : elapsed * 1000;
  }

  void add_marker(std::string text, std::uint64_t time) {
    recording& draft = builder_.draft();
    builder_.add({.time = time,
                  .other = static_cast<std::uint32_t>(draft.texts.size()),
                  .kind = trace_kind::marker});
    draft.texts.push_back(std::move(text));
  }

  result<void> add(const entry& recorded) {
    trace_event next{.time = time_since_start(recorded.time),
                     .address = recorded.address,
                     .size = recorded.size};
    next.stream = builder_.stream(recorded.stream);
    next.pool = pool_of(*recorded.source);
    next.tag = tag_of(text(*recorded.source, "user_metadata"));
    if (recorded.action == "alloc") {
      WEIR_TRY_VALUE(stack, stack_of(*recorded.source));
      next.other = stack;
      next.kind = trace_kind::allocate;
      // The history of graph pools that are restored has blocks again that it never freed.
      if (const auto* const live_block = builder_.live(recorded.address)) {
        trace_event missing = next;
        missing.kind = trace_kind::deallocate;
        missing.size = live_block->size;
        missing.stream = live_block->stream;
        missing.other = 0;
        builder_.add(missing);
      }
      builder_.add(next);
      pending_.erase(recorded.address);
    } else if (recorded.action == "free_requested") {
      if (builder_.live(recorded.address) == nullptr) return {};
      WEIR_TRY_VALUE(stack, stack_of(*recorded.source));
      next.other = stack;
      next.kind = trace_kind::deallocate;
      builder_.add(next);
      pending_[recorded.address] = true;
    } else if (recorded.action == "free_completed") {
      if (pending_.erase(recorded.address) == 0) return {};
      next.kind = trace_kind::reusable;
      builder_.add(next);
    } else if (recorded.action == "segment_alloc" || recorded.action == "segment_map") {
      next.kind = trace_kind::reserve;
      builder_.add(next);
    } else if (recorded.action == "segment_free" || recorded.action == "segment_unmap") {
      next.kind = trace_kind::release;
      builder_.add(next);
    } else if (recorded.action == "oom") {
      next.address = 0;
      next.kind = trace_kind::out_of_memory;
      builder_.add(next);
    } else if (recorded.action == "snapshot" || recorded.action == "annotate") {
      const std::string_view remark = text(*recorded.source, "user_metadata");
      add_marker(std::string{remark.empty() ? recorded.action : remark}, next.time);
    }
    return {};
  }

  std::uint16_t pool_of(const pickle_value& source) {
    const pickle_value* const member = tree_.find(source, "pool_id");
    if (member == nullptr) return 0;
    const auto& ids = tree_.elements(*member);
    if (ids.size() != 2) return 0;
    const std::pair key{tree_.integer(ids[0]).value_or(0), tree_.integer(ids[1]).value_or(0)};
    if (key == std::pair<std::int64_t, std::int64_t>{0, 0}) return 0;
    auto& names = builder_.draft().pools;
    if (names.size() > UINT16_MAX) return 0;
    const auto [known, inserted] =
        pools_.try_emplace(key, static_cast<std::uint16_t>(names.size()));
    if (inserted) {
      names.push_back("pool " + std::to_string(key.first) + "," + std::to_string(key.second));
    }
    return known->second;
  }

  std::uint16_t tag_of(std::string_view name) {
    auto& names = builder_.draft().tags;
    if (name.empty() || name.size() > 255 || names.size() > UINT16_MAX) return 0;
    const auto [known, inserted] =
        tags_.try_emplace(name, static_cast<std::uint16_t>(names.size()));
    if (inserted) names.emplace_back(name);
    return known->second;
  }

  /// A stack is written once however often it is referred to: by the container, then by its frames.
  result<std::uint32_t> stack_of(const pickle_value& source) {
    const pickle_value* const list = tree_.find(source, "frames");
    if (list == nullptr || tree_.elements(*list).empty()) return 0u;
    const auto [known, inserted] = by_container_.try_emplace(list->bits, 0);
    if (!inserted) return known->second;
    std::vector<std::uint32_t> frames;
    for (const pickle_value& each : tree_.elements(*list)) {
      if (!step()) return too_many();
      frames.push_back(frame_of(each));
    }
    recording& draft = builder_.draft();
    const auto [stack, new_stack] =
        stacks_.try_emplace(frames, static_cast<std::uint32_t>(draft.stacks.size()));
    if (new_stack) draft.stacks.push_back(std::move(frames));
    known->second = stack->second + 1;
    return stack->second + 1;
  }

  std::uint32_t frame_of(const pickle_value& source) {
    std::string line{text(source, "name")};
    if (const auto file = text(source, "filename"); !file.empty())
      line.append(" at ").append(file).append(":").append(std::to_string(natural(source, "line")));
    recording& draft = builder_.draft();
    const auto [known, inserted] =
        frames_.try_emplace(line, static_cast<std::uint32_t>(draft.frames.size()));
    if (inserted) draft.frames.push_back(std::move(line));
    return known->second;
  }

  const pickle& tree_;
  std::size_t steps_;
  input_limits limits_;
  std::uint64_t device_ = 0;
  std::uint64_t start_ = 0;
  std::vector<entry> history_;
  std::map<std::uint64_t, entry> leftovers_;
  std::vector<std::pair<std::uint64_t, std::string>> annotations_;
  recording_builder builder_;
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
