// SPDX-License-Identifier: Apache-2.0
// Two resources, and which of them each block is of.
#include "weir/resource/fallback_resource.hpp"

#include <atomic>

#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"

namespace weir { inline namespace v0 {

struct fallback_resource::state {
  struct record {
    bytes size{};
    const any_resource* origin = nullptr;
  };

  state(any_resource first, any_resource second)
      : primary{std::move(first)}, alternate{std::move(second)} {}

  const any_resource primary;
  const any_resource alternate;
  std::atomic<std::uint64_t> fallbacks{0};
  resources::live_table<record> live;
};

result<fallback_resource> fallback_resource::create(any_resource primary, any_resource alternate) {
  WEIR_TRY(resources::check_upstream(primary));
  WEIR_TRY(resources::check_upstream(alternate));
  if (primary.device() != alternate.device())
    return error{{.code = errc::invalid_argument,
                  .detail = "both resources must belong to the same device"}};
  return pools::guarded([&]() -> result<fallback_resource> {
    return fallback_resource{std::make_shared<state>(std::move(primary), std::move(alternate))};
  });
}

result<void*> fallback_resource::try_allocate(bytes size, const stream_ref& stream,
                                              bytes alignment) const {
  state& self = *state_;
  if (resources::is_forked(self.primary)) return detail::fork_error();
  const any_resource* origin = &self.primary;
  auto pointer = origin->try_allocate(size, stream, alignment);
  if (!pointer && resources::is_shortage(pointer.code())) {
    origin = &self.alternate;
    pointer = origin->try_allocate(size, stream, alignment);
  }
  if (!pointer || *pointer == nullptr) return pointer;
  if (auto entered = self.live.put(*pointer, {size, origin}, stream); !entered) {
    origin->deallocate(*pointer, size, stream);
    return std::move(entered).error();
  }
  if (origin == &self.alternate) self.fallbacks.fetch_add(1, std::memory_order_relaxed);
  return pointer;
}

result<void> fallback_resource::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) const {
  if (resources::is_forked(state_->primary)) return detail::fork_error();
  return resources::deallocate(state_->live, pointer, size, [&](const state::record& record) {
    return record.origin->try_deallocate(pointer, record.size, stream);
  });
}

result<void> fallback_resource::record_stream(void* pointer, const stream_ref& stream) const {
  if (resources::is_forked(state_->primary)) return detail::fork_error();
  WEIR_TRY_VALUE(record, state_->live.find(pointer));
  return record.origin->record_stream(pointer, stream);
}

std::uint64_t fallback_resource::fallbacks() const noexcept { return state_->fallbacks.load(); }
void fallback_resource::reset_counters() const noexcept { state_->fallbacks.store(0); }
any_resource fallback_resource::primary() const { return state_->primary; }
any_resource fallback_resource::alternate() const { return state_->alternate; }
weir::device fallback_resource::device() const { return state_->primary.device(); }

memory_kind fallback_resource::kind() const noexcept {
  const memory_kind first = state_->primary.kind();
  return first == state_->alternate.kind() ? first : memory_kind::device;
}

}}  // namespace weir::v0
