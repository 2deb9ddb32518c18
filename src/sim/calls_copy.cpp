// SPDX-License-Identifier: Apache-2.0
// Driver calls: copies and fills.
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "sim/costs.hpp"
#include "sim/graphs.hpp"
#include "sim/sparse_copy.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// A copy of `rows` rows of `width` bytes each; planes of a 3D copy are rows too.
struct shape {
  std::uint64_t width = 0;
  std::vector<std::uint64_t> to{};  ///< address of each row
  std::vector<std::uint64_t> from{};
  [[nodiscard]] std::uint64_t size() const noexcept { return width * to.size(); }
};

/// Host memory that the machine knows nothing of is touched through the kernel, which answers a bad
/// address with an error where a plain copy would end the process.
bool copy_pageable(std::uint64_t to, std::uint64_t from, std::uint64_t size) {
  const iovec target{reinterpret_cast<void*>(to), size};
  const iovec source{reinterpret_cast<void*>(from), size};
  return process_vm_readv(getpid(), &target, 1, &source, 1, 0) == static_cast<ssize_t>(size);
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

/// What one side of a copy or fill is.
struct memory_side {
  bool known = false;  ///< else pageable host memory
  bool host = true;    ///< pageable or pinned
  bool managed = false;
};

/// Memory that a graph allocates is known to a capture before its first launch puts pages behind
/// it.
bool is_for_graph(state& machine, const stream_state& stream, const range& extent) {
  return stream.capturing && machine.graphs->memory.device_of(extent) >= 0;
}

memory_side side_at(state& machine, const stream_state& stream, std::uint64_t address) {
  if (const region* const area = machine.space.find(address)) {
    return {.known = true, .host = area->device < 0, .managed = area->managed != nullptr};
  }
  return is_for_graph(machine, stream, {address, 1}) ? memory_side{.known = true, .host = false}
                                                     : memory_side{};
}

/// Whether a copy or fill on `stream` may do `request`. The engine of the device that owns the
/// memory does it.
bool may_do(state& machine, const stream_state& stream, const access& request) {
  return machine.flow.allowed(stream.device, true, request) ||
         is_for_graph(machine, stream, request.extent);
}

/// How a call is categorised by NVIDIA's "API synchronization behavior": those without a stream are
/// synchronous, those with one asynchronous. What the host waits for depends on the memory, too.
enum class form { synchronous, asynchronous };

/// Everything about one copy call: what memory the sides are, what the host waits for, and the work
/// that the call becomes.
class copy {
 public:
  copy(state& machine, std::shared_ptr<stream_state> stream, shape layout)
      : machine_{machine}, stream_{std::move(stream)}, layout_{std::move(layout)} {
    if (layout_.to.empty()) return;
    const memory_side to = side_at(machine_, *stream_, layout_.to.front());
    const memory_side from = side_at(machine_, *stream_, layout_.from.front());
    to_pageable_ = !to.known;
    from_pageable_ = !from.known;
    to_host_ = to.host;
    from_host_ = from.host;
  }

  /// Queues the copy on its stream. A source in pageable memory is read before the call returns, a
  /// destination there is written before it does.
  CUresult queue(form called) {
    if (layout_.size() == 0) return CUDA_SUCCESS;
    // Inside a capture nothing is read or waited for.
    const bool staged = !stream_->capturing;
    if (called == form::synchronous && from_pageable_ && !to_host_) {
      if (const CUresult failure = machine_.drain(stream_); failure != CUDA_SUCCESS) return failure;
    }
    if (staged && from_pageable_ && !read_source()) return CUDA_ERROR_INVALID_VALUE;
    const std::vector<std::uint64_t> destination = layout_.to;
    if (staged && to_pageable_) layout_.to = rows_of_staging();
    work description = describe();
    for (const access& each : description.accesses) {
      if (!may_do(machine_, *stream_, each)) return CUDA_ERROR_INVALID_VALUE;
    }
    machine_.charge(1, layout_.size());
    if (!staged || !host_waits(called)) return machine_.submit(stream_, std::move(description));
    const CUresult answer = machine_.submit_and_wait(stream_, std::move(description));
    if (answer != CUDA_SUCCESS || !to_pageable_) return answer;
    for (std::size_t i = 0; i < destination.size(); ++i) {
      if (!copy_pageable(destination[i], layout_.to[i], layout_.width))
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  }

 private:
  /// Whether the call returns only once the copy is complete. The rules are those of "API
  /// synchronization behavior". Managed memory counts as device memory, as it has no rule of its
  /// own there since CUDA 12.
  [[nodiscard]] bool host_waits(form called) const noexcept {
    // "For transfers from any host memory to any host memory, the function is fully synchronous
    // with respect to the host", in both forms.
    if (to_host_ && from_host_) return true;
    // "For transfers between device memory and pageable host memory, the function might be
    // synchronous with respect to host": here those to it are.
    if (called == form::asynchronous) return to_pageable_;
    // "For transfers from device to either pageable or pinned host memory, the function returns
    // only once the copy has completed." "For transfers from pinned host memory to device memory,
    // the function is synchronous with respect to the host." From pageable memory it "will return
    // once the pageable buffer has been copied to the staging memory". "For transfers from device
    // memory to device memory, no host-side synchronization is performed."
    return to_host_ || (from_host_ && !from_pageable_);
  }

  std::vector<std::uint64_t> rows_of_staging() {
    const auto& staging =
        staged_.emplace_back(std::make_shared<std::vector<std::byte>>(layout_.size()));
    std::vector<std::uint64_t> rows;
    for (std::size_t i = 0; i < layout_.to.size(); ++i) {
      rows.push_back(address_of(staging->data()) + i * layout_.width);
    }
    return rows;
  }

  bool read_source() {
    const std::vector<std::uint64_t> rows = rows_of_staging();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!copy_pageable(rows[i], layout_.from[i], layout_.width)) return false;
    }
    layout_.from = rows;
    return true;
  }

  work describe() {
    work description{.type = CU_GRAPH_NODE_TYPE_MEMCPY, .label = label(), .by_owner = true};
    const bool on_bus = to_host_ || from_host_;
    description.takes = costs::moving(layout_.size(), on_bus ? costs::bus_rate : costs::copy_rate);
    if (!to_pageable_) add_accesses(description.accesses, layout_.to, true);
    if (!from_pageable_) add_accesses(description.accesses, layout_.from, false);
    description.body = [&space = machine_.space, layout = layout_, staged = staged_] {
      for (std::size_t i = 0; i < layout.to.size(); ++i)
        copy_sparsely(space, layout.to[i], layout.from[i], layout.width);
      return CUDA_SUCCESS;
    };
    return description;
  }

  [[nodiscard]] const char* label() const {
    if (from_pageable_) return to_pageable_ ? "copy on the host" : "copy to device";
    return to_pageable_ ? "copy to host" : "copy";
  }

  /// Rows that touch each other are one access.
  void add_accesses(std::vector<access>& out, const std::vector<std::uint64_t>& rows,
                    bool writes) const {
    for (const std::uint64_t row : rows) {
      if (!out.empty() && out.back().writes == writes &&
          out.back().extent.address + out.back().extent.size == row) {
        out.back().extent.size += layout_.width;
      } else {
        out.push_back({{row, layout_.width}, writes});
      }
    }
  }

  state& machine_;
  std::shared_ptr<stream_state> stream_;
  shape layout_;
  bool to_pageable_ = false;
  bool from_pageable_ = false;
  bool to_host_ = false;  // pageable or pinned
  bool from_host_ = false;
  std::vector<std::shared_ptr<std::vector<std::byte>>> staged_;  // of each side that needs it
};

