// The history of one device, as torch records it.
#include "history.hpp"

#include <c10/util/ApproximateClock.h>

#include <stack>
#include <utility>

namespace weir_torch {
namespace {

using torch_cuda::RecordContext;

/// Of this thread, as torch keeps them. Leaked with the thread's last use: nothing of it is Python.
std::stack<std::string>& compile_contexts() {
  static thread_local std::stack<std::string> mine;
  return mine;
}

}  // namespace

void history::configure(const settings& how) {
  TORCH_CHECK(how.when == RecordContext::NEVER || how.recorder != nullptr,
              "a history with stacks needs a recorder of stacks");
  std::uint32_t skipped = 0;
  for (const std::string& name : how.skipped)
    skipped |=
        1U << static_cast<unsigned>(c10::CachingDeviceAllocator::parseTraceEntryAction(name));
  {
    const std::lock_guard lock{mutex_};
    skipped_ = skipped;
    enabled_ = how.enabled;
    recorder_ = how.enabled ? how.recorder : nullptr;
    when_ = how.enabled ? how.when : RecordContext::NEVER;
    entries_.set_most(how.most);
    if (!how.enabled || how.clear) entries_.clear();
    if (!how.enabled) {
      recorded_.clear();
      awaiting_.clear();
    }
    update();
  }
  changed_();
}

void history::attach(torch_cuda::AllocatorTraceTracker tracker) {
  {
    const std::lock_guard lock{mutex_};
    trackers_.push_back(std::move(tracker));
    update();
  }
  changed_();
}

void history::update() noexcept {
  writes_ = enabled_ || !trackers_.empty();
  stacks_ = live_stacks_.size();
}

context history::gather(RecordContext level) const {
  if (when_.load(std::memory_order_relaxed) < level) return nullptr;
  const auto record = recorder_.load(std::memory_order_relaxed);
  return record == nullptr ? nullptr : record();
}

void history::write(action what, const block_note& block, context where) {
  if (!writes_) return;
  const auto& compiling = compile_contexts();
  trace_entry entry{
      what,
      device_,
      block.address,
      block.size,
      block.stream,
      block.pool,
      c10::getApproximateTime(),
      when_.load(std::memory_order_relaxed) >= RecordContext::ALLOC ? std::move(where) : nullptr,
      compiling.empty() ? "N/A" : compiling.top(),
      metadata_};
  for (const auto& tracker : trackers_) tracker(entry);
  if (enabled_ && (skipped_ >> static_cast<unsigned>(what) & 1U) == 0)
    entries_.add(std::move(entry));
}

void history::complete_overlapping(std::uint64_t address, std::uint64_t size) {
  if (awaiting_.empty()) return;
  auto at = awaiting_.upper_bound(address);
  if (at != awaiting_.begin()) --at;
  while (at != awaiting_.end() && at->first < address + size) {
    if (at->first + at->second.size > address) {
      write(action::FREE_COMPLETED, at->second, nullptr);
      at = awaiting_.erase(at);
    } else {
      ++at;
    }
  }
}

void history::allocated(const block_note& block, context where) {
  {
    const std::lock_guard lock{mutex_};
    complete_overlapping(block.address, block.size);
    if (when_ >= RecordContext::STATE) {
      live_stacks_.insert_or_assign(block.address, where);
    } else {
      live_stacks_.erase(block.address);
    }
    write(action::ALLOC, block, std::move(where));
    update();
  }
}

void history::freed(const block_note& block, context where) {
  context last;  // released outside the lock: it may be a Python object's
  bool was_last = false;
  {
    const std::lock_guard lock{mutex_};
    if (const auto kept = live_stacks_.find(block.address); kept != live_stacks_.end()) {
      last = std::move(kept->second);
      live_stacks_.erase(kept);
    }
    write(action::FREE_REQUESTED, block, where);
    if (recorded_.erase(block.address) != 0) {
      awaiting_.insert_or_assign(block.address, block);
    } else {
      write(action::FREE_COMPLETED, block, std::move(where));
    }
    update();
    was_last = !wanted();
  }
  if (was_last) changed_();
}

void history::recorded_stream(std::uint64_t address) {
  const std::lock_guard lock{mutex_};
  if (enabled_) recorded_.insert(address);
}

void history::out_of_memory(std::uint64_t size, std::uint64_t device_free, void* stream,
                            MempoolId_t pool, context where) {
  const std::lock_guard lock{mutex_};
  write(action::OOM, {device_free, size, stream, pool}, std::move(where));
}

void history::snapshot_taken(std::uint64_t active, MempoolId_t pool) {
  const std::lock_guard lock{mutex_};
  write(action::SNAPSHOT, {0, active, nullptr, pool}, nullptr);
}

void history::complete_frees(const std::unordered_set<std::uint64_t>& pending) {
  const std::lock_guard lock{mutex_};
  for (auto at = awaiting_.begin(); at != awaiting_.end();) {
    if (pending.count(at->first) != 0) {
      ++at;
      continue;
    }
    write(action::FREE_COMPLETED, at->second, nullptr);
    at = awaiting_.erase(at);
  }
}

std::vector<trace_entry> history::entries() const {
  const std::lock_guard lock{mutex_};
  return entries_.all();
}

context history::stack_of(std::uint64_t address) const {
  const std::lock_guard lock{mutex_};
  const auto found = live_stacks_.find(address);
  return found == live_stacks_.end() ? nullptr : found->second;
}

void history::set_metadata(const std::string& text) {
  const std::lock_guard lock{mutex_};
  metadata_ = text;
}

std::string history::metadata() const {
  const std::lock_guard lock{mutex_};
  return metadata_;
}

void history::push_compile_context(const std::string& text) { compile_contexts().push(text); }

void history::pop_compile_context() {
  if (!compile_contexts().empty()) compile_contexts().pop();
}

void history::on_event(const weir::memory_event& what) noexcept try {
  if (!writes()) return;
  const std::lock_guard lock{mutex_};
  switch (what.kind) {
    case weir::memory_event_kind::reserve:
      write(action::SEGMENT_MAP, {what.address, what.size, nullptr, {0, 0}}, nullptr);
      break;
    case weir::memory_event_kind::release:
      write(action::SEGMENT_UNMAP, {what.address, what.size, nullptr, {0, 0}}, nullptr);
      break;
    case weir::memory_event_kind::move:
      write(action::SEGMENT_UNMAP, {what.other_address, what.size, nullptr, {0, 0}}, nullptr);
      write(action::SEGMENT_MAP, {what.address, what.size, nullptr, {0, 0}}, nullptr);
      break;
    default:
      break;
  }
} catch (...) {
  // An entry is lost for want of host memory, or a tracker threw: the allocator goes on.
}

// --- Annotations --------------------------------------------------------------------------------

void annotations::configure(bool enabled, std::size_t most, bool clear) {
  const std::lock_guard lock{mutex_};
  enabled_ = enabled;
  entries_.set_most(most);
  if (!enabled || clear) entries_.clear();
}

void annotations::add(annotation entry) {
  const std::lock_guard lock{mutex_};
  entries_.add(std::move(entry));
}

std::vector<annotation> annotations::all() const {
  const std::lock_guard lock{mutex_};
  return entries_.all();
}

}  // namespace weir_torch
