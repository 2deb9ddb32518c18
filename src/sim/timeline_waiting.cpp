// SPDX-License-Identifier: Apache-2.0
// The timeline: waiting for streams, events and devices on the calling thread.
#include <algorithm>
#include <chrono>
#include <vector>

#include "sim/sharing.hpp"
#include "sim/state.hpp"
#include "sim/timeline.hpp"

namespace weir { inline namespace v0 { namespace sim {

bool timeline::run_until(const std::function<bool()>& done, std::unique_lock<std::mutex>& lock) {
  while (!done()) {
    if (machine_.down) return false;
    if (step_before(time_point::max(), lock)) continue;
    // What is waited for hangs on something outside: a held stream, a host function in another
    // thread, another process, a flag in memory. Some of these give no notice, hence the timeout.
    ++waiting_threads_;
    changed_.wait_for(lock, std::chrono::milliseconds{1});
    --waiting_threads_;
  }
  return true;
}

CUresult timeline::obstacle(const stream_state& stream) const {
  const auto& devices = machine_.devices;
  const bool all_well = std::all_of(devices.begin(), devices.end(), [](const device_state& each) {
    return each.sticky == CUDA_SUCCESS && !each.lost;
  });
  if (all_well) return CUDA_SUCCESS;
  std::vector<const stream_state*> ahead{&stream};
  for (std::size_t i = 0; i < ahead.size(); ++i) {
    const stream_state& each = *ahead[i];
    if (const CUresult failure = machine_.health(each.device); failure != CUDA_SUCCESS) {
      return failure;
    }
    if (each.queue.empty() || !each.queue.front().details) continue;
    for (const dependency& wait : each.queue.front().details->waits) {
      const stream_state* const next = wait.stream.get();
      const bool is_new = std::find(ahead.begin(), ahead.end(), next) == ahead.end();
      if (is_new && !wait.is_met()) ahead.push_back(next);
    }
  }
  return CUDA_SUCCESS;
}

CUresult timeline::unfinished(const stream_state& stream) const {
  const CUresult failure = obstacle(stream);
  return failure != CUDA_SUCCESS ? failure : CUDA_ERROR_NOT_READY;
}

// --- Streams -------------------------------------------------------------------------------------

std::vector<timeline::target> timeline::targets_of(const std::shared_ptr<stream_state>& stream) {
  std::vector<target> all;
  // "When an action is taken in the legacy stream [...], the legacy stream first waits on all
  // blocking streams" (CUDA driver API, "Stream synchronization behavior"). cuStreamSynchronize and
  // cuStreamQuery use "standard default stream semantics", so they cover those streams, too.
  if (stream->is_legacy) {
    for (const auto& other : streams) {
      if (other->device == stream->device && other->is_blocking()) all.push_back(tail_of(other));
    }
  }
  all.push_back(tail_of(stream));
  return all;
}

CUresult timeline::wait_for(const target& place, std::unique_lock<std::mutex>& lock) {
  const stream_state& stream = *place.end.stream;
  run_until([&] { return place.end.is_met() || obstacle(stream) != CUDA_SUCCESS; }, lock);
  if (!place.end.is_met()) return machine_.down ? CUDA_ERROR_DEINITIALIZED : obstacle(stream);
  machine_.clock = std::max(machine_.clock, stream.last_end);
  host_learns(place.when);
  return machine_.health(stream.device);
}

CUresult timeline::synchronize(const std::shared_ptr<stream_state>& stream,
                               std::unique_lock<std::mutex>& lock) {
  if (!stream->is_legacy) return wait_for(tail_of(stream), lock);
  for (const target& each : targets_of(stream)) {
    if (const CUresult failure = wait_for(each, lock); failure != CUDA_SUCCESS) return failure;
  }
  learn_departed(stream->device, true);
  return machine_.health(stream->device);
}

CUresult timeline::query(const std::shared_ptr<stream_state>& stream) {
  if (!stream->is_legacy) {
    if (stream->completed < stream->tail()) return unfinished(*stream);
    host_learns(stream->clock.now());
    return CUDA_SUCCESS;
  }
  const std::vector<target> all = targets_of(stream);
  for (const target& each : all) {
    if (!each.end.is_met()) return unfinished(*each.end.stream);
  }
  for (const target& each : all) host_learns(each.when);
  learn_departed(stream->device, true);
  return CUDA_SUCCESS;
}

CUresult timeline::synchronize_device(int device, std::unique_lock<std::mutex>& lock) {
  std::vector<target> all;
  for (const auto& stream : streams) {
    if (stream->device == device) all.push_back(tail_of(stream));
  }
  for (const target& each : all) {
    if (const CUresult failure = wait_for(each, lock); failure != CUDA_SUCCESS) return failure;
  }
  learn_departed(device, false);
  return machine_.health(device);
}

void timeline::learn_departed(int device, bool only_blocking) {
  for (const departed& former : departed_) {
    if (former.device == device && (former.is_blocking || !only_blocking)) host_learns(former.last);
  }
  std::erase_if(departed_,
                [&](const departed& former) { return host.now().includes(former.last.at); });
}

// --- Events --------------------------------------------------------------------------------------

bool timeline::recorded_here(const event_state& event) noexcept {
  return event.recorded && (!event.shared || event.shared->recorded() == event.last_shared_record);
}

CUresult timeline::synchronize(event_state& event, std::unique_lock<std::mutex>& lock) {
  if (event.shared && !recorded_here(event)) {
    const std::uint64_t number = event.shared->recorded();
    run_until([&] { return event.shared->is_complete(number); }, lock);
    if (event.recorded) host_learns(event.when);
    return machine_.down ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
  }
  if (!event.recorded) return machine_.health(event.device);
  const dependency recorded = *event.recorded;
  const moment when = event.when;
  const auto end = event.end;
  run_until([&] { return recorded.is_met() || obstacle(*recorded.stream) != CUDA_SUCCESS; }, lock);
  if (!recorded.is_met()) {
    return machine_.down ? CUDA_ERROR_DEINITIALIZED : obstacle(*recorded.stream);
  }
  if (end) machine_.clock = std::max(machine_.clock, *end);
  host_learns(when);
  return machine_.health(recorded.stream->device);
}

CUresult timeline::query(const event_state& event) {
  if (event.shared && !recorded_here(event)) {
    if (!event.shared->is_complete(event.shared->recorded())) return CUDA_ERROR_NOT_READY;
  } else if (!event.complete()) {
    return unfinished(*event.recorded->stream);
  }
  if (event.recorded) host_learns(event.when);
  return CUDA_SUCCESS;
}

// --- Devices -------------------------------------------------------------------------------------

void timeline::discard(int device, std::unique_lock<std::mutex>& lock) {
  const auto in_host_function = [&](const std::shared_ptr<stream_state>& each) {
    return each->device == device && !each->queue.empty() && each->queue.front().details &&
           each->queue.front().details->running;
  };
  while (std::any_of(streams.begin(), streams.end(), in_host_function)) {
    ++waiting_threads_;
    changed_.wait_for(lock, std::chrono::milliseconds{1});
    --waiting_threads_;
  }
  quiet_until_ = time_point::min();
  const auto all = streams;
  for (const auto& stream : all) {
    if (stream->device != device) continue;
    stream->queue.clear();
    stream->completed = stream->tail();
    stream->busy = false;
    std::erase(busy_, stream.get());
    drop_if_done(*stream);
  }
}

bool timeline::idle(int device) const {
  return std::none_of(streams.begin(), streams.end(), [&](const auto& stream) {
    return stream->device == device && !stream->queue.empty();
  });
}

}}}  // namespace weir::v0::sim
