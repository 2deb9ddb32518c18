// SPDX-License-Identifier: Apache-2.0
// weir::sim: a simulated machine with GPUs, for tests on computers that have none.
//
// A machine fills the same table of driver calls that libcuda fills (driver.hpp), so code above the
// table runs on it unchanged. It is a machine, not a mock: memory is real memory that can be mapped
// twice, streams are queues whose work happens later than it is queued, and every access is checked
// against the order that streams, events and the host establish.
//
//   auto machine = weir::sim::machine::create().value();
//   const weir::driver::table& cuda = machine->driver();
//   cuda.init(0);                           // the driver API, as on a GPU
//   for (const auto& hazard : machine->hazards()) std::puts(hazard.message().c_str());
//
// docs/simulator.md tells what is modelled and what is not; examples/stream_race.cpp finds a race.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/options.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/driver/table.hpp"
#include "weir/observe/events.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// Simulated time. A point in time counts from the machine's creation.
using duration = std::chrono::nanoseconds;
using time_point = std::chrono::nanoseconds;

/// What one simulated device is and can do. The defaults describe an H200 as measured.
struct device_spec {
  std::string name = "weir simulated H200";
  /// The size the device reports. Costs nothing until it is touched.
  bytes capacity{150'109'880'320};
  /// What is gone before the first allocation, once a context exists.
  bytes context_overhead{554'500'096};
  int compute_major = 9;
  int compute_minor = 0;
  int multiprocessors = 132;
  /// The unit of physical handles.
  bytes granularity{std::uint64_t{2} << 20};
  bool virtual_memory = true;
  bool memory_pools = true;
  bool managed_memory = true;
  bool concurrent_managed_access = true;
  bool posix_handles = true;
};

/// What moves queued work forward. In every mode a call that waits (synchronize, a blocking copy,
/// mem_free) runs exactly what it must wait for.
enum class progress {
  /// Each driver call lets a random number of ready operations happen, drawn from the seed. The
  /// same seed and the same calls give the same run.
  seeded,
  /// An operation is complete once simulated time has reached its end. For replays.
  timed,
  /// Nothing happens unless step(), run_until_idle() or a waiting call makes it happen; only an
  /// event that is recorded on an idle stream is complete at once, having nothing to wait for.
  manual,
};

/// What a driver call charges to the simulated clock.
struct call_cost {
  double nanoseconds = 0;  ///< for a call, or for each handle it touches (set access, unmap)
  double nanoseconds_per_mib = 0;
};

/// Costs of all calls, by driver::call.
struct WEIR_API cost_table {
  std::array<call_cost, driver::call_count> of{};
  [[nodiscard]] static cost_table h200();  ///< as measured; docs/simulator.md names the figures
  [[nodiscard]] static cost_table free();  ///< every call costs nothing
};

struct machine_options {
  std::vector<device_spec> devices = {device_spec{}};
  int driver_version = 13000;
  std::uint64_t seed = 1;
  progress mode = progress::seeded;
  /// timed mode: an operation takes at least this long from being queued to being complete.
  duration lag{0};
  /// Check every access. Off: faster, for measurements of placement only.
  bool check_hazards = true;
  /// Where accesses are checked: whether caching allocators tell the machine of their blocks, so
  /// that a use of bytes that are not handed out is found (machine::watch_blocks). Costs each
  /// allocation and free the machine's lock; off: an allocator runs as on a real device.
  bool watch_blocks = true;
  /// Whether device memory is memory. Off: addresses and sizes are as ever, but there is nothing
  /// behind them, and work that touches it answers CUDA_ERROR_ILLEGAL_ADDRESS. Saves the system's
  /// calls for it; for measurements of placement only.
  bool back_memory = true;
  cost_table costs = cost_table::h200();
  /// Lets work happen also while no driver call is made, as a real device does, from a thread of
  /// the machine's own. Needed by code that spins on memory; such a run is not repeatable. A
  /// machine that shares events with another process switches it on by itself.
  bool background = false;

