// The public face of a link: what can be given over it.
#include <cstring>
#include <utility>

#include "sharing/session.hpp"

namespace weir::inline v0 {
namespace {

using sharing::packet_kind;

template <class Handle>
std::array<std::byte, 64> payload_of(const Handle& handle) noexcept {
  static_assert(sizeof(handle) == 64);
  std::array<std::byte, 64> raw{};
  std::memcpy(raw.data(), &handle, sizeof(handle));
  return raw;
}

/// The part that a view means, as a ticket: which handles, and where in them.
result<share_ticket> ticket_for(const sharing::exported& what, const share_view& part) {
  const bool inside = part.offset < what.size && part.size <= what.size - part.offset;
  if (!inside || part.rights == access_rights::none) {
    return error{.code = errc::invalid_argument,
                 .requested = part.size,
                 .detail = "a part that does not lie in the memory, or without rights"};
  }
  const bytes size = part.size == bytes{} ? what.size - part.offset : part.size;
  const std::uint64_t first = part.offset / what.unit;
  const std::uint64_t last = (part.offset + size - bytes{1}) / what.unit;
  return share_ticket{.kind = share_kind::memory,
                      .rights = part.rights,
                      .object = what.object,
                      .size = size,
                      .offset = part.offset % what.unit,
                      .piece = what.unit,
                      .first = static_cast<std::uint32_t>(first),
                      .pieces = static_cast<std::uint32_t>(last - first + 1)};
}

}  // namespace

result<share_link> share_link::open(std::shared_ptr<runtime> machine, share_channel channel,
                                    share_link_options settings) {
  WEIR_TRY_VALUE(made, sharing::session::open(std::move(machine), std::move(channel), settings));
  return share_link{std::move(made)};
}

share_peer share_link::peer() const noexcept { return inside_->peer(); }

result<void> share_link::check() const { return inside_->check(); }

result<share_grant> share_link::offer(const shared_memory& what, share_view part) {
  if (!what) return errc::invalid_argument;
  const auto& memory = what.inside_;
  WEIR_TRY_VALUE(ticket, ticket_for(*memory, part));
  const context_scope bound{what.device()};
  std::vector<descriptor> held;
  std::vector<int> numbers;
  for (std::uint32_t i = 0; i < ticket.pieces; ++i) {
    WEIR_TRY_VALUE(each, vmm::export_descriptor(bound, memory->pieces[ticket.first + i]));
    numbers.push_back(each.get());
    held.push_back(std::move(each));
  }
  return inside_->give(ticket, what.device(), numbers, memory, true);
}

result<share_grant> share_link::offer_legacy(weir::device where, device_address address) {
  const context_scope bound{where};
  if (!bound) return bound.error();
  driver::CUdeviceptr base = 0;
  std::size_t size = 0;
  WEIR_TRY(driver::check(driver::call::mem_get_address_range,
                         bound.driver().mem_get_address_range(&base, &size, address)));
  if (base != address) {
    return error{.code = errc::invalid_argument, .detail = "not the start of an allocation"};
  }
  const bytes unit = where.capabilities().granularity;
  if (unit != bytes{} && bytes{size} % unit != bytes{}) {
    return error{.code = errc::not_permitted,
                 .requested = bytes{size},
                 .detail = "no multiple of " + to_string(unit) + ": neighbours would go along"};
  }
  driver::CUipcMemHandle handle{};
  WEIR_TRY(driver::check(driver::call::ipc_get_mem_handle,
                         bound.driver().ipc_get_mem_handle(&handle, address)));
  return inside_->give({.kind = share_kind::legacy_memory,
                        .object = sharing::next_number(),
                        .size = bytes{size},
                        .payload = payload_of(handle)},
                       where, {}, nullptr, true);
}

result<share_grant> share_link::offer(const event& what) {
  WEIR_TRY_VALUE(handle, what.export_handle());
  return inside_->give(
      {.kind = share_kind::event, .object = sharing::next_number(), .payload = payload_of(handle)},
      what.device(), {}, nullptr, false);
}

result<share_grant> share_link::offer(const stream_pool& what) {
  WEIR_TRY_VALUE(number, what.export_descriptor());
  const int one = number.get();
  return inside_->give({.kind = share_kind::pool,
                        .object = reinterpret_cast<std::uintptr_t>(what.handle()),
                        .pieces = 1},
                       what.device(), std::span{&one, 1}, nullptr, false);
}

result<share_grant> share_link::offer(const stream_allocation& what) {
  if (!what) return errc::already_freed;
  const stream_pool pool = what.pool();
  WEIR_TRY_VALUE(pointer, pool.export_pointer(what.get()));
  return inside_->give({.kind = share_kind::pool_pointer,
                        .object = reinterpret_cast<std::uintptr_t>(pool.handle()),
                        .size = what.size(),
                        .payload = pointer.data},
                       pool.device(), {}, nullptr, false);
}

result<void> share_link::send_note(std::span<const std::byte> text) {
  if (text.size() > most_note) {
    return error{.code = errc::invalid_argument, .requested = bytes{text.size()}};
  }
  return inside_->send(sharing::encode_note(text), {}, inside_->settings().limit);
}

result<void> share_link::revoke(share_grant which) {
  return revoke(which, inside_->settings().limit);
}
result<void> share_link::revoke(share_grant which, timeout limit) {
  return inside_->revoke(which.number(), limit);
}
std::size_t share_link::outstanding() const { return inside_->outstanding(); }

result<share_offer> share_link::receive() { return receive(inside_->settings().limit); }
result<share_offer> share_link::receive(timeout limit) {
  WEIR_TRY_VALUE(next, inside_->receive(limit));
  return share_offer{std::move(next)};
}

}  // namespace weir::inline v0
