// SPDX-License-Identifier: Apache-2.0
// Graphs: their nodes, making them executable, launching them.
#include "sim/graphs.hpp"

#include <algorithm>
#include <utility>

#include "sim/dispatch.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

graph_set::graph_set(state& machine) : memory{machine}, machine_{machine} {}

graph_set::~graph_set() {
  // A capture and its streams point at each other.
  while (!captures_.empty()) close(*captures_.back());
}

// --- Nodes --------------------------------------------------------------------------------------

std::shared_ptr<graph> graph_set::make_graph() {
  auto created = std::make_shared<graph>();
  created->id = next_graph_id_++;
  return created;
}

CUgraphNode graph_set::append(graph& to, node_content content, std::vector<std::size_t> after) {
  auto node = std::make_shared<graph_node>();
  node->owner = &to;
  node->place = to.nodes.size();
  node->content = std::move(content);
  node->after = std::move(after);
  node->handle = node_handles.insert(node);
  to.nodes.push_back(node);
  return node->handle;
}

bool graph_set::places(const graph& owner, const CUgraphNode* nodes, std::size_t count,
                       std::vector<std::size_t>& places) const {
  if (count != 0 && nodes == nullptr) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const graph_node* const node = node_handles.find(nodes[i]);
    if (node == nullptr || node->owner != &owner) return false;
    if (std::find(places.begin(), places.end(), node->place) != places.end()) return false;
    places.push_back(node->place);
  }
  return true;
}

CUresult graph_set::add_allocation(graph& to, std::vector<std::size_t> after, int device,
                                   std::size_t bytes, const std::vector<CUmemAccessDesc>& also_for,
                                   CUgraphNode* node, CUdeviceptr* address) {
  std::vector<CUmemAccess_flags> rights(machine_.devices.size(), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  for (const CUmemAccessDesc& access : also_for) {
    rights[static_cast<std::size_t>(access.location.id)] = access.flags;
  }
  rights[static_cast<std::size_t>(device)] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const auto allocated = memory.create(to.id, device, bytes, std::move(rights));
  if (!allocated) return CUDA_ERROR_OUT_OF_MEMORY;
  *node = append(
      to, {.task = graph_memory::allocating(*allocated), .device = device, .memory = allocated},
      std::move(after));
  *address = allocated->address;
  return CUDA_SUCCESS;
}

CUresult graph_set::add_free(graph& from, std::vector<std::size_t> after, CUdeviceptr address,
                             CUgraphNode* node) {
  const auto allocated = memory.find(address);
  if (!allocated || allocated->freed_in != 0) return CUDA_ERROR_INVALID_VALUE;
  if (allocated->owner() == from.id && allocated->freed_outside) return CUDA_ERROR_INVALID_VALUE;
  allocated->freed_in = from.id;
  *node = append(from,
                 {.task = graph_memory::freeing(*allocated),
                  .device = allocated->block->device,
                  .memory = allocated},
                 std::move(after));
  return CUDA_SUCCESS;
}

void graph_set::dismantle(graph& target) {
  for (const auto& node : target.nodes) {
    // What another graph allocated can be freed in a graph again.
    const auto& freed = node->content.memory;
    if (freed && freed->freed_in == target.id && freed->owner() != target.id) freed->freed_in = 0;
    node_handles.erase(node->handle);
  }
  target.nodes.clear();
  release(std::exchange(target.objects, {}));
  memory.sweep();
}

// --- Plans --------------------------------------------------------------------------------------

namespace {

void choose_lanes(plan& schedule) {
  std::vector<std::size_t> end_of_lane;
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    step& each = schedule.steps[i];
    const auto continued = std::find_if(each.after.begin(), each.after.end(), [&](std::size_t b) {
      const step& before = schedule.steps[b];
      return end_of_lane[before.lane] == b && before.content.device == each.content.device;
    });
    if (continued != each.after.end()) {
      each.lane = schedule.steps[*continued].lane;
      end_of_lane[each.lane] = i;
    } else {
      each.lane = end_of_lane.size();
      end_of_lane.push_back(i);
      schedule.lane_devices.push_back(each.content.device);
    }
  }
}

}  // namespace

