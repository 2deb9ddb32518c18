// Memory of another process: its handles checked, mapped once, and let go.
#include <sys/stat.h>

#include <cstring>
#include <utility>

#include "sharing/session.hpp"
#include "weir/checked.hpp"

namespace weir::inline v0::sharing {
namespace {

/// Turns away what cannot be memory of any driver, before a driver sees it.
result<void> check_descriptor(const descriptor& number) {
  struct stat facts {};
  const bool known = ::fstat(number.get(), &facts) == 0;
  if (known && !S_ISFIFO(facts.st_mode) && !S_ISSOCK(facts.st_mode) && !S_ISDIR(facts.st_mode)) {
    return {};
  }
  return error{.code = errc::invalid_argument, .detail = "a descriptor that is no memory"};
}

/// The handle must be memory of the device that the ticket names.
result<void> check_home(weir::device where, const physical_handle& memory) {
  const context_scope bound{where};
  if (!bound) return bound.error();
  driver::CUmemAllocationProp facts{};
  WEIR_TRY(
      driver::check(driver::call::mem_get_allocation_properties,
                    bound.driver().mem_get_allocation_properties(&facts, memory.get().handle)));
  if (facts.location.type == driver::CU_MEM_LOCATION_TYPE_DEVICE &&
      facts.location.id == detail::device_state::of(where).native) {
    return {};
  }
  return error{.code = errc::invalid_argument, .detail = "memory of another device"};
}

result<std::shared_ptr<mapped>> map_pieces(weir::device where, const share_ticket& ticket,
                                           std::span<const descriptor> descriptors) {
  const auto whole = checked_multiply(ticket.piece, ticket.pieces);
  if (!whole) return error{.code = errc::size_overflow, .requested = ticket.piece};
  std::vector<physical_handle> handles;
  for (const descriptor& each : descriptors) {
    WEIR_TRY(check_descriptor(each));
    WEIR_TRY_VALUE(handle, physical_handle::import_descriptor(where, each.get(), ticket.piece));
    WEIR_TRY(check_home(where, handle));
    handles.push_back(std::move(handle));
  }
  WEIR_TRY_VALUE(range, address_range::reserve(where, *whole));
  auto made = std::make_shared<mapped>(
      mapped{.range = std::move(range), .mappings = {}, .piece = ticket.piece});
  for (const physical_handle& each : handles) {
    // The driver maps a handle whole or not at all: a size that is not the handle's fails here.
    WEIR_TRY_VALUE(there, mapping::create(made->range, ticket.piece * made->mappings.size(), each));
    made->mappings.push_back(std::move(there));
    WEIR_TRY(made->mappings.back().set_access(where, ticket.rights));
  }
  return made;
}

error closed_already() { return {.code = errc::already_freed}; }

}  // namespace

result<void> mapped::close() noexcept {
  result<void> outcome;
  for (mapping& each : mappings) {
    auto done = each.close();
    if (!done && outcome) outcome = std::move(done);
  }
  auto done = range.close();
  return outcome ? std::move(done) : std::move(outcome);
}

result<weir::device> session::find_device(const std::array<std::uint8_t, 16>& uuid) const {
  for (int i = 0; i < machine_->device_count(); ++i) {
    WEIR_TRY_VALUE(each, machine_->device(device_id{i}));
    if (each.uuid() == uuid) return each;
  }
  return error{.code = errc::no_device, .detail = "this process does not see the device"};
}

result<std::shared_ptr<mapped>> session::map(const share_ticket& ticket,
                                             std::span<const descriptor> descriptors) {
  WEIR_TRY_VALUE(where, find_device(ticket.device));
  const mapping_key key{ticket.object, ticket.first, ticket.pieces, ticket.rights};
  const std::lock_guard lock{map_mutex_};
  if (const auto known = mapped_.find(key); known != mapped_.end()) {
    if (auto there = known->second.lock()) {
      if (there->piece == ticket.piece) return there;
      return error{.code = errc::invalid_argument, .detail = "handles that changed their size"};
    }
  }
  WEIR_TRY_VALUE(made, map_pieces(where, ticket, descriptors));
  std::erase_if(mapped_, [](const auto& each) { return each.second.expired(); });
  mapped_.insert_or_assign(key, made);
  return std::move(made);
}

result<void> session::unmap(std::shared_ptr<mapped> where) noexcept {
  const std::lock_guard lock{map_mutex_};  // nobody finds it in the table meanwhile
  result<void> outcome;
  if (where.use_count() == 1) outcome = where->close();
  where.reset();
  return outcome;
}

imported::imported(std::shared_ptr<grant> given, const share_ticket& ticket,
                   std::shared_ptr<mapped> where)
    : ticket_{ticket},
      given_{std::move(given)},
      where_{std::move(where)},
      address_{where_->range.base() + ticket.offset.count()} {}

imported::imported(std::shared_ptr<grant> given, const share_ticket& ticket, weir::device home,
                   device_address legacy)
    : ticket_{ticket},
      given_{std::move(given)},
      home_{detail::device_state::keep(home)},
      address_{legacy} {}

imported::~imported() { detail::report_failure(close()); }

result<device_address> imported::address() const {
  const std::lock_guard lock{mutex_};
  if (given_ == nullptr) return closed_already();
  WEIR_TRY(given_->check());
  return address_;
}

device_address imported::mapped_at() const noexcept {
  const std::lock_guard lock{mutex_};
  return address_;
}

result<void> imported::allow(weir::device who) const {
  const std::lock_guard lock{mutex_};
  if (given_ == nullptr) return closed_already();
  if (where_ == nullptr) return errc::not_supported;
  for (const mapping& each : where_->mappings) WEIR_TRY(each.set_access(who, ticket_.rights));
  return {};
}

result<void> imported::close() noexcept {
  const std::lock_guard lock{mutex_};
  result<void> outcome;
  const device_address address = std::exchange(address_, 0);
  if (where_ != nullptr) outcome = given_->from().unmap(std::move(where_));
  if (const auto home = std::move(home_)) {
    const context_scope bound{home->handle()};
    outcome = bound ? driver::check(driver::call::ipc_close_mem_handle,
                                    bound.driver().ipc_close_mem_handle(address))
                    : result<void>{bound.error()};
  }
  given_.reset();  // and only now the exporter may hear of it
  return outcome;
}

}  // namespace weir::inline v0::sharing
