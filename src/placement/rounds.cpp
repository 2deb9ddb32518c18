// SPDX-License-Identifier: Apache-2.0
// Notes about large requests, and the plan of a round.
#include "placement/rounds.hpp"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "placement/offline_fit.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// Finds low places for the blocks of a round: the largest are placed first; then, some times,
/// those that stick out over the most that is alive are placed before all others. Writes the
/// offsets of the lowest placement and returns its height.
std::uint64_t find_places(const std::vector<timed_block>& blocks, std::uint32_t round,
                          std::vector<std::uint64_t>& offsets) {
  constexpr std::uint64_t most_pairs = std::uint64_t{4} << 20;  // some milliseconds
  offline_fit fit{blocks, round};
  const std::uint64_t bound = fit.most_alive();
  std::vector<std::uint32_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return blocks[a].size > blocks[b].size;
  });
  std::vector<std::uint64_t> tried(blocks.size());
  std::uint64_t lowest = ~std::uint64_t{0};
  std::uint64_t pairs = 0;
  for (int tries = 0; tries < 32 && lowest > bound && pairs < most_pairs; ++tries) {
    const std::uint64_t height = fit.place(order, tried);
    if (height < lowest) {
      lowest = height;
      offsets = tried;
    }
    pairs += blocks.size() * blocks.size();
    std::stable_partition(order.begin(), order.end(), [&](std::uint32_t each) {
      return tried[each] + blocks[each].size > bound;
    });
  }
  return lowest;
}

}  // namespace

void rounds::moved(std::uint64_t slots) noexcept {
  moved_slots_ += slots;
  if (notes_.empty()) {
    try {
      successors_.assign(kept, unknown);
      notes_.resize(kept);
    } catch (const std::bad_alloc&) {
      return forget();
    }
  }
  notes_left_ = 2 * kept;
}

std::uint64_t rounds::recent_requests() const noexcept {
  std::uint64_t name = 0;
  for (std::uint64_t i = 1; i <= std::min<std::uint64_t>(context, noted_); ++i) {
    const note& each = at(noted_ - i);
    name = (name ^ each.units) * 0x9e37'79b9'7f4a'7c15 + each.stream;
  }
  return (name >> 40) % kept;
}

void rounds::requested(const block& given) noexcept {
  if (--notes_left_ == 0) return forget();
  const std::uint64_t mebibyte = (given.address - base_) >> 20;
  if (mebibyte >= request_at_mebibyte_.size()) {
    try {
      request_at_mebibyte_.resize(
          std::max<std::size_t>(mebibyte + 1, 2 * request_at_mebibyte_.size()));
    } catch (const std::bad_alloc&) {
      return forget();
    }
  }
  const bool as_before = is_expected(given.units, given.stream);
  same_stream_in_a_row_ =
      noted_ != 0 && at(noted_ - 1).stream == given.stream ? same_stream_in_a_row_ + 1 : 1;
  const std::uint32_t plan_number = plan_number_of(given.units, given.stream);
  at(noted_) = {.units = given.units,
                .stream = given.stream,
                .plan_number = plan_number,
                .live_before = live_units_,
                .moved_before = moved_slots_};
  request_at_mebibyte_[mebibyte] = ++noted_;
  live_units_ += given.units;
  if (plan_number != 0) {
    notes_left_ = 2 * kept;
    place& own = places_[plan_number - 1];
    if (own.address == given.address) own.misses = 0;
    const bool is_back = at(noted_ - 2).plan_number == 0;
    if (is_back) settled_at_ = noted_ + 3 * places_.size();
    if (noted_ >= settled_at_ && (noted_ - settled_at_) % places_.size() == 0)
      moved_when_settled_ = moved_slots_;
  }
  std::uint64_t& successor = successors_[recent_requests()];
  if (as_before) {
    ++expected_;
    ++repeats_in_a_row_;
  } else {
    expected_ = successor;
    repeats_in_a_row_ = 0;
  }
  successor = noted_;
}

void rounds::freed(const block& given) noexcept {
  live_units_ -= given.units;
  const std::uint64_t mebibyte = (given.address - base_) >> 20;
  if (mebibyte >= request_at_mebibyte_.size() || request_at_mebibyte_[mebibyte] == 0) return;
  const std::uint64_t number = std::exchange(request_at_mebibyte_[mebibyte], 0) - 1;
  if (is_kept(number)) at(number).lifetime = static_cast<std::uint32_t>(noted_ - number);
}

std::uint32_t rounds::plan_number_of(unit_count units, stream_slot stream) const noexcept {
  if (!has_plan()) return 0;
  const std::uint32_t last = at(noted_ - 1).plan_number;
  if (last != 0 && at(noted_ - 1).stream == stream) {
    const std::uint32_t number = last == places_.size() ? 1 : last + 1;
    if (places_[number - 1].units == units) return number;
  }
  return is_expected(units, stream) ? at(expected_).plan_number : 0;
}

