// SPDX-License-Identifier: Apache-2.0
// Owners of a pool's memory: who owns it now, and what is left to say when the last one goes.
#include "weir/pool/memory_owner.hpp"

#include <new>
#include <string>
#include <utility>

#include "base/any_size.hpp"
#include "base/hexadecimal.hpp"
#include "device/state.hpp"
#include "pools/guarded.hpp"
#include "pools/memory_home.hpp"

namespace weir { inline namespace v0 {

namespace pools {

void report_failed_free(const result<void>& outcome, const void* memory, bytes size) noexcept {
  if (outcome) return;
  try {
    error reason = outcome.error();
    if (size != detail::any_size) reason.set_requested(size);
    const bool names_it =
        (reason.code() == errc::double_free || reason.code() == errc::foreign_pointer) &&
        !reason.detail().empty();
    if (!names_it) {
      std::string text = reason.detail();
      if (!text.empty()) text += "; ";
      text += "freeing " + detail::hexadecimal(reinterpret_cast<std::uintptr_t>(memory));
      if (reason.requested() != bytes{}) text += " of " + to_string(reason.requested());
      reason.set_detail(std::move(text));
    }
    detail::report_failure(reason);
  } catch (const std::bad_alloc&) {
    detail::report_failure(outcome);
  }
}

}  // namespace pools

memory_owner::memory_owner(std::shared_ptr<pools::memory_home> home, void* data, bytes size,
                           const stream_ref& stream) noexcept
    : home_{std::move(home)}, data_{data}, size_{size}, stream_{stream} {}

memory_owner::~memory_owner() { free_or_report(); }

memory_owner::memory_owner(memory_owner&& other) noexcept
    : home_{std::move(other.home_)},
      data_{std::exchange(other.data_, nullptr)},
      size_{std::exchange(other.size_, {})},
      stream_{std::exchange(other.stream_, {})},
      past_{std::exchange(other.past_, past::none)} {}

memory_owner& memory_owner::operator=(memory_owner&& other) noexcept {
  if (this == &other) return *this;
  free_or_report();
  home_ = std::move(other.home_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, {});
  stream_ = std::exchange(other.stream_, {});
  past_ = std::exchange(other.past_, past::none);
  return *this;
}

void memory_owner::free_or_report() noexcept {
  if (data_ == nullptr) return;
  void* const memory = std::exchange(data_, nullptr);
  const auto freed = pools::guarded([&] { return home_->free_owned(memory, size_, nullptr); });
  pools::report_failed_free(freed, memory, size_);
}

result<void> memory_owner::check_owned() const {
  if (data_ != nullptr) return {};
  return past_ == past::none ? errc::moved_from : errc::already_freed;
}

result<void> memory_owner::free(const stream_ref* stream) {
  WEIR_TRY(check_owned());
  WEIR_TRY(pools::guarded([&] { return home_->free_owned(data_, size_, stream); }));
  data_ = nullptr;
  size_ = {};
  past_ = past::freed;
  return {};
}

result<void> memory_owner::record_stream(const stream_ref& stream) const {
  WEIR_TRY(check_owned());
  return pools::guarded([&] { return home_->record_stream(data_, stream); });
}

void* memory_owner::release() noexcept {
  if (data_ == nullptr) return nullptr;
  size_ = {};
  past_ = past::released;
  return std::exchange(data_, nullptr);
}

}}  // namespace weir::v0
