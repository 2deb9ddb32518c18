// torch's memory pools on one device.
#include "pools.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "errors.hpp"

namespace weir_torch {

pool_table::entry& pool_table::known(MempoolId_t id) {
  const auto found = pools_.find(id);
  TORCH_CHECK(found != pools_.end(), "there is no memory pool (", id.first, ", ", id.second, ")");
  return found->second;
}

void pool_table::acquire(MempoolId_t id) {
  TORCH_CHECK(id != MempoolId_t(0, 0), "(0, 0) is not a memory pool of its own");
  {
    const std::lock_guard lock{mutex_};
    if (const auto found = pools_.find(id); found != pools_.end()) {
      ++found->second.uses;
      return;
    }
  }
  const std::string name = "torch " + std::to_string(id.first) + "." + std::to_string(id.second);
  weir::memory_pool made = checked(memory_.create_pool(name, {.retains = true}));
  const std::lock_guard lock{mutex_};
  names_[made.id()] = id;
  entry& mine = pools_[id];
  if (!mine.memory) mine.memory = std::move(made);
  ++mine.uses;
}

void pool_table::release(MempoolId_t id) {
  weir::memory_pool last;  // let go outside the lock
  const std::lock_guard lock{mutex_};
  entry& mine = known(id);
  if (--mine.uses > 0) return;
  last = std::move(mine.memory);
  pools_.erase(id);
}

int pool_table::uses(MempoolId_t id) const {
  const std::lock_guard lock{mutex_};
  const auto found = pools_.find(id);
  return found == pools_.end() ? 0 : found->second.uses;
}

weir::memory_pool pool_table::find(MempoolId_t id) const {
  const std::lock_guard lock{mutex_};
  const auto found = pools_.find(id);
  return found == pools_.end() ? weir::memory_pool{} : found->second.memory;
}

void pool_table::set_last_resort(MempoolId_t id, bool value) {
  const std::lock_guard lock{mutex_};
  if (const auto found = pools_.find(id); found != pools_.end()) found->second.last_resort = value;
}

std::vector<weir::memory_pool> pool_table::last_resorts() const {
  const std::lock_guard lock{mutex_};
  std::vector<weir::memory_pool> out;
  for (const auto& [id, each] : pools_)
    if (each.last_resort) out.push_back(each.memory);
  return out;
}

MempoolId_t pool_table::name_of(weir::pool_id pool) const {
  const std::lock_guard lock{mutex_};
  const auto found = names_.find(pool);
  return found == names_.end() ? MempoolId_t(0, 0) : found->second;
}

void pool_table::begin(MempoolId_t id, filter takes, const weir::stream_ref& current) {
  {
    const std::lock_guard lock{mutex_};
    for (const scope& each : scopes_) {
      TORCH_CHECK(each.id != id, "beginAllocateToPool: already recording to mempool_id");
    }
  }
  acquire(id);
  weir::capture_notice notice = memory_.notice_captures();
  {
    const std::lock_guard lock{mutex_};
    if (scopes_.empty()) std::swap(notice_, notice);
    scopes_.push_back({id, std::move(takes), current});
    update();
  }
  changed_();
}

void pool_table::end(MempoolId_t id) {
  weir::capture_notice over;
  std::vector<void*> now_free;
  {
    const std::lock_guard lock{mutex_};
    const auto found = std::find_if(scopes_.begin(), scopes_.end(),
                                    [&](const scope& each) { return each.id == id; });
    TORCH_CHECK(found != scopes_.end(), "endAllocatePool: not currently recording to mempool_id");
    scopes_.erase(found);
    if (scopes_.empty()) {
      std::swap(over, notice_);
      std::swap(now_free, freed_while_held_);
    }
    update();
  }
  changed_();
  for (void* const block : now_free) memory_.deallocate(block);
}

std::optional<pool_table::route> pool_table::find_route(cudaStream_t stream) const {
  const std::lock_guard lock{mutex_};
  for (auto each = scopes_.rbegin(); each != scopes_.rend(); ++each) {
    if (!each->takes(stream)) continue;
    const auto found = pools_.find(each->id);
    if (found == pools_.end()) continue;
    return route{each->id, found->second.memory, each->begun_on};
  }
  return std::nullopt;
}

bool pool_table::capturing() const {
  const std::lock_guard lock{mutex_};
  return !scopes_.empty();
}

void pool_table::hold(void* block) {
  {
    const std::lock_guard lock{mutex_};
    held_.insert(block);
    update();
  }
  changed_();
}

bool pool_table::keep_back(void* block) {
  bool kept = false;
  {
    const std::lock_guard lock{mutex_};
    if (held_.erase(block) == 0) return false;
    kept = !scopes_.empty();
    if (kept) freed_while_held_.push_back(block);
    update();
  }
  if (!kept) changed_();
  return kept;
}

}  // namespace weir_torch
