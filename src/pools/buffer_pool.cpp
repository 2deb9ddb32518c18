// SPDX-License-Identifier: Apache-2.0
// A cache for each device, chosen by the device of the stream.
#include "weir/pool/buffer_pool.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "pools/block_cache.hpp"
#include "pools/guarded.hpp"

namespace weir { inline namespace v0 {

namespace pools {

/// The caches of a buffer_pool, made when a device is first seen. Shared by its handles. Any
/// thread; the lock is held for a few instructions, and while the cache of a new device is made. In
/// a forked child the lock is not taken: whoever calls asks forked() first.
class device_caches {
 public:
  explicit device_caches(cache_limits limits) : limits_{std::move(limits)} {}

  [[nodiscard]] bool forked() const noexcept {
    return generation_ != detail::fork_generation.load(std::memory_order_relaxed);
  }
  /// The device's, made if need be. closed: the pool was.
  [[nodiscard]] result<std::shared_ptr<block_cache>> of(weir::device device) {
    if (forked()) return detail::fork_error();
    const detail::mutex_lock lock{mutex_};
    if (closed_) return errc::closed;
    if (auto known = find_locked(device); known != nullptr) return known;
    WEIR_TRY_VALUE(cache, block_cache::create(device, plain_memory(), limits_));
    caches_.push_back(cache);
    return cache;
  }
  /// Null if nothing was ever taken there.
  [[nodiscard]] std::shared_ptr<block_cache> find(weir::device device) const {
    const detail::mutex_lock lock{mutex_};
    return find_locked(device);
  }
  [[nodiscard]] bool is_closed() const {
    const detail::mutex_lock lock{mutex_};
    return closed_;
  }
  /// Calls it with each, without the lock.
  template <class Call>
  void for_each(const Call& call) const {
    for (std::size_t index = 0; const auto cache = at(index); ++index) call(*cache);
  }
  [[nodiscard]] bool contains(const memory_home* home) const {
    const detail::mutex_lock lock{mutex_};
    return std::any_of(caches_.begin(), caches_.end(),
                       [&](const auto& cache) { return cache.get() == home; });
  }
  void close() {
    const detail::mutex_lock lock{mutex_};
    closed_ = true;
  }

 private:
  /// Null: there are no more.
  [[nodiscard]] std::shared_ptr<block_cache> at(std::size_t index) const {
    const detail::mutex_lock lock{mutex_};
    return index < caches_.size() ? caches_[index] : nullptr;
  }
  [[nodiscard]] std::shared_ptr<block_cache> find_locked(weir::device device) const
      WEIR_REQUIRES(mutex_) {
    for (const auto& cache : caches_)
      if (cache->device() == device) return cache;
    return nullptr;
  }

