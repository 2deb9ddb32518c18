// SPDX-License-Identifier: Apache-2.0
// A random program over streams, threads, pools and graphs that uses an allocator as it should.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "happens_before.hpp"
#include "mailbox.hpp"
#include "order_fixture.hpp"
#include "rng.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir::order_test {

/// Makes random calls, always correctly ordered, so that every hazard and every wrong byte is the
/// allocator's fault. Correctly means with all uses declared, or with none, as the fixture says.
///
/// Each block carries a pattern, written and verified by kernels through its life. Whoever is alone
/// with the allocator compares its statistics with a model after every step; several programs may
/// also share one, each on a thread of its own, and send each other blocks. One thread at a time.
class program {
 public:
  /// Alone if there is no mailbox.
  program(order_fixture& fixture, std::uint64_t seed, mailbox* shared = nullptr);
  ~program();
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  /// So many steps on the calling thread, which has that number; fewer if there is a failure.
  void run(std::uint64_t steps, std::size_t thread);
  /// The thread with that number is about to end.
  void end_thread(std::size_t thread);
  /// Whether the next turn must be of the same thread: most captures end where they began.
  [[nodiscard]] bool keeps_thread() const { return capturing_ && !capturing_->relaxed; }
  /// Ends captures, frees everything, lets go of pools and graphs.
  void finish(std::size_t thread);

 private:
  static constexpr std::size_t no_graph = ~std::size_t{0};

  struct tracked_block {
    device_address address = 0;
    std::uint64_t size = 0;
    std::uint64_t content = 0;      // the pattern's seed; 0: not written yet
    stream_index home = no_stream;  // where it was allocated; none if another program did
    stream_id home_id{};
    std::uint64_t number = 0;  // of its allocation
    // Streams that the allocator knew by then may use it behind what its home had been given before
    // the request; others behind this operation, where there is one.
    std::uint64_t meetings = 0;
    std::uint64_t allocated = 0;
    access_history accesses{};
    std::vector<stream_index> recorded{};
    weir::tag tag{};
    std::size_t graph = no_graph;  // whose replays write it
  };
  struct graph {
    graph_memory memory;
    driver::CUgraphExec exec = nullptr;
    access_history accesses;  // by its replays, and of the blocks that left it alive
    bool replayed = false;
  };
  /// A capture that is under way.
  struct capture {
    stream_index main = no_stream;
    stream_index side = no_stream;  // taken in by an event
    bool relaxed = false;
    graph_memory memory;
    std::vector<tracked_block> blocks;
  };

  // program.cpp: blocks
  void step();
  void allocate();
  void allocate(std::uint64_t size, stream_index on);
  void free_after_undeclared_use();
  void touch();
  void touch(tracked_block& block, stream_index on);
  void queue_some_work(stream_index on);
  void record();
  bool free(std::size_t index);
  void free_some(std::size_t count);
  [[nodiscard]] std::uint64_t random_size();
  [[nodiscard]] bytes random_alignment();
  [[nodiscard]] stream_ref name_of(stream_index stream);
  bool access(tracked_block& block, stream_index on, bool writes);
  bool put_after_allocation(const tracked_block& block, stream_index on);
  bool prepare_free(tracked_block& block, stream_index on);
  bool free_now(const tracked_block& block, stream_index on, bool unnamed);
  void add_live(tracked_block block);
  void remove_live(std::size_t index);
  void run_kernel(stream_index on, const tracked_block& block, bool writes);
  bool record_stream(tracked_block& block, stream_index on);

  // program_threads.cpp: what is between programs
  bool defer_wait(const tracked_block& block, stream_index user, std::uint64_t operation);
  bool queue_deferred_waits(stream_index on);
  void send();
  void receive();

  // program_streams.cpp: streams, pools, limits
  void change_streams();
  void change_pools();
  void change_limits();
  void trim();
  void advance_machine();

  // program_graphs.cpp: captures and replays
  void begin_capture();
  void capture_step();
  void capture_allocate(stream_index on);
  void end_capture();
  void replay();
  void drop_graph(std::size_t index);

  // program_checks.cpp: the model against the allocator
  void check();
  void check_metadata();

  order_fixture& fixture_;
  rng random_;
  happens_before streams_;
  mailbox* mailbox_;
  std::size_t thread_ = 0;
  std::vector<std::size_t> known_threads_;
  std::vector<std::uint64_t> frequent_sizes_;
  std::uint64_t target_ = 0;
  // Streams that cannot be asked hold up all memory, so not every program has such.
  bool has_thread_streams_ = false;
  bool announces_ends_ = true;  // before it destroys a stream
  bool captures_ = false;
  std::uint64_t next_content_ = 1;
  std::uint64_t next_number_ = 1;
  std::uint64_t next_reader_ = 1;
  std::vector<tracked_block> live_;
  std::map<device_address, std::uint64_t> extents_;  // of all live blocks, rounded
  std::uint64_t live_bytes_ = 0;
  std::vector<weir::tag> tags_;
  std::vector<memory_pool> pools_;
  std::vector<graph> graphs_;
  std::optional<capture> capturing_;
  std::optional<callback_registration> callback_;
  std::uint64_t steps_ = 0;
  bool in_callback_ = false;
};

}  // namespace weir::order_test
