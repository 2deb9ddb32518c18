// SPDX-License-Identifier: Apache-2.0
// weir::sim: a simulated machine with GPUs, for tests on computers that have none.
//
// A machine fills the same table of driver calls as libcuda (driver/table.hpp), so code above the
// table runs on it unchanged. Memory is host memory that can be mapped twice, streams are queues
// whose work runs after it is queued, and every access is checked against the order that streams,
// events and the host establish.
//
//   auto machine = weir::sim::machine::create().value();
//   const weir::driver::table& cuda = machine->driver();
//   cuda.init(0);                           // the driver API, as on a GPU
//   for (const auto& hazard : machine->hazards()) std::puts(hazard.message().c_str());
//
// docs/simulator.md lists what is modelled and what is not; examples/stream_race.cpp finds a race.
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

/// A span of simulated time.
using duration = std::chrono::nanoseconds;
/// A point in simulated time, counted from the machine's creation.
using time_point = std::chrono::nanoseconds;

/// The properties of one simulated device. The defaults are those measured on an H200.
struct device_spec {
  /// The device's name.
  std::string name = "weir simulated H200";
  /// The memory of the device. It costs host memory only where it is touched.
  bytes capacity{150'109'880'320};
  /// The memory that a context takes.
  bytes context_overhead{554'500'096};
  /// See device_capabilities, here and below.
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

/// What advances queued work. In every mode a call that waits (synchronize, a blocking copy,
/// mem_free) runs exactly the work that it must wait for.
enum class progress {
  /// Each driver call runs a random number of ready operations, drawn from the seed. The same seed
  /// and
  /// the same calls give the same run.
  seeded,
  /// An operation is complete when simulated time has reached its end. For replays.
  timed,
  /// Only step(), run_until_idle() and calls that wait run operations. An event recorded on an idle
  /// stream is complete at once.
  manual,
};

/// The simulated time that a driver call takes.
struct call_cost {
  double nanoseconds = 0;          ///< for a call, or for each handle (set access, unmap)
  double nanoseconds_per_mib = 0;  ///< for each MiB of its size
};

/// The costs of all calls.
struct WEIR_API cost_table {
  std::array<call_cost, driver::call_count> of{};  ///< by driver::call
  [[nodiscard]] static cost_table h200();  ///< as measured; docs/simulator.md lists the figures
  [[nodiscard]] static cost_table free();  ///< every call costs nothing
};

/// The choices of a machine.
struct machine_options {
  std::vector<device_spec> devices = {device_spec{}};  ///< at most 64
  int driver_version = 13000;                          ///< 13000 is CUDA 13.0
  std::uint64_t seed = 1;                              ///< of the random choices in seeded mode
  progress mode = progress::seeded;                    ///< what advances queued work
  /// In timed mode, the least time from queueing an operation to its completion.
  duration lag{0};
  /// Whether every access is checked. Off is faster, for measurements of placement only.
  bool check_hazards = true;
  /// Whether caching allocators report their blocks to the machine, so that accesses outside of
  /// allocations are found (machine::watch_blocks()). Used only with check_hazards. Each allocation
  /// and free then takes the machine's lock. Off: an allocator runs as on a real device.
  bool watch_blocks = true;
  /// Whether device memory is backed by host memory. Off: addresses and sizes are the same, but
  /// work that accesses them returns CUDA_ERROR_ILLEGAL_ADDRESS. Saves system calls; for
  /// measurements of placement only.
  bool back_memory = true;
  /// The simulated time of driver calls.
  cost_table costs = cost_table::h200();
  /// Runs work also between driver calls, as a real device does, on a background thread. Needed by
  /// code that spins on memory; such a run is not repeatable. A machine that shares events with
  /// another process switches it on by itself.
  bool background = false;

  /// The choices of the options that begin with sim_.
  [[nodiscard]] WEIR_API static machine_options from(const weir::options& settings);
};

/// A range of device memory.
struct range {
  driver::CUdeviceptr address = 0;  ///< of the first byte
  std::size_t size = 0;             ///< in bytes
};

/// An access of device work.
struct access {
  range extent;         ///< the bytes
  bool writes = false;  ///< false: it reads them
};

/// An access that reads.
[[nodiscard]] inline access reads(driver::CUdeviceptr address, std::size_t size) {
  return {{address, size}, false};
}
/// An access that writes.
[[nodiscard]] inline access writes(driver::CUdeviceptr address, std::size_t size) {
  return {{address, size}, true};
}

/// The arguments of one kernel launch.
class kernel_arguments {
 public:
  /// The launch with this grid, these blocks, and the bytes of each argument.
  kernel_arguments(std::span<const unsigned, 3> grid, std::span<const unsigned, 3> block,
                   std::span<const std::vector<std::byte>> values)
      : grid_{grid[0], grid[1], grid[2]}, block_{block[0], block[1], block[2]}, values_{values} {}

  /// The number of arguments.
  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  /// The number of blocks in each dimension.
  [[nodiscard]] const std::array<unsigned, 3>& grid() const noexcept { return grid_; }
  /// The number of threads of a block in each dimension.
  [[nodiscard]] const std::array<unsigned, 3>& block() const noexcept { return block_; }
  /// The number of threads of the launch.
  [[nodiscard]] std::uint64_t threads() const noexcept {
    return std::uint64_t{grid_[0]} * grid_[1] * grid_[2] * block_[0] * block_[1] * block_[2];
  }

  /// Argument `index` as a T, which must have the declared size.
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

/// A kernel: a callable with the ranges that it reads and writes. A module whose PTX text has an
/// entry of this name runs the callable when that entry is launched.
struct kernel {
  std::string name;  ///< of the entry
  /// The size of each parameter in bytes.
  std::vector<std::size_t> parameters;
  /// Appends the accesses of a launch. Called when the launch is queued.
  std::function<void(const kernel_arguments&, std::vector<access>&)> accesses;
  /// Does the work, on host addresses equal to the device addresses. Called later, on the thread
  /// that advances the work; must make no driver call. May be empty.
  std::function<void(const kernel_arguments&)> run;
  duration takes{5'000};  ///< the simulated time of a launch
};

/// The kind of a hazard.
enum class hazard_kind {
  race,            ///< two unordered accesses, one of them a write
  use_after_free,  ///< an access to freed memory
  freed_in_use,    ///< memory freed or unmapped, or access to it revoked, while queued work may
                   ///< still use it
  bad_access,      ///< an access to unmapped addresses, or without access rights
  out_of_bounds,   ///< an access to an allocator's memory outside of the block
};

/// "race", "use_after_free", …
[[nodiscard]] WEIR_API std::string to_string(hazard_kind kind);

/// What one side of a hazard did with its bytes.
enum class party_action {
  access,    ///< read or wrote them
  captured,  ///< the same, in a node of the graph that is being captured
  replayed,  ///< the same, in a node of a graph that was launched on its stream
  lifetime,  ///< allocated or freed them, mapped or unmapped them
};

/// One side of a hazard.
struct party {
  std::string label;   ///< "kernel weir_fill", "copy to device", "free", "host write"
  stream_id stream{};  ///< where it was queued; 0 for the host
  std::uint64_t order =
      0;                ///< counts the operations of that stream, or of the host; 0: not counted
  range extent{};       ///< the bytes that it used
  bool writes = false;  ///< whether it wrote them
  time_point queued{};  ///< when it was queued
  party_action action = party_action::access;  ///< what it did
  std::uint64_t step = 0;     ///< its position among all uses and lives of memory on the machine
  std::string stream_name{};  ///< machine::name_stream()
};

/// One life of a block of a caching allocator, as the allocator reported it.
struct block_life {
  range extent{};                     ///< address and requested size
  std::size_t rounded = 0;            ///< the size of the block
  weir::tag tag{};                    ///< of the allocation
  stream_id allocated_on{};           ///< the stream of the allocation
  time_point allocated{};             ///< when it was allocated
  stream_id freed_on{};               ///< the stream of the free
  time_point freed{};                 ///< when it was freed
  std::vector<stream_id> recorded{};  ///< further streams that record_stream() named
  std::uint64_t allocated_step = 0;   ///< as party::step
  std::uint64_t freed_step = 0;       ///< 0: it is live
};

/// "0x7f0000000000, 4 KiB, tag \"weights\", allocated on stream 7 at 1.200 us, freed on stream 7 at
/// 3.400 us".
[[nodiscard]] WEIR_API std::string to_string(const block_life& block);

/// A detected error: two unordered accesses, or one invalid access, with all known facts.
struct hazard {
  hazard_kind kind = hazard_kind::race;  ///< what is wrong
  party first;                           ///< the earlier side
  party second;                          ///< the later side
  /// The bytes that both sides use, by the second side's address.
  range shared{};
  /// The lives of these bytes, oldest first, if an allocator reported them; the last may be live.
  std::vector<block_life> blocks{};
  /// If there are none: the nearest block of an allocator within 4 MiB, e.g. if a use exceeded the
  /// end of a block and reached unmapped addresses.
  std::optional<block_life> nearest{};

  /// A report of a few lines: both sides, the block's life, the missing order, and the remedy.
  [[nodiscard]] WEIR_API std::string message() const;
  /// How to fix it, in one sentence.
  [[nodiscard]] WEIR_API std::string remedy() const;
};

/// The same as reported.message().
[[nodiscard]] WEIR_API std::string to_string(const hazard& reported);

/// How many managed pages migrated.
struct migration_counts {
  std::uint64_t to_device = 0;  ///< from the host to the device
  std::uint64_t to_host = 0;    ///< from the device to the host
  std::uint64_t evicted = 0;    ///< of to_host: because the device was full
};

/// "to_device 3, to_host 2, evicted 1".
[[nodiscard]] WEIR_API std::string to_string(const migration_counts& counts);

/// While it exists, work that this thread queues may access bytes outside of allocations. For
/// owners of the memory of an allocator (memory_source) that copy it as a whole. Must end on the
/// thread and in the block that created it.
class WEIR_API segment_owner_scope {
 public:
  /// Starts the scope.
  segment_owner_scope() noexcept;
  ~segment_owner_scope();
  segment_owner_scope(const segment_owner_scope&) = delete;
  segment_owner_scope& operator=(const segment_owner_scope&) = delete;
};

class state;  // what a machine is made of

/// A computer with simulated devices. Owns every object of its driver table: objects that exist at
/// its end are released with it, and later calls through the table return CUDA_ERROR_DEINITIALIZED.
/// Thread-safe.
///
/// After fork() the child's calls return CUDA_ERROR_NOT_INITIALIZED, as with a real driver; the
/// child may create its own machine. A process can have at most 8 machines at a time.
class WEIR_API machine {
 public:
  /// A new machine. invalid_argument: an option is out of range; limit_exceeded: 8 machines exist.
  [[nodiscard]] static result<std::shared_ptr<machine>> create(machine_options options = {});
  ~machine();
  machine(const machine&) = delete;
  machine& operator=(const machine&) = delete;

  /// The table of driver calls.
  [[nodiscard]] const driver::table& driver() const noexcept;
  /// The options that it was created with.
  [[nodiscard]] const machine_options& options() const noexcept;

  // --- Kernels -------------------------------------------------------------------------------

  /// Defines a kernel for modules; a later definition of the same name replaces it.
  void add_kernel(kernel definition);

  /// Queues work on a stream without a module: `body` runs in stream order and performs `accesses`.
  result<void> launch(driver::CUstream handle, std::string label, std::vector<access> accesses,
                      std::function<void()> body = {}, duration run_time = duration{5'000});

  // --- What the host does ----------------------------------------------------------------------

  /// Declares that the host now reads or writes memory that devices can access (pinned, managed,
  /// mapped). The simulator cannot see plain loads and stores, so code under test declares them.
  void host_read(const void* address, std::size_t size);
  void host_write(void* address, std::size_t size);

  // --- Blocks and names --------------------------------------------------------------------------

  /// An observer for one caching allocator (add_observer()). While it exists, an access outside of
  /// the allocator's allocations is a hazard. runtime::open_simulated() adds one to every allocator
  /// of its devices, unless machine_options::watch_blocks is off. Must not outlive the machine.
  [[nodiscard]] std::unique_ptr<event_sink> watch_blocks();
  /// Gives the stream a name for messages, in addition to its number.
  void name_stream(driver::CUstream handle, std::string name);

  // --- Progress and time -------------------------------------------------------------------------

  /// Runs one ready operation; false if none was ready.
  bool step();
  /// Runs operations until none is ready.
  void run_until_idle();
  /// Prevents the next operations of `handle` from starting until release(); waiting for them
  /// blocks.
  void hold(driver::CUstream handle);
  void release(driver::CUstream handle);

  /// The simulated time.
  [[nodiscard]] time_point now() const;
  /// Advances the clock.
  void advance(duration time);
  /// Moves the clock to `to`; never backwards.
  void set_time(time_point to);
  /// Calls set_time(source()) at the start of every driver call; an empty function ends it. For
  /// replays, in which time passes between driver calls. Called with the machine locked: must not
  /// use it.
  void follow_time(std::function<time_point()> source);
  /// The simulated time of all driver calls together.
  [[nodiscard]] duration driver_time() const;
  /// The same for one kind of call.
  [[nodiscard]] duration driver_time(driver::call call) const;

  // --- Faults -----------------------------------------------------------------------------------

  /// Call number `number` of `call` from now on (1 is the next) returns `result` and does nothing.
  void fail(driver::call call, std::uint64_t number, driver::CUresult result);
  /// The same for call number `number` of any kind. For sweeps over all calls of a scenario.
  void fail_any(std::uint64_t number, driver::CUresult result);
  /// Call number `number` of `call` from now on takes `time` more simulated time.
  void delay(driver::call call, std::uint64_t number, duration time);
  /// Cancels the planned faults and delays.
  void clear_faults();
  /// Simulates the failure of a device: its work never completes, and calls for it return
  /// CUDA_ERROR_DEVICE_UNAVAILABLE, or CUDA_ERROR_LAUNCH_FAILED if work was queued.
  void lose_device(device_id device);
  /// Changes the device's memory, as the use by another process would.
  void set_capacity(device_id device, bytes capacity);
  /// Limits the host memory that can be pinned, allocated and registered together, like a limit of
  /// the system: calls that pin more return CUDA_ERROR_OUT_OF_MEMORY. There is no limit at first.
  void set_pinnable(bytes most);
  /// Simulates the end of the process: every later call returns CUDA_ERROR_DEINITIALIZED.
  void shut_down();

  // --- What happened ---------------------------------------------------------------------------

  /// The hazards that were found, in order.
  [[nodiscard]] std::vector<hazard> hazards() const;
  /// Forgets the hazards that were found.
  void clear_hazards();
  /// Calls `listener` for each hazard as it is found, on the calling thread; it must not use the
  /// machine.
  void on_hazard(std::function<void(const hazard&)> listener);
  /// How many driver calls were made, of one kind or in total.
  [[nodiscard]] std::uint64_t calls(driver::call call) const;
  [[nodiscard]] std::uint64_t calls() const;
  /// Physical memory in use on a device, as mem_get_info counts it.
  [[nodiscard]] bytes used(device_id device) const;
  /// Host memory that is pinned now, allocated and registered together.
  [[nodiscard]] bytes pinned() const;
  /// The managed pages that migrated to and from a device.
  [[nodiscard]] migration_counts migrations(device_id device) const;

 private:
  explicit machine(std::unique_ptr<state> implementation);
  std::unique_ptr<state> state_;
};

}}}  // namespace weir::v0::sim