std::uint64_t rounds::place_of(unit_count units, stream_slot stream) const noexcept {
  const std::uint32_t number = plan_number_of(units, stream);
  return number == 0 ? nowhere : places_[number - 1].address;
}

void rounds::miss_place(unit_count units, stream_slot stream) noexcept {
  place& missed = places_[plan_number_of(units, stream) - 1];
  // A request asks several times.
  if (std::exchange(missed.missed_by, noted_) == noted_) return;
  if (++missed.misses == most_misses) missed.address = nowhere;
}

bool rounds::is_worth_a_plan(std::uint64_t reserved_slots) const noexcept {
  if (noted_ < next_plan_at_ || !is_kept(expected_)) return false;
  const std::uint64_t length = round_length();
  if (length < shortest || length > longest || !is_kept(expected_ - length)) return false;
  if (repeats_in_a_row_ < 2 * length || same_stream_in_a_row_ < 2 * length) return false;
  const note& before = at(expected_ - length);
  const note& begin = at(expected_);
  // Layers of a network are alike, too, and leave more and more live, or less and less.
  const std::uint64_t more = live_units_ - begin.live_before;
  if (more != 0 && more == begin.live_before - before.live_before) return false;
  const std::uint64_t much = std::max<std::uint64_t>(reserved_slots / 64, 1);
  return begin.moved_before - before.moved_before >= much &&
         moved_slots_ - begin.moved_before >= much;
}

bool rounds::has_failed(std::uint64_t reserved_slots) const noexcept {
  return has_plan() && noted_ > settled_at_ && at(noted_ - 1).plan_number != 0 &&
         moved_slots_ - moved_when_settled_ >= std::max<std::uint64_t>(reserved_slots / 4, 1);
}

rounds::outline rounds::plan() {
  const auto length = static_cast<std::uint32_t>(round_length());
  // A plan that has to be made again did not serve: after a while it may, but ever less likely.
  next_plan_at_ = noted_ + ((4 * std::uint64_t{length}) << std::min(plans_made_++, 10u));
  std::vector<timed_block> blocks;      // those that are gone within a round
  std::vector<std::uint32_t> requests;  // by block: its request in the round
  blocks.reserve(length);
  requests.reserve(length);
  std::uint64_t requested = 0;
  std::uint64_t planned = 0;
  for (std::uint32_t i = 0; i < length; ++i) {
    const std::uint64_t number = expected_ + i;
    // What lives yet will live as long as it did a round ago, and what waits for other streams once
    // longer and once less long.
    const std::uint32_t lifetime = std::max(at(number).lifetime, at(number - length).lifetime);
    const std::uint64_t size = at(number).units * std::uint64_t{unit};
    requested += size;
    if (lifetime == 0 || lifetime > length) continue;
    planned += size;
    blocks.push_back({size, i, i + lifetime});
    requests.push_back(i);
  }
  outline drawn;
  if (planned < requested - requested / 16) return drawn;
  for (const timed_block& each : blocks)
    if (each.end > length) drawn.live += each.size;
  std::vector<std::uint64_t> offsets;
  drawn.height = find_places(blocks, length, offsets);

  places_.assign(length, place{.address = unknown, .units = 0});
  for (std::uint32_t i = 0; i < length; ++i) places_[i].units = at(expected_ + i).units;
  for (std::size_t i = 0; i < blocks.size(); ++i) places_[requests[i]].address = offsets[i];
  for (note& each : notes_) each.plan_number = 0;
  for (std::uint32_t i = 0; i < length; ++i) at(expected_ + i).plan_number = i + 1;
  drop_plan();
  return drawn;
}

void rounds::lay_out(std::uint64_t low) noexcept {
  plan_begin_ = low;
  settled_at_ = noted_ + 3 * places_.size();
  moved_when_settled_ = moved_slots_;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    std::uint64_t& address = places_[i].address;
    if (address == unknown) {
      address = nowhere;
      continue;
    }
    plan_height_ = std::max(plan_height_, address + places_[i].units * std::uint64_t{unit});
    address += low;
  }
}

void rounds::forget() noexcept {
  drop_plan();
  notes_left_ = 0;
  notes_ = std::vector<note>{};
  successors_ = std::vector<std::uint64_t>{};
  request_at_mebibyte_ = std::vector<std::uint64_t>{};
  places_ = std::vector<place>{};
  expected_ = unknown;
  noted_ = repeats_in_a_row_ = same_stream_in_a_row_ = next_plan_at_ = 0;
}

std::size_t rounds::footprint() const noexcept {
  return notes_.capacity() * sizeof(note) + places_.capacity() * sizeof(place) +
         (successors_.capacity() + request_at_mebibyte_.capacity()) * sizeof(std::uint64_t);
}

}}}  // namespace weir::v0::placement
