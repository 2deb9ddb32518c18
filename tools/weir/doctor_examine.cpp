// SPDX-License-Identifier: Apache-2.0
// weir doctor: opens a machine, examines it and comes to a verdict about it.
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "doctor.hpp"

namespace weir::command {

namespace {

/// No driver, or one that is of no use? A library that is not found and one that cannot be loaded
/// are the same to the loader; a path tells them apart. Once loaded, it is there.
verdict verdict_without_machine(const error& problem, const std::string& driver) {
  if (problem.code() != errc::driver_unavailable || !problem.call().empty())
    return verdict::unusable;
  std::error_code ignored;
  const bool is_path = driver.find('/') != std::string::npos;
  return is_path && std::filesystem::exists(driver, ignored) ? verdict::unusable
                                                             : verdict::no_driver;
}

result<device_report> examine_device(const runtime& machine, device gpu) {
  device_report report{gpu, gpu.memory_info(), {}, {}, {}};
  for (int other = 0; other < machine.device_count(); ++other) {
    if (other == gpu.id().number()) continue;
    WEIR_TRY_VALUE(peer, machine.device(device_id{other}));
    WEIR_TRY_VALUE(reaches, gpu.can_access_peer(peer));
    if (reaches) report.peers.push_back(other);
  }
  report.features = examine_features(gpu);
  report.network_cards = examine_network_cards(gpu);
  return report;
}

bool is_flawless(const machine_report& machine) {
  return machine.missing.empty() &&
         std::all_of(
             machine.devices.begin(), machine.devices.end(), [](const device_report& report) {
               return report.memory.has_value() &&
                      std::all_of(report.features.begin(), report.features.end(),
                                  [](const feature& each) { return each.works == support::yes; });
             });
}

}  // namespace

std::string cuda_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

host_report examine_host() {
  host_report host;
  std::ifstream lines{"/proc/meminfo"};  // "MemTotal:       65536 kB"
  std::string name;
  std::uint64_t size = 0;
  for (std::string unit; lines >> name >> size; std::getline(lines, unit)) {
    if (name == "MemTotal:") host.total = bytes{size * 1024};
    if (name == "MemAvailable:") host.available = bytes{size * 1024};
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    host.lock_limit = bytes{limit.rlim_cur};
  return host;
}

std::vector<driver::call> missing_calls(const driver::table& calls) {
  std::vector<driver::call> missing;
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  if (calls.member == nullptr) missing.push_back(driver::call::member);
#include "weir/driver/calls.def"
  return missing;
}

result<machine_report> examine(const options& settings, std::optional<int> only) {
  machine_report report;
  report.driver = settings.driver_path;
  auto real = runtime::open_cuda(settings.driver_path);
  if (real) {
    report.machine = std::move(*real);
  } else {
    report.verdict = verdict_without_machine(real.error(), settings.driver_path);
    report.problem = std::move(real).error();
    options simulated = settings;
    simulated.runtime = runtime_choice::simulated;
    WEIR_TRY_VALUE(machine, runtime::open(simulated));
    report.machine = std::move(machine);
  }

  report.missing = missing_calls(report.machine->driver());
  report.host = examine_host();
  const int first = only.value_or(0);
  const int end = only ? *only + 1 : report.machine->device_count();
  for (int number = first; number < end; ++number) {
    WEIR_TRY_VALUE(gpu, report.machine->device(device_id{number}));
    WEIR_TRY_VALUE(gpu_report, examine_device(*report.machine, gpu));
    report.devices.push_back(std::move(gpu_report));
  }
  if (!report.is_simulated() && !is_flawless(report)) report.verdict = verdict::limited;
  return report;
}

}  // namespace weir::command
