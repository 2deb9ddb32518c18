// SPDX-License-Identifier: Apache-2.0
// The columns of a frame of events.
//
// A frame's content is the unit of its times, a byte a kind, the times, and then, for each kind
// that occurs and each field, a column with the values of that kind's events: its length in bytes,
// or 0 if all are zero, and a varint a value. Values that can be predicted are written as the
// difference to the prediction, so that most columns are mostly zeros.
#include "trace/event_codec.hpp"

#include <algorithm>
#include <array>

#include "trace/frame.hpp"
#include "trace/varint.hpp"

namespace weir { inline namespace v0 { namespace trace {
namespace {

constexpr unsigned last_kind = static_cast<unsigned>(trace_kind::resumed);

bool is_of_block(trace_kind kind) noexcept {
  return kind == trace_kind::deallocate || kind == trace_kind::reusable ||
         kind == trace_kind::record_stream;
}

/// A field of an event as a number of 64 bits, in the order of the file's columns.
constexpr std::size_t field_count = 8;
constexpr std::size_t address_field = 0;
constexpr std::size_t size_field = 1;
constexpr std::size_t stream_field = 3;
using values = std::array<std::uint64_t, field_count>;

values values_of(const trace_event& event) noexcept {
  return {event.address, event.size,   event.extra, event.stream,
          event.other,   event.thread, event.tag,   event.pool};
}

/// False if a number does not fit.
bool set_value(trace_event& event, std::size_t field, std::uint64_t value) noexcept {
  const auto narrow = [&](auto& target) {
    target = static_cast<std::remove_reference_t<decltype(target)>>(value);
    return target == value;
  };
  switch (field) {
    case 0:
      event.address = value;
      return true;
    case 1:
      event.size = value;
      return true;
    case 2:
      event.extra = value;
      return true;
    case 3:
      return narrow(event.stream);
    case 4:
      return narrow(event.other);
    case 5:
      return narrow(event.thread);
    case 6:
      return narrow(event.tag);
    default:
      return narrow(event.pool);
  }
}

/// Both sides predict from the same things: the event before of the same kind, and the block.
struct predictor {
  std::array<std::uint64_t, last_kind + 1> addresses{};
  std::uint64_t freed = 0;  // the number of the block that was freed last

