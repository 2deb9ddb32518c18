// SPDX-License-Identifier: Apache-2.0
// Pickles of things that look like a PyTorch snapshot, with fields that are missing, of another
// type, huge or negative: refused, or a sound recording. One without such fields is read.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "formats/pickle.hpp"
#include "formats/torch_snapshot.hpp"
#include "fuzz_input.hpp"
#include "sound_recording.hpp"

namespace weir::fuzz { namespace {

constexpr formats::input_limits small{.bytes = 1 << 22, .events = 1 << 10};

/// Writes a snapshot of what the input says, and spoils as much of it as the input says.
class spoiled_snapshot {
 public:
  explicit spoiled_snapshot(fuzz_input input) : input_{input}, rate_{input_.next()} {}

  std::string write() {
    if (input_.chance(16)) {
      whole_ = false;
      segments();
      return std::move(out_).finish();
    }
    out_.begin_dict();
    if (!field("device_traces")) traces();
    if (!field("segments")) segments();
    if (!field("allocator_settings")) out_.text("");
    if (!field("external_annotations")) annotations();
    out_.end_dict();
    return std::move(out_).finish();
  }
  /// Nothing was spoiled.
  [[nodiscard]] bool whole() const noexcept { return whole_; }

 private:
  /// Begins a member; true: it was left out, or has a value already that does not belong there.
  bool field(std::string_view key) {
    const bool spoils = rate_ != 0 && input_.next() < rate_;
    if (!spoils) {
      out_.word(key);
      return false;
    }
    whole_ = false;
    const std::size_t way = input_.below(10);
    if (way == 0) return true;
    out_.word(key);
    nonsense(way);
    if (way != 9) return true;
    out_.word(key);  // twice: the last counts
    return false;
  }

  void nonsense(std::size_t way) {
    switch (way) {
      case 1:
        return out_.integer(-1 - static_cast<std::int64_t>(input_.number() >> 1));
      case 2:
        return out_.natural(UINT64_MAX - input_.next());
      case 3:
        return out_.real(static_cast<double>(input_.word()));
      case 4:
        return out_.boolean(input_.chance(2));
      case 5:
        return out_.text(input_.text(32));
      case 6:
        return out_.pair(input_.next(), -1);
      case 7:
        out_.begin_dict();
        return out_.end_dict();
      case 8:
        out_.begin_list();
        out_.natural(input_.number());
        out_.begin_list();
        out_.end_list();
        return out_.end_list();
      default:
        return out_.natural(input_.number());
    }
  }

  void number(std::string_view key, std::uint64_t value) {
    if (!field(key)) out_.natural(value);
  }
  void text(std::string_view key, std::string_view value) {
    if (!field(key)) out_.text(value);
  }
  [[nodiscard]] std::uint64_t address() { return 0x7f00'0000'0000 + input_.below(12) * 512; }
  [[nodiscard]] bool more() { return !input_.at_end() && !input_.chance(12); }

  void traces() {
    out_.begin_list();
    for (std::size_t devices = 1 + input_.below(2); devices > 0; --devices) {
      out_.begin_list();
      while (more()) entry();
      out_.end_list();
    }
    out_.end_list();
  }

  void entry() {
    constexpr std::string_view actions[] = {
        "alloc",          "alloc",          "alloc",         "free_requested",
        "free_requested", "free_completed", "segment_alloc", "segment_free",
        "segment_map",    "segment_unmap",  "oom",           "snapshot",
        "annotate",       "something new"};
    const std::string_view action = input_.one_of(actions);
    out_.begin_dict();
    text("action", action);
    number(action == "oom" ? "device_free" : "addr", address());
    number("size", input_.number());
    number("stream", input_.below(3));
    number("time_us", 1'700'000'000'000'000 + (time_ += input_.next()));
    if (!field("pool_id")) out_.pair(0, static_cast<std::int64_t>(input_.below(3)));
    if (!field("frames")) frames();
    if (input_.chance(4)) text("user_metadata", input_.text(8));
    out_.end_dict();
  }

  void frames() {
    out_.begin_list();
    for (std::size_t count = input_.below(3); count > 0; --count) {
      out_.begin_dict();
      text("name", input_.one_of(names));
      text("filename", input_.one_of(names));
      number("line", input_.next());
      out_.end_dict();
    }
    out_.end_list();
  }

  void segments() {
    out_.begin_list();
    while (more()) {
      out_.begin_dict();
      number("device", input_.below(2));
      number("address", address());
      number("total_size", input_.number());
      number("stream", input_.below(3));
      if (!field("blocks")) blocks();
      out_.end_dict();
    }
    out_.end_list();
  }

  void blocks() {
    constexpr std::string_view states[] = {"active_allocated", "active_allocated", "inactive",
                                           "active_pending_free", "active_awaiting_free"};
    out_.begin_list();
    while (more()) {
      out_.begin_dict();
      if (input_.chance(2)) number("address", address());
      number("size", input_.number());
      if (input_.chance(2)) number("requested_size", input_.number());
      text("state", input_.one_of(states));
      if (!field("frames")) frames();
      out_.end_dict();
    }
    out_.end_list();
  }

  void annotations() {
    constexpr std::string_view stages[] = {"START", "END"};
    out_.begin_list();
    while (more()) {
      out_.begin_dict();
      text("stage", input_.one_of(stages));
      text("name", input_.text(8));
      number("device", input_.below(2));
      number("time_us", 1'700'000'000'000'000 + input_.number() % 4096);
      out_.end_dict();
    }
    out_.end_list();
  }

  static constexpr std::string_view names[] = {"", "forward", "a at b", "model.py", ":"};

  fuzz_input input_;
  unsigned rate_;  // of 256 fields so many are spoiled
  std::uint64_t time_ = 0;
  bool whole_ = true;
  formats::pickle_writer out_;
};

void check(const std::string& bytes, bool whole) {
  const auto read = formats::read_torch_snapshot(bytes, "fuzz", small);
  if (!read) {
    const bool refused = read.code() == errc::invalid_argument && !whole;
    require(refused || read.code() == errc::limit_exceeded, read.error().message());
    return require(!read.error().detail().empty(), "no reason");
  }
  require(read->events.size() <= small.events, "more events than allowed");
  require(read->device.starts_with("cuda:"), "no device");
  require_sound(*read);
  require_exportable(*read);
}

}  // namespace
}  // namespace weir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weir::fuzz;
  spoiled_snapshot snapshot{fuzz_input{{data, size}}};
  const std::string bytes = snapshot.write();
  check(bytes, snapshot.whole());
  return 0;
}
