// The wall between C and C++: no exception passes, and every failure is remembered for its thread.
#pragma once

#include <new>
#include <utility>

#include "weir.h"
#include "weir/base/result.hpp"

namespace weir::inline v0::capi {

/// Keeps `found` as the calling thread's last error and gives its number. Allocates nothing itself.
weir_error remember(const error& found) noexcept;
/// The same for what has no error object: a failure to get host memory, for instance.
weir_error remember(errc code, const char* detail) noexcept;

/// Runs `body`, which returns a result<void>, as the body of a C function.
template <class Body>
weir_error guarded(Body&& body) noexcept {
  try {
    const result<void> done = std::forward<Body>(body)();
    return done ? weir_error{weir_ok} : remember(done.error());
  } catch (const failure& thrown) {
    return remember(thrown.reason());
  } catch (const out_of_memory& thrown) {
    return remember(thrown.reason());
  } catch (const std::bad_alloc&) {
    return remember(errc::system, "no host memory");
  } catch (...) {
    return remember(errc::internal, "an exception without a name");
  }
}

}  // namespace weir::inline v0::capi
