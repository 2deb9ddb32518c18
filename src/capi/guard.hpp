// SPDX-License-Identifier: Apache-2.0
// The wall between C and C++: no exception passes, and every failure is remembered for its thread.
#pragma once

#include <new>
#include <utility>

#include "weir.h"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// Keeps `failed` as the calling thread's last error and returns its number. Allocates nothing
/// itself.
weir_error remember(const error& failed) noexcept;
/// The same for what has no error object: a lack of host memory, for instance.
weir_error remember(errc code, const char* detail) noexcept;

/// Runs `body`, which returns a result<void>, as the body of a C function.
template <class Body>
weir_error guarded(Body&& body) noexcept {
  try {
    const result<void> outcome = std::forward<Body>(body)();
    return outcome ? weir_error{weir_ok} : remember(outcome.error());
  } catch (const failure& thrown) {
    return remember(thrown.reason());
  } catch (const out_of_memory& thrown) {
    return remember(thrown.reason());
  } catch (const std::bad_alloc&) {
    return remember(errc::no_host_memory, "the host is out of memory");
  } catch (...) {
    return remember(errc::internal, "an unknown exception");
  }
}

}}}  // namespace weir::v0::capi
