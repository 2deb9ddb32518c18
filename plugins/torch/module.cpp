// SPDX-License-Identifier: Apache-2.0
// The Python module: installs the allocator and shows what it holds. python/weir/torch.py uses it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "allocator.hpp"
#include "errors.hpp"
#include "growable.hpp"
#include "opened_memory.hpp"
#include "profilers.hpp"
#include "suspension.hpp"
#include "weir/base/version.hpp"
#include "weir/device/stream_watch.hpp"
#include "weir/observe/tag.hpp"

namespace weir_torch { namespace {

namespace py = pybind11;

/// Bytes that torch's previous allocator holds once its cache is emptied.
std::int64_t held_by(torch_cuda::CUDAAllocator& previous) {
  if (!previous.initialized()) return 0;
  empty_cache_of(previous);
  std::int64_t held = 0;
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device)
    held += previous.getDeviceStats(device).reserved_bytes[0].current;
  return held;
}

void install(const std::string& list, bool exportable_if_possible) {
  TORCH_CHECK(installed() == nullptr, "weir is already this process's CUDA allocator");
  torch_cuda::CUDAAllocator* const previous = torch_cuda::get();
  const std::string name = previous->name();
  TORCH_CHECK(name == "native" || name == "cudaMallocAsync",
              "the CUDA allocator was already changed: it is \"", name, "\"");
  const std::int64_t held = held_by(*previous);
  TORCH_CHECK(held == 0, "torch's own CUDA allocator holds ",
              format_size(static_cast<std::uint64_t>(held)),
              " of tensors: call weir.torch.enable() before anything is put on a GPU");
  weir::options initial;
  // External streams (torch.cuda.ExternalStream) are destroyed unannounced, and the driver does not
  // survive a query about one that is gone. torch's own are watched.
  initial.heap_allow_unreleased_streams = true;
  weir::options settings = checked(weir::options_from_environment({}, initial));
  checked(weir::set_all(settings, list));
  auto runtime = checked(weir::runtime::open_cuda(settings.driver_path));
  TORCH_CHECK(static_cast<std::size_t>(runtime->device_count()) <= byte_counters::max_devices,
              "more than ", byte_counters::max_devices, " GPUs");
  auto* const allocator =
      new weir_allocator{std::move(runtime), std::move(settings), exportable_if_possible};
  // torch initialises its allocator together with CUDA; if that has happened, it is done here.
  if (previous->initialized()) allocator->init(c10::cuda::device_count());
  const bool memory_is_mapped =
      allocator->settings().heap_policy != weir::placement_policy::classic;
  watch_settings(memory_is_mapped, [allocator] { allocator->apply_settings(); });
  allocator->apply_settings();
  profilers::find_list();  // before anybody asks
  set_installed(allocator);
  ::pthread_atfork(nullptr, nullptr, [] { installed()->on_forked_child(); });
  // torch.accelerator asks this register. An entry of a lower priority than torch's own, which is 1
  // from 2.12 on, would be ignored.
  c10::SetAllocator(c10::kCUDA, allocator, 1);
  torch_cuda::allocator.store(allocator);
}

std::int64_t as_number(cudaStream_t stream) { return reinterpret_cast<std::int64_t>(stream); }

py::dict to_dict(const weir::memory_stats& stats) {
  py::dict fields;
  const auto gauge = [&](const char* name, const weir::gauge& value) {
    fields[name] = value.current;
    fields[(std::string{name} + "_peak").c_str()] = value.peak;
  };
  const auto byte_gauge = [&](const char* name, const weir::byte_gauge& value) {
    gauge(name, {value.current.count(), value.peak.count()});
  };
  byte_gauge("requested", stats.requested);
  byte_gauge("allocated", stats.allocated);
  byte_gauge("active", stats.active);
  byte_gauge("reserved", stats.reserved);
  gauge("blocks", stats.blocks);
  byte_gauge("active_requested", stats.active_requested);
  gauge("active_blocks", stats.active_blocks);
  fields["cached"] = stats.cached.count();
  fields["thread_cached"] = stats.thread_cached.count();
  fields["pending"] = stats.pending.count();
  fields["stream_bound"] = stats.stream_bound.count();
  fields["allocations"] = stats.allocations;
  fields["frees"] = stats.frees;
  fields["hits"] = stats.hits;
  fields["heap_hits"] = stats.heap_hits;
  fields["misses"] = stats.misses;
  fields["failures"] = stats.failures;
  fields["handles_created"] = stats.handles_created;
  fields["handles_moved"] = stats.handles_moved;
  fields["handles_returned"] = stats.handles_returned;
  fields["handles_released"] = stats.handles_released;
  fields["waits"] = stats.waits;
  fields["events"] = stats.events;
  fields["metadata"] = stats.metadata.count();
  fields["suspended"] = stats.suspended.count();
  byte_gauge("backup", stats.backup);
  byte_gauge("reserved_and_suspended", stats.reserved_and_suspended);
  return fields;
}

/// For calls that take weir's lock: a MemPool's allocator may wait for the GIL with it.
template <class Action>
auto without_gil(const Action& action) {
  const py::gil_scoped_release released;
  return action();
}

py::object stats(int device) {
  const device_state* const state = installed_or_throw().find_state(index_from(device));
  if (state == nullptr) return py::none();
  return to_dict(without_gil([&] { return state->memory.stats(); }));
}

/// The fields of report(), of one moment as far as possible.
py::object describe(int device, std::uint64_t size) {
  device_state* const state = installed_or_throw().find_state(index_from(device));
  if (state == nullptr) return py::none();
  const auto report = without_gil([&] {
    return state->memory.explain(weir::bytes{size}, weir::stream_ref::legacy(state->gpu));
  });
  const weir::allocator_snapshot snapshot = without_gil([&] { return state->memory.snapshot(); });
  py::dict fields;
  fields["name"] = std::string{state->gpu.name()};
  fields["options"] = weir::to_string(installed_or_throw().settings());
  fields["stats"] = to_dict(snapshot.stats);
  fields["limit"] = report.limit == weir::bytes::max() ? py::object{py::none()}
                                                       : py::object{py::int_(report.limit.count())};
  fields["device_free"] = report.device_free.count();
  fields["device_total"] = report.device_total.count();
  fields["largest_free"] = report.largest_free.count();
  fields["fragments"] = report.fragments.count();
  fields["other_pools"] = report.other_pools.count();
  fields["elsewhere"] = report.elsewhere.count();
  fields["advice"] = report.advice;
  py::list tags;
  for (const weir::tag_stats& entry : report.tags)
    tags.append(py::make_tuple(std::string{entry.tag.name()}, to_dict(entry.stats)));
  fields["tags"] = tags;
  py::list sizes;
  for (const auto& largest : report.largest)
    sizes.append(py::make_tuple(largest.size.count(), largest.blocks));
  fields["sizes"] = sizes;
  std::map<std::int64_t, std::pair<std::uint64_t, std::uint64_t>> streams;  // live, bound
  py::list pools;
  for (const weir::pool_snapshot& pool : snapshot.pools) {
    for (const weir::block_info& block : pool.blocks) {
      const auto stream = as_number(state->streams.handle_of(block.stream));
      if (block.state == weir::block_state::live) streams[stream].first += block.size.count();
      if (block.state == weir::block_state::stream_bound)
        streams[stream].second += block.size.count();
    }
    const MempoolId_t id = state->pools.torch_id_of(pool.id);
    pools.append(
        py::make_tuple(py::make_tuple(id.first, id.second), pool.name, to_dict(pool.stats)));
  }
  fields["pools"] = pools;
  py::list by_stream;
  for (const auto& [stream, held] : streams)
    by_stream.append(py::make_tuple(stream, held.first, held.second));
  fields["streams"] = by_stream;
  return fields;
}

std::uint64_t trim(int device, std::uint64_t keep) {
  device_state* const state = installed_or_throw().find_state(index_from(device));
  if (state == nullptr) return 0;
  return checked(state->memory.trim(weir::bytes{keep})).count();
}

void watch_stream(int device, std::int64_t handle) {
  const device_state& state = installed_or_throw().state_of(index_from(device));
  checked(weir::watch_stream({state.gpu, reinterpret_cast<cudaStream_t>(handle)}));
}

void release_stream(int device, std::int64_t handle) {
  device_state* const state = installed_or_throw().find_state(index_from(device));
  if (state == nullptr) return;
  checked(weir::unwatch_stream({state->gpu, reinterpret_cast<cudaStream_t>(handle)}));
}

void mark_stream_used(int device, std::int64_t id) {
  installed_or_throw().mark_stream_used(index_from(device), id);
}

/// A tag scope that Python enters and leaves, on one thread.
class tagged {
 public:
  explicit tagged(const std::string& name) : tag_{checked(weir::tag::named(name))} {}
  void enter() { scope_.emplace(tag_); }
  void leave() { scope_.reset(); }

