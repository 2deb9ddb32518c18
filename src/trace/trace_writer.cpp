// SPDX-License-Identifier: Apache-2.0
// Giving numbers to the streams, tags and pools that records name, and times to their ticks.
#include "trace/trace_writer.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "trace/ticks.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace trace {
namespace {

/// Numbers of 16 bits: pools later than the last are written as the last.
constexpr std::uint64_t most_small = 65'536;

}  // namespace

trace_writer::trace_writer(file_writer file, std::uint64_t start) noexcept
    : file_{std::move(file)}, start_{start}, nanoseconds_per_tick_{nanoseconds_per_tick()} {}

void trace_writer::begin(const std::string& program, const std::string& device,
                         std::uint64_t capacity) {
  if (!program.empty()) file_.names().text(name_kind::program, program);
  if (!device.empty()) file_.names().text(name_kind::device, device);
  if (capacity != 0) file_.names().number(name_kind::device_capacity, capacity);
}

void trace_writer::add_thread(std::uint16_t number, std::uint64_t thread) {
  if (number < tables_.threads) return;
  // A ring that stayed empty may be gone before it was seen; its number is not used again.
  for (; tables_.threads < number; ++tables_.threads) file_.names().number(name_kind::thread, 0);
  file_.names().number(name_kind::thread, thread);
  ++tables_.threads;
}

void trace_writer::add_text(const std::string& text) {
  file_.names().text(name_kind::text, text);
  ++tables_.texts;
  spill_names();
}

void trace_writer::add_stack(const stack_table::addresses& stack) {
  std::vector<std::uint32_t> numbers;
  for (void* const code : stack) {
    const auto [entry, inserted] =
        frames_.try_emplace(code, static_cast<std::uint32_t>(frames_.size()));
    if (inserted) file_.names().text(name_kind::frame, describe_frame(code));
    numbers.push_back(entry->second);
  }
  file_.names().stack(numbers);
  ++tables_.stacks;
  spill_names();
}

/// Frames have a size that they may not pass. A failure is what the next write returns.
void trace_writer::spill_names() {
  if (file_.names().content().size() >= frame_names) static_cast<void>(file_.write_names());
}

std::uint32_t trace_writer::stream(std::uint64_t id) {
  const auto [entry, inserted] =
      streams_.try_emplace(id, static_cast<std::uint32_t>(tables_.streams));
  if (inserted) {
    file_.names().number(name_kind::stream, id);
    ++tables_.streams;
  }
  return entry->second;
}

std::uint16_t trace_writer::tag(std::uint16_t number) {
  if (number == 0) return 0;
  const auto [entry, inserted] =
      tags_.try_emplace(number, static_cast<std::uint16_t>(tables_.tags));
  if (inserted) {
    const auto known = weir::tag::numbered(number);
    file_.names().text(name_kind::tag, known ? known->name() : std::string_view{});
    ++tables_.tags;
  }
  return entry->second;
}

std::uint16_t trace_writer::pool(std::uint32_t id) {
  if (id == 0) return 0;
  if (const auto entry = pools_.find(id); entry != pools_.end()) return entry->second;
  if (tables_.pools == most_small) return static_cast<std::uint16_t>(most_small - 1);
  const auto number = static_cast<std::uint16_t>(tables_.pools++);
  pools_.emplace(id, number);
  file_.names().text(name_kind::pool, "pool " + std::to_string(id));
  return number;
}

trace_event trace_writer::translate(const record& source) {
  const std::uint64_t elapsed = source.time - std::min(source.time, start_);
  last_time_ = std::max(
      last_time_, static_cast<std::uint64_t>(static_cast<double>(elapsed) * nanoseconds_per_tick_));
  trace_event event{.time = last_time_,
                    .address = source.address,
                    .size = source.size,
                    .extra = source.extra,
                    .thread = source.thread,
                    .tag = tag(source.tag),
                    .pool = pool(source.pool),
                    .kind = source.kind};
  switch (source.kind) {
    case trace_kind::wait:
      event.stream = stream(source.stream);
      event.other = stream(source.other);
      break;
    case trace_kind::allocate:
    case trace_kind::deallocate:
      event.stream = stream(source.stream);
      event.other = static_cast<std::uint32_t>(source.other);
      break;
    case trace_kind::marker:
      event.other = static_cast<std::uint32_t>(source.other);
      break;
    case trace_kind::record_stream:
    case trace_kind::out_of_memory:
    case trace_kind::capture_begin:
    case trace_kind::capture_end:
      event.stream = stream(source.stream);
      break;
    default:
      break;
  }
  return event;
}

result<void> trace_writer::write(const std::vector<record>& records) {
  for (std::span<const record> rest{records}; !rest.empty();) {
    const auto batch = rest.first(std::min(rest.size(), file_.next_frame_events()));
    events_.clear();
    for (const record& each : batch) events_.push_back(translate(each));
    WEIR_TRY(file_.write_events(events_, tables_));
    written_ += events_.size();
    rest = rest.subspan(batch.size());
  }
  return {};
}

result<void> trace_writer::finish(std::uint64_t dropped) {
  if (dropped != 0) file_.names().number(name_kind::dropped, dropped);
  return file_.finish();
}

}}}  // namespace weir::v0::trace