bool plan::has_memory_nodes() const noexcept {
  return std::any_of(steps.begin(), steps.end(),
                     [](const step& each) { return each.content.memory != nullptr; });
}

std::shared_ptr<const plan> make_plan(const graph& from) {
  auto schedule = std::make_shared<plan>();
  for (const auto& node : from.nodes) {  // a step each, at the same places
    std::vector<std::size_t> after = node->after;
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    schedule->steps.push_back({node->content, std::move(after)});
  }
  choose_lanes(*schedule);
  return schedule;
}

// --- Executable graphs --------------------------------------------------------------------------

CUresult graph_set::instantiate(const std::shared_ptr<graph>& from, unsigned long long flags,
                                CUgraphExec* exec) {
  auto steps = make_plan(*from);
  if (steps->has_memory_nodes() && !from->instance.expired()) return CUDA_ERROR_NOT_SUPPORTED;
  auto instance = std::make_shared<graph_exec>();
  for (const int device : steps->lane_devices)
    instance->lanes.push_back(machine_.flow.make_lane(device));
  instance->steps = std::move(steps);
  instance->flags = flags;
  instance->objects = from->objects;
  for (const object_count& each : instance->objects) each.object->references += each.count;
  from->instance = instance;
  instance->handle = *exec = exec_handles.insert(instance);
  return CUDA_SUCCESS;
}

void graph_set::destroy(const std::shared_ptr<graph_exec>& exec) {
  // A launch on its way keeps what the graph keeps alive until it is through.
  const bool pending = exec->last && !exec->last->is_met();
  if (pending && !exec->objects.empty()) {
    if (exec->lanes.empty())
      exec->lanes.push_back(machine_.flow.make_lane(exec->last->stream->device));
    work release_later{.label = "release of user objects", .host_function = true};
    release_later.body = [this, objects = std::exchange(exec->objects, {})] {
      machine_lock guard{machine_};
      release(objects);
      run_destructors(guard.lock());
      return CUDA_SUCCESS;
    };
    machine_.flow.enqueue(exec->lanes.front(), std::move(release_later), {*exec->last});
  }
  release(std::exchange(exec->objects, {}));
  for (const auto& lane : exec->lanes) machine_.flow.retire(lane);
  exec->lanes.clear();
  exec->steps = nullptr;
  memory.sweep();
}

// --- Launching ----------------------------------------------------------------------------------

