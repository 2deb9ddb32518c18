// SPDX-License-Identifier: Apache-2.0
// Allocating, using and freeing blocks.
#include "live_blocks.hpp"

#include <algorithm>

#include "support/sizes.hpp"

namespace weir::programs_test {
namespace {

using testing_support::kib;
using testing_support::mib;

unsigned char byte_at(std::uint64_t content, std::uint64_t offset) {
  return static_cast<unsigned char>(
      (content * 0x9e3779b97f4a7c15ULL + offset * 0xbf58476d1ce4e5b9ULL) >> 56);
}

/// A few offsets all over a block, first and last included.
template <class Action>
void for_some_bytes(std::uint64_t size, const Action& action) {
  constexpr std::uint64_t places = 8;
  for (std::uint64_t i = 0; i < places; ++i) action(i * size / places);
  action(size - 1);
}

}  // namespace

block_number live_blocks::any() {
  auto found = blocks_.lower_bound(1 + world_.random().below(numbers_ + 1));
  if (found == blocks_.end()) found = blocks_.begin();
  return found->first;
}

bool live_blocks::uses(const supplier& of) const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [&](const auto& each) { return each.second.from == &of; });
}

std::uint64_t live_blocks::random_size() {
  rng& random = world_.random();
  switch (random.below(8)) {
    case 0:
    case 1:
      return random.magnitude(64 * kib);
    case 2:
    case 3:
      return random.magnitude(2 * mib);
    case 4:
    case 5:
      return mib + random.below(7 * mib);
    case 6:
      return 2 * mib * (1 + random.below(8));
    default:
      return mib + random.below(30 * mib);
  }
}

stream_ref live_blocks::name_of(lane_index lane) {
  const stream_ref known = lanes_.ref(lane);
  // A bare handle cannot be identified while it is captured.
  const bool bare = world_.random().one_in(5) && lanes_.is_usable(lane);
  return bare ? stream_ref{known.device(), known.handle()} : known;
}

void live_blocks::launch(lane_index on, const live_block& block, bool writes,
                         std::uint64_t content) {
  const auto address = reinterpret_cast<driver::CUdeviceptr>(block.memory);
  auto* const data = static_cast<unsigned char*>(block.memory);
  const std::uint64_t size = block.size;
  const context_scope bound{world_.gpu(lanes_.device(on))};
  result<void> queued;
  if (writes) {
    queued = world_.machine().launch(
        lanes_.ref(on).handle(), "write", {sim::writes(address, size)}, [data, size, content] {
          for_some_bytes(size, [&](std::uint64_t i) { data[i] = byte_at(content, i); });
        });
  } else {
    queued = world_.machine().launch(
        lanes_.ref(on).handle(), "verify", {sim::reads(address, size)},
        [data, size, content, failure = world_.failure(), from = block.from->name()] {
          for_some_bytes(size, [&](std::uint64_t i) {
            if (data[i] != byte_at(content, i))
              failure->report("wrong byte at offset " + std::to_string(i) + " of " +
                              std::to_string(size) + " of " + from);
          });
        });
  }
  world_.expect_ok(queued, "launch");
}

block_number live_blocks::add(live_block block) {
  total_ += block.size;
  blocks_.emplace(++numbers_, std::move(block));
  return numbers_;
}

void live_blocks::allocate(supplier& from) {
  const lane_index on = lanes_.any(from.device());
  if (on == no_lane) return;
  const std::uint64_t size = random_size();
  world_.log("allocate " + std::to_string(size) + " from " + from.name() + " on " +
             lanes_.text(on));
  const stream_ref stream = name_of(on);
  const auto taken = faults_.call("allocate", [&] { return from.allocate(bytes{size}, stream); });
  if (!taken) {
    const errc code = taken.code();
    if (code != errc::out_of_memory && !from.may_refuse(code))
      static_cast<void>(faults_.accept(taken, "allocate"));
    return;
  }
  live_block block{
      .from = &from, .memory = taken->memory, .size = size, .group = taken->group, .home = on};
  block.accesses.add(on, lanes_.queue(on), true);
  const block_number number = add(std::move(block));
  if (!world_.random().one_in(4)) static_cast<void>(touch(number, on, true));
}

bool live_blocks::touch(block_number number, lane_index on, bool writes) {
  live_block& block = at(number);
  if (block.content == 0) writes = true;
  if (!lanes_.is_usable(on)) return false;
  if (lanes_.device(on) != block.from->device() && !block.from->has_peer()) return false;
  if (!block.from->make_resident(block.group)) return false;
  if (!lanes_.put_after(on, block.accesses, writes)) return false;
  if (writes) block.content = next_content();
  launch(on, block, writes, block.content);
  block.accesses.add(on, lanes_.queue(on), writes);
  return true;
}

void live_blocks::touch_any() {
  if (blocks_.empty()) return;
  const block_number number = any();
  rng& random = world_.random();
  const std::size_t own = at(number).from->device();
  const lane_index on = lanes_.any(random.one_in(4) ? 1 - own : own, false);
  if (on == no_lane) return;
  world_.log("touch block " + std::to_string(number) + " of " + at(number).from->name() + " on " +
             lanes_.text(on));
  static_cast<void>(touch(number, on, random.one_in(2)));
}

