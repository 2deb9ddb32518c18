// Stream pools: attributes, figures, trimming, and which devices may reach the memory.
#include <string>

#include "pools/stream_pool_state.hpp"

namespace weir::inline v0 {

using driver::call;
using driver::check;
using pools::stream_pool_session;
using pools::stream_pool_state;

namespace {

using attribute_kind = stream_pool_attribute;

bool is_flag(stream_pool_attribute which) noexcept {
  return which == attribute_kind::reuse_follow_event_dependencies ||
         which == attribute_kind::reuse_opportunistic ||
         which == attribute_kind::reuse_internal_dependencies;
}

bool is_known(stream_pool_attribute which) noexcept { return !name(which).empty(); }

error not_that_value(stream_pool_attribute which, std::uint64_t value) {
  return {.code = errc::invalid_argument,
          .detail = "pool attribute " + std::string{name(which)} + " cannot be set to " +
                    std::to_string(value)};
}

result<void> check_value(stream_pool_attribute which, std::uint64_t value, bytes max) {
  bool allowed = false;
  switch (which) {
    case attribute_kind::reuse_follow_event_dependencies:
    case attribute_kind::reuse_opportunistic:
    case attribute_kind::reuse_internal_dependencies:
      allowed = value <= 1;
      break;
    case attribute_kind::release_threshold:
      allowed = max == bytes{} || bytes{value} == bytes::max() || bytes{value} <= max;
      break;
    case attribute_kind::reserved_high:
    case attribute_kind::used_high:
      allowed = value == 0;
      break;
    case attribute_kind::reserved:
    case attribute_kind::used:
      break;
  }
  if (allowed) return {};
  return not_that_value(which, value);
}

result<void> has_figures(const stream_pool_state& pool) {
  if (pool.kind() != pools::stream_pool_kind::imported) return {};
  return error{.code = errc::not_supported,
               .detail = "the attributes of an imported pool are its exporter's"};
}

}  // namespace

std::string_view name(stream_pool_attribute which) noexcept {
  switch (which) {
    case attribute_kind::reuse_follow_event_dependencies:
      return "reuse_follow_event_dependencies";
    case attribute_kind::reuse_opportunistic:
      return "reuse_opportunistic";
    case attribute_kind::reuse_internal_dependencies:
      return "reuse_internal_dependencies";
    case attribute_kind::release_threshold:
      return "release_threshold";
    case attribute_kind::reserved:
      return "reserved";
    case attribute_kind::reserved_high:
      return "reserved_high";
    case attribute_kind::used:
      return "used";
    case attribute_kind::used_high:
      return "used_high";
  }
  return {};
}

namespace pools {

result<std::uint64_t> get_attribute(const driver::table& calls, driver::CUmemoryPool pool,
                                    stream_pool_attribute which) {
  const auto native = static_cast<driver::CUmemPool_attribute>(which);
  std::uint64_t wide = 0;
  int flag = 0;
  void* const into = is_flag(which) ? static_cast<void*>(&flag) : &wide;
  WEIR_TRY(check(call::mem_pool_get_attribute, calls.mem_pool_get_attribute(pool, native, into)));
  return is_flag(which) ? std::uint64_t{flag != 0} : wide;
}

result<void> set_attribute(const driver::table& calls, driver::CUmemoryPool pool,
                           stream_pool_attribute which, std::uint64_t value) {
  const auto native = static_cast<driver::CUmemPool_attribute>(which);
  int flag = value != 0 ? 1 : 0;
  void* const from = is_flag(which) ? static_cast<void*>(&flag) : &value;
  return check(call::mem_pool_set_attribute, calls.mem_pool_set_attribute(pool, native, from));
}

}  // namespace pools

// --- Attributes ---------------------------------------------------------------------------------

result<std::uint64_t> stream_pool::attribute(stream_pool_attribute which) const {
  if (!is_known(which)) return errc::invalid_argument;
  WEIR_TRY(has_figures(*inside_));
  const stream_pool_session session{*inside_};
  WEIR_TRY(session.ready());
  return pools::get_attribute(session.driver(), session.handle(), which);
}

result<void> stream_pool::set_attribute(stream_pool_attribute which, std::uint64_t value) {
  WEIR_TRY(check_value(which, value, inside_->config().max));
  WEIR_TRY(has_figures(*inside_));
  const stream_pool_session session{*inside_};
  WEIR_TRY(session.ready());
  return pools::set_attribute(session.driver(), session.handle(), which, value);
}

result<bytes> stream_pool::threshold() const {
  WEIR_TRY_VALUE(value, attribute(attribute_kind::release_threshold));
  return bytes{value};
}

result<void> stream_pool::set_threshold(bytes keep) {
  return set_attribute(attribute_kind::release_threshold, keep.count());
}

result<bool> stream_pool::reuse(stream_pool_attribute rule) const {
  if (!is_flag(rule)) return errc::invalid_argument;
  WEIR_TRY_VALUE(value, attribute(rule));
  return value != 0;
}

result<void> stream_pool::set_reuse(stream_pool_attribute rule, bool allowed) {
  if (!is_flag(rule)) return errc::invalid_argument;
  return set_attribute(rule, allowed ? 1 : 0);
}

result<stream_pool_usage> stream_pool::usage() const {
  WEIR_TRY(has_figures(*inside_));
  const stream_pool_session session{*inside_};
  WEIR_TRY(session.ready());
  const auto figure = [&](stream_pool_attribute which) {
    return pools::get_attribute(session.driver(), session.handle(), which);
  };
  WEIR_TRY_VALUE(reserved, figure(attribute_kind::reserved));
  WEIR_TRY_VALUE(reserved_high, figure(attribute_kind::reserved_high));
  WEIR_TRY_VALUE(used, figure(attribute_kind::used));
  WEIR_TRY_VALUE(used_high, figure(attribute_kind::used_high));
  const auto own = inside_->books().count();
  return stream_pool_usage{.reserved = bytes{reserved},
                           .reserved_high = bytes{reserved_high},
                           .used = bytes{used},
                           .used_high = bytes{used_high},
                           .active_allocations = own.active,
                           .peak_allocations = own.peak,
                           .active_bytes = own.size};
}

result<void> stream_pool::reset_highs() {
  WEIR_TRY(has_figures(*inside_));
  const stream_pool_session session{*inside_};
  WEIR_TRY(session.ready());
  for (const auto which : {attribute_kind::reserved_high, attribute_kind::used_high}) {
    WEIR_TRY(pools::set_attribute(session.driver(), session.handle(), which, 0));
  }
  inside_->books().reset_peak();
  return {};
}

result<bytes> stream_pool::trim(bytes keep) {
  WEIR_TRY(has_figures(*inside_));
  const stream_pool_session session{*inside_};
  WEIR_TRY(session.ready());
  const auto& calls = session.driver();
  const auto reserved = attribute_kind::reserved;
  WEIR_TRY_VALUE(before, pools::get_attribute(calls, session.handle(), reserved));
  WEIR_TRY(check(call::mem_pool_trim_to, calls.mem_pool_trim_to(session.handle(), keep.count())));
  WEIR_TRY_VALUE(after, pools::get_attribute(calls, session.handle(), reserved));
  return bytes{before > after ? before - after : 0};  // others may have grown it meanwhile
}

// --- Peers --------------------------------------------------------------------------------------

namespace {

result<void> set_peer(const stream_pool_state& pool, device other, access_rights rights) {
  const device here = pool.device();
  if (other == here || &other.driver() != &here.driver()) {
    return error{.code = errc::invalid_argument,
                 .detail = other == here ? "a device is no peer of itself"
                                         : "the device belongs to another runtime"};
  }
  const stream_pool_session session{pool};
  WEIR_TRY(session.ready());
  WEIR_TRY_VALUE(reachable, other.can_access_peer(here));
  if (!reachable && rights != access_rights::none) {
    return error{.code = errc::not_supported, .detail = "the device cannot reach the pool's"};
  }
  const auto access = vmm::access_for(other, rights);
  return check(call::mem_pool_set_access,
               session.driver().mem_pool_set_access(session.handle(), &access, 1));
}

}  // namespace

result<void> stream_pool::enable_peer(weir::device other) {
  return set_peer(*inside_, other, access_rights::read_write);
}

result<void> stream_pool::disable_peer(weir::device other) {
  return set_peer(*inside_, other, access_rights::none);
}

result<access_rights> stream_pool::peer_access(weir::device other) const {
  if (&other.driver() != &device().driver()) return errc::invalid_argument;
  const stream_pool_session session{*inside_};
  WEIR_TRY(session.ready());
  auto location = vmm::access_for(other).location;
  auto flags = driver::CU_MEM_ACCESS_FLAGS_PROT_NONE;
  WEIR_TRY(check(call::mem_pool_get_access,
                 session.driver().mem_pool_get_access(&flags, session.handle(), &location)));
  switch (flags) {
    case driver::CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
      return access_rights::read_write;
    case driver::CU_MEM_ACCESS_FLAGS_PROT_READ:
      return access_rights::read;
    default:
      return access_rights::none;
  }
}

}  // namespace weir::inline v0
