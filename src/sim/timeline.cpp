// SPDX-License-Identifier: Apache-2.0
// Streams, events and the scheduler.
#include "sim/timeline.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "sim/dispatch.hpp"
#include "sim/managed.hpp"
#include "sim/memory.hpp"
#include "sim/sharing.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

/// Set while this thread is inside a host function: what it does happens at that moment.
thread_local const moment* host_function_moment = nullptr;

}  // namespace

timeline::timeline(state& machine) : machine_{machine}, random_{machine.options.seed} {
  legacy_.resize(machine.options.devices.size());
  gathering_.resize(machine.options.devices.size());
}

/// What is queued holds the streams that it waits for; the lanes of a launch, and the stream that
/// it was queued on, wait for each other.
timeline::~timeline() {
  for (const auto& each : streams) each->queue.clear();
}

std::uint64_t timeline::random(std::uint64_t below) noexcept {
  // splitmix64: small, and every seed is a good one.
  std::uint64_t z = (random_ += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return ((z >> 32) * below) >> 32;  // scaled, not divided: this runs in every driver call
}

// --- Streams -------------------------------------------------------------------------------------

std::shared_ptr<stream_state> timeline::make_stream(int device, unsigned flags, int priority) {
  auto stream = std::make_shared<stream_state>();
  stream->id = next_id_++;
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority;
  stream->clock = actors.join(host.now());
  streams.push_back(stream);
  return stream;
}

std::shared_ptr<stream_state> timeline::make_lane(int device) {
  auto stream = make_stream(device, CU_STREAM_NON_BLOCKING, 0);
  stream->lane = true;
  return stream;
}

std::shared_ptr<stream_state> timeline::legacy(int device) {
  auto& stream = legacy_[static_cast<std::size_t>(device)];
  if (!stream) {
    stream = make_stream(device, CU_STREAM_DEFAULT, 0);
    stream->is_legacy = true;
  }
  return stream;
}

void timeline::retire(const std::shared_ptr<stream_state>& stream) {
  stream->destroyed = true;
  drop_if_done(*stream);
}

void timeline::drop_if_done(stream_state& stream) {
  if (!stream.destroyed || !stream.queue.empty()) return;
  const auto place = std::find_if(streams.begin(), streams.end(),
                                  [&](const auto& each) { return each.get() == &stream; });
  if (place == streams.end()) return;
  actors.leave(stream.clock);
  const moment& last = stream.clock.now();
  if (!host.now().includes(last.at)) {
    departed_.push_back({stream.device, stream.is_blocking(), last});
  }
  managed_detach(machine_, stream);
  streams.erase(place);
}

// --- Queueing ------------------------------------------------------------------------------------

operation& timeline::append(const std::shared_ptr<stream_state>& stream,
                            std::vector<dependency> waits) {
  stream_state& s = *stream;
  learn_from_host(s);
  if (!s.lane) order_behind_legacy(stream, waits);
  // What needs host memory comes first: an operation that is queued must get its turn.
  std::unique_ptr<operation_details> details;
  if (!waits.empty()) {
    details = std::make_unique<operation_details>();
    details->waits = std::move(waits);
  }
  if (!s.busy) busy_.reserve(busy_.size() + 1);
  operation& op = s.queue.emplace_back();
  s.clock.tick();
  op.sequence = s.next++;
  op.queued = machine_.clock;
  op.details = std::move(details);
  if (!s.busy) {
    s.busy = true;
    busy_.push_back(&s);
    quiet_until_ = time_point::min();
  }
  return op;
}

moment timeline::enqueue(const std::shared_ptr<stream_state>& stream, work task,
                         std::vector<dependency> waits) {
  operation& op = append(stream, std::move(waits));
  const moment when = stream->clock.now();
  if (!task.accesses.empty()) check_accesses(*stream, task, when, op.sequence);
  op.takes = task.takes;
  // An allocation or free does not touch the bytes; its range only delimits their lifetime.
  if (task.lifetime) task.accesses.clear();
  if (task.body || task.gate || task.fault != CUDA_SUCCESS || !task.accesses.empty()) {
    operation_details& details = op.detailed();
    details.body = std::move(task.body);
    details.gate = std::move(task.gate);
    details.fault = task.fault;
    details.host_function = task.host_function;
    if (details.host_function) details.when = when;
    details.by_owner = task.by_owner;
    details.accesses = std::move(task.accesses);
  }
  return when;
}

moment timeline::mark(const std::shared_ptr<stream_state>& stream) {
  learn_from_host(*stream);
  std::vector<dependency> waits;
  if (!stream->lane) order_behind_legacy(stream, waits);
  if (!waits.empty()) return enqueue(stream, {}, std::move(waits));
  return stream->clock.tick();
}

void timeline::learn_from_host(stream_state& stream) {
  if (stream.host_version_seen == host.version()) return;
  stream.clock.learn(host.now());
  stream.host_version_seen = host.version();
}

void timeline::order_behind_legacy(const std::shared_ptr<stream_state>& stream,
                                   std::vector<dependency>& waits) {
  const auto& legacy = legacy_[static_cast<std::size_t>(stream->device)];
  if (!legacy) return;
  const auto wait_for = [&](const std::shared_ptr<stream_state>& other) {
    if (other->tail() > other->completed) waits.push_back({other, other->tail()});
    stream->clock.learn(other->clock.now());
  };
  if (stream->is_legacy) {
    for (const auto& other : streams) {
      if (other->device == stream->device && other->is_blocking()) wait_for(other);
    }
    for (const departed& former : departed_) {
      if (former.device == stream->device && former.is_blocking) stream->clock.learn(former.last);
    }
  } else if (stream->is_blocking() && stream->legacy_seen != legacy->clock.version()) {
    wait_for(legacy);
    stream->legacy_seen = legacy->clock.version();
  }
}

void timeline::record(event_state& event, const std::shared_ptr<stream_state>& stream) {
  operation& mark = append(stream, {});
  if (event.shared) {
    event.last_shared_record = event.shared->next_record();
    mark.detailed().body = [shared = event.shared, number = event.last_shared_record] {
      shared->complete(number);
      return CUDA_SUCCESS;
    };
  }
  if ((event.flags & CU_EVENT_DISABLE_TIMING) == 0) {
    event.end = std::make_shared<time_point>();
    mark.detailed().end = event.end;
  }
  event.when = stream->clock.now();
  if (event.recorded && event.recorded->stream == stream) {
    event.recorded->sequence = mark.sequence;
  } else {
    event.recorded = dependency{stream, mark.sequence};
  }
  // Nothing is ahead of it: a device needs no step of the program's to get there.
  const bool alone = stream->queue.size() == 1 && !mark.details && !stream->held;
  if (alone && machine_.options.mode == progress::manual) finish(*stream, mark.sequence);
}

void timeline::record_all(event_state& event, int device) {
  auto& lane = gathering_[static_cast<std::size_t>(device)];
  if (!lane) lane = make_lane(device);
  std::vector<dependency> waits;
  for (const auto& other : streams) {
    if (other->device != device || other == lane) continue;
    if (other->tail() > other->completed) waits.push_back({other, other->tail()});
    lane->clock.learn(other->clock.now());
  }
  for (const departed& former : departed_)
    if (former.device == device) lane->clock.learn(former.last);
  if (!waits.empty()) enqueue(lane, {}, std::move(waits));
  record(event, lane);
}

void timeline::wait(const std::shared_ptr<stream_state>& stream, const event_state& event) {
  if (event.shared && !recorded_here(event)) {
    // Another process has recorded it last: its counters tell, not our queue.
    work gate{.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT};
    gate.gate = [shared = event.shared, number = event.shared->recorded()] {
      return shared->is_complete(number);
    };
    if (event.recorded) stream->clock.learn(event.when);
    enqueue(stream, std::move(gate));
  } else if (event.recorded) {
    wait(stream, *event.recorded, event.when);
  }
}

void timeline::wait(const std::shared_ptr<stream_state>& stream, dependency on,
                    const moment& when) {
  stream->clock.learn(when);
  std::vector<dependency> waits;
  if (!on.is_met()) waits.push_back(std::move(on));
  enqueue(stream, work{.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT}, std::move(waits));
}

// --- Accesses ------------------------------------------------------------------------------------

bool timeline::allowed(int device, bool by_owner, const access& request, stage when) const {
  memory& space = machine_.space;
  if (!by_owner) return space.permits(device, request, when);
  return space.each(request.extent.address, request.extent.size,
                    [&](region& area, std::uint64_t address, std::uint64_t size) {
                      const int owner = area.device < 0 ? device : area.device;
                      return space.permits(owner, {{address, size}, request.writes}, when);
                    });
}

void timeline::check_accesses(const stream_state& stream, work& task, const moment& when,
                              std::uint64_t sequence) {
  if (!machine_.options.check_hazards) return;
  const std::uint64_t step = ++machine_.steps;
  for (const access& each : task.accesses) {
    if (each.extent.size == 0) continue;
    const auto accessor = std::make_shared<const party>(
        party{.label = task.label,
              .stream = stream_id{stream.lane ? stream.launched_on : stream.id},
              .order = sequence,
              .extent = each.extent,
              .writes = each.writes,
              .queued = machine_.clock,
              .action = task.lifetime ? party_action::lifetime
                        : stream.lane ? party_action::replayed
                                      : party_action::access,
              .step = step,
              .stream_name = stream.name});
    if (!task.lifetime && !allowed(stream.device, task.by_owner, each)) {
      machine_.hazards.report({hazard_kind::bad_access, *accessor, *accessor, each.extent});
      task.fault = CUDA_ERROR_ILLEGAL_ADDRESS;
      continue;
    }
    if (!task.lifetime) {
      machine_.check_blocks(
          each.extent, *accessor,
          stream.lane ? block_book::occasion::launched : block_book::occasion::queued);
    }
    const access_kind kind =
        task.lifetime.value_or(each.writes ? access_kind::write : access_kind::read);
    bool elsewhere = false;
    machine_.space.each(each.extent.address, each.extent.size,
                        [&](region& area, std::uint64_t address, std::uint64_t size) {
                          area.pages->history.touch(area.offset + (address - area.base), size, kind,
                                                    when, accessor, address, machine_.hazards);
                          const bool owner_does_it = task.by_owner && area.device >= 0;
                          area.uses.add(when, accessor,
                                        task.lifetime   ? no_device
                                        : owner_does_it ? area.device
                                                        : stream.device);
                          elsewhere |= area.managed && attached_elsewhere(machine_, area, stream);
                          return true;
                        });
    if (elsewhere) {
      machine_.hazards.report({hazard_kind::bad_access, *accessor, *accessor, each.extent});
    }
  }
}

// --- The host ------------------------------------------------------------------------------------

void timeline::host_learns(const moment& done) {
  if (host.now().includes(done.at)) return;
  host.learn(done);
  host.tick();  // knowledge counts from a tick on: who includes the tick has learnt this too
}

moment timeline::host_moment() {
  if (host_function_moment != nullptr) return *host_function_moment;
  return host.tick();
}

bool timeline::in_host_function() noexcept { return host_function_moment != nullptr; }

// --- Progress ------------------------------------------------------------------------------------

timeline::readiness timeline::readiness_of(stream_state& stream) const {
  if (stream.held || stream.queue.empty()) return readiness::held_up;
  if (machine_.health(stream.device) != CUDA_SUCCESS) return readiness::held_up;
  const operation_details* const details = stream.queue.front().details.get();
  if (details == nullptr) return readiness::ready;
  if (details->running) return readiness::held_up;
  for (const dependency& wait : details->waits) {
    if (!wait.is_met()) return readiness::behind_another;
  }
  return !details->gate || details->gate() ? readiness::ready : readiness::held_up;
}

time_point timeline::end_of(const stream_state& stream, const operation& op) const {
  time_point start = std::max(stream.last_end, op.queued);
  if (op.details) {
    for (const dependency& wait : op.details->waits) {
      start = std::max(start, wait.stream->last_end);
    }
  }
  const time_point end = start + op.takes;
  return machine_.options.mode == progress::timed ? std::max(end, op.queued + machine_.options.lag)
                                                  : end;
}

stream_state* timeline::choose_by_time(time_point limit) {
  stream_state* first = nullptr;
  time_point first_end = time_point::max();
  bool held_up = false;
  for (stream_state* const stream : busy_) {
    const readiness status = readiness_of(*stream);
    held_up |= status == readiness::held_up;
    if (status != readiness::ready) continue;
    const time_point end = end_of(*stream, stream->queue.front());
    if (end < first_end || !first) {
      first = stream;
      first_end = end;
    }
  }
  if (first && first_end <= limit) return first;
  // What is held up from outside may go on at any time, without a word to us.
  quiet_until_ = held_up ? time_point::min() : first_end;
  return nullptr;
}

stream_state* timeline::choose(time_point limit) {
  const std::size_t count = busy_.size();
  if (count == 0) return nullptr;
  if (machine_.options.mode == progress::timed) return choose_by_time(limit);
  const std::size_t from = count == 1 ? 0 : random(count);
  for (std::size_t i = 0; i < count; ++i) {
    stream_state* const stream = busy_[(from + i) % count];
    if (readiness_of(*stream) == readiness::ready) return stream;
  }
  return nullptr;
}

bool timeline::step_before(time_point limit, std::unique_lock<std::mutex>& lock) {
  stream_state* const stream = choose(limit);
  if (stream == nullptr) return false;
  perform(*stream, lock);
  return true;
}

bool timeline::step(std::unique_lock<std::mutex>& lock) {
  return step_before(time_point::max(), lock);
}

void timeline::make_progress(std::unique_lock<std::mutex>& lock) {
  if (!due()) return;
  switch (machine_.options.mode) {
    case progress::manual:
      return;
    case progress::timed:
      while (step_before(machine_.clock, lock)) {
      }
      return;
    case progress::seeded:
      // More than one on average, so that a program that only queues does not pile work up.
      for (std::uint64_t steps = random(4); steps > 0; --steps) {
        if (!step(lock)) return;
      }
      return;
  }
}

CUresult timeline::do_work(stream_state& stream, operation& op,
                           std::unique_lock<std::mutex>& lock) {
  if (!op.details) return CUDA_SUCCESS;
  operation_details& details = *op.details;
  if (details.fault != CUDA_SUCCESS) return details.fault;
  for (const access& each : details.accesses) {
    // Checked again: what was mapped when the work was queued may be gone now.
    if (!allowed(stream.device, details.by_owner, each, stage::performing)) {
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    machine_.space.each(each.extent.address, each.extent.size,
                        [&](region& area, std::uint64_t address, std::uint64_t size) {
                          if (area.managed) {
                            managed_touch(machine_, area, address, size, stream.device,
                                          each.writes);
                          }
                          return true;
                        });
  }
  if (!details.body) return CUDA_SUCCESS;
  if (!details.host_function) return details.body();

  details.running = true;
  host_function_moment = &details.when;
  lock.unlock();
  CUresult answer = CUDA_SUCCESS;
  {
    const host_function_scope no_driver_calls;
    answer = details.body();
  }
  lock.lock();
  host_function_moment = nullptr;
  details.running = false;
  return answer;
}

void timeline::perform(stream_state& stream, std::unique_lock<std::mutex>& lock) {
  // A deque keeps the place of its front while others append: `op` stays valid even where the lock
  // is given up for a host function.
  operation& op = stream.queue.front();
  const time_point end = end_of(stream, op);
  const CUresult answer = do_work(stream, op, lock);
  stream.last_end = end;
  if (machine_.options.mode == progress::timed) machine_.clock = std::max(machine_.clock, end);
  quiet_until_ = time_point::min();
  if (op.details && op.details->end) *op.details->end = end;
  if (answer != CUDA_SUCCESS) {
    machine_.fault(stream.device, answer);
    changed_.notify_all();
    return;
  }
  finish(stream, op.sequence);
  if (stream.queue.empty()) drop_if_done(stream);
  if (waiting_threads_ > 0) changed_.notify_all();
}

void timeline::finish(stream_state& stream, std::uint64_t sequence) {
  stream.completed = sequence;
  stream.queue.pop_front();
  if (!stream.queue.empty()) return;
  stream.busy = false;
  std::erase(busy_, &stream);
}

}}}  // namespace weir::v0::sim
