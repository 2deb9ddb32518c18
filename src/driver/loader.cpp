// SPDX-License-Identifier: Apache-2.0
// Fills the table of driver calls from libcuda, found at run time.
#include <dlfcn.h>
#include <link.h>

#include <new>
#include <utility>

#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace driver {
namespace {

// cuGetProcAddress came in two forms: four arguments in CUDA 11.3, five since 12.0. Each is
// exported under its own name, so a name that is there says which form it has.
using get_proc_address_v1 = CUresult (*)(const char* symbol, void** function, int version,
                                         std::uint64_t flags);
using get_proc_address_v2 = CUresult (*)(const char* symbol, void** function, int version,
                                         std::uint64_t flags,
                                         CUdriverProcAddressQueryResult* status);

// A null stream in our calls is the legacy default stream, whatever the program around us is.
constexpr std::uint64_t legacy_default_stream = CU_GET_PROC_ADDRESS_LEGACY_STREAM;

// Looks up driver calls in an opened library.
class symbols {
 public:
  explicit symbols(void* library) noexcept
      : library_{library},
        query_v2_{reinterpret_cast<get_proc_address_v2>(dlsym(library, "cuGetProcAddress_v2"))},
        query_v1_{reinterpret_cast<get_proc_address_v1>(dlsym(library, "cuGetProcAddress"))} {}

  // The driver first: it may hold calls that it does not export. For a name with several signatures
  // it gives the newest that is not newer than the version asked for, hence the row's own version.
  // What it does not know may still be exported, and an exported name has one signature for ever.
  [[nodiscard]] void* find(const call_info& row) const noexcept {
    if (void* const function = query(row)) return function;
    return dlsym(library_, row.exported.data());
  }

 private:
  [[nodiscard]] void* query(const call_info& row) const noexcept {
    void* function = nullptr;
    CUresult answer = CUDA_ERROR_NOT_FOUND;
    // Interposers exist that leave the status alone: it must say success beforehand.
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    if (query_v2_ != nullptr) {
      answer = query_v2_(row.symbol.data(), &function, row.version, legacy_default_stream, &status);
    } else if (query_v1_ != nullptr) {
      answer = query_v1_(row.symbol.data(), &function, row.version, legacy_default_stream);
    }
    // An unknown name is answered with success and a null pointer, a version newer than the driver
    // with an error: both only mean that the call is not to be had this way.
    const bool has_function = answer == CUDA_SUCCESS && status == CU_GET_PROC_ADDRESS_SUCCESS;
    return has_function ? function : nullptr;
  }

  void* library_;
  get_proc_address_v2 query_v2_;
  get_proc_address_v1 query_v1_;
};

// The file that the dynamic loader chose for a name.
std::string path_of(void* library, const char* requested) {
  link_map* map = nullptr;
  const bool has_name = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr &&
                        map->l_name != nullptr && *map->l_name != '\0';
  return has_name ? map->l_name : requested;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

result<void> check_version(library& loaded) {
  // A library without this call is reported with everything else it lacks.
  if (loaded.calls.driver_get_version == nullptr) return {};
  const CUresult answer = loaded.calls.driver_get_version(&loaded.driver_version);
  if (answer != CUDA_SUCCESS) {
    // Whatever a driver has against telling its version, it is of no use.
    error unusable = make_error(call::driver_get_version, answer, {},
                                loaded.path + ": " + std::string{result_name(answer)});
    unusable.set_code(errc::driver_unavailable);
    return unusable;
  }
  if (loaded.driver_version < oldest_driver) {
    return error{{.code = errc::driver_too_old,
                  .detail = loaded.path + " supports CUDA " + version_text(loaded.driver_version) +
                            "; weir needs a driver of CUDA " + version_text(oldest_driver) +
                            " or later"}};
  }
  return {};
}

result<std::unique_ptr<library>> load_or_throw(const char* path) {
  // The dynamic loader takes an empty name for the program itself.
  if (path == nullptr || *path == '\0') {
    return error{{.code = errc::invalid_argument, .detail = "driver_path must not be empty"}};
  }
  // Closed neither on success (see library) nor on failure: a driver that has been mapped may have
  // registered exit handlers that point into it.
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    return error{{.code = errc::driver_unavailable, .detail = reason != nullptr ? reason : path}};
  }

  auto loaded = std::make_unique<library>();
  loaded->path = path_of(handle, path);
  const symbols functions{handle};
  std::string missing_required;
  const auto bind = [&]<class Function>(Function& member, call id) {
    const call_info& row = info(id);
    member = reinterpret_cast<Function>(functions.find(row));
    if (member != nullptr) return;
    if (row.required) {
      missing_required.append(missing_required.empty() ? "" : ", ").append(row.exported);
    } else {
      loaded->missing.push_back(row.exported);
    }
  };
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  bind(loaded->calls.member, call::member);
#include "weir/driver/calls.def"

  // The version first: an old driver lacks calls because it is old.
  WEIR_TRY(check_version(*loaded));
  if (!missing_required.empty()) {
    return error{
        {.code = errc::symbol_missing, .detail = loaded->path + " lacks " + missing_required}};
  }
  return loaded;
}

}  // namespace

result<std::unique_ptr<library>> load(const char* path) noexcept {
  try {
    return load_or_throw(path);
  } catch (const std::bad_alloc&) {
    return errc::no_host_memory;
  }
}

}}}  // namespace weir::v0::driver