  /// What the options that begin with sim_ say; fewer than one device are none.
  [[nodiscard]] WEIR_API static machine_options from(const weir::options& settings);
};

/// Bytes that device work touches, by device address.
struct range {
  driver::CUdeviceptr address = 0;
  std::size_t size = 0;
};

struct access {
  range extent;
  bool writes = false;
};

[[nodiscard]] inline access reads(driver::CUdeviceptr address, std::size_t size) {
  return {{address, size}, false};
}
[[nodiscard]] inline access writes(driver::CUdeviceptr address, std::size_t size) {
  return {{address, size}, true};
}

/// The arguments of one kernel launch.
class kernel_arguments {
 public:
  kernel_arguments(std::span<const unsigned, 3> grid, std::span<const unsigned, 3> block,
                   std::span<const std::vector<std::byte>> values)
      : grid_{grid[0], grid[1], grid[2]}, block_{block[0], block[1], block[2]}, values_{values} {}

  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  [[nodiscard]] const std::array<unsigned, 3>& grid() const noexcept { return grid_; }
  [[nodiscard]] const std::array<unsigned, 3>& block() const noexcept { return block_; }
  [[nodiscard]] std::uint64_t threads() const noexcept {
    return std::uint64_t{grid_[0]} * grid_[1] * grid_[2] * block_[0] * block_[1] * block_[2];
  }

  /// Argument `index` as a T; `T` must have the size the kernel declared for it.
  template <class T>
  [[nodiscard]] T get(std::size_t index) const {
    T value{};
    const auto& bits = values_[index];
    std::memcpy(&value, bits.data(), bits.size() < sizeof(T) ? bits.size() : sizeof(T));
    return value;
  }

 private:
  std::array<unsigned, 3> grid_;
  std::array<unsigned, 3> block_;
  std::span<const std::vector<std::byte>> values_;
};

/// A kernel: a callable with the ranges it reads and writes. A module whose PTX text has an entry
/// of this name runs this callable when that entry is launched.
struct kernel {
  std::string name;
  /// The size of each parameter in bytes.
  std::vector<std::size_t> parameters;
  /// Says what a launch will touch. Asked when the launch is queued.
  std::function<void(const kernel_arguments&, std::vector<access>&)> accesses;
  /// Does the work, on host addresses equal to the device addresses. Called later, on the thread
  /// that moves the work forward; must make no driver call. May be empty.
  std::function<void(const kernel_arguments&)> run;
  duration takes{5'000};
};

enum class hazard_kind {
  race,            ///< two accesses, one a write, in no order
  use_after_free,  ///< an access to memory that was freed before
  freed_in_use,    ///< memory freed or unmapped, or access to it revoked, while queued work may
                   ///< still use it
  bad_access,      ///< an access where nothing is mapped or access was not granted
  out_of_bounds,   ///< an access to bytes of an allocator that were not handed out, or not as this
                   ///< block
};

/// "race", "use_after_free", …
[[nodiscard]] WEIR_API std::string to_string(hazard_kind kind);

/// What one side of a hazard did with its bytes.
enum class party_action {
  access,    ///< read or wrote them
  captured,  ///< the same, as a node of the graph that its stream's capture makes
  replayed,  ///< the same, as a node of a graph that was launched on its stream
  lifetime,  ///< allocated or freed them, mapped or unmapped them
};

/// One side of a hazard.
struct party {
  std::string label;   ///< "kernel weir_fill", "copy to device", "free", "host write"
  stream_id stream{};  ///< where it was queued; 0 for the host
  std::uint64_t order =
      0;  ///< counts the operations of that stream, or of the host; 0: not counted
  range extent{};
  bool writes = false;
  time_point queued{};
  party_action action = party_action::access;
  std::uint64_t step = 0;     ///< counts the uses and lives of memory on the machine, as queued
  std::string stream_name{};  ///< machine::name_stream()
};

/// One life of a block of a caching allocator, as the allocator told it.
struct block_life {
  range extent{};           ///< as it was asked for
  std::size_t rounded = 0;  ///< what the block takes
  weir::tag tag{};
  stream_id allocated_on{};
  time_point allocated{};
  stream_id freed_on{};
  time_point freed{};
  std::vector<stream_id> recorded{};  ///< further streams that record_stream() named
  std::uint64_t allocated_step = 0;   ///< as party::step
  std::uint64_t freed_step = 0;       ///< 0: it is live
};

/// "0x7f0000000000, 4 KiB, tag \"weights\", allocated on stream 7 at 1.200 us, freed on stream 7 at
/// 3.400 us".
[[nodiscard]] WEIR_API std::string to_string(const block_life& block);

/// Two accesses that nothing keeps in order, or one that should not be, with what is known of it.
struct hazard {
  hazard_kind kind = hazard_kind::race;
  party first;
  party second;
  /// The bytes both sides touch, by the second side's address.
  range shared{};
  /// The lives of these bytes, oldest first, where an allocator told of them; the last may be live.
  std::vector<block_life> blocks{};
  /// Where there are none: the block of an allocator that lies nearest, if one is less than 4 MiB
  /// away, as where a use has run over a block's end into addresses without memory.
  std::optional<block_life> nearest{};

