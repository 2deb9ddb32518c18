// Loading libzstd.
#include "trace/zstd.hpp"

#include <dlfcn.h>

namespace weir::inline v0::trace {
namespace {

template <class Function>
bool resolve(void* library, const char* name, Function& into) noexcept {
  into = reinterpret_cast<Function>(dlsym(library, name));
  return into != nullptr;
}

zstd load() noexcept {
  zstd found;
  void* const library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  const bool whole = resolve(library, "ZSTD_compress", found.compress) &&
                     resolve(library, "ZSTD_decompress", found.decompress) &&
                     resolve(library, "ZSTD_compressBound", found.bound) &&
                     resolve(library, "ZSTD_isError", found.is_error);
  return whole ? found : zstd{};
}

}  // namespace

const zstd* find_zstd() noexcept {
  static const zstd found = load();
  return found.is_error != nullptr ? &found : nullptr;
}

}  // namespace weir::inline v0::trace
