// SPDX-License-Identifier: Apache-2.0
// Growable memory of a device's allocator, for Python.
#include "growable.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator.hpp"
#include "errors.hpp"
#include "weir/growable/growable_memory.hpp"

namespace weir_torch {
namespace {

namespace py = pybind11;

/// Offsets and sizes in bytes.
using ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

std::vector<weir::byte_range> byte_ranges(const ranges& from) {
  std::vector<weir::byte_range> all;
  all.reserve(from.size());
  for (const auto& [offset, size] : from) all.push_back({weir::bytes{offset}, weir::bytes{size}});
  return all;
}

/// Growable memory with the allocator that torch's tensors have. What is wrong is a RuntimeError;
/// without memory it is torch.cuda.OutOfMemoryError. Any thread; the caller has released the GIL,
/// because callbacks of the allocator may wait for it.
class growable_pages {
 public:
  growable_pages(int device, std::uint64_t size, std::uint64_t page, const std::string& name)
      : state_{installed_or_throw().state_of(index_from(device))},
        memory_{checked(weir::growable_memory::reserve(
            state_.memory, weir::bytes{size}, {.page = weir::bytes{page}, .name = name}))} {}

  [[nodiscard]] std::uint64_t address() const {
    return reinterpret_cast<std::uint64_t>(memory_.data());
  }
  [[nodiscard]] std::uint64_t reserved() const { return memory_.stats().reserved.count(); }
  [[nodiscard]] std::uint64_t committed() const { return memory_.stats().committed.count(); }

  void commit(const ranges& which, std::int64_t stream) const {
    const auto done = memory_.commit(byte_ranges(which), on(stream));
    if (!done && done.code() == weir::errc::out_of_memory)
      TORCH_CHECK_WITH(OutOfMemoryError, false, "weir: ", done.error().message());
    checked(done);
  }
  void decommit(const ranges& which, std::int64_t stream) const {
    checked(memory_.decommit(byte_ranges(which), on(stream)));
  }
  void commit_ahead(std::uint64_t watermark, std::int64_t stream) const {
    checked(memory_.commit_ahead(weir::bytes{watermark}, on(stream)));
  }
  std::uint64_t trim() const { return checked(memory_.trim()).count(); }
  void tie_to_graph(std::int64_t graph) const {
    checked(memory_.tie_to_graph(reinterpret_cast<weir::driver::CUgraph>(graph)));
  }
  void close() const { checked(memory_.close()); }

 private:
  [[nodiscard]] weir::stream_ref on(std::int64_t stream) const {
    return {state_.gpu, reinterpret_cast<cudaStream_t>(stream)};
  }

  const device_state& state_;
  weir::growable_memory memory_;
};

}  // namespace

void define_growable(py::module_& module) {
  using gil_released = py::call_guard<py::gil_scoped_release>;
  py::class_<growable_pages>(module, "Growable")
      .def(
          py::init([](int device, std::uint64_t size, std::uint64_t page, const std::string& name) {
            const py::gil_scoped_release released;
            return std::make_unique<growable_pages>(device, size, page, name);
          }))
      .def_property_readonly("address", &growable_pages::address)
      .def_property_readonly("reserved", &growable_pages::reserved)
      .def_property_readonly("committed", &growable_pages::committed)
      .def("commit", &growable_pages::commit, gil_released{})
      .def("decommit", &growable_pages::decommit, gil_released{})
      .def("commit_ahead", &growable_pages::commit_ahead, gil_released{})
      .def("trim", &growable_pages::trim, gil_released{})
      .def("tie_to_graph", &growable_pages::tie_to_graph, gil_released{})
      .def("close", &growable_pages::close, gil_released{});
}

}  // namespace weir_torch