  /// A few lines in plain words: who, where, when, the block's life, which order is missing, and
  /// what would mend it.
  [[nodiscard]] WEIR_API std::string message() const;
  /// What would mend it, in a sentence.
  [[nodiscard]] WEIR_API std::string remedy() const;
};

/// The same as reported.message().
[[nodiscard]] WEIR_API std::string to_string(const hazard& reported);

/// How often managed pages went from one side to the other.
struct migration_counts {
  std::uint64_t to_device = 0;  ///< pages
  std::uint64_t to_host = 0;
  std::uint64_t evicted = 0;  ///< of to_host: pushed out because the device was full
};

/// "to_device 3, to_host 2, evicted 1".
[[nodiscard]] WEIR_API std::string to_string(const migration_counts& counts);

/// While one lives, the work that this thread queues may touch bytes that no allocator has handed
/// out. For whoever owns the memory under an allocator (memory_source) and copies it whole. Stays
/// on its thread and in its block.
class WEIR_API segment_owner_scope {
 public:
  segment_owner_scope() noexcept;
  ~segment_owner_scope();
  segment_owner_scope(const segment_owner_scope&) = delete;
  segment_owner_scope& operator=(const segment_owner_scope&) = delete;
};

class state;  // what a machine is made of

/// A computer with simulated devices. Owns everything its driver table hands out: what is still
/// alive when the machine goes is released with it, and later calls through the table answer
/// CUDA_ERROR_DEINITIALIZED. Every function may be called from any thread.
///
/// After fork() the child's calls answer CUDA_ERROR_NOT_INITIALIZED, as a real driver's do; the
/// child may create a machine of its own. At most 8 machines live at a time in one process.
class WEIR_API machine {
 public:
  [[nodiscard]] static result<std::shared_ptr<machine>> create(machine_options options = {});
  ~machine();
  machine(const machine&) = delete;
  machine& operator=(const machine&) = delete;

  [[nodiscard]] const driver::table& driver() const noexcept;
  [[nodiscard]] const machine_options& options() const noexcept;

  // --- Kernels -------------------------------------------------------------------------------

  /// Makes `definition` known to modules; a later one of the same name replaces it.
  void add_kernel(kernel definition);

