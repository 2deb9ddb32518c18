// SPDX-License-Identifier: Apache-2.0
// share_offer and imported_memory: opening an offer.
#include <cstring>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "sharing/session.hpp"

namespace weir { inline namespace v0 {
namespace {

using sharing::incoming;

/// Takes the message out of the offer, if it is of that kind.
result<std::unique_ptr<incoming>> take_if(std::unique_ptr<incoming>& message, share_kind kind) {
  if (message == nullptr) return errc::moved_from;
  if (!message->ticket || message->ticket->kind != kind) {
    return error{
        {.code = errc::invalid_argument, .detail = "the offer is not of kind " + to_string(kind)}};
  }
  return std::move(message);
}

template <class Handle>
Handle handle_in(const share_ticket& ticket) noexcept {
  static_assert(sizeof(Handle) == 64);
  Handle handle{};
  std::memcpy(&handle, ticket.payload.data(), sizeof(handle));
  return handle;
}

/// Legacy memory; the scope is of the device that the ticket names.
result<device_address> open_legacy(const context_scope& bound, const share_ticket& ticket) {
  if (!bound) return bound.error();
  const auto& calls = bound.driver();
  driver::CUdeviceptr address = 0;
  WEIR_TRY(
      driver::check(driver::call::ipc_open_mem_handle,
                    calls.ipc_open_mem_handle(&address, handle_in<driver::CUipcMemHandle>(ticket),
                                              driver::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
  std::size_t size = 0;
  auto measured = driver::check(driver::call::mem_get_address_range,
                                calls.mem_get_address_range(nullptr, &size, address));
  if (measured && bytes{size} == ticket.size) return address;
  detail::report_failure(
      driver::check(driver::call::ipc_close_mem_handle, calls.ipc_close_mem_handle(address)));
  if (!measured) return std::move(measured).error();
  return error{{.code = errc::invalid_argument,
                .requested = ticket.size,
                .detail = "the memory has " + to_string(bytes{size})}};
}

}  // namespace

share_offer::share_offer(std::unique_ptr<sharing::incoming> message) noexcept
    : state_{std::move(message)} {}
share_offer::~share_offer() = default;
share_offer::share_offer(share_offer&& other) noexcept = default;
share_offer& share_offer::operator=(share_offer&& other) noexcept = default;

bool share_offer::is_note() const noexcept { return state_ != nullptr && !state_->ticket; }

std::span<const std::byte> share_offer::note() const noexcept {
  return state_ == nullptr ? std::span<const std::byte>{} : std::span{std::as_const(state_->note)};
}

const share_ticket& share_offer::ticket() const noexcept {
  static const share_ticket none;
  return state_ == nullptr || !state_->ticket ? none : *state_->ticket;
}

result<imported_memory> share_offer::open_memory() try {
  const bool is_legacy = ticket().kind == share_kind::legacy_memory;
  WEIR_TRY_VALUE(taken,
                 take_if(state_, is_legacy ? share_kind::legacy_memory : share_kind::memory));
  const share_ticket& offered = *taken->ticket;
  WEIR_TRY(taken->grant->check());
  if (!is_legacy) {
    WEIR_TRY_VALUE(memory, taken->grant->origin().map(offered, taken->descriptors));
    return imported_memory{
        std::make_shared<sharing::imported>(std::move(taken->grant), offered, std::move(memory))};
  }
  WEIR_TRY_VALUE(home, taken->grant->origin().find_device(offered.device));
  WEIR_TRY_VALUE(address, open_legacy(context_scope{home}, offered));
  return imported_memory{
      std::make_shared<sharing::imported>(std::move(taken->grant), offered, home, address)};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<event> share_offer::open_event() try {
  WEIR_TRY_VALUE(taken, take_if(state_, share_kind::event));
  WEIR_TRY_VALUE(home, taken->grant->origin().find_device(taken->ticket->device));
  return event::import_handle(home, handle_in<driver::CUipcEventHandle>(*taken->ticket));
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<stream_pool> share_offer::open_pool() try {
  WEIR_TRY_VALUE(taken, take_if(state_, share_kind::pool));
  WEIR_TRY_VALUE(home, taken->grant->origin().find_device(taken->ticket->device));
  return stream_pool::import_descriptor(home, taken->descriptors.front().get());
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<stream_allocation> share_offer::open_allocation(stream_pool& pool,
                                                       const stream_ref& stream) try {
  WEIR_TRY_VALUE(taken, take_if(state_, share_kind::pool_pointer));
  WEIR_TRY_VALUE(allocation, pool.import_pointer({taken->ticket->payload}, stream));
  // Where the driver tells no size there is nothing to compare the ticket's with.
  if (allocation.size() == bytes{} || taken->ticket->size <= allocation.size())
    return std::move(allocation);
  const bytes size = allocation.size();
  WEIR_TRY(allocation.free());
  return error{{.code = errc::invalid_argument,
                .requested = taken->ticket->size,
                .detail = "the allocation has " + to_string(size)}};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<device_address> imported_memory::address() const try {
  if (state_ == nullptr) return errc::moved_from;
  return state_->address();
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}
device_address imported_memory::mapped_at() const noexcept {
  return state_ == nullptr ? 0 : state_->mapped_at();
}
bytes imported_memory::size() const noexcept {
  return state_ == nullptr ? bytes{} : state_->ticket().size;
}
access_rights imported_memory::rights() const noexcept {
  return state_ == nullptr ? access_rights::none : state_->ticket().rights;
}
result<void> imported_memory::allow(device accessor) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->allow(accessor);
}
result<void> imported_memory::close() const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->close();
}

}}  // namespace weir::v0
