// Prefetching what was allocated, with whichever form of the call the driver has.
#include "weir/resource/prefetch_resource.hpp"

#include <atomic>
#include <mutex>

#include "resources/adaptor.hpp"

namespace weir::inline v0 {
namespace {

/// False: there is nothing to prefetch with, or a capture is under way that it would break.
result<bool> prefetch(const context_scope& bound, void* pointer, bytes size,
                      const stream_ref& stream) {
  if (!bound) return bound.error();
  if (!stream.device().capabilities().concurrent_managed_access) return false;
  WEIR_TRY_VALUE(now, stream.capture(bound));
  if (now.status != capture_status::none) return false;
  const auto address = static_cast<driver::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
  const driver::table& calls = bound.driver();
  const int where = stream.device().id().number();
  if (calls.mem_prefetch_async != nullptr) {
    WEIR_TRY(driver::check(
        driver::call::mem_prefetch_async,
        calls.mem_prefetch_async(address, size.count(),
                                 {driver::CU_MEM_LOCATION_TYPE_DEVICE, where}, 0, stream.handle()),
        size));
  } else {
    WEIR_TRY(driver::check(
        driver::call::mem_prefetch_async_v1,
        calls.mem_prefetch_async_v1(address, size.count(), where, stream.handle()), size));
  }
  return true;
}

}  // namespace

struct prefetch_resource::state {
  explicit state(any_resource under) : upstream{std::move(under)} {}

  const any_resource upstream;
  std::atomic<std::uint64_t> prefetches{0};
  std::atomic<std::uint64_t> refused{0};
  std::mutex mutex;
  std::optional<error> last_error;
};

result<prefetch_resource> prefetch_resource::create(any_resource upstream) {
  WEIR_TRY(resources::check_upstream(upstream));
  if (upstream.kind() != memory_kind::managed)
    return error{.code = errc::invalid_argument, .detail = "only managed memory is prefetched"};
  return prefetch_resource{std::make_shared<state>(std::move(upstream))};
}

result<void*> prefetch_resource::try_allocate(bytes size, const stream_ref& stream,
                                              bytes alignment) {
  state& my = *inside_;
  auto made = my.upstream.try_allocate(size, stream, alignment);
  if (!made || *made == nullptr) return made;
  const context_scope bound{stream.device()};
  const auto done = prefetch(bound, *made, size, stream);
  if (done) {
    if (*done) my.prefetches.fetch_add(1, std::memory_order_relaxed);
    return made;
  }
  my.refused.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock{my.mutex};
  my.last_error = done.error();
  return made;
}

result<void> prefetch_resource::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) {
  return inside_->upstream.try_deallocate(pointer, size, stream);
}

std::uint64_t prefetch_resource::prefetches() const noexcept { return inside_->prefetches.load(); }
std::uint64_t prefetch_resource::refused() const noexcept { return inside_->refused.load(); }

std::optional<error> prefetch_resource::last_error() const {
  const std::lock_guard lock{inside_->mutex};
  return inside_->last_error;
}

any_resource prefetch_resource::upstream() const { return inside_->upstream; }
weir::device prefetch_resource::device() const { return inside_->upstream.device(); }
memory_kind prefetch_resource::kind() const noexcept { return inside_->upstream.kind(); }

}  // namespace weir::inline v0
