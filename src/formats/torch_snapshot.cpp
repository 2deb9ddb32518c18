// SPDX-License-Identifier: Apache-2.0
// Importing PyTorch snapshots.
#include "formats/torch_snapshot.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/builder.hpp"
#include "formats/pickle.hpp"
#include "formats/segment_ranges.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

/// A history entry with the fields that all have.
struct entry {
  std::string_view action{};
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  std::uint64_t stream = 0;
  std::uint64_t time = 0;  // microseconds
  const pickle_value* source = nullptr;
  const pickle_value* pool = nullptr;  // its id; null: not said
};

/// What was live, and the most that it was.
struct highest_sum {
  std::uint64_t now = 0;
  std::uint64_t most = 0;

  void add(std::uint64_t size) noexcept {
    now += size;
    most = std::max(most, now);
  }
  void subtract(std::uint64_t size) noexcept { now -= std::min(now, size); }
};

/// What is known of reserved memory.
struct segment_label {
  std::uint64_t stream = 0;
  const pickle_value* pool = nullptr;  // its id; null: not said
};

bool begins_segment(std::string_view action) noexcept {
  return action == "segment_alloc" || action == "segment_map";
}
bool ends_segment(std::string_view action) noexcept {
  return action == "segment_free" || action == "segment_unmap";
}

error no_snapshot(std::string reason) {
  return {
      {.code = errc::invalid_argument, .detail = "not a PyTorch snapshot: " + std::move(reason)}};
}

/// Turns a pickle into a recording.
///
/// A container may be part of many others, so a small pickle can name an endless walk. Everything
/// real takes a byte at least: no walk has more steps than the file has bytes. A text may be part
/// of many frames and remarks, each of which is a copy: there is a limit for all of them.
class snapshot_reader {
 public:
  snapshot_reader(const pickle& tree, std::size_t size, const input_limits& limits) noexcept
      : tree_{tree},
        steps_{size},
        comparisons_{most_comparisons * size},
        texts_{most_copies * size + small_texts},
        limits_{limits} {}

  result<recording> read(const device_choice& choice) {
    const pickle_value& root = tree_.root();
    const pickle_value* segments = &root;  // a bare list is the segments alone
    const pickle_value* traces = nullptr;
    if (root.type == pickle_value::value_type::dict) {
      segments = member(root, "segments");
      traces = member(root, "device_traces");
    }
    if (segments == nullptr || segments->type != pickle_value::value_type::list)
      return no_snapshot("expected a list of segments");
    WEIR_TRY(choose_device(*segments, traces, choice));
    WEIR_TRY(read_history(traces));
    WEIR_TRY(find_leftovers(*segments));
    find_earlier_segments();
    if (root.type == pickle_value::value_type::dict)
      read_annotations(member(root, "external_annotations"));
    WEIR_TRY(read_own_events(root));
    WEIR_TRY(build());
    if (comparisons_ == 0) return too_many();
    if (texts_ == 0) return too_long();
    recording built = std::move(builder_).finish();
    if (built.events.size() > limits_.events) return too_large();
    built.device = "cuda:" + std::to_string(device_);
    return built;
  }

 private:
  /// A dict's members are compared one by one. Those of real dicts take three bytes and more each,
  /// and are asked for some ten times; a dict that the pickle names again and again is none.
  static constexpr std::uint64_t most_comparisons = 64;
  /// The texts of frames and remarks, by the size of the file. Those of real snapshots are shorter
  /// than the file: names are shared, but each frame takes its own bytes besides.
  static constexpr std::uint64_t most_copies = 32;
  static constexpr std::uint64_t small_texts = std::uint64_t{1} << 20;

  [[nodiscard]] bool step() noexcept { return comparisons_ != 0 && steps_ != 0 && steps_-- != 0; }
  static error too_many() { return no_snapshot("its parts refer to each other too often"); }
  static error too_long() {
    return {{.code = errc::limit_exceeded,
             .detail = "the texts of the snapshot's frames and remarks are too long for the size "
                       "of the file"}};
  }
  /// Whether a copy of that length may be made.
  [[nodiscard]] bool may_copy(std::size_t length) noexcept {
    texts_ = texts_ > length ? texts_ - length : 0;
    return texts_ != 0;
  }
  static error too_large() {
    return {
        {.code = errc::limit_exceeded, .detail = "the snapshot has more events than weir reads"}};
  }