bool live_blocks::record(live_block& block, lane_index on) {
  if (!block.from->records_streams() || !lanes_.is_nameable(on)) return false;
  // Nobody can ask for its id now, and not every pool has met it.
  if (lanes_.is_captured(on) && lanes_.kind(on) == lane_kind::per_thread) return false;
  const bool foreign = lanes_.device(on) != block.from->device();
  if (foreign && (lanes_.kind(on) == lane_kind::per_thread || !block.from->has_peer()))
    return false;
  const stream_ref stream = lanes_.ref(on);
  world_.log("record_stream of " + lanes_.text(on) + " for a block of " + block.from->name());
  const auto recorded = faults_.call(
      "record_stream", [&] { return block.from->record_stream(block.memory, stream); });
  if (!faults_.accept(recorded, "record_stream")) return false;
  block.recorded.push_back(on);
  return true;
}

void live_blocks::record_any() {
  if (blocks_.empty()) return;
  const lane_index on = lanes_.any(world_.random().below(device_count));
  if (on != no_lane) static_cast<void>(record(at(any()), on));
}

/// Every use comes before what is queued on the stream of the free next, or is recorded.
bool live_blocks::prepare_free(live_block& block, lane_index on) {
  for (const access_history::entry& each : block.accesses.entries()) {
    const std::uint64_t last = std::max(each.read, each.write);
    const bool recorded =
        std::find(block.recorded.begin(), block.recorded.end(), each.lane) != block.recorded.end();
    if (recorded || lanes_.comes_after(on, each.lane, last) || each.lane == on) continue;
    if (world_.random().one_in(2) && record(block, each.lane)) continue;
    if (!lanes_.put_after(on, each.lane, last) && !record(block, each.lane)) return false;
  }
  return true;
}

bool live_blocks::free(block_number number) {
  live_block& block = at(number);
  if (block.graphs != 0) return false;
  rng& random = world_.random();
  lane_index on = block.home;
  if (!lanes_.is_nameable(on) || random.one_in(3)) on = lanes_.any(block.from->device());
  if (on == no_lane || !prepare_free(block, on)) return false;
  const bool unnamed = on == block.home && block.from->frees_without_stream() && random.one_in(4);
  const bool legacy_blocked =
      lanes_.kind(on) == lane_kind::legacy && lanes_.blocks_legacy(block.from->device());
  if (legacy_blocked) return false;
  if (lanes_.is_captured(on) && !block.from->frees_in_capture(lanes_.kind(on))) return false;
  world_.log("free block " + std::to_string(number) + " of " + block.from->name() +
             (unnamed ? " without a stream" : " on " + lanes_.text(on)));
  const std::optional<stream_ref> stream = unnamed ? std::nullopt : std::optional{name_of(on)};
  const auto freed = faults_.call("free", [&] { return block.from->free(block.memory, stream); });
  if (!faults_.accept(freed, "free") && (world_.failed() || block.from->holds(block.memory)))
    return false;
  if (on_free_) on_free_(number, block.accesses);
  total_ -= block.size;
  blocks_.erase(number);
  return true;
}

void live_blocks::free_some(std::size_t count) {
  for (; count > 0 && !blocks_.empty() && !world_.failed(); --count) static_cast<void>(free(any()));
}

void live_blocks::free_all(const supplier& of) {
  std::vector<block_number> numbers;
  for (const auto& [number, block] : blocks_)
    if (block.from == &of) numbers.push_back(number);
  for (const block_number each : numbers)
    for (int attempts = 0; attempts < 20 && contains(each) && !world_.failed(); ++attempts)
      static_cast<void>(free(each));
}

void live_blocks::check_peers() {
  for (const auto& [number, block] : blocks_) {
    if (!block.from->maps_for_peers()) continue;
    driver::CUmemLocation peer{};
    peer.type = driver::CU_MEM_LOCATION_TYPE_DEVICE;
    peer.id = static_cast<int>(1 - block.from->device());
    unsigned long long rights = 0;
    const auto address = reinterpret_cast<driver::CUdeviceptr>(block.memory);
    const auto answer = world_.cuda().mem_get_access(&rights, &peer, address);
    if (answer == driver::CUDA_SUCCESS && rights == 0)
      world_.fail("the peer cannot reach block " + std::to_string(number) + " of " +
                  block.from->name());
  }
}

void live_blocks::forget_contents(const supplier& of, std::size_t group) {
  for (auto& [number, block] : blocks_)
    if (block.from == &of && (group == no_group || block.group == group)) block.content = 0;
}

void live_blocks::add_access(const supplier& of, std::size_t group, lane_index on,
                             std::uint64_t operation) {
  for (auto& [number, block] : blocks_)
    if (block.from == &of && (group == no_group || block.group == group))
      block.accesses.add(on, operation, true);
}

}  // namespace weir::programs_test
