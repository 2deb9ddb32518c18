// Choosing a machine and an allocator, and the last look at both.
#include "world.hpp"

#include "chance.hpp"
#include "heap/allocator_state.hpp"

namespace weir::order_test {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t overhead = 32 * mib;

/// The way to an allocator's inside: an explicit instantiation may name what is private.
std::shared_ptr<heap::allocator_state>& inside_of(caching_allocator& whole);
template <std::shared_ptr<heap::allocator_state> caching_allocator::*Inside>
struct door {
  friend std::shared_ptr<heap::allocator_state>& inside_of(caching_allocator& whole) {
    return whole.*Inside;
  }
};
template struct door<&caching_allocator::inside_>;

options choose_settings(chance& random, std::uint64_t capacity, const world_options& wanted) {
  using enum placement_policy;
  options chosen;
  chosen.heap_policy = random.any_of({balanced, balanced, balanced, throughput, throughput, compact,
                                      compact, compact, never_move, classic, classic_expandable});
  chosen.heap_thread_cache = bytes{random.any_of({4 * mib, 4 * mib, mib, mib / 16, 0 * mib})};
  chosen.heap_detect_captures = random.one_in(4);
  if (random.one_in(3)) chosen.heap_limit = bytes{capacity / 10 * (5 + random.below(5))};
  chosen.heap_unannounced_ends = random.one_in(6);
  chosen.heap_queued_waits = !random.one_in(8);
  chosen.heap_debug_unmap = random.one_in(8);
  // Either rule is enough for a program that declares its uses.
  const bool weaker = random.one_in(3) && wanted.discipline == discipline::declared;
  if (weaker) chosen.heap_crossing = crossing_rule::declared_uses;
  if (wanted.policy) chosen.heap_policy = *wanted.policy;
  if (wanted.ample) chosen.heap_limit = {};
  return chosen;
}

sim::machine_options choose_machine(chance& random, std::uint64_t seed, std::uint64_t capacity) {
  sim::machine_options chosen;
  chosen.seed = seed;
  // Where work happens only when somebody waits, streams stay behind and memory stays theirs.
  chosen.mode = random.one_in(2) ? sim::progress::manual : sim::progress::seeded;
  chosen.devices.front().capacity = bytes{capacity + overhead};
  chosen.devices.front().context_overhead = bytes{overhead};
  return chosen;
}

}  // namespace

world::world(std::uint64_t seed, world_options wanted) : wanted_{wanted} {
  chance random{seed ^ 0x776f726c64ULL};
  capacity_ = random.any_of({192 * mib, 256 * mib, 384 * mib, 512 * mib, 1024 * mib});
  if (wanted.ample) capacity_ = 32 * 1024 * mib;
  settings_ = choose_settings(random, capacity_, wanted);
  machine_ = sim::machine::create(choose_machine(random, seed, capacity_)).value();
  machine_->on_hazard(
      [faults = faults_](const sim::hazard& found) { faults->report("hazard: " + found.story()); });
  runtime_ = runtime::open_simulated(machine_).value();
  gpu_ = runtime_->device(device_id{0}).value();
  static_cast<void>(gpu_->memory_info());  // makes the context
  used_before_ = machine_->used(device_id{0});
  set_error_handler(
      [](const error& found, void* context) noexcept {
        static_cast<evidence*>(context)->report("reported: " + found.message());
      },
      faults_.get());
  memory_ = caching_allocator::create(*gpu_, settings_).value();
}

world::~world() {
  memory_.reset();
  set_error_handler(nullptr);
}

heap::allocator_state& world::inside() { return *inside_of(*memory_); }

std::string world::describe() const {
  return to_string(bytes{capacity_}) + ", " + to_string(settings_);
}

void world::check_invariants() {
  const memory_stats now = memory_->stats();
  expect(now.requested.current <= now.allocated.current, "requested > allocated");
  expect(now.allocated.current <= now.active.current, "allocated > active");
  expect(now.active.current <= now.reserved.current, "active > reserved");
}

/// What every pool holds, in a few words.
std::string world::picture() const {
  std::string all;
  for (const pool_snapshot& pool : memory_->snapshot().pools) {
    if (pool.stats.reserved.current == 0) continue;
    all += " [pool " + std::to_string(pool.id.number()) + " " + pool.name + ", " +
           to_string(bytes{pool.stats.reserved.current});
    for (const block_info& each : pool.blocks) {
      if (each.state == block_state::hole) continue;
      all += ", " + to_string(each.size) + " " + std::string{name(each.state)} + " of stream " +
             std::to_string(each.stream.number());
    }
    all += "]";
  }
  return all;
}

void world::check_end() {
  if (faults_->found()) return;
  const std::string wrong = inside().check();
  expect(wrong.empty(), wrong.c_str());
  expect(memory_->stats().blocks.current == 0, "all is freed, but blocks are live");
  // A graph goes when its last replay is over, and that may be on a stream that no memory waits
  // for.
  machine_->run_until_idle();
  if (!done(memory_->empty_cache(), "empty_cache at the end")) return;
  if (memory_->stats().reserved.current != 0)
    faults_->report("all is freed, but memory stays reserved:" + picture());
  expect(machine_->used(device_id{0}) == used_before_, "the device has not got everything back");
  if (faults_->found()) return;
  // What was given back can be had again.
  if (!done(memory_->set_limit(bytes::max()), "no limit")) return;
  if (!done(memory_->set_limit(tag{}, bytes::max()), "no limit of a tag")) return;
  const stream_ref legacy = stream_ref::legacy(*gpu_);
  const auto half = memory_->try_allocate(bytes{capacity_ / 2}, legacy);
  if (!done(half, "half of an empty device")) return;
  done(memory_->try_deallocate(*half, legacy), "its free");
  done(memory_->close(), "close");
  expect(machine_->used(device_id{0}) == used_before_, "close leaves memory behind");
}

}  // namespace weir::order_test
