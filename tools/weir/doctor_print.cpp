// SPDX-License-Identifier: Apache-2.0
// weir doctor: its findings as text and as JSON.
#include <fmt/format.h>

#include <array>
#include <iterator>

#include "doctor.hpp"
#include "json.hpp"
#include "weir/base/version.hpp"

namespace weir::command {

namespace {

// --- Shared by both outputs ----------------------------------------------------------------------

/// Abilities that no feature of weir depends on, but that users ask for.
struct extra {
  bool device_capabilities::*member;
  std::string_view key;
  std::string_view title;
};

constexpr std::array<extra, 14> extras{{
    {&device_capabilities::unified_addressing, "unified_addressing", "unified addressing"},
    {&device_capabilities::stream_priorities, "stream_priorities", "stream priorities"},
    {&device_capabilities::stream_memory_operations, "stream_memory_operations",
     "stream memory operations"},
    {&device_capabilities::host_register, "host_register", "host memory registration"},
    {&device_capabilities::rdma, "rdma", "RDMA"},
    {&device_capabilities::rdma_with_virtual_memory, "rdma_with_virtual_memory",
     "RDMA with virtual memory"},
    {&device_capabilities::dma_buf, "dma_buf", "dma-buf"},
    {&device_capabilities::fabric_handles, "fabric_handles", "fabric handles"},
    {&device_capabilities::multicast, "multicast", "multicast"},
    {&device_capabilities::host_memory_pools, "host_memory_pools", "host memory pools"},
    {&device_capabilities::host_numa_memory_pools, "host_numa_memory_pools",
     "host NUMA memory pools"},
    {&device_capabilities::host_numa_virtual_memory, "host_numa_virtual_memory",
     "host NUMA virtual memory"},
    {&device_capabilities::pageable_memory_access, "pageable_memory_access",
     "pageable memory access"},
    {&device_capabilities::integrated, "integrated", "memory shared with the host"},
}};

std::string_view name(verdict reached) {
  switch (reached) {
    case verdict::ready:
      return "ready";
    case verdict::limited:
      return "limited";
    case verdict::no_driver:
      return "no_driver";
    case verdict::unusable:
      return "unusable";
  }
  return "unusable";
}

std::string_view sentence(verdict reached) {
  switch (reached) {
    case verdict::ready:
      return "everything that weir needs works here";
    case verdict::limited:
      return "weir works here, within the limits named above";
    case verdict::no_driver:
      return "no driver: only the simulated machine can be used";
    case verdict::unusable:
      return "the driver cannot be used; the simulated machine can";
  }
  return {};
}

/// What the user can do about it.
std::string advice(const machine_report& report) {
  if (report.verdict == verdict::no_driver) {
    return "No NVIDIA driver is installed here, or it is out of sight: a container must be "
           "started with access to GPUs.";
  }
  switch (report.problem->code()) {
    case errc::driver_unavailable:
      return "The library was found, but it is not a working driver.";
    case errc::driver_too_old:
      return "Install a driver for CUDA " + cuda_version(driver::oldest_driver) + " or later.";
    case errc::symbol_missing:
      return "The library is not a complete driver.";
    case errc::no_device:
      return "The driver works but shows no device: see whether the GPU is visible to this "
             "process (CUDA_VISIBLE_DEVICES, container settings).";
    default:
      return "The driver is there but fails; its own tools (nvidia-smi) may tell more.";
  }
}

std::string_view name(support works) {
  switch (works) {
    case support::yes:
      return "yes";
    case support::partly:
      return "partly";
    case support::no:
      return "no";
  }
  return "no";
}

// --- Text ---------------------------------------------------------------------------------------

/// Lines of at most 80 columns: a label at the left edge, its text beside it, broken between words.
class page {
 public:
  void line(std::string_view label, std::size_t indent, std::string_view text) {
    std::string current{label};
    current.resize(std::max(current.size(), indent), ' ');
    bool empty = true;
    while (!text.empty()) {
      const std::size_t space = text.find(' ');
      const std::string_view word = text.substr(0, space);
      if (!empty && current.size() + 1 + word.size() > width) {
        put(current);
        current.assign(indent, ' ');
        empty = true;
      }
      if (!empty) current += ' ';
      current += word;
      empty = false;
      text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    }
    put(current);
  }
  void blank() { text_ += '\n'; }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  static constexpr std::size_t width = 80;

