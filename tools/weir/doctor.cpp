// SPDX-License-Identifier: Apache-2.0
// weir doctor: the driver and devices that are here, and the features of weir that work with them.
#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "commands.hpp"
#include "doctor.hpp"
#include "traces.hpp"
#include "words.hpp"

namespace weir::command {

namespace {

constexpr const char* doctor_explanation =
    "Examples:\n"
    "  weir doctor\n"
    "  weir doctor --device 0 --json\n"
    "\n"
    "Exit codes:\n"
    "  0   a usable driver, and everything weir needs works\n"
    "  1   a usable driver, with limits: some features or calls are missing\n"
    "  2   no driver: only the simulated machine can be used\n"
    "  3   a driver that weir cannot use: too old, incomplete, failing, or without a device\n"
    "  64  the command line or an environment variable is invalid";

struct doctor_arguments {
  std::string driver;
  std::optional<int> device;
  bool as_json = false;
};

int refuse(const error& reason) {
  print_error("doctor", reason);
  return bad_usage;
}

int run_doctor(const doctor_arguments& args) {
  auto settings = options_from_environment();
  if (!settings) return refuse(settings.error());
  if (!args.driver.empty()) settings->driver_path = args.driver;
  // What is tried out is not to be recorded or published.
  ::unsetenv("WEIR_RECORD");
  ::unsetenv("WEIR_LIVE");
  const auto report = examine(*settings, args.device);
  if (!report) return refuse(report.error());
  fmt::print("{}", args.as_json ? to_json(*report) : to_text(*report));
  return static_cast<int>(report->verdict);
}

}  // namespace

void add_doctor(CLI::App& application, int& exit_code) {
  auto* const doctor = application.add_subcommand(
      "doctor", "Show the driver and the devices of this machine, and which parts of weir work");
  const auto args = std::make_shared<doctor_arguments>();
  doctor
      ->add_option("--driver", args->driver,
                   "The driver library (default: WEIR_DRIVER or libcuda.so.1)")
      ->type_name("PATH")
      ->check([](const std::string& path) {
        return path.empty() ? std::string{"expected a path, got an empty word"} : std::string{};
      });
  doctor->add_option("--device", args->device, "Examine this device only")
      ->type_name("N")
      ->check(at_least(0));
  doctor->add_flag("--json", args->as_json, "Write JSON instead of text");
  doctor->footer(doctor_explanation);
  doctor->callback([args, &exit_code] { exit_code = run_doctor(*args); });
}

}  // namespace weir::command
