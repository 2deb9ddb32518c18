// A libcuda.so.1 with a simulated machine inside, for programs that know nothing of weir.
//
// docs/simulator.md tells how it is used. The machine is what the variables WEIR_SIM_* say; where
// WEIR_SIM_REPORT names a file, what was called, what is left and every hazard is added to it when
// the process ends.
#include "sim_driver.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "weir/base/options.hpp"
#include "weir/sim/machine.hpp"

namespace weir_sim_driver {

namespace {

using namespace weir::driver;

weir::sim::machine* simulated = nullptr;  // never destroyed: calls may come until the very end

std::string report_of(const weir::sim::machine& machine) {
  std::string text = "process " + std::to_string(::getpid()) + "\n";
  for (std::size_t i = 0; i < call_count; ++i) {
    const auto row = static_cast<call>(i);
    if (const auto count = machine.calls(row); count != 0)
      text.append("call ").append(info(row).exported).append(" " + std::to_string(count) + "\n");
  }
  for (std::size_t i = 0; i < machine.options().devices.size(); ++i) {
    const weir::device_id device{static_cast<int>(i)};
    text += "device " + to_string(device) + " has " + std::to_string(machine.used(device).count()) +
            " bytes in use\n";
  }
  const auto hazards = machine.hazards();
  text += "hazards " + std::to_string(hazards.size()) + "\n";
  for (const auto& each : hazards) text += each.message() + "\n";
  return text;
}

/// At the end of the process; not in a child, to which the machine does not belong.
void write_report() {
  static const pid_t process = ::getpid();
  if (process != ::getpid()) return;
  const char* const path = secure_getenv("WEIR_SIM_REPORT");
  if (path == nullptr || *path == '\0') return;
  try {
    const std::string text = report_of(*simulated);
    const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) return;
    [[maybe_unused]] const auto written = ::write(file, text.data(), text.size());
    ::close(file);
  } catch (const std::bad_alloc&) {
    // Nothing to be done: it is the end.
  }
}

const table* make_machine() noexcept try {
  // The other options are none of the machine's business, nor are mistakes in them.
  const auto settings = weir::options_from_environment([](const char* variable) -> const char* {
    return std::string_view{variable}.starts_with("WEIR_SIM_") ? secure_getenv(variable) : nullptr;
  });
  if (!settings) return nullptr;
  auto made = weir::sim::machine::create(weir::sim::machine_options::from(*settings));
  if (!made) return nullptr;
  static const std::shared_ptr<weir::sim::machine>& machine =
      *new std::shared_ptr<weir::sim::machine>{*std::move(made)};
  simulated = machine.get();
  std::atexit(write_report);
  return &machine->driver();
} catch (const std::bad_alloc&) {
  return nullptr;
}

}  // namespace

const table* machine_calls() noexcept {
  static const table* const calls = make_machine();
  return calls;
}

}  // namespace weir_sim_driver

using namespace weir::driver;

extern "C" {
CUresult cuDriverGetVersion(int* version);
CUresult cuGetProcAddress(const char* symbol, void** function, int version, std::uint64_t flags);
CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, std::uint64_t flags,
                             CUdriverProcAddressQueryResult* status);
}

namespace weir_sim_driver { namespace {

/// The newest signature of `symbol` that is not newer than `version`, as the driver does it.
void* find(std::string_view symbol, int version, std::uint64_t flags,
           CUdriverProcAddressQueryResult& status) noexcept {
  const exported_call resolvers[] = {
      {"cuGetProcAddress", 11030, reinterpret_cast<void*>(&cuGetProcAddress), nullptr},
      {"cuGetProcAddress", 12000, reinterpret_cast<void*>(&cuGetProcAddress_v2), nullptr},
  };
  const exported_call* newest = nullptr;
  bool has_name = false;
  const auto consider = [&](const exported_call& row) {
    if (row.symbol != symbol) return;
    has_name = true;
    if (row.version > version) return;
    if (newest == nullptr || row.version > newest->version) newest = &row;
  };
  for (const exported_call& row : resolvers) consider(row);
  for (const exported_call& row : exported_calls()) consider(row);
  status = CU_GET_PROC_ADDRESS_SUCCESS;
  if (newest == nullptr) {
    status = has_name ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return nullptr;
  }
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  return per_thread && newest->per_thread != nullptr ? newest->per_thread : newest->function;
}

}  // namespace
}  // namespace weir_sim_driver

extern "C" CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                        std::uint64_t flags,
                                        CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  int newest = 0;
  if (const CUresult refused = cuDriverGetVersion(&newest); refused != CUDA_SUCCESS) return refused;
  if (version > newest) return CUDA_ERROR_INVALID_VALUE;
  CUdriverProcAddressQueryResult found{};
  *function = weir_sim_driver::find(symbol, version, flags, found);
  if (status != nullptr) *status = found;
  return CUDA_SUCCESS;
}

/// The form of CUDA 11: what is not there is an error.
extern "C" CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                     std::uint64_t flags) {
  const CUresult answer = cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
  if (answer == CUDA_SUCCESS && *function == nullptr) return CUDA_ERROR_NOT_FOUND;
  return answer;
}
