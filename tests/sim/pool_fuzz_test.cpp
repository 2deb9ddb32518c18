// SPDX-License-Identifier: Apache-2.0
// Random programs over stream-ordered pools: the data survives, the oracle is silent, and the
// pools' books are right after every step.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "pool_fixture.hpp"
#include "sim/dispatch.hpp"
#include "sim/pools.hpp"
#include "sim/state.hpp"

namespace weir::sim_tests { namespace {

/// A machine from the inside: calls go straight to it, so that its pools can be looked at.
class inside_machine {
 public:
  explicit inside_machine(sim::machine_options options) : machine{std::move(options)} {
    machine.slot = sim::take_slot(&machine);
    here = std::make_unique<sim::machine_lock>(machine);
    CUcontext context = nullptr;
    EXPECT_EQ(machine.init(0), CUDA_SUCCESS);
    EXPECT_EQ(machine.device_primary_ctx_retain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(machine.ctx_set_current(context), CUDA_SUCCESS);
  }
  ~inside_machine() {
    here.reset();
    sim::leave_slot(machine.slot);
  }
  sim::state machine;
  std::unique_ptr<sim::machine_lock> here;
};

/// Random allocations, frees, kernels, waits and releases over several streams, all of them
/// correct: every kernel checks that its block still holds what the last one wrote.
class random_program {
 public:
  explicit random_program(std::uint64_t seed, bool check_hazards = true)
      : random{seed}, inside{{.seed = seed, .check_hazards = check_hazards}} {
    for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING,
                                 CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
      CUstream made = nullptr;
      EXPECT_EQ(machine().stream_create(&made, flags), CUDA_SUCCESS);
      streams.push_back(made);
    }
    if (seed % 2 == 0) streams.push_back(legacy_stream());
    for (const std::uint64_t most : {std::uint64_t{0}, 6 * page}) {
      const CUmemPoolProps wanted = device_pool(0, most);
      CUmemoryPool made = nullptr;
      EXPECT_EQ(machine().mem_pool_create(&made, &wanted), CUDA_SUCCESS);
      pools.push_back(made);
    }
  }

  void step() {
    switch (pick(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        allocate();
        break;
      case 4:
      case 5:
      case 6:
        free();
        break;
      case 7:
      case 8:
        use();
        break;
      case 9:
        machine().stream_synchronize(streams[pick(streams.size())]);
        break;
      case 10:
        change_rules();
        break;
      case 11:
        for (std::size_t i = pick(6); i > 0; --i) machine().flow.step(inside.here->lock());
        break;
    }
  }
  void finish() {
    while (!live.empty()) free();
    for (CUstream each : streams) machine().stream_synchronize(each);
  }

  sim::state& machine() { return inside.machine; }
  bool intact = true;

 private:
  struct buffer {
    CUdeviceptr address;
    std::size_t size;
    std::shared_ptr<unsigned> mark;  // what the bytes hold once the last queued kernel is done
    CUstream last;
  };

  std::size_t pick(std::size_t below) { return static_cast<std::size_t>(random() % below); }

  void order(CUstream on, CUstream other) {
    if (on == other) return;
    CUevent mark = nullptr;
    machine().event_create(&mark, CU_EVENT_DISABLE_TIMING);
    machine().event_record(mark, other);
    machine().stream_wait_event(on, mark, 0);
    machine().event_destroy(mark);
  }
  void launch(buffer& on, CUstream stream) {
    const unsigned before = *on.mark;
    const unsigned after = ++next_mark;
    on.mark = std::make_shared<unsigned>(after);
    on.last = stream;
    // Some bytes all over the block: enough to meet whoever else believes to own it.
    const std::size_t stride = (on.size / 64 / 512 + 1) * 512;
    sim::work kernel{.type = CU_GRAPH_NODE_TYPE_KERNEL,
                     .label = "kernel",
                     .accesses = {writes(on.address, on.size)}};
    kernel.body = [this, before, after, stride, address = on.address, size = on.size] {
      for (std::size_t at = 0; at < size; at += stride) {
        auto& byte = *reinterpret_cast<unsigned char*>(address + at);
        if (before != 0 && byte != before % 256) intact = false;
        byte = static_cast<unsigned char>(after % 256);
      }
      return CUDA_SUCCESS;
    };
    EXPECT_EQ(machine().submit(machine().find_stream(stream), std::move(kernel)), CUDA_SUCCESS);
  }
  void allocate() {
    if (live.size() > 60) return;
    const std::size_t size = std::size_t{1} << pick(26);
    CUstream on = streams[pick(streams.size())];
    buffer made{0, size + pick(size), std::make_shared<unsigned>(0), on};
    const CUresult answer =
        machine().mem_alloc_from_pool_async(&made.address, made.size, pools[pick(2)], on);
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) return;
    ASSERT_EQ(answer, CUDA_SUCCESS);
    launch(made, on);
    live.push_back(std::move(made));
  }
  void use() {
    if (live.empty()) return;
    buffer& which = live[pick(live.size())];
    CUstream on = streams[pick(streams.size())];
    order(on, which.last);
    launch(which, on);
  }
  void free() {
    if (live.empty()) return;
    std::swap(live[pick(live.size())], live.back());
    CUstream on = streams[pick(streams.size())];
    order(on, live.back().last);
    EXPECT_EQ(machine().mem_free_async(live.back().address, on), CUDA_SUCCESS);
    live.pop_back();
  }
  void change_rules() {
    CUmemoryPool of = pools[pick(2)];
    int on = static_cast<int>(pick(2));
    machine().mem_pool_set_attribute(of, static_cast<CUmemPool_attribute>(1 + pick(3)), &on);
    std::uint64_t limit = pick(3) * 2 * page;
    machine().mem_pool_set_attribute(of, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &limit);
    if (pick(4) == 0) machine().mem_pool_trim_to(of, pick(4) * page);
  }

