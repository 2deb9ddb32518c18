// SPDX-License-Identifier: Apache-2.0
// Hazards as text.
#include <cstdint>
#include <sstream>
#include <string>

#include "base/member_list.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// Exact: "3.400 us".
std::string to_text(time_point when) {
  const std::int64_t count = when.count();
  std::string rest = std::to_string(count % 1000);
  rest.insert(0, 3 - rest.size(), '0');
  return std::to_string(count / 1000) + "." + rest + " us";
}

/// "stream 7", "stream 7 (producer)", "the host".
std::string place_of(const party& side) {
  if (side.stream.number() == 0) return "the host";
  std::string text = "stream " + std::to_string(side.stream.number());
  if (!side.stream_name.empty()) text += " (" + side.stream_name + ")";
  return text;
}

/// "operation 3 of stream 7".
std::string position_of(const party& side) {
  const std::string count = side.order == 0 ? "" : std::to_string(side.order) + " ";
  switch (side.action) {
    case party_action::captured:
      return "captured on " + place_of(side);
    case party_action::replayed:
      return "node " + count + "of a graph launched on " + place_of(side);
    case party_action::access:
    case party_action::lifetime:
      break;
  }
  return side.order == 0 ? "by " + place_of(side) : "operation " + count + "of " + place_of(side);
}

void describe(std::ostream& out, const party& side) {
  out << side.label << ", " << position_of(side) << ", ";
  if (side.action != party_action::lifetime) out << (side.writes ? "writes " : "reads ");
  out << "[0x" << std::hex << side.extent.address << ", 0x"
      << side.extent.address + side.extent.size << std::dec << "), " << side.extent.size
      << " bytes, queued at " << to_text(side.queued);
}

const char* headline(hazard_kind kind) {
  switch (kind) {
    case hazard_kind::race:
      return "race: two unordered accesses";
    case hazard_kind::use_after_free:
      return "use after free";
    case hazard_kind::freed_in_use:
      return "memory removed while queued work may still use it";
    case hazard_kind::bad_access:
      return "access to unmapped or inaccessible addresses";
    case hazard_kind::out_of_bounds:
      return "access outside an allocation";
  }
  return "hazard";
}

}  // namespace

std::string to_string(hazard_kind kind) {
  switch (kind) {
    case hazard_kind::race:
      return "race";
    case hazard_kind::use_after_free:
      return "use_after_free";
    case hazard_kind::freed_in_use:
      return "freed_in_use";
    case hazard_kind::bad_access:
      return "bad_access";
    case hazard_kind::out_of_bounds:
      return "out_of_bounds";
  }
  return "unknown";
}

std::string to_string(const hazard& reported) { return reported.message(); }

std::string to_string(const migration_counts& counts) {
  detail::member_list members;
  members.add("to_device", counts.to_device)
      .add("to_host", counts.to_host)
      .add("evicted", counts.evicted);
  return std::move(members).text();
}

std::string to_string(const block_life& block) {
  std::ostringstream out;
  out << "0x" << std::hex << block.extent.address << std::dec << ", "
      << to_string(bytes{block.extent.size});
  if (block.tag != tag{}) out << ", tag \"" << block.tag.name() << "\"";
  out << ", allocated on stream " << block.allocated_on.number() << " at "
      << to_text(block.allocated);
  for (const stream_id each : block.recorded) out << ", recorded for stream " << each.number();
  if (block.freed_step != 0)
    out << ", freed on stream " << block.freed_on.number() << " at " << to_text(block.freed);
  return out.str();
}

