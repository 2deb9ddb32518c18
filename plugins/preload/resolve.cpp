// SPDX-License-Identifier: Apache-2.0
// The resolvers dlsym and cuGetProcAddress: replaced functions resolve to hooks.
//
// No name, version or flag is looked at: the address alone decides, so every variant stays what the
// program asked for, and what is not there is answered in the driver's own way.
#include "resolve.hpp"

#include "hooks.hpp"
#include "real_driver.hpp"

namespace weir_preload {

namespace {

thread_local int own_lookup_depth = 0;

}  // namespace

own_lookups::own_lookups() noexcept { ++own_lookup_depth; }
own_lookups::~own_lookups() { --own_lookup_depth; }
bool own_lookups::any() noexcept { return own_lookup_depth != 0; }

bool is_absent(const void* address) noexcept {
  const auto own = row_of(address);
  if (!own) return false;
  const real_driver* const driver = real_driver::get(false);
  return driver == nullptr || driver->originals[static_cast<std::size_t>(*own)] == nullptr;
}

void* replaced(void* address) noexcept {
  if (address == nullptr) return nullptr;
  const real_driver* const driver = real_driver::get(false);
  return driver == nullptr ? address : driver->replacement_of(address);
}

namespace abi {

CUresult cuGetProcAddress(const char* symbol, void** function, int version, std::uint64_t flags) {
  const CUresult answer = pass<hook::cuGetProcAddress>(symbol, function, version, flags);
  if (answer == CUDA_SUCCESS && function != nullptr) *function = replaced(*function);
  return answer;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, std::uint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const CUresult answer = pass<hook::cuGetProcAddress_v2>(symbol, function, version, flags, status);
  if (answer == CUDA_SUCCESS && function != nullptr) *function = replaced(*function);
  return answer;
}

}  // namespace abi
}  // namespace weir_preload
