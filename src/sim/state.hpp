// SPDX-License-Identifier: Apache-2.0
// The state of a simulated machine: one function a driver call, and the parts they share.
//
// A call arrives through a thunk of the table (dispatch.cpp), which takes the lock, counts, injects
// faults, charges the clock and then runs the member function of the row's name. The parts:
//
//   timeline   streams, events, the scheduler                    timeline.hpp
//   memory     physical pages, addresses, capacity               memory.hpp
//   shadow     who touched which byte, hazards                   shadow.hpp
//   block_book which bytes allocators have handed out            block_book.hpp
//   pool_set   stream-ordered pools                              pools.hpp
//   graph_set  captures, graphs, their launches                  graphs.hpp
//   module_set PTX modules and the kernels behind them           modules.hpp
//   sharing    handles that travel to other processes            sharing.hpp
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "sim/block_book.hpp"
#include "sim/clock.hpp"
#include "sim/handles.hpp"
#include "sim/memory.hpp"
#include "sim/shadow.hpp"
#include "sim/timeline.hpp"
#include "weir/driver/table.hpp"
#include "weir/sim/machine.hpp"

namespace weir { inline namespace v0 { namespace sim {

using namespace driver;  // the driver's own names, in the machine that stands in for it

class pool_set;
class graph_set;
class module_set;
class sharing;

/// One simulated device and its primary context.
struct device_state {
  device_spec spec;
  bool lost = false;
  /// What a fault left behind: every later call that concerns the device answers this.
  CUresult sticky = CUDA_SUCCESS;
  unsigned context_references = 0;
  bool context_ended = false;        ///< there was a context, and there is none now
  std::vector<bool> peer_enabled{};  ///< by ordinal of the peer
  migration_counts migrations{};
};

/// What one host thread is to one machine.
struct thread_state {
  std::vector<CUcontext> contexts;  ///< back() is current
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::map<int, std::shared_ptr<stream_state>> default_streams;  ///< per-thread ones, by device
  std::uint64_t number = 0;                                      ///< unique in the machine
};

class state {
 public:
  explicit state(machine_options settings);
  ~state();
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  // --- One function a row of the table ---------------------------------------------------------
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  CUresult member parameters;
#include "weir/driver/calls.def"

  // --- What every call may need ----------------------------------------------------------------

  /// The lock that the running call holds; for functions that wait.
  [[nodiscard]] std::unique_lock<std::mutex>& lock() const noexcept;
  [[nodiscard]] thread_state& thread();
  [[nodiscard]] bool valid_device(int ordinal) const noexcept {
    return ordinal >= 0 && ordinal < static_cast<int>(devices.size());
  }
  /// The device of the current context, or -1 where the thread has none.
  [[nodiscard]] int current_device();
  [[nodiscard]] CUcontext context_of(int device) const noexcept;
  /// -1 for a handle that is no context of this machine.
  [[nodiscard]] int device_of(CUcontext context) const noexcept;
  /// CUDA_SUCCESS, or what a call that concerns the device must answer: it is lost or faulted.
  [[nodiscard]] CUresult health(int ordinal) const noexcept;
  /// The stream behind a handle, the default streams included; null for a handle that is not alive.
  [[nodiscard]] std::shared_ptr<stream_state> find_stream(CUstream handle);
  /// Whether the stream of this number is being captured.
  [[nodiscard]] bool is_capturing(stream_id number) const noexcept;
  /// What to answer where find_stream() gave null.
  [[nodiscard]] CUresult missing_stream();

  /// CUDA_SUCCESS, or what a call that uses the stream must answer instead: its device is lost or
  /// faulted, or it is the legacy stream beside a captured blocking stream. Then the use
  /// invalidates that capture.
  [[nodiscard]] CUresult may_use(const stream_state& stream);
  /// Queues work, or captures it if the stream is capturing.
  CUresult submit(const std::shared_ptr<stream_state>& stream, work task);
  /// Queues work and waits for it; for the calls that block.
  CUresult submit_and_wait(const std::shared_ptr<stream_state>& stream, work task);
  /// Waits for what is queued on a stream; for calls that do so before they do anything else.
  CUresult drain(const std::shared_ptr<stream_state>& stream);
  /// After any host synchronisation with `device`: pools release what is above their threshold.
  void after_synchronize(int device);
  /// The host reads or writes device-visible memory now; managed pages move accordingly.
  void host_access(std::uint64_t address, std::uint64_t size, bool write, const char* label);
  /// Reports bytes that are not handed out, where an allocator told of them.
  void check_blocks(const range& touched, const party& accessor, block_book::occasion when);
  /// What the present call is charged for: `units` times its cost, plus so many bytes.
  void charge(double units, std::uint64_t size = 0) noexcept {
    charged_units = units;
    charged_bytes = size;
  }
  /// The last holder of a primary context let go, or it was reset: everything it owned goes.
  void end_context(int ordinal);
  /// A fault of the device; sticks.
  void fault(int ordinal, CUresult result) noexcept;

  // --- The parts ---------------------------------------------------------------------------------

  mutable std::mutex mutex;
  machine_options options;
  std::uint64_t serial = 0;  ///< no two machines of a process have the same
  int slot = -1;             ///< which thunks lead here
  std::uint64_t fork_generation = 0;
  bool initialized = false;
  bool down = false;                ///< shut_down(): answers CUDA_ERROR_DEINITIALIZED
  bool context_ever_ended = false;  ///< of any device; else no call needs to ask for its own
  std::vector<device_state> devices;
  block_book blocks;
  hazard_log hazards{blocks};
  std::uint64_t steps = 0;  ///< party::step of the last
  timeline flow;
  memory space;
  std::unique_ptr<pool_set> pools;
  std::unique_ptr<graph_set> graphs;
  std::unique_ptr<module_set> modules;
  std::unique_ptr<sharing> shared;

  handle_table<CUstream, stream_state, 1> stream_handles;
  handle_table<CUevent, event_state, 2> event_handles;

  time_point clock{0};
  std::function<time_point()> time_source;  // what the clock follows, if anything
  duration driver_time{0};
  double charged_units = 1;
  std::uint64_t charged_bytes = 0;

  std::uint64_t pinnable = ~std::uint64_t{0};  // the most host memory that can be pinned

  // --- Counters and faults, kept by dispatch.cpp -----------------------------------------------

  struct planned_fault {
    bool any = false;
    driver::call call{};
    std::uint64_t remaining = 0;
    CUresult result = CUDA_SUCCESS;
    duration extra{0};
  };
  std::array<std::uint64_t, call_count> counts{};
  std::array<duration, call_count> times{};
  std::uint64_t count_all = 0;
  std::vector<planned_fault> faults;

  /// What comes before and after the row's function. Returns true if the call must not run, with
  /// its answer in `answer`.
  bool before(driver::call call, CUresult& answer);
  void after(driver::call call);
  /// Whether a planned fault is due, and what the call answers then.
  bool fault_due(driver::call call, CUresult& answer);

  /// Starts the thread that moves work forward without calls; once.
  void start_background();
  void stop_background();

 private:
  std::thread background_;
  std::atomic<bool> background_stop_{false};
  std::unordered_map<std::uint64_t, thread_state> threads_;  // by detail::thread_number()
};

inline bool timeline::due() const noexcept {
  return !busy_.empty() && machine_.clock >= quiet_until_;
}

}}}  // namespace weir::v0::sim