shape line(std::uint64_t to, std::uint64_t from, std::uint64_t size) {
  return {size, {to}, {from}};
}

/// A fill of `rows` rows; `element` is repeated, `count` times a row.
struct fill {
  std::uint64_t to = 0;
  std::uint64_t pitch = 0;
  std::uint32_t value = 0;
  std::uint64_t element = 1;
  std::uint64_t count = 0;
  std::uint64_t rows = 1;
};

CUresult queue_fill(state& machine, const std::shared_ptr<stream_state>& stream,
                    const fill& request, form called = form::asynchronous) {
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (request.count == 0 || request.rows == 0) return CUDA_SUCCESS;
  const std::uint64_t width = request.element * request.count;
  if (request.to % request.element != 0) return CUDA_ERROR_INVALID_VALUE;
  if (width / request.element != request.count || (request.rows > 1 && request.pitch < width)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const memory_side target = side_at(machine, *stream, request.to);
  if (!target.known) return CUDA_ERROR_INVALID_VALUE;
  // "The synchronous memset functions are asynchronous with respect to the host except when the
  // target is pinned host memory or a Unified Memory region" ("API synchronization behavior").
  const bool host_waits = called == form::synchronous && (target.host || target.managed);
  work description{.type = CU_GRAPH_NODE_TYPE_MEMSET, .label = "fill", .by_owner = true};
  for (std::uint64_t row = 0; row < request.rows; ++row) {
    // Row by row: of more rows than there is memory for, no list is made.
    const access each = writes(request.to + row * request.pitch, width);
    if (!may_do(machine, *stream, each)) return CUDA_ERROR_INVALID_VALUE;
    description.accesses.push_back(each);
  }
  description.takes = costs::moving(width * request.rows, costs::fill_rate);
  description.body = [request, width] {
    for (std::uint64_t row = 0; row < request.rows; ++row) {
      auto* const first = reinterpret_cast<unsigned char*>(request.to + row * request.pitch);
      if (request.element == 1) {
        std::memset(first, static_cast<int>(request.value & 0xffU), width);
      } else {
        auto* const words = reinterpret_cast<std::uint32_t*>(first);
        for (std::uint64_t i = 0; i < request.count; ++i) words[i] = request.value;
      }
    }
    return CUDA_SUCCESS;
  };
  machine.charge(1, width * request.rows);
  return host_waits ? machine.submit_and_wait(stream, std::move(description))
                    : machine.submit(stream, std::move(description));
}

/// One side of a 2D or 3D copy, resolved to the address of its first byte.
struct side {
  CUmemorytype type{};
  const void* host = nullptr;
  CUdeviceptr device = 0;
  std::uint64_t offset = 0;
  std::uint64_t pitch = 0;
  std::uint64_t plane = 0;

  [[nodiscard]] bool usable(std::uint64_t width) const {
    return (type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE ||
            type == CU_MEMORYTYPE_UNIFIED) &&
           first() != 0 && (pitch == 0 || pitch >= width);
  }
  [[nodiscard]] std::uint64_t first() const {
    return type == CU_MEMORYTYPE_HOST ? address_of(host) : device;
  }
  [[nodiscard]] std::uint64_t row(std::uint64_t y, std::uint64_t z) const {
    return first() + offset + y * pitch + z * plane;
  }
};

CUresult queue_box(state& machine, const std::shared_ptr<stream_state>& stream, const side& to,
                   const side& from, std::uint64_t width, std::uint64_t height,
                   std::uint64_t depth) {
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (width == 0 || height == 0 || depth == 0) return CUDA_SUCCESS;
  if (!to.usable(width) || !from.usable(width)) return CUDA_ERROR_INVALID_VALUE;
  for (const side* const each : {&to, &from}) {
    if (each->type == CU_MEMORYTYPE_DEVICE && !side_at(machine, *stream, each->row(0, 0)).known) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  shape rows{.width = width};
  for (std::uint64_t z = 0; z < depth; ++z) {
    for (std::uint64_t y = 0; y < height; ++y) {
      rows.to.push_back(to.row(y, z));
      rows.from.push_back(from.row(y, z));
    }
  }
  return copy{machine, stream, std::move(rows)}.queue(form::asynchronous);
}

/// Null for copies of nothing: the driver does not look at the addresses then.
bool null_side(CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  return size != 0 && (to == 0 || from == 0);
}

/// Which sides of a copy must be memory that the machine knows.
enum class known { neither, destination, source, both };

CUresult copy_line(state& machine, CUstream handle, CUdeviceptr to, CUdeviceptr from,
                   std::size_t size, form called, known must_be = known::neither) {
  const auto stream = machine.find_stream(handle);
  if (!stream) return machine.missing_stream();
  if (null_side(to, from, size)) return CUDA_ERROR_INVALID_VALUE;
  const bool check_to = must_be == known::destination || must_be == known::both;
  const bool check_from = must_be == known::source || must_be == known::both;
  if (size != 0 && ((check_to && !side_at(machine, *stream, to).known) ||
                    (check_from && !side_at(machine, *stream, from).known))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return copy{machine, stream, line(to, from, size)}.queue(called);
}

}  // namespace

// --- One run of bytes ----------------------------------------------------------------------------

CUresult state::memcpy_sync(CUdeviceptr destination, CUdeviceptr source, std::size_t size) {
  return copy_line(*this, nullptr, destination, source, size, form::synchronous);
}

CUresult state::memcpy_async(CUdeviceptr destination, CUdeviceptr source, std::size_t size,
                             CUstream handle) {
  return copy_line(*this, handle, destination, source, size, form::asynchronous);
}

CUresult state::memcpy_htod(CUdeviceptr destination, const void* source, std::size_t size) {
  return copy_line(*this, nullptr, destination, address_of(source), size, form::synchronous,
                   known::destination);
}

CUresult state::memcpy_dtoh(void* destination, CUdeviceptr source, std::size_t size) {
  return copy_line(*this, nullptr, address_of(destination), source, size, form::synchronous,
                   known::source);
}

CUresult state::memcpy_dtod(CUdeviceptr destination, CUdeviceptr source, std::size_t size) {
  return copy_line(*this, nullptr, destination, source, size, form::synchronous, known::both);
}

CUresult state::memcpy_htod_async(CUdeviceptr destination, const void* source, std::size_t size,
                                  CUstream handle) {
  return copy_line(*this, handle, destination, address_of(source), size, form::asynchronous,
                   known::destination);
}

CUresult state::memcpy_dtoh_async(void* destination, CUdeviceptr source, std::size_t size,
                                  CUstream handle) {
  return copy_line(*this, handle, address_of(destination), source, size, form::asynchronous,
                   known::source);
}

CUresult state::memcpy_dtod_async(CUdeviceptr destination, CUdeviceptr source, std::size_t size,
                                  CUstream handle) {
  return copy_line(*this, handle, destination, source, size, form::asynchronous, known::both);
}

CUresult state::memcpy_peer_async(CUdeviceptr destination, CUcontext destination_context,
                                  CUdeviceptr source, CUcontext source_context, std::size_t size,
                                  CUstream handle) {
  if (device_of(destination_context) < 0 || device_of(source_context) < 0) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return copy_line(*this, handle, destination, source, size, form::asynchronous);
}

// --- Boxes and batches --------------------------------------------------------------------------

CUresult state::memcpy_2d_async(const CUDA_MEMCPY2D* box, CUstream handle) {
  if (box == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const side to{box->dstMemoryType, box->dstHost,
                box->dstDevice,     box->dstXInBytes + box->dstY * box->dstPitch,
                box->dstPitch,      0};
  const side from{box->srcMemoryType, box->srcHost,
                  box->srcDevice,     box->srcXInBytes + box->srcY * box->srcPitch,
                  box->srcPitch,      0};
  return queue_box(*this, find_stream(handle), to, from, box->WidthInBytes, box->Height, 1);
}

CUresult state::memcpy_3d_async(const CUDA_MEMCPY3D* box, CUstream handle) {
  if (box == nullptr || box->srcLOD != 0 || box->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  // A height of 0 is not looked at; any other must hold the rows that are copied.
  const auto holds_rows = [box](std::uint64_t height, std::uint64_t first) {
    return height == 0 || (first <= height && box->Height <= height - first);
  };
  if (!holds_rows(box->srcHeight, box->srcY) || !holds_rows(box->dstHeight, box->dstY))
    return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t to_plane = box->dstPitch * box->dstHeight;
  const std::uint64_t from_plane = box->srcPitch * box->srcHeight;
  const side to{
      box->dstMemoryType, box->dstHost,
      box->dstDevice,     box->dstXInBytes + box->dstY * box->dstPitch + box->dstZ * to_plane,
      box->dstPitch,      to_plane};
  const side from{
      box->srcMemoryType, box->srcHost,
      box->srcDevice,     box->srcXInBytes + box->srcY * box->srcPitch + box->srcZ * from_plane,
      box->srcPitch,      from_plane};
  return queue_box(*this, find_stream(handle), to, from, box->WidthInBytes, box->Height,
                   box->Depth);
}

CUresult state::memcpy_batch_async(CUdeviceptr* destinations, CUdeviceptr* sources,
                                   std::size_t* sizes, std::size_t count,
                                   CUmemcpyAttributes* attributes, std::size_t* attribute_indices,
                                   std::size_t attribute_count, std::size_t* failed,
                                   CUstream handle) {
  if (failed != nullptr) *failed = ~std::size_t{0};
  if (destinations == nullptr || sources == nullptr || sizes == nullptr || count == 0 ||
      attributes == nullptr || attribute_indices == nullptr || attribute_count == 0 ||
      attribute_count > count || attribute_indices[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (handle == nullptr || handle == legacy_stream()) return CUDA_ERROR_INVALID_VALUE;
  const auto stream = find_stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  // Refused, but unlike other calls it leaves the capture as it was.
  if (stream->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const auto refuse = [&](std::size_t index) {
    if (failed != nullptr) *failed = index;
    return CUDA_ERROR_INVALID_VALUE;
  };
  for (std::size_t i = 0; i < attribute_count; ++i) {
    if (attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_INVALID) return refuse(i);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0 || destinations[i] == 0 || sources[i] == 0) return refuse(i);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const CUresult answer =
        copy{*this, stream, line(destinations[i], sources[i], sizes[i])}.queue(form::asynchronous);
    if (answer != CUDA_SUCCESS) {
      if (failed != nullptr) *failed = i;
      return answer;
    }
  }
  return CUDA_SUCCESS;
}

// --- Fills --------------------------------------------------------------------------------------

CUresult state::memset_d8(CUdeviceptr destination, unsigned char value, std::size_t count) {
  return queue_fill(*this, find_stream(nullptr),
                    {.to = destination, .value = value, .count = count}, form::synchronous);
}

CUresult state::memset_d32(CUdeviceptr destination, unsigned value, std::size_t count) {
  return queue_fill(*this, find_stream(nullptr),
                    {.to = destination, .value = value, .element = 4, .count = count},
                    form::synchronous);
}

CUresult state::memset_d8_async(CUdeviceptr destination, unsigned char value, std::size_t count,
                                CUstream handle) {
  return queue_fill(*this, find_stream(handle),
                    {.to = destination, .value = value, .count = count});
}

CUresult state::memset_d32_async(CUdeviceptr destination, unsigned value, std::size_t count,
                                 CUstream handle) {
  return queue_fill(*this, find_stream(handle),
                    {.to = destination, .value = value, .element = 4, .count = count});
}

CUresult state::memset_d2d8_async(CUdeviceptr destination, std::size_t pitch, unsigned char value,
                                  std::size_t width, std::size_t height, CUstream handle) {
  return queue_fill(
      *this, find_stream(handle),
      {.to = destination, .pitch = pitch, .value = value, .count = width, .rows = height});
}

}}}  // namespace weir::v0::sim