  void put(std::string_view full) {
    const std::size_t last = full.find_last_not_of(' ');
    text_ += full.substr(0, last == std::string_view::npos ? 0 : last + 1);
    text_ += '\n';
  }

  std::string text_;
};

constexpr std::size_t heading = 10;  // where text begins beside a heading
constexpr std::size_t property = 23;
constexpr std::size_t why = 31;  // beside a feature and its yes, partly or no

void print_driver(page& out, const machine_report& report) {
  const std::string version = cuda_version(report.machine->driver_version());
  if (report.is_simulated()) {
    const bool loaded = report.verdict == verdict::unusable;
    out.line("driver", heading,
             report.driver + (loaded ? " cannot be used" : " could not be loaded"));
    out.line("", heading, report.problem->message());
    out.line("", heading, advice(report));
    out.blank();
    out.line("machine", heading, "simulated, as of CUDA " + version);
  } else {
    out.line("driver", heading, report.machine->describe().driver);
    out.line("", heading,
             fmt::format("CUDA {}; weir needs {} or later", version,
                         cuda_version(driver::oldest_driver)));
  }
  if (report.missing.empty()) {
    out.line(
        "", heading,
        fmt::format("all {} calls that weir knows are there", std::size_t{driver::call_count}));
    return;
  }
  std::string names;
  for (const driver::call each : report.missing) {
    const driver::call_info& row = driver::info(each);
    fmt::format_to(std::back_inserter(names), "{}{} (CUDA {})", names.empty() ? "" : ", ",
                   row.symbol, cuda_version(row.version));
  }
  out.line("", heading, "optional calls that it lacks: " + names);
}

void print_host(page& out, const host_report& host) {
  out.line("host", heading,
           host.total.count() == 0 ? "its memory is not known"
                                   : fmt::format("{} of memory, {} available",
                                                 to_string(host.total), to_string(host.available)));
  out.line("", heading,
           host.lock_limit ? fmt::format("a process may lock {}", to_string(*host.lock_limit))
                           : "a process may lock all of it");
}

std::string list_extras(const device_capabilities& can, bool present) {
  std::string names;
  for (const extra& each : extras) {
    if (can.*each.member != present) continue;
    names += names.empty() ? "" : ", ";
    names += each.title;
  }
  return names.empty() ? "nothing" : names;
}

void print_device(page& out, const device_report& gpu_report, int devices) {
  const device gpu = gpu_report.device;
  const device_capabilities& can = gpu.capabilities();
  out.line(fmt::format("device {}", gpu.id().number()), heading, gpu.name());
  const std::string total = to_string(gpu.total_memory());
  out.line("  memory", property,
           gpu_report.memory
               ? fmt::format("{}, {} free", total, to_string(gpu_report.memory->free))
               : fmt::format("{}, free unknown: {}", total, gpu_report.memory.error().message()));
  out.line("  compute capability", property,
           fmt::format("{}.{}, {} multiprocessors", can.compute_major, can.compute_minor,
                       can.multiprocessors));
  out.line("  handle granularity", property,
           can.virtual_memory ? fmt::format("{}, recommended {}", to_string(can.granularity),
                                            to_string(can.recommended_granularity))
                              : "none: no virtual memory");
  out.line("  PCI bus", property, gpu.pci_bus_id());
  if (devices > 1) {
    out.line(
        "  reaches devices", property,
        gpu_report.peers.empty() ? "none" : fmt::format("{}", fmt::join(gpu_report.peers, ", ")));
  }
  const feature& cards = gpu_report.network_cards;
  out.line(fmt::format("  {}", cards.title), property,
           fmt::format("{}: {}", name(cards.works), cards.reason));
  out.line("  has", property, list_extras(can, true));
  out.line("  has not", property, list_extras(can, false));
  out.blank();
  out.line("  what weir can build on there", property, "");
  for (const feature& each : gpu_report.features) {
    out.line(fmt::format("  {:<20} {:<7}", each.title, name(each.works)), why, each.reason);
  }
}

// --- JSON ----------------------------------------------------------------------------------------

json driver_json(const machine_report& report) {
  json out{{"asked", report.driver},
           {"usable", !report.is_simulated()},
           {"oldest_version", driver::oldest_driver},
           {"problem", nullptr}};
  if (report.is_simulated()) {
    const error& problem = *report.problem;
    out["problem"] = {{"code", weir::name(problem.code())},
                      {"native", problem.native()},
                      {"call", problem.call()},
                      {"message", problem.message()},
                      {"advice", advice(report)}};
  }
  return out;
}

json machine_json(const machine_report& report) {
  json out{{"simulated", report.is_simulated()},
           {"driver", report.machine->describe().driver},
           {"driver_version", report.machine->driver_version()},
           {"device_count", report.machine->device_count()},
           {"missing_calls", json::array()}};
  for (const driver::call each : report.missing) {
    const driver::call_info& row = driver::info(each);
    out["missing_calls"].push_back({{"name", row.symbol}, {"since", row.version}});
  }
  return out;
}

json device_json(const device_report& report) {
  const device gpu = report.device;
  const device_capabilities& can = gpu.capabilities();
  json out{{"number", gpu.id().number()},
           {"name", gpu.name()},
           {"pci_bus_id", gpu.pci_bus_id()},
           {"uuid", nullptr},
           {"memory_total", gpu.total_memory().count()},
           {"memory_free", nullptr},
           {"compute_major", can.compute_major},
           {"compute_minor", can.compute_minor},
           {"multiprocessors", can.multiprocessors},
           {"granularity", can.granularity.count()},
           {"recommended_granularity", can.recommended_granularity.count()},
           {"reaches_devices", report.peers},
           {"capabilities", json::object()},
           {"features", json::array()}};
  if (gpu.uuid()) out["uuid"] = fmt::format("{:02x}", fmt::join(*gpu.uuid(), ""));
  if (report.memory) out["memory_free"] = report.memory->free.count();
  for (const extra& each : extras) out["capabilities"][std::string{each.key}] = can.*each.member;
  for (const feature& each : report.features) {
    out["features"].push_back(
        {{"name", each.key}, {"works", name(each.works)}, {"why", each.reason}});
  }
  out["network_cards"] = {{"works", name(report.network_cards.works)},
                          {"why", report.network_cards.reason}};
  return out;
}

}  // namespace

std::string to_text(const machine_report& report) {
  page out;
  out.line("weir", heading, version_text());
  out.blank();
  print_driver(out, report);
  out.blank();
  print_host(out, report.host);
  for (const device_report& each : report.devices) {
    out.blank();
    print_device(out, each, report.machine->device_count());
  }
  out.blank();
  out.line(
      "verdict", heading,
      fmt::format("{} (exit code {})", sentence(report.verdict), static_cast<int>(report.verdict)));
  return out.take();
}

std::string to_json(const machine_report& report) {
  json out{
      {"weir", version_text()},
      {"verdict", name(report.verdict)},
      {"exit_code", static_cast<int>(report.verdict)},
      {"driver", driver_json(report)},
      {"machine", machine_json(report)},
      {"host",
       {{"memory_total", report.host.total.count()},
        {"memory_available", report.host.available.count()},
        {"lock_limit", report.host.lock_limit ? json(report.host.lock_limit->count()) : json{}}}},
      {"devices", json::array()}};
  for (const device_report& each : report.devices) out["devices"].push_back(device_json(each));
  return json_text(out);
}

}  // namespace weir::command
