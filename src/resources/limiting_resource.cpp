// SPDX-License-Identifier: Apache-2.0
// The budget: a share is taken before the upstream is called, and given back unless it serves.
#include "weir/resource/limiting_resource.hpp"

#include "pools/guarded.hpp"
#include "resources/adaptor.hpp"
#include "resources/budget.hpp"
#include "resources/live_table.hpp"

namespace weir { inline namespace v0 {

struct limiting_resource::state {
  struct record {
    bytes size{};
  };

  state(any_resource under, bytes limit) : upstream{std::move(under)}, shares{limit} {}

  const any_resource upstream;
  resources::budget shares;
  resources::live_table<record> live;
};

result<limiting_resource> limiting_resource::create(any_resource upstream, bytes limit) {
  WEIR_TRY(resources::check_upstream(upstream));
  return pools::guarded([&]() -> result<limiting_resource> {
    return limiting_resource{std::make_shared<state>(std::move(upstream), limit)};
  });
}

result<void*> limiting_resource::try_allocate(bytes size, const stream_ref& stream,
                                              bytes alignment) const {
  state& self = *state_;
  if (resources::is_forked(self.upstream)) return detail::fork_error();
  if (size == bytes{}) return self.upstream.try_allocate(size, stream, alignment);
  resources::budget::share share{self.shares, size};
  if (!share.take()) {
    return pools::guarded([&]() -> result<void*> {
      return error{{.code = errc::out_of_memory,
                    .requested = size,
                    .detail = "the limit of this resource: " + to_string(used()) + " of " +
                              to_string(limit()) + " are used"}};
    });
  }
  auto pointer = self.upstream.try_allocate(size, stream, alignment);
  if (!pointer || *pointer == nullptr) return pointer;
  if (auto entered = self.live.put(*pointer, {size}, stream); !entered) {
    self.upstream.deallocate(*pointer, size, stream);
    return std::move(entered).error();
  }
  share.keep();
  return pointer;
}

result<void> limiting_resource::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) const {
  state& self = *state_;
  if (resources::is_forked(self.upstream)) return detail::fork_error();
  return resources::deallocate(
      self.live, pointer, size, [&](const state::record& record) -> result<void> {
        WEIR_TRY(self.upstream.try_deallocate(pointer, record.size, stream));
        self.shares.free(record.size);
        return {};
      });
}

result<void> limiting_resource::record_stream(void* pointer, const stream_ref& stream) const {
  return state_->upstream.record_stream(pointer, stream);
}

bytes limiting_resource::used() const noexcept { return state_->shares.live(); }
bytes limiting_resource::limit() const noexcept { return state_->shares.limit(); }
void limiting_resource::set_limit(bytes limit) const noexcept {
  if (!resources::is_forked(state_->upstream)) state_->shares.set_limit(limit);
}
any_resource limiting_resource::upstream() const { return state_->upstream; }
weir::device limiting_resource::device() const { return state_->upstream.device(); }
memory_kind limiting_resource::kind() const noexcept { return state_->upstream.kind(); }

}}  // namespace weir::v0
