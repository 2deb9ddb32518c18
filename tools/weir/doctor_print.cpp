// weir doctor: its findings as text and as JSON.
#include <fmt/format.h>

#include <array>
#include <iterator>

#include "doctor.hpp"
#include "json.hpp"
#include "weir/base/version.hpp"

namespace weir::command {

namespace {

// --- What both outputs say -----------------------------------------------------------------------

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

std::string_view name(verdict outcome) {
  switch (outcome) {
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

std::string_view sentence(verdict outcome) {
  switch (outcome) {
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
std::string advice(const checkup& found) {
  if (found.outcome == verdict::no_driver) {
    return "No NVIDIA driver is installed here, or it is out of sight: a container must be "
           "started with access to GPUs.";
  }
  switch (found.problem->code) {
    case errc::driver_unavailable:
      return "The library is there but is no working driver.";
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

std::string_view name(standing works) {
  switch (works) {
    case standing::yes:
      return "yes";
    case standing::partly:
      return "partly";
    case standing::no:
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
constexpr std::size_t reason = 31;  // beside a feature and its yes, partly or no

void print_driver(page& out, const checkup& found) {
  const std::string version = cuda_version(found.machine->driver_version());
  if (found.simulated()) {
    const bool loaded = found.outcome == verdict::unusable;
    out.line("driver", heading,
             found.asked + (loaded ? " cannot be used" : " could not be loaded"));
    out.line("", heading, found.problem->message());
    out.line("", heading, advice(found));
    out.blank();
    out.line("machine", heading, "simulated, as of CUDA " + version);
  } else {
    out.line("driver", heading, found.machine->describe().driver);
    out.line("", heading,
             fmt::format("CUDA {}; weir needs {} or later", version,
                         cuda_version(driver::oldest_driver)));
  }
  if (found.missing.empty()) {
    out.line(
        "", heading,
        fmt::format("all {} calls that weir knows are there", std::size_t{driver::call_count}));
    return;
  }
  std::string names;
  for (const driver::call each : found.missing) {
    const driver::call_info& row = driver::info(each);
    fmt::format_to(std::back_inserter(names), "{}{} (CUDA {})", names.empty() ? "" : ", ",
                   row.symbol, cuda_version(row.version));
  }
  out.line("", heading, "optional calls that it lacks: " + names);
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

void print_device(page& out, const device_report& report, int devices) {
  const device gpu = report.about;
  const device_capabilities& can = gpu.capabilities();
  out.line(fmt::format("device {}", gpu.id().number()), heading, gpu.name());
  const std::string total = to_string(gpu.total_memory());
  out.line("  memory", property,
           report.memory
               ? fmt::format("{}, {} free", total, to_string(report.memory->free))
               : fmt::format("{}, free unknown: {}", total, report.memory.error().message()));
  out.line("  compute capability", property,
           fmt::format("{}.{}, {} multiprocessors", can.compute_major, can.compute_minor,
                       can.multiprocessors));
  out.line("  handle granularity", property,
           can.virtual_memory ? fmt::format("{}, recommended {}", to_string(can.granularity),
                                            to_string(can.recommended_granularity))
                              : "none: no virtual memory");
  out.line("  PCI bus", property, gpu.pci_bus_id());
  if (devices > 1) {
    out.line("  reaches devices", property,
             report.peers.empty() ? "none" : fmt::format("{}", fmt::join(report.peers, ", ")));
  }
  out.line("  has", property, list_extras(can, true));
  out.line("  has not", property, list_extras(can, false));
  out.blank();
  out.line("  what weir can build on there", property, "");
  for (const feature& each : report.features) {
    out.line(fmt::format("  {:<20} {:<7}", each.title, name(each.works)), reason, each.why);
  }
}

// --- JSON ----------------------------------------------------------------------------------------

void write_driver(json_writer& out, const checkup& found) {
  out.key("driver").begin_object();
  out.member("asked", found.asked);
  out.member("usable", !found.simulated());
  out.member("oldest_version", driver::oldest_driver);
  if (found.simulated()) {
    const error& problem = *found.problem;
    out.key("problem").begin_object();
    out.member("code", weir::name(problem.code));
    out.member("native", problem.native);
    out.member("call", problem.call);
    out.member("message", problem.message());
    out.member("advice", advice(found));
    out.end_object();
  } else {
    out.key("problem").null();
  }
  out.end_object();
}

void write_machine(json_writer& out, const checkup& found) {
  out.key("machine").begin_object();
  out.member("simulated", found.simulated());
  out.member("driver", found.machine->describe().driver);
  out.member("driver_version", found.machine->driver_version());
  out.member("device_count", found.machine->device_count());
  out.key("missing_calls").begin_array();
  for (const driver::call each : found.missing) {
    const driver::call_info& row = driver::info(each);
    out.begin_object().member("name", row.symbol).member("since", row.version).end_object();
  }
  out.end_array();
  out.end_object();
}

void write_identity(json_writer& out, device gpu) {
  out.member("number", gpu.id().number());
  out.member("name", gpu.name());
  out.member("pci_bus_id", gpu.pci_bus_id());
  if (gpu.uuid()) {
    out.member("uuid", fmt::format("{:02x}", fmt::join(*gpu.uuid(), "")));
  } else {
    out.key("uuid").null();
  }
}

void write_device(json_writer& out, const device_report& report) {
  const device gpu = report.about;
  const device_capabilities& can = gpu.capabilities();
  out.begin_object();
  write_identity(out, gpu);
  out.member("memory_total", gpu.total_memory().count());
  if (report.memory) {
    out.member("memory_free", report.memory->free.count());
  } else {
    out.key("memory_free").null();
  }
  out.member("compute_major", can.compute_major);
  out.member("compute_minor", can.compute_minor);
  out.member("multiprocessors", can.multiprocessors);
  out.member("granularity", can.granularity.count());
  out.member("recommended_granularity", can.recommended_granularity.count());
  out.key("reaches_devices").begin_array();
  for (const int peer : report.peers) out.value(peer);
  out.end_array();
  out.key("capabilities").begin_object();
  for (const extra& each : extras) out.member(each.key, can.*each.member);
  out.end_object();
  out.key("features").begin_array();
  for (const feature& each : report.features) {
    out.begin_object();
    out.member("name", each.key).member("works", name(each.works)).member("why", each.why);
    out.end_object();
  }
  out.end_array();
  out.end_object();
}

}  // namespace

std::string to_text(const checkup& found) {
  page out;
  out.line("weir", heading, version_text());
  out.blank();
  print_driver(out, found);
  for (const device_report& each : found.devices) {
    out.blank();
    print_device(out, each, found.machine->device_count());
  }
  out.blank();
  out.line(
      "verdict", heading,
      fmt::format("{} (exit code {})", sentence(found.outcome), static_cast<int>(found.outcome)));
  return out.take();
}

std::string to_json(const checkup& found) {
  json_writer out;
  out.begin_object();
  out.member("weir", version_text());
  out.member("verdict", name(found.outcome));
  out.member("exit_code", static_cast<int>(found.outcome));
  write_driver(out, found);
  write_machine(out, found);
  out.key("devices").begin_array();
  for (const device_report& each : found.devices) write_device(out, each);
  out.end_array();
  out.end_object();
  return out.text();
}

}  // namespace weir::command
