// SPDX-License-Identifier: Apache-2.0
// Which decisions the stores make, step by step, pinned by digests: seeded random programs are
// played against every kind of store, and all that can be seen of each step is compared with what
// decisions.txt says. The other tests of this folder say what must be true; this one says that
// nothing has changed.
//
// With WEIR_WRITE_DOCUMENTS set the file is written anew. A change of policy renews it, on purpose
// and in the same commit; a change that was meant to change no decision must leave it as it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "order/rng.hpp"
#include "order/stream_order.hpp"
#include "placement/backing_store.hpp"
#include "placement/paper_driver.hpp"
#include "support/pinned_file.hpp"
#include "support/sizes.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::placement_test { namespace {

using namespace weir::placement;
using order_test::rng;
using testing_support::gib;
using testing_support::kib;
using testing_support::mib;

constexpr std::uint64_t stretch_length = 100;  // steps that share a line of the file

/// How often requests are of which size; the sum does not matter.
struct size_mix {
  std::uint64_t small = 0;   // up to 1 MiB, every power of two as often as the next
  std::uint64_t middle = 0;  // up to 10 MiB
  std::uint64_t large = 0;   // up to 60 MiB, half of them in whole slots
  std::uint64_t huge = 0;    // up to 600 MiB
};
constexpr size_mix mixed{.small = 5, .middle = 3, .large = 3, .huge = 0};
constexpr size_mix mostly_small{.small = 12, .middle = 2, .large = 1, .huge = 0};
constexpr size_mix mostly_large{.small = 1, .middle = 2, .large = 6, .huge = 2};
constexpr size_mix slots{.small = 1, .middle = 6, .large = 1, .huge = 0};

/// Who plays what, on what kind of device.
struct program {
  std::string name;
  store_traits traits;
  size_mix sizes = mixed;
  std::size_t different = 0;       // sizes that come again and again; 0: any number
  std::uint64_t live = 400 * mib;  // about as much is handed out at most
  std::uint64_t steps = 800;
  std::size_t streams = 2;
  std::uint32_t pools = 1;          // stores that share the context
  std::uint64_t device = 64 * gib;  // what the device says that it has
  std::uint64_t memory = 64 * gib;  // what the driver gives
  std::uint64_t limit = 0;          // what the stores may reserve; 0: no limit
  std::uint64_t granularity = 2 * mib;
  std::uint64_t most_addresses = 0;  // of a reservation; 0: any
  bool trouble = false;              // calls of the driver fail now and then
  bool sourced = false;              // segments come from a memory_source, which has its moods
  bool unmap_at_once = false;
  bool queues_waits = true;
};

void PrintTo(const program& printed, std::ostream* to) { *to << printed.name; }

constexpr auto balanced = placement_policy::balanced;
constexpr auto throughput = placement_policy::throughput;
constexpr auto compact = placement_policy::compact;
constexpr auto never_move = placement_policy::never_move;
constexpr auto classic = placement_policy::classic;
constexpr auto expandable = placement_policy::classic_expandable;

