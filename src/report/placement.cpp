// Where a policy would put the blocks of a recording.
#include "report/placement.hpp"

#include <unordered_map>
#include <utility>

namespace weir::inline v0::report {

namespace {

/// Listens to the one thread that plays, and counts the allocations along with the script.
class listener final : public event_sink {
 public:
  listener(const replay::script& what, placement& into) : what_{what}, into_{into} {
    into.places.resize(what.blocks);
  }

  void on_event(const memory_event& what) noexcept override {
    switch (what.kind) {
      case memory_event_kind::allocate:
        if (const auto block = next(); block < into_.places.size()) {
          into_.places[block] = {what.address, what.rounded};
        }
        break;
      case memory_event_kind::out_of_memory:
        next();
        break;
      case memory_event_kind::reserve:
      case memory_event_kind::move:
      case memory_event_kind::release:
        into_.steps.push_back({before(), what.kind, what.address, what.size, what.other_address});
        break;
      default:
        break;
    }
  }

 private:
  /// The block that is allocated next: empty ones never reach the allocator.
  std::uint32_t before() noexcept {
    while (at_ < what_.steps.size() &&
           (what_.steps[at_].what != replay::action::allocate || what_.steps[at_].size == 0)) {
      ++at_;
    }
    return at_ < what_.steps.size() ? what_.steps[at_].block
                                    : static_cast<std::uint32_t>(what_.blocks);
  }

  std::uint32_t next() noexcept {
    const std::uint32_t block = before();
    ++at_;
    return block;
  }

  const replay::script& what_;
  placement& into_;
  std::size_t at_ = 0;
};

/// Tells a recording anew with other addresses.
class teller {
 public:
  teller(recording& into, const placement& where) : into_{into}, where_{where} {}

  void take(trace_event now) {
    switch (now.kind) {
      case trace_kind::allocate:
        return allocate(now);
      case trace_kind::deallocate:
      case trace_kind::reusable:
      case trace_kind::record_stream:
        if (const auto found = places_.find(now.address); found != places_.end()) {
          now.address = found->second;
          into_.events.push_back(now);
        }
        return;
      case trace_kind::reserve:
      case trace_kind::move:
      case trace_kind::release:
        return;
      default:
        into_.events.push_back(now);
    }
  }

 private:
  void allocate(trace_event now) {
    const std::uint32_t block = next_++;
    physical(block, now.time);
    const placement::place& place = where_.places[block];
    places_.erase(now.address);
    if (now.size == 0) return;
    if (place.address == 0) {
      now.kind = trace_kind::out_of_memory;
      now.address = now.extra = now.other = 0;
    } else {
      places_.emplace(now.address, place.address);
      now.address = place.address;
      now.extra = place.rounded;
    }
    into_.events.push_back(now);
  }

  /// What came before the allocation of that block and was not told yet. What follows the
  /// last allocation is how the replay ends, not what the program would have seen.
  void physical(std::uint32_t block, std::uint64_t time) {
    for (; step_ < where_.steps.size() && where_.steps[step_].before <= block; ++step_) {
      const placement::physical& each = where_.steps[step_];
      into_.events.push_back({.time = time,
                              .address = each.address,
                              .size = each.size,
                              .extra = each.from,
                              .kind = kind_of(each.kind)});
    }
  }

  static trace_kind kind_of(memory_event_kind kind) noexcept {
    if (kind == memory_event_kind::reserve) return trace_kind::reserve;
    return kind == memory_event_kind::move ? trace_kind::move : trace_kind::release;
  }

  recording& into_;
  const placement& where_;
  std::uint32_t next_ = 0;
  std::size_t step_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> places_;  // by the recording's address
};

}  // namespace

result<std::pair<placement, replay::outcome>> place(const replay::script& what,
                                                    replay::settings how) {
  if (how.how == replay::policy::driver_pool) {
    return error{.code = errc::invalid_argument,
                 .detail = "driver-pool does not say where its memory is"};
  }
  placement found;
  found.by = how.how;
  listener ears{what, found};
  how.observer = &ears;
  WEIR_TRY_VALUE(came, replay::play(what, how));
  return std::pair{std::move(found), std::move(came)};
}

recording placed(const recording& what, const placement& where) {
  recording out = what;
  out.events.clear();
  out.events.reserve(what.events.size() + where.steps.size());
  out.real_addresses = true;
  teller telling{out, where};
  for (const trace_event& each : what.events) telling.take(each);
  return out;
}

}  // namespace weir::inline v0::report
