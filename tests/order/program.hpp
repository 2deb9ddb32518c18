// A random program over streams, threads, pools and graphs that uses an allocator as it should.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "chance.hpp"
#include "lanes.hpp"
#include "mailbox.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "world.hpp"

namespace weir::order_test {

/// Makes random calls, always correctly ordered, so that every hazard and every wrong byte is the
/// allocator's fault. Correctly means with all uses declared, or natively right, as the world says.
///
/// Each block carries a pattern, written and verified by kernels through its life. Whoever is alone
/// with the allocator compares its books with a model after every step; several programs may also
/// share one, each on a thread of its own, and send each other blocks. One thread at a time.
class program {
 public:
  /// Alone if there is no mailbox.
  program(world& at, std::uint64_t seed, mailbox* shared = nullptr);
  ~program();
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  /// So many steps on the calling thread, which has that number; fewer if there is a fault.
  void play(std::uint64_t steps, std::size_t thread);
  /// The thread with that number is about to end.
  void end_thread(std::size_t thread);
  /// Whether the next turn must be of the same thread: most captures end where they began.
  [[nodiscard]] bool keeps_thread() const { return capturing_ && !capturing_->relaxed; }
  /// Ends captures, frees everything, lets go of pools and graphs.
  void finish(std::size_t thread);

 private:
  static constexpr std::size_t no_graph = ~std::size_t{0};

  struct piece {
    device_address address = 0;
    std::uint64_t size = 0;
    std::uint64_t content = 0;  // the pattern's seed; 0: not written yet
    lane home = no_lane;        // where it was allocated; none if another program did
    stream_id home_id{};
    std::uint64_t number = 0;  // of its allocation
    uses used{};
    std::vector<lane> recorded{};
    weir::tag tag{};
    std::size_t graph = no_graph;  // whose replays write it
  };
  struct graph {
    graph_memory memory;
    driver::CUgraphExec exec = nullptr;
    uses used;  // by its replays, and of the blocks that left it alive
    bool replayed = false;
  };
  /// A capture that is under way.
  struct capture {
    lane main = no_lane;
    lane side = no_lane;  // taken in by an event
    bool relaxed = false;
    graph_memory memory;
    std::vector<piece> inside;
  };

  // program.cpp: blocks
  void step();
  void allocate();
  void allocate(std::uint64_t size, lane on);
  void pass_on();
  void touch();
  void touch(piece& what, lane on);
  void put_to_work(lane on);
  void record();
  bool free(std::size_t which);
  void free_some(std::size_t count);
  [[nodiscard]] std::uint64_t random_size();
  [[nodiscard]] bytes random_alignment();
  [[nodiscard]] stream_ref name_of(lane which);
  bool access(piece& what, lane on, bool writes);
  bool prepare_free(piece& what, lane on);
  bool free_now(const piece& what, lane on, bool unnamed);
  void take_in(piece made);
  void forget(std::size_t which);
  void run_kernel(lane on, const piece& what, bool writes);
  bool record_stream(piece& what, lane on);

  // program_threads.cpp: what is between programs
  bool owe(const piece& what, lane user, std::uint64_t operation);
  bool settle(lane on);
  void send();
  void receive();

  // program_world.cpp: what is around them
  void change_streams();
  void change_pools();
  void change_limits();
  void give_back();
  void let_work_happen();
  void begin_capture();
  void capture_step();
  void capture_allocate(lane on);
  void end_capture();
  void replay();
  void drop_graph(std::size_t which);
  void check();
  void check_books();

  world& at_;
  chance random_;
  lanes lanes_;
  mailbox* shared_;
  std::size_t thread_ = 0;
  std::vector<std::size_t> threads_met_;
  std::vector<std::uint64_t> favourites_;
  std::uint64_t target_ = 0;
  // Streams that cannot be asked hold up all memory, so not every program has such.
  bool has_thread_streams_ = false;
  bool gives_notice_ = true;  // before it destroys a stream
  bool captures_ = false;
  std::uint64_t next_content_ = 1;
  std::uint64_t next_number_ = 1;
  std::uint64_t next_reading_ = 1;
  std::vector<piece> live_;
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
