// SPDX-License-Identifier: Apache-2.0
// Aligning: by the upstream if it can, by padding if it cannot.
#include "weir/resource/aligned_resource.hpp"

#include <algorithm>

#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 {

struct aligned_resource::state {
  /// The requested size, and the memory of the upstream around it.
  struct record {
    bytes size{};
    void* origin = nullptr;
    bytes origin_size{};
  };

  state(any_resource under, bytes least) : upstream{std::move(under)}, alignment{least} {}

  /// Through the upstream's own alignment, or padded.
  [[nodiscard]] result<record> allocate(bytes size, const stream_ref& stream,
                                        bytes strictest) const {
    auto direct = upstream.try_allocate(size, stream, strictest);
    if (direct) return record{size, *direct, size};
    if (direct.code() != errc::bad_alignment || strictest <= default_alignment)
      return std::move(direct).error();
    const auto padded = checked_add(size, strictest - default_alignment);
    if (!padded) return error{{.code = errc::size_overflow, .requested = size}};
    WEIR_TRY_VALUE(origin, upstream.try_allocate(*padded, stream, default_alignment));
    return record{size, origin, *padded};
  }

  const any_resource upstream;
  const bytes alignment;
  resources::live_table<record> live;
};

result<aligned_resource> aligned_resource::create(any_resource upstream, bytes alignment) {
  WEIR_TRY(resources::check_upstream(upstream));
  if (!is_power_of_two(alignment.count())) return errc::bad_alignment;
  return pools::guarded([&]() -> result<aligned_resource> {
    return aligned_resource{std::make_shared<state>(std::move(upstream), alignment)};
  });
}

result<void*> aligned_resource::try_allocate(bytes size, const stream_ref& stream,
                                             bytes alignment) const {
  state& self = *state_;
  if (!is_power_of_two(alignment.count())) return errc::bad_alignment;
  if (resources::is_forked(self.upstream)) return detail::fork_error();
  if (size == bytes{}) return self.upstream.try_allocate(size, stream, default_alignment);
  const bytes strictest = std::max(alignment, self.alignment);
  WEIR_TRY_VALUE(record, self.allocate(size, stream, strictest));
  const auto base = reinterpret_cast<std::uintptr_t>(record.origin);
  const std::uint64_t padding = (strictest.count() - base % strictest.count()) % strictest.count();
  void* const pointer = static_cast<char*>(record.origin) + padding;
  if (auto entered = self.live.put(pointer, record, stream); !entered) {
    self.upstream.deallocate(record.origin, record.origin_size, stream);
    return std::move(entered).error();
  }
  return pointer;
}

result<void> aligned_resource::try_deallocate(void* pointer, bytes size,
                                              const stream_ref& stream) const {
  state& self = *state_;
  if (resources::is_forked(self.upstream)) return detail::fork_error();
  return resources::deallocate(self.live, pointer, size, [&](const state::record& record) {
    return self.upstream.try_deallocate(record.origin, record.origin_size, stream);
  });
}

result<void> aligned_resource::record_stream(void* pointer, const stream_ref& stream) const {
  if (resources::is_forked(state_->upstream)) return detail::fork_error();
  WEIR_TRY_VALUE(record, state_->live.find(pointer));
  return state_->upstream.record_stream(record.origin, stream);
}

bytes aligned_resource::alignment() const noexcept { return state_->alignment; }
any_resource aligned_resource::upstream() const { return state_->upstream; }
weir::device aligned_resource::device() const { return state_->upstream.device(); }
memory_kind aligned_resource::kind() const noexcept { return state_->upstream.kind(); }

}}  // namespace weir::v0
