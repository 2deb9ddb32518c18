// SPDX-License-Identifier: Apache-2.0
// A host without memory is an error like any other.
#pragma once

#include <exception>
#include <new>

#include "base/host_memory.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// What `call` returns, or no_host_memory where it ran out of that. A device that is out of memory
/// is another matter: a weir::out_of_memory that code of the user's throws reaches the caller.
template <class Call>
auto guarded(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const out_of_memory&) {
    throw;
  } catch (const std::bad_alloc&) {
    return detail::no_host_memory();
  }
}

/// The same for callers that must not throw: whatever code of the user's throws is an error.
template <class Call>
auto contained(const Call& call) noexcept -> decltype(call()) {
  try {
    try {
      return call();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& thrown) {
      return error{{.code = errc::system, .detail = thrown.what()}};
    } catch (...) {
      return error{{.code = errc::system}};
    }
  } catch (const std::bad_alloc&) {
    return detail::no_host_memory();
  }
}

/// A free for callers that must not throw. A driver call or a host allocation that fails once must
/// not cost the memory, so a free that returns such an error is tried again. After an error of
/// another kind, or an exception of the user's code, the memory may be freed: there is no second
/// attempt. If both fail, the first error is returned.
template <class Free>
result<void> freed_surely(const Free& call) noexcept {
  bool returned = false;
  auto freed = contained([&]() -> result<void> {
    result<void> outcome = call();
    returned = true;
    return outcome;
  });
  if (!returned || freed) return freed;
  const bool may_retry = freed.code() == errc::no_host_memory || freed.error().native() != 0;
  if (may_retry && contained(call)) return {};
  return freed;
}

}}}  // namespace weir::v0::pools
