// SPDX-License-Identifier: Apache-2.0
// The beginning and end of an allocator, and of each thread's cache in it.
#include "heap/central_heap.hpp"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "base/thread_end.hpp"
#include "device/rdma_probe.hpp"
#include "heap/carrier_scope.hpp"
#include "observe/tool_regions.hpp"
#include "order/all_work_wait.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// The caches of one thread, by allocator; handed back when the thread ends.
class thread_caches_by_heap {
 public:
  struct entry {
    std::uint64_t serial = 0;
    std::weak_ptr<central_heap> owner;
    thread_cache* cache = nullptr;
  };
  thread_caches_by_heap() = default;
  ~thread_caches_by_heap();
  thread_caches_by_heap(const thread_caches_by_heap&) = delete;
  thread_caches_by_heap& operator=(const thread_caches_by_heap&) = delete;

  std::vector<entry> entries;
};

// Set when the thread's book is gone: what still runs then, destructors of other keys say, goes
// without.
constinit thread_local bool thread_ended_already = false;

thread_caches_by_heap::~thread_caches_by_heap() {
  thread_ended_already = true;
  this_thread = {};
  for (const entry& each : entries)
    if (const auto owner = each.owner.lock()) owner->thread_ended(*each.cache);
}

/// The child of a fork starts without a cache at hand, so that its calls take the slow path, which
/// asks whether the process was forked; the fast path need not.
void forget_caches_in_children() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { this_thread = {}; });
  static_cast<void>(registered);
}

}  // namespace

// --- Beginning and end --------------------------------------------------------------------------

