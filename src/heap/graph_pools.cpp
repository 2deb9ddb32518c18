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
  if (const auto allocator = owner.lock()) allocator->release_claim(*this);
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
    return error{.code = errc::not_supported, .detail = "the driver ties nothing to graphs"};
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

// --- The heap's side ---------------------------------------------------------------------------

void central_heap::update_capture_reason() noexcept {
  const thread_caches::stop stopped{caches_, own_cache()};
  caches_.set_reason(thread_cache::capturing, detect_captures_ || captures_.any_declared());
}

result<std::shared_ptr<graph_claim>> central_heap::begin_capture(const stream_ref& stream) try {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(caller, identify(stream, local()));
  if (caller.id == stream_id{}) {
    return error{.code = errc::capture_forbidden,
                 .detail = "a capture is declared before it begins"};
  }
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  driver_access driver{placement_.device};
  WEIR_TRY_VALUE(slot, slot_of(caller, driver));  // known by its handle from now on
  if (captures_.is_declared(caller.id)) {
    return error{.code = errc::invalid_argument,
                 .detail = "a capture of this stream is declared already"};
  }
  auto claim = std::make_shared<graph_claim>(std::weak_ptr<central_heap>{}, pool_id{}, caller.id);
  pool_state& pool = add_pool("graph");
  pool.of_capture = true;
  captures_.declare(caller.id, pool.id);
  order_.expect_capture(slot, true);
  claim->pool = pool.id;
  claim->owner = weak_from_this();
  update_capture_reason();
  placement_.emit({.kind = memory_event_kind::capture_begin, .pool = pool.id, .stream = caller.id});
  return claim;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

void central_heap::end_capture(const graph_claim& claim) noexcept {
  if (!usable()) return;
  const detail::mutex_lock lock{mutex_};
  if (!captures_.end(claim.pool)) return;
  order_.expect_capture(order_.known(claim.stream), false);
  if (pool_state* const served = find_pool(claim.pool); served != nullptr) {
    served->takes_requests = false;
  }
  update_capture_reason();
  placement_.emit(
      {.kind = memory_event_kind::capture_end, .pool = claim.pool, .stream = claim.stream});
}

void central_heap::release_claim(const graph_claim& claim) noexcept {
  end_capture(claim);
  pool_registry_.release(claim.pool);
}

result<void> central_heap::keep_with(const graph_claim& claim, driver::CUgraph graph) try {
  WEIR_TRY(usable());
  if (graph == nullptr) return errc::invalid_argument;
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  pool_state* const kept = find_pool(claim.pool);
  if (kept == nullptr) return errc::closed;
  driver_access driver{placement_.device};
  WEIR_TRY(driver.entered());
  WEIR_TRY(captures_.tie_to(graph, claim.pool, driver.enter()));
  ++kept->holders;
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

void central_heap::sweep_graphs() noexcept {
  try {
    for (const pool_id each : captures_.sweep())
      if (pool_state* const left = find_pool(each); left != nullptr) drop_holder(*left);
  } catch (const std::bad_alloc&) {
    // Nothing was taken out; a later sweep sees all of them.
  }
}

bool central_heap::notice_ended_graphs() noexcept {
  if (!captures_.ended()) return false;
  sweep_graphs();
  return true;
}

result<pool_state*> central_heap::capture_pool(const stream_ref& stream, stream_slot slot,
                                               driver_access& driver) {
  WEIR_TRY(driver.entered());
  WEIR_TRY_VALUE(now, stream.capture(driver.enter()));
  // A broken capture must be ended before its stream takes work: nothing can go wrong meanwhile.
  if (now.status != capture_status::active) return pools_.front().get();
  const pool_id known = captures_.pool_of(order_.id(slot), now.id);
  if (known != pool_id{}) {
    if (pool_state* const served = find_pool(known); served != nullptr) return served;
  }
  WEIR_TRY_VALUE(graph, graph_of(stream, driver.enter()));
  pool_state& pool = add_pool("graph");
  pool.of_capture = true;
  auto tied = captures_.tie_to(graph, pool.id, driver.enter());
  if (!tied) {
    accounts_.remove_pool(pool.id);
    pools_.pop_back();
    return std::move(tied).error();
  }
  captures_.adopt(now.id, pool.id);
  return &pool;
}

void central_heap::begin_notice() noexcept {
  if (!usable()) return;
  const detail::mutex_lock lock{mutex_};
  order_.pause();
}

void central_heap::end_notice() noexcept {
  if (!usable()) return;
  const detail::mutex_lock lock{mutex_};
  order_.resume();
}

}}}  // namespace weir::v0::heap
