// Owners of a pool's memory: taking, filling, giving back.
#include "weir/pool/pooled_buffer.hpp"

#include <new>

#include "pools/block_cache.hpp"
#include "pools/guarded.hpp"
#include "weir/driver/table.hpp"

namespace weir::inline v0 {

namespace {

result<void> fill_with_zeros(void* memory, bytes size, const stream_ref& stream) {
  const context_scope bound{stream.device()};
  if (!bound) return bound.error();
  return driver::check(driver::call::memset_d8_async,
                       bound.driver().memset_d8_async(reinterpret_cast<std::uintptr_t>(memory), 0,
                                                      size.count(), stream.handle()),
                       size);
}

}  // namespace

result<pooled_memory> pooled_memory::create(const std::shared_ptr<pools::block_cache>& home,
                                            bytes size, const stream_ref& stream, contents inside,
                                            bytes alignment) {
  if (home == nullptr) return errc::already_freed;
  if (size == bytes{})
    return error{.code = errc::invalid_argument, .detail = "a buffer of no elements"};
  WEIR_TRY_VALUE(data, pools::guarded([&] { return home->allocate(size, stream, alignment); }));
  pooled_memory made{home, data, size, stream};
  if (inside == contents::zeroed) WEIR_TRY(fill_with_zeros(data, size, stream));
  return made;
}

pooled_memory::pooled_memory(std::shared_ptr<pools::block_cache> home, void* data, bytes size,
                             const stream_ref& stream) noexcept
    : home_{std::move(home)}, data_{data}, size_{size}, stream_{stream} {}

pooled_memory::~pooled_memory() {
  if (home_ != nullptr) detail::report_failure(give_back(nullptr));
}

pooled_memory::pooled_memory(pooled_memory&& other) noexcept
    : home_{std::move(other.home_)},
      data_{std::exchange(other.data_, nullptr)},
      size_{std::exchange(other.size_, {})},
      stream_{other.stream_} {}

pooled_memory& pooled_memory::operator=(pooled_memory&& other) noexcept {
  if (this == &other) return *this;
  if (home_ != nullptr) detail::report_failure(give_back(nullptr));
  home_ = std::move(other.home_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, {});
  stream_ = other.stream_;
  return *this;
}

result<void> pooled_memory::record_stream(const stream_ref& stream) const {
  if (home_ == nullptr) return errc::already_freed;
  return pools::guarded([&] { return home_->record_stream(data_, stream); });
}

result<void> pooled_memory::give_back() { return give_back(nullptr); }
result<void> pooled_memory::give_back(const stream_ref& stream) { return give_back(&stream); }

result<void> pooled_memory::give_back(const stream_ref* stream) {
  if (home_ == nullptr) return errc::already_freed;
  WEIR_TRY(pools::guarded([&] { return home_->deallocate(data_, size_, stream); }));
  home_.reset();
  data_ = nullptr;
  size_ = {};
  return {};
}

}  // namespace weir::inline v0
