// SPDX-License-Identifier: Apache-2.0
// Streams that weir created or watches, and the sources that know of more.
#include "device/stream_registry.hpp"

#include <algorithm>
#include <new>

#include "base/condition.hpp"
#include "device/state.hpp"

namespace weir { inline namespace v0 {
namespace detail {

void stream_registry::add(const stream_ref& stream) {
  const std::lock_guard lock{mutex_};
  if (find(stream.known_id()) != streams_.end()) return;
  streams_.push_back({stream, additions_.load(std::memory_order_relaxed) + 1});
  additions_.fetch_add(1, std::memory_order_release);
}

std::vector<stream_registry::entry>::iterator stream_registry::find(stream_id id) noexcept {
  return std::find_if(streams_.begin(), streams_.end(),
                      [&](const entry& each) { return each.stream.known_id() == id; });
}

std::uint64_t stream_registry::registration_of(stream_id id) noexcept {
  const std::lock_guard lock{mutex_};
  const auto known = find(id);
  return known == streams_.end() ? 0 : known->registration;
}

void stream_registry::remove(stream_id id) noexcept {
  const std::lock_guard lock{mutex_};
  if (const auto known = find(id); known != streams_.end()) streams_.erase(known);
}

/// Those that ask have locks that the end of what a source holds may take: it ends in
/// remove_source(), never here.
class stream_registry::asked_sources {
 public:
  explicit asked_sources(stream_registry& from) : from_{from} {
    const std::lock_guard lock{from_.mutex_};
    all_ = from_.sources_;
    for (const auto& each : all_) ++each->threads;
  }
  ~asked_sources() {
    {
      const std::lock_guard lock{from_.mutex_};
      for (auto& each : all_) {
        --each->threads;
        each.reset();
      }
    }
    from_.answered_.notify_all();
  }
  asked_sources(const asked_sources&) = delete;
  asked_sources& operator=(const asked_sources&) = delete;

  [[nodiscard]] const std::vector<std::shared_ptr<source>>& all() const noexcept { return all_; }

 private:
  stream_registry& from_;
  std::vector<std::shared_ptr<source>> all_;
};

std::uint64_t stream_registry::add_source(stream_source ask) {
  const std::lock_guard lock{mutex_};
  sources_.push_back(std::make_shared<source>(next_key_, std::move(ask)));
  has_sources_.store(true, std::memory_order_release);
  return next_key_++;
}

void stream_registry::remove_source(std::uint64_t key) noexcept {
  std::shared_ptr<source> last;  // what it holds goes without the lock
  std::unique_lock lock{mutex_};
  const auto registered = std::find_if(sources_.begin(), sources_.end(),
                                       [&](const auto& each) { return each->key == key; });
  if (registered == sources_.end()) return;
  last = std::move(*registered);
  sources_.erase(registered);
  has_sources_.store(!sources_.empty(), std::memory_order_release);
  while (last->threads != 0) detail::wait_on(answered_, lock);
}

void stream_registry::query_sources() {
  const asked_sources sources{*this};
  std::vector<stream_ref> streams;
  for (const auto& each : sources.all()) each->ask(streams);
  for (const stream_ref& stream : streams)
    if (stream.known_id() != stream_id{}) add(stream);
}

std::vector<stream_registry::entry> stream_registry::added_since(std::uint64_t& seen) {
  if (has_sources_.load(std::memory_order_acquire)) query_sources();
  const std::uint64_t now = additions_.load(std::memory_order_acquire);
  if (now == seen) return {};
  const std::lock_guard lock{mutex_};
  std::vector<entry> all = streams_;  // which may throw, and then nothing was seen
  seen = now;
  return all;
}

}  // namespace detail

// --- What users see ------------------------------------------------------------------------------

namespace {

/// Default streams end with their thread or context, and another thread's cannot be named.
result<stream_ref> watchable(const stream_ref& stream) {
  if (stream.is_per_thread()) {
    return error{{.code = errc::bad_stream,
                  .detail = "the per-thread default stream is a different stream on each thread; "
                            "pass a created stream"}};
  }
  return stream.identified();
}

}  // namespace

result<void> watch_stream(const stream_ref& stream) try {
  WEIR_TRY_VALUE(known, watchable(stream));
  detail::device_state::of(stream.device()).known_streams.add(known);
  return {};
} catch (const std::bad_alloc&) {
  return error{{.code = errc::no_host_memory}};
}

result<void> unwatch_stream(const stream_ref& stream) {
  WEIR_TRY_VALUE(known, watchable(stream));
  detail::emit_stream_end(detail::device_state::of(stream.device()), known);
  return {};
}

result<stream_source_registration> watch_streams(weir::device device, stream_source source) try {
  if (!source) return errc::invalid_argument;
  const auto home = detail::device_state::keep(device);
  const std::uint64_t key = home->known_streams.add_source(std::move(source));
  return stream_source_registration{home, key};
} catch (const std::bad_alloc&) {
  return error{{.code = errc::no_host_memory}};
}

stream_source_registration::stream_source_registration(std::shared_ptr<detail::device_state> home,
                                                       std::uint64_t key) noexcept
    : home_{std::move(home)}, key_{key} {}

stream_source_registration::~stream_source_registration() {
  if (home_ != nullptr && !home_->forked()) home_->known_streams.remove_source(key_);
}

stream_source_registration::stream_source_registration(stream_source_registration&& other) noexcept
    : home_{std::move(other.home_)}, key_{std::exchange(other.key_, 0)} {}

stream_source_registration& stream_source_registration::operator=(
    stream_source_registration&& other) noexcept {
  std::swap(home_, other.home_);
  std::swap(key_, other.key_);
  return *this;
}

}}  // namespace weir::v0
