// SPDX-License-Identifier: Apache-2.0
// Memory of another process: its handles checked, mapped once, and released.
#include <sys/stat.h>

#include <cstring>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "sharing/device_idle.hpp"
#include "sharing/session.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace sharing {
namespace {

/// Refuses files that cannot be memory of any driver, before a driver sees them.
result<void> check_descriptor(const descriptor& number) {
  struct stat status {};
  const bool is_open = ::fstat(number.get(), &status) == 0;
  if (is_open && !S_ISFIFO(status.st_mode) && !S_ISSOCK(status.st_mode) &&
      !S_ISDIR(status.st_mode)) {
    return {};
  }
  return error{{.code = errc::invalid_argument, .detail = "a received descriptor is not memory"}};
}

/// The handle must be memory of the device that the ticket names.
result<void> check_home(weir::device home, const physical_handle& memory) {
  const context_scope bound{home};
  if (!bound) return bound.error();
  driver::CUmemAllocationProp properties{};
  WEIR_TRY(driver::check(
      driver::call::mem_get_allocation_properties,
      bound.driver().mem_get_allocation_properties(&properties, memory.get().handle)));
  if (properties.location.type == driver::CU_MEM_LOCATION_TYPE_DEVICE &&
      properties.location.id == detail::device_state::of(home).native) {
    return {};
  }
  return error{{.code = errc::invalid_argument, .detail = "the memory belongs to another device"}};
}

result<std::shared_ptr<mapped>> map_pieces(weir::device home, const share_ticket& ticket,
                                           std::span<const descriptor> descriptors) {
  const auto whole = checked_multiply(ticket.piece, ticket.pieces);
  if (!whole) return error{{.code = errc::size_overflow, .requested = ticket.piece}};
  std::vector<physical_handle> handles;
  for (const descriptor& each : descriptors) {
    WEIR_TRY(check_descriptor(each));
    WEIR_TRY_VALUE(handle, physical_handle::import_descriptor(home, each.get(), ticket.piece));
    WEIR_TRY(check_home(home, handle));
    handles.push_back(std::move(handle));
  }
  WEIR_TRY_VALUE(range, address_range::reserve(home, *whole));
  auto memory = std::make_shared<mapped>(
      mapped{.home = home, .range = std::move(range), .mappings = {}, .piece = ticket.piece});
  for (const physical_handle& each : handles) {
    // The driver maps a handle whole or not at all: a size that is not the handle's fails here.
    WEIR_TRY_VALUE(piece,
                   mapping::create(memory->range, ticket.piece * memory->mappings.size(), each));
    memory->mappings.push_back(std::move(piece));
    WEIR_TRY(memory->mappings.back().set_access(home, ticket.rights));
  }
  return memory;
}

}  // namespace

result<void> mapped::close() noexcept {
  result<void> outcome;
  for (mapping& each : mappings) {
    auto unmapped = each.close();
    if (!unmapped && outcome) outcome = std::move(unmapped);
  }
  auto released = range.close();
  return outcome ? std::move(released) : std::move(outcome);
}

result<weir::device> session::find_device(const std::array<std::uint8_t, 16>& uuid) const {
  for (int i = 0; i < machine_->device_count(); ++i) {
    WEIR_TRY_VALUE(each, machine_->device(device_id{i}));
    if (each.uuid() == uuid) return each;
  }
  return error{{.code = errc::no_device, .detail = "this process does not see the device"}};
}

result<std::shared_ptr<mapped>> session::map(const share_ticket& ticket,
                                             std::span<const descriptor> descriptors) {
  WEIR_TRY_VALUE(home, find_device(ticket.device));
  const mapping_key key{ticket.object, ticket.first, ticket.pieces, ticket.rights};
  const detail::mutex_lock lock{map_mutex_};
  if (const auto known = mapped_.find(key); known != mapped_.end()) {
    if (auto memory = known->second.lock()) {
      if (memory->piece == ticket.piece) return memory;
      return error{{.code = errc::invalid_argument,
                    .detail = "the size of a received handle does not match the offer"}};
    }
  }
  WEIR_TRY_VALUE(memory, map_pieces(home, ticket, descriptors));
  std::erase_if(mapped_, [](const auto& each) { return each.second.expired(); });
  mapped_.insert_or_assign(key, memory);
  return std::move(memory);
}

