// Notes about large requests, and the plan of a round.
#include "placement/rounds.hpp"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "placement/offline_fit.hpp"

namespace weir { inline namespace v0 { namespace placement {
namespace {

/// Finds low places for the blocks of a round: the largest are placed first; then, some times, those
/// that stick out over the most that is alive are placed before all others. Writes the offsets of
/// the lowest placement and returns its height.
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
      followed_.assign(kept, unknown);
      notes_.resize(kept);
    } catch (const std::bad_alloc&) {
      return forget();
    }
  }
  watched_ = 2 * kept;
}

std::uint64_t rounds::recent() const noexcept {
  std::uint64_t name = 0;
  for (std::uint64_t i = 1; i <= std::min<std::uint64_t>(context, count_); ++i) {
    const note& each = at(count_ - i);
    name = (name ^ each.units) * 0x9e37'79b9'7f4a'7c15 + each.stream;
  }
  return (name >> 40) % kept;
}

void rounds::requested(const block& given) noexcept {
  if (--watched_ == 0) return forget();
  const std::uint64_t mebibyte = (given.address - base_) >> 20;
  if (mebibyte >= begins_.size()) {
    try {
      begins_.resize(std::max<std::size_t>(mebibyte + 1, 2 * begins_.size()));
    } catch (const std::bad_alloc&) {
      return forget();
    }
  }
  const bool as_before = is_next(given.units, given.stream);
  one_stream_ = count_ != 0 && at(count_ - 1).stream == given.stream ? one_stream_ + 1 : 1;
  const std::uint32_t planned = number_of(given.units, given.stream);
  at(count_) = {.units = given.units,
                .stream = given.stream,
                .planned = planned,
                .live = live_,
                .moved_slots = moved_slots_};
  begins_[mebibyte] = ++count_;
  live_ += given.units;
  if (planned != 0) {
    watched_ = 2 * kept;
    if (places_[planned - 1].address == given.address) places_[planned - 1].misses = 0;
    const bool is_back = at(count_ - 2).planned == 0;
    if (is_back) settled_by_ = count_ + 3 * places_.size();
    if (count_ >= settled_by_ && (count_ - settled_by_) % places_.size() == 0)
      moved_by_then_ = moved_slots_;
  }
  std::uint64_t& followed = followed_[recent()];
  if (as_before) {
    ++next_;
    ++alike_;
  } else {
    next_ = followed;
    alike_ = 0;
  }
  followed = count_;
}

void rounds::freed(const block& given) noexcept {
  live_ -= given.units;
  const std::uint64_t mebibyte = (given.address - base_) >> 20;
  if (mebibyte >= begins_.size() || begins_[mebibyte] == 0) return;
  const std::uint64_t number = std::exchange(begins_[mebibyte], 0) - 1;
  if (is_kept(number)) at(number).lifetime = static_cast<std::uint32_t>(count_ - number);
}

std::uint32_t rounds::number_of(unit_count units, stream_slot stream) const noexcept {
  if (!has_plan()) return 0;
  const std::uint32_t last = at(count_ - 1).planned;
  if (last != 0 && at(count_ - 1).stream == stream) {
    const std::uint32_t number = last == places_.size() ? 1 : last + 1;
    if (places_[number - 1].units == units) return number;
  }
  return is_next(units, stream) ? at(next_).planned : 0;
}

std::uint64_t rounds::place_of(unit_count units, stream_slot stream) const noexcept {
  const std::uint32_t number = number_of(units, stream);
  return number == 0 ? nowhere : places_[number - 1].address;
}

void rounds::miss_place(unit_count units, stream_slot stream) noexcept {
  place& missed = places_[number_of(units, stream) - 1];
  // A request asks several times.
  if (std::exchange(missed.missed_by, count_) == count_) return;
  if (++missed.misses == most_misses) missed.address = nowhere;
}

bool rounds::is_worth_a_plan(std::uint64_t reserved_slots) const noexcept {
  if (count_ < not_before_ || !is_kept(next_)) return false;
  if (round() < shortest || round() > longest || !is_kept(next_ - round())) return false;
  if (alike_ < 2 * round() || one_stream_ < 2 * round()) return false;
  const note& before = at(next_ - round());
  const note& begin = at(next_);
  // Layers of a network are alike, too, and leave more and more live, or less and less.
  const std::uint64_t more = live_ - begin.live;
  if (more != 0 && more == begin.live - before.live) return false;
  const std::uint64_t much = std::max<std::uint64_t>(reserved_slots / 64, 1);
  return begin.moved_slots - before.moved_slots >= much && moved_slots_ - begin.moved_slots >= much;
}

bool rounds::has_failed(std::uint64_t reserved_slots) const noexcept {
  return has_plan() && count_ > settled_by_ && at(count_ - 1).planned != 0 &&
         moved_slots_ - moved_by_then_ >= std::max<std::uint64_t>(reserved_slots / 4, 1);
}

rounds::outline rounds::plan() {
  const auto length = static_cast<std::uint32_t>(round());
  // A plan that has to be made again did not serve: after a while it may, but ever less likely.
  not_before_ = count_ + ((4 * round()) << std::min(plans_++, 10u));
  std::vector<timed_block> blocks;      // those that are gone within a round
  std::vector<std::uint32_t> requests;  // by block: its request in the round
  blocks.reserve(length);
  requests.reserve(length);
  std::uint64_t requested = 0;
  std::uint64_t planned = 0;
  for (std::uint32_t i = 0; i < length; ++i) {
    const std::uint64_t number = next_ + i;
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
  for (std::uint32_t i = 0; i < length; ++i) places_[i].units = at(next_ + i).units;
  for (std::size_t i = 0; i < blocks.size(); ++i) places_[requests[i]].address = offsets[i];
  for (note& each : notes_) each.planned = 0;
  for (std::uint32_t i = 0; i < length; ++i) at(next_ + i).planned = i + 1;
  drop_plan();
  return drawn;
}

void rounds::lay_out(std::uint64_t low) noexcept {
  low_ = low;
  settled_by_ = count_ + 3 * places_.size();
  moved_by_then_ = moved_slots_;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    std::uint64_t& address = places_[i].address;
    if (address == unknown) {
      address = nowhere;
      continue;
    }
    height_ = std::max(height_, address + places_[i].units * std::uint64_t{unit});
    address += low;
  }
}

void rounds::forget() noexcept {
  drop_plan();
  watched_ = 0;
  notes_ = std::vector<note>{};
  followed_ = std::vector<std::uint64_t>{};
  begins_ = std::vector<std::uint64_t>{};
  places_ = std::vector<place>{};
  next_ = unknown;
  count_ = alike_ = one_stream_ = not_before_ = 0;
}

std::size_t rounds::footprint() const noexcept {
  return notes_.capacity() * sizeof(note) + places_.capacity() * sizeof(place) +
         (followed_.capacity() + begins_.capacity()) * sizeof(std::uint64_t);
}

}}}  // namespace weir::v0::placement
