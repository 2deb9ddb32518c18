// The beginning and end of an allocator, and of each thread's cache in it.
#include "heap/allocator_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <utility>

namespace weir::inline v0::heap {
namespace {

std::atomic<std::uint64_t> next_serial{1};

/// The caches of one thread, by allocator; handed back when the thread ends.
class cache_book {
 public:
  struct entry {
    std::uint64_t serial = 0;
    std::weak_ptr<allocator_state> owner;
    thread_cache* cache = nullptr;
  };
  cache_book() = default;
  ~cache_book();
  cache_book(const cache_book&) = delete;
  cache_book& operator=(const cache_book&) = delete;

  std::vector<entry> entries;
};

// Set when the thread's book is gone: what still runs then, static destructors say, goes without.
constinit thread_local bool book_closed = false;

cache_book::~cache_book() {
  book_closed = true;
  here = {};
  for (const entry& each : entries)
    if (const auto owner = each.owner.lock()) owner->thread_ended(*each.cache);
}

cache_book& book() {
  thread_local cache_book mine;
  return mine;
}

/// The child of a fork starts without a cache at hand, so that its calls take the slow path, which
/// asks whether the process was forked; the fast path need not.
void forget_caches_in_children() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { here = {}; });
  static_cast<void>(registered);
}

}  // namespace

// --- Beginning and end --------------------------------------------------------------------------

result<std::shared_ptr<allocator_state>> allocator_state::create(weir::device where,
                                                                 const options& settings) {
  const auto& can = where.capabilities();
  if (settings.heap_policy != placement_policy::classic && !can.virtual_memory) {
    return error{
        .code = errc::not_supported,
        .detail = "the device has no virtual memory, which every policy but classic needs"};
  }
  if (settings.heap_exportable && (!can.posix_descriptors || is_classic(settings.heap_policy))) {
    return error{.code = errc::not_supported,
                 .detail = can.posix_descriptors ? "memory of classic policies is not exportable"
                                                 : "the device cannot export memory"};
  }
  asymmetric_barrier::prepare();
  forget_caches_in_children();
  auto made = std::make_shared<allocator_state>(where, settings);
  // Record 0, which stands for none, is looked at by whoever finds none.
  if (!made->blocks_.prepare(1) || made->table_.footprint() == 0) return no_host_memory();
  WEIR_TRY_VALUE(legacy, stream_ref::legacy(where).id());
  made->legacy_stream_ = legacy;
  detail::add_listener(*made->home_, *made);
  return made;
}

namespace {

std::uint64_t initial_limit(weir::device where, const options& settings) {
  std::uint64_t most = bytes::max().count();
  if (settings.heap_limit != bytes{}) most = settings.heap_limit.count();
  if (settings.heap_limit_percent < 100) {
    const auto percent = static_cast<std::uint64_t>(settings.heap_limit_percent);
    const std::uint64_t total = where.total_memory().count();
    most = std::min(most, total / 100 * percent + total % 100 * percent / 100);
  }
  return most;
}

std::uint64_t cache_size(const options& settings) {
  return is_classic(settings.heap_policy) ? 0 : settings.heap_thread_cache.count();
}

}  // namespace

allocator_state::allocator_state(weir::device where, const options& settings)
    : serial_{next_serial.fetch_add(1, std::memory_order_relaxed)},
      device_{where},
      policy_{settings.heap_policy},
      exportable_{settings.heap_exportable},
      detect_captures_{settings.heap_detect_captures},
      home_{detail::device_state::keep(where)},
      limit_{initial_limit(where, settings)},
      caches_{cache_size(settings)},
      order_{where, {settings.heap_crossing, settings.heap_unannounced_ends}},
      core_{.device = where,
            .blocks = blocks_,
            .order = order_,
            .unmap_at_once = settings.heap_debug_unmap,
            .queues_waits = settings.heap_queued_waits} {
  core_.reserved_limit = limit_.load(std::memory_order_relaxed);
  pools_.push_back(std::make_unique<pool_state>());
  pools_.front()->holders = 1;
  if (detect_captures_) caches_.set_reason(thread_cache::capturing, true);
}

allocator_state::~allocator_state() {
  if (home_->forked()) return;
  detail::report_failure(close());
}

result<void> allocator_state::usable() const {
  if (home_->forked()) return detail::fork_error();
  if (closed_.load(std::memory_order_relaxed)) return errc::already_freed;
  return {};
}

result<void> allocator_state::close() {
  if (home_->forked()) return detail::fork_error();
  detail::remove_listener(*home_, *this);
  std::unique_lock lock{mutex_};
  if (closed_.exchange(true)) return {};
  {
    const thread_caches::stop stopped{caches_, own_cache()};
    caches_.set_reason(thread_cache::closed, true);
    settle_caches();
    static_cast<void>(hand_back_all());
  }
  order_.end_pauses();  // what ends now must be waited for, whoever captures
  driver_access driver{device_};
  result<void> outcome = driver.entered();
  const bool gone = !outcome && outcome.code() == errc::driver_gone;
  if (outcome) outcome = wait_for_streams(driver);
  const std::uint64_t live = accounts_.total().blocks.current;
  const std::uint64_t live_bytes = accounts_.total().allocated.current;
  for (const auto& each : pools_) {
    if (each->memory == nullptr || gone) continue;
    auto closing = each->memory->close(driver.enter());
    if (!closing && outcome) outcome = std::move(closing);
  }
  pending_.clear();
  callbacks_.clear();
  lock.unlock();
  if (live != 0 && !gone) {
    report_error({.code = errc::already_freed,
                  .requested = bytes{live_bytes},
                  .detail = "an allocator was closed with " + std::to_string(live) +
                            " live blocks of " + to_string(bytes{live_bytes})});
  }
  return outcome;
}

thread_cache* allocator_state::local() {
  if (!caches_.enabled() || book_closed) return nullptr;
  if (here.serial == serial_) return here.cache;
  const pool* const scope = routed();
  const bool in_scope = scope != nullptr && scope->is_of(*this);
  auto& entries = book().entries;
  std::erase_if(entries, [](const cache_book::entry& each) { return each.owner.expired(); });
  const auto known = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& each) { return each.serial == serial_; });
  thread_cache* mine = nullptr;
  if (known != entries.end()) {
    mine = known->cache;
  } else {
    entries.reserve(entries.size() + 1);
    const std::lock_guard lock{mutex_};
    mine = caches_.open();
    if (mine == nullptr) return nullptr;
    entries.push_back({serial_, weak_from_this(), mine});
  }
  // Inside a pool_scope the fast path stays shut: it would not look where requests go.
  if (!in_scope) here = {serial_, mine, serial_};
  return mine;
}

void allocator_state::thread_ended(thread_cache& cache) noexcept {
  if (home_->forked()) return;
  const std::lock_guard lock{mutex_};
  // Those that still hold a block of this cache find it closed, and use the lock.
  const std::uint64_t left = cache.remote.exchange(remote_closed, std::memory_order_acquire);
  if (left != remote_closed) hand_back_list(static_cast<block_index>(left), false);
  static_cast<void>(hand_back(cache));
  // The thread's default stream goes with it, and nobody can ask that from elsewhere.
  if (cache.per_thread_stream != stream_id{}) {
    const stream_slot own = order_.known(cache.per_thread_stream);
    if (own != nobody) order_.lose(own);
  }
  caches_.recycle(cache);
}

}  // namespace weir::inline v0::heap
