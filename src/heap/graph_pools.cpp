// SPDX-License-Identifier: Apache-2.0
// Which pool a captured stream gets, and the user objects that tell when its graph is gone.
#include "heap/graph_pools.hpp"

#include <algorithm>
#include <new>

#include "heap/central_heap.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

constexpr unsigned no_destructor_sync = 1;  // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, the only flag
constexpr unsigned move_reference = 1;      // CU_GRAPH_USER_OBJECT_MOVE

/// What the driver keeps for a graph. Outlives the allocator if the graph does.
struct tie_end {
  std::shared_ptr<std::atomic<bool>> ended;
  std::shared_ptr<graph_ties> board;
};

/// Runs on a thread of the driver.
void graph_ended(void* pointer) {
  const std::unique_ptr<tie_end> end{static_cast<tie_end*>(pointer)};
  end->ended->store(true, std::memory_order_release);
  end->board->ended.fetch_add(1, std::memory_order_release);
}

}  // namespace

graph_claim::~graph_claim() {
  const auto allocator = owner.lock();
  if (allocator == nullptr) return;
  allocator->captures().end(*this);
  allocator->pools().release(pool);
}

bool capture_registry::end(pool_id pool) noexcept {
  return std::erase_if(declared_, [&](const declared& each) { return each.pool == pool; }) != 0;
}

bool capture_registry::is_declared(stream_id stream) const noexcept {
  return std::any_of(declared_.begin(), declared_.end(),
                     [&](const declared& each) { return each.stream == stream; });
}

pool_id capture_registry::pool_of(stream_id stream, capture_id capture) noexcept {
  for (declared& each : declared_) {
    if (each.stream != stream) continue;
    each.capture = capture;
    return each.pool;
  }
  // A stream that the capture took in: the capture is known by its number.
  for (const declared& each : declared_)
    if (each.capture == capture) return each.pool;
  const auto entry = found_.find(capture);
  return entry == found_.end() ? pool_id{} : entry->second;
}

void capture_registry::forget(pool_id pool) noexcept {
  std::erase_if(found_, [&](const auto& each) { return each.second == pool; });
}

result<void> capture_registry::tie_to(driver::CUgraph graph, pool_id pool,
                                      const context_scope& bound) {
  const auto& calls = bound.driver();
  if (calls.user_object_create == nullptr || calls.graph_retain_user_object == nullptr ||
      calls.user_object_release == nullptr) {
    return error{{.code = errc::not_supported,
                  .detail = "graph user objects need a driver of CUDA 11.3 or later"}};
  }
  tied_.reserve(tied_.size() + 1);
  auto ended = std::make_shared<std::atomic<bool>>(false);
  auto end = std::make_unique<tie_end>(tie_end{ended, ties_});
  driver::CUuserObject object = nullptr;
  WEIR_TRY(driver::check(
      driver::call::user_object_create,
      calls.user_object_create(&object, end.get(), &graph_ended, 1, no_destructor_sync)));
  static_cast<void>(end.release());  // the driver's from now on
  auto retained = driver::check(driver::call::graph_retain_user_object,
                                calls.graph_retain_user_object(graph, object, 1, move_reference));
  if (!retained) {
    // The last reference goes, and with it the driver calls graph_ended().
    static_cast<void>(calls.user_object_release(object, 1));
    ++swept_;
    return retained;
  }
  tied_.push_back({pool, std::move(ended)});
  return {};
}

std::uint32_t capture_registry::ties_of(pool_id pool) const noexcept {
  return static_cast<std::uint32_t>(std::count_if(
      tied_.begin(), tied_.end(), [&](const tie& each) { return each.pool == pool; }));
}

std::vector<pool_id> capture_registry::sweep() {
  const auto seen = ties_->ended.load(std::memory_order_acquire);
  std::vector<pool_id> ended;
  ended.reserve(tied_.size());
  swept_ = seen;
  std::erase_if(tied_, [&](const tie& each) {
    if (!each.ended->load(std::memory_order_acquire)) return false;
    ended.push_back(each.pool);
    return true;
  });
  return ended;
}

result<driver::CUgraph> graph_of(const stream_ref& stream, const context_scope& bound) {
  const auto& calls = bound.driver();
  if (calls.stream_get_capture_info == nullptr) return errc::not_supported;
  auto status = driver::CU_STREAM_CAPTURE_STATUS_NONE;
  std::uint64_t number = 0;
  driver::CUgraph graph = nullptr;
  WEIR_TRY(driver::check(
      driver::call::stream_get_capture_info,
      calls.stream_get_capture_info(stream.handle(), &status, &number, &graph, nullptr, nullptr)));
  if (status != driver::CU_STREAM_CAPTURE_STATUS_ACTIVE) return errc::capture_invalid;
  return graph;
}

}}}  // namespace weir::v0::heap