const std::vector<program>& programs() {
  static const std::vector<program> all = {
      // Plenty of memory.
      {.name = "balanced", .traits = {.policy = balanced}, .streams = 3},
      {.name = "balanced_alone", .traits = {.policy = balanced}, .streams = 1},
      {.name = "balanced_large",
       .traits = {.policy = balanced},
       .sizes = mostly_large,
       .live = 6 * gib},
      {.name = "throughput", .traits = {.policy = throughput}, .live = 1 * gib, .streams = 3},
      {.name = "throughput_large",
       .traits = {.policy = throughput},
       .sizes = mostly_large,
       .live = 6 * gib},
      {.name = "compact", .traits = {.policy = compact}, .streams = 3},
      {.name = "compact_small", .traits = {.policy = compact}, .sizes = mostly_small},
      {.name = "compact_slots", .traits = {.policy = compact}, .sizes = slots, .steps = 1200},
      {.name = "compact_rounds",
       .traits = {.policy = compact},
       .different = 8,
       .live = 250 * mib,
       .steps = 1200,
       .streams = 1},
      {.name = "balanced_rounds",
       .traits = {.policy = balanced},
       .sizes = mostly_large,
       .different = 10,
       .live = 2 * gib,
       .steps = 1200},
      {.name = "balanced_crowd",
       .traits = {.policy = balanced},
       .different = 6,
       .live = 250 * mib,
       .steps = 1200,
       .streams = 4},
      {.name = "throughput_rounds",
       .traits = {.policy = throughput},
       .sizes = mostly_large,
       .different = 10,
       .live = 2 * gib,
       .steps = 1200},
      {.name = "never_move", .traits = {.policy = never_move}, .streams = 3},
      {.name = "never_move_large",
       .traits = {.policy = never_move},
       .sizes = mostly_large,
       .live = 6 * gib},
      {.name = "unmoved", .traits = {.policy = balanced, .moves = false}},
      {.name = "unmoved_classic",
       .traits = {.policy = classic, .moves = false, .takes_addresses = true}},
      {.name = "exportable", .traits = {.policy = balanced, .exportable = true}},
      {.name = "one_slot_handles",
       .traits = {.policy = balanced, .exportable = true, .one_slot_handles = true}},
      {.name = "without_waits", .traits = {.policy = compact}, .streams = 3, .queues_waits = false},
      {.name = "unmapped_at_once", .traits = {.policy = compact}, .unmap_at_once = true},
      {.name = "coarse", .traits = {.policy = balanced}, .granularity = 8 * mib},
      // Little memory.
      {.name = "balanced_short",
       .traits = {.policy = balanced},
       .live = 700 * mib,
       .steps = 1200,
       .limit = 500 * mib},
      {.name = "balanced_short_alone",
       .traits = {.policy = balanced},
       .sizes = mostly_small,
       .live = 120 * mib,
       .steps = 1200,
       .streams = 1,
       .limit = 80 * mib},
      {.name = "balanced_nearly_short",
       .traits = {.policy = balanced},
       .sizes = mostly_large,
       .live = 2 * gib,
       .limit = 1800 * mib},
      {.name = "throughput_short",
       .traits = {.policy = throughput},
       .live = 700 * mib,
       .memory = 500 * mib},
      {.name = "compact_short",
       .traits = {.policy = compact},
       .sizes = mostly_small,
       .live = 150 * mib,
       .steps = 1200,
       .streams = 3,
       .device = 128 * mib,
       .memory = 128 * mib},
      {.name = "compact_short_slots",
       .traits = {.policy = compact},
       .sizes = slots,
       .live = 150 * mib,
       .steps = 1200,
       .limit = 120 * mib},
      {.name = "never_move_short",
       .traits = {.policy = never_move},
       .live = 700 * mib,
       .limit = 500 * mib},
      {.name = "coarse_short",
       .traits = {.policy = balanced},
       .live = 700 * mib,
       .limit = 500 * mib,
       .granularity = 8 * mib},
      {.name = "pools_short",
       .traits = {.policy = balanced},
       .live = 700 * mib,
       .pools = 2,
       .limit = 500 * mib},
      {.name = "few_addresses",
       .traits = {.policy = compact},
       .sizes = slots,
       .live = 120 * mib,
       .steps = 1200,
       .device = 128 * mib,
       .memory = 2 * gib,
       .most_addresses = 300 * mib},
      {.name = "few_addresses_large",
       .traits = {.policy = throughput},
       .sizes = mostly_large,
       .live = 5 * gib,
       .steps = 1200,
       .device = 8 * gib,
       .memory = 8 * gib,
       .most_addresses = 9 * gib},
      // A driver that refuses.
      {.name = "balanced_trouble", .traits = {.policy = balanced}, .steps = 1200, .trouble = true},
      {.name = "compact_trouble",
       .traits = {.policy = compact},
       .sizes = slots,
       .steps = 1200,
       .trouble = true},
      {.name = "short_trouble",
       .traits = {.policy = balanced},
       .live = 700 * mib,
       .steps = 1200,
       .limit = 500 * mib,
       .trouble = true},
      {.name = "at_once_trouble",
       .traits = {.policy = compact},
       .trouble = true,
       .unmap_at_once = true},
      // PyTorch's segments.
      {.name = "classic", .traits = {.policy = classic}, .steps = 1200, .streams = 3},
      {.name = "classic_small", .traits = {.policy = classic}, .sizes = mostly_small},
      {.name = "classic_short",
       .traits = {.policy = classic},
       .live = 700 * mib,
       .pools = 2,
       .limit = 500 * mib},
      {.name = "classic_trouble", .traits = {.policy = classic}, .trouble = true},
      {.name = "expandable", .traits = {.policy = expandable}, .steps = 1200, .streams = 3},
      {.name = "expandable_small", .traits = {.policy = expandable}, .sizes = mostly_small},
      {.name = "expandable_short",
       .traits = {.policy = expandable},
       .live = 700 * mib,
       .steps = 1200,
       .memory = 500 * mib},
      {.name = "expandable_limited",
       .traits = {.policy = expandable},
       .live = 700 * mib,
       .device = 600 * mib,
       .limit = 500 * mib},
      {.name = "expandable_coarse", .traits = {.policy = expandable}, .granularity = 8 * mib},
      {.name = "expandable_trouble",
       .traits = {.policy = expandable},
       .steps = 1200,
       .trouble = true},
      {.name = "segments",
       .traits = {.policy = balanced, .exportable = true, .segments = true},
       .steps = 1200},
      {.name = "segments_whole",
       .traits = {.policy = balanced, .segments = true, .splits = false},
       .steps = 1200},
      {.name = "segments_trouble",
       .traits = {.policy = balanced, .segments = true},
       .trouble = true},
      {.name = "segments_coarse",
       .traits = {.policy = balanced, .exportable = true, .segments = true},
       .granularity = 8 * mib},
      {.name = "segments_sourced",
       .traits = {.policy = balanced, .segments = true},
       .steps = 1200,
       .sourced = true},
      {.name = "segments_sourced_whole",
       .traits = {.policy = balanced, .segments = true, .splits = false},
       .sourced = true},
  };
  return all;
}

