// SPDX-License-Identifier: Apache-2.0
// Declared captures, captures that are found, and the graphs that keep their pools.
#include "heap/capture_pools.hpp"

#include <new>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {

using order::driver_access;

void capture_pools::update_reason() noexcept {
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  core_.caches_.set_reason(thread_cache::capturing,
                           core_.detect_captures_ || core_.captures_.any_declared());
}

result<std::shared_ptr<graph_claim>> capture_pools::begin(const stream_ref& stream) try {
  WEIR_TRY(core_.usable());
  WEIR_TRY_VALUE(caller, host_.identify(stream));
  if (caller.id == stream_id{}) {
    return error{{.code = errc::capture_forbidden,
                  .detail = "begin_capture() must be called before the capture begins"}};
  }
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  // Known by its handle from now on.
  const stream_slot slot = core_.order_.meet(caller.ref, caller.id);
  if (core_.captures_.is_declared(caller.id)) {
    return error{
        {.code = errc::invalid_argument,
         .detail = "begin_capture() was already called for this stream; call end_capture() first"}};
  }
  auto claim = std::make_shared<graph_claim>(std::weak_ptr<central_heap>{}, pool_id{}, caller.id);
  core_.captures_.prepare_declare();
  pool_state& pool = core_.add_pool("graph");  // from here on nothing is thrown
  pool.of_capture = true;
  core_.captures_.declare(caller.id, pool.id);
  core_.order_.expect_capture(slot, true);
  claim->pool = pool.id;
  claim->owner = core_.owner_;
  update_reason();
  core_.placement_.emit(
      {.kind = memory_event_kind::capture_begin, .pool = pool.id, .stream = caller.id});
  return claim;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

void capture_pools::end(const graph_claim& claim) noexcept {
  if (!core_.usable()) return;
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.captures_.end(claim.pool)) return;
  core_.order_.expect_capture(core_.order_.known(claim.stream), false);
  if (pool_state* const served = core_.find_pool(claim.pool); served != nullptr) {
    served->takes_requests = false;
  }
  update_reason();
  core_.placement_.emit(
      {.kind = memory_event_kind::capture_end, .pool = claim.pool, .stream = claim.stream});
}

result<void> capture_pools::tie_to_graph(const graph_claim& claim, driver::CUgraph graph) try {
  WEIR_TRY(core_.usable());
  if (graph == nullptr) return errc::invalid_argument;
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  pool_state* const kept = core_.find_pool(claim.pool);
  if (kept == nullptr) return errc::closed;
  driver_access driver{core_.device_};
  WEIR_TRY(driver.entered());
  WEIR_TRY(core_.captures_.tie_to(graph, claim.pool, driver.enter()));
  ++kept->holders;
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

void capture_pools::begin_notice() noexcept {
  if (!core_.usable()) return;
  const detail::mutex_lock lock{core_.mutex_};
  core_.order_.pause();
}

void capture_pools::end_notice() noexcept {
  if (!core_.usable()) return;
  const detail::mutex_lock lock{core_.mutex_};
  core_.order_.resume();
}

result<pool_state*> capture_pools::find_pool(const stream_ref& stream, stream_slot slot,
                                             driver_access& driver) {
  core_.mutex_.assert_held();
  WEIR_TRY(driver.entered());
  WEIR_TRY_VALUE(now, stream.capture(driver.enter()));
  // A broken capture must be ended before its stream takes work: nothing can go wrong meanwhile.
  if (now.status != capture_status::active) return core_.pools_.front().get();
  const pool_id known = core_.captures_.pool_of(core_.order_.id(slot), now.id);
  if (known != pool_id{}) {
    if (pool_state* const served = core_.find_pool(known); served != nullptr) return served;
  }
  WEIR_TRY_VALUE(graph, graph_of(stream, driver.enter()));
  pool_state& pool = core_.add_pool("graph");
  pool.of_capture = true;
  const auto tie = [&]() -> result<void> {
    core_.mutex_.assert_held();
    try {
      core_.captures_.adopt(now.id, pool.id);
      return core_.captures_.tie_to(graph, pool.id, driver.enter());
    } catch (const std::bad_alloc&) {
      return no_host_memory();
    }
  };
  auto tied = tie();
  if (!tied) {
    core_.captures_.forget(pool.id);
    core_.accounts_.remove_pool(pool.id);
    core_.pools_.pop_back();
    return std::move(tied).error();
  }
  return &pool;
}

/// The last replay of a graph that was destroyed holds its memory, and no stamp tells of that work.
result<bool> capture_pools::wait_for_graphs(pool_state& asking, wait_bound& bound,
                                            driver_access& driver) {
  core_.mutex_.assert_held();
  if (!core_.captures_.any_tied() || !bound.first_wait_for_graphs()) return false;
  const pool_hold held{core_, asking};
  WEIR_TRY(progress_.wait_for_all_work(driver));
  return core_.notice_ended_graphs();
}

}}}  // namespace weir::v0::heap