  std::mt19937_64 random;
  inside_machine inside;
  std::vector<CUstream> streams;
  std::vector<CUmemoryPool> pools;
  std::vector<buffer> live;
  unsigned next_mark = 0;
};

void run(std::uint64_t seed, bool check_hazards) {
  random_program program{seed, check_hazards};
  for (int i = 0; i < 1500; ++i) {
    program.step();
    const std::string wrong = program.machine().pools->inconsistency();
    ASSERT_EQ(wrong, "") << "seed " << seed << ", step " << i;
  }
  program.finish();
  EXPECT_TRUE(program.intact) << "seed " << seed;
  for (const auto& found : program.machine().hazards.all()) {
    FAIL() << "seed " << seed << "\n" << found.message();
  }
  EXPECT_EQ(program.machine().pools->inconsistency(), "");
}

/// Blocks of one pool, one behind the other, and the stream that took them.
class pool_books : public ::testing::Test {
 protected:
  pool_books() {
    EXPECT_EQ(machine().stream_create(&on, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    for (CUdeviceptr& each : made) {
      EXPECT_EQ(machine().mem_alloc_async(&each, mib, on), CUDA_SUCCESS);
    }
  }
  sim::state& machine() { return inside.machine; }
  sim::block& block_at(CUdeviceptr address) {
    return *machine().pools->holding(address)->find(address);
  }
  /// All that was never allocated, behind the last block.
  sim::block& unused() { return *block_at(made[2]).after; }
  sim::block& freed_block(CUdeviceptr address, CUstream by) {
    sim::block& freed = block_at(address);
    EXPECT_EQ(machine().mem_free_async(address, by), CUDA_SUCCESS);
    return freed;
  }
  std::string wrong() { return machine().pools->inconsistency(); }

  inside_machine inside{by_hand()};
  CUstream on = nullptr;
  std::array<CUdeviceptr, 3> made{};
};

TEST_F(pool_books, are_right_after_a_reset_that_takes_settled_blocks_along) {
  ASSERT_EQ(machine().mem_free_async(made[1], on), CUDA_SUCCESS);
  ASSERT_EQ(machine().stream_synchronize(on), CUDA_SUCCESS);
  ASSERT_EQ(machine().device_primary_ctx_reset(0), CUDA_SUCCESS);
  EXPECT_EQ(machine().pools->inconsistency(), "");
}

TEST_F(pool_books, say_so_where_blocks_leave_a_gap) {
  sim::block& moved = block_at(made[1]);
  moved.address += 512;
  EXPECT_EQ(wrong(), "blocks leave a gap");
  moved.address -= 512;
  ASSERT_EQ(wrong(), "");
  moved.size = 0;
  EXPECT_EQ(wrong(), "blocks leave a gap");
}

TEST_F(pool_books, say_so_where_links_disagree) {
  block_at(made[2]).before = &block_at(made[0]);
  EXPECT_EQ(wrong(), "links disagree");
}

TEST_F(pool_books, say_so_where_another_block_is_found_at_an_address) {
  sim::block& known = block_at(made[1]);
  sim::block stranger{.address = known.address,
                      .size = known.size,
                      .before = known.before,
                      .after = known.after,
                      .requested = known.requested};
  known.before->after = known.after->before = &stranger;
  EXPECT_EQ(wrong(), "a block cannot be found");
  known.before->after = known.after->before = &known;
  EXPECT_EQ(wrong(), "");
}

TEST_F(pool_books, say_so_where_neighbours_are_not_joined) {
  CUstream other = nullptr;
  ASSERT_EQ(machine().stream_create(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const sim::block& first = freed_block(made[0], on);
  sim::block& second = freed_block(made[1], other);
  ASSERT_EQ(wrong(), "");
  second.index->remove(second);
  first.index->insert(second);
  EXPECT_EQ(wrong(), "neighbours are not joined");
}

TEST_F(pool_books, say_so_where_a_block_was_asked_for_with_no_bytes_or_more_than_it_has) {
  sim::block& asked = block_at(made[1]);
  for (const std::uint64_t requested : {std::uint64_t{0}, mib + 1}) {
    asked.requested = requested;
    EXPECT_EQ(wrong(), "a block has a wrong size") << requested;
  }
}

TEST_F(pool_books, say_so_where_a_block_in_use_has_no_memory) {
  sim::block& taken = unused();
  taken.index->remove(taken);
  taken.requested = 512;
  EXPECT_EQ(wrong(), "a block in use has no memory");
}

TEST_F(pool_books, say_so_where_blocks_do_not_reach_the_end) {
  unused().size -= 512;
  EXPECT_EQ(wrong(), "blocks do not reach the end");
}

TEST_F(pool_books, say_so_where_allocations_are_miscounted) {
  freed_block(made[0], on).index->insert(block_at(made[2]));
  EXPECT_EQ(wrong(), "allocations are miscounted");
}

TEST_F(pool_books, say_so_where_used_is_below_what_is_live) {
  CUdeviceptr odd = 0;
  ASSERT_EQ(machine().mem_alloc_async(&odd, 1000, on), CUDA_SUCCESS);
  sim::block& asked = block_at(odd);
  ASSERT_EQ(asked.size, 1024U);
  asked.requested = 1000 + 1;
  EXPECT_EQ(wrong(), "used is below what is live");
}

TEST_F(pool_books, say_so_where_an_index_has_lost_a_block) {
  for (sim::block* const lost : {&freed_block(made[1], on), &unused()}) {
    sim::fit_index* const index = lost->index;
    index->remove(*lost);
    lost->index = index;
    EXPECT_EQ(wrong(), "an index has lost a block");
    index->insert(*lost);
    ASSERT_EQ(wrong(), "");
  }
}

TEST_F(pool_books, say_so_where_a_page_counts_a_block_that_is_settled) {
  sim::block& freed = block_at(made[1]);
  sim::fit_index& settled = *block_at(made[2]).after->index;
  ASSERT_EQ(machine().mem_free_async(made[1], on), CUDA_SUCCESS);
  ASSERT_EQ(machine().pools->inconsistency(), "");
  freed.index->remove(freed);
  settled.insert(freed);
  EXPECT_EQ(machine().pools->inconsistency(), "a page's busy bytes are miscounted");
}

TEST(pool_fuzz, correct_programs_keep_their_data_and_are_not_reported) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) run(seed, true);
}

TEST(pool_fuzz, data_is_kept_without_the_oracle_too) {
  for (std::uint64_t seed = 101; seed <= 106; ++seed) run(seed, false);
}

}  // namespace
}  // namespace weir::sim_tests
