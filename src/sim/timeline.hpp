// SPDX-License-Identifier: Apache-2.0
// Streams, events and the scheduler: what is queued, in which order, and when it happens.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/clock.hpp"
#include "sim/handles.hpp"
#include "sim/memory.hpp"
#include "sim/shadow.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

class state;
class capture;       // capture.hpp: one capture of streams into a graph
class shared_event;  // sharing.hpp: an event that another process can see
struct stream_state;

/// What kind of node a piece of work becomes when it is captured.
using node_type = driver::CUgraphNodeType;

/// One piece of device work as a call describes it, before it is queued or captured. Copyable: a
/// graph queues its nodes again at each launch.
struct work {
  node_type type = driver::CU_GRAPH_NODE_TYPE_EMPTY;
  std::string label{};
  std::vector<access> accesses{};
  /// Does the work when its turn comes; an error stops the device as a fault in a kernel would.
  /// Runs under the machine's lock, except for host functions.
  std::function<driver::CUresult()> body{};
  duration takes{0};
  bool host_function = false;
  /// Further conditions for starting, polled: a flag in memory, an event of another process.
  std::function<bool()> gate{};
  /// Which device does the work, for access rights: the stream's, or for copies and fills every
  /// device that owns a side.
  bool by_owner = false;
  /// Set where an access was wrong already when it was queued: the device stops with this.
  driver::CUresult fault = driver::CUDA_SUCCESS;
  /// What the work does to the memory it names in `accesses`, where that is more than a read or a
  /// write: a stream-ordered allocation or free.
  std::optional<access_kind> lifetime{};
};

/// "That stream has got as far as its n-th operation."
struct dependency {
  std::shared_ptr<stream_state> stream;
  std::uint64_t sequence = 0;
  [[nodiscard]] bool is_met() const noexcept;
};

/// What an operation has that is more than a mark in its stream.
struct operation_details {
  std::vector<dependency> waits{};
  std::function<driver::CUresult()> body{};
  std::function<bool()> gate{};
  moment when{};  // of host functions, for what they do inside
  driver::CUresult fault = driver::CUDA_SUCCESS;
  bool host_function = false;
  bool running = false;  // a host function that some thread is inside of
  bool by_owner = false;
  /// Must be mapped and granted when the work starts.
  std::vector<access> accesses{};
  std::shared_ptr<time_point> end{};  // where to note the time of completion
};

/// One entry of a stream's queue. Most are bare marks: records of events that keep no time.
struct operation {
  std::uint64_t sequence = 0;
  time_point queued{};
  duration takes{0};
  std::unique_ptr<operation_details> details{};  // null for a bare mark

  [[nodiscard]] operation_details& detailed() {
    if (!details) details = std::make_unique<operation_details>();
    return *details;
  }
};

/// A stream. Its queue holds what has not happened yet; operation `completed` is the last that has.
/// Always: queue.front().sequence == completed + 1, next == completed + queue.size() + 1.
/// Outlives its handle: work queued before a destroy still happens.
struct stream_state {
  std::uint64_t id = 0;
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  bool is_legacy = false;
  bool lane = false;  // of a graph launch; not visible to users, takes no part in legacy ordering
  std::uint64_t launched_on = 0;  // of a lane: the stream of the last launch
  std::string name{};             // machine::name_stream()
  bool held = false;
  bool destroyed = false;
  std::uint64_t next = 1;
  std::uint64_t completed = 0;
  time_point last_end{};
  std::deque<operation> queue{};
  actor_clock clock{};
  std::uint64_t host_version_seen = 0;
  std::uint64_t legacy_seen = 0;  // version of the legacy stream's clock
  bool busy = false;              // in the scheduler's list
  std::shared_ptr<capture> capturing{};

  [[nodiscard]] bool is_blocking() const noexcept {
    return !lane && !is_legacy && (flags & driver::CU_STREAM_NON_BLOCKING) == 0;
  }
  [[nodiscard]] std::uint64_t tail() const noexcept { return next - 1; }
};

inline bool dependency::is_met() const noexcept { return stream->completed >= sequence; }

