// SPDX-License-Identifier: Apache-2.0
// Mapped and registered host memory.
#include "weir/buffer/host_memory.hpp"

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/host_memory.hpp"
#include "device/state.hpp"
#include "pools/all_devices.hpp"
#include "pools/memory_home.hpp"
#include "pools/relaxed_free.hpp"
#include "weir/base/checked.hpp"
#include "weir/device/event.hpp"

namespace weir { inline namespace v0 {

using driver::call;
using driver::check;

namespace {

result<device_address> device_address_of(const context_scope& bound, void* host) {
  device_address address = 0;
  WEIR_TRY(check(call::mem_host_get_device_pointer,
                 bound.driver().mem_host_get_device_pointer(&address, host, 0)));
  return address;
}

/// The memory is not the program's alone yet, and no object is left to unregister it.
error still_registered(error reason, bytes size) noexcept {
  reason.set_requested(size);
  try {
    reason.set_detail(
        to_string(size) +
        " stay registered, because work that may use them could not be waited for; do "
        "not free this memory" +
        (reason.detail().empty() ? "" : ": " + reason.detail()));
  } catch (const std::bad_alloc&) {  // then without details
  }
  return reason;
}

}  // namespace

namespace detail {

result<mapped_block> mapped_block::create(weir::device home, bytes size, bytes alignment,
                                          mapped_options settings) try {
  if (size == bytes{})
    return error{{.code = errc::invalid_argument, .detail = "size must be greater than zero"}};
  constexpr bytes page{4096};  // what the driver aligns host memory to
  const auto whole = alignment > page ? checked_add(size, alignment) : std::optional{size};
  if (!whole) return error{{.code = errc::size_overflow, .requested = size}};
  const context_scope bound{home};
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{home};
  if (!relaxed) return relaxed.error();
  unsigned flags = driver::host_alloc_portable | driver::host_alloc_device_map;
  if (settings.write_combined) flags |= driver::host_alloc_write_combined;
  mapped_block block;
  block.home_ = device_state::keep(home);
  WEIR_TRY(check(call::mem_host_alloc,
                 bound.driver().mem_host_alloc(&block.base_, whole->count(), flags), *whole));
  block.size_ = size;
  const auto base = reinterpret_cast<std::uintptr_t>(block.base_);
  const std::uint64_t padding = *checked_round_up(base, alignment.count()) - base;
  if (padding + size.count() > whole->count()) return errc::bad_alignment;
  WEIR_TRY_VALUE(address, device_address_of(bound, block.base_));
  block.device_ = address + padding;
  block.host_ = static_cast<std::byte*>(block.base_) + padding;
  std::memset(block.host_, 0, size.count());
  return block;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

mapped_block::~mapped_block() {
  const void* const memory = host_;
  const bytes size = size_;
  pools::report_failed_free(close(), memory, size);
}

mapped_block::mapped_block(mapped_block&& other) noexcept
    : home_{std::move(other.home_)},
      base_{std::exchange(other.base_, nullptr)},
      host_{std::exchange(other.host_, nullptr)},
      device_{std::exchange(other.device_, 0)},
      size_{std::exchange(other.size_, {})} {}

mapped_block& mapped_block::operator=(mapped_block&& other) noexcept {
  if (this == &other) return *this;
  const void* const memory = host_;
  const bytes size = size_;
  pools::report_failed_free(close(), memory, size);
  home_ = std::move(other.home_);
  base_ = std::exchange(other.base_, nullptr);
  host_ = std::exchange(other.host_, nullptr);
  device_ = std::exchange(other.device_, 0);
  size_ = std::exchange(other.size_, {});
  return *this;
}

result<void> mapped_block::close() noexcept {
  const auto home = std::move(home_);
  void* const base = std::exchange(base_, nullptr);
  host_ = nullptr;
  device_ = 0;
  const bytes size = std::exchange(size_, {});
  if (base == nullptr) return {};
  const context_scope bound{home->handle()};
  if (!bound) return bound.error();
  // The driver waits for this device; the others may use the memory as well.
  auto idle = pools::wait_for_other_devices(*home);
  if (!idle) return pools::kept_memory(std::move(idle).error(), size);
  return pools::free_relaxed(home->handle(), [&] {
    return check(call::mem_free_host, bound.driver().mem_free_host(base));
  });
}

}  // namespace detail

result<registered_memory> registered_memory::create(weir::device home, std::span<std::byte> memory,
                                                    register_options settings) {
  unsigned flags = driver::host_register_portable | driver::host_register_device_map;
  if (settings.io_memory) flags |= driver::host_register_io_memory;
  if (settings.read_only) flags |= driver::host_register_read_only;
  return pin(home, memory.data(), memory.size(), flags);
}

result<registered_memory> registered_memory::create(weir::device home,
                                                    std::span<const std::byte> memory) {
  // The driver's parameter is not const, but read-only memory is not written.
  return pin(home, const_cast<std::byte*>(memory.data()), memory.size(),
             driver::host_register_portable | driver::host_register_device_map |
                 driver::host_register_read_only);
}

result<registered_memory> registered_memory::pin(weir::device home, void* first, std::size_t size,
                                                 unsigned flags) try {
  if (first == nullptr || size == 0) return errc::invalid_argument;
  if (!home.capabilities().host_register) {
    return error{
        {.code = errc::not_supported,
         .detail = "the device does not support registering host memory; use a pinned_buffer"}};
  }
  const context_scope bound{home};
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{home};
  if (!relaxed) return relaxed.error();
  const auto native = bound.driver().mem_host_register(first, size, flags);
  if (native == driver::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
    auto reason = driver::make_error(call::mem_host_register, native, bytes{size});
    reason.set_code(errc::already_mapped);
    return reason;
  }
  WEIR_TRY(check(call::mem_host_register, native, bytes{size}));
  registered_memory registered;  // from here on its destructor undoes the registration
  registered.home_ = detail::device_state::keep(home);
  registered.host_ = first;
  registered.size_ = bytes{size};
  WEIR_TRY_VALUE(address, device_address_of(bound, first));
  registered.device_ = address;
  return registered;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

registered_memory::~registered_memory() {
  const void* const memory = host_;
  const bytes size = size_;
  pools::report_failed_free(close(), memory, size);
}

registered_memory::registered_memory(registered_memory&& other) noexcept
    : home_{std::move(other.home_)},
      host_{std::exchange(other.host_, nullptr)},
      device_{std::exchange(other.device_, 0)},
      size_{std::exchange(other.size_, {})} {}

registered_memory& registered_memory::operator=(registered_memory&& other) noexcept {
  if (this == &other) return *this;
  const void* const memory = host_;
  const bytes size = size_;
  pools::report_failed_free(close(), memory, size);
  home_ = std::move(other.home_);
  host_ = std::exchange(other.host_, nullptr);
  device_ = std::exchange(other.device_, 0);
  size_ = std::exchange(other.size_, {});
  return *this;
}

result<void> registered_memory::close() noexcept {
  if (home_ == nullptr) return {};
  const auto home = std::move(home_);
  void* const host = std::exchange(host_, nullptr);
  device_ = 0;
  const bytes size = std::exchange(size_, {});
  const context_scope bound{home->handle()};
  if (!bound) return bound.error();
  auto idle = pools::wait_for_other_devices(*home);
  if (!idle) return still_registered(std::move(idle).error(), size);
  return pools::free_relaxed(home->handle(), [&] {
    return check(call::mem_host_unregister, bound.driver().mem_host_unregister(host));
  });
}

}}  // namespace weir::v0
