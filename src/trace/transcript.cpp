// Giving numbers to what records name, and times to their ticks.
#include "trace/transcript.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "trace/ticks.hpp"
#include "weir/observe/tag.hpp"

namespace weir::inline v0::trace {
namespace {

/// Numbers of 16 bits: what comes later than the last is told as the last.
constexpr std::uint64_t most_small = 65'536;

}  // namespace

transcript::transcript(file_writer file, std::uint64_t began) noexcept
    : file_{std::move(file)}, began_{began}, tick_{nanoseconds_per_tick()} {}

void transcript::begin(const std::string& program, const std::string& device,
                       std::uint64_t capacity) {
  if (!program.empty()) file_.names().text(name_kind::program, program);
  if (!device.empty()) file_.names().text(name_kind::device, device);
  if (capacity != 0) file_.names().number(name_kind::device_capacity, capacity);
}

void transcript::add_thread(std::uint16_t number, std::uint64_t thread) {
  if (number < tables_.threads) return;
  // A ring that stayed empty may be gone before it was seen; its number is not used again.
  for (; tables_.threads < number; ++tables_.threads) file_.names().number(name_kind::thread, 0);
  file_.names().number(name_kind::thread, thread);
  ++tables_.threads;
}

void transcript::add_text(const std::string& text) {
  file_.names().text(name_kind::text, text);
  ++tables_.texts;
  spill();
}

void transcript::add_stack(const stack_table::addresses& stack) {
  std::vector<std::uint32_t> numbers;
  for (void* const where : stack) {
    const auto [at, fresh] = frames_.try_emplace(where, static_cast<std::uint32_t>(frames_.size()));
    if (fresh) file_.names().text(name_kind::frame, describe_address(where));
    numbers.push_back(at->second);
  }
  file_.names().stack(numbers);
  ++tables_.stacks;
  spill();
}

/// Frames have a size that they may not pass. What fails is what the next write returns.
void transcript::spill() {
  if (file_.names().content().size() >= frame_names) static_cast<void>(file_.write_names());
}

std::uint32_t transcript::stream(std::uint64_t id) {
  const auto [at, fresh] = streams_.try_emplace(id, static_cast<std::uint32_t>(tables_.streams));
  if (fresh) {
    file_.names().number(name_kind::stream, id);
    ++tables_.streams;
  }
  return at->second;
}

std::uint16_t transcript::tag(std::uint16_t number) {
  if (number == 0) return 0;
  const auto [at, fresh] = tags_.try_emplace(number, static_cast<std::uint16_t>(tables_.tags));
  if (fresh) {
    const auto known = weir::tag::numbered(number);
    file_.names().text(name_kind::tag, known ? known->name() : std::string_view{});
    ++tables_.tags;
  }
  return at->second;
}

std::uint16_t transcript::pool(std::uint32_t id) {
  if (id == 0) return 0;
  if (const auto found = pools_.find(id); found != pools_.end()) return found->second;
  if (tables_.pools == most_small) return static_cast<std::uint16_t>(most_small - 1);
  const auto number = static_cast<std::uint16_t>(tables_.pools++);
  pools_.emplace(id, number);
  file_.names().text(name_kind::pool, "pool " + std::to_string(id));
  return number;
}

trace_event transcript::translate(const record& what) {
  const std::uint64_t since = what.time - std::min(what.time, began_);
  last_time_ = std::max(last_time_, static_cast<std::uint64_t>(static_cast<double>(since) * tick_));
  trace_event told{.time = last_time_,
                   .address = what.address,
                   .size = what.size,
                   .extra = what.extra,
                   .thread = what.thread,
                   .tag = tag(what.tag),
                   .pool = pool(what.pool),
                   .kind = what.kind};
  switch (what.kind) {
    case trace_kind::wait:
      told.stream = stream(what.stream);
      told.other = stream(what.other);
      break;
    case trace_kind::allocate:
    case trace_kind::deallocate:
      told.stream = stream(what.stream);
      told.other = static_cast<std::uint32_t>(what.other);
      break;
    case trace_kind::marker:
      told.other = static_cast<std::uint32_t>(what.other);
      break;
    case trace_kind::record_stream:
    case trace_kind::out_of_memory:
    case trace_kind::capture_begin:
    case trace_kind::capture_end:
      told.stream = stream(what.stream);
      break;
    default:
      break;
  }
  return told;
}

result<void> transcript::write(const std::vector<record>& records) {
  for (std::span<const record> rest{records}; !rest.empty();) {
    const auto now = rest.first(std::min(rest.size(), frame_events));
    events_.clear();
    for (const record& each : now) events_.push_back(translate(each));
    WEIR_TRY(file_.write_events(events_, tables_));
    written_ += events_.size();
    rest = rest.subspan(now.size());
  }
  return {};
}

result<void> transcript::finish(std::uint64_t dropped) {
  if (dropped != 0) file_.names().number(name_kind::dropped, dropped);
  return file_.finish();
}

}  // namespace weir::inline v0::trace