result<void> session::unmap(std::shared_ptr<mapped> memory) noexcept {
  const detail::mutex_lock lock{map_mutex_};  // map() must not return it meanwhile
  result<void> outcome;
  if (memory.use_count() == 1) outcome = memory->close();
  memory.reset();
  return outcome;
}

imported::imported(std::shared_ptr<grant> source, const share_ticket& ticket,
                   std::shared_ptr<mapped> memory)
    : ticket_{ticket},
      home_{detail::device_state::keep(memory->home)},
      address_{memory->range.base() + ticket.offset.count()} {
  accessors_.push_back({memory->home});
  held_->source = std::move(source);
  held_->memory = std::move(memory);
}

imported::imported(std::shared_ptr<grant> source, const share_ticket& ticket, weir::device home,
                   device_address legacy)
    : ticket_{ticket}, home_{detail::device_state::keep(home)}, address_{legacy} {
  accessors_.push_back({home});
  held_->source = std::move(source);
  held_->legacy_home = detail::device_state::keep(home);
  held_->legacy = legacy;
}

imported::~imported() {
  auto closed = close();
  if (closed || home_->forked() || held_->source == nullptr) {
    detail::report_failure(closed);
    return;
  }
  for (accessor& each : accessors_)
    if (!each.is_idle) each.place.keep_until_idle(each.device, held_);
  error reason = std::move(closed).error();
  reason.set_requested(ticket_.size);
  report_error(reason);
}

result<device_address> imported::address() const {
  if (home_->forked()) return detail::fork_error();
  const detail::mutex_lock lock{mutex_};
  if (held_->source == nullptr) return errc::closed;
  WEIR_TRY(held_->source->check());
  return address_;
}

device_address imported::mapped_at() const noexcept {
  if (home_->forked()) return 0;
  const detail::mutex_lock lock{mutex_};
  return address_;
}

result<void> imported::allow(weir::device accessor) const try {
  if (home_->forked()) return detail::fork_error();
  const detail::mutex_lock lock{mutex_};
  if (held_->source == nullptr) return errc::closed;
  if (held_->memory == nullptr) return errc::not_supported;
  accessors_.push_back({accessor});
  for (const mapping& each : held_->memory->mappings)
    WEIR_TRY(each.set_access(accessor, ticket_.rights));
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> imported::wait_for_accessors() {
  result<void> outcome;
  for (std::size_t index = 0;; ++index) {
    std::optional<weir::device> next;
    {
      const detail::mutex_lock lock{mutex_};
      if (index == accessors_.size()) return outcome;  // there may be more than before
      next = accessors_[index].device;
    }
    auto idle = wait_until_idle(*next);
    const detail::mutex_lock lock{mutex_};
    accessors_[index].is_idle = may_unmap(idle);
    if (!idle && may_unmap(outcome)) outcome = std::move(idle);
  }
}

result<void> imported::close() noexcept {
  if (home_->forked()) return detail::fork_error();
  {
    const detail::mutex_lock lock{mutex_};
    if (held_->source == nullptr) return {};
  }
  auto idle = wait_for_accessors();
  if (!may_unmap(idle)) return idle;
  const detail::mutex_lock lock{mutex_};
  if (held_->source == nullptr) return {};  // another thread has closed it meanwhile
  address_ = 0;
  auto ended = held_->end();
  return idle ? std::move(ended) : std::move(idle);
}

imported::holding::~holding() { detail::report_failure(end()); }

result<void> imported::holding::end() noexcept {
  result<void> outcome;
  if (memory != nullptr) outcome = source->origin().unmap(std::move(memory));
  if (const auto home = std::move(legacy_home)) {
    const context_scope bound{home->handle()};
    outcome = bound ? driver::check(driver::call::ipc_close_mem_handle,
                                    bound.driver().ipc_close_mem_handle(legacy))
                    : result<void>{bound.error()};
  }
  source.reset();  // only now may the exporter learn of it
  return outcome;
}

}}}  // namespace weir::v0::sharing