/// An event: the place in a stream where it was last recorded, if ever.
struct event_state {
  unsigned flags = 0;
  int device = 0;
  std::optional<dependency> recorded{};
  moment when{};
  std::shared_ptr<time_point> end{};  // of the last record, where the event keeps time
  /// The capture the event was last recorded in, until it is recorded outside of one, and the nodes
  /// of that capture it stands for.
  std::shared_ptr<capture> captured{};
  std::vector<driver::CUgraphNode> captured_nodes{};
  std::shared_ptr<shared_event> shared{};  // interprocess events
  std::uint64_t last_shared_record = 0;    // of those: the number of this process's last record

  [[nodiscard]] bool complete() const noexcept { return !recorded || recorded->is_met(); }
};

/// All streams and the scheduler that moves them. Every function needs the machine's lock held;
/// those that wait may give it up while they do.
class timeline {
 public:
  explicit timeline(state& machine);
  ~timeline();

  // --- Streams ---------------------------------------------------------------------------------

  std::shared_ptr<stream_state> make_stream(int device, unsigned flags, int priority);
  /// A stream that only a graph launch knows of.
  std::shared_ptr<stream_state> make_lane(int device);
  /// The handle is gone: the stream goes too, once its work has happened.
  void retire(const std::shared_ptr<stream_state>& stream);
  [[nodiscard]] std::shared_ptr<stream_state> legacy(int device);

  // --- Queueing ----------------------------------------------------------------------------------

  /// Queues `task`, behind everything already in `stream` and behind `waits`. Checks its accesses
  /// against everything queued before, in the order that streams, events and the host define.
  /// Returns the operation's moment. The stream must not be capturing (state::submit takes care of
  /// that).
  moment enqueue(const std::shared_ptr<stream_state>& stream, work task,
                 std::vector<dependency> waits = {});
  /// A place in the stream's order for an action without work of its own: nothing is queued, unless
  /// the legacy stream must be waited for.
  moment mark(const std::shared_ptr<stream_state>& stream);
  void record(event_state& event, const std::shared_ptr<stream_state>& stream);
  /// Behind everything that is queued on any stream of the device.
  void record_all(event_state& event, int device);
  /// Nothing for an event never recorded.
  void wait(const std::shared_ptr<stream_state>& stream, const event_state& event);
  /// Makes `stream` wait for a place in another one; `when` is the moment of that place.
  void wait(const std::shared_ptr<stream_state>& stream, dependency on, const moment& when);

  /// Whether work of `device`, or of whoever owns the memory, may do `request`.
  [[nodiscard]] bool allowed(int device, bool by_owner, const access& request,
                             stage when = stage::queueing) const;

  // --- Waiting, on the calling thread -----------------------------------------------------------

  // They wait for what is queued when they are called. Work that can never happen, because it is
  // behind a device that faulted or is lost, is answered with that device's error.

  /// Waiting for the legacy stream is waiting for all blocking streams of its device, too.
  driver::CUresult synchronize(const std::shared_ptr<stream_state>& stream,
                               std::unique_lock<std::mutex>& lock);
  driver::CUresult synchronize(event_state& event, std::unique_lock<std::mutex>& lock);
  /// All streams of a device.
  driver::CUresult synchronize_device(int device, std::unique_lock<std::mutex>& lock);
  /// The same questions without waiting: CUDA_ERROR_NOT_READY where synchronize() would wait.
  driver::CUresult query(const std::shared_ptr<stream_state>& stream);
  driver::CUresult query(const event_state& event);
  /// Lets work happen until `done`; false if the machine is shut down meanwhile.
  bool run_until(const std::function<bool()>& done, std::unique_lock<std::mutex>& lock);

  // --- Progress ---------------------------------------------------------------------------------

  /// One ready operation, chosen by the seed (or by end time in timed mode); false if none is
  /// ready.
  bool step(std::unique_lock<std::mutex>& lock);
  /// What a driver call lets happen, according to the mode.
  void make_progress(std::unique_lock<std::mutex>& lock);
  /// Whether let_time_pass() could do anything. Driver calls come by the million.
  [[nodiscard]] inline bool due() const noexcept;  // state.hpp
  /// Forgets all work queued on a device; its streams count as having done it. Waits for a host
  /// function that is under way.
  void discard(int device, std::unique_lock<std::mutex>& lock);
  /// Whether nothing is queued on any stream of `device`.
  [[nodiscard]] bool idle(int device) const;
  /// Wakes threads in run_until: something outside the queues has changed.
  void wake_waiters() {
    quiet_until_ = time_point::min();
    changed_.notify_all();
  }
  /// A number in [0, below), from the machine's seed.
  std::uint64_t random(std::uint64_t below) noexcept;