/// Gives addresses that nothing is behind, from the top down. Every few calls it has none, or gives
/// what it must not give, or throws; every few segments it does not take back at once.
class moody_source final : public memory_source {
 public:
  explicit moody_source(digest& told) : told_{told} {}

  result<void*> allocate(bytes size, const stream_ref& /*stream*/) override {
    ++asked_;
    told_.add(size.count());
    if (asked_ % 29 == 0) throw std::runtime_error{"no mood"};
    if (asked_ % 23 == 0) throw std::bad_alloc{};
    if (asked_ % 19 == 0) return reinterpret_cast<void*>(next_);  // given away already
    if (asked_ % 17 == 0) return reinterpret_cast<void*>(next_ - 3 * gib + unit / 2);
    if (asked_ % 13 == 0) return errc::no_device;
    if (asked_ % 11 == 0) return errc::out_of_memory;
    if (asked_ % 7 == 0) return nullptr;
    next_ -= size.count() + (asked_ % 2 == 0 ? 0 : 4 * mib);
    return reinterpret_cast<void*>(next_);
  }
  result<void> deallocate(void* segment, bytes size) override {
    told_.add(reinterpret_cast<std::uint64_t>(segment));
    told_.add(size.count());
    ++returned_;
    if (returned_ % 7 == 0) throw std::runtime_error{"not now"};
    if (returned_ % 5 == 0) return errc::not_ready;
    return {};
  }

 private:
  digest& told_;
  std::uint64_t next_ = std::uint64_t{1} << 45;
  std::uint64_t asked_ = 0;
  std::uint64_t returned_ = 0;
};

/// Plays one program: a device, its streams and its stores, and the dice that say what comes next.
class player final : event_sink {
 public:
  explicit player(const program& plays)
      : program_{plays}, dice_{seed_of(plays.name)}, machine_{make_machine(plays)} {
    for (std::size_t i = 0; i < plays.streams; ++i) {
      streams_.push_back(stream::create(gpu_).value());
      slots_.push_back(order_.slot_of(streams_.back(), bound_).value());
    }
    if (plays.limit != 0) shared_.reserved_limit = plays.limit;
    if (plays.sourced) source_ = std::make_shared<moody_source>(digest_);
    for (std::uint32_t pool = 0; pool < plays.pools; ++pool) open(pool);
  }