 private:
  weir::tag tag_;
  std::optional<weir::tag_scope> scope_;
};

}  // namespace
}  // namespace weir_torch

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  namespace py = pybind11;
  namespace plugin = weir_torch;
  using gil_released = py::call_guard<py::gil_scoped_release>;
  module.def("install", &plugin::install, py::arg("options"), py::arg("exportable_if_possible"));
  module.def("installed", [] { return plugin::is_in_use(); });
  module.def("stats", &plugin::stats);
  module.def("describe", &plugin::describe);
  module.def("trim", &plugin::trim, gil_released{});
  module.def("watch_stream", &plugin::watch_stream, gil_released{});
  module.def("release_stream", &plugin::release_stream, gil_released{});
  module.def("mark_stream_used", &plugin::mark_stream_used);  // too short to release the GIL
  module.def(
      "record",
      [](int device, const std::string& path, bool stacks) {
        plugin::installed_or_throw().record(plugin::index_from(device), path, stacks);
      },
      gil_released{});
  module.def(
      "stop_recording",
      [](int device) { plugin::installed_or_throw().stop_recording(plugin::index_from(device)); },
      gil_released{});
  module.def(
      "mark", [](const std::string& text) { plugin::installed_or_throw().mark(text); },
      gil_released{});
  module.def("needs_weir", [](const py::bytes& handle) {
    return plugin::needs_weir(static_cast<std::string>(handle));
  });
  py::class_<plugin::opened_memory>(module, "OpenedMemory")
      .def(py::init([](const py::bytes& handle, int device) {
        const auto text = static_cast<std::string>(handle);
        const py::gil_scoped_release released;
        return std::make_unique<plugin::opened_memory>(text, device);
      }))
      .def_property_readonly("address", &plugin::opened_memory::address)
      .def("close", &plugin::opened_memory::close, gil_released{});
  plugin::define_suspension(module);
  plugin::define_growable(module);
  py::class_<plugin::tagged>(module, "Tagged")
      .def(py::init<std::string>())
      .def("enter", &plugin::tagged::enter)
      .def("leave", &plugin::tagged::leave);
}
