// SPDX-License-Identifier: Apache-2.0
// Finding the driver's own functions behind the hooks.
#include "real_driver.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "hooks.hpp"
#include "resolve.hpp"

namespace weir_preload {

namespace {

using get_proc_address_v1 = CUresult (*)(const char*, void**, int, std::uint64_t);
using get_proc_address_v2 = CUresult (*)(const char*, void**, int, std::uint64_t,
                                         CUdriverProcAddressQueryResult*);

std::atomic<const real_driver*> found{nullptr};

/// Asks the driver for its functions by both of its ways.
class resolver {
 public:
  resolver(void* library, symbol_lookup lookup) noexcept
      : library_{library},
        lookup_{lookup},
        query_v1_{reinterpret_cast<get_proc_address_v1>(exported("cuGetProcAddress"))},
        query_v2_{reinterpret_cast<get_proc_address_v2>(exported("cuGetProcAddress_v2"))} {}

  [[nodiscard]] void* exported(const char* name) const noexcept { return lookup_(library_, name); }

  [[nodiscard]] void* queried(const char* symbol, int version, std::uint64_t flags) const noexcept {
    void* function = nullptr;
    auto status = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult answer = query_v2_ != nullptr
                                ? query_v2_(symbol, &function, version, flags, &status)
                            : query_v1_ != nullptr ? query_v1_(symbol, &function, version, flags)
                                                   : CUDA_ERROR_NOT_FOUND;
    return answer == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS ? function : nullptr;
  }

 private:
  void* library_;
  symbol_lookup lookup_;
  get_proc_address_v1 query_v1_;
  get_proc_address_v2 query_v2_;
};

struct hook_row {
  hook row;
  const char* exported;
  const char* symbol;
  int version;
  std::uint64_t flags;
  void* function;
};

constexpr std::size_t rows_of_hooks = hook_count;

const std::array<hook_row, rows_of_hooks>& hook_rows() noexcept {
#define WEIR_HOOK(exported, symbol, version, flags) \
  hook_row{hook::exported, #exported, #symbol,      \
           version,        flags,     reinterpret_cast<void*>(&abi::exported)},
  static const std::array<hook_row, rows_of_hooks> rows{
#include "hooks.def"
  };
  return rows;
}

}  // namespace

symbol_lookup real_dlsym() noexcept {
  static std::atomic<symbol_lookup> known{nullptr};
  if (const symbol_lookup lookup = known.load(std::memory_order_acquire)) return lookup;
  symbol_lookup lookup = nullptr;
  // dlvsym is not replaced. The versions: of glibc 2.34, and of the first on x86-64 and aarch64.
  for (const char* const version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}) {
    if (lookup == nullptr)
      lookup = reinterpret_cast<symbol_lookup>(dlvsym(RTLD_NEXT, "dlsym", version));
  }
  known.store(lookup, std::memory_order_release);
  return lookup;
}

void* function_of(hook row) noexcept { return hook_rows()[static_cast<std::size_t>(row)].function; }

std::optional<hook> row_of(const void* function) noexcept {
  for (const hook_row& each : hook_rows())
    if (each.function == function) return each.row;
  return std::nullopt;
}

const real_driver* real_driver::get(bool load) noexcept {
  if (const real_driver* const known = found.load(std::memory_order_acquire)) return known;
  std::unique_ptr<const real_driver> opened;
  try {
    opened.reset(open(load));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  const real_driver* first = nullptr;
  if (opened != nullptr &&
      found.compare_exchange_strong(first, opened.get(), std::memory_order_acq_rel))
    return opened.release();
  return first;
}

void real_driver::replace(const real_driver* other) noexcept { found.store(other); }

real_driver* real_driver::open(bool load) {
  const symbol_lookup lookup = real_dlsym();
  if (lookup == nullptr) return nullptr;
  const own_lookups inside;  // what the library looks up when it is loaded is not the program's
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | (load ? 0 : RTLD_NOLOAD));
  if (library == nullptr) {
    static_cast<void>(dlerror());  // it was not the program's question
    return nullptr;
  }
  auto opened = std::make_unique<real_driver>();
  const resolver functions{library, lookup};
  // An exported name has one signature for ever; what is not exported may be had by a query.
  const auto bind = [&]<class Function>(Function& member, const char* exported, const char* symbol,
                                        int since) {
    void* function = functions.exported(exported);
    if (function == nullptr)
      function = functions.queried(symbol, since, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    member = reinterpret_cast<Function>(function);
  };
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  bind(opened->calls.member, #exported, #symbol, version);
#include "weir/driver/calls.def"
  if (opened->calls.driver_get_version == nullptr ||
      opened->calls.driver_get_version(&opened->version) != CUDA_SUCCESS)
    opened->version = 0;
  // First by the exported names: a driver without a variant may answer the query for it with the
  // plain function, which is no variant.
  for (const hook_row& each : hook_rows()) {
    void* const original = functions.exported(each.exported);
    opened->originals[static_cast<std::size_t>(each.row)] = original;
    opened->add(each.row, original);
  }
  for (const hook_row& each : hook_rows()) {
    if (each.version > opened->version) continue;
    void* const original = functions.queried(each.symbol, each.version, each.flags);
    if (opened->replacement_of(original) != original) continue;
    void*& known = opened->originals[static_cast<std::size_t>(each.row)];
    if (known == nullptr) known = original;
    opened->add(each.row, original);
  }
  return opened.release();
}

void real_driver::add(hook row, void* address) {
  if (address == nullptr || replacement_of(address) != address) return;
  const std::pair entry{address, function_of(row)};
  if (entry.second == address) return;
  replacements_.insert(std::upper_bound(replacements_.begin(), replacements_.end(), entry), entry);
}

void* real_driver::replacement_of(void* address) const noexcept {
  const auto entry = std::lower_bound(
      replacements_.begin(), replacements_.end(), address,
      [](const std::pair<void*, void*>& each, const void* key) { return each.first < key; });
  return entry != replacements_.end() && entry->first == address ? entry->second : address;
}

}  // namespace weir_preload
