// SPDX-License-Identifier: Apache-2.0
// Choosing an allocator's options, its groups and pools, and where a request goes.
#include "heaps.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include "heap/central_heap.hpp"
#include "support/sizes.hpp"

namespace weir::programs_test {
namespace {

using testing_support::mib;

allocator_options choose_settings(rng& random, std::uint64_t capacity) {
  using enum placement_policy;
  allocator_options chosen;
  chosen.policy = random.any_of({balanced, balanced, balanced, throughput, compact, compact,
                                 never_move, classic, classic_expandable});
  chosen.thread_cache = bytes{random.any_of({4 * mib, 4 * mib, mib, 0 * mib})};
  chosen.detect_captures = random.one_in(2);
  if (random.one_in(4)) chosen.limit = bytes{capacity / 10 * (3 + random.below(6))};
  chosen.queued_waits = !random.one_in(6);
  chosen.debug_unmap = random.one_in(8);
  if (random.one_in(3)) chosen.crossing = crossing_rule::declared_uses;
  return chosen;
}

suspendable_options choose_group(rng& random) {
  suspendable_options chosen;
  chosen.evictable = random.one_in(2);
  chosen.priority = static_cast<int>(random.below(3));
  if (random.one_in(3)) chosen.eviction.to = host_memory_kind::pageable;
  return chosen;
}

}  // namespace

/// Tells the simulated machine of blocks; never lacks host memory.
class heap_supplier::spared_sink final : public event_sink {
 public:
  explicit spared_sink(std::unique_ptr<event_sink> real) : real_{std::move(real)} {}
  void on_event(const memory_event& event) noexcept override {
    const spared_memory spared;
    real_->on_event(event);
  }

