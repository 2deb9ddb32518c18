// SPDX-License-Identifier: Apache-2.0
// dlsym, through which programs and the CUDA runtime reach the driver.
//
// Compiled with optimisation in every build: the call that passes a look-up on must be a jump,
// because the real dlsym finds what comes "next" after whoever its return address says has called
// it. For the same reason nothing is counted in it (./dev coverage).
#include <dlfcn.h>

#include "real_driver.hpp"
#include "resolve.hpp"

namespace {

void* driver_symbol(void* library, const char* name) noexcept {
  const auto lookup = weir_preload::real_dlsym();
  void* const address = lookup(library, name);
  if (weir_preload::is_absent(address)) {
    // What comes next after us is what there would be without us, dlerror() included; here the call
    // must be no jump.
    void* next = lookup(RTLD_NEXT, name);
    asm volatile("" : "+r"(next));
    return next;
  }
  return weir_preload::replaced(address);
}

}  // namespace

extern "C" __attribute__((visibility("default"), no_profile_instrument_function)) void* dlsym(
    void* library, const char* name) noexcept {
  // What comes next after a caller is its own affair: if that is us, it is found there anyway.
  if (weir_preload::is_driver_name(name) && library != RTLD_NEXT &&
      !weir_preload::own_lookups::any())
    return driver_symbol(library, name);
  return weir_preload::real_dlsym()(library, name);
}
