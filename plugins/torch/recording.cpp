// SPDX-License-Identifier: Apache-2.0
// torch's histories, and recordings to a .weirtrace.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/ApproximateClock.h>

#include <utility>

#include "allocator.hpp"
#include "errors.hpp"

namespace weir_torch {

// --- Histories ----------------------------------------------------------------------------------

bool weir_allocator::isHistoryEnabled() {
  const std::lock_guard lock{mutex_};
  return history_settings_.enabled;
}

void weir_allocator::recordHistory(bool enabled, torch_cuda::CreateContextFn stack_recorder,
                                   std::size_t max_entries, torch_cuda::RecordContext stack_level,
                                   bool clear, const std::vector<std::string>& skipped_actions) {
  TORCH_CHECK(stack_level == torch_cuda::RecordContext::NEVER || stack_recorder != nullptr,
              "a memory history with stacks needs a context recorder");
  for (const std::string& name : skipped_actions)
    if (!parse_action(name))
      TORCH_WARN("weir: \"", name, "\" is not an action of a history; it is ignored");
  const std::lock_guard lock{mutex_};
  history_settings_ = {.enabled = enabled,
                       .stack_recorder = stack_recorder,
                       .max_entries = max_entries,
                       .stack_level = stack_level,
                       .clear = clear,
                       .skipped_actions = skipped_actions};
  annotations_.configure(enabled, max_entries, clear);
  for_each_device([&](device_state& state) {
    state.history.configure(history_settings_);
    const std::lock_guard state_lock{state.mutex};
    state.update_history_observer();
  });
}

void weir_allocator::attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) {
  const std::lock_guard lock{mutex_};
  trackers_.push_back(tracker);
  for_each_device([&](device_state& state) {
    state.history.attach(tracker);
    const std::lock_guard state_lock{state.mutex};
    state.update_history_observer();
  });
}

void weir_allocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& fields) {
  if (!annotations_.enabled()) return;
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  annotation entry{device, c10::getApproximateTime()};
  for (const auto& [name, value] : fields) entry.recordUserMetadata(name, value);
  annotations_.add(std::move(entry));
}

void weir_allocator::pushCompileContext(std::string& text) {
  if (annotations_.enabled()) allocation_history::push_compile_context(text);
}

void weir_allocator::popCompileContext() {
  if (annotations_.enabled()) allocation_history::pop_compile_context();
}

void weir_allocator::setUserMetadata(const std::string& text) {
  allocation_history::set_metadata(text);
}

std::string weir_allocator::getUserMetadata() { return allocation_history::metadata(); }

void weir_allocator::annotateMemory(const void* pointer, const std::string& text) {
  device_state* const state = find_owner(pointer);
  TORCH_CHECK(state != nullptr && state->memory.size_of(pointer),
              "annotateMemory: no live allocation found at pointer ", pointer);
  if (!state->history.has_readers()) return;
  state->history.annotate(trace_of(*state, pointer),
                          state->history.capture_stack(torch_cuda::RecordContext::ALLOC), text);
}

context weir_allocator::getContextForPointer(const void* pointer) {
  const device_state* const state = find_owner(pointer);
  return state == nullptr ? nullptr
                          : state->history.stack_of(reinterpret_cast<std::uint64_t>(pointer));
}

// --- Recordings ---------------------------------------------------------------------------------

void weir_allocator::record(c10::DeviceIndex device, const std::string& path, bool stacks) {
  device_state& state = state_of(device);
  const std::lock_guard lock{state.mutex};
  TORCH_CHECK(state.recording == nullptr, "a recording of GPU ", static_cast<int>(device),
              " is already active");
  state.recording =
      checked(weir::recorder::start(path, {.stacks = stacks,
                                           .device = std::string{state.gpu.name()},
                                           .device_capacity = state.gpu.total_memory()}));
  state.recording_observer = state.memory.add_observer(*state.recording).value();
}

void weir_allocator::stop_recording(c10::DeviceIndex device) {
  device_state* const state = find_state(device);
  if (state == nullptr) return;
  std::unique_ptr<weir::recorder> ended;
  {
    const std::lock_guard lock{state->mutex};
    state->recording_observer.close();
    std::swap(ended, state->recording);
  }
  if (ended != nullptr) checked(ended->close());
}

void weir_allocator::mark(const std::string& text) {
  for_each_device([&](device_state& state) {
    const std::lock_guard lock{state.mutex};
    if (state.recording != nullptr) state.recording->marker(text);
  });
}

}  // namespace weir_torch
