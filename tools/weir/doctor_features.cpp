// SPDX-License-Identifier: Apache-2.0
// weir doctor: tries out, on one device, each thing that weir is built on.
//
// A device says by its attributes what it should be able to do. Containers, permissions and drivers
// can still refuse, so nothing counts as working before it has worked once, here.
#include <cstddef>
#include <string>
#include <utility>

#include "doctor.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/observe/tag.hpp"

namespace weir::command {

namespace {

using driver::call;
using driver::check;

/// Enough for a trial of memory that comes in any size.
constexpr std::size_t little = 4096;

// --- The trials ----------------------------------------------------------------------------------

result<void> try_virtual_memory(device gpu, physical_properties properties = {}) {
  const bytes unit = gpu.capabilities().granularity;
  WEIR_TRY_VALUE(addresses, address_range::reserve(gpu, unit));
  WEIR_TRY_VALUE(memory, physical_handle::create(gpu, unit, properties));
  WEIR_TRY_VALUE(mapped, mapping::create(addresses, bytes{}, memory));
  WEIR_TRY(mapped.set_access(gpu));
  WEIR_TRY(mapped.close());
  WEIR_TRY(memory.close());
  return addresses.close();
}

result<void> try_pool(device gpu) {
  const context_scope bound{gpu};
  if (!bound) return bound.error();
  WEIR_TRY_VALUE(queue, stream::create(gpu));
  driver::CUdeviceptr address = 0;
  WEIR_TRY(check(call::mem_alloc_async,
                 bound.driver().mem_alloc_async(&address, little, queue.handle()), bytes{little}));
  WEIR_TRY(check(call::mem_free_async, bound.driver().mem_free_async(address, queue.handle())));
  return queue.synchronize();
}

result<void> try_managed_memory(device gpu) {
  const context_scope bound{gpu};
  if (!bound) return bound.error();
  driver::CUdeviceptr address = 0;
  WEIR_TRY(check(call::mem_alloc_managed,
                 bound.driver().mem_alloc_managed(&address, little, driver::CU_MEM_ATTACH_GLOBAL),
                 bytes{little}));
  return check(call::mem_free, bound.driver().mem_free(address));
}

result<void> try_pinned_memory(device gpu) {
  const context_scope bound{gpu};
  if (!bound) return bound.error();
  void* address = nullptr;
  WEIR_TRY(check(call::mem_host_alloc,
                 bound.driver().mem_host_alloc(&address, little, driver::host_alloc_portable),
                 bytes{little}));
  return check(call::mem_free_host, bound.driver().mem_free_host(address));
}

result<void> try_descriptor(device gpu) {
  WEIR_TRY_VALUE(memory, physical_handle::create(gpu, gpu.capabilities().granularity,
                                                 {.posix_descriptor = true}));
  WEIR_TRY(memory.export_descriptor());
  return memory.close();
}

result<void> try_legacy_sharing(device gpu) {
  const context_scope bound{gpu};
  if (!bound) return bound.error();
  WEIR_TRY_VALUE(address, allocate_plain(bound, bytes{little}));
  driver::CUipcMemHandle handle{};
  const auto exported =
      check(call::ipc_get_mem_handle, bound.driver().ipc_get_mem_handle(&handle, address));
  WEIR_TRY(free_plain(bound, address));
  return exported;
}

result<void> try_capture(device gpu) {
  const context_scope bound{gpu};
  if (!bound) return bound.error();
  WEIR_TRY_VALUE(queue, stream::create(gpu));
  WEIR_TRY(check(call::stream_begin_capture,
                 bound.driver().stream_begin_capture(queue.handle(),
                                                     driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)));
  const auto capturing = queue.ref().capture(bound);
  driver::CUgraph graph = nullptr;
  WEIR_TRY(
      check(call::stream_end_capture, bound.driver().stream_end_capture(queue.handle(), &graph)));
  WEIR_TRY(check(call::graph_destroy, bound.driver().graph_destroy(graph)));
  if (!capturing) return capturing.error();
  return {};
}

/// A block of a tag goes, with what it holds, and comes back.
result<void> try_suspending(device gpu) {
  WEIR_TRY_VALUE(queue, stream::create(gpu));
  WEIR_TRY_VALUE(memory, weir::caching_allocator::create(gpu));
  WEIR_TRY_VALUE(of, tag::named("weir doctor"));
  WEIR_TRY(memory.declare_suspendable(of));
  void* block = nullptr;
  {
    const tag_scope scope{of};
    WEIR_TRY_VALUE(allocated, memory.try_allocate(bytes{little}, queue.ref()));
    block = allocated;
  }
  const auto moved = [&]() -> result<void> {
    WEIR_TRY(memory.suspend(of));
    WEIR_TRY(memory.resume(of));
    return {};
  }();
  memory.deallocate(block, queue.ref());
  WEIR_TRY(memory.close());
  WEIR_TRY(queue.close());
  return moved;
}

// --- From trials to findings ---------------------------------------------------------------------

/// A feature that was tried; `reason` is why it counts as working if it did.
feature tried(std::string_view key, std::string_view title, result<void> outcome,
              std::string reason) {
  if (outcome) return {key, title, support::yes, std::move(reason)};
  return {key, title, support::no, outcome.error().message()};
}

feature lacking(std::string_view key, std::string_view title, std::string reason) {
  return {key, title, support::no, std::move(reason)};
}

/// A feature that works, but for one thing.
feature limited_by(feature tried_feature, bool is_limited, std::string reason) {
  if (is_limited && tried_feature.works == support::yes) {
    tried_feature.works = support::partly;
    tried_feature.reason = std::move(reason);
  }
  return tried_feature;
}

feature caching_allocator(device gpu) {
  constexpr std::string_view key = "caching_allocator";
  constexpr std::string_view title = "caching allocator";
  const device_capabilities& can = gpu.capabilities();
  if (!can.virtual_memory) return lacking(key, title, "the device does not support virtual memory");
  return tried(key, title, try_virtual_memory(gpu),
               "virtual memory, mapped in handles of " + to_string(can.granularity));
}

feature stream_pools(device gpu) {
  constexpr std::string_view key = "stream_pools";
  constexpr std::string_view title = "stream pools";
  if (!gpu.capabilities().memory_pools)
    return lacking(key, title, "the device does not support memory pools");
  return tried(key, title, try_pool(gpu), "the driver's stream-ordered memory pools");
}

feature unified_memory(device gpu) {
  constexpr std::string_view key = "unified_memory";
  constexpr std::string_view title = "unified memory";
  const device_capabilities& can = gpu.capabilities();
  if (!can.managed_memory) return lacking(key, title, "the device does not support managed memory");
  return limited_by(
      tried(key, title, try_managed_memory(gpu), "managed memory, for host and device at once"),
      !can.concurrent_managed_access,
      "managed memory that the host must not touch while the device works");
}

feature pinned_memory(device gpu) {
  return tried("pinned_memory", "pinned memory", try_pinned_memory(gpu),
               "host memory that the device reaches directly");
}

feature sharing_by_descriptor(device gpu) {
  constexpr std::string_view key = "sharing_by_descriptor";
  constexpr std::string_view title = "sharing, descriptor";
  const device_capabilities& can = gpu.capabilities();
  if (!can.virtual_memory) return lacking(key, title, "the device does not support virtual memory");
  if (!can.posix_descriptors) return lacking(key, title, "handles cannot become descriptors");
  const bool pools =
      (can.pool_handle_types & driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  return limited_by(
      tried(key, title, try_descriptor(gpu), "handles and pools travel to other processes"), !pools,
      "handles travel to other processes, memory pools do not");
}

feature legacy_sharing(device gpu) {
  return tried("legacy_sharing", "sharing, legacy", try_legacy_sharing(gpu),
               "plain allocations travel as cuIpc handles");
}

/// "cuStreamGetId (CUDA 12.0)" for each of `needed` that the driver lacks, with commas between.
std::string names_of_missing(const driver::table& calls, std::initializer_list<call> needed) {
  std::string names;
  for (const call missing : missing_calls(calls)) {
    for (const call call_needed : needed) {
      if (call_needed != missing) continue;
      const driver::call_info& row = driver::info(missing);
      names += names.empty() ? "" : ", ";
      names += std::string{row.symbol} + " (CUDA " + cuda_version(row.version) + ")";
    }
  }
  return names;
}

feature graph_capture(device gpu) {
  constexpr std::string_view key = "graph_capture";
  constexpr std::string_view title = "graph capture";
  const std::string missing = names_of_missing(
      gpu.driver(),
      {call::stream_get_capture_info, call::stream_update_capture_dependencies,
       call::graph_instantiate, call::user_object_create, call::user_object_retain,
       call::user_object_release, call::graph_retain_user_object, call::graph_release_user_object});
  if (!missing.empty()) return lacking(key, title, "the driver lacks " + missing);
  return tried(key, title, try_capture(gpu), "captures can be distinguished and own memory");
}

feature suspended_memory(device gpu) {
  constexpr std::string_view key = "suspended_memory";
  constexpr std::string_view title = "suspended memory";
  const device_capabilities& can = gpu.capabilities();
  if (!can.virtual_memory) return lacking(key, title, "the device does not support virtual memory");
  return tried(key, title, try_suspending(gpu),
               "contents are saved to the host and restored; copy engines: " +
                   std::to_string(can.copy_engines));
}

feature stream_identity(device gpu) {
  constexpr std::string_view key = "stream_identity";
  constexpr std::string_view title = "stream identity";
  const auto identify = [&]() -> result<void> {
    WEIR_TRY_VALUE(queue, stream::create(gpu));
    WEIR_TRY(queue.ref().id());
    return queue.close();
  };
  const std::string missing = names_of_missing(gpu.driver(), {call::stream_get_id});
  return limited_by(tried(key, title, identify(), "a stream's number is never used twice"),
                    !missing.empty(),
                    "numbered by weir: the driver lacks " + missing +
                        "; a stream that others destroyed can be mistaken for its successor");
}

}  // namespace

feature examine_network_cards(device gpu) {
  constexpr std::string_view key = "network_cards";
  constexpr std::string_view title = "network cards";
  const device_capabilities& can = gpu.capabilities();
  if (!can.virtual_memory) return lacking(key, title, "the device does not support virtual memory");
  if (!can.rdma_with_virtual_memory)
    return lacking(key, title, "the device does not support RDMA with virtual memory");
  return tried(key, title, try_virtual_memory(gpu, {.rdma = true}),
               "mapped memory can be registered (GPUDirect RDMA)");
}

std::vector<feature> examine_features(device gpu) {
  return {caching_allocator(gpu), stream_pools(gpu),          unified_memory(gpu),
          pinned_memory(gpu),     sharing_by_descriptor(gpu), legacy_sharing(gpu),
          graph_capture(gpu),     stream_identity(gpu),       suspended_memory(gpu)};
}

}  // namespace weir::command
