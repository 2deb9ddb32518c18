// SPDX-License-Identifier: Apache-2.0
// Waiting for the streams that may use a freed block, inspecting it, and telling what was damaged.
#include "heap/checked_frees.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "observe/misuse.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// Whether the free says so: the device will not be asked again, nor the allocator used. All else
/// (a driver in trouble, no host memory) delays the inspection only, and a caller that was told of
/// it and tried again would free twice.
bool is_final(const error& reason) noexcept {
  return reason.code() == errc::device_lost || reason.code() == errc::driver_gone ||
         reason.code() == errc::closed;
}

}  // namespace

checked_frees::checked_frees(heap_core& core, stream_progress& progress, const inspector& inspector,
                             pool_registry& pools) noexcept
    : core_{core}, progress_{progress}, inspector_{inspector}, pools_{pools} {
  core_.placement_.damaged = this;
}

checked_frees::~checked_frees() { core_.placement_.damaged = nullptr; }

void checked_frees::prepare() {
  core_.mutex_.assert_held();
  awaited_.reserve(awaited_.size() + 1);
}

result<void> checked_frees::free(block_index index, stream_slot slot, driver_access& driver) {
  core_.mutex_.assert_held();
  block& block = core_.blocks_[index];
  awaited_free own{.address = block.address};
  order::pending_frees::waiting waits = core_.pending_.forget(index, slot, core_.order_);
  std::vector<stamp> declared;
  block.out.home = 0;
  block.become(block_kind::pending);
  block.stream = slot;
  core_.foreign_uses_.join(index, core_.order_);
  bool waitable = true;
  try {
    declared = waits.others;
    declared.push_back(waits.freed);
    waits.others = declared;  // pending until all of them are done
  } catch (const std::bad_alloc&) {
    waitable = false;
  }
  core_.pending_.add(std::move(waits));
  core_.accounts_.pending(block.account, block.size() - block.out.waste, block.size());
  if (!waitable) return {};
  result<void> outcome;
  awaited_.push_back(&own);  // there is room
  try {
    outcome = wait_for(declared, driver);
    if (outcome && core_.usable()) {
      static_cast<void>(progress_.retire_all());
      outcome = inspect_freed(driver);
    }
  } catch (const std::bad_alloc&) {
    outcome = no_host_memory();
  }
  if (core_.pools_to_sweep_ && core_.usable()) pools_.sweep(driver);
  std::erase(awaited_, &own);
  if (own.damaged) return *std::move(own.damaged);
  if (!outcome && !is_final(outcome.error())) return {};
  return outcome;
}

result<void> checked_frees::wait_for(const std::vector<stamp>& declared, driver_access& driver) {
  struct wait {
    std::shared_ptr<event> behind;
    stamp until;
  };
  std::vector<wait> waits;
  waits.reserve(declared.size());
  WEIR_TRY(driver.entered());
  result<void> outcome;
  bool all = true;  // whether all can be waited for
  for (const stamp each : declared) {
    if (core_.order_.stream_completed(each)) continue;
    auto behind = core_.order_.event_behind(each.stream, driver.enter());
    if (!behind) outcome = std::move(behind).error();
    all = behind && *behind != nullptr;
    if (!all) break;
    waits.push_back({*std::move(behind), each});
  }
  if (all && !waits.empty()) {
    // What is waited for may need memory of this allocator on another thread.
    const auto still_usable = core_.without_lock([&] {
      for (const wait& each : waits)
        if (outcome) outcome = each.behind->synchronize();
    });
    if (!still_usable && outcome) outcome = still_usable;
  }
  const bool reached = all && outcome;
  for (wait& each : waits)
    core_.order_.done_waiting(std::move(each.behind),
                              reached ? std::optional{each.until} : std::nullopt);
  return outcome;
}

result<void> checked_frees::inspect_freed(driver_access& driver) {
  core_.mutex_.assert_held();
  WEIR_TRY(driver.entered());
  if (!core_.pending_.empty()) WEIR_TRY(progress_.poll_streams(driver, no_stream));
  result<void> outcome;
  for (const auto& each : core_.pools_) {
    if (each->memory == nullptr) continue;
    auto inspected = each->memory->inspect(driver.enter());
    if (!inspected && outcome) outcome = std::move(inspected);
  }
  return outcome;
}

/// Called by stores, which need the lock themselves.
void checked_frees::on_damage(const placement::damage& found) noexcept {
  core_.mutex_.assert_held();
  observe::damaged_block about{
      .block = {.address = found.block, .size = bytes{found.requested}, .life = {}},
      .first = found.first,
      .last = found.last,
      .count = found.count,
      .expected = found.expected,
      .seen = {found.seen.data(), found.seen_count},
      .after_free = found.after_free};
  try {
    about.block.life = inspector_.life_of(found.block);
  } catch (const std::bad_alloc&) {  // then without
  }
  error told = observe::damaged(about);
  const auto awaited =
      std::find_if(awaited_.begin(), awaited_.end(),
                   [&](const awaited_free* each) { return each->address == found.block; });
  if (awaited == awaited_.end() || found.after_free) return report_error(told);
  auto& known = (*awaited)->damaged;
  if (!known) {
    known = std::move(told);
  } else {
    report_error(told);  // the other end is damaged, too
  }
}

}}}  // namespace weir::v0::heap
