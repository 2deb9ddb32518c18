// SPDX-License-Identifier: Apache-2.0
// Captures: what a capturing stream does with calls, and which calls a capture forbids.
#include "sim/capture.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "sim/graphs.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// Calls the driver holds potentially unsafe while a capture is under way: they are not put into a
/// stream, so a replay could not repeat them, or they wait for work that a capture only records.
constexpr std::array unsafe_calls{
    // They wait for work, or ask whether it is done.
    driver::call::event_query, driver::call::event_synchronize, driver::call::stream_query,
    driver::call::stream_synchronize,
    // They take or free memory, and may wait for the device to do so.
    driver::call::mem_alloc, driver::call::mem_alloc_pitch, driver::call::mem_alloc_managed,
    driver::call::mem_free, driver::call::mem_host_alloc, driver::call::mem_free_host,
    driver::call::mem_host_register, driver::call::mem_host_unregister,
    // Pools, down to their attributes; and memory of a stream that is not captured itself.
    driver::call::mem_pool_create, driver::call::mem_pool_destroy, driver::call::mem_pool_trim_to,
    driver::call::mem_pool_get_attribute, driver::call::mem_pool_set_attribute,
    driver::call::mem_alloc_async, driver::call::mem_alloc_from_pool_async,
    driver::call::mem_free_async,
    // It puts a graph on the device.
    driver::call::graph_instantiate};

constexpr auto unsafe_by_call = [] {
  std::array<bool, driver::call_count> unsafe{};
  for (const driver::call call : unsafe_calls) unsafe[static_cast<std::size_t>(call)] = true;
  return unsafe;
}();

std::atomic<std::uint64_t> next_capture_id{1};

}  // namespace

capture::member& capture::at(const stream_state& stream) noexcept {
  return *std::find_if(members.begin(), members.end(),
                       [&](const member& each) { return each.stream.get() == &stream; });
}

bool capture::blocks_legacy(int device) const noexcept {
  return std::any_of(members.begin(), members.end(), [&](const member& each) {
    return each.stream->device == device && each.stream->is_blocking();
  });
}

void merge(std::vector<CUgraphNode>& nodes, const std::vector<CUgraphNode>& added) {
  for (CUgraphNode node : added) {
    if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  }
}

// --- What captures forbid -----------------------------------------------------------------------

