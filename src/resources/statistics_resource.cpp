// SPDX-License-Identifier: Apache-2.0
// The counters: one lock, a stack of sections.
#include "weir/resource/statistics_resource.hpp"

#include <algorithm>
#include <vector>

#include "base/mutex.hpp"
#include "pools/guarded.hpp"
#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"

namespace weir { inline namespace v0 {
namespace {

std::int64_t signed_count(bytes size) { return static_cast<std::int64_t>(size.count()); }
std::int64_t signed_count(std::uint64_t count) { return static_cast<std::int64_t>(count); }

template <class Amount>
void raise_peak(running_count<Amount>& count, std::int64_t current) {
  const Amount reached{static_cast<std::uint64_t>(std::max<std::int64_t>(current, 0))};
  count.peak = std::max(count.peak, reached);
}

template <class Amount>
void add(running_count<Amount>& count, Amount amount) {
  count.current += signed_count(amount);
  count.total += amount;
  raise_peak(count, count.current);
}

/// Adds a section's numbers to those of the enclosing one.
template <class Amount>
void add_section(running_count<Amount>& enclosing, const running_count<Amount>& section) {
  raise_peak(enclosing, enclosing.current + signed_count(section.peak));
  enclosing.current += section.current;
  enclosing.total += section.total;
}

template <class Amount>
void reset_peak(running_count<Amount>& count) {
  count.peak = Amount{};
  raise_peak(count, count.current);
}

std::string signed_size(std::int64_t size) {
  const std::uint64_t magnitude = size < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(size)
                                           : static_cast<std::uint64_t>(size);
  return (size < 0 ? "-" : "") + to_string(bytes{magnitude});
}

}  // namespace

struct statistics_resource::state {
  struct record {
    bytes size{};
  };

  explicit state(any_resource under) : upstream{std::move(under)} {}

  void count_allocation(bytes size) WEIR_EXCLUDES(mutex) {
    const detail::mutex_lock lock{mutex};
    add(sections.back().bytes, size);
    add(sections.back().allocations, std::uint64_t{1});
  }
  void count_free(bytes size) WEIR_EXCLUDES(mutex) { change_current(-signed_count(size), -1); }
  /// The upstream did not free it.
  void count_as_live(bytes size) WEIR_EXCLUDES(mutex) { change_current(signed_count(size), 1); }
  void change_current(std::int64_t size, std::int64_t allocations) WEIR_EXCLUDES(mutex) {
    const detail::mutex_lock lock{mutex};
    resource_stats& section = sections.back();
    section.bytes.current += size;
    section.allocations.current += allocations;
    raise_peak(section.bytes, section.bytes.current);
    raise_peak(section.allocations, section.allocations.current);
  }

  const any_resource upstream;
  resources::live_table<record> live;
  mutable detail::mutex mutex;
  std::vector<resource_stats> sections WEIR_GUARDED_BY(mutex){1};
};

result<statistics_resource> statistics_resource::create(any_resource upstream) {
  WEIR_TRY(resources::check_upstream(upstream));
  return pools::guarded([&]() -> result<statistics_resource> {
    return statistics_resource{std::make_shared<state>(std::move(upstream))};
  });
}

result<void*> statistics_resource::try_allocate(bytes size, const stream_ref& stream,
                                                bytes alignment) const {
  state& self = *state_;
  if (resources::is_forked(self.upstream)) return detail::fork_error();
  auto pointer = self.upstream.try_allocate(size, stream, alignment);
  if (!pointer || *pointer == nullptr) return pointer;
  if (auto entered = self.live.put(*pointer, {size}, stream); !entered) {
    self.upstream.deallocate(*pointer, size, stream);
    return std::move(entered).error();
  }
  self.count_allocation(size);
  return pointer;
}

result<void> statistics_resource::try_deallocate(void* pointer, bytes size,
                                                 const stream_ref& stream) const {
  state& self = *state_;
  if (resources::is_forked(self.upstream)) return detail::fork_error();
  return resources::deallocate(
      self.live, pointer, size, [&](const state::record& record) -> result<void> {
        // Before the upstream may give the memory to another thread, or both would count.
        self.count_free(record.size);
        try {
          auto freed = self.upstream.try_deallocate(pointer, record.size, stream);
          if (!freed) self.count_as_live(record.size);
          return freed;
        } catch (...) {
          self.count_as_live(record.size);
          throw;
        }
      });
}

result<void> statistics_resource::record_stream(void* pointer, const stream_ref& stream) const {
  return state_->upstream.record_stream(pointer, stream);
}

resource_stats statistics_resource::stats() const {
  if (resources::is_forked(state_->upstream)) return {};
  const detail::mutex_lock lock{state_->mutex};
  return state_->sections.back();
}

void statistics_resource::reset_peaks() const {
  if (resources::is_forked(state_->upstream)) return;
  const detail::mutex_lock lock{state_->mutex};
  reset_peak(state_->sections.back().bytes);
  reset_peak(state_->sections.back().allocations);
}

void statistics_resource::reset_counters() const {
  if (resources::is_forked(state_->upstream)) return;
  const detail::mutex_lock lock{state_->mutex};
  state_->sections.back().bytes.total = {};
  state_->sections.back().allocations.total = 0;
}

resource_stats statistics_resource::push() const {
  if (resources::is_forked(state_->upstream)) return {};
  const detail::mutex_lock lock{state_->mutex};
  const resource_stats enclosing = state_->sections.back();
  state_->sections.emplace_back();
  return enclosing;
}

result<resource_stats> statistics_resource::pop() const {
  if (resources::is_forked(state_->upstream)) return detail::fork_error();
  const detail::mutex_lock lock{state_->mutex};
  auto& sections = state_->sections;
  if (sections.size() == 1)
    return error{{.code = errc::invalid_argument, .detail = "pop() without a matching push()"}};
  const resource_stats section = sections.back();
  sections.pop_back();
  add_section(sections.back().bytes, section.bytes);
  add_section(sections.back().allocations, section.allocations);
  return section;
}

any_resource statistics_resource::upstream() const { return state_->upstream; }
weir::device statistics_resource::device() const { return state_->upstream.device(); }
memory_kind statistics_resource::kind() const noexcept { return state_->upstream.kind(); }

std::string to_string(const resource_stats& stats) {
  const auto& [size, number] = stats;
  return signed_size(size.current) + " in " + std::to_string(number.current) +
         " allocations, at most " + to_string(size.peak) + " in " + std::to_string(number.peak) +
         ", in total " + to_string(size.total) + " in " + std::to_string(number.total);
}

}}  // namespace weir::v0