  /// A line of the file for each stretch of steps, and one for all of it.
  std::vector<std::string> play() {
    std::vector<std::string> lines;
    for (number_ = 0; number_ < program_.steps; ++number_) {
      step();
      look();
      if ((number_ + 1) % stretch_length != 0) continue;
      std::ostringstream line;
      line << program_.name << " " << number_ + 1 << " " << std::hex << digest_.value();
      lines.push_back(line.str());
    }
    lines.push_back(program_.name + " " + summary());
    return lines;
  }
  /// What was done in the steps of the stretch that ends with this one, for who has to find out.
  [[nodiscard]] std::string story(std::uint64_t end) const {
    std::string told;
    for (const auto& [at, text] : story_)
      if (at >= end - stretch_length && at < end) told += std::to_string(at) + " " + text + "\n";
    return told;
  }
  /// Gives everything back; whatever the program did, nothing is left then.
  void finish() {
    driver_.clear_faults();
    for (auto& each : stores_) {
      const auto closed = each->close(bound_);
      if (!program_.trouble && !program_.sourced) {
        EXPECT_TRUE(closed);
      }
      EXPECT_EQ(each->reserved(), 0u);
      EXPECT_EQ(each->handed_out(), 0u);
      EXPECT_EQ(each->check(), "");
    }
    stores_.clear();
    EXPECT_EQ(blocks_.in_use(), 0u);
    EXPECT_EQ(shared_.reserved, 0u);
    if (!program_.trouble) {
      EXPECT_TRUE(driver_.is_empty());
    }
  }

 private:
  struct living {
    block_index index = no_block;
    std::size_t store = 0;
    stamp freed{};  // of one that waits to be taken back
  };
  using reach = backing_store::reach;

  static std::uint64_t seed_of(const std::string& name) {
    digest seed;
    seed.add(name);
    return seed.value();
  }
  static std::shared_ptr<sim::machine> make_machine(const program& plays) {
    sim::machine_options chosen;
    chosen.devices = {sim::device_spec{.capacity = bytes{plays.device},
                                       .context_overhead = bytes{16 * mib},
                                       .granularity = bytes{plays.granularity}}};
    chosen.mode = sim::progress::manual;
    chosen.check_hazards = false;
    chosen.back_memory = false;
    return sim::machine::create(chosen).value();
  }

  void on_event(const memory_event& event) noexcept override {
    digest_.add(name(event.kind));
    digest_.add(event.pool.number());
    digest_.add(order_.known(event.stream));
    digest_.add(order_.known(event.other));
    digest_.add(event.address);
    digest_.add(event.other_address);
    digest_.add(event.size);
  }

  void open(std::uint32_t pool) {
    store_traits traits = program_.traits;
    traits.source = source_;
    stores_.insert(stores_.begin() + pool,
                   make_backing_store(shared_, pool_id{pool}, traits, bound_).value());
  }
  template <class Result>
  void note(const Result& outcome) {
    digest_.add(outcome ? std::string_view{"done"} : name(outcome.code()));
  }
  void tell(const std::string& text) { story_.emplace_back(number_, text); }

  // --- What comes next --------------------------------------------------------------------------

  void step() {
    if (number_ % 60 == 0) aim_ = program_.live / 8 * (1 + dice_.below(8));
    if (program_.trouble && dice_.one_in(12)) plan_trouble();
    const std::uint64_t chance = dice_.below(100);
    if (chance < 4) return work();
    if (chance < 9) return rest(any_slot());
    if (chance < 13) return release();
    if (chance < 15) return free_late();
    if (chance < 17) return allocate_at();
    if (chance < 18) return rarity();
    const bool grows = held_ < aim_ ? !dice_.one_in(4) : dice_.one_in(4);
    if (grows || living_.empty()) return allocate();
    free_some();
  }

  void rarity() {
    switch (dice_.below(8)) {
      case 0:
        return pause();
      case 1:
        return grant();
      case 2:
        return reopen();
      case 3:
        tell("forgets the peaks");
        shared_.reserved_peak = shared_.reserved;
        for (auto& each : stores_) each->reset_peak();
        return;
      case 4:
        return expect_capture();
      case 5:
        return change_limit();
      default:
        tell("lets all work happen");
        machine_->run_until_idle();
    }
  }

  [[nodiscard]] stream_slot any_slot() { return slots_[dice_.below(slots_.size())]; }
  [[nodiscard]] std::size_t any_store() { return dice_.below(stores_.size()); }