namespace {

/// "5 bytes behind", "1 byte before": where the bytes lie with regard to a block.
std::string distance_of(const range& bytes, const block_life& block) {
  const std::uint64_t end = block.extent.address + block.extent.size;
  const bool is_before = bytes.address + bytes.size <= block.extent.address;
  const std::uint64_t count =
      is_before ? block.extent.address - (bytes.address + bytes.size) + 1 : bytes.address - end + 1;
  return std::to_string(count) + (count == 1 ? " byte" : " bytes") +
         (is_before ? " before " : " after ");
}

/// The block that the first side used before it was freed, and whose memory has gone since.
const block_life* taken_in_use(const hazard& reported) {
  if (reported.second.action != party_action::lifetime) return nullptr;
  for (const block_life& each : reported.blocks) {
    const range& used = reported.first.extent;
    const bool first_used_it = used.address < each.extent.address + each.rounded &&
                               each.extent.address < used.address + used.size &&
                               each.allocated_step < reported.first.step &&
                               reported.first.step < each.freed_step;
    if (first_used_it) return &each;
  }
  return nullptr;
}

/// The block that the first side used, if the second side used its bytes after they were freed: as
/// the next block, or as the allocator does, which fills freed memory on a stream of its own.
const block_life* left_behind(const hazard& reported) {
  const auto& lives = reported.blocks;
  for (const block_life& old : lives) {
    const bool first_used_it =
        old.allocated_step < reported.first.step && reported.first.step < old.freed_step;
    const bool is_filled =
        reported.second.action != party_action::lifetime && reported.second.stream != old.freed_on;
    const bool is_reused = &old != &lives.back() || is_filled;
    if (first_used_it && is_reused && old.freed_step < reported.second.step) return &old;
  }
  return nullptr;
}

std::string remedy_of_race(const hazard& reported) {
  const party& first = reported.first;
  const party& second = reported.second;
  const block_life* const taken = taken_in_use(reported);
  if (const block_life* const old = taken != nullptr ? taken : left_behind(reported)) {
    const std::string user = place_of(first);
    const std::string home = "stream " + std::to_string(old->freed_on.number());
    return "call record_stream() for " + user + " before the block is freed, or free it on " +
           user + ", or let " + home + " wait for an event after the first before it is freed";
  }
  if (second.action == party_action::lifetime) {
    return "wait for " + place_of(first) + " before the memory is removed";
  }
  if (reported.kind == hazard_kind::freed_in_use && first.action == party_action::lifetime) {
    return "queue the use before the memory is freed, and let " + place_of(first) + " wait for " +
           place_of(second) + " first";
  }
  if (second.stream.number() == 0)
    return "let the host wait for " + place_of(first) + ", or for an event after the first";
  if (first.stream.number() == 0)
    return "let " + place_of(second) + " wait for what the host did, or do it before it is queued";
  if (first.action == party_action::replayed && second.action == party_action::replayed &&
      first.stream == second.stream) {
    return "make one node of the graph depend on the other";
  }
  return "record an event on " + place_of(first) + " after the first, and let " + place_of(second) +
         " wait for it before the second";
}

}  // namespace

std::string hazard::remedy() const {
  switch (kind) {
    case hazard_kind::race:
    case hazard_kind::freed_in_use:
      return remedy_of_race(*this);
    case hazard_kind::use_after_free:
      return "queue the last use before the memory is freed; work queued before the free may still "
             "use it";
    case hazard_kind::bad_access:
      if (nearest || (!blocks.empty() && blocks.back().freed_step == 0))
        return "stay within the block's size; the neighbouring addresses are unmapped";
      return blocks.empty() ? "map the memory, and grant the device access, before work on it is "
                              "queued"
                            : "queue the last use before the block is freed: its memory was "
                              "returned to the driver";
    case hazard_kind::out_of_bounds:
      return "allocate the full size you use; bytes added by rounding are not yours";
  }
  return {};
}

std::string hazard::message() const {
  std::ostringstream out;
  out << headline(kind) << ": " << shared.size << " bytes at 0x" << std::hex << shared.address
      << std::dec;
  const bool alone = kind == hazard_kind::bad_access || first.label.empty();
  if (!alone) {
    out << "\n  first:  ";
    describe(out, first);
  }
  out << (alone ? "\n  " : "\n  second: ");
  describe(out, second);
  const char* heading = "\n  block:  ";
  for (const block_life& each : blocks) {
    out << heading << to_string(each);
    heading = "\n  later:  ";
  }
  if (nearest) out << "\n  nearby: " << distance_of(shared, *nearest) << to_string(*nearest);
  if (kind == hazard_kind::race || kind == hazard_kind::freed_in_use)
    out << "\n  no stream, event or host order puts the first before the second";
  out << "\n  remedy: " << remedy();
  return out.str();
}

}}}  // namespace weir::v0::sim
