// The owner of an allocation of a stream pool.
#include <new>
#include <utility>

#include "pools/stream_pool_state.hpp"

namespace weir::inline v0 {

stream_allocation::~stream_allocation() { let_go(); }

stream_allocation::stream_allocation(stream_allocation&& other) noexcept
    : pool_{std::move(other.pool_)},
      address_{std::exchange(other.address_, nullptr)},
      size_{std::exchange(other.size_, {})},
      stream_{std::exchange(other.stream_, {})},
      freed_{std::exchange(other.freed_, false)} {}

stream_allocation& stream_allocation::operator=(stream_allocation&& other) noexcept {
  if (this == &other) return *this;
  let_go();
  pool_ = std::move(other.pool_);
  address_ = std::exchange(other.address_, nullptr);
  size_ = std::exchange(other.size_, {});
  stream_ = std::exchange(other.stream_, {});
  freed_ = std::exchange(other.freed_, false);
  return *this;
}

void stream_allocation::let_go() noexcept {
  if (address_ == nullptr) return;
  const auto address = reinterpret_cast<std::uintptr_t>(std::exchange(address_, nullptr));
  try {
    detail::report_failure(pool_->free_owned(address, *stream_));
  } catch (const std::bad_alloc&) {
    report_error({.code = errc::system});
  }
}

result<void> stream_allocation::owned() const {
  if (freed_) return errc::double_free;
  if (address_ == nullptr) return errc::already_freed;
  return {};
}

result<void> stream_allocation::free() {
  WEIR_TRY(owned());
  WEIR_TRY(pool_->free_owned(reinterpret_cast<std::uintptr_t>(address_), *stream_));
  address_ = nullptr;
  freed_ = true;
  return {};
}

result<void> stream_allocation::free(const stream_ref& stream) {
  WEIR_TRY(owned());
  WEIR_TRY(pool_->free(reinterpret_cast<std::uintptr_t>(address_), std::nullopt, stream));
  address_ = nullptr;
  freed_ = true;
  return {};
}

}  // namespace weir::inline v0