namespace {

bool allocates(const step& each) { return each.content.task.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
/// Whether the step frees what another graph has allocated.
bool frees_foreign(const step& each) {
  return each.content.task.type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
         each.content.memory->owner() != each.content.memory->freed_in;
}

}  // namespace

CUresult graph_set::prepare_memory(const graph_exec& exec) {
  const bool auto_free = (exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (const step& each : exec.steps->steps) {
    const auto& allocated = each.content.memory;
    if (allocates(each) && allocated->live && !auto_free) return CUDA_ERROR_INVALID_VALUE;
    if (frees_foreign(each) && !allocated->live) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const step& each : exec.steps->steps) {
    if (allocates(each) && !memory.attach(*each.content.memory->block))
      return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

void graph_set::free_leftovers(const graph_exec& exec,
                               const std::shared_ptr<stream_state>& stream) {
  for (const step& each : exec.steps->steps) {
    const auto& allocated = each.content.memory;
    if (allocates(each) && allocated->live)
      machine_.flow.enqueue(stream, graph_memory::freeing(*allocated));
  }
}

void graph_set::enqueue_steps(graph_exec& exec, const std::shared_ptr<stream_state>& stream) {
  timeline& flow = machine_.flow;
  const moment launch_moment = flow.enqueue(stream, {.label = "graph launch"});
  const dependency start{stream, stream->tail()};

  const auto& steps = exec.steps->steps;
  std::vector<moment> when(steps.size());
  std::vector<std::uint64_t> sequence(steps.size());
  std::vector<bool> started(exec.lanes.size(), false);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const step& each = steps[i];
    const auto& lane = exec.lanes[each.lane];
    lane->launched_on = stream->id;
    lane->name = stream->name;
    std::vector<dependency> waits;
    if (!started[each.lane]) {
      started[each.lane] = true;
      lane->clock.learn(launch_moment);
      waits.push_back(start);
    }
    for (const std::size_t before : each.after) {
      if (steps[before].lane == each.lane) continue;
      lane->clock.learn(when[before]);
      waits.push_back({exec.lanes[steps[before].lane], sequence[before]});
    }
    if (!each.content.event) {
      when[i] = flow.enqueue(lane, each.content.task, std::move(waits));
    } else {
      event_state& event = *each.content.event;
      flow.enqueue(lane, {.label = "graph event"}, std::move(waits));
      if (each.content.task.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
        event.captured = nullptr;
        event.captured_nodes.clear();
        flow.record(event, lane);
      } else {
        flow.wait(lane, event);
      }
      when[i] = lane->clock.now();
    }
    sequence[i] = lane->tail();
  }

  std::vector<dependency> ends;
  for (const auto& lane : exec.lanes) {
    stream->clock.learn(lane->clock.now());
    ends.push_back({lane, lane->tail()});
  }
  exec.last_when = flow.enqueue(stream, {.label = "graph end"}, std::move(ends));
  exec.last = dependency{stream, stream->tail()};
}

void graph_set::settle_memory(const graph_exec& exec) {
  for (const step& each : exec.steps->steps) {
    const auto& allocated = each.content.memory;
    if (!allocated) continue;
    allocated->block->used_by(*exec.last);
    allocated->set_live(allocates(each));  // until a later step frees it
  }
}

CUresult graph_set::launch(const std::shared_ptr<graph_exec>& exec,
                           const std::shared_ptr<stream_state>& stream) {
  if (stream->capturing) return misuse(stream);
  if (const CUresult failure = prepare_memory(*exec); failure != CUDA_SUCCESS) return failure;
  if (exec->last) machine_.flow.wait(stream, *exec->last, exec->last_when);
  free_leftovers(*exec, stream);
  enqueue_steps(*exec, stream);
  settle_memory(*exec);
  return CUDA_SUCCESS;
}

bool graph_set::free_graph_allocation(CUdeviceptr address,
                                      const std::shared_ptr<stream_state>& stream) {
  const auto allocated = memory.find(address);
  if (!allocated || !allocated->live) return false;
  if (stream) {
    machine_.flow.enqueue(stream, graph_memory::freeing(*allocated));
    allocated->block->used_by({stream, stream->tail()});
  } else {
    memory.free_by_host(*allocated);
  }
  allocated->freed_outside = true;
  allocated->set_live(false);
  return true;
}

void graph_set::reset(int device, std::unique_lock<std::mutex>& lock) {
  const auto ongoing = captures_;
  for (const auto& each : ongoing) {
    const bool uses_device =
        std::any_of(each->members.begin(), each->members.end(),
                    [&](const capture::member& m) { return m.stream->device == device; });
    if (uses_device) close(*each);
  }
  std::vector<std::shared_ptr<graph_exec>> ended;
  exec_handles.for_each([&](const graph_exec& each) {
    const auto& lanes = each.lanes;
    const bool uses_device = std::any_of(lanes.begin(), lanes.end(),
                                         [&](const auto& lane) { return lane->device == device; });
    if (uses_device) ended.push_back(exec_handles.share(each.handle));
  });
  for (const auto& each : ended) {
    exec_handles.erase(each->handle);
    destroy(each);
  }
  memory.reset(device);
  run_destructors(lock);
}

// --- User objects -------------------------------------------------------------------------------

void graph_set::release(const std::shared_ptr<user_object>& object, std::uint64_t count) {
  object->references -= count;
  if (object->references != 0) return;
  object_handles.erase(object->handle);
  doomed_.push_back(object);
}

void graph_set::release(const object_counts& objects) {
  for (const object_count& each : objects) release(each.object, each.count);
}

void graph_set::run_destructors(std::unique_lock<std::mutex>& lock) {
  if (doomed_.empty()) return;
  const auto objects = std::exchange(doomed_, {});
  lock.unlock();
  {
    const host_function_scope no_driver_calls;
    for (const auto& object : objects) object->destroy(object->pointer);
  }
  lock.lock();
}

}}}  // namespace weir::v0::sim