  /// Queues work on a stream without a module: `body` runs in stream order and touches `accesses`.
  result<void> launch(driver::CUstream handle, std::string label, std::vector<access> accesses,
                      std::function<void()> body = {}, duration run_time = duration{5'000});

  // --- What the host does ----------------------------------------------------------------------

  /// Says that the host now reads or writes memory that devices can see (pinned, managed, mapped).
  /// The simulator cannot see plain loads and stores; code under test says so where it matters.
  void host_read(const void* address, std::size_t size);
  void host_write(void* address, std::size_t size);

  // --- Blocks and names --------------------------------------------------------------------------

  /// Takes the events of one caching allocator (add_observer). As long as it lives, a use of bytes
  /// that the allocator has not handed out is a hazard. runtime::open_simulated() has every
  /// allocator of its devices observed so, unless machine_options::watch_blocks is off. Must not
  /// outlive the machine.
  [[nodiscard]] std::unique_ptr<event_sink> watch_blocks();
  /// What messages call the stream from now on, beside its number.
  void name_stream(driver::CUstream handle, std::string name);

  // --- Progress and time -------------------------------------------------------------------------

  /// Lets one ready operation happen; false if none was ready.
  bool step();
  void run_until_idle();
  /// Keeps the next operations of `handle` from starting until release(); waiting for them blocks.
  void hold(driver::CUstream handle);
  void release(driver::CUstream handle);

  [[nodiscard]] time_point now() const;
  void advance(duration time);
  /// Moves the clock to `to`; never backwards.
  void set_time(time_point to);
  /// As set_time(source()) at the begin of every driver call; empty ends it. For replays, whose
  /// time passes with every request while few of them call the driver. Called with the machine
  /// locked: must not call back.
  void follow_time(std::function<time_point()> source);
  /// All the time that driver calls were charged for.
  [[nodiscard]] duration driver_time() const;
  /// The same of one call.
  [[nodiscard]] duration driver_time(driver::call call) const;

  // --- Faults -----------------------------------------------------------------------------------

  /// The call with this `number` of `call` from now on (1 is the next) answers `result` and does
  /// nothing.
  void fail(driver::call call, std::uint64_t number, driver::CUresult result);
  /// The call with this `number` of any kind from now on. For sweeps over all calls of a scenario.
  void fail_any(std::uint64_t number, driver::CUresult result);
  /// The call with this `number` of `call` from now on takes `time` simulated time more.
  void delay(driver::call call, std::uint64_t number, duration time);
  void clear_faults();
  /// The device stops: its work never finishes, and calls that concern it answer
  /// CUDA_ERROR_DEVICE_UNAVAILABLE or, where work was queued, CUDA_ERROR_LAUNCH_FAILED, for ever.
  void lose_device(device_id device);
  /// Changes what the device has room for, as another process on the card would.
  void set_capacity(device_id device, bytes capacity);
  /// The most host memory that can be pinned, allocated and registered together, as a limit of the
  /// system would have it: calls that pin more answer CUDA_ERROR_OUT_OF_MEMORY. No limit at first.
  void set_pinnable(bytes most);
  /// As when the process is at its end: every later call answers CUDA_ERROR_DEINITIALIZED.
  void shut_down();

  // --- What happened ---------------------------------------------------------------------------

  [[nodiscard]] std::vector<hazard> hazards() const;
  void clear_hazards();
  /// Called for each hazard as it is found, on the thread that made the call; must not call back.
  void on_hazard(std::function<void(const hazard&)> listener);
  [[nodiscard]] std::uint64_t calls(driver::call call) const;
  [[nodiscard]] std::uint64_t calls() const;
  /// Physical memory in use on a device, as mem_get_info counts it.
  [[nodiscard]] bytes used(device_id device) const;
  /// Host memory that is pinned now, allocated and registered together.
  [[nodiscard]] bytes pinned() const;
  [[nodiscard]] migration_counts migrations(device_id device) const;

 private:
  explicit machine(std::unique_ptr<state> implementation);
  std::unique_ptr<state> state_;
};

}}}  // namespace weir::v0::sim
