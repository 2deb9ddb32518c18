// The Python module: installs the allocator and shows what it holds. python/weir/torch.py uses it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "allocator.hpp"
#include "errors.hpp"
#include "weir/base/version.hpp"
#include "weir/device/stream_watch.hpp"
#include "weir/observe/tag.hpp"

namespace weir_torch {
namespace {

namespace py = pybind11;

/// Bytes that torch's allocator of before still holds; what it only caches goes back first.
std::int64_t held_by(torch_cuda::CUDAAllocator& before) {
  if (!before.initialized()) return 0;
  before.emptyCache({0, 0});
  std::int64_t held = 0;
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device)
    held += before.getDeviceStats(device).reserved_bytes[0].current;
  return held;
}

void install(const std::string& list, bool exportable_if_possible) {
  TORCH_CHECK(installed() == nullptr, "weir is this process's CUDA allocator already");
  torch_cuda::CUDAAllocator* const before = torch_cuda::get();
  const std::string name = before->name();
  TORCH_CHECK(name == "native" || name == "cudaMallocAsync",
              "the CUDA allocator was changed already: it is \"", name, "\"");
  const std::int64_t held = held_by(*before);
  TORCH_CHECK(held == 0, "torch's own CUDA allocator holds ",
              format_size(static_cast<std::uint64_t>(held)),
              " of tensors: call weir.torch.enable() before anything is put on a GPU");
  weir::options initial;
  // Streams that come from outside (torch.cuda.ExternalStream) are destroyed without a word, and
  // the driver does not survive being asked about one. torch's own are watched.
  initial.heap_unannounced_ends = true;
  weir::options settings = checked(weir::options_from_environment({}, initial));
  checked(weir::set_all(settings, list));
  auto machine = checked(weir::runtime::open_cuda(settings.driver_path));
  TORCH_CHECK(static_cast<std::size_t>(machine->device_count()) <= tally::most_devices,
              "more than ", tally::most_devices, " GPUs");
  auto* const made =
      new weir_allocator{std::move(machine), std::move(settings), exportable_if_possible};
  // torch initialises what it finds here together with CUDA; if that has happened, it is ours to.
  if (before->initialized()) made->init(c10::cuda::device_count());
  set_installed(made);
  c10::SetAllocator(c10::kCUDA, made, 0);
  torch_cuda::allocator.store(made);
}

weir_allocator& ours() {
  weir_allocator* const found = installed();
  TORCH_CHECK(found != nullptr, "call weir.torch.enable() first");
  return *found;
}

std::int64_t as_number(cudaStream_t stream) { return reinterpret_cast<std::int64_t>(stream); }

py::dict to_dict(const weir::memory_stats& of) {
  py::dict out;
  const auto gauge = [&](const char* what, const weir::gauge& value) {
    out[what] = value.current;
    out[(std::string{what} + "_peak").c_str()] = value.peak;
  };
  gauge("requested", of.requested);
  gauge("allocated", of.allocated);
  gauge("active", of.active);
  gauge("reserved", of.reserved);
  gauge("blocks", of.blocks);
  gauge("active_requested", of.active_requested);
  gauge("active_blocks", of.active_blocks);
  out["cached"] = of.cached;
  out["thread_cached"] = of.thread_cached;
  out["pending"] = of.pending;
  out["stream_bound"] = of.stream_bound;
  out["allocations"] = of.allocations;
  out["frees"] = of.frees;
  out["hits"] = of.hits;
  out["failures"] = of.failures;
  out["handles_created"] = of.handles_created;
  out["handles_moved"] = of.handles_moved;
  out["handles_returned"] = of.handles_returned;
  out["handles_released"] = of.handles_released;
  out["waits"] = of.waits;
  out["events"] = of.events;
  out["metadata"] = of.metadata;
  return out;
}

py::object stats(int device) {
  const device_seat* const there = ours().seat(static_cast<c10::DeviceIndex>(device));
  if (there == nullptr) return py::none();
  return to_dict(there->memory.stats());
}

/// Everything that report() writes about, of one moment as far as weir can.
py::object describe(int device, std::uint64_t size) {
  device_seat* const there = ours().seat(static_cast<c10::DeviceIndex>(device));
  if (there == nullptr) return py::none();
  const auto report =
      there->memory.explain(weir::bytes{size}, weir::stream_ref::legacy(there->gpu));
  const weir::allocator_snapshot all = there->memory.snapshot();
  py::dict out;
  out["name"] = std::string{there->gpu.name()};
  out["options"] = weir::to_string(ours().settings());
  out["stats"] = to_dict(all.stats);
  out["limit"] = report.limit == weir::bytes::max() ? py::object{py::none()}
                                                    : py::object{py::int_(report.limit.count())};
  out["device_free"] = report.device_free.count();
  out["device_total"] = report.device_total.count();
  out["largest_free"] = report.largest_free.count();
  out["fragments"] = report.fragments.count();
  out["other_pools"] = report.other_pools.count();
  out["elsewhere"] = report.elsewhere.count();
  out["advice"] = report.advice;
  py::list tags;
  for (const weir::tag_stats& each : report.tags)
    tags.append(py::make_tuple(std::string{each.tag.name()}, to_dict(each.stats)));
  out["tags"] = tags;
  py::list sizes;
  for (const auto& each : report.largest)
    sizes.append(py::make_tuple(each.size.count(), each.blocks));
  out["sizes"] = sizes;
  std::map<std::int64_t, std::pair<std::uint64_t, std::uint64_t>> streams;  // live, bound
  py::list pools;
  for (const weir::pool_snapshot& pool : all.pools) {
    for (const weir::block_info& piece : pool.blocks) {
      const auto stream = as_number(there->streams.handle_of(piece.stream));
      if (piece.state == weir::block_state::live) streams[stream].first += piece.size.count();
      if (piece.state == weir::block_state::stream_bound)
        streams[stream].second += piece.size.count();
    }
    const MempoolId_t id = there->pools.name_of(pool.id);
    pools.append(
        py::make_tuple(py::make_tuple(id.first, id.second), pool.name, to_dict(pool.stats)));
  }
  out["pools"] = pools;
  py::list by_stream;
  for (const auto& [stream, held] : streams)
    by_stream.append(py::make_tuple(stream, held.first, held.second));
  out["streams"] = by_stream;
  return out;
}

std::uint64_t trim(int device, std::uint64_t keep) {
  device_seat* const there = ours().seat(static_cast<c10::DeviceIndex>(device));
  if (there == nullptr) return 0;
  return checked(there->memory.trim(weir::bytes{keep})).count();
}

void watch_stream(int device, std::int64_t handle) {
  const device_seat& there = ours().at(static_cast<c10::DeviceIndex>(device));
  checked(weir::watch_stream({there.gpu, reinterpret_cast<cudaStream_t>(handle)}));
}

void release_stream(int device, std::int64_t handle) {
  device_seat* const there = ours().seat(static_cast<c10::DeviceIndex>(device));
  if (there == nullptr) return;
  checked(weir::unwatch_stream({there->gpu, reinterpret_cast<cudaStream_t>(handle)}));
}

void note_stream(int device, std::int64_t id) {
  ours().note_stream(static_cast<c10::DeviceIndex>(device), id);
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
  namespace seat = weir_torch;
  using released = py::call_guard<py::gil_scoped_release>;
  module.def("install", &seat::install, py::arg("options"), py::arg("exportable_if_possible"));
  module.def("installed", [] { return seat::installed() != nullptr; });
  module.def("stats", &seat::stats);
  module.def("describe", &seat::describe);
  module.def("trim", &seat::trim, released{});
  module.def("watch_stream", &seat::watch_stream, released{});
  module.def("release_stream", &seat::release_stream, released{});
  module.def("note_stream", &seat::note_stream);  // a few nanoseconds: not worth a release
  module.def(
      "record",
      [](int device, const std::string& path, bool stacks) {
        seat::ours().record(static_cast<c10::DeviceIndex>(device), path, stacks);
      },
      released{});
  module.def(
      "stop_recording",
      [](int device) { seat::ours().stop_recording(static_cast<c10::DeviceIndex>(device)); },
      released{});
  module.def(
      "mark", [](const std::string& text) { seat::ours().mark(text); }, released{});
  py::class_<seat::tagged>(module, "Tagged")
      .def(py::init<std::string>())
      .def("enter", &seat::tagged::enter)
      .def("leave", &seat::tagged::leave);
}