 private:
  std::unique_ptr<event_sink> real_;
};

heap_supplier::heap_supplier(world& in, faults& failing, std::string name, std::size_t device)
    : supplier{std::move(name), device},
      world_{in},
      faults_{failing},
      settings_{choose_settings(in.random(), in.capacity())},
      watch_{std::make_unique<spared_sink>(in.machine().watch_blocks())} {
  memory_ = caching_allocator::create(in.gpu(device), settings_).value();
  watching_ = memory_->add_observer(*watch_).value();
  for (const char* const each : {"mixed a", "mixed b"}) tags_.push_back(tag::named(each).value());
  in.log("create " + this->name() + ": " + to_string(settings_));
}

heap_supplier::~heap_supplier() {
  groups_.clear();
  pools_.clear();
  memory_.reset();
}

bool heap_supplier::is_classic() const {
  return settings_.policy == placement_policy::classic ||
         settings_.policy == placement_policy::classic_expandable;
}

void heap_supplier::declare_group() {
  rng& random = world_.random();
  if (groups_.size() == 4) return;
  group made;
  const suspendable_options options = choose_group(random);
  made.evictable = options.evictable;
  const std::string label = "group " + std::to_string(groups_.size());
  world_.log("declare " + label + " of " + name() + (made.evictable ? ", evictable" : ""));
  if (random.one_in(3)) {
    auto pool = faults_.call("create_pool",
                             [&] { return memory_->create_pool(label, {.suspendable = options}); });
    if (!faults_.accept(pool, "create_pool", {errc::not_supported})) return;
    made.pool = *std::move(pool);
  } else {
    made.tag = tag::named(label).value();
    const auto declared = faults_.call(
        "declare_suspendable", [&] { return memory_->declare_suspendable(made.tag, options); });
    if (!faults_.accept(declared, "declare_suspendable", {errc::not_supported})) return;
  }
  groups_.push_back(std::move(made));
}

void heap_supplier::change_pools() {
  rng& random = world_.random();
  if (pools_.size() == 3 || (!pools_.empty() && random.one_in(2))) {
    world_.log("drop a pool of " + name());
    pools_.erase(pools_.begin() + static_cast<std::ptrdiff_t>(random.below(pools_.size())));
    return;
  }
  pool_options options;
  options.for_graphs = random.one_in(4);
  options.segments = random.one_in(3);
  if (options.segments) options.one_block_per_segment = random.one_in(3);
  world_.log("create a pool of " + name());
  auto pool = faults_.call("create_pool", [&] { return memory_->create_pool("plain", options); });
  if (!faults_.accept(pool, "create_pool", {errc::not_supported})) return;
  if (random.one_in(3)) {
    const auto set = faults_.call("set_fallback", [&] { return pool->set_fallback(true); });
    static_cast<void>(faults_.accept(set, "set_fallback"));
  }
  pools_.push_back(*std::move(pool));
}

void heap_supplier::drop_pools() {
  pools_.clear();
  for (group& each : groups_) each.pool = {};
}

void heap_supplier::enable_peer() {
  if (peer_) return;
  world_.log("enable_peer of " + name());
  const auto enabled =
      faults_.call("enable_peer", [&] { return memory_->enable_peer(world_.gpu(1 - device())); });
  peer_ = faults_.accept(enabled, "enable_peer");
}

// --- Requests --------------------------------------------------------------------------------

result<supplied_block> heap_supplier::allocate(bytes size, const stream_ref& stream) {
  rng& random = world_.random();
  supplied_block block;
  result<void*> taken = nullptr;
  if (!groups_.empty() && random.one_in(3)) {
    block.group = random.below(groups_.size());
    group& chosen = groups_[block.group];
    const tag_scope tagged{chosen.tag};
    taken =
        chosen.pool ? chosen.pool.try_allocate(size, stream) : memory_->try_allocate(size, stream);
  } else if (!pools_.empty() && random.one_in(4)) {
    const memory_pool& pool = pools_[random.below(pools_.size())];
    const pool_scope current{pool};
    taken = memory_->try_allocate(size, stream);
  } else {
    const tag_scope tagged{random.one_in(2) ? tags_[random.below(tags_.size())] : tag{}};
    taken = memory_->try_allocate(size, stream);
  }
  if (!taken) return std::move(taken).error();
  block.memory = *taken;
  return block;
}

result<void> heap_supplier::free(void* memory, const std::optional<stream_ref>& stream) {
  if (!stream) return memory_->try_deallocate(memory);
  return memory_->try_deallocate(memory, *stream);
}

bool heap_supplier::holds(void* memory) const { return memory_->size_of(memory).has_value(); }

result<void> heap_supplier::record_stream(void* memory, const stream_ref& stream) {
  return memory_->record_stream(memory, stream);
}

bool heap_supplier::make_resident(std::size_t index) {
  if (away) return false;
  if (index == no_group) return true;
  group& wanted = groups_[index];
  if (!wanted.evictable && !wanted.away) return true;
  const auto resumed = faults_.call(
      "resume", [&] { return wanted.pool ? wanted.pool.resume() : memory_->resume(wanted.tag); });
  if (!faults_.accept(resumed, "resume", {errc::out_of_memory})) return false;
  wanted.away = false;
  settle(index);
  return !world_.failed();
}

void heap_supplier::settle(std::size_t index) {
  bool& async_state = index == no_group ? async : groups_[index].async;
  if (!std::exchange(async_state, false)) return;
  const stream_ref legacy = stream_ref::legacy(world_.gpu(device()));
  const bool group_pool = index != no_group && groups_[index].pool;
  const tag_scope tagged{index != no_group ? groups_[index].tag : tag{}};
  const auto met = group_pool ? groups_[index].pool.try_allocate(bytes{1}, legacy)
                              : memory_->try_allocate(bytes{1}, legacy);
  if (met) world_.expect_ok(memory_->try_deallocate(*met, legacy), "free");
}

bool heap_supplier::may_refuse(errc code) const {
  if (code == errc::out_of_memory) return limited;
  if (code != errc::suspended) return false;
  bool any_away = away;
  for (const group& each : groups_) any_away = any_away || each.away;
  return any_away;
}

// --- Checks ----------------------------------------------------------------------------------

void heap_supplier::check() {
  const std::string violation = heap::central_heap::of(*memory_).inspection().check();
  if (!violation.empty()) world_.fail("check() of " + name() + ": " + violation);
}

void heap_supplier::check_empty() {
  check();
  const memory_stats before = memory_->stats();
  if (before.blocks.current != 0) {
    std::string live;
    for (const pool_snapshot& each : memory_->snapshot().pools)
      for (const block_info& block : each.blocks)
        if (block.state == block_state::live)
          live += ", " + to_string(block.requested) + " of stream " +
                  std::to_string(block.stream.number()) + " in pool \"" + each.name + "\"";
    world_.fail(name() + ": all is freed, but " + std::to_string(before.blocks.current) +
                " blocks are live" + live);
  }
  // Memory whose asynchronous suspension has not ended stays until that has ended.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{10};
  bytes left{};
  do {
    if (!world_.expect_ok(memory_->empty_cache(), "empty_cache at the end")) return;
    left = memory_->stats().reserved.current;
    if (left == bytes{}) return;
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < deadline);
  std::string pools;
  for (const pool_snapshot& each : memory_->snapshot().pools) {
    if (each.stats.reserved.current == bytes{}) continue;
    pools += " pool \"" + each.name + "\" (" + to_string(each.stats.reserved.current);
    for (const block_info& block : each.blocks)
      if (block.state != block_state::hole)
        pools += ", " + to_string(block.size) + " " + std::string{weir::name(block.state)} +
                 " of stream " + std::to_string(block.stream.number());
    pools += ")";
  }
  world_.fail(name() + (away ? " (suspended)" : "") + ": all is freed, but " + to_string(left) +
              " stay reserved by" + pools + "; " + to_string(settings_));
}

}  // namespace weir::programs_test