  /// A size that is new, that was there before, or that a free piece has, more or less.
  [[nodiscard]] std::uint32_t any_units(const backing_store& in) {
    std::uint64_t size = 0;
    const std::uint64_t way = dice_.below(8);
    if (way == 0) {
      pool_snapshot now;
      in.describe(now);
      std::erase_if(now.blocks, [](const block_info& each) {
        return each.state == block_state::live || each.size.count() > 600 * mib;
      });
      if (!now.blocks.empty()) {
        const std::size_t first = dice_.below(now.blocks.size());
        size = now.blocks[first].size.count();
        if (first + 1 < now.blocks.size() && dice_.one_in(2) &&
            now.blocks[first + 1].address == now.blocks[first].address + size)
          size += now.blocks[first + 1].size.count();
        size += dice_.below(3) * unit;
        size -= std::min(unit, size - unit);
      }
    }
    const bool enough = program_.different != 0 && former_.size() >= program_.different;
    if (size == 0 && (way < 4 || enough) && !former_.empty())
      size = former_[dice_.below(former_.size())];
    if (size == 0) {
      size = fresh_size();
      former_.push_back(size);
    }
    return static_cast<std::uint32_t>(units_for(bytes{size}));
  }
  /// About where a rule of some policy begins or ends to hold.
  [[nodiscard]] std::uint64_t threshold() {
    const std::uint64_t size = std::min(
        program_.live / 4, dice_.any_of({mib / 2, mib, 2 * mib, 4 * mib, 10 * mib, 12 * mib,
                                         16 * mib, 20 * mib, 32 * mib, 64 * mib, 256 * mib}));
    switch (dice_.below(5)) {
      case 0:
        return size + unit;
      case 1:
        return size - unit;
      case 2:  // little is left of its last slot
        return size > 2 * program_.granularity ? size - program_.granularity / 8 : size;
      default:
        return size;
    }
  }
  [[nodiscard]] std::uint64_t fresh_size() {
    const size_mix& mix = program_.sizes;
    if (dice_.one_in(8)) return threshold();
    std::uint64_t kind = dice_.below(mix.small + mix.middle + mix.large + mix.huge);
    if (kind < mix.small) return dice_.magnitude(mib);
    kind -= mix.small;
    if (kind < mix.middle) {
      const std::uint64_t size = mib + dice_.below(9 * mib);
      return dice_.one_in(3) ? size / (512 * kib) * (512 * kib) : size;
    }
    kind -= mix.middle;
    if (kind < mix.large) {
      const std::uint64_t size = 10 * mib + dice_.below(50 * mib);
      return dice_.one_in(2) ? size / (2 * mib) * (2 * mib) : size;
    }
    return 60 * mib + dice_.below(540) * mib;
  }

  // --- Requests ---------------------------------------------------------------------------------

  void allocate() {
    const std::size_t store = any_store();
    request wanted{.units = any_units(*stores_[store]), .stream = any_slot()};
    if (dice_.one_in(6)) wanted.alignment = std::uint32_t{1} << dice_.below(15);  // up to 8 MiB
    const block_index room = find_room(*stores_[store], wanted);
    std::ostringstream text;
    text << "asks " << store << " for " << wanted.units * unit << " aligned to "
         << wanted.alignment * unit << " on " << wanted.stream << ": ";
    keep(room, store, text);
  }

