// Frees under heap_debug: the declared streams are waited for, the block is inspected, and what was
// damaged is told.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/central_heap.hpp"
#include "observe/misuse.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// Whether the free says so: the device will not be asked again, nor the allocator used. All else
/// (a driver in trouble, no host memory) delays the inspection only, and a caller that was told of
/// it and tried again would free twice.
bool is_final(const error& reason) noexcept {
  return reason.code == errc::device_lost || reason.code == errc::driver_gone ||
         reason.code == errc::closed;
}

}  // namespace

/// Whatever fails in here, the block is freed: what cannot be waited for now (a capture, a driver
/// in trouble, no host memory) is inspected in a later call, or when the allocator is closed.
result<void> central_heap::free_checked(block_index index, stream_slot slot,
                                        driver_access& driver) {
  block& block = blocks_[index];
  awaited_free own{.address = block.address};
  order::pending_frees::waiting waits = pending_.forget(index, slot, order_);
  std::vector<stamp> declared;
  block.recorded = false;
  block.become(block_kind::pending);
  block.stream = slot;
  foreign_uses_.join(index, order_);
  bool waitable = true;
  try {
    declared = waits.others;
    declared.push_back(waits.freed);
    waits.others = declared;  // pending until all of them are done
  } catch (const std::bad_alloc&) {
    waitable = false;
  }
  pending_.add(std::move(waits));
  accounts_.pending(block.account, block.size() - block.out.waste, block.size());
  if (!waitable) return {};
  result<void> outcome;
  awaited_frees_.push_back(&own);  // there is room
  try {
    outcome = wait_for(declared, driver);
    if (outcome && usable()) {
      static_cast<void>(progress_.retire_all());
      outcome = inspect_freed(driver);
    }
  } catch (const std::bad_alloc&) {
    outcome = no_host_memory();
  }
  if (pools_to_sweep_ && usable()) pool_registry_.sweep(driver);
  std::erase(awaited_frees_, &own);
  if (own.damaged) return *std::move(own.damaged);
  if (!outcome && !is_final(outcome.error())) return {};
  return outcome;
}

result<void> central_heap::wait_for(const std::vector<stamp>& declared, driver_access& driver) {
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
    if (order_.stream_completed(each)) continue;
    auto behind = order_.event_behind(each.stream, driver.enter());
    if (!behind) outcome = std::move(behind).error();
    all = behind && *behind != nullptr;
    if (!all) break;
    waits.push_back({*std::move(behind), each});
  }
  if (all && !waits.empty()) {
    // What is waited for may need memory of this allocator on another thread.
    const auto still_usable = without_lock([&] {
      for (const wait& each : waits)
        if (outcome) outcome = each.behind->synchronize();
    });
    if (!still_usable && outcome) outcome = still_usable;
  }
  const bool reached = all && outcome;
  for (wait& each : waits)
    order_.done_waiting(std::move(each.behind), reached ? std::optional{each.until} : std::nullopt);
  return outcome;
}

result<void> central_heap::inspect_freed(driver_access& driver) {
  WEIR_TRY(driver.entered());
  if (!pending_.empty()) WEIR_TRY(progress_.poll_streams(driver, no_stream));
  result<void> outcome;
  for (const auto& each : pools_) {
    if (each->memory == nullptr) continue;
    auto inspected = each->memory->inspect(driver.enter());
    if (!inspected && outcome) outcome = std::move(inspected);
  }
  return outcome;
}

/// Called by stores, which need the lock themselves.
void central_heap::on_damage(const placement::damage& found) noexcept {
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
      std::find_if(awaited_frees_.begin(), awaited_frees_.end(),
                   [&](const awaited_free* each) { return each->address == found.block; });
  if (awaited == awaited_frees_.end() || found.after_free) return report_error(told);
  auto& known = (*awaited)->damaged;
  if (!known) {
    known = std::move(told);
  } else {
    report_error(told);  // the other end is damaged, too
  }
}

}}}  // namespace weir::v0::heap
