// SPDX-License-Identifier: Apache-2.0
// Where a policy would put the blocks of a recording.
#include "report/placement.hpp"

#include <unordered_map>
#include <utility>

namespace weir { inline namespace v0 { namespace report {

namespace {

/// Observes the one thread that plays, and counts the allocations along with the script.
class placement_observer final : public event_sink {
 public:
  placement_observer(const replay::script& script, placement& out) : script_{script}, out_{out} {
    out.places.resize(script.blocks);
  }

  void on_event(const memory_event& event) noexcept override {
    switch (event.kind) {
      case memory_event_kind::allocate:
        if (const auto block = take_next(); block < out_.places.size()) {
          out_.places[block] = {event.address, event.rounded};
        }
        break;
      case memory_event_kind::out_of_memory:
        take_next();
        break;
      case memory_event_kind::reserve:
      case memory_event_kind::move:
      case memory_event_kind::release:
        out_.steps.push_back({next_block(), event.kind, event.address, event.size,
                              event.other_address, recorded_pool(event.pool)});
        break;
      default:
        break;
    }
  }

 private:
  /// The block that is allocated next: empty ones never reach the allocator.
  std::uint32_t next_block() noexcept {
    for (; step_ < script_.steps.size(); ++step_) {
      const replay::step& each = script_.steps[step_];
      if (each.action == replay::action::allocate && each.size != 0) return each.block;
    }
    return static_cast<std::uint32_t>(script_.blocks);
  }

  /// The recording's number of a pool of the playing allocator. A pool takes its first memory for
  /// a request to it.
  std::uint16_t recorded_pool(pool_id played) noexcept {
    if (played == pool_id{}) return 0;
    const auto known = pools_.find(played.number());
    if (known != pools_.end()) return known->second;
    static_cast<void>(next_block());
    const std::uint16_t pool = step_ < script_.steps.size() ? script_.steps[step_].pool : 0;
    pools_.emplace(played.number(), pool);
    return pool;
  }

  std::uint32_t take_next() noexcept {
    const std::uint32_t block = next_block();
    ++step_;
    return block;
  }

  const replay::script& script_;
  placement& out_;
  std::size_t step_ = 0;
  std::unordered_map<std::uint32_t, std::uint16_t> pools_;  // by the allocator's number
};

/// Writes a recording anew with other addresses.
class relocator {
 public:
  relocator(recording& out, const placement& placement) : out_{out}, placement_{placement} {}

  void add(trace_event event) {
    switch (event.kind) {
      case trace_kind::allocate:
        return allocate(event);
      case trace_kind::deallocate:
      case trace_kind::reusable:
      case trace_kind::record_stream:
        if (const auto entry = addresses_.find(event.address); entry != addresses_.end()) {
          event.address = entry->second;
          out_.events.push_back(event);
        }
        return;
      case trace_kind::reserve:
      case trace_kind::move:
      case trace_kind::release:
        return;
      default:
        out_.events.push_back(event);
    }
  }

 private:
  void allocate(trace_event event) {
    const std::uint32_t block = next_block_++;
    add_physical(block, event.time);
    const placement::place& place = placement_.places[block];
    addresses_.erase(event.address);
    if (event.size == 0) return;
    if (place.address == 0) {
      event.kind = trace_kind::out_of_memory;
      event.address = event.extra = event.other = 0;
    } else {
      addresses_.emplace(event.address, place.address);
      event.address = place.address;
      event.extra = place.rounded;
    }
    out_.events.push_back(event);
  }

  /// The steps before the allocation of that block that were not written yet. Those after the
  /// last allocation are how the replay ends, not what the program would have seen.
  void add_physical(std::uint32_t block, std::uint64_t time) {
    for (; next_step_ < placement_.steps.size() && placement_.steps[next_step_].before <= block;
         ++next_step_) {
      const placement::physical& each = placement_.steps[next_step_];
      out_.events.push_back({.time = time,
                             .address = each.address,
                             .size = each.size,
                             .extra = each.from,
                             .pool = each.pool,
                             .kind = kind_of(each.kind)});
    }
  }

  static trace_kind kind_of(memory_event_kind kind) noexcept {
    if (kind == memory_event_kind::reserve) return trace_kind::reserve;
    return kind == memory_event_kind::move ? trace_kind::move : trace_kind::release;
  }

  recording& out_;
  const placement& placement_;
  std::uint32_t next_block_ = 0;
  std::size_t next_step_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> addresses_;  // by the recording's address
};

}  // namespace

result<std::pair<placement, replay::outcome>> place(const replay::script& script,
                                                    replay::settings settings) {
  if (settings.policy == replay::policy::driver_pool) {
    return error{
        {.code = errc::invalid_argument, .detail = "driver-pool does not say where its memory is"}};
  }
  placement placed;
  placed.policy = settings.policy;
  placement_observer observer{script, placed};
  settings.observer = &observer;
  WEIR_TRY_VALUE(outcome, replay::play(script, settings));
  return std::pair{std::move(placed), std::move(outcome)};
}

recording relocate(const recording& recording, const placement& placement) {
  weir::recording out = recording;
  out.events.clear();
  out.events.reserve(recording.events.size() + placement.steps.size());
  out.real_addresses = true;
  relocator writer{out, placement};
  for (const trace_event& each : recording.events) writer.add(each);
  return out;
}

}}}  // namespace weir::v0::report