  [[nodiscard]] const pickle_value* member(const pickle_value& dict, std::string_view key) const {
    if (comparisons_ == 0) return nullptr;
    comparisons_ -= std::min<std::uint64_t>(comparisons_, tree_.members(dict));
    return tree_.find(dict, key);
  }
  [[nodiscard]] std::uint64_t natural(const pickle_value& dict, std::string_view key) const {
    const pickle_value* const found = member(dict, key);
    if (found == nullptr) return 0;
    // Handles of streams may have been written as signed numbers.
    if (const auto value = tree_.integer(*found)) return static_cast<std::uint64_t>(*value);
    return tree_.natural(*found).value_or(0);
  }
  [[nodiscard]] std::string_view text(const pickle_value& dict, std::string_view key) const {
    const pickle_value* const found = member(dict, key);
    return found == nullptr ? std::string_view{} : tree_.text(*found).value_or("");
  }

  /// What is known of a device before it is chosen.
  struct device_extent {
    std::uint64_t bytes = 0;  // that it had reserved at most, or live where that is not said
    std::size_t events = 0;
  };

  /// By device: its segments at the end, and its history before.
  result<std::map<std::uint64_t, device_extent>> devices(const pickle_value& segments,
                                                         const pickle_value* traces) {
    std::map<std::uint64_t, device_extent> all;
    for (const pickle_value& segment : tree_.elements(segments)) {
      if (!step()) return too_many();
      if (segment.type != pickle_value::value_type::dict)
        return no_snapshot("expected a dict for each segment");
      std::uint64_t size = natural(segment, "total_size");
      if (const pickle_value* const blocks = member(segment, "blocks"); size == 0 && blocks)
        for (const pickle_value& block : tree_.elements(*blocks)) {
          if (!step()) return too_many();
          size += natural(block, "size");
        }
      all[natural(segment, "device")].bytes += size;
    }
    if (traces == nullptr) return all;
    const auto& histories = tree_.elements(*traces);
    for (std::size_t device = 0; device < histories.size(); ++device) {
      const auto& history = tree_.elements(histories[device]);
      if (history.empty()) continue;
      device_extent& extent = all[device];
      extent.events = history.size();
      std::uint64_t reserved = 0;  // the change since the history began
      std::uint64_t most_reserved = 0;
      highest_sum requested;  // live until their frees are requested, and until they are completed
      highest_sum completed;
      bool tells_requests = false;
      for (const pickle_value& each : history) {
        if (!step()) return too_many();
        const std::string_view action = text(each, "action");
        const std::uint64_t size = natural(each, "size");
        if (begins_segment(action)) reserved += size;
        if (ends_segment(action)) reserved -= size;
        if (action == "alloc") {
          requested.add(size);
          completed.add(size);
        }
        if (action == "free_requested") requested.subtract(size);
        if (action == "free_completed") completed.subtract(size);
        tells_requests |= action == "free_requested";
        if (static_cast<std::int64_t>(reserved - most_reserved) > 0) most_reserved = reserved;
      }
      extent.bytes = std::max(extent.bytes - reserved + most_reserved,
                              tells_requests ? requested.most : completed.most);
    }
    return all;
  }

  /// The device that is asked for, or that which held the most; of equal ones that with the longest
  /// history, then the first.
  result<void> choose_device(const pickle_value& segments, const pickle_value* traces,
                             const device_choice& choice) {
    const std::size_t steps = steps_;  // this walk is another one
    WEIR_TRY_VALUE(all, devices(segments, traces));
    steps_ = steps;
    if (!all.empty()) device_ = all.begin()->first;
    std::string list;
    for (const auto& [device, extent] : all) {
      const device_extent& most = all[device_];
      if (std::pair{extent.bytes, extent.events} > std::pair{most.bytes, most.events})
        device_ = device;
      list += (list.empty() ? "cuda:" : ", cuda:") + std::to_string(device) + " (at most " +
              to_string(bytes{extent.bytes}) + ")";
    }
    if (choice.device) device_ = *choice.device;
    if (!all.contains(device_) && choice.device)
      return error{{.code = errc::invalid_argument,
                    .detail = "the snapshot has no device " + std::to_string(device_) +
                              (all.empty() ? std::string{} : "; it has " + list)}};
    if (choice.remark != nullptr && all.size() > 1)
      *choice.remark = "the snapshot has " + list + "; reading cuda:" + std::to_string(device_);
    return {};
  }

