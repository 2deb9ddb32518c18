// A cache for each device, found by whom a stream belongs to.
#include "weir/pool/buffer_pool.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "pools/block_cache.hpp"
#include "pools/guarded.hpp"

namespace weir::inline v0 {

namespace pools {

/// The caches of a buffer_pool, made when a device is first seen. Any thread; the lock is held for
/// a few instructions, and while the cache of a new device is made.
class device_caches {
 public:
  explicit device_caches(keeping limits) : limits_{std::move(limits)} {}

  [[nodiscard]] result<std::shared_ptr<block_cache>> of(weir::device where) {
    const std::lock_guard lock{mutex_};
    if (down_) return errc::already_freed;
    if (auto found = find(where); found != nullptr) return found;
    WEIR_TRY_VALUE(made, block_cache::create(where, plain_memory, limits_));
    all_.push_back(made);
    return made;
  }
  /// Null if nothing was ever taken there.
  [[nodiscard]] std::shared_ptr<block_cache> known(weir::device where) const {
    const std::lock_guard lock{mutex_};
    return find(where);
  }
  [[nodiscard]] std::vector<std::shared_ptr<block_cache>> all() const {
    const std::lock_guard lock{mutex_};
    return all_;
  }
  [[nodiscard]] bool contains(const std::shared_ptr<block_cache>& which) const {
    const std::lock_guard lock{mutex_};
    return std::find(all_.begin(), all_.end(), which) != all_.end();
  }
  void shut_down() {
    const std::lock_guard lock{mutex_};
    down_ = true;
  }

 private:
  [[nodiscard]] std::shared_ptr<block_cache> find(weir::device where) const {
    for (const auto& each : all_)
      if (each->device() == where) return each;
    return nullptr;
  }

  const keeping limits_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<block_cache>> all_;
  bool down_ = false;
};

namespace {

/// Does it with every cache; the sum, or the first failure. A handle that was moved from answers
/// like a pool that is gone.
template <class Call>
result<bytes> with_all(const std::shared_ptr<device_caches>& caches, const Call& call) {
  if (caches == nullptr) return errc::already_freed;
  return guarded([&]() -> result<bytes> {
    result<bytes> outcome = bytes{};
    for (const auto& each : caches->all()) {
      auto done = call(*each);
      if (!outcome) continue;
      if (done)
        *outcome += *done;
      else
        outcome = std::move(done);
    }
    return outcome;
  });
}

}  // namespace

}  // namespace pools

result<buffer_pool> buffer_pool::create(buffer_pool_options settings) {
  using std::chrono::nanoseconds;
  if (settings.longest_kept < nanoseconds{0})
    return error{.code = errc::invalid_argument, .detail = "longest_kept is negative"};
  pools::keeping limits{settings.most_kept};
  limits.crossing = settings.crossing;
  limits.longest = settings.longest_kept;
  if (limits.longest != nanoseconds::max()) {
    limits.clock = std::move(settings.clock);
    if (!limits.clock)
      limits.clock = [] {
        return nanoseconds{std::chrono::steady_clock::now().time_since_epoch()};
      };
  }
  return buffer_pool{std::make_shared<pools::device_caches>(std::move(limits))};
}

result<pooled_memory> buffer_pool::take(bytes size, const stream_ref& stream, contents inside,
                                        bytes alignment) const {
  if (inside_ == nullptr) return errc::already_freed;
  WEIR_TRY_VALUE(home, pools::guarded([&] { return inside_->of(stream.device()); }));
  return pooled_memory::create(home, size, stream, inside, alignment);
}

result<void> buffer_pool::give_back(pooled_memory&& buffer, const stream_ref& stream) const {
  if (!buffer || inside_ == nullptr) return errc::already_freed;
  if (!inside_->contains(buffer.home_)) return errc::foreign_pointer;
  return buffer.give_back(stream);
}

result<bytes> buffer_pool::empty(weir::device where) const {
  if (inside_ == nullptr) return errc::already_freed;
  const auto found = inside_->known(where);
  if (found == nullptr) return bytes{};
  return pools::guarded([&] { return found->trim({}); });
}

result<bytes> buffer_pool::empty() const {
  return pools::with_all(inside_, [](pools::block_cache& each) { return each.trim({}); });
}

result<bytes> buffer_pool::trim() const {
  return pools::with_all(inside_,
                         [](pools::block_cache& each) { return each.trim(each.threshold()); });
}

buffer_pool_stats buffer_pool::stats(weir::device where) const {
  if (inside_ == nullptr) return {};
  const auto found = inside_->known(where);
  if (found == nullptr) return {};
  const block_pool_stats now = found->stats();
  return {.hits = now.hits,
          .misses = now.misses,
          .returns = now.frees,
          .kept = bytes{now.cached},
          .taken = bytes{now.allocated.current},
          .taken_peak = bytes{now.allocated.peak}};
}

buffer_pool_stats buffer_pool::stats() const {
  buffer_pool_stats sum;
  if (inside_ == nullptr) return sum;
  for (const auto& each : inside_->all()) {
    const buffer_pool_stats one = stats(each->device());
    sum.hits += one.hits;
    sum.misses += one.misses;
    sum.returns += one.returns;
    sum.kept += one.kept;
    sum.taken += one.taken;
    sum.taken_peak += one.taken_peak;
  }
  return sum;
}

result<void> buffer_pool::shutdown() const {
  if (inside_ == nullptr) return errc::already_freed;
  inside_->shut_down();
  auto closed = pools::with_all(inside_, [](pools::block_cache& each) -> result<bytes> {
    WEIR_TRY(each.close());
    return bytes{};
  });
  if (!closed) return std::move(closed).error();
  return {};
}

}  // namespace weir::inline v0
