// The columns of a frame of events.
//
// A frame's content is the unit of its times, a byte a kind, the times, and then, for each kind
// that occurs and each field, a column with the values of that kind's events: its length in bytes,
// or 0 if all are zero, and a varint a value. Values that can be guessed are told as the difference
// to the guess, so that most columns are mostly zeros.
#include "trace/event_codec.hpp"

#include <algorithm>
#include <array>

#include "trace/frame.hpp"
#include "trace/varint.hpp"

namespace weir::inline v0::trace {
namespace {

constexpr unsigned last_kind = static_cast<unsigned>(trace_kind::marker);

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

values values_of(const trace_event& from) noexcept {
  return {from.address, from.size,   from.extra, from.stream,
          from.other,   from.thread, from.tag,   from.pool};
}

/// False if a number does not fit.
bool set_value(trace_event& into, std::size_t field, std::uint64_t value) noexcept {
  const auto narrow = [&](auto& target) {
    target = static_cast<std::remove_reference_t<decltype(target)>>(value);
    return target == value;
  };
  switch (field) {
    case 0:
      into.address = value;
      return true;
    case 1:
      into.size = value;
      return true;
    case 2:
      into.extra = value;
      return true;
    case 3:
      return narrow(into.stream);
    case 4:
      return narrow(into.other);
    case 5:
      return narrow(into.thread);
    case 6:
      return narrow(into.tag);
    default:
      return narrow(into.pool);
  }
}

/// Both sides guess from the same things: the event before of the same kind, and the block.
struct guesses {
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

void put_column(std::string& to, const std::vector<std::uint64_t>& column) {
  std::string packed;
  if (std::any_of(column.begin(), column.end(), [](std::uint64_t each) { return each != 0; }))
    for (const std::uint64_t each : column) put_varint(packed, each);
  put_varint(to, packed.size());
  to += packed;
}

}  // namespace

// --- What was told
// --------------------------------------------------------------------------------

const known_blocks::block* known_blocks::at(std::uint64_t address) const {
  const auto found = blocks_.find(address);
  return found == blocks_.end() ? nullptr : &found->second;
}

const char* known_blocks::take(const trace_event& what) {
  if (what.kind == trace_kind::allocate) {
    block& mine = blocks_[what.address];
    if (mine.live) return "a block is allocated where one lives";
    mine = {.number = count_++, .size = what.size, .stream = what.stream, .live = true};
    return nullptr;
  }
  if (!is_of_block(what.kind)) return nullptr;
  const auto found = blocks_.find(what.address);
  if (found == blocks_.end()) return "a block is named that was not allocated";
  block& mine = found->second;
  if (what.kind == trace_kind::reusable) {
    if (!mine.awaited) return "a block is reusable that was not freed before";
    mine.awaited = false;
    return nullptr;
  }
  if (!mine.live) return "a block is used after its free";
  if (what.kind == trace_kind::deallocate) {
    mine.live = false;
    mine.awaited = true;
  }
  return nullptr;
}

table_sizes table_sizes::of(const recording& whole) noexcept {
  return {.tags = whole.tags.size(),
          .pools = whole.pools.size(),
          .streams = whole.streams.size(),
          .threads = whole.threads.size(),
          .texts = whole.texts.size(),
          .stacks = whole.stacks.size()};
}

const char* table_sizes::refuse(const trace_event& what) const noexcept {
  const auto beyond = [](std::uint64_t number, std::uint64_t size) {
    return number != 0 && number >= size;
  };
  const auto kind = static_cast<unsigned>(what.kind);
  if (kind < 1 || kind > last_kind) return "there is no such kind of event";
  if (beyond(what.stream, streams)) return "a stream is not in the table";
  if (beyond(what.thread, threads)) return "a thread is not in the table";
  if (beyond(what.tag, tags)) return "a tag is not in the table";
  if (beyond(what.pool, pools)) return "a pool is not in the table";
  if (what.kind == trace_kind::wait && beyond(what.other, streams))
    return "a stream is not in the table";
  if (what.kind == trace_kind::marker && what.other >= texts) return "a text is not in the table";
  const bool has_stack = what.kind == trace_kind::allocate || what.kind == trace_kind::deallocate;
  if (has_stack && what.other > stacks) return "a stack is not in the table";
  return nullptr;
}

// --- Writing ------------------------------------------------------------------------------------

std::string event_encoder::encode(std::span<const trace_event> events, const table_sizes& tables,
                                  std::string& wrong) {
  std::string content;
  std::vector<std::uint64_t> times;
  std::array<std::array<std::vector<std::uint64_t>, field_count>, last_kind + 1> columns;
  guesses guess;
  const std::uint64_t unit = unit_of(events);
  put_varint(content, unit);
  std::uint64_t from = 0;  // the frame's first time is told whole
  for (const trace_event& each : events) {
    const char* refused = tables.refuse(each);
    if (refused == nullptr && each.time < last_time_) refused = "the time goes back";
    if (refused == nullptr && is_of_block(each.kind) && blocks_.at(each.address) == nullptr)
      refused = "a block is named that was not allocated";
    values told = values_of(each);
    const auto kind = static_cast<std::size_t>(each.kind);
    if (refused == nullptr && is_of_block(each.kind)) {
      const auto& block = *blocks_.at(each.address);
      told[address_field] = zigzag(guess.number(each.kind, blocks_.count()) - block.number);
      told[size_field] = zigzag(each.size - block.size);
      told[stream_field] = zigzag(std::uint64_t{each.stream} - block.stream);
      if (each.kind == trace_kind::deallocate) guess.freed = block.number;
    } else if (refused == nullptr) {
      told[address_field] = zigzag(each.address - guess.addresses[kind]);
      guess.addresses[kind] = each.address;
    }
    if (refused == nullptr) refused = blocks_.take(each);
    if (refused != nullptr) {
      wrong = "event " + std::to_string(told_) + ": " + refused;
      return {};
    }
    ++told_;
    times.push_back((each.time - from) / unit);
    last_time_ = from = each.time;
    content.push_back(static_cast<char>(each.kind));
    for (std::size_t field = 0; field < field_count; ++field)
      columns[kind][field].push_back(told[field]);
  }
  put_column(content, times);
  for (const auto& of_kind : columns) {
    if (of_kind[0].empty()) continue;
    for (const auto& column : of_kind) put_column(content, column);
  }
  return content;
}

// --- Reading ------------------------------------------------------------------------------------

const char* event_decoder::decode(std::string_view content, std::uint32_t count,
                                  const table_sizes& tables, std::vector<trace_event>& to) {
  constexpr const char* cut = "a frame of events is shorter than it says";
  byte_reader bytes{content};
  const auto unit = bytes.varint();
  const auto kinds = bytes.take(count);
  if (!unit || !kinds) return cut;
  if (*unit != 1 && *unit != 1'000 && *unit != 1'000'000) return "there is no such unit of time";
  std::array<std::vector<std::uint32_t>, last_kind + 1> places;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto kind = static_cast<unsigned char>((*kinds)[i]);
    if (kind < 1 || kind > last_kind) return "there is no such kind of event";
    places[kind].push_back(i);
  }

  const std::size_t before = to.size();
  to.resize(before + count);
  const std::span<trace_event> events{to.data() + before, count};
  const auto fail = [&](const char* why) {
    to.resize(before);
    return why;
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
  for (const auto& of_kind : places) {
    if (of_kind.empty()) continue;
    for (std::size_t field = 0; field < field_count; ++field) {
      const auto packed = bytes.sized();
      if (!packed) return fail(cut);
      byte_reader column{*packed};
      if (column.empty()) continue;
      for (const std::uint32_t place : of_kind) {
        auto value = column.varint();
        if (!value) return fail(cut);
        if (!set_value(events[place], field, *value)) return fail("a number is out of range");
      }
      if (!column.empty()) return fail("a column is longer than its events");
    }
  }
  if (!bytes.empty()) return fail("a frame of events is longer than it says");
  if (const char* const wrong = resolve(events, tables, *unit)) return fail(wrong);
  return nullptr;
}

/// Undoes the guesses, in the order in which they were made.
const char* event_decoder::resolve(std::span<trace_event> events, const table_sizes& tables,
                                   std::uint64_t unit) {
  guesses guess;
  std::uint64_t from = 0;
  for (trace_event& each : events) {
    if (each.time > (UINT64_MAX - from) / unit) return "a time is out of range";
    each.time = from = from + each.time * unit;
    if (each.time < last_time_) return "the time goes back";
    last_time_ = each.time;
    const auto kind = static_cast<std::size_t>(each.kind);
    if (is_of_block(each.kind)) {
      const std::uint64_t number =
          guess.number(each.kind, blocks_.count()) - unzigzag(each.address);
      if (number >= blocks_.count()) return "a block is named that was not allocated";
      each.address = addresses_[number];
      const auto& block = *blocks_.at(each.address);
      if (block.number != number) return "a block is named whose place another one has";
      each.size = block.size + unzigzag(each.size);
      const std::uint64_t stream = block.stream + unzigzag(each.stream);
      if (stream > UINT32_MAX) return "a stream is not in the table";
      each.stream = static_cast<std::uint32_t>(stream);
      if (each.kind == trace_kind::deallocate) guess.freed = number;
    } else {
      each.address = guess.addresses[kind] + unzigzag(each.address);
      guess.addresses[kind] = each.address;
    }
    if (const char* const wrong = tables.refuse(each)) return wrong;
    if (const char* const wrong = blocks_.take(each)) return wrong;
    if (each.kind == trace_kind::allocate) addresses_.push_back(each.address);
  }
  return nullptr;
}

}  // namespace weir::inline v0::trace
