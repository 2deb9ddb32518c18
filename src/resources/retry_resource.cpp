// SPDX-License-Identifier: Apache-2.0
// Calling the user and trying again, but not for requests of that call itself.
#include "weir/resource/retry_resource.hpp"

#include <atomic>

#include "pools/guarded.hpp"
#include "resources/adaptor.hpp"
#include "resources/budget.hpp"

namespace weir { inline namespace v0 {
namespace {

/// The resource whose callback runs on this thread, and the one whose callback called that.
class callback_scope {
 public:
  explicit callback_scope(const void* resource) noexcept
      : resource_{resource}, enclosing_{innermost} {
    innermost = this;
  }
  ~callback_scope() { innermost = enclosing_; }
  callback_scope(const callback_scope&) = delete;
  callback_scope& operator=(const callback_scope&) = delete;

  [[nodiscard]] static bool is_running(const void* resource) noexcept {
    for (const callback_scope* scope = innermost; scope != nullptr; scope = scope->enclosing_)
      if (scope->resource_ == resource) return true;
    return false;
  }

 private:
  static thread_local callback_scope* innermost;

  const void* resource_;
  callback_scope* enclosing_;
  const resources::budget::user_call user_call_;
};
thread_local callback_scope* callback_scope::innermost = nullptr;

}  // namespace

struct retry_resource::state {
  const any_resource upstream;
  const shortage_callback callback;
  const unsigned most_retries;
  std::atomic<std::uint64_t> recoveries{0};
};

result<retry_resource> retry_resource::create(any_resource upstream, shortage_callback callback,
                                              unsigned most_retries) {
  WEIR_TRY(resources::check_upstream(upstream));
  if (!callback) return error{{.code = errc::invalid_argument, .detail = "the callback is empty"}};
  return pools::guarded([&]() -> result<retry_resource> {
    return retry_resource{
        std::shared_ptr<state>{new state{std::move(upstream), std::move(callback), most_retries}}};
  });
}

result<void*> retry_resource::try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment) const {
  state& self = *state_;
  auto pointer = self.upstream.try_allocate(size, stream, alignment);
  if (pointer || !resources::is_shortage(pointer.code()) || callback_scope::is_running(&self))
    return pointer;
  for (unsigned attempt = 1; attempt <= self.most_retries; ++attempt) {
    {
      const callback_scope running{&self};
      if (!self.callback(size, attempt)) break;
    }
    pointer = self.upstream.try_allocate(size, stream, alignment);
    if (pointer) {
      self.recoveries.fetch_add(1, std::memory_order_relaxed);
      break;
    }
    if (!resources::is_shortage(pointer.code())) break;
  }
  return pointer;
}

result<void> retry_resource::try_deallocate(void* pointer, bytes size,
                                            const stream_ref& stream) const {
  return state_->upstream.try_deallocate(pointer, size, stream);
}

result<void> retry_resource::record_stream(void* pointer, const stream_ref& stream) const {
  return state_->upstream.record_stream(pointer, stream);
}

std::uint64_t retry_resource::recoveries() const noexcept { return state_->recoveries.load(); }
void retry_resource::reset_counters() const noexcept { state_->recoveries.store(0); }
any_resource retry_resource::upstream() const { return state_->upstream; }
weir::device retry_resource::device() const { return state_->upstream.device(); }
memory_kind retry_resource::kind() const noexcept { return state_->upstream.kind(); }

}}  // namespace weir::v0
