// SPDX-License-Identifier: Apache-2.0
// The allocation history of one device in torch's terms.
#include "history.hpp"

#include <c10/util/ApproximateClock.h>

#include <stack>
#include <utility>

#include "weir/base/error.hpp"

namespace weir_torch {
namespace {

using torch_cuda::RecordContext;

/// Of this thread, as torch keeps them. Leaked with the thread's last use: nothing of it is Python.
std::stack<std::string>& compile_contexts() {
  static thread_local std::stack<std::string> contexts;
  return contexts;
}

std::string& user_metadata() {
  static thread_local std::string text;
  return text;
}

thread_local constinit const event_stack* innermost_stack = nullptr;

/// Whether the entry tells of memory that a tracker registers, so that its failure counts.
bool is_registered(trace_entry::Action kind) noexcept {
  return kind == trace_entry::Action::SEGMENT_ALLOC || kind == trace_entry::Action::SEGMENT_MAP;
}

}  // namespace

event_stack::event_stack(context stack) noexcept
    : stack_{std::move(stack)}, outer_{std::exchange(innermost_stack, this)} {}
event_stack::~event_stack() { innermost_stack = outer_; }
context event_stack::current() {
  return innermost_stack == nullptr ? nullptr : innermost_stack->stack_;
}

void allocation_history::configure(const settings& config) {
  std::uint32_t skipped_actions = 0;
  for (const std::string& name : config.skipped_actions)
    if (const auto skipped = parse_action(name))
      skipped_actions |= 1U << static_cast<unsigned>(*skipped);
  {
    const std::lock_guard lock{mutex_};
    skipped_actions_ = skipped_actions;
    enabled_ = config.enabled;
    stack_recorder_ = config.enabled ? config.stack_recorder : nullptr;
    stack_level_ = config.enabled ? config.stack_level : RecordContext::NEVER;
    entries_.set_capacity(config.max_entries);
    if (!config.enabled || config.clear) entries_.clear();
    if (!config.enabled) {
      stream_recorded_.clear();
      pending_frees_.clear();
      segment_stacks_.clear();
    }
    update();
  }
  on_change_();
}

void allocation_history::attach(torch_cuda::AllocatorTraceTracker tracker) {
  {
    const std::lock_guard lock{mutex_};
    trackers_.push_back(std::move(tracker));
    update();
  }
  on_change_();
}

void allocation_history::update() noexcept {
  has_readers_ = enabled_ || !trackers_.empty();
  stack_count_ = live_stacks_.size();
}

context allocation_history::capture_stack(RecordContext level) const {
  if (stack_level_.load(std::memory_order_relaxed) < level) return nullptr;
  const auto record = stack_recorder_.load(std::memory_order_relaxed);
  return record == nullptr ? nullptr : record();
}

void allocation_history::add_entry(action kind, const traced_block& block, context stack,
                                   const std::string* attached_text) {
  if (!has_readers_) return;
  const auto& compiling = compile_contexts();
  const bool with_stack = stack_level_.load(std::memory_order_relaxed) >= RecordContext::ALLOC;
  trace_entry entry =
      make_entry({.action = kind,
                  .device = device_,
                  .address = block.address,
                  .size = block.size,
                  .stream = block.stream,
                  .pool = block.pool,
                  .time = c10::getApproximateTime(),
                  .stack = with_stack ? std::move(stack) : nullptr,
                  .compile_context = compiling.empty() ? "N/A" : compiling.top(),
                  .metadata = attached_text != nullptr ? *attached_text : user_metadata()});
  for (const auto& tracker : trackers_) {
    try {
      tracker(entry);
    } catch (...) {
      // The others are told all the same. NCCL's throws if it never registered a segment that is
      // freed, which changes nothing; one that could not register a new segment fails the request.
      if (is_registered(kind)) tracker_failure::note_current();
    }
  }
  if (enabled_ && (skipped_actions_ >> static_cast<unsigned>(kind) & 1U) == 0)
    entries_.add(std::move(entry));
}

context allocation_history::note_segment_stacks(const segment_change& change,
                                                const context& stack) {
  const bool is_mapped =
      change.what == segment_change::kind::alloc || change.what == segment_change::kind::map;
  context known = stack;
  const std::uint64_t address = change.address;
  const std::uint64_t size = change.size;
  auto each = segment_stacks_.upper_bound(address);
  if (each != segment_stacks_.begin()) --each;
  while (each != segment_stacks_.end() && each->first < address + size) {
    const std::uint64_t start = each->first;
    const std::uint64_t end = start + each->second.size;
    if (end <= address) {
      ++each;
      continue;
    }
    context before = std::move(each->second.stack);
    each = segment_stacks_.erase(each);
    if (!is_mapped && known == nullptr) known = before;
    if (start < address) segment_stacks_[start] = {address - start, before};
    if (end > address + size) {
      segment_stacks_[address + size] = {end - address - size, std::move(before)};
      break;
    }
  }
  if (is_mapped && stack != nullptr) segment_stacks_[address] = {size, stack};
  return known;
}

void allocation_history::complete_overlapping(std::uint64_t address, std::uint64_t size) {
  if (pending_frees_.empty()) return;
  auto pending = pending_frees_.upper_bound(address);
  if (pending != pending_frees_.begin()) --pending;
  while (pending != pending_frees_.end() && pending->first < address + size) {
    if (pending->first + pending->second.block.size > address) {
      add_entry(action::FREE_COMPLETED, pending->second.block, pending->second.stack);
      pending = pending_frees_.erase(pending);
    } else {
      ++pending;
    }
  }
}

void allocation_history::on_allocated(const traced_block& block, context stack) {
  const std::lock_guard lock{mutex_};
  complete_overlapping(block.address, block.size);
  if (stack_level_ >= RecordContext::STATE) {
    live_stacks_.insert_or_assign(block.address, stack);
  } else {
    live_stacks_.erase(block.address);
  }
  add_entry(action::ALLOC, block, std::move(stack));
  update();
}

void allocation_history::on_free(const traced_block& block, context stack) {
  context released;  // outside the lock: it may be a Python object's
  bool was_last = false;
  {
    const std::lock_guard lock{mutex_};
    if (const auto entry = live_stacks_.find(block.address); entry != live_stacks_.end()) {
      released = std::move(entry->second);
      live_stacks_.erase(entry);
    }
    if (stack == nullptr) stack = released;
    add_entry(action::FREE_REQUESTED, block, stack);
    if (stream_recorded_.erase(block.address) != 0) {
      pending_frees_.insert_or_assign(block.address, pending_free{block, std::move(stack)});
    } else {
      add_entry(action::FREE_COMPLETED, block, std::move(stack));
    }
    update();
    was_last = !is_active();
  }
  if (was_last) on_change_();
}

void allocation_history::on_stream_recorded(std::uint64_t address) {
  const std::lock_guard lock{mutex_};
  if (enabled_) stream_recorded_.insert(address);
}

void allocation_history::on_out_of_memory(std::uint64_t size, std::uint64_t device_free,
                                          void* stream, MempoolId_t pool, context stack) {
  const std::lock_guard lock{mutex_};
  add_entry(action::OOM, {device_free, size, stream, pool}, std::move(stack));
}

void allocation_history::on_snapshot(std::uint64_t active, MempoolId_t pool) {
  const std::lock_guard lock{mutex_};
  if (!trackers_.empty()) segments_.merge();  // they may register the segments that were shown
  add_entry(action::SNAPSHOT, {0, active, nullptr, pool}, nullptr);
}

void allocation_history::annotate(const traced_block& block, context stack,
                                  const std::string& text) {
  constexpr auto annotate_action = find_annotate_action();
  if constexpr (annotate_action) {
    const std::lock_guard lock{mutex_};
    add_entry(*annotate_action, block, std::move(stack), &text);
  }
}

void allocation_history::complete_frees(const std::unordered_set<std::uint64_t>& pending) {
  const std::lock_guard lock{mutex_};
  for (auto freed = pending_frees_.begin(); freed != pending_frees_.end();) {
    if (pending.count(freed->first) != 0) {
      ++freed;
      continue;
    }
    add_entry(action::FREE_COMPLETED, freed->second.block, freed->second.stack);
    freed = pending_frees_.erase(freed);
  }
}

std::vector<trace_entry> allocation_history::entries() const {
  const std::lock_guard lock{mutex_};
  return entries_.all();
}

context allocation_history::stack_of(std::uint64_t address) const {
  const std::lock_guard lock{mutex_};
  const auto stack = live_stacks_.find(address);
  return stack == live_stacks_.end() ? nullptr : stack->second;
}

context allocation_history::segment_stack_of(std::uint64_t address) const {
  const std::lock_guard lock{mutex_};
  auto range = segment_stacks_.upper_bound(address);
  if (range == segment_stacks_.begin()) return nullptr;
  --range;
  const bool covers = address - range->first < range->second.size;
  return covers ? range->second.stack : nullptr;
}

void allocation_history::set_metadata(const std::string& text) { user_metadata() = text; }

std::string allocation_history::metadata() { return user_metadata(); }

void allocation_history::push_compile_context(const std::string& text) {
  compile_contexts().push(text);
}

void allocation_history::pop_compile_context() {
  if (!compile_contexts().empty()) compile_contexts().pop();
}

// --- Segments -----------------------------------------------------------------------------------

void allocation_history::begin_segments() {
  const std::lock_guard lock{mutex_};
  segments_.clear();
  early_events_.emplace();
}

void allocation_history::set_segments(const std::vector<segment_table::segment>& mapped) {
  const std::lock_guard lock{mutex_};
  segment_table::changes told;  // entries of the early events were added when they came
  segments_.clear();
  for (const auto& [address, size, pool, whole] : mapped)
    segments_.reserve(address, size, pool, whole, told);
  // Some of them may be in `mapped` already: what counts is how the last one left an address.
  if (early_events_)
    for (const weir::memory_event& event : *early_events_) apply_to_segments(event, told);
  early_events_.reset();
  segments_.merge();
}

void allocation_history::apply_to_segments(const weir::memory_event& event,
                                           segment_table::changes& told) {
  switch (event.kind) {
    case weir::memory_event_kind::reserve:
      // Only segments are a stream's.
      segments_.reserve(event.address, event.size, event.pool,
                        event.stream != weir::stream_id{} && !segments_expand_, told);
      break;
    case weir::memory_event_kind::release:
      segments_.release(event.address, event.size, event.pool, told);
      break;
    case weir::memory_event_kind::move:
      segments_.release(event.other_address, event.size, event.pool, told);
      segments_.reserve(event.address, event.size, event.pool, false, told);
      break;
    default:
      break;
  }
}

void allocation_history::on_event(const weir::memory_event& event) noexcept try {
  if (event.kind != weir::memory_event_kind::reserve &&
      event.kind != weir::memory_event_kind::release && event.kind != weir::memory_event_kind::move)
    return;
  const MempoolId_t fallback = torch_id_(event.pool);
  const std::lock_guard lock{mutex_};
  if (early_events_) early_events_->push_back(event);
  segment_table::changes told;
  apply_to_segments(event, told);
  const context stack = event_stack::current();
  for (const segment_change& change : told) {
    const context known = note_segment_stacks(change, stack);
    const auto& [what, address, size, pool] = change;
    const action kind = what == segment_change::kind::alloc   ? action::SEGMENT_ALLOC
                        : what == segment_change::kind::map   ? action::SEGMENT_MAP
                        : what == segment_change::kind::unmap ? action::SEGMENT_UNMAP
                                                              : action::SEGMENT_FREE;
    const MempoolId_t id = pool == event.pool ? fallback : torch_id_(pool);
    add_entry(kind, {.address = address, .size = size, .pool = id}, known);
  }
} catch (...) {
  // An entry is lost for want of host memory, or a tracker threw: the allocator goes on.
}

// --- Annotations --------------------------------------------------------------------------------

void annotations::configure(bool enabled, std::size_t max_entries, bool clear) {
  const std::lock_guard lock{mutex_};
  enabled_ = enabled;
  entries_.set_capacity(max_entries);
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
