// SPDX-License-Identifier: Apache-2.0
// Loading libzstd.
#include "trace/zstd.hpp"

#include <dlfcn.h>

namespace weir { inline namespace v0 { namespace trace {
namespace {

template <class Function>
bool resolve(void* library, const char* name, Function& function) noexcept {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

zstd load() noexcept {
  zstd calls;
  void* const library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  const bool is_complete = resolve(library, "ZSTD_compress", calls.compress) &&
                           resolve(library, "ZSTD_decompress", calls.decompress) &&
                           resolve(library, "ZSTD_compressBound", calls.bound) &&
                           resolve(library, "ZSTD_isError", calls.is_error);
  return is_complete ? calls : zstd{};
}

}  // namespace

const zstd* find_zstd() noexcept {
  static const zstd loaded = load();
  return loaded.is_error != nullptr ? &loaded : nullptr;
}

}}}  // namespace weir::v0::trace
