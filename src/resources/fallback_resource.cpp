// Two resources, and the books of who gave what.
#include "weir/resource/fallback_resource.hpp"

#include <atomic>

#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"

namespace weir::inline v0 {

struct fallback_resource::state {
  struct record {
    bytes size{};
    const any_resource* from = nullptr;
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
    return error{.code = errc::invalid_argument, .detail = "two resources of different devices"};
  return fallback_resource{std::make_shared<state>(std::move(primary), std::move(alternate))};
}

result<void*> fallback_resource::try_allocate(bytes size, const stream_ref& stream,
                                              bytes alignment) {
  state& my = *inside_;
  const any_resource* from = &my.primary;
  auto made = from->try_allocate(size, stream, alignment);
  if (!made && resources::is_shortage(made.code())) {
    from = &my.alternate;
    made = from->try_allocate(size, stream, alignment);
  }
  if (!made || *made == nullptr) return made;
  if (auto entered = my.live.put(*made, {size, from}); !entered) {
    from->deallocate(*made, size, stream);
    return std::move(entered).error();
  }
  if (from == &my.alternate) my.fallbacks.fetch_add(1, std::memory_order_relaxed);
  return made;
}

result<void> fallback_resource::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) {
  return resources::give_back(inside_->live, pointer, size, [&](const state::record& what) {
    return what.from->try_deallocate(pointer, what.size, stream);
  });
}

std::uint64_t fallback_resource::fallbacks() const noexcept { return inside_->fallbacks.load(); }
any_resource fallback_resource::primary() const { return inside_->primary; }
any_resource fallback_resource::alternate() const { return inside_->alternate; }
weir::device fallback_resource::device() const { return inside_->primary.device(); }

memory_kind fallback_resource::kind() const noexcept {
  const memory_kind first = inside_->primary.kind();
  return first == inside_->alternate.kind() ? first : memory_kind::device;
}

}  // namespace weir::inline v0
