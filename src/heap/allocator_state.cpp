// The slow paths of requests and frees.
#include "heap/allocator_state.hpp"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <utility>

#include "heap/ladder.hpp"
#include "heap/mutation.hpp"
#include "weir/checked.hpp"

namespace weir::inline v0::heap {
namespace {

/// What a stream frees is made known to the others after this much in several frees, or a 256th of
/// all memory.
constexpr std::uint64_t least_shared = 1 << 18;

std::atomic<std::uint64_t> next_serial{1};

error no_host_memory() {
  return error{.code = errc::system, .detail = "the host has no memory for the books"};
}

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

bool is_gone(const error& reason) {
  return reason.code == errc::invalid_handle ||
         reason.native == driver::CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

result<request> make_request(bytes size, bytes alignment) {
  if (!is_power_of_two(alignment.count()) || alignment > bytes{std::uint64_t{2} << 20}) {
    return error{.code = errc::bad_alignment,
                 .requested = size,
                 .detail = "an alignment is a power of two of at most 2 MiB"};
  }
  const std::uint64_t units = size.count() / unit + (size.count() % unit == 0 ? 0 : 1);
  if (units > most_units) return error{.code = errc::size_overflow, .requested = size};
  return request{.units = static_cast<std::uint32_t>(units),
                 .alignment = static_cast<std::uint32_t>(
                     alignment.count() <= unit ? 1 : alignment.count() / unit)};
}

}  // namespace

// --- Beginning and end --------------------------------------------------------------------------

result<std::shared_ptr<allocator_state>> allocator_state::create(weir::device where,
                                                                 const options& settings) {
  const bool is_classic = settings.heap_policy == placement_policy::classic;
  if (!is_classic && !where.capabilities().virtual_memory) {
    return error{
        .code = errc::not_supported,
        .detail = "the device has no virtual memory, which every policy but classic needs"};
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
  const bool is_classic = settings.heap_policy == placement_policy::classic ||
                          settings.heap_policy == placement_policy::classic_expandable;
  return is_classic ? 0 : settings.heap_thread_cache.count();
}

}  // namespace

allocator_state::allocator_state(weir::device where, const options& settings)
    : serial_{next_serial.fetch_add(1, std::memory_order_relaxed)},
      device_{where},
      policy_{settings.heap_policy},
      detect_captures_{settings.heap_detect_captures},
      home_{detail::device_state::keep(where)},
      limit_{initial_limit(where, settings)},
      caches_{cache_size(settings)},
      streams_{where},
      core_{.device = where,
            .blocks = blocks_,
            .streams = streams_,
            .unmap_at_once = settings.heap_debug_unmap} {
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
  if (!in_scope) here = {serial_, mine};
  return mine;
}

void allocator_state::thread_ended(thread_cache& cache) noexcept {
  if (home_->forked()) return;
  const std::lock_guard lock{mutex_};
  // Those that still hold a block of this cache find it closed, and use the lock.
  const std::uint64_t left = cache.remote.exchange(remote_closed, std::memory_order_acquire);
  if (left != remote_closed) hand_back_list(static_cast<block_index>(left), false);
  static_cast<void>(hand_back(cache));
  caches_.recycle(cache);
}

// --- Streams ------------------------------------------------------------------------------------

result<allocator_state::caller> allocator_state::identify(const stream_ref& stream,
                                                          thread_cache* cache) {
  if (stream.device() != device_) {
    return error{.code = errc::bad_stream, .detail = "the stream is of another device"};
  }
  if (stream.known_id() != stream_id{}) return caller{stream, stream.known_id()};
  if (stream.is_legacy()) return caller{stream, legacy_stream_};
  if (stream.is_per_thread() && cache != nullptr && cache->per_thread_stream != stream_id{}) {
    return caller{stream, cache->per_thread_stream};
  }
  const bool per_thread = stream.is_per_thread();  // its reference never knows its id
  stream_id id{};
  const auto asked = stream.identified();
  std::optional<error> refused;
  if (!asked) {
    refused = asked.error();
  } else if (per_thread) {
    auto number = stream.id();
    if (number) {
      id = *number;
    } else {
      refused = std::move(number).error();
    }
  } else {
    id = asked->known_id();
  }
  if (refused) {
    if (refused->code == errc::capture_forbidden) return caller{stream, {}};
    if (is_gone(*refused)) refused->code = errc::bad_stream;
    return *std::move(refused);
  }
  if (per_thread && cache != nullptr) cache->per_thread_stream = id;
  return caller{*asked, id};
}

result<stream_slot> allocator_state::slot_of(const caller& who, driver_access& driver) {
  if (who.id != stream_id{}) {
    if (const stream_slot known = streams_.known(who.id); known != nobody) {
      streams_.met_alive(known);
      return known;
    }
  }
  WEIR_TRY(driver.entered());
  return streams_.slot_of(who.ref, driver.enter());
}

bool allocator_state::retire_all() noexcept {
  for (const auto& each : pools_) {
    if (each->memory == nullptr) continue;
    for (stream_slot slot = 1; slot <= streams_.count(); ++slot) each->memory->retire(slot);
  }
  return pending_.take_passed(streams_, [&](block_index which, stamp freed) {
    const block& what = blocks_[which];
    accounts_.pending(what.account, -static_cast<std::int64_t>(what.size()));
    give_back(which, freed);
  });
}

result<bool> allocator_state::poll_streams(driver_access& driver, stream_slot close_but) {
  WEIR_TRY(driver.entered());
  bool grew = false;
  for (stream_slot slot = 1; slot <= streams_.count(); ++slot) {
    if (!streams_.behind(slot)) continue;
    if (slot != close_but) WEIR_TRY(streams_.close(slot, driver.enter()));
    WEIR_TRY_VALUE(passed, streams_.poll(slot, driver.enter()));
    grew = grew || passed;
  }
  if (grew) static_cast<void>(retire_all());
  return grew;
}

result<bool> allocator_state::any_capturing(driver_access& driver) {
  if (captures_.any_declared()) return true;
  WEIR_TRY(driver.entered());
  for (stream_slot slot = 1; slot <= streams_.count(); ++slot) {
    if (streams_.lost(slot) || streams_.ref(slot).is_per_thread()) continue;
    const auto asked = streams_.ref(slot).is_capturing(driver.enter());
    if (asked && *asked) return true;
  }
  return false;
}

result<void> allocator_state::wait_for_streams(driver_access& driver) {
  WEIR_TRY(poll_streams(driver, nobody));
  bool left = false;
  for (stream_slot slot = 1; slot <= streams_.count(); ++slot) {
    WEIR_TRY(streams_.synchronize(slot, driver.enter()));
    left = left || streams_.behind(slot);
  }
  if (left) {
    // Streams that can no longer be asked: only the whole device's rest tells about them.
    WEIR_TRY_VALUE(capturing, any_capturing(driver));
    if (!capturing) {
      auto rested =
          mutated(mutation::device_never_waited_for) ? result<void>{} : device_.synchronize();
      // Somebody else's stream is being captured: the device cannot be waited for now.
      const bool forbidden = !rested && rested.code() == errc::capture_forbidden;
      if (!rested && !forbidden) return rested;
      if (rested) streams_.device_synchronized();
    }
  }
  static_cast<void>(retire_all());
  return {};
}

// --- Requests -----------------------------------------------------------------------------------

result<void*> allocator_state::allocate(bytes size, const stream_ref& stream, bytes alignment,
                                        const pool* from) try {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(wanted, make_request(size, alignment));
  if (size == bytes{}) return nullptr;
  thread_cache* const cache = local();
  WEIR_TRY_VALUE(who, identify(stream, cache));
  const bool chosen = from != nullptr;
  if (!chosen) {
    const pool* const scope = routed();
    if (scope != nullptr && scope->is_of(*this)) from = scope;
  }

  std::optional<capture_status> capturing;
  if (cache != nullptr && from == nullptr && wanted.alignment == 1 && who.id != stream_id{}) {
    if (cache->asks_captures()) {
      WEIR_TRY_VALUE(now, who.ref.capture());
      capturing = now.status;
    }
    if (capturing != capture_status::active) {
      void* const hit = allocate_cached(*cache, size, who.id,
                                        thread_cache::capturing | thread_cache::closer_look);
      if (hit != nullptr) return hit;
    }
  }
  std::unique_lock lock{mutex_};
  return allocate_locked(lock, size, wanted, who, from, chosen, capturing);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<pool_state*> allocator_state::route(const pool* from) {
  if (from == nullptr) return pools_.front().get();
  pool_state* const chosen = find_pool(from->id());
  if (chosen == nullptr || !from->is_of(*this)) return errc::already_freed;
  return chosen;
}

result<void> allocator_state::make_table_room() {
  if (!table_.full()) [[likely]]
    return {};
  const thread_caches::stop stopped{caches_, own_cache()};
  if (!table_.grow()) return no_host_memory();
  return {};
}

result<void*> allocator_state::allocate_locked(std::unique_lock<std::mutex>& lock, bytes size,
                                               const request& wanted, const caller& who,
                                               const pool* from, bool chosen_by_user,
                                               std::optional<capture_status> capturing) {
  WEIR_TRY(usable());
  if (captures_.ended()) sweep_graphs();
  driver_access driver{device_};
  request complete = wanted;
  WEIR_TRY_VALUE(slot, slot_of(who, driver));
  complete.stream = slot;
  WEIR_TRY_VALUE(chosen, route(from));
  if (!capturing && (captures_.any_declared() || detect_captures_)) {
    WEIR_TRY(driver.entered());
    WEIR_TRY_VALUE(now, who.ref.capture(driver.enter()));
    capturing = now.status;
  }

  const tag what = current_tag();
  if (!accounts_.may_allocate(what, complete.units * unit)) {
    accounts_.failed(chosen->id, what);
    return error{.code = errc::limit_exceeded,
                 .requested = size,
                 .detail = "tag \"" + std::string{what.name()} + "\" may have " +
                           to_string(bytes{accounts_.limit(what)})};
  }
  thread_cache* const cache = from == nullptr ? own_cache() : nullptr;
  ladder search{*this, lock, driver, complete, *chosen, who.ref, cache, chosen_by_user};
  if (capturing) WEIR_TRY(search.know_capture(*capturing));
  WEIR_TRY_VALUE(found, search.find_room());
  if (found == no_block) {
    accounts_.failed(search.pool().id, what);
    if (core_.observer != nullptr) {
      core_.observer->on_event({.kind = memory_event_kind::out_of_memory,
                                .tag = what.number(),
                                .device = device_.id(),
                                .pool = search.pool().id,
                                .stream = streams_.id(slot),
                                .size = size.count(),
                                .rounded = complete.units * unit});
    }
    return error{.code = errc::out_of_memory,
                 .requested = size,
                 .detail = to_string(bytes{core_.reserved}) + " are reserved, " +
                           to_string(bytes{accounts_.total().allocated.current}) + " live"};
  }
  hand_out(found, size, search.account(), search.pool(), streams_.id(slot), cache);
  share_if_due();
  return reinterpret_cast<void*>(blocks_[found].address);
}

void allocator_state::hand_out(block_index which, bytes size, account_number account,
                               pool_state& from, stream_id stream, thread_cache* cache) noexcept {
  block& what = blocks_[which];
  what.recorded = false;
  what.account = account;
  what.out.waste = static_cast<std::uint32_t>(what.size() - size.count());
  what.out.next = no_block;
  what.out.home = 0;
  table_.insert(what.address, which);
  if (thread_cache* const own = own_cache(); own != nullptr && account < own->delta_count) {
    accounts_.allocated(account, size.count(), what.size(), own->deltas[account]);
  } else {
    accounts_.allocated(account, size.count(), what.size());
  }
  ++from.blocks;
  if (cache != nullptr && !is_private(account)) {
    cache->most_units.store(caches_.bound_at(core_.reserved), std::memory_order_relaxed);
    // So that the free finds its place; without host memory it goes to the store instead.
    if (const std::uint32_t before = cache->delta_count;
        account >= before && cache->make_room(account)) {
      for (std::uint32_t i = before; i < cache->delta_count; ++i)
        cache->limits[i] = accounts_.limited(static_cast<std::uint16_t>(i));
    }
    if (account < cache->delta_count) what.out.home = cache->number;
    static_cast<void>(ensure_bins(*cache, stream, what.stream));
  }
  if (core_.observer != nullptr)
    emit(core_.observer, memory_event_kind::allocate, what, stream, account);
}

void allocator_state::emit(event_sink* to, memory_event_kind kind, const block& what,
                           stream_id stream, account_number account) const noexcept {
  to->on_event({.kind = kind,
                .tag = is_private(account) ? accounts_.tag_of(account).number() : account,
                .device = device_.id(),
                .pool = is_private(account) ? accounts_.pool_of(account) : pool_id{},
                .stream = stream,
                .address = what.address,
                .size = what.size() - what.out.waste,
                .rounded = what.size()});
}

// --- Frees --------------------------------------------------------------------------------------

result<void> allocator_state::deallocate(void* pointer, const stream_ref* stream,
                                         bytes expected) try {
  WEIR_TRY(usable());
  if (pointer == nullptr) return {};
  thread_cache* const cache = local();
  std::optional<caller> who;
  if (stream != nullptr) {
    WEIR_TRY_VALUE(known, identify(*stream, cache));
    who = known;
  }
  if (cache != nullptr) {
    bool capturing = false;
    if (cache->asks_captures()) {
      capturing = true;
      if (who && who->id != stream_id{}) {
        WEIR_TRY_VALUE(active, who->ref.is_capturing());
        capturing = active;
      }
    }
    if (!capturing && (!who || who->id != stream_id{}) &&
        deallocate_cached(*cache, pointer, who ? who->id : stream_id{}, expected,
                          thread_cache::capturing | thread_cache::closer_look))
      return {};
  }
  const std::lock_guard lock{mutex_};
  return deallocate_locked(pointer, who ? &*who : nullptr, expected);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<block_index> allocator_state::find_live(const void* pointer) {
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const block_index which = table_.find(address);
  if (which == no_block) return not_a_block(address);
  if (blocks_[which].is() != block_kind::live) return errc::double_free;
  return which;
}

error allocator_state::not_a_block(std::uint64_t address) {
  // What went back to a store is no block any more; its bytes lie in something free.
  for (const auto& each : pools_) {
    if (each->memory == nullptr) continue;
    pool_snapshot inside;
    each->memory->describe(inside);
    for (const block_info& piece : inside.blocks) {
      if (address < piece.address || address - piece.address >= piece.size.count()) continue;
      const bool is_free = piece.state == block_state::free ||
                           piece.state == block_state::stream_bound ||
                           piece.state == block_state::hole;
      if (is_free) return error{.code = errc::double_free};
      return error{.code = errc::foreign_pointer,
                   .detail = "the address is inside a block, not its start"};
    }
  }
  return error{.code = errc::foreign_pointer};
}

result<void> allocator_state::deallocate_locked(void* pointer, const caller* who, bytes expected) {
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(which, find_live(pointer));
  block& what = blocks_[which];
  driver_access driver{device_};
  stream_slot slot = what.stream;
  if (who != nullptr) {
    WEIR_TRY_VALUE(found, slot_of(*who, driver));
    if (!mutated(mutation::stream_of_free_forgotten)) slot = found;
  }
  const std::uint64_t requested = what.size() - what.out.waste;
  if (what.recorded) pending_.prepare(which);  // may throw; from here on nothing fails
  result<void> outcome;
  if (expected != any_size && expected.count() != requested) {
    outcome = error{.code = errc::invalid_argument,
                    .requested = expected,
                    .detail = "the block was asked for with " + to_string(bytes{requested})};
  }
  if (core_.observer != nullptr) {
    emit(core_.observer, memory_event_kind::deallocate, what, streams_.id(slot), what.account);
  }
  accounts_.freed(what.account, requested, what.size());
  if (what.recorded) {
    free_recorded(which, slot, driver);
    return outcome;
  }
  thread_cache* const cache = own_cache();
  const bool keeps = cache != nullptr && !is_private(what.account) && !captures_.any_declared() &&
                     !detect_captures_ && cache->counts(what.account) && !streams_.lost(slot);
  if (!keeps || !keep(*cache, which, slot, streams_.id(slot))) {
    what.become(block_kind::pending);
    give_back(which, streams_.now(slot));
    if (pools_to_sweep_) sweep_pools(driver);
  }
  share_if_due();
  return outcome;
}

void allocator_state::share_if_due() noexcept {
  if (to_share_ == nobody) [[likely]]
    return;
  driver_access driver{device_};
  share_freed(driver);
}

void allocator_state::share_freed(driver_access& driver) noexcept {
  const stream_slot slot = std::exchange(to_share_, nobody);
  if (!driver.entered()) return;
  static_cast<void>(streams_.close(slot, driver.enter()));
  bool grew = false;
  for (stream_slot each = 1; each <= streams_.count(); ++each) {
    const auto passed = streams_.poll(each, driver.enter());
    grew = grew || (passed && *passed);
  }
  if (grew) static_cast<void>(retire_all());
}

bool allocator_state::keep(thread_cache& cache, block_index which, stream_slot slot,
                           stream_id id) noexcept {
  block& what = blocks_[which];
  stream_bins* const bins = ensure_bins(cache, id, slot);
  if (bins == nullptr) return false;
  if (what.units > most_binned_units) {
    static_cast<void>(hand_back_large(cache));
    cache.large = which;
    cache.large_units = what.units;
  } else {
    if (cache.unplaced != no_block) static_cast<void>(hand_back_unplaced(cache));
    if (what.units > cache.bound()) return false;
    if (cache.units + what.units > cache.bound()) hand_back_half(cache, *bins);
    bins->push(which, what);
    cache.units += what.units;
  }
  what.become(block_kind::thread_cached);
  what.stream = slot;
  return true;
}

void allocator_state::free_recorded(block_index which, stream_slot slot,
                                    driver_access& driver) noexcept {
  block& what = blocks_[which];
  pending::waiting waits = pending_.forget(which, slot, streams_);
  what.recorded = false;
  what.become(block_kind::pending);
  what.stream = slot;
  if (waits.others.empty()) {
    give_back(which, waits.freed);
    return;
  }
  // An epoch that cannot be closed now (a capture, a driver in trouble) is closed by the next
  // request that looks for room; the block waits, and the free is done.
  if (driver.entered()) {
    for (const stamp& each : waits.others)
      static_cast<void>(streams_.close(each.stream, driver.enter()));
  }
  pending_.add(std::move(waits));
  accounts_.pending(what.account, static_cast<std::int64_t>(what.size()));
}

pool_state& allocator_state::pool_of(const block& what) noexcept {
  if (!is_private(what.account)) [[likely]]
    return *pools_.front();
  return *find_pool(accounts_.pool_of(what.account));
}

void allocator_state::give_back(block_index which, stamp freed) noexcept {
  block& what = blocks_[which];
  pool_state& from = pool_of(what);
  table_.erase(what.address);
  --from.blocks;
  if (streams_.add_freed(freed.stream, what.size(), least_shared,
                         std::max(4 * least_shared, core_.reserved / 256)))
    to_share_ = freed.stream;
  from.memory->give_back(which, freed);
  if (from.blocks == 0 && from.holders == 0) pools_to_sweep_ = true;
}

result<void> allocator_state::record_stream(void* pointer, const stream_ref& stream) try {
  WEIR_TRY(usable());
  thread_cache* const cache = local();
  WEIR_TRY_VALUE(who, identify(stream, cache));
  const std::lock_guard lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY_VALUE(which, find_live(pointer));
  driver_access driver{device_};
  WEIR_TRY_VALUE(slot, slot_of(who, driver));
  pending_.record(which, slot);
  blocks_[which].recorded = true;
  blocks_[which].out.home = 0;  // nobody frees it without looking
  if (core_.observer != nullptr) {
    core_.observer->on_event({.kind = memory_event_kind::record_stream,
                              .tag = accounts_.tag_of(blocks_[which].account).number(),
                              .device = device_.id(),
                              .pool = accounts_.pool_of(blocks_[which].account),
                              .stream = streams_.id(slot),
                              .address = blocks_[which].address});
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> allocator_state::size_of(const void* pointer) {
  WEIR_TRY(usable());
  const std::lock_guard lock{mutex_};
  WEIR_TRY_VALUE(which, find_live(pointer));
  return bytes{blocks_[which].size() - blocks_[which].out.waste};
}

}  // namespace weir::inline v0::heap
