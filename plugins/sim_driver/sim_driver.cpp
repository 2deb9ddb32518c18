// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 with a simulated machine inside, for programs that know nothing of weir.
//
// docs/simulator.md tells how it is used. The machine is what the variables WEIR_SIM_* say; where
// WEIR_SIM_REPORT names a file, what was called, what is left and every hazard is added to it when
// the process ends.
#include "sim_driver.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "weir/base/options.hpp"
#include "weir/sim/machine.hpp"

namespace weir_sim_driver {

namespace {

using namespace weir::driver;

using shared_machine = std::shared_ptr<weir::sim::machine>;

// Never destroyed: calls may come until the very end.
std::atomic<const shared_machine*> simulated{nullptr};
std::atomic<bool> is_used{false};
pid_t owner = 0;  // of the machine

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
  if (owner != ::getpid()) return;
  const char* const path = secure_getenv("WEIR_SIM_REPORT");
  if (path == nullptr || *path == '\0') return;
  try {
    const std::string text = report_of(**simulated.load());
    const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) return;
    [[maybe_unused]] const auto written = ::write(file, text.data(), text.size());
    ::close(file);
  } catch (const std::bad_alloc&) {
    // Nothing to be done: it is the end.
  }
}

shared_machine make_machine() {
  // The other options are none of the machine's business, nor are mistakes in them.
  const auto settings = weir::options_from_environment([](const char* variable) -> const char* {
    return std::string_view{variable}.starts_with("WEIR_SIM_") ? secure_getenv(variable) : nullptr;
  });
  if (!settings) return nullptr;
  auto made = weir::sim::machine::create(weir::sim::machine_options::from(*settings));
  return made ? *std::move(made) : nullptr;
}

/// In a child. A driver that was not initialized does not mind.
void after_fork() {
  if (!is_used.load()) simulated.store(nullptr);
}

const shared_machine* enter(shared_machine made) {
  auto kept = std::make_unique<const shared_machine>(std::move(made));
  const shared_machine* first = nullptr;
  if (!simulated.compare_exchange_strong(first, kept.get())) return first;
  owner = ::getpid();
  static const int reported = std::atexit(write_report);
  static const int watched = pthread_atfork(nullptr, nullptr, after_fork);
  static_cast<void>(reported);
  static_cast<void>(watched);
  return kept.release();
}

}  // namespace

const table* machine_calls() noexcept try {
  const shared_machine* known = simulated.load(std::memory_order_acquire);
  if (known == nullptr) {
    auto made = make_machine();
    if (made == nullptr) return nullptr;
    known = enter(std::move(made));
  }
  return &(*known)->driver();
} catch (const std::bad_alloc&) {
  return nullptr;
}

void machine_is_used() noexcept { is_used.store(true); }

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
