// SPDX-License-Identifier: Apache-2.0
// torch's memory pools on one device.
#include "pools.hpp"

#include <algorithm>
#include <new>
#include <string>
#include <unordered_set>
#include <utility>

#include "errors.hpp"

namespace weir_torch {

namespace {

/// Whether the stream is in a capture, as far as it can be asked.
bool is_captured(const pool_table::origin& opened_on) {
  if (!opened_on.is_torchs_own) return false;
  const auto capture = opened_on.stream.capture();
  return capture && capture->status == weir::capture_status::active;
}

}  // namespace

pool_table::entry& pool_table::find_or_throw(MempoolId_t id) {
  const auto pool = pools_.find(id);
  TORCH_CHECK(pool != pools_.end(), "unknown memory pool (", id.first, ", ", id.second, ")");
  return pool->second;
}

weir::memory_pool pool_table::create(MempoolId_t id, const weir::pool_options& options) {
  const std::string name = "torch " + std::to_string(id.first) + "." + std::to_string(id.second);
  weir::memory_pool created = checked(memory_.create_pool(name, options));
  forget_ended_pools();
  const std::lock_guard lock{mutex_};
  torch_ids_.add(created.id(), id);
  return created;
}

void pool_table::forget_ended_pools() {
  std::vector<weir::pool_id> known;
  {
    const std::lock_guard lock{mutex_};
    if (!torch_ids_.is_due()) return;
    known = torch_ids_.all();
  }
  std::unordered_set<weir::pool_id> alive;
  for (const weir::pool_snapshot& pool : memory_.snapshot().pools) alive.insert(pool.id);
  const std::lock_guard lock{mutex_};
  torch_ids_.forget_ended(known, alive);
}

void pool_table::update() noexcept {
  is_active_ = !scopes_.empty() || !held_.empty();
  has_fallback_ = std::any_of(pools_.begin(), pools_.end(),
                              [](const auto& pool) { return pool.second.is_fallback; });
}

void pool_table::acquire(MempoolId_t id, weir::pool_options options) {
  TORCH_CHECK(id != MempoolId_t(0, 0),
              "the pool id (0, 0) is the default pool; pass the id of a created pool");
  {
    const std::lock_guard lock{mutex_};
    if (const auto pool = pools_.find(id); pool != pools_.end()) {
      TORCH_CHECK(options.source == nullptr, "memory pool (", id.first, ", ", id.second,
                  ") already exists without this allocator");
      ++pool->second.use_count;
      return;
    }
  }
  weir::memory_pool created = create(id, options);
  const std::lock_guard lock{mutex_};
  entry& pool = pools_[id];
  if (!pool.memory) {
    pool.memory = std::move(created);
    pool.is_mem_pool = options.segments;
    pool.options = std::move(options);
  }
  ++pool.use_count;
}

void pool_table::release(MempoolId_t id) {
  weir::memory_pool released;  // destroyed outside the lock
  const std::lock_guard lock{mutex_};
  entry& pool = find_or_throw(id);
  if (--pool.use_count > 0) return;
  if (pool.is_mem_pool) torch_ids_.add_released(pool.memory.id(), id);
  released = std::move(pool.memory);
  pools_.erase(id);
  update();
}

void pool_table::empty_released(MempoolId_t id) noexcept try {
  std::vector<weir::pool_id> pools;
  {
    const std::lock_guard lock{mutex_};
    pools = torch_ids_.take_released(id);
  }
  for (const weir::pool_id pool : pools) {
    const auto emptied = memory_.empty_cache(pool);
    if (!emptied && emptied.code() == weir::errc::closed) continue;  // it has ended by itself
    if (!emptied && emptied.code() != weir::errc::capture_forbidden)
      weir::report_error(emptied.error());
    const std::lock_guard lock{mutex_};
    torch_ids_.add_released(pool, id);
  }
} catch (const std::bad_alloc&) {
  // The pool gives its memory back by itself, later.
}

int pool_table::use_count(MempoolId_t id) const {
  const std::lock_guard lock{mutex_};
  const auto pool = pools_.find(id);
  return pool == pools_.end() ? 0 : pool->second.use_count;
}

weir::memory_pool pool_table::find(MempoolId_t id) const {
  const std::lock_guard lock{mutex_};
  const auto pool = pools_.find(id);
  return pool == pools_.end() ? weir::memory_pool{} : pool->second.memory;
}

void pool_table::set_fallback(MempoolId_t id, bool value) {
  weir::memory_pool memory;
  {
    const std::lock_guard lock{mutex_};
    const auto pool = pools_.find(id);
    if (pool == pools_.end() || pool->second.is_fallback == value) return;
    pool->second.is_fallback = value;
    memory = pool->second.memory;
    update();
  }
  const auto changed = memory.set_fallback(value);
  if (value) checked(changed);  // a MemPool's destructor takes it back, and must not throw
}

template <class Change>
void pool_table::replace(MempoolId_t id, const char* reason, const Change& change) {
  weir::pool_options options;
  bool is_fallback = false;
  {
    const std::lock_guard lock{mutex_};
    const entry& pool = find_or_throw(id);
    options = pool.options;
    is_fallback = pool.is_fallback;
  }
  if (!change(options)) return;
  TORCH_CHECK(find(id).stats().allocations == 0, reason);
  weir::memory_pool created = create(id, options);
  if (is_fallback) checked(created.set_fallback(true));
  const std::lock_guard lock{mutex_};
  entry& pool = find_or_throw(id);
  std::swap(pool.memory, created);
  pool.options = std::move(options);
}

void pool_table::set_no_split(MempoolId_t id) {
  replace(id, "no_split must be set before a pool's first request",
          [](weir::pool_options& options) {
            return !std::exchange(options.one_block_per_segment, true);
          });
}

void pool_table::make_suspendable(MempoolId_t id, weir::suspendable_options how) {
  // Before 2.8 a scope makes the pool, in an arena, which can be suspended as it is.
  if (!find(id)) return;
  replace(id, "suspendable must be set before a pool's first request",
          [&](weir::pool_options& options) {
            TORCH_CHECK(
                options.source == nullptr && !options.one_block_per_segment,
                "a memory pool with its own allocator, or with no_split, cannot be suspended");
            options.segments = false;
            options.suspendable = std::move(how);
            return true;
          });
}

std::vector<std::pair<MempoolId_t, weir::memory_pool>> pool_table::all() const {
  const std::lock_guard lock{mutex_};
  std::vector<std::pair<MempoolId_t, weir::memory_pool>> pools;
  for (const auto& [id, pool] : pools_) pools.emplace_back(id, pool.memory);
  return pools;
}

MempoolId_t pool_table::torch_id_of(weir::pool_id pool) const {
  const std::lock_guard lock{mutex_};
  return torch_ids_.find(pool);
}

bool pool_table::captures_possible() const {
  return marked_captures_ > 0 || std::any_of(scopes_.begin(), scopes_.end(),
                                             [](const scope& open) { return open.can_be_capture; });
}

void pool_table::begin(MempoolId_t id, stream_filter filter, origin current) {
  {
    const std::lock_guard lock{mutex_};
    for (const scope& open : scopes_) {
      TORCH_CHECK(open.id != id, "beginAllocateToPool: already recording to mempool_id");
    }
  }
  acquire(id, {.for_graphs = true});
  weir::capture_guard notice = memory_.guard_captures().value();
  {
    const std::lock_guard lock{mutex_};
    entry& pool = find_or_throw(id);
    // The body of a condition is captured on a stream that nobody knows, and a scope may begin in
    // there: requests are made in the name of the stream around it.
    if (current.is_torchs_own) {
      pool.last_origin = current;
    } else if (current.stream.known_id() == weir::stream_id{} && pool.last_origin) {
      current = *pool.last_origin;
    }
    if (!has_notice_) std::swap(notice_, notice);
    has_notice_ = true;
    scopes_.push_back({id, std::move(filter), std::move(current)});
    update();
  }
  on_change_();
}

void pool_table::end(MempoolId_t id) {
  weir::capture_guard ended;
  std::vector<void*> freed;
  {
    const std::lock_guard lock{mutex_};
    const auto closed = std::find_if(scopes_.begin(), scopes_.end(),
                                     [&](const scope& open) { return open.id == id; });
    TORCH_CHECK(closed != scopes_.end(), "endAllocatePool: not currently recording to mempool_id");
    const origin opened_on = closed->opened_on;
    scopes_.erase(closed);
    if (scopes_.empty() && marked_captures_ == 0 && !is_captured(opened_on)) {
      std::swap(ended, notice_);
      has_notice_ = false;
      freed = held_.take_freed();
    }
    update();
  }
  on_change_();
  for (void* const block : freed) memory_.deallocate(block);
}

void pool_table::mark_capture_begin() {
  const std::lock_guard lock{mutex_};
  ++marked_captures_;
}

void pool_table::mark_capture_end() {
  const std::lock_guard lock{mutex_};
  if (marked_captures_ > 0) --marked_captures_;
}

std::optional<pool_table::route> pool_table::find_route(cudaStream_t stream) {
  weir::capture_guard ended;  // outside the lock
  const std::lock_guard lock{mutex_};
  for (auto open = scopes_.rbegin(); open != scopes_.rend(); ++open) {
    if (!open->filter(stream)) continue;
    const auto pool = pools_.find(open->id);
    if (pool == pools_.end()) continue;
    if (torch_marks_captures() && marked_captures_ == 0 && open->can_be_capture) {
      open->can_be_capture = false;
      if (!captures_possible()) {
        std::swap(ended, notice_);
        has_notice_ = false;
      }
    }
    return route{open->id, pool->second.memory, open->opened_on.stream,
                 pool->second.options.in_segments()};
  }
  return std::nullopt;
}

bool pool_table::is_capturing() const {
  const std::lock_guard lock{mutex_};
  return captures_possible();
}

void pool_table::hold(void* block) {
  {
    const std::lock_guard lock{mutex_};
    held_.hold(block);
    update();
  }
  on_change_();
}

bool pool_table::defer_free(void* block) {
  bool is_deferred = false;
  {
    const std::lock_guard lock{mutex_};
    if (held_.is_freed(block)) return true;  // another thread was faster
    is_deferred = !scopes_.empty();
    if (is_deferred ? !held_.defer_free(block) : !held_.release(block)) return false;
    update();
  }
  if (!is_deferred) on_change_();
  return is_deferred;
}

bool pool_table::is_free_deferred(void* block) const {
  const std::lock_guard lock{mutex_};
  return held_.is_freed(block);
}

}  // namespace weir_torch
