// The budget: reserved before the upstream is asked, given back when it refuses.
#include "weir/resource/limiting_resource.hpp"

#include <atomic>

#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"

namespace weir::inline v0 {

struct limiting_resource::state {
  struct record {
    bytes size{};
  };

  state(any_resource under, bytes most) : upstream{std::move(under)}, limit{most.count()} {}

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
                                              bytes alignment) {
  state& my = *inside_;
  if (!my.reserve(size.count())) {
    return error{.code = errc::limit_exceeded,
                 .requested = size,
                 .detail = to_string(used()) + " of " + to_string(limit()) + " are used"};
  }
  auto made = my.upstream.try_allocate(size, stream, alignment);
  if (!made || *made == nullptr) {
    my.release(size.count());
    return made;
  }
  if (auto entered = my.live.put(*made, {size}); !entered) {
    my.release(size.count());
    my.upstream.deallocate(*made, size, stream);
    return std::move(entered).error();
  }
  return made;
}

result<void> limiting_resource::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) {
  state& my = *inside_;
  return resources::give_back(my.live, pointer, size,
                              [&](const state::record& what) -> result<void> {
                                WEIR_TRY(my.upstream.try_deallocate(pointer, what.size, stream));
                                my.release(what.size.count());
                                return {};
                              });
}

bytes limiting_resource::used() const noexcept { return bytes{inside_->used.load()}; }
bytes limiting_resource::limit() const noexcept { return bytes{inside_->limit.load()}; }
void limiting_resource::set_limit(bytes most) noexcept { inside_->limit.store(most.count()); }
any_resource limiting_resource::upstream() const { return inside_->upstream; }
weir::device limiting_resource::device() const { return inside_->upstream.device(); }
memory_kind limiting_resource::kind() const noexcept { return inside_->upstream.kind(); }

}  // namespace weir::inline v0
