// The budget: reserved before the upstream is called, released when it refuses.
#include "weir/resource/limiting_resource.hpp"

#include <atomic>

#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"

namespace weir::inline v0 {

struct limiting_resource::state {
  struct record {
    bytes size{};
  };

  state(any_resource under, bytes budget) : upstream{std::move(under)}, limit{budget.count()} {}

  /// Checks and takes in one step: adding first and checking then would make others fail meanwhile.
  [[nodiscard]] bool reserve(std::uint64_t size) noexcept {
    std::uint64_t before = used.load(std::memory_order_relaxed);
    do {
      const std::uint64_t most = limit.load(std::memory_order_relaxed);
      if (before > most || size > most - before) return false;
    } while (!used.compare_exchange_weak(before, before + size, std::memory_order_relaxed));
    return true;
  }
  void release(std::uint64_t size) noexcept { used.fetch_sub(size, std::memory_order_relaxed); }

  const any_resource upstream;
  std::atomic<std::uint64_t> limit;
  std::atomic<std::uint64_t> used{0};
  resources::live_table<record> live;
};

result<limiting_resource> limiting_resource::create(any_resource upstream, bytes limit) {
  WEIR_TRY(resources::check_upstream(upstream));
  return limiting_resource{std::make_shared<state>(std::move(upstream), limit)};
}

result<void*> limiting_resource::try_allocate(bytes size, const stream_ref& stream,
                                              bytes alignment) const {
  state& self = *state_;
  if (!self.reserve(size.count())) {
    return error{.code = errc::limit_exceeded,
                 .requested = size,
                 .detail = to_string(used()) + " of " + to_string(limit()) + " are used"};
  }
  auto pointer = self.upstream.try_allocate(size, stream, alignment);
  if (!pointer || *pointer == nullptr) {
    self.release(size.count());
    return pointer;
  }
  if (auto entered = self.live.put(*pointer, {size}, stream); !entered) {
    self.release(size.count());
    self.upstream.deallocate(*pointer, size, stream);
    return std::move(entered).error();
  }
  return pointer;
}

result<void> limiting_resource::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) const {
  state& self = *state_;
  return resources::deallocate(
      self.live, pointer, size, [&](const state::record& record) -> result<void> {
        WEIR_TRY(self.upstream.try_deallocate(pointer, record.size, stream));
        self.release(record.size.count());
        return {};
      });
}

bytes limiting_resource::used() const noexcept { return bytes{state_->used.load()}; }
bytes limiting_resource::limit() const noexcept { return bytes{state_->limit.load()}; }
void limiting_resource::set_limit(bytes limit) const noexcept {
  state_->limit.store(limit.count());
}
any_resource limiting_resource::upstream() const { return state_->upstream; }
weir::device limiting_resource::device() const { return state_->upstream.device(); }
memory_kind limiting_resource::kind() const noexcept { return state_->upstream.kind(); }

}  // namespace weir::inline v0