  [[nodiscard]] std::uint64_t number(trace_kind kind, std::uint64_t count) const noexcept {
    return kind == trace_kind::reusable ? freed : count;
  }
};

/// The largest of 1, 1000 and 1000000 that divides all times: traces of other programs count
/// microseconds.
std::uint64_t unit_of(std::span<const trace_event> events) noexcept {
  for (const std::uint64_t unit : {std::uint64_t{1'000'000}, std::uint64_t{1'000}}) {
    if (std::all_of(events.begin(), events.end(),
                    [&](const trace_event& each) { return each.time % unit == 0; }))
      return unit;
  }
  return 1;
}

void put_column(std::string& out, const std::vector<std::uint64_t>& column) {
  std::string packed;
  if (std::any_of(column.begin(), column.end(), [](std::uint64_t value) { return value != 0; }))
    for (const std::uint64_t value : column) put_varint(packed, value);
  put_varint(out, packed.size());
  out += packed;
}

}  // namespace

// --- Checking -----------------------------------------------------------------------------------

const known_blocks::block* known_blocks::find(std::uint64_t address) const {
  const auto entry = blocks_.find(address);
  return entry == blocks_.end() ? nullptr : &entry->second;
}

const char* known_blocks::apply(const trace_event& event) {
  if (event.kind == trace_kind::allocate) {
    block& named = blocks_[event.address];
    if (named.live) return "a block is allocated over a live block";
    if (event.size > UINT64_MAX - live_bytes_) return "the live bytes exceed the address space";
    live_bytes_ += event.size;
    named = {.number = count_++, .size = event.size, .stream = event.stream, .live = true};
    return nullptr;
  }
  if (!is_of_block(event.kind)) return nullptr;
  const auto entry = blocks_.find(event.address);
  if (entry == blocks_.end()) return "an event names a block that was not allocated";
  block& named = entry->second;
  if (event.kind == trace_kind::reusable) {
    if (!named.pending) return "a block becomes reusable before its free";
    named.pending = false;
    return nullptr;
  }
  if (!named.live) return "a block is used after its free";
  if (event.kind == trace_kind::deallocate) {
    named.live = false;
    named.pending = true;
    live_bytes_ -= named.size;
  }
  return nullptr;
}

table_sizes table_sizes::of(const recording& recording) noexcept {
  return {.tags = recording.tags.size(),
          .pools = recording.pools.size(),
          .streams = recording.streams.size(),
          .threads = recording.threads.size(),
          .texts = recording.texts.size(),
          .stacks = recording.stacks.size()};
}

const char* table_sizes::check(const trace_event& event) const noexcept {
  const auto is_beyond = [](std::uint64_t number, std::uint64_t size) {
    return number != 0 && number >= size;
  };
  const auto kind = static_cast<unsigned>(event.kind);
  if (kind < 1 || kind > last_kind) return "unknown kind of event";
  if (is_beyond(event.stream, streams)) return "a stream is not in the table";
  if (is_beyond(event.thread, threads)) return "a thread is not in the table";
  if (is_beyond(event.tag, tags)) return "a tag is not in the table";
  if (is_beyond(event.pool, pools)) return "a pool is not in the table";
  if (event.kind == trace_kind::wait && is_beyond(event.other, streams))
    return "a stream is not in the table";
  if (event.kind == trace_kind::marker && event.other >= texts) return "a text is not in the table";
  const bool has_stack = event.kind == trace_kind::allocate || event.kind == trace_kind::deallocate;
  if (has_stack && event.other > stacks) return "a stack is not in the table";
  return nullptr;
}

// --- Writing ------------------------------------------------------------------------------------

std::string event_encoder::encode(std::span<const trace_event> events, const table_sizes& tables,
                                  std::string& problem) {
  std::string content;
  std::vector<std::uint64_t> times;
  std::array<std::array<std::vector<std::uint64_t>, field_count>, last_kind + 1> columns;
  predictor predicted;
  const std::uint64_t unit = unit_of(events);
  put_varint(content, unit);
  std::uint64_t from = 0;  // the frame's first time is written whole
  for (const trace_event& each : events) {
    const char* refusal = tables.check(each);
    if (refusal == nullptr && each.time < last_time_) refusal = "the time decreases";
    if (refusal == nullptr && is_of_block(each.kind) && blocks_.find(each.address) == nullptr)
      refusal = "an event names a block that was not allocated";
    values coded = values_of(each);
    const auto kind = static_cast<std::size_t>(each.kind);
    if (refusal == nullptr && is_of_block(each.kind)) {
      const auto& block = *blocks_.find(each.address);
      coded[address_field] = zigzag(predicted.number(each.kind, blocks_.count()) - block.number);
      coded[size_field] = zigzag(each.size - block.size);
      coded[stream_field] = zigzag(std::uint64_t{each.stream} - block.stream);
      if (each.kind == trace_kind::deallocate) predicted.freed = block.number;
    } else if (refusal == nullptr) {
      coded[address_field] = zigzag(each.address - predicted.addresses[kind]);
      predicted.addresses[kind] = each.address;
    }
    if (refusal == nullptr) refusal = blocks_.apply(each);
    if (refusal != nullptr) {
      problem = "event " + std::to_string(encoded_) + ": " + refusal;
      return {};
    }
    ++encoded_;
    times.push_back((each.time - from) / unit);
    last_time_ = from = each.time;
    content.push_back(static_cast<char>(each.kind));
    for (std::size_t field = 0; field < field_count; ++field)
      columns[kind][field].push_back(coded[field]);
  }
  put_column(content, times);
  for (const auto& kind_columns : columns) {
    if (kind_columns[0].empty()) continue;
    for (const auto& column : kind_columns) put_column(content, column);
  }
  return content;
}

// --- Reading ------------------------------------------------------------------------------------

const char* event_decoder::decode(std::string_view content, std::uint32_t count,
                                  const table_sizes& tables, std::vector<trace_event>& out) {
  constexpr const char* cut = "a frame of events is shorter than its header says";
  byte_reader bytes{content};
  const auto unit = bytes.varint();
  const auto kinds = bytes.take(count);
  if (!unit || !kinds) return cut;
  if (*unit != 1 && *unit != 1'000 && *unit != 1'000'000) return "unknown unit of time";
  std::array<std::vector<std::uint32_t>, last_kind + 1> indices_by_kind;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto kind = static_cast<unsigned char>((*kinds)[i]);
    if (kind < 1 || kind > last_kind) return "unknown kind of event";
    indices_by_kind[kind].push_back(i);
  }

  const std::size_t first = out.size();
  out.resize(first + count);
  const std::span<trace_event> events{out.data() + first, count};
  const auto fail = [&](const char* problem) {
    out.resize(first);
    return problem;
  };
  for (std::uint32_t i = 0; i < count; ++i) events[i].kind = static_cast<trace_kind>((*kinds)[i]);

  const auto times = bytes.sized();
  if (!times) return fail(cut);
  if (byte_reader column{*times}; !column.empty()) {
    for (trace_event& each : events) {
      const auto value = column.varint();
      if (!value) return fail(cut);
      each.time = *value;
    }
    if (!column.empty()) return fail("a column is longer than its events");
  }
  for (const auto& indices : indices_by_kind) {
    if (indices.empty()) continue;
    for (std::size_t field = 0; field < field_count; ++field) {
      const auto packed = bytes.sized();
      if (!packed) return fail(cut);
      byte_reader column{*packed};
      if (column.empty()) continue;
      for (const std::uint32_t index : indices) {
        auto value = column.varint();
        if (!value) return fail(cut);
        if (!set_value(events[index], field, *value)) return fail("a number is out of range");
      }
      if (!column.empty()) return fail("a column is longer than its events");
    }
  }
  if (!bytes.empty()) return fail("a frame of events is longer than its header says");
  if (const char* const problem = resolve(events, tables, *unit)) return fail(problem);
  return nullptr;
}

/// Undoes the predictions, in the order in which they were made.
const char* event_decoder::resolve(std::span<trace_event> events, const table_sizes& tables,
                                   std::uint64_t unit) {
  predictor predicted;
  std::uint64_t from = 0;
  for (trace_event& each : events) {
    if (each.time > (UINT64_MAX - from) / unit) return "a time is out of range";
    each.time = from = from + each.time * unit;
    if (each.time < last_time_) return "the time decreases";
    last_time_ = each.time;
    const auto kind = static_cast<std::size_t>(each.kind);
    if (is_of_block(each.kind)) {
      const std::uint64_t number =
          predicted.number(each.kind, blocks_.count()) - unzigzag(each.address);
      if (number >= blocks_.count()) return "an event names a block that was not allocated";
      each.address = addresses_[number];
      const auto& block = *blocks_.find(each.address);
      if (block.number != number) return "an event names a block whose address another block has";
      each.size = block.size + unzigzag(each.size);
      const std::uint64_t stream = block.stream + unzigzag(each.stream);
      if (stream > UINT32_MAX) return "a stream is not in the table";
      each.stream = static_cast<std::uint32_t>(stream);
      if (each.kind == trace_kind::deallocate) predicted.freed = number;
    } else {
      each.address = predicted.addresses[kind] + unzigzag(each.address);
      predicted.addresses[kind] = each.address;
    }
    if (const char* const problem = tables.check(each)) return problem;
    if (const char* const problem = blocks_.apply(each)) return problem;
    if (each.kind == trace_kind::allocate) addresses_.push_back(each.address);
  }
  return nullptr;
}

}}}  // namespace weir::v0::trace