  /// In the order in which the heap asks; now and then from the middle on.
  block_index find_room(backing_store& in, const request& wanted) {
    const std::uint64_t start = dice_.one_in(6) ? dice_.below(6) : 0;
    block_index room = no_block;
    const auto got = [&](result<block_index> answer) {
      note(answer);
      room = answer ? *answer : no_block;
      return room != no_block;
    };
    if (start < 1 && got(in.fit(wanted))) return room;
    if (start < 2 && dice_.one_in(2)) {
      rest(wanted.stream);
      if (got(in.fit(wanted))) return room;
    }
    const bool prefers = in.prefers_growth(wanted);
    digest_.add(prefers ? 1 : 0);
    if (start < 3 && prefers && got(in.grow(wanted, bound_))) return room;
    if (start < 4 && got(in.rearrange(wanted, reach::usable, bound_))) return room;
    if (start < 5 && program_.queues_waits && got(in.rearrange(wanted, reach::behind_wait, bound_)))
      return room;
    if (got(in.grow(wanted, bound_))) return room;
    for (auto& each : stores_) {
      if (each.get() == &in || !went(each->release(to_bytes(wanted.units), bound_))) continue;
      if (got(in.grow(wanted, bound_))) return room;
    }
    if (went(in.release(bytes::max(), bound_)) && got(in.grow(wanted, bound_))) return room;
    if (!dice_.one_in(3)) return no_block;
    machine_->run_until_idle();
    rest(no_stream);
    if (got(in.fit(wanted)) || got(in.grow(wanted, bound_))) return room;
    return no_block;
  }
  bool went(result<bytes> released) {
    note(released);
    if (released) digest_.add(released->count());
    return released && *released != bytes{};
  }

  void keep(block_index room, std::size_t store, std::ostringstream& text) {
    if (room == no_block) {
      text << "nothing";
    } else {
      block& fresh = blocks_[room];
      text << std::hex << "0x" << fresh.address;
      fresh.out.waste = static_cast<std::uint32_t>(dice_.below(unit));
      living_.push_back({room, store, {}});
      held_ += fresh.size();
      digest_.add(fresh.address);
      digest_.add(fresh.units);
      digest_.add(fresh.stream);
      if (const auto under = stores_[store]->handles_under(room); under) {
        for (const vmm::physical& each : under->handles) digest_.add(each.handle);
        digest_.add(under->offset.count());
      } else {
        note(under);
      }
    }
    tell(text.str());
  }

  /// At an address of some block, hole or run, or a little above.
  void allocate_at() {
    const std::size_t store = any_store();
    pool_snapshot now;
    stores_[store]->describe(now);
    std::uint64_t address = std::uint64_t{1} << 40;
    if (!now.blocks.empty() && !dice_.one_in(16)) {
      const block_info& near = now.blocks[dice_.below(now.blocks.size())];
      address = near.address + (dice_.one_in(2) ? 0 : dice_.below(near.size.count() / unit) * unit);
    }
    const request wanted{.units = static_cast<std::uint32_t>(units_for(bytes{fresh_size()})),
                         .stream = any_slot()};
    const auto answer = stores_[store]->fit_at(address, wanted);
    note(answer);
    std::ostringstream text;
    text << "asks " << store << " for " << wanted.units * unit << " at 0x" << std::hex << address
         << std::dec << " on " << wanted.stream << ": ";
    keep(answer ? *answer : no_block, store, text);
  }

  // --- Frees ------------------------------------------------------------------------------------

  void free_some() {
    const std::uint64_t count = dice_.one_in(10) ? 1 + dice_.below(20) : 1;
    for (std::uint64_t i = 0; i < count && !living_.empty(); ++i) {
      // The newest as often as any: a stack comes and goes.
      const std::size_t chosen = dice_.one_in(2) ? living_.size() - 1 : dice_.below(living_.size());
      living freed = living_[chosen];
      living_.erase(living_.begin() + static_cast<std::ptrdiff_t>(chosen));
      block& old = blocks_[freed.index];
      held_ -= old.size();
      const stream_slot stream = dice_.one_in(6) ? any_slot() : old.stream;
      stores_[freed.store]->prepare_free(stream);
      if (dice_.one_in(3)) launch(stream);
      freed.freed = order_.now(stream);
      if (dice_.one_in(12)) freed.freed = {};  // nothing used it
      std::ostringstream text;
      text << "frees " << old.size() << " at 0x" << std::hex << old.address << std::dec << " on "
           << freed.freed.stream;
      if (dice_.one_in(10)) {
        old.become(dice_.one_in(2) ? block_kind::pending : block_kind::thread_cached);
        late_.push_back(freed);
        text << ", later";
      } else {
        stores_[freed.store]->free(freed.index, freed.freed);
      }
      tell(text.str());
    }
  }
  void free_late() {
    tell("takes back what waited");
    for (const living& each : late_) stores_[each.store]->free(each.index, each.freed);
    late_.clear();
  }

  // --- What streams do --------------------------------------------------------------------------

