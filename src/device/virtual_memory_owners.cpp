// SPDX-License-Identifier: Apache-2.0
// The owners of descriptors, addresses, physical memory and mappings.
#include "weir/device/virtual_memory.hpp"

#include <unistd.h>

#include <utility>

#include "device/state.hpp"

namespace weir { inline namespace v0 {

using detail::device_state;

descriptor::~descriptor() {
  if (number_ >= 0) ::close(number_);
}

descriptor& descriptor::operator=(descriptor&& other) noexcept {
  if (this == &other) return *this;
  if (number_ >= 0) ::close(number_);
  number_ = std::exchange(other.number_, -1);
  return *this;
}

result<address_range> address_range::reserve(weir::device owner, bytes size, bytes alignment,
                                             device_address hint) {
  const context_scope scope{owner};
  WEIR_TRY_VALUE(base, vmm::reserve(scope, size, alignment, hint));
  return address_range{device_state::keep(owner), base, size};
}

address_range::address_range(std::shared_ptr<detail::device_state> home, device_address base,
                             bytes size) noexcept
    : home_{std::move(home)}, base_{base}, size_{size} {}

address_range::~address_range() { detail::report_failure(close()); }

address_range::address_range(address_range&& other) noexcept
    : home_{std::move(other.home_)},
      base_{std::exchange(other.base_, 0)},
      size_{std::exchange(other.size_, {})},
      closed_{std::exchange(other.closed_, false)} {}

address_range& address_range::operator=(address_range&& other) noexcept {
  if (this == &other) return *this;
  detail::report_failure(close());
  home_ = std::move(other.home_);
  base_ = std::exchange(other.base_, 0);
  size_ = std::exchange(other.size_, {});
  closed_ = std::exchange(other.closed_, false);
  return *this;
}

result<void> address_range::close() noexcept {
  if (home_ == nullptr) return {};
  const auto home = std::move(home_);
  closed_ = true;
  const context_scope scope{home->handle()};
  return vmm::free(scope, std::exchange(base_, 0), std::exchange(size_, {}));
}

bool address_range::contains(device_address address, bytes size) const noexcept {
  return address >= base_ && size <= size_ && address - base_ <= (size_ - size).count();
}

result<physical_handle> physical_handle::create(weir::device owner, bytes size,
                                                physical_properties properties) {
  const context_scope scope{owner};
  WEIR_TRY_VALUE(memory, vmm::create(scope, size, properties));
  return physical_handle{device_state::keep(owner), memory, properties};
}

result<physical_handle> physical_handle::import_descriptor(weir::device owner, int number,
                                                           bytes size) {
  const context_scope scope{owner};
  WEIR_TRY_VALUE(memory, vmm::import_descriptor(scope, number, size));
  return physical_handle{device_state::keep(owner), memory, {.posix_descriptor = true}};
}

physical_handle::physical_handle(std::shared_ptr<detail::device_state> home, vmm::physical memory,
                                 physical_properties properties) noexcept
    : home_{std::move(home)}, memory_{memory}, properties_{properties} {}

physical_handle::~physical_handle() { detail::report_failure(close()); }

physical_handle::physical_handle(physical_handle&& other) noexcept
    : home_{std::move(other.home_)},
      memory_{std::exchange(other.memory_, {})},
      properties_{other.properties_},
      closed_{std::exchange(other.closed_, false)} {}

physical_handle& physical_handle::operator=(physical_handle&& other) noexcept {
  if (this == &other) return *this;
  detail::report_failure(close());
  home_ = std::move(other.home_);
  memory_ = std::exchange(other.memory_, {});
  properties_ = other.properties_;
  closed_ = std::exchange(other.closed_, false);
  return *this;
}

result<void> physical_handle::close() noexcept {
  if (home_ == nullptr) return {};
  const auto home = std::move(home_);
  closed_ = true;
  const context_scope scope{home->handle()};
  return vmm::release(scope, std::exchange(memory_, {}));
}

result<descriptor> physical_handle::export_descriptor() const {
  if (home_ == nullptr) return empty_reason();
  if (!properties_.posix_descriptor) {
    return error{
        {.code = errc::not_supported, .detail = "the handle was created without posix_descriptor"}};
  }
  const context_scope scope{device()};
  return vmm::export_descriptor(scope, memory_);
}

weir::device physical_handle::device() const noexcept { return home_->handle(); }

result<mapping> mapping::create(const address_range& range, bytes offset,
                                const physical_handle& memory) {
  if (!range) return range.empty_reason();
  if (!memory) return memory.empty_reason();
  const device_address address = range.base() + offset.count();  // below the range where it wraps
  if (!range.contains(address, memory.size())) {
    return error{{.code = errc::invalid_argument,
                  .requested = memory.size(),
                  .detail = "the handle exceeds the end of the range"}};
  }
  const context_scope scope{memory.device()};
  WEIR_TRY(vmm::map(scope, address, memory.get()));
  return mapping{device_state::keep(memory.device()), address, memory.size()};
}

mapping::mapping(std::shared_ptr<detail::device_state> home, device_address address,
                 bytes size) noexcept
    : home_{std::move(home)}, address_{address}, size_{size} {}

mapping::~mapping() { detail::report_failure(close()); }

mapping::mapping(mapping&& other) noexcept
    : home_{std::move(other.home_)},
      address_{std::exchange(other.address_, 0)},
      size_{std::exchange(other.size_, {})},
      closed_{std::exchange(other.closed_, false)} {}

mapping& mapping::operator=(mapping&& other) noexcept {
  if (this == &other) return *this;
  detail::report_failure(close());
  home_ = std::move(other.home_);
  address_ = std::exchange(other.address_, 0);
  size_ = std::exchange(other.size_, {});
  closed_ = std::exchange(other.closed_, false);
  return *this;
}

result<void> mapping::close() noexcept {
  if (home_ == nullptr) return {};
  const auto home = std::move(home_);
  closed_ = true;
  const context_scope scope{home->handle()};
  return vmm::unmap(scope, std::exchange(address_, 0), std::exchange(size_, {}));
}

result<void> mapping::set_access(device accessor, access_rights rights) const {
  const auto access = vmm::access_for(accessor, rights);
  return set_access(std::span{&access, 1});
}

result<void> mapping::set_access(std::span<const vmm::access> rights) const {
  if (home_ == nullptr) return empty_reason();
  const context_scope scope{home_->handle()};
  return vmm::set_access(scope, address_, size_, rights);
}

}}  // namespace weir::v0
