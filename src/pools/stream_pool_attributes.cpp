// SPDX-License-Identifier: Apache-2.0
// Stream pools: attributes, figures, trimming, and which devices may reach the memory.
#include <string>

#include "pools/stream_pool_state.hpp"

namespace weir { inline namespace v0 {

using driver::call;
using driver::check;
using pools::stream_pool_session;
using pools::stream_pool_state;

namespace {

using attribute_kind = stream_pool_attribute;

bool is_flag(stream_pool_attribute attribute) noexcept {
  return attribute == attribute_kind::reuse_follow_event_dependencies ||
         attribute == attribute_kind::reuse_opportunistic ||
         attribute == attribute_kind::reuse_internal_dependencies;
}

bool is_known(stream_pool_attribute attribute) noexcept { return !name(attribute).empty(); }

result<void> check_value(stream_pool_attribute attribute, std::uint64_t value, bytes max) {
  bool allowed = false;
  switch (attribute) {
    case attribute_kind::reuse_follow_event_dependencies:
    case attribute_kind::reuse_opportunistic:
    case attribute_kind::reuse_internal_dependencies:
      allowed = value <= 1;
      break;
    case attribute_kind::release_threshold:
      allowed = max == bytes{} || bytes{value} == bytes::max() || bytes{value} <= max;
      break;
    case attribute_kind::reserved_peak:
    case attribute_kind::used_peak:
      allowed = value == 0;
      break;
    case attribute_kind::reserved:
    case attribute_kind::used:
      break;
  }
  if (allowed) return {};
  return error{{.code = errc::invalid_argument,
                .detail = "pool attribute " + to_string(attribute) + " cannot be set to " +
                          std::to_string(value)}};
}

/// Whether there is a pool behind the handle, and it has attributes.
result<void> has_attributes(const std::shared_ptr<stream_pool_state>& pool) {
  if (pool == nullptr) return errc::moved_from;
  if (pool->kind() != pools::stream_pool_kind::imported) return {};
  return error{
      {.code = errc::not_supported,
       .detail = "the attributes of an imported pool can be set by the exporting process only"}};
}

}  // namespace

namespace pools {

result<std::uint64_t> get_attribute(const driver::table& calls, driver::CUmemoryPool pool,
                                    stream_pool_attribute attribute) {
  const auto native = static_cast<driver::CUmemPool_attribute>(attribute);
  std::uint64_t wide = 0;
  int flag = 0;
  void* const value = is_flag(attribute) ? static_cast<void*>(&flag) : &wide;
  WEIR_TRY(check(call::mem_pool_get_attribute, calls.mem_pool_get_attribute(pool, native, value)));
  return is_flag(attribute) ? std::uint64_t{flag != 0} : wide;
}

result<void> set_attribute(const driver::table& calls, driver::CUmemoryPool pool,
                           stream_pool_attribute attribute, std::uint64_t value) {
  const auto native = static_cast<driver::CUmemPool_attribute>(attribute);
  int flag = value != 0 ? 1 : 0;
  void* const source = is_flag(attribute) ? static_cast<void*>(&flag) : &value;
  return check(call::mem_pool_set_attribute, calls.mem_pool_set_attribute(pool, native, source));
}

}  // namespace pools

// --- Attributes ---------------------------------------------------------------------------------

result<std::uint64_t> stream_pool::attribute(stream_pool_attribute attribute) const {
  if (!is_known(attribute)) return errc::invalid_argument;
  WEIR_TRY(has_attributes(state_));
  const stream_pool_session session{*state_};
  WEIR_TRY(session.ready());
  return pools::get_attribute(session.driver(), session.handle(), attribute);
}

result<void> stream_pool::set_attribute(stream_pool_attribute attribute,
                                        std::uint64_t value) const {
  WEIR_TRY(has_attributes(state_));
  WEIR_TRY(check_value(attribute, value, state_->config().max));
  const stream_pool_session session{*state_};
  WEIR_TRY(session.ready());
  return pools::set_attribute(session.driver(), session.handle(), attribute, value);
}

result<bytes> stream_pool::threshold() const {
  WEIR_TRY_VALUE(value, attribute(attribute_kind::release_threshold));
  return bytes{value};
}

result<void> stream_pool::set_threshold(bytes limit) const {
  return set_attribute(attribute_kind::release_threshold, limit.count());
}

result<bool> stream_pool::reuse(stream_pool_attribute rule) const {
  if (!is_flag(rule)) return errc::invalid_argument;
  WEIR_TRY_VALUE(value, attribute(rule));
  return value != 0;
}

result<void> stream_pool::set_reuse(stream_pool_attribute rule, bool allowed) const {
  if (!is_flag(rule)) return errc::invalid_argument;
  return set_attribute(rule, allowed ? 1 : 0);
}

// --- Figures ------------------------------------------------------------------------------------

result<stream_pool_stats> stream_pool::stats() const {
  WEIR_TRY(has_attributes(state_));
  const stream_pool_session session{*state_};
  WEIR_TRY(session.ready());
  const auto read = [&](stream_pool_attribute attribute) {
    return pools::get_attribute(session.driver(), session.handle(), attribute);
  };
  WEIR_TRY_VALUE(reserved, read(attribute_kind::reserved));
  WEIR_TRY_VALUE(reserved_peak, read(attribute_kind::reserved_peak));
  WEIR_TRY_VALUE(used, read(attribute_kind::used));
  WEIR_TRY_VALUE(used_peak, read(attribute_kind::used_peak));
  const auto own = state_->allocations().count();
  return stream_pool_stats{.reserved = bytes{reserved},
                           .reserved_peak = bytes{reserved_peak},
                           .used = bytes{used},
                           .used_peak = bytes{used_peak},
                           .active_allocations = own.active,
                           .active_allocations_peak = own.peak,
                           .active_bytes = own.size};
}

result<void> stream_pool::reset_peaks() const {
  WEIR_TRY(has_attributes(state_));
  const stream_pool_session session{*state_};
  WEIR_TRY(session.ready());
  for (const auto peak : {attribute_kind::reserved_peak, attribute_kind::used_peak}) {
    WEIR_TRY(pools::set_attribute(session.driver(), session.handle(), peak, 0));
  }
  state_->allocations().reset_peak();
  return {};
}

result<bytes> stream_pool::trim(bytes keep) const {
  WEIR_TRY(has_attributes(state_));
  const stream_pool_session session{*state_};
  WEIR_TRY(session.ready());
  const auto& calls = session.driver();
  const auto reserved = [&] {
    return pools::get_attribute(calls, session.handle(), attribute_kind::reserved);
  };
  const auto trim_to = [&](std::uint64_t size) {
    return check(call::mem_pool_trim_to, calls.mem_pool_trim_to(session.handle(), size));
  };
  WEIR_TRY_VALUE(before, reserved());
  WEIR_TRY(trim_to(keep.count()));
  WEIR_TRY_VALUE(after, reserved());
  // The driver leaves at least what it is told to, and so all of a unit that is only partly over.
  if (after > keep.count() && keep.count() % pools::driver_unit != 0) {
    WEIR_TRY(trim_to(keep.count() - keep.count() % pools::driver_unit));
    WEIR_TRY_VALUE(at_last, reserved());
    after = at_last;
  }
  return bytes{before > after ? before - after : 0};  // others may have grown it meanwhile
}

// --- Peers --------------------------------------------------------------------------------------

namespace {

result<void> set_peer(const std::shared_ptr<stream_pool_state>& pool, device other,
                      access_rights rights) {
  if (pool == nullptr) return errc::moved_from;
  const device owner = pool->device();
  if (other == owner || &other.driver() != &owner.driver()) {
    return error{{.code = errc::invalid_argument,
                  .detail = other == owner ? "the peer must be another device than the pool's"
                                           : "the device belongs to another runtime"}};
  }
  const stream_pool_session session{*pool};
  WEIR_TRY(session.ready());
  WEIR_TRY_VALUE(reachable, other.can_access_peer(owner));
  if (!reachable && rights != access_rights::none) {
    return error{{.code = errc::not_supported,
                  .detail = "the device has no peer access to the pool's device"}};
  }
  const auto access = vmm::access_for(other, rights);
  return check(call::mem_pool_set_access,
               session.driver().mem_pool_set_access(session.handle(), &access, 1));
}

}  // namespace

result<void> stream_pool::enable_peer(weir::device other) const {
  return set_peer(state_, other, access_rights::read_write);
}

result<void> stream_pool::disable_peer(weir::device other) const {
  return set_peer(state_, other, access_rights::none);
}

result<access_rights> stream_pool::peer_access(weir::device other) const {
  if (state_ == nullptr) return errc::moved_from;
  if (&other.driver() != &device().driver()) return errc::invalid_argument;
  const stream_pool_session session{*state_};
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

}}  // namespace weir::v0
