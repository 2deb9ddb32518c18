// SPDX-License-Identifier: Apache-2.0
// share_link: the objects that can be offered.
#include <cstring>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "sharing/session.hpp"

namespace weir { inline namespace v0 {
namespace {

using sharing::packet_kind;

template <class Handle>
std::array<std::byte, 64> payload_of(const Handle& handle) noexcept {
  static_assert(sizeof(handle) == 64);
  std::array<std::byte, 64> raw{};
  std::memcpy(raw.data(), &handle, sizeof(handle));
  return raw;
}

/// The ticket of a part: the handles it lies in, and its offset in them.
result<share_ticket> ticket_for(const sharing::exported& memory, const share_view& part) {
  const bool fits = part.offset < memory.size && part.size <= memory.size - part.offset;
  if (!fits || part.rights == access_rights::none) {
    return error{{.code = errc::invalid_argument,
                  .requested = part.size,
                  .detail = "the part exceeds the memory, or its access rights are invalid"}};
  }
  const bytes size = part.size == bytes{} ? memory.size - part.offset : part.size;
  const std::uint64_t first = part.offset / memory.unit;
  const std::uint64_t last = (part.offset + size - bytes{1}) / memory.unit;
  return share_ticket{.kind = share_kind::memory,
                      .rights = part.rights,
                      .object = memory.object,
                      .size = size,
                      .offset = part.offset % memory.unit,
                      .piece = memory.unit,
                      .first = static_cast<std::uint32_t>(first),
                      .pieces = static_cast<std::uint32_t>(last - first + 1)};
}

}  // namespace

result<share_link> share_link::open(std::shared_ptr<runtime> machine, share_channel channel,
                                    share_link_options settings) try {
  WEIR_TRY_VALUE(session, sharing::session::open(std::move(machine), std::move(channel), settings));
  return share_link{std::move(session)};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

share_peer share_link::peer() const noexcept { return state_->peer(); }

result<void> share_link::check() const try {
  return state_->check();
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<share_grant> share_link::offer(const shared_memory& memory, share_view part) const try {
  if (!memory) return errc::invalid_argument;
  const auto& source = memory.state_;
  WEIR_TRY_VALUE(ticket, ticket_for(*source, part));
  const context_scope bound{memory.device()};
  std::vector<descriptor> descriptors;
  std::vector<int> numbers;
  for (std::uint32_t i = 0; i < ticket.pieces; ++i) {
    WEIR_TRY_VALUE(piece, vmm::export_descriptor(bound, source->pieces[ticket.first + i]));
    numbers.push_back(piece.get());
    descriptors.push_back(std::move(piece));
  }
  return state_->send_offer(ticket, memory.device(), numbers, source, true);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<share_grant> share_link::offer_legacy(weir::device home, device_address address) const try {
  const context_scope bound{home};
  if (!bound) return bound.error();
  driver::CUdeviceptr base = 0;
  std::size_t size = 0;
  WEIR_TRY(driver::check(driver::call::mem_get_address_range,
                         bound.driver().mem_get_address_range(&base, &size, address)));
  if (base != address) {
    return error{{.code = errc::invalid_argument,
                  .detail = "the pointer is not the start of an allocation"}};
  }
  const bytes unit = home.capabilities().granularity;
  if (unit != bytes{} && bytes{size} % unit != bytes{}) {
    return error{{.code = errc::not_permitted,
                  .requested = bytes{size},
                  .detail = "size must be a multiple of " + to_string(unit) +
                            "; otherwise neighbouring memory would be exported"}};
  }
  driver::CUipcMemHandle handle{};
  WEIR_TRY(driver::check(driver::call::ipc_get_mem_handle,
                         bound.driver().ipc_get_mem_handle(&handle, address)));
  return state_->send_offer({.kind = share_kind::legacy_memory,
                             .object = sharing::next_number(),
                             .size = bytes{size},
                             .payload = payload_of(handle)},
                            home, {}, nullptr, true);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<share_grant> share_link::offer(const event& shared_event) const try {
  WEIR_TRY_VALUE(handle, shared_event.export_handle());
  return state_->send_offer(
      {.kind = share_kind::event, .object = sharing::next_number(), .payload = payload_of(handle)},
      shared_event.device(), {}, nullptr, false);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<share_grant> share_link::offer(const stream_pool& pool) const try {
  WEIR_TRY_VALUE(exported, pool.export_descriptor());
  const int number = exported.get();
  return state_->send_offer({.kind = share_kind::pool,
                             .object = reinterpret_cast<std::uintptr_t>(pool.handle()),
                             .pieces = 1},
                            pool.device(), std::span{&number, 1}, nullptr, false);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<share_grant> share_link::offer(const stream_allocation& allocation) const try {
  if (!allocation) return errc::moved_from;
  const stream_pool pool = allocation.pool();
  WEIR_TRY_VALUE(pointer, pool.export_pointer(allocation.data()));
  return state_->send_offer({.kind = share_kind::pool_pointer,
                             .object = reinterpret_cast<std::uintptr_t>(pool.handle()),
                             .size = allocation.size(),
                             .payload = pointer.data},
                            pool.device(), {}, nullptr, false);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> share_link::send_note(std::span<const std::byte> text) const try {
  if (text.size() > most_note) {
    return error{{.code = errc::invalid_argument, .requested = bytes{text.size()}}};
  }
  return state_->send(sharing::encode_note(text), {}, state_->settings().limit);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> share_link::revoke(share_grant grant) const {
  return revoke(grant, state_->settings().limit);
}
result<void> share_link::revoke(share_grant grant, timeout limit) const try {
  return state_->revoke(grant.number(), limit);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}
std::size_t share_link::outstanding() const { return state_->outstanding(); }

result<share_offer> share_link::receive() const { return receive(state_->settings().limit); }
result<share_offer> share_link::receive(timeout limit) const try {
  WEIR_TRY_VALUE(next, state_->receive(limit));
  return share_offer{std::move(next)};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

}}  // namespace weir::v0