CUresult graph_set::forbid(driver::call call) {
  if (!unsafe_by_call[static_cast<std::size_t>(call)]) return CUDA_SUCCESS;
  const thread_state& caller = machine_.thread();
  if (caller.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult answer = CUDA_SUCCESS;
  for (const auto& each : captures_) {
    const bool own = each->thread == caller.number;
    const bool forbids = own ? each->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                             : caller.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                   each->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) continue;
    each->invalidated = true;
    answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return answer;
}

CUresult graph_set::misuse(const std::shared_ptr<stream_state>& stream) {
  if (!stream->capturing) return CUDA_SUCCESS;
  if (std::exchange(stream->capturing->invalidated, true)) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void graph_set::abandon(const std::shared_ptr<stream_state>& stream) {
  if (const auto active = stream->capturing) close(*active);
}

CUresult graph_set::legacy_usable(int device) const noexcept {
  const bool blocked = std::any_of(captures_.begin(), captures_.end(),
                                   [&](const auto& each) { return each->blocks_legacy(device); });
  return blocked ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult graph_set::check_legacy(int device) {
  for (const auto& each : captures_) {
    if (each->blocks_legacy(device)) each->invalidated = true;
  }
  return legacy_usable(device);
}

CUresult graph_set::check_synchronize(int device) {
  CUresult answer = CUDA_SUCCESS;
  for (const auto& each : captures_) {
    const bool on_device =
        std::any_of(each->members.begin(), each->members.end(),
                    [&](const auto& member) { return member.stream->device == device; });
    if (!on_device) continue;
    each->invalidated = true;
    answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return answer;
}

// --- Begin and end ------------------------------------------------------------------------------

CUresult graph_set::begin(const std::shared_ptr<stream_state>& stream, CUstreamCaptureMode mode) {
  if (stream->is_legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  auto started = std::make_shared<capture>();
  started->id = next_capture_id.fetch_add(1);
  started->mode = mode;
  started->thread = machine_.thread().number;
  started->building = make_graph();
  started->building->capturing = true;
  started->handle = graph_handles.insert(started->building);
  started->members.push_back({stream, {}});
  captures_.push_back(started);
  stream->capturing = std::move(started);
  return CUDA_SUCCESS;
}

namespace {

/// Whether everything that the members' next nodes would depend on comes before, or is, something
/// that the first member's next node would depend on.
bool all_joined(const capture& ending, const graph_set& graphs) {
  const auto& nodes = ending.building->nodes;
  std::vector<bool> joined(nodes.size(), false);
  for (const CUgraphNode node : ending.members.front().next) {
    joined[graphs.node_handles.find(node)->place] = true;
  }
  for (std::size_t i = nodes.size(); i-- > 0;) {
    if (!joined[i]) continue;
    for (const std::size_t before : nodes[i]->after) joined[before] = true;
  }
  for (const capture::member& each : ending.members) {
    for (const CUgraphNode node : each.next) {
      if (!joined[graphs.node_handles.find(node)->place]) return false;
    }
  }
  return true;
}

}  // namespace

CUresult graph_set::end(const std::shared_ptr<stream_state>& stream, CUgraph* graph) {
  const auto ending = stream->capturing;
  if (!ending) return CUDA_ERROR_ILLEGAL_STATE;
  if (!ending->began_on(*stream)) {
    ending->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  CUgraph unused = nullptr;  // a caller that does not want the graph ends the capture all the same
  if (graph == nullptr) graph = &unused;
  *graph = nullptr;
  CUresult answer = CUDA_SUCCESS;
  if (ending->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      ending->thread != machine_.thread().number) {
    answer = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  } else if (ending->invalidated) {
    answer = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  } else if (!all_joined(*ending, *this)) {
    answer = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  } else {
    *graph = std::exchange(ending->handle, nullptr);
    ending->building->capturing = false;
  }
  close(*ending);
  return answer;
}

void graph_set::close(capture& ending) {
  ending.ended = true;
  if (ending.handle != nullptr) {
    graph_handles.erase(ending.handle);
    dismantle(*ending.building);
  }
  ending.building = nullptr;
  std::shared_ptr<capture> last_reference;  // the members may hold the last references
  for (capture::member& each : ending.members)
    last_reference = std::exchange(each.stream->capturing, nullptr);
  ending.members.clear();
  std::erase_if(captures_, [&](const auto& each) { return each.get() == &ending; });
}

// --- Work ---------------------------------------------------------------------------------------

CUresult graph_set::add_node(const std::shared_ptr<stream_state>& stream, work task) {
  if (machine_.options.check_hazards && !task.lifetime) check_captured(*stream, task);
  return add_node(stream, {.task = std::move(task), .device = stream->device});
}

CUresult graph_set::add_node(const std::shared_ptr<stream_state>& stream, node_content content) {
  capture& active = *stream->capturing;
  if (active.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<CUgraphNode>& next = active.at(*stream).next;
  next = {append(*active.building, std::move(content), places_of(next))};
  return CUDA_SUCCESS;
}

/// Blocks of graph pools are used again by every launch, freed or not: what is captured must have
/// been right when it was.
void graph_set::check_captured(const stream_state& stream, const work& task) {
  const std::uint64_t step = ++machine_.steps;
  for (const access& each : task.accesses) {
    machine_.check_blocks(each.extent,
                          {.label = task.label,
                           .stream = stream_id{stream.id},
                           .extent = each.extent,
                           .writes = each.writes,
                           .queued = machine_.clock,
                           .action = party_action::captured,
                           .step = step,
                           .stream_name = stream.name},
                          block_book::occasion::captured);
  }
}

std::vector<std::size_t> graph_set::places_of(const std::vector<CUgraphNode>& nodes) const {
  std::vector<std::size_t> places;
  for (const CUgraphNode node : nodes) places.push_back(node_handles.find(node)->place);
  return places;
}

// --- Events -------------------------------------------------------------------------------------

CUresult graph_set::record(event_state& event, const std::shared_ptr<stream_state>& stream) {
  capture& active = *stream->capturing;
  if (active.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  event.captured = stream->capturing;
  event.captured_nodes = active.at(*stream).next;
  return CUDA_SUCCESS;
}

CUresult graph_set::wait(const std::shared_ptr<stream_state>& stream, event_state& event) {
  const auto stream_capture = stream->capturing;
  const auto event_capture = event.captured;
  if (stream_capture && stream_capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!event_capture) {
    // Waiting for an event that was never recorded is nothing, here as elsewhere.
    if (!event.recorded && !event.shared) return CUDA_SUCCESS;
    stream_capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (event_capture->ended) return CUDA_ERROR_INVALID_VALUE;
  if (stream_capture && stream_capture != event_capture) {
    stream_capture->invalidated = event_capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (event_capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->is_legacy) {
    event_capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!stream_capture) {
    event_capture->members.push_back({stream, {}});
    stream->capturing = event_capture;
  }
  merge(event_capture->at(*stream).next, event.captured_nodes);
  return CUDA_SUCCESS;
}

CUresult graph_set::record_external(const std::shared_ptr<event_state>& event,
                                    const std::shared_ptr<stream_state>& stream) {
  if (!stream->capturing) return CUDA_ERROR_INVALID_VALUE;
  return add_node(stream, {.task = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD},
                           .device = stream->device,
                           .event = event});
}

CUresult graph_set::wait_external(const std::shared_ptr<stream_state>& stream,
                                  const std::shared_ptr<event_state>& event) {
  if (!stream->capturing) return CUDA_ERROR_INVALID_VALUE;
  return add_node(
      stream,
      {.task = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT}, .device = stream->device, .event = event});
}

// --- Memory -------------------------------------------------------------------------------------

namespace {

/// A captured allocation has the access rights that its pool grants when it is captured.
std::vector<CUmemAccessDesc> rights_now(const pool& source, std::size_t devices) {
  std::vector<CUmemAccessDesc> found;
  for (int device = 0; device < static_cast<int>(devices); ++device) {
    const CUmemAccess_flags flags = source.granted(device);
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
      found.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags});
  }
  return found;
}

}  // namespace

CUresult graph_set::capture_alloc(const std::shared_ptr<stream_state>& stream, std::size_t bytes,
                                  CUmemoryPool pool, CUdeviceptr* address) {
  capture& active = *stream->capturing;
  if (active.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  const auto* const source = machine_.pools->find(pool);
  const int device = source == nullptr ? stream->device : source->device();
  if (bytes == 0 || device < 0) return CUDA_ERROR_INVALID_VALUE;
  const auto rights = source == nullptr ? std::vector<CUmemAccessDesc>{}
                                        : rights_now(*source, machine_.devices.size());
  std::vector<CUgraphNode>& next = active.at(*stream).next;
  CUgraphNode node = nullptr;
  const CUresult answer =
      add_allocation(*active.building, places_of(next), device, bytes, rights, &node, address);
  if (answer == CUDA_SUCCESS) next = {node};
  return answer;
}

CUresult graph_set::capture_free(const std::shared_ptr<stream_state>& stream, CUdeviceptr address) {
  capture& active = *stream->capturing;
  if (active.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<CUgraphNode>& next = active.at(*stream).next;
  CUgraphNode node = nullptr;
  const CUresult answer = add_free(*active.building, places_of(next), address, &node);
  if (answer == CUDA_SUCCESS) next = {node};
  return answer;
}

}}}  // namespace weir::v0::sim