  result<void> read_history(const pickle_value* traces) {
    if (traces == nullptr) return {};
    const auto& all = tree_.elements(*traces);
    if (device_ >= all.size()) return {};
    for (const pickle_value& each : tree_.elements(all[device_])) {
      if (!step()) return too_many();
      if (history_.size() >= limits_.events) return too_large();
      if (each.type != pickle_value::value_type::dict || member(each, "action") == nullptr)
        return no_snapshot("entry " + std::to_string(history_.size()) + " has no action");
      history_.push_back({.action = text(each, "action"),
                          .address = natural(each, "addr"),
                          .size = natural(each, "size"),
                          .stream = natural(each, "stream"),
                          .time = natural(each, "time_us"),
                          .source = &each,
                          .pool = member(each, "pool_id")});
    }
    if (lacks_requested_frees()) {
      for (entry& each : history_)
        if (each.action == "free_completed") each.action = "free_requested";
    }
    return {};
  }

  /// Whether the history says of no block when its free was requested, though it says of one that
  /// it allocated when its free was completed: who records may leave such entries out
  /// (skip_actions).
  [[nodiscard]] bool lacks_requested_frees() const {
    std::unordered_map<std::uint64_t, std::uint64_t> allocated;  // sizes by address
    bool completes_any = false;
    for (const entry& each : history_) {
      if (each.action == "free_requested") return false;
      if (each.action == "alloc") allocated[each.address] = each.size;
      if (each.action != "free_completed") continue;
      const auto block = allocated.find(each.address);
      completes_any |= block != allocated.end() && block->second == each.size;
    }
    return completes_any;
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
        return no_snapshot("expected a dict for each segment");
      if (natural(segment, "device") != device_) continue;
      std::uint64_t address = natural(segment, "address");
      const segment_label label{natural(segment, "stream"), member(segment, "segment_pool_id")};
      earlier_segments_.add(address, natural(segment, "total_size"), label);
      const pickle_value* const blocks = member(segment, "blocks");
      if (blocks == nullptr) continue;
      for (const pickle_value& block : tree_.elements(*blocks)) {
        if (!step()) return too_many();
        if (member(block, "address") != nullptr) address = natural(block, "address");
        const std::uint64_t size = natural(block, "size");
        if (text(block, "state") == "active_allocated" && !touched.contains(address)) {
          const bool knows = member(block, "requested_size") != nullptr;
          leftovers_.emplace(address, entry{.address = address,
                                            .size = knows ? natural(block, "requested_size") : size,
                                            .stream = label.stream,
                                            .source = &block,
                                            .pool = label.pool});
        }
        address += size;  // old snapshots name only the first block's place
      }
    }
    return {};
  }

  /// What was reserved before the history: the segments at its end, with its steps undone.
  void find_earlier_segments() {
    for (auto each = history_.rbegin(); each != history_.rend(); ++each) {
      if (begins_segment(each->action)) earlier_segments_.remove(each->address, each->size);
      if (ends_segment(each->action))
        earlier_segments_.add(each->address, each->size, {each->stream, each->pool});
    }
    for (auto& [address, leftover] : leftovers_) {
      if (leftover.pool != nullptr) continue;
      if (const auto* const around = earlier_segments_.find(address))
        leftover.pool = around->label.pool;
    }
  }

  void read_annotations(const pickle_value* list) {
    if (list == nullptr) return;
    for (const pickle_value& each : tree_.elements(*list)) {
      if (!step()) return;
      if (natural(each, "device") != device_) continue;
      add_annotation(natural(each, "time_us"), text(each, "stage") == "END", text(each, "name"));
    }
    std::stable_sort(annotations_.begin(), annotations_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
  }

  /// One that ends where it begins, as markers are exported, is one marker by its name.
  void add_annotation(std::uint64_t time, bool ends, std::string_view name) {
    if (!may_copy(name.size())) return;
    const std::string begin = "begin of " + std::string{name};
    if (!ends) {
      annotations_.emplace_back(time, begin);
    } else if (!annotations_.empty() && annotations_.back() == std::pair{time, begin}) {
      annotations_.back().second = name;
    } else {
      annotations_.emplace_back(time, "end of " + std::string{name});
    }
  }

  /// What weir's export adds for events that PyTorch has no action for; see write_own_events().
  result<void> read_own_events(const pickle_value& root) {
    const pickle_value* const list = member(root, own_events_key);
    is_exported_ = list != nullptr;
    if (!is_exported_) return {};
    for (const pickle_value& each : tree_.elements(*list)) {
      if (!step()) return too_many();
      own_events_.push_back({.action = text(each, "action"),
                             .address = natural(each, "addr"),
                             .size = natural(each, "before"),
                             .stream = natural(each, "stream"),
                             .time = natural(each, "time_us"),
                             .source = &each,
                             .pool = member(each, "pool_id")});
    }
    std::stable_sort(own_events_.begin(), own_events_.end(),
                     [](const entry& a, const entry& b) { return a.size < b.size; });
    return {};
  }

  // --- Building ---------------------------------------------------------------------------------

  result<void> build() {
    if (!history_.empty()) start_ = history_.front().time;
    for (const auto& [address, range] : earlier_segments_.all()) {
      const trace_event reserved{.address = address,
                                 .size = range.end - address,
                                 .stream = builder_.stream(range.label.stream),
                                 .pool = pool_of(range.label.pool),
                                 .kind = trace_kind::reserve};
      builder_.add(reserved);
      count_reserved(reserved);
    }
    for (const auto& [address, leftover] : leftovers_) {
      WEIR_TRY_VALUE(stack, stack_of(*leftover.source));
      if (!builder_.has_room(leftover.size)) return no_snapshot(no_room);
      builder_.add({.address = address,
                    .size = leftover.size,
                    .stream = builder_.stream(leftover.stream),
                    .other = stack,
                    .pool = pool_of(leftover.pool),
                    .kind = trace_kind::allocate});
    }
    if (!leftovers_.empty()) add_marker("what was there before the recording began", 0);
    auto next = annotations_.begin();
    auto own = own_events_.begin();
    for (const entry& each : history_) {
      for (; own != own_events_.end() && own->size <= position_of(each); ++own) add_own(*own);
      for (; next != annotations_.end() && next->first <= each.time; ++next)
        add_marker(next->second, time_since_start(next->first));
      WEIR_TRY(add(each));
    }
    for (; own != own_events_.end(); ++own) add_own(*own);
    for (; next != annotations_.end(); ++next)
      add_marker(next->second, time_since_start(next->first));
    if (has_reusable_) complete_pending();
    return {};
  }

  /// Blocks whose frees the history does not complete are in use to its end.
  void complete_pending() {
    for (auto& [address, event] : pending_) {
      event.kind = trace_kind::reusable;
      event.other = 0;
      builder_.add(event);
    }
  }

  [[nodiscard]] std::uint64_t position_of(const entry& recorded) const noexcept {
    return static_cast<std::uint64_t>(&recorded - history_.data());
  }

  void add_own(const entry& own) {
    trace_event event{.time = time_since_start(own.time), .pool = pool_of(own.pool)};
    if (own.action == name(trace_kind::pool_released) && event.pool != 0) {
      event.kind = trace_kind::pool_released;
      builder_.add(event);
    } else if (own.action == name(trace_kind::record_stream) && builder_.live(own.address)) {
      event.kind = trace_kind::record_stream;
      event.address = own.address;
      event.stream = builder_.stream(own.stream);
      builder_.add(event);
    }
  }

  /// A private pool without segments has been released: PyTorch keeps those of pools in use.
  void count_reserved(const trace_event& event) {
    if (event.pool == 0 || is_exported_) return;
    std::uint64_t& reserved = reserved_by_pool_[event.pool];
    const bool had_any = reserved != 0;
    if (event.kind == trace_kind::reserve)
      reserved += event.size;
    else
      reserved -= std::min(reserved, event.size);
    if (had_any && reserved == 0)
      builder_.add({.time = event.time, .pool = event.pool, .kind = trace_kind::pool_released});
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
    next.pool = pool_of(recorded.pool);
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
      if (!builder_.has_room(next.size)) return no_snapshot(no_room);
      builder_.add(next);
      pending_.erase(recorded.address);
    } else if (recorded.action == "free_requested") {
      if (builder_.live(recorded.address) == nullptr) return {};
      WEIR_TRY_VALUE(stack, stack_of(*recorded.source));
      next.other = stack;
      next.kind = trace_kind::deallocate;
      builder_.add(next);
      pending_[recorded.address] = next;
    } else if (recorded.action == "free_completed") {
      if (pending_.erase(recorded.address) == 0) return {};
      if (member(*recorded.source, invented_key) != nullptr) return {};
      has_reusable_ = true;
      next.kind = trace_kind::reusable;
      builder_.add(next);
    } else if (begins_segment(recorded.action)) {
      next.kind = trace_kind::reserve;
      builder_.add(next);
      count_reserved(next);
    } else if (ends_segment(recorded.action)) {
      next.kind = trace_kind::release;
      builder_.add(next);
      count_reserved(next);
    } else if (recorded.action == "oom") {
      next.address = 0;
      next.kind = trace_kind::out_of_memory;
      builder_.add(next);
    } else if (recorded.action == "snapshot" || recorded.action == "annotate") {
      const std::string_view remark = text(*recorded.source, "user_metadata");
      if (!may_copy(remark.size())) return too_long();
      add_marker(std::string{remark.empty() ? recorded.action : remark}, next.time);
    }
    return {};
  }

  std::uint16_t pool_of(const pickle_value* id) {
    if (id == nullptr) return 0;
    const auto& ids = tree_.elements(*id);
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
    const pickle_value* const list = member(source, "frames");
    if (list == nullptr || tree_.elements(*list).empty()) return 0u;
    const auto [known, inserted] = by_container_.try_emplace(list->bits, 0);
    if (!inserted) return known->second;
    std::vector<std::uint32_t> frames;
    for (const pickle_value& each : tree_.elements(*list)) {
      if (!step()) return too_many();
      WEIR_TRY_VALUE(frame, frame_of(each));
      frames.push_back(frame);
    }
    recording& draft = builder_.draft();
    const auto [stack, new_stack] =
        stacks_.try_emplace(frames, static_cast<std::uint32_t>(draft.stacks.size()));
    if (new_stack) draft.stacks.push_back(std::move(frames));
    known->second = stack->second + 1;
    return stack->second + 1;
  }

  result<std::uint32_t> frame_of(const pickle_value& source) {
    const std::string_view function = text(source, "name");
    const std::string_view file = text(source, "filename");
    const std::uint64_t number = natural(source, "line");
    // Texts that are shared are told apart by their places, which costs nothing for long ones.
    const auto [placed, is_new_place] = frame_places_.try_emplace(
        {function.data(), function.size(), file.data(), file.size(), file.empty() ? 0 : number});
    if (!is_new_place) return placed->second;
    if (!may_copy(function.size() + file.size())) return too_long();
    std::string line{function};
    if (!file.empty()) line.append(" at ").append(file).append(":").append(std::to_string(number));
    recording& draft = builder_.draft();
    const auto [known, inserted] =
        frames_.try_emplace(line, static_cast<std::uint32_t>(draft.frames.size()));
    if (inserted) draft.frames.push_back(std::move(line));
    placed->second = known->second;
    return known->second;
  }

  const pickle& tree_;
  std::size_t steps_;
  mutable std::uint64_t comparisons_;
  std::uint64_t texts_;  // bytes that may still be copied
  input_limits limits_;
  std::uint64_t device_ = 0;
  std::uint64_t start_ = 0;
  std::vector<entry> history_;
  std::map<std::uint64_t, entry> leftovers_;
  segment_ranges<segment_label> earlier_segments_;
  std::vector<std::pair<std::uint64_t, std::string>> annotations_;
  bool is_exported_ = false;       // by weir
  std::vector<entry> own_events_;  // `size` is the position in the history
  std::unordered_map<std::uint16_t, std::uint64_t> reserved_by_pool_;
  recording_builder builder_;
  std::map<std::uint64_t, trace_event> pending_;  // frees that are not completed, by address
  bool has_reusable_ = false;
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint16_t> pools_;
  std::unordered_map<std::string_view, std::uint16_t> tags_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_container_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> stacks_;
  std::unordered_map<std::string, std::uint32_t> frames_;
  using frame_place = std::tuple<const char*, std::size_t, const char*, std::size_t, std::uint64_t>;
  std::map<frame_place, std::uint32_t> frame_places_;
};

}  // namespace

result<recording> read_torch_snapshot(std::string_view bytes, std::string_view /*name*/,
                                      const input_limits& most, const device_choice& choice) {
  WEIR_TRY_VALUE(tree, pickle::read(bytes, most));
  return snapshot_reader{tree, bytes.size(), most}.read(choice);
}

}}}  // namespace weir::v0::formats