  const cache_limits limits_;
  const std::uint32_t generation_ = detail::fork_generation.load(std::memory_order_relaxed);
  mutable detail::mutex mutex_;
  std::vector<std::shared_ptr<block_cache>> caches_ WEIR_GUARDED_BY(mutex_);
  bool closed_ WEIR_GUARDED_BY(mutex_) = false;
};

namespace {

/// Whether the caches can be used.
result<void> check(const std::shared_ptr<device_caches>& caches) {
  if (caches == nullptr) return errc::moved_from;
  if (caches->forked()) return detail::fork_error();
  return {};
}

/// Calls it with every cache; the sum, or the first failure.
template <class Call>
result<bytes> sum_over_all(const std::shared_ptr<device_caches>& caches, const Call& call) {
  WEIR_TRY(check(caches));
  result<bytes> sum = bytes{};
  caches->for_each([&](block_cache& cache) {
    auto outcome = guarded([&] { return call(cache); });
    if (!sum) return;
    if (outcome)
      *sum += *outcome;
    else
      sum = std::move(outcome);
  });
  return sum;
}

/// Calls it with the cache of the device; nothing if there is none.
template <class Call>
result<bytes> with_device(const std::shared_ptr<device_caches>& caches, weir::device device,
                          const Call& call) {
  WEIR_TRY(check(caches));
  const auto cache = caches->find(device);
  if (cache == nullptr) return bytes{};
  return guarded([&] { return call(*cache); });
}

}  // namespace
}  // namespace pools

result<buffer_pool> buffer_pool::create(buffer_pool_options options) {
  using std::chrono::nanoseconds;
  if (options.max_idle_time < nanoseconds{0})
    return error{{.code = errc::invalid_argument, .detail = "max_idle_time must not be negative"}};
  pools::cache_limits limits{options.max_cached, options.crossing};
  limits.max_idle_time = options.max_idle_time;
  if (limits.max_idle_time != nanoseconds::max()) {
    limits.clock = std::move(options.clock);
    if (!limits.clock)
      limits.clock = [] {
        return nanoseconds{std::chrono::steady_clock::now().time_since_epoch()};
      };
  }
  return pools::guarded([&]() -> result<buffer_pool> {
    return buffer_pool{std::make_shared<pools::device_caches>(std::move(limits))};
  });
}

result<pooled_memory> buffer_pool::take(bytes size, const stream_ref& stream, contents initial,
                                        bytes alignment) const {
  WEIR_TRY(pools::check(state_));
  WEIR_TRY_VALUE(cache, pools::guarded([&] { return state_->of(stream.device()); }));
  return pooled_memory::create(cache, size, stream, initial, alignment);
}

result<pooled_memory> buffer_pool::try_take_cached(bytes size, const stream_ref& stream,
                                                   contents initial, bytes alignment) const {
  WEIR_TRY(pools::check(state_));
  if (state_->is_closed()) return errc::closed;
  const auto cache = state_->find(stream.device());
  if (cache == nullptr) return error{{.code = errc::not_found, .requested = size}};
  return pooled_memory::create_cached(cache, size, stream, initial, alignment);
}

result<void> buffer_pool::free(pooled_memory&& buffer, const stream_ref& stream) const {
  WEIR_TRY(pools::check(state_));
  if (!buffer || state_->contains(buffer.home_.get())) return buffer.free(stream);
  return pools::guarded([&]() -> result<void> {
    return error{
        {.code = errc::foreign_pointer,
         .detail = "the buffer belongs to another pool: " +
                   observe::words_of({.address = reinterpret_cast<std::uintptr_t>(buffer.data()),
                                      .size = buffer.size()})}};
  });
}

result<bytes> buffer_pool::trim(weir::device device, bytes keep) const {
  return pools::with_device(state_, device, [&](auto& cache) { return cache.trim(keep); });
}

result<bytes> buffer_pool::trim(bytes keep) const {
  return pools::sum_over_all(state_, [&](auto& cache) { return cache.trim(keep); });
}

result<bytes> buffer_pool::empty_cache(weir::device device) const {
  return pools::with_device(state_, device, [](auto& cache) { return cache.empty_cache(); });
}

result<bytes> buffer_pool::empty_cache() const {
  return pools::sum_over_all(state_, [](auto& cache) { return cache.empty_cache(); });
}

buffer_pool_stats buffer_pool::stats(weir::device device) const {
  if (state_ == nullptr) raise(errc::moved_from);
  if (!pools::check(state_)) return {};
  const auto cache = state_->find(device);
  if (cache == nullptr) return {};
  const block_pool_stats blocks = cache->stats();
  return {.hits = blocks.hits,
          .misses = blocks.misses,
          .returns = blocks.frees,
          .cached = blocks.cached,
          .taken = blocks.allocated.current,
          .taken_peak = blocks.allocated.peak};
}

buffer_pool_stats buffer_pool::stats() const {
  buffer_pool_stats sum;
  if (state_ == nullptr) raise(errc::moved_from);
  if (!pools::check(state_)) return sum;
  state_->for_each([&](const pools::block_cache& cache) {
    const buffer_pool_stats one = stats(cache.device());
    sum.hits += one.hits;
    sum.misses += one.misses;
    sum.returns += one.returns;
    sum.cached += one.cached;
    sum.taken += one.taken;
    sum.taken_peak += one.taken_peak;
  });
  return sum;
}

void buffer_pool::reset_peaks(weir::device device) const {
  if (state_ == nullptr) raise(errc::moved_from);
  if (!pools::check(state_)) return;
  if (const auto cache = state_->find(device); cache != nullptr) cache->reset_peaks();
}

void buffer_pool::reset_peaks() const {
  if (state_ == nullptr) raise(errc::moved_from);
  if (!pools::check(state_)) return;
  state_->for_each([](auto& cache) { cache.reset_peaks(); });
}

void buffer_pool::reset_counters(weir::device device) const {
  if (state_ == nullptr) raise(errc::moved_from);
  if (!pools::check(state_)) return;
  if (const auto cache = state_->find(device); cache != nullptr) cache->reset_counters();
}

void buffer_pool::reset_counters() const {
  if (state_ == nullptr) raise(errc::moved_from);
  if (!pools::check(state_)) return;
  state_->for_each([](auto& cache) { cache.reset_counters(); });
}

result<void> buffer_pool::close() const {
  WEIR_TRY(pools::check(state_));
  state_->close();
  const auto close_cache = [](auto& cache) -> result<bytes> {
    WEIR_TRY(cache.close());
    return bytes{};
  };
  WEIR_TRY(pools::sum_over_all(state_, close_cache));
  return {};
}

}}  // namespace weir::v0