  void launch(stream_slot on) {
    const auto at = std::find(slots_.begin(), slots_.end(), on) - slots_.begin();
    const stream& chosen = streams_[static_cast<std::size_t>(at)];
    EXPECT_TRUE(machine_->launch(chosen.handle(), "work", {}));
  }
  void work() {
    const std::uint64_t steps = dice_.below(6);
    tell("lets work happen");
    for (std::uint64_t i = 0; i < steps; ++i) static_cast<void>(machine_->step());
  }
  /// What streams freed and have done becomes everybody's.
  void rest(stream_slot spared) {
    const auto closed =
        dice_.one_in(3) ? order_.close(any_slot(), bound_) : order_.close_others(spared, bound_);
    EXPECT_TRUE(closed);
    EXPECT_TRUE(order_.poll(bound_));
    for (auto& each : stores_)
      for (const stream_slot slot : slots_) each->retire(slot);
    tell("looks how far streams are");
  }
  void pause() {
    tell(order_.paused() ? "resumes" : "pauses");
    order_.paused() ? order_.resume() : order_.pause();
  }
  void expect_capture() {
    const stream_slot slot = any_slot();
    const bool expected = dice_.one_in(2);
    tell("expects a capture or its end on " + std::to_string(slot));
    order_.expect_capture(slot, expected);
  }

  // --- What happens to a store -------------------------------------------------------------------

  void release() {
    const std::uint64_t most = dice_.any_of(
        {unit, 2 * mib, 4 * mib + unit, 20 * mib, 20 * mib, 50 * mib, bytes::max().count()});
    const std::size_t store = any_store();
    tell("releases " + std::to_string(most) + " of " + std::to_string(store));
    static_cast<void>(went(stores_[store]->release(bytes{most}, bound_)));
  }
  void grant() {
    vmm::access peer = vmm::access_for(gpu_);
    peer.location.id = static_cast<int>(1 + dice_.below(3));
    tell("grants access to device " + std::to_string(peer.location.id));
    const std::size_t store = any_store();
    const auto granted = stores_[store]->grant(peer, bound_);
    note(granted);
    if (granted && shared_.rights.size() < 4) shared_.rights.push_back(peer);
  }
  void reopen() {
    if (!dice_.one_in(2)) return;
    const std::size_t store = any_store();
    tell("closes " + std::to_string(store) + " and opens it again");
    const auto closed = stores_[store]->close(bound_);
    note(closed);
    EXPECT_EQ(stores_[store]->check(), "");
    const auto is_of = [&](const living& each) { return each.store == store; };
    std::erase_if(living_, is_of);
    std::erase_if(late_, is_of);
    held_ = 0;
    for (const living& each : living_) held_ += blocks_[each.index].size();
    stores_.erase(stores_.begin() + static_cast<std::ptrdiff_t>(store));
    open(static_cast<std::uint32_t>(store));
  }
  void change_limit() {
    if (program_.limit == 0) return;
    shared_.reserved_limit = program_.limit / 8 * (6 + dice_.below(4));
    tell("limit " + std::to_string(shared_.reserved_limit));
  }
  /// One call fails, or the two that leave a mapping behind.
  void plan_trouble() {
    using call = paper_driver::call;
    const auto reason =
        dice_.one_in(2) ? driver::CUDA_ERROR_OUT_OF_MEMORY : driver::CUDA_ERROR_UNKNOWN;
    tell("trouble is coming");
    // An expandable segment would be refused that page for ever.
    if (program_.traits.policy != expandable && dice_.one_in(3)) {
      driver_.fail(call::set_access, 1 + dice_.below(3), reason);
      driver_.fail(call::unmap, 1, driver::CUDA_ERROR_UNKNOWN);
      return;
    }
    // Reservations are left alone: without addresses there is no store.
    const call which = dice_.any_of({call::allocate, call::free, call::create, call::release,
                                     call::map, call::unmap, call::set_access});
    driver_.fail(which, 1 + dice_.below(4), reason);
  }

  // --- What can be seen -------------------------------------------------------------------------