result<std::shared_ptr<central_heap>> central_heap::create(weir::device device,
                                                           const allocator_options& options) try {
  const auto& able = device.capabilities();
  if (options.policy != placement_policy::classic && !able.virtual_memory) {
    return error{
        {.code = errc::not_supported,
         .detail =
             "the device does not support virtual memory management; use heap_policy=classic"}};
  }
  if (options.exportable && (!able.posix_descriptors || is_classic(options.policy))) {
    return error{{.code = errc::not_supported,
                  .detail = able.posix_descriptors
                                ? "classic policies cannot create exportable memory; choose "
                                  "another heap_policy or heap_exportable=off"
                                : "the device cannot export memory; use heap_exportable=off"}};
  }
  if (options.debug != debug_checks::off && !able.virtual_memory) {
    return error{
        {.code = errc::not_supported,
         .detail = "heap_debug needs a device with virtual memory management; use heap_debug=off"}};
  }
  if (options.rdma == rdma_use::on && !(able.virtual_memory && able.rdma_with_virtual_memory)) {
    return error{{.code = errc::not_supported,
                  .detail = "rdma=on: the device cannot map memory that network cards reach; use "
                            "auto or off"}};
  }
  asymmetric_barrier::prepare();
  forget_caches_in_children();
  // The last handle may end in the user's code on a thread that the heap's end waits for.
  const auto end = [](central_heap* left) noexcept {
    const auto destroy = +[](central_heap* each) noexcept { delete each; };
    if (carrier_scope::is_for(*left)) return carrier_scope::end_afterwards(left, destroy);
    destroy(left);
  };
  std::shared_ptr<central_heap> heap{new central_heap{device, options}, end};
  // Record 0, which stands for none, is looked at by whoever finds none.
  if (!heap->blocks_.prepare(1) || heap->table_.footprint() == 0) return no_host_memory();
  WEIR_TRY_VALUE(legacy, stream_ref::legacy(device).id());
  heap->legacy_stream_ = legacy;
  heap->owner_ = heap;
  if (options.rdma == rdma_use::automatic && options.policy != placement_policy::classic) {
    // Asked here, so that no request pays for it. The stores read the answer.
    const context_scope bound{device};
    static_cast<void>(detail::maps_with_rdma(bound));
  }
  detail::add_listener(*heap->home_, *heap);
  return heap;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

central_heap::central_heap(weir::device device, const allocator_options& options)
    : heap_core{device, options},
      flusher_{*this, *this},
      progress_{*this, *this},
      callbacks_{*this},
      limits_{*this, *this},
      reclamation_{*this,          flusher_,       progress_,  callbacks_, residency_,
                   pool_registry_, capture_pools_, inspector_, *this},
      backup_{*this},
      suspended_peak_{*this},
      residency_{*this, reclamation_, backup_, suspended_peak_},
      pool_registry_{*this, progress_, backup_, *this},
      capture_pools_{*this, progress_, *this},
      trimming_{*this, flusher_, progress_, pool_registry_, residency_},
      inspector_{*this, *this, suspended_peak_, backup_, sizeof(central_heap)},
      observation_{*this, inspector_, limits_},
      peers_{*this, residency_, *this, *this},
      checked_frees_{*this, progress_, inspector_, pool_registry_},
      lender_{*this, progress_, *this} {
  if (detect_captures_) caches_.set_reason(thread_cache::capturing, true);
  placement_.unlocked = this;
  if (options.debug_stacks || checks_ != debug_checks::off) {
    history_ = std::make_unique<observe::block_history>();
    observers_->add(*history_);
  }
  // compute-sanitizer takes no memory that is mapped, and the classic policy's is not.
  if (checks_ != debug_checks::off || policy_ == placement_policy::classic) {
    tool_regions_ = observe::tool_regions::create();
    if (tool_regions_ != nullptr) observers_->add(*tool_regions_);
  }
  if (home_->make_block_watch) {
    block_watch_ = home_->make_block_watch();
    observers_->add(*block_watch_);
  }
  observation_.update();
}

central_heap::~central_heap() {
  if (!home_->forked()) {
    {
      const detail::mutex_lock lock{mutex_};  // a carrier of the residency may still emit events
      placement_.observer = &observers_->begin_end();
    }
    detail::report_failure(close());
  }
  // Stores that are left end with the core, after this object.
  placement_.unlocked = nullptr;
  placement_.outside = nullptr;
}

void central_heap::call_unlocked(call made, void* argument) noexcept {
  const detail::releases_under_way::release under_way{releases_};
  static_cast<void>(without_lock([&] { made(argument); }));
}

result<void> central_heap::close() {
  if (home_->forked()) return detail::fork_error();
  WEIR_TRY(residency_.may_end());
  result<void> outcome;
  std::optional<error> leaked;
  std::vector<card_shares::share> shares;
  heap_callbacks::taken callbacks;
  {
    const detail::mutex_lock lock{mutex_};
    if (closed_.exchange(true)) return {};
    residency_.end();
    while (wait_for_releases()) {  // those that are under way; the others find the heap closed
    }
    {
      const thread_caches::stop stopped{caches_, own_cache()};
      caches_.set_reason(thread_cache::closed, true);
      flusher_.settle_caches();
      static_cast<void>(flusher_.flush_all());
    }
    try {
      outcome = release_all(leaked);
    } catch (const std::bad_alloc&) {
      outcome = no_host_memory();
    }
    shares = limits_.remove_all_shares();
    callbacks = callbacks_.take_all();
  }
  // Streams that ended until now were told to the heap, which may have been waiting for them. Not
  // with the lock: the end of a stream takes it behind that of the listeners.
  detail::remove_listener(*home_, *this);
  peers_.stop_listening();
  for (const auto& each : shares)
    if (each.known.closed) each.known.closed();
  if (leaked) report_error(*leaked);
  return outcome;
}

result<void> central_heap::release_all(std::optional<error>& leaked) {
  driver_access driver{device_};
  result<void> outcome = driver.entered();
  const bool gone = !outcome && outcome.code() == errc::driver_gone;
  if (outcome && placement_.reserved != 0) outcome = wait_before_release(driver);
  const bool may_be_used = !outcome && !order::does_no_work(outcome.error());
  if (accounts_.total().blocks.current != 0 && !gone) {
    leaked.emplace(error{{.code = errc::still_live}});
    try {
      leaked = inspector_.leak();
    } catch (const std::bad_alloc&) {  // then without details
    }
  }
  if (may_be_used) {
    outcome = keep_memory(std::move(outcome).error(), driver);
  } else if (!gone) {
    auto ended = lender_.end(driver.enter());
    if (!ended && outcome) outcome = std::move(ended);
    for (const auto& each : pools_) {
      if (each->memory == nullptr) continue;
      auto closing = each->memory->close(driver.enter());
      if (!closing && outcome) outcome = std::move(closing);
    }
  }
  auto returned = backup_.release();
  if (!returned && outcome) outcome = std::move(returned).error();
  pending_.clear();
  foreign_uses_.clear();
  return outcome;
}

/// Whoever captures: nothing can be given back later.
result<void> central_heap::wait_before_release(driver_access& driver) try {
  order_.end_pauses();
  static_cast<void>(order_.mark_streams(driver.enter()));
  const order::all_work_wait work{order_, driver.enter(), progress_.other_devices()};
  result<void> waited;
  static_cast<void>(without_lock([&] { waited = work.wait(driver.enter()); }));
  WEIR_TRY(waited);
  progress_.learn_from(work);
  return {};
} catch (const std::bad_alloc&) {
  // A wait for this device alone needs no host memory, and is enough if no other one uses blocks.
  if (placement_.rights.size() > 1 || foreign_uses_.has_joint_stream()) return no_host_memory();
  result<void> waited;
  static_cast<void>(without_lock([&] { waited = detail::wait_for_all_work(driver.enter()); }));
  return waited;
}

namespace {

/// Stores whose memory may still be in use. They last as long as the process.
void keep_for_good(std::unique_ptr<backing_store> store) noexcept try {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<backing_store>>;
  const std::lock_guard lock{mutex};
  kept.reserve(kept.size() + 1);
  kept.push_back(std::move(store));
} catch (const std::bad_alloc&) {
  static_cast<void>(store.release());
}

}  // namespace

/// What is known to be idle goes; the rest stays mapped.
error central_heap::keep_memory(error reason, driver_access& driver) noexcept {
  std::uint64_t kept = 0;
  for (const auto& each : pools_) {
    if (each->memory == nullptr) continue;
    try {
      static_cast<void>(each->memory->release(bytes::max(), driver.enter()));
    } catch (const std::bad_alloc&) {  // then it stays, too
    }
    kept += each->memory->reserved();
    keep_for_good(std::move(each->memory));
  }
  try {
    reason.set_detail(to_string(bytes{kept}) +
                      " stay mapped, because work that may use them could not be waited for" +
                      (reason.detail().empty() ? "" : ": " + reason.detail()));
  } catch (const std::bad_alloc&) {  // then without details
  }
  return reason;
}

// --- What the inspector asks for ----------------------------------------------------------------

const pool_state* central_heap::suspendable_pool(tag tag) const noexcept {
  return residency_.suspendable_pool(tag);
}

// --- Which tags the caches may serve -------------------------------------------------------------

bool central_heap::is_apart(std::uint16_t tag) const noexcept {
  return accounts_.limited(tag) || residency_.has_tag_pool(tag);
}

void central_heap::update_limits() noexcept {
  caches_.for_each([&](thread_cache& each) {
    mutex_.assert_held();
    for (std::uint32_t i = 0; i < each.delta_count; ++i)
      each.limits[i] = is_apart(static_cast<std::uint16_t>(i));
  });
  caches_.set_reason(thread_cache::limited, accounts_.any_limit() || residency_.any_tag_pool());
}

// --- Streams that end ----------------------------------------------------------------------------

result<void> central_heap::release_stream(const stream_ref& stream) try {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(caller, heap::identify(*this, stream, local()));
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  driver_access driver{placement_.device};
  WEIR_TRY_VALUE(slot, slot_of(*this, caller, driver));
  WEIR_TRY(driver.entered());
  flusher_.flush_stream(slot);
  return order_.end_stream(slot, driver.enter());
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

/// Also while the heap is being closed, when it waits for streams without the lock.
void central_heap::stream_closing(const stream_ref& stream) noexcept {
  if (home_->forked()) return;
  const detail::mutex_lock lock{mutex_};
  if (stream.device() != device_) return foreign_uses_.stream_closing(stream);
  driver_access driver{device_};
  // Met or not: work on it may use memory that it never asked for.
  const stream_slot known = order_.known(stream.known_id());
  if (known != no_stream && !closed_.load(std::memory_order_relaxed)) flusher_.flush_stream(known);
  detail::report_failure(order_.end_stream(stream, driver.enter()));
}

// --- Threads -------------------------------------------------------------------------------------

const pool* central_heap::scoped_pool() const noexcept {
  for (const pool_scope* scope = innermost_scope(); scope != nullptr; scope = scope->outer_) {
    const pool* const into = scope->pool_.state_.get();
    if (into != nullptr && into->is_of(*this)) return into;
  }
  return nullptr;
}

thread_cache* central_heap::local() {
  if (!caches_.enabled() || thread_ended_already) return nullptr;
  if (this_thread.serial == serial_) return this_thread.cache;
  const bool in_scope = scoped_pool() != nullptr;
  auto* const book = detail::until_thread_end<thread_caches_by_heap>::own();
  if (book == nullptr) return nullptr;
  auto& entries = book->entries;
  std::erase_if(entries,
                [](const thread_caches_by_heap::entry& each) { return each.owner.expired(); });
  const auto known = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& each) { return each.serial == serial_; });
  thread_cache* cache = nullptr;
  if (known != entries.end()) {
    cache = known->cache;
  } else {
    entries.reserve(entries.size() + 1);
    const detail::mutex_lock lock{mutex_};
    cache = caches_.open();
    if (cache == nullptr) return nullptr;
    entries.push_back({serial_, weak_from_this(), cache});
  }
  // Inside a pool_scope the fast path stays shut: it would not look where requests go.
  this_thread = {.cache = cache, .owner = serial_};
  if (!in_scope) this_thread.serial = this_thread.unobserved = serial_;
  return cache;
}

void central_heap::thread_ended(thread_cache& cache) noexcept {
  if (home_->forked()) return;
  const detail::mutex_lock lock{mutex_};
  flusher_.close(cache);
  caches_.recycle(cache);
}

}}}  // namespace weir::v0::heap
