// SPDX-License-Identifier: Apache-2.0
// Bytes as a program over an allocator on a small simulated device, checked step by step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fuzz_input.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::fuzz {

/// The machine that programs run on, one after the other: making one costs more than most of them.
///
/// Work happens only when a program says so, so that an input does the same every time. One thread.
class fuzz_fixture {
 public:
  fuzz_fixture();
  ~fuzz_fixture();
  fuzz_fixture(const fuzz_fixture&) = delete;
  fuzz_fixture& operator=(const fuzz_fixture&) = delete;

  [[nodiscard]] sim::machine& machine() const noexcept { return *machine_; }
  [[nodiscard]] device gpu() const noexcept { return *gpu_; }
  [[nodiscard]] bytes used() const { return machine_->used(device_id{0}); }
  [[nodiscard]] bytes used_when_empty() const noexcept { return used_when_empty_; }
  /// How many errors reached the process-wide handler, and hazards the machine, since the last
  /// take.
  [[nodiscard]] std::uint64_t take_reports() noexcept { return std::exchange(reports_, 0); }
  [[nodiscard]] std::uint64_t hazards() const noexcept { return hazards_; }

 private:
  std::shared_ptr<sim::machine> machine_;
  std::shared_ptr<runtime> runtime_;
  std::optional<device> gpu_;
  bytes used_when_empty_{};
  std::uint64_t reports_ = 0;
  std::uint64_t hazards_ = 0;
};

/// One input's program. It uses memory as users should, so that a hazard is the allocator's fault;
/// its mistakes are those that have a typed error: frees of strangers, twice, with a wrong size.
///
/// Stops the process at the first thing that is wrong.
class program {
 public:
  program(fuzz_fixture& fixture, fuzz_input input);
  ~program();
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  /// To the end of the input, then frees everything. False: the machine is not what it was, because
  /// driver calls failed that should have released memory.
  [[nodiscard]] bool run();

 private:
  static constexpr std::size_t stream_count = 5;  // the legacy stream, the thread's own, three more
  static constexpr std::size_t most_live = 64;
  using stream_set = unsigned;

  struct tracked_block {
    device_address address = 0;
    std::uint64_t size = 0;
    weir::tag tag{};
    std::size_t home = 0;
    stream_set users = 0;     // streams that may be using it
    stream_set recorded = 0;  // those of them that were recorded
    bool orphan = false;      // the stream of its allocation is gone; `home` is that stream's place
    bool captured = false;    // of the capture that is under way
  };
  struct graph {
    graph_memory memory;
    driver::CUgraphExec exec = nullptr;
  };

  void step();
  // Memory
  void allocate();
  [[nodiscard]] std::uint64_t read_size();
  void add_live(void* pointer, std::uint64_t size, std::size_t on);
  void free_one();
  bool free_on(std::size_t index, std::size_t on, unsigned form);
  void remove_live(std::size_t index);
  void free_wrongly();
  void use();
  void record();
  // Around it
  bool order(tracked_block& block, std::size_t on, stream_set excluded);
  void synchronize(std::size_t stream);
  void change_stream();
  void change_limits();
  void change_pools();
  void trim();
  void begin_capture(std::size_t on);
  void end_capture();
  void drop_graph();
  void inspect();
  // Checks
  void check(bool everything);
  void check_metadata();
  [[nodiscard]] bool end();

  /// Makes a call to the allocator, with the driver failure that the input asked for.
  template <class Call>
  auto call(const Call& function);
  [[nodiscard]] stream_ref ref(std::size_t stream) const;
  [[nodiscard]] bool captures(std::size_t stream) const { return capturing_ == stream; }

  fuzz_fixture& fixture_;
  fuzz_input input_;
  caching_allocator memory_;
  std::array<std::optional<stream>, stream_count> owned_;  // nothing for the default streams
  stream_set released_ = 0;  // streams said to be used no more, until a call names them again
  std::vector<tracked_block> live_;
  std::map<device_address, device_address> extents_;  // of all live blocks, rounded
  std::vector<device_address> dead_;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t last_size_ = 4096;
  std::array<weir::tag, 3> tags_;
  std::array<std::uint64_t, 3> tag_limits_;
  std::vector<memory_pool> pools_;
  std::vector<graph> graphs_;
  std::optional<std::size_t> capturing_;
  graph_memory claim_;
  std::uint64_t fault_ = 0;  // which driver call of the next allocator call fails; 0: none
  driver::CUresult fault_code_{};
  bool faulted_ = false;  // in the last call
  bool ever_faulted_ = false;
  unsigned check_mask_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace weir::fuzz
