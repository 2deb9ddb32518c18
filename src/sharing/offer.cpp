// Opening what came over a link.
#include <cstring>
#include <utility>

#include "sharing/session.hpp"

namespace weir::inline v0 {
namespace {

using sharing::incoming;

/// The offer, taken out of its holder, if it is of the kind that was asked for.
result<std::unique_ptr<incoming>> take_if(std::unique_ptr<incoming>& from, share_kind wanted) {
  if (from == nullptr) return errc::already_freed;
  if (!from->ticket || from->ticket->kind != wanted) {
    return error{.code = errc::invalid_argument,
                 .detail = "the offer is no " + std::string{name(wanted)}};
  }
  return std::move(from);
}

template <class Handle>
Handle handle_in(const share_ticket& ticket) noexcept {
  static_assert(sizeof(Handle) == 64);
  Handle handle{};
  std::memcpy(&handle, ticket.payload.data(), sizeof(handle));
  return handle;
}

/// Legacy memory; `where` is the device that the ticket names.
result<device_address> open_legacy(const context_scope& bound, const share_ticket& ticket) {
  if (!bound) return bound.error();
  const auto& calls = bound.driver();
  driver::CUdeviceptr address = 0;
  WEIR_TRY(
      driver::check(driver::call::ipc_open_mem_handle,
                    calls.ipc_open_mem_handle(&address, handle_in<driver::CUipcMemHandle>(ticket),
                                              driver::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
  std::size_t size = 0;
  auto asked = driver::check(driver::call::mem_get_address_range,
                             calls.mem_get_address_range(nullptr, &size, address));
  if (asked && bytes{size} == ticket.size) return address;
  detail::report_failure(
      driver::check(driver::call::ipc_close_mem_handle, calls.ipc_close_mem_handle(address)));
  if (!asked) return std::move(asked).error();
  return error{.code = errc::invalid_argument,
               .requested = ticket.size,
               .detail = "the memory has " + to_string(bytes{size})};
}

}  // namespace

share_offer::share_offer(std::unique_ptr<sharing::incoming> inside) noexcept
    : inside_{std::move(inside)} {}
share_offer::~share_offer() = default;
share_offer::share_offer(share_offer&& other) noexcept = default;
share_offer& share_offer::operator=(share_offer&& other) noexcept = default;

bool share_offer::is_note() const noexcept { return inside_ != nullptr && !inside_->ticket; }

std::span<const std::byte> share_offer::note() const noexcept {
  return inside_ == nullptr ? std::span<const std::byte>{}
                            : std::span{std::as_const(inside_->note)};
}

const share_ticket& share_offer::ticket() const noexcept {
  static const share_ticket none;
  return inside_ == nullptr || !inside_->ticket ? none : *inside_->ticket;
}

result<imported_memory> share_offer::open_memory() {
  const bool legacy = ticket().kind == share_kind::legacy_memory;
  WEIR_TRY_VALUE(taken, take_if(inside_, legacy ? share_kind::legacy_memory : share_kind::memory));
  const share_ticket& what = *taken->ticket;
  WEIR_TRY(taken->grant->check());
  if (!legacy) {
    WEIR_TRY_VALUE(where, taken->grant->from().map(what, taken->descriptors));
    return imported_memory{
        std::make_shared<sharing::imported>(std::move(taken->grant), what, std::move(where))};
  }
  WEIR_TRY_VALUE(home, taken->grant->from().find_device(what.device));
  WEIR_TRY_VALUE(address, open_legacy(context_scope{home}, what));
  return imported_memory{
      std::make_shared<sharing::imported>(std::move(taken->grant), what, home, address)};
}

result<event> share_offer::open_event() {
  WEIR_TRY_VALUE(taken, take_if(inside_, share_kind::event));
  WEIR_TRY_VALUE(home, taken->grant->from().find_device(taken->ticket->device));
  return event::import_handle(home, handle_in<driver::CUipcEventHandle>(*taken->ticket));
}

result<stream_pool> share_offer::open_pool() {
  WEIR_TRY_VALUE(taken, take_if(inside_, share_kind::pool));
  WEIR_TRY_VALUE(home, taken->grant->from().find_device(taken->ticket->device));
  return stream_pool::import_descriptor(home, taken->descriptors.front().get());
}

result<stream_allocation> share_offer::open_allocation(stream_pool& pool,
                                                       const stream_ref& stream) {
  WEIR_TRY_VALUE(taken, take_if(inside_, share_kind::pool_pointer));
  WEIR_TRY_VALUE(opened, pool.import_pointer({taken->ticket->payload}, stream));
  // Where the driver tells no size there is nothing to compare the ticket's with.
  if (opened.size() == bytes{} || taken->ticket->size <= opened.size()) return std::move(opened);
  WEIR_TRY(opened.free());
  return error{.code = errc::invalid_argument,
               .requested = taken->ticket->size,
               .detail = "the allocation has " + to_string(opened.size())};
}

result<device_address> imported_memory::address() const {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->address();
}
device_address imported_memory::mapped_at() const noexcept {
  return inside_ == nullptr ? 0 : inside_->mapped_at();
}
bytes imported_memory::size() const noexcept {
  return inside_ == nullptr ? bytes{} : inside_->ticket().size;
}
access_rights imported_memory::rights() const noexcept {
  return inside_ == nullptr ? access_rights::none : inside_->ticket().rights;
}
result<void> imported_memory::allow(device who) const {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->allow(who);
}
result<void> imported_memory::close() {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->close();
}

}  // namespace weir::inline v0
