// Memory of another process: its handles checked, mapped once, and let go.
#include <sys/stat.h>

#include <cstring>
#include <new>
#include <utility>

#include "sharing/rest.hpp"
#include "sharing/session.hpp"
#include "weir/base/checked.hpp"

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
      mapped{.home = where, .range = std::move(range), .mappings = {}, .piece = ticket.piece});
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
    : ticket_{ticket}, address_{where->range.base() + ticket.offset.count()} {
  reached_by_.push_back(where->home);
  held_.given = std::move(given);
  held_.where = std::move(where);
}

imported::imported(std::shared_ptr<grant> given, const share_ticket& ticket, weir::device home,
                   device_address legacy)
    : ticket_{ticket}, address_{legacy} {
  reached_by_.push_back(home);
  held_.given = std::move(given);
  held_.legacy_home = detail::device_state::keep(home);
  held_.legacy = legacy;
}

imported::~imported() {
  auto closed = close();
  if (!closed && closed.code() == errc::capture_forbidden && busy_) {
    try {
      keep_until_rest(*busy_, std::make_shared<holding>(std::move(held_)));
      return;
    } catch (const std::bad_alloc&) {
      // There is no room to keep it in: it goes at once.
    }
  }
  detail::report_failure(closed);
}

result<device_address> imported::address() const {
  const std::lock_guard lock{mutex_};
  if (held_.given == nullptr) return closed_already();
  WEIR_TRY(held_.given->check());
  return address_;
}

device_address imported::mapped_at() const noexcept {
  const std::lock_guard lock{mutex_};
  return address_;
}

result<void> imported::allow(weir::device who) const {
  const std::lock_guard lock{mutex_};
  if (held_.given == nullptr) return closed_already();
  if (held_.where == nullptr) return errc::not_supported;
  reached_by_.push_back(who);
  for (const mapping& each : held_.where->mappings) WEIR_TRY(each.set_access(who, ticket_.rights));
  return {};
}

/// capture_forbidden: `busy_` could not be waited for.
result<void> imported::wait_for_devices() {
  result<void> outcome;
  for (const weir::device each : reached_by_) {
    auto rested = wait_for_rest(each);
    if (rested) continue;
    const bool forbidden = rested.code() == errc::capture_forbidden;
    if (forbidden) busy_ = each;
    if (forbidden || outcome) outcome = std::move(rested);
  }
  return outcome;
}

result<void> imported::close() noexcept {
  const std::lock_guard lock{mutex_};
  if (held_.given == nullptr) return {};
  auto rested = wait_for_devices();
  if (!rested && rested.code() == errc::capture_forbidden) return rested;
  // A device that cannot be waited for, because it is lost or gone, does no more work.
  address_ = 0;
  auto ended = held_.end();
  return rested ? std::move(ended) : std::move(rested);
}

imported::holding::~holding() { detail::report_failure(end()); }

result<void> imported::holding::end() noexcept {
  result<void> outcome;
  if (where != nullptr) outcome = given->from().unmap(std::move(where));
  if (const auto home = std::move(legacy_home)) {
    const context_scope bound{home->handle()};
    outcome = bound ? driver::check(driver::call::ipc_close_mem_handle,
                                    bound.driver().ipc_close_mem_handle(legacy))
                    : result<void>{bound.error()};
  }
  given.reset();  // and only now the exporter may hear of it
  return outcome;
}

}  // namespace weir::inline v0::sharing
