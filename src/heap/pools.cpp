// Private pools and captures of an allocator: who holds them, who is served by them, when they go.
#include <algorithm>
#include <new>
#include <utility>

#include "heap/allocator_state.hpp"
#include "order/mutation.hpp"

namespace weir::inline v0::heap {

pool::~pool() {
  if (const auto allocator = owner_.lock()) allocator->release_pool(id_);
}

bool pool::is_of(const allocator_state& candidate) const noexcept {
  return !owner_.owner_before(candidate.weak_from_this()) &&
         !candidate.weak_from_this().owner_before(owner_);
}

const pool*& routed() noexcept {
  thread_local constinit const pool* now = nullptr;
  return now;
}

pool_state* allocator_state::find_pool(pool_id which) noexcept {
  const auto found = std::find_if(pools_.begin(), pools_.end(),
                                  [&](const auto& each) { return each->id == which; });
  return found == pools_.end() ? nullptr : found->get();
}

pool_state& allocator_state::add_pool(std::string name) {
  auto made = std::make_unique<pool_state>();
  made->id = pool_id{next_pool_};
  made->name = std::move(name);
  made->holders = 1;
  pools_.reserve(pools_.size() + 1);
  accounts_.add_pool(made->id);
  ++next_pool_;
  pools_.push_back(std::move(made));
  core_.tell({.kind = memory_event_kind::pool_created, .pool = pools_.back()->id});
  return *pools_.back();
}

result<std::shared_ptr<pool>> allocator_state::create_pool(std::string_view name,
                                                           pool_options settings) try {
  WEIR_TRY(usable());
  const auto& can = device_.capabilities();
  if (settings.exportable && !(can.virtual_memory && can.posix_descriptors)) {
    return error{.code = errc::not_supported, .detail = "the device cannot export memory"};
  }
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  pool_state& made = add_pool(std::string{name});
  made.exportable = settings.exportable;
  made.retains = settings.retains;
  return std::make_shared<pool>(weak_from_this(), made.id, made.name);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

std::shared_ptr<pool> allocator_state::share_pool(pool_id which) {
  if (!usable()) return nullptr;
  const std::lock_guard lock{mutex_};
  pool_state* const shared = find_pool(which);
  if (shared == nullptr) return nullptr;
  auto handle = std::make_shared<pool>(weak_from_this(), which, shared->name);
  ++shared->holders;
  return handle;
}

void allocator_state::drop_holder(pool_id which) noexcept {
  pool_state* const left = find_pool(which);
  if (left == nullptr || --left->holders != 0) return;
  left->takes_requests = false;
  core_.tell({.kind = memory_event_kind::pool_released, .pool = which});
  if (left->of_graphs()) {
    captures_.forget(which);
    // Replays that are under way were queued on some stream before now.
    try {
      left->guards.reserve(order_.count());
      for (stream_slot slot = 1; slot <= order_.count(); ++slot)
        left->guards.push_back(order_.now(slot));
    } catch (const std::bad_alloc&) {
      ++left->holders;  // kept until the end: nothing that could be wrong is released
      return;
    }
  }
  pools_to_sweep_ = true;
}

void allocator_state::release_pool(pool_id which) noexcept {
  if (!usable()) return;
  const std::lock_guard lock{mutex_};
  if (!usable()) return;
  drop_holder(which);
  driver_access driver{core_.device};
  sweep_pools(driver);
}

/// Releases the pools that nobody holds and that have no blocks, as far as streams have passed
/// them. What cannot go now goes at the next look for room, trim or wait.
void allocator_state::sweep_pools(driver_access& driver) noexcept {
  const auto is_over = [](const pool_state& each) {
    return each.id != pool_id{} && each.holders == 0 && each.blocks == 0;
  };
  pools_to_sweep_ = false;
  if (std::none_of(pools_.begin(), pools_.end(), [&](const auto& each) { return is_over(*each); }))
    return;
  if (!driver.entered()) return;
  if (!poll_streams(driver, nobody)) return;
  for (std::size_t i = 1; i < pools_.size();) {
    pool_state& each = *pools_[i];
    if (!is_over(each) || !may_release(each)) {
      ++i;
      continue;
    }
    if (each.memory != nullptr) {
      retire(each);
      static_cast<void>(each.memory->release(bytes::max(), driver.enter()));
      if (each.memory->reserved() != 0) {
        ++i;
        continue;
      }
      detail::report_failure(each.memory->close(driver.enter()));
    }
    accounts_.remove_pool(each.id);
    pools_.erase(pools_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

bool allocator_state::may_release(const pool_state& from) const noexcept {
  if (!from.of_graphs()) return true;
  if (from.retains && from.blocks != 0) return false;
  if (mutated(mutation::graph_memory_without_guards)) return from.holders == 0;
  return from.holders == 0 && std::all_of(from.guards.begin(), from.guards.end(),
                                          [&](stamp each) { return order_.completed(each); });
}

// --- Captures -----------------------------------------------------------------------------------

void allocator_state::update_capture_reason() noexcept {
  const thread_caches::stop stopped{caches_, own_cache()};
  caches_.set_reason(thread_cache::capturing, detect_captures_ || captures_.any_declared());
}

result<std::shared_ptr<graph_claim>> allocator_state::begin_capture(const stream_ref& stream) try {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(who, identify(stream, local()));
  if (who.id == stream_id{}) {
    return error{.code = errc::capture_forbidden,
                 .detail = "a capture is declared before it begins"};
  }
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  driver_access driver{core_.device};
  WEIR_TRY_VALUE(slot, slot_of(who, driver));  // known by its handle from now on
  if (captures_.is_declared(who.id)) {
    return error{.code = errc::invalid_argument,
                 .detail = "a capture of this stream is declared already"};
  }
  auto claim = std::make_shared<graph_claim>(std::weak_ptr<allocator_state>{}, pool_id{}, who.id);
  pool_state& made = add_pool("graph");
  made.of_capture = true;
  captures_.declare(who.id, made.id);
  order_.expect_capture(slot, true);
  claim->pool = made.id;
  claim->owner = weak_from_this();
  update_capture_reason();
  core_.tell({.kind = memory_event_kind::capture_begin, .pool = made.id, .stream = who.id});
  return claim;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

void allocator_state::end_capture(const graph_claim& claim) noexcept {
  if (!usable()) return;
  const std::lock_guard lock{mutex_};
  if (!captures_.end(claim.pool)) return;
  order_.expect_capture(order_.known(claim.stream), false);
  if (pool_state* const served = find_pool(claim.pool); served != nullptr) {
    served->takes_requests = false;
    if (mutated(mutation::graph_memory_let_go_at_end)) served->of_capture = false;
  }
  update_capture_reason();
  core_.tell({.kind = memory_event_kind::capture_end, .pool = claim.pool, .stream = claim.stream});
}

void allocator_state::release_claim(const graph_claim& claim) noexcept {
  end_capture(claim);
  release_pool(claim.pool);
}

result<void> allocator_state::keep_with(const graph_claim& claim, driver::CUgraph graph) try {
  WEIR_TRY(usable());
  if (graph == nullptr) return errc::invalid_argument;
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  pool_state* const kept = find_pool(claim.pool);
  if (kept == nullptr) return errc::already_freed;
  driver_access driver{core_.device};
  WEIR_TRY(driver.entered());
  WEIR_TRY(captures_.tie_to(graph, claim.pool, driver.enter()));
  ++kept->holders;
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

void allocator_state::sweep_graphs() noexcept {
  try {
    for (const pool_id each : captures_.sweep()) drop_holder(each);
  } catch (const std::bad_alloc&) {
    // The marks stay where they are; a later sweep sees them.
  }
}

result<pool_state*> allocator_state::capture_pool(const stream_ref& stream, stream_slot slot,
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
  pool_state& made = add_pool("graph");
  made.of_capture = true;
  auto tied = captures_.tie_to(graph, made.id, driver.enter());
  if (!tied) {
    accounts_.remove_pool(made.id);
    pools_.pop_back();
    return std::move(tied).error();
  }
  captures_.adopt(now.id, made.id);
  return &made;
}

}  // namespace weir::inline v0::heap