  void look() {
    for (const std::uint64_t each :
         {shared_.reserved, shared_.reserved_peak, shared_.refused_at, shared_.handles_created,
          shared_.handles_moved, shared_.handles_returned, shared_.handles_released,
          order_.waits_queued(), order_.events_recorded(), std::uint64_t{blocks_.in_use()}})
      digest_.add(each);
    for (const auto& each : stores_) look_at(*each);
  }
  void look_at(const backing_store& at) {
    for (const std::uint64_t each :
         {at.reserved(), at.reserved_peak(), at.handed_out(), at.fragments()})
      digest_.add(each);
    for (stream_slot slot = 0; slot < slots_.size() + 3; ++slot) {  // some that nobody has
      digest_.add(at.bound_to(slot));
      digest_.add(at.longest_fit(slot));
    }
    // To walk over everything is most of what this test costs.
    if (number_ % 4 != 0) return;
    pool_snapshot now;
    at.describe(now);
    digest_.add(now.in_segments ? 1 : 0);
    for (const block_info& each : now.blocks) {
      digest_.add(each.address);
      digest_.add(each.size.count());
      digest_.add(each.requested.count());
      digest_.add(static_cast<std::uint64_t>(each.state));
      digest_.add(order_.known(each.stream));
      digest_.add(each.pool.number());
    }
    for (const physical_info& each : now.physical) {
      digest_.add(each.address);
      digest_.add(each.size.count());
      digest_.add(each.number);
    }
    if (!now.blocks.empty()) look_up(at, now);
    if (number_ % 16 == 0) {
      EXPECT_EQ(at.check(), "") << program_.name << ", step " << number_;
    }
  }
  /// What lies at the ends of one block and of all.
  void look_up(const backing_store& at, const pool_snapshot& now) {
    const block_info& one = now.blocks[number_ % now.blocks.size()];
    const std::uint64_t low = one.address;
    const std::uint64_t high = low + one.size.count();
    const std::uint64_t begin = now.blocks.front().address;
    const std::uint64_t end = now.blocks.back().address + now.blocks.back().size.count();
    for (const std::uint64_t address : {low, high - 1, high, begin - 1, end}) {
      const block_index index = at.block_over(address);
      digest_.add(index == no_block ? 0 : blocks_[index].address);
    }
  }
  [[nodiscard]] std::string summary() const {
    std::ostringstream text;
    text << "made " << shared_.handles_created << " moved " << shared_.handles_moved << " returned "
         << shared_.handles_returned << " released " << shared_.handles_released << " waits "
         << order_.waits_queued() << " refused " << driver_.refused() << " peak "
         << shared_.reserved_peak / mib << " live " << held_ / mib;
    return text.str();
  }

  const program& program_;
  rng dice_;
  digest digest_;
  std::shared_ptr<sim::machine> machine_;
  paper_driver driver_{machine_->driver(), {program_.memory, program_.most_addresses}, digest_};
  std::shared_ptr<runtime> simulated_ =
      runtime::open_table(driver_.calls(), "on paper", machine_).value();
  device gpu_ = simulated_->device(device_id{0}).value();
  context_scope bound_{gpu_};
  block_store blocks_;
  order::stream_order order_{gpu_};
  placement_context shared_{.device = gpu_,
                            .blocks = blocks_,
                            .order = order_,
                            .unmap_at_once = program_.unmap_at_once,
                            .queues_waits = program_.queues_waits,
                            .observer = this};
  std::vector<stream> streams_;
  std::vector<stream_slot> slots_;
  std::shared_ptr<moody_source> source_;
  std::vector<std::unique_ptr<backing_store>> stores_;
  std::vector<living> living_;
  std::vector<living> late_;
  std::vector<std::uint64_t> former_;
  std::uint64_t held_ = 0;
  std::uint64_t aim_ = 0;
  std::uint64_t number_ = 0;
  std::vector<std::pair<std::uint64_t, std::string>> story_;
};

// --- The file ------------------------------------------------------------------------------------

class decisions : public ::testing::TestWithParam<program> {};

TEST_P(decisions, are_those_of_the_file) {
  static testing_support::pinned_file file{WEIR_DECISIONS};
  player plays{GetParam()};
  const std::vector<std::string> lines = plays.play();
  plays.finish();
  file.expect(GetParam().name, lines,
              [&](std::size_t line) { return plays.story((line + 1) * stretch_length); });
}

INSTANTIATE_TEST_SUITE_P(of, decisions, ::testing::ValuesIn(programs()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weir::placement_test