  // --- The host ---------------------------------------------------------------------------------

  /// The host has waited for `done`, or has seen that it is complete.
  void host_learns(const moment& done);
  /// The moment of what the host does now: inside a host function that of its operation.
  moment host_moment();
  /// Whether the calling thread is inside a host function.
  [[nodiscard]] static bool in_host_function() noexcept;

  /// The host as an actor. All host threads are one: their calls happen one after the other, and
  /// what one thread has waited for is finished for all of them.
  actor_clock host{host_actor};
  actor_registry actors{};

  std::vector<std::shared_ptr<stream_state>> streams{};  // every stream with a handle or with work

 private:
  /// Whether the next operation of a stream can happen, and if not, whether only another operation
  /// can change that.
  enum class readiness { ready, behind_another, held_up };
  [[nodiscard]] readiness readiness_of(stream_state& stream) const;
  [[nodiscard]] time_point end_of(const stream_state& stream, const operation& op) const;

  /// The end of a stream's queue, and what the host knows once it is reached.
  struct target {
    dependency end;
    moment when;
  };
  [[nodiscard]] static target tail_of(const std::shared_ptr<stream_state>& stream) {
    return {{stream, stream->tail()}, stream->clock.now()};
  }
  /// What a wait for `stream` is for; the stream itself comes last.
  [[nodiscard]] std::vector<target> targets_of(const std::shared_ptr<stream_state>& stream);
  driver::CUresult wait_for(const target& place, std::unique_lock<std::mutex>& lock);
  /// CUDA_SUCCESS, or the error of the device that keeps `stream` from getting on: its own device,
  /// or one that the first operation of its queue waits for, directly or through other streams.
  [[nodiscard]] driver::CUresult obstacle(const stream_state& stream) const;
  /// What a query of a stream with work left answers.
  [[nodiscard]] driver::CUresult unfinished(const stream_state& stream) const;
  /// Whether no other process has recorded the event since this one did.
  [[nodiscard]] static bool recorded_here(const event_state& event) noexcept;
  /// The host has waited for the streams of `device`: what former ones did is known as well.
  void learn_departed(int device, bool only_blocking);

  /// A new operation at the end of the stream, in order but empty. Without host memory nothing is
  /// queued; a call that fails later leaves a bare mark, which gets its turn.
  operation& append(const std::shared_ptr<stream_state>& stream, std::vector<dependency> waits);
  void learn_from_host(stream_state& stream);
  void order_behind_legacy(const std::shared_ptr<stream_state>& stream,
                           std::vector<dependency>& waits);
  void check_accesses(const stream_state& stream, work& task, const moment& when,
                      std::uint64_t sequence);
  bool step_before(time_point limit, std::unique_lock<std::mutex>& lock);
  [[nodiscard]] stream_state* choose(time_point limit);
  [[nodiscard]] stream_state* choose_by_time(time_point limit);
  void perform(stream_state& stream, std::unique_lock<std::mutex>& lock);
  /// The front of the stream's queue, which has that number, has happened.
  void finish(stream_state& stream, std::uint64_t sequence);
  driver::CUresult do_work(stream_state& stream, operation& op, std::unique_lock<std::mutex>& lock);
  void drop_if_done(stream_state& stream);

  /// What streams that are gone did last, as far as the host does not know of it yet.
  struct departed {
    int device;
    bool is_blocking;
    moment last;
  };

  state& machine_;
  std::vector<stream_state*> busy_;  // with work; `streams` owns them
  /// Timed mode: no operation is complete before this, as things stand.
  time_point quiet_until_ = time_point::min();
  std::vector<std::shared_ptr<stream_state>> legacy_;     // by device; null until first used
  std::vector<std::shared_ptr<stream_state>> gathering_;  // the same, for record_all()
  std::vector<departed> departed_;
  int waiting_threads_ = 0;
  std::condition_variable changed_;
  std::uint64_t random_;
  std::uint64_t next_id_ = 7;
};

}}}  // namespace weir::v0::sim
