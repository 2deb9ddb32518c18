// SPDX-License-Identifier: Apache-2.0
// The steps of a program, and its end.
#include "mixed_program.hpp"

namespace weir::programs_test {

mixed_program::mixed_program(world& in)
    : world_{in},
      faults_{in},
      lanes_{in},
      blocks_{in, faults_, lanes_},
      graphs_{in, faults_, lanes_, blocks_},
      captures_{in, faults_, lanes_, blocks_, graphs_},
      suspension_{in, faults_, lanes_, blocks_},
      other_calls_{in, faults_, lanes_, blocks_},
      unified_{in, faults_, lanes_} {
  rng& random = world_.random();
  using enum lane_kind;
  for (std::size_t device = 0; device < device_count; ++device) {
    for (const lane_kind kind :
         {legacy, weir_stream, weir_blocking, driver_non_blocking, driver_blocking, secret})
      static_cast<void>(lanes_.add(kind, device));
    const std::size_t heaps = 1 + random.below(2);
    for (std::size_t i = 0; i < heaps; ++i)
      heaps_.push_back(std::make_unique<heap_supplier>(
          world_, faults_, "heap " + std::to_string(i) + "@" + std::to_string(device), device));
  }
  target_ = world_.capacity() / 100 * (60 + random.below(160));
}

mixed_program::~mixed_program() = default;

heap_supplier& mixed_program::any_heap() { return *heaps_[world_.random().below(heaps_.size())]; }

supplier& mixed_program::any_supplier() {
  if (!pools_.empty() && world_.random().one_in(4))
    return *pools_[world_.random().below(pools_.size())];
  return any_heap();
}

void mixed_program::run(std::uint64_t steps, std::size_t thread) {
  lanes_.enter_thread(thread);
  for (std::uint64_t i = 0; i < steps && !world_.failed(); ++i) {
    step();
    check(false);
  }
  if (!world_.failed()) lanes_.leave_thread();
}

void mixed_program::step() {
  rng& random = world_.random();
  const bool full = blocks_.total() > target_ || blocks_.count() > 120;
  const std::uint64_t roll = random.below(100);
  if (roll < (full ? 45U : 15U)) return blocks_.free_some(1 + random.below(full ? 4 : 2));
  if (roll < 45) return blocks_.allocate(any_supplier());
  if (roll < 60) return blocks_.touch_any();
  if (roll < 63) return blocks_.record_any();
  if (roll < 73) return captures_.fill_any();
  if (roll < 76) return captures_.begin(any_heap());
  if (roll < 79) return captures_.end_any();
  if (roll < 84) return graphs_.replay_any();
  if (roll < 88) return other_calls_.release(any_heap());
  if (roll < 92) return suspension_.change(any_heap(), captures_.running());
  if (roll < 95) return other_calls_.advance();
  rare_step();
}

void mixed_program::rare_step() {
  rng& random = world_.random();
  switch (random.below(12)) {
    case 0:
      return any_heap().declare_group();
    case 1:
      return any_heap().change_pools();
    case 2:
      return any_heap().enable_peer();
    case 3:
      return other_calls_.change_limits(any_heap());
    case 4:
      return other_calls_.inspect(any_heap());
    case 5:
      return other_calls_.use_brief_allocator();
    case 6:
      return other_calls_.change_streams();
    case 7:
      return change_pools();
    case 8:
      if (graphs_.count() > 2) graphs_.drop_any();
      return;
    case 9:
      return unified_.use_vector(any_heap());
    default:
      return unified_.step();
  }
}

/// Creates a pool, or releases what one caches, or closes one.
void mixed_program::change_pools() {
  rng& random = world_.random();
  if (pools_.size() < 3 && random.one_in(2)) return add_pools();
  if (pools_.empty()) return;
  const std::size_t index = random.below(pools_.size());
  pool_supplier& pool = *pools_[index];
  switch (random.below(4)) {
    case 0: {
      world_.log("trim " + pool.name());
      return static_cast<void>(
          faults_.accept(faults_.call("trim", [&] { return pool.trim(); }), "trim of a pool"));
    }
    case 1:
    case 2: {
      world_.log("empty_cache of " + pool.name());
      const auto done = faults_.call("empty_cache", [&] { return pool.empty_cache(); });
      return static_cast<void>(faults_.accept(done, "empty_cache of a pool"));
    }
    default:
      break;
  }
  blocks_.free_all(pool);
  if (blocks_.uses(pool)) return;
  world_.log("close " + pool.name());
  world_.expect_ok(pool.close(), "close of a pool");
  pools_.erase(pools_.begin() + static_cast<std::ptrdiff_t>(index));
}

void mixed_program::add_pools() {
  rng& random = world_.random();
  const std::size_t device = random.below(device_count);
  const weir::device gpu = world_.gpu(device);
  const std::string number = std::to_string(pool_numbers_++) + "@" + std::to_string(device);
  switch (random.below(3)) {
    case 0: {
      world_.log("create bin_pool " + number);
      auto made = faults_.call("bin_pool::create", [&] { return bin_pool::create(gpu); });
      if (!faults_.accept(made, "bin_pool::create")) return;
      pools_.push_back(std::make_unique<block_pool_supplier<bin_pool>>("bin_pool " + number, device,
                                                                       *std::move(made)));
      return;
    }
    case 1: {
      world_.log("create pinned_pool " + number);
      auto made = faults_.call("pinned_pool::create", [&] { return pinned_pool::create(gpu); });
      if (!faults_.accept(made, "pinned_pool::create")) return;
      pools_.push_back(std::make_unique<block_pool_supplier<pinned_pool>>(
          "pinned_pool " + number, device, *std::move(made)));
      return;
    }
    default: {
      world_.log("create stream_pool " + number);
      auto made = faults_.call("stream_pool::create", [&] { return stream_pool::create(gpu); });
      if (!faults_.accept(made, "stream_pool::create", {errc::out_of_memory})) return;
      pools_.push_back(std::make_unique<stream_pool_supplier>("stream_pool " + number, device,
                                                              *std::move(made)));
    }
  }
}

void mixed_program::check(bool always) {
  if (world_.failed()) return;
  captures_.check();
  blocks_.check_peers();
  if (!always && !world_.random().one_in(4)) return;
  for (const auto& each : heaps_) each->check();
}

void mixed_program::end_captures(std::size_t thread) {
  lanes_.enter_thread(thread);
  if (!world_.failed()) captures_.end_all_of_thread();
  if (!world_.failed()) lanes_.leave_thread();
}

void mixed_program::finish(std::size_t thread) {
  lanes_.enter_thread(thread);
  faults_.stop();
  if (world_.failed()) return;
  world_.expect(!captures_.running(), "a capture was not ended");
  lanes_.synchronize_all();
  unified_.clear();
  for (const auto& each : heaps_) {
    graphs_.drop_all(*each);
    if (world_.random().one_in(2)) suspension_.resume_all(*each);
  }
  for (const auto& each : heaps_) {
    blocks_.free_all(*each);
    each->drop_pools();
  }
  for (const auto& each : pools_) blocks_.free_all(*each);
  if (world_.failed()) return;
  world_.expect(blocks_.count() == 0, "blocks are left that the program could not free");
  world_.machine().run_until_idle();
  check(true);
  for (const auto& each : heaps_) each->check_empty();
  pools_.clear();
  for (const auto& each : heaps_) world_.expect_ok(each->memory().close(), "close at the end");
  heaps_.clear();
  // A pool of the driver's gives back then what was freed in stream order.
  lanes_.synchronize_all();
  for (std::size_t i = 0; i < device_count; ++i)
    if (world_.used(i) != world_.used_before(i))
      world_.fail("device " + std::to_string(i) + " has not got everything back");
}

}  // namespace weir::programs_test
