// SPDX-License-Identifier: Apache-2.0
// How much host memory the books take: for live blocks, and after any number of operations.
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdlib>
#include <random>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

/// On a device that gets on with its work: marks that it has not reached are kept, and counted.
struct metadata_test : heap_test {
  metadata_test() : heap_test{sim::progress::seeded} {}
};

/// What a live block may cost: its record (48 bytes) and its entry in the address table (13 to 16).
constexpr std::uint64_t bytes_a_block = 64;

/// What there is whatever is allocated, of one thread and one stream: the allocator with the roots
/// of its tables, the first records and the first address table, the thread's cache with its lists
/// of that stream, the tags' ledgers, and the arena's maps of handles.
[[nodiscard]] std::uint64_t base_of(caching_allocator& memory, const stream& on) {
  void* const first = memory.allocate(512_B, on);
  const std::uint64_t base = memory.stats().metadata.count();
  memory.deallocate(first, on);
  return base;
}

TEST_F(metadata_test, the_base_is_small) {
  auto memory = make();
  const auto on = new_stream();
  const std::uint64_t base = base_of(memory, on);
  RecordProperty("base", std::to_string(base));
  EXPECT_GE(base, sizeof(heap::central_heap));
  EXPECT_LE(base, (512_KiB).count());
}

/// While it lives, the kernel gives the process no more memory that can be written.
class full_host {
 public:
  full_host() {
    EXPECT_EQ(getrlimit(RLIMIT_DATA, &before_), 0);
    const rlimit now{.rlim_cur = 1, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_DATA, &now), 0);
  }
  ~full_host() { EXPECT_EQ(setrlimit(RLIMIT_DATA, &before_), 0); }
  full_host(const full_host&) = delete;
  full_host& operator=(const full_host&) = delete;

  /// Whether this kernel counts memory that becomes writable.
  [[nodiscard]] static bool can_be() {
    void* const page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    const bool refused = [&] {
      const full_host full;
      return mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0;
    }();
    munmap(page, 4096);
    return refused;
  }

 private:
  rlimit before_{};
};

TEST_F(metadata_test, a_request_is_refused_where_the_host_has_no_memory_for_its_records) {
  if (!full_host::can_be()) GTEST_SKIP() << "the kernel does not count such memory";
  constexpr std::size_t records = 4095;  // that there is memory for from the beginning
  auto memory = make({.thread_cache = {}});
  const auto on = new_stream();
  const auto in_use = [&] { return memory.snapshot().pools.front().blocks.size(); };
  std::vector<void*> all;
  while (all.size() < records - 4) all.push_back(memory.allocate(512_B, on));
  ASSERT_EQ(in_use(), records - 3) << "the blocks, and what is free behind them";
  const auto refused = [&] {
    const full_host full;
    return memory.try_allocate(512_B, on);
  }();
  EXPECT_EQ(code_of(refused), errc::no_host_memory) << "a request may need four";
  EXPECT_EQ(in_use(), records - 3);
  all.push_back(memory.allocate(512_B, on));
  EXPECT_EQ(in_use(), records - 2);
  for (void* const p : all) memory.deallocate(p, on);
  EXPECT_EQ(check(memory), "");
}

TEST_F(metadata_test, a_live_block_costs_at_most64_bytes) {
  constexpr std::uint64_t live = 100'000;
  auto memory = make();
  const auto on = new_stream();
  const std::uint64_t base = base_of(memory, on);
  std::mt19937_64 random{1};
  std::uniform_int_distribution<std::uint64_t> size{1, 16'384};
  std::vector<void*> all;
  for (std::uint64_t i = 0; i < live; ++i) all.push_back(memory.allocate(bytes{size(random)}, on));
  const auto now = memory.stats();
  ASSERT_EQ(now.blocks.current, live);
  RecordProperty("bytes_a_block", std::to_string((now.metadata.count() - base) / live));
  EXPECT_LE(now.metadata.count(), bytes_a_block * live + base)
      << static_cast<double>(now.metadata.count() - base) / static_cast<double>(live) << " a block";
  // And it is counted at all: no fewer than the records.
  EXPECT_GE(now.metadata.count(), sizeof(heap::block) * live);
  for (void* const p : all) memory.deallocate(p, on);
  EXPECT_EQ(check(memory), "");
}

/// Random requests and frees on four streams around a level of live blocks that is reached early.
TEST_F(metadata_test, does_not_grow_with_operations) {
  const bool is_long = std::getenv("WEIR_LONG") != nullptr;
  const std::uint64_t operations = is_long ? 100'000'000 : 1'000'000;
  constexpr std::size_t most_live = 2000;
  auto memory = make();
  std::vector<stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(new_stream());
  std::uint64_t base = 0;
  for (const stream& each : streams) base = base_of(memory, each);

  std::mt19937_64 random{2};
  struct piece {
    void* address;
    std::size_t on;
  };
  std::vector<piece> live;
  std::uint64_t early = 0;  // most metadata in the first tenth
  std::uint64_t late = 0;   // and in the rest
  for (std::uint64_t i = 0; i < operations; ++i) {
    const std::uint64_t dice = random();
    const bool full = live.size() == most_live;
    if (!full && (live.empty() || dice % 100 < 55)) {
      const std::uint64_t size = std::uint64_t{1} << (dice >> 8) % 19;  // to 512 KiB
      const std::size_t on = (dice >> 16) % streams.size();
      live.push_back({memory.allocate(bytes{size + (dice >> 24) % size}, streams[on]), on});
    } else {
      std::swap(live[(dice >> 32) % live.size()], live.back());
      memory.deallocate(live.back().address, streams[live.back().on]);
      live.pop_back();
    }
    if (i % 1000 != 0) continue;
    const std::uint64_t now = memory.stats().metadata.count();
    (i < operations / 10 ? early : late) = std::max(i < operations / 10 ? early : late, now);
  }
  RecordProperty("base", std::to_string(base));
  RecordProperty("early", std::to_string(early));
  RecordProperty("late", std::to_string(late));
  // A hundredth: marks on streams that the device has just not reached.
  EXPECT_LE(late, early + early / 100) << "the level of live blocks was reached before";
  // Between any two live blocks there is at most one free piece, which has a record but no entry in
  // the table.
  EXPECT_LE(late, base + (bytes_a_block + sizeof(heap::block)) * most_live);
  for (const piece& each : live) memory.deallocate(each.address, streams[each.on]);
  EXPECT_EQ(check(memory), "");
}

}  // namespace
}  // namespace weir::testing_support
