// SPDX-License-Identifier: Apache-2.0
// Random programs over growable memory, judged by the race oracle and by a model of the pages.
#include <algorithm>
#include <array>
#include <random>

#include "growable/growable_fixture.hpp"

namespace weir::testing_support { namespace {

/// Two reservations, requests of the allocator and three streams under a limit, in random order.
///
/// The program obeys the rules of streams: a page is used on the stream that committed it, or on
/// one that waited for that stream. So each hazard is a mistake of the library.
class growing_programs : public growable_test {
 protected:
  static constexpr std::size_t pages = 16;
  static constexpr int no_stream = -1;

  growing_programs() : growable_test{sim::progress::seeded, 512_MiB} {}

  struct held_block {
    void* at = nullptr;
    bytes size{};
    std::size_t stream = 0;
  };
  struct side {
    growable_memory memory;
    bytes page{};
    std::array<int, pages> owner{};  // the stream that may use the page; no_stream: not committed
  };

  void play(std::uint32_t seed, int steps);

  void wait(std::size_t waiter, std::size_t waited) {
    event behind = event::create(gpu()).value();
    ASSERT_TRUE(behind.record(streams[waited]));
    ASSERT_TRUE(streams[waiter].ref().wait(behind));
  }
  [[nodiscard]] std::size_t pick(std::size_t below) { return random() % below; }
  [[nodiscard]] static bytes committed(const side& of) {
    return of.page *
           static_cast<std::uint64_t>(std::count_if(of.owner.begin(), of.owner.end(),
                                                    [](int owner) { return owner != no_stream; }));
  }
  /// The pages of a random range.
  [[nodiscard]] std::pair<std::size_t, std::size_t> range() {
    const std::size_t first = pick(pages);
    return {first, first + 1 + pick(std::min<std::size_t>(4, pages - first))};
  }

  void commit(side& of, std::size_t on);
  void decommit(side& of);
  void use_page(side& of);
  void plan(side& of, std::size_t on);
  void request(const caching_allocator& memory, std::size_t on);
  void check_all(const caching_allocator& memory);

  std::mt19937 random{0};
  std::vector<stream> streams;
  std::vector<side> sides;
  std::vector<held_block> live;
};

void growing_programs::commit(side& of, std::size_t on) {
  const auto [first, end] = range();
  const bytes before = of.memory.stats().committed;
  const auto done = of.memory.commit(of.page * first, of.page * (end - first), streams[on]);
  if (!done) {
    EXPECT_EQ(done.code(), errc::out_of_memory);
    EXPECT_EQ(of.memory.stats().committed, before);
    return;
  }
  for (std::size_t i = first; i < end; ++i)
    if (of.owner[i] == no_stream) of.owner[i] = static_cast<int>(on);
}

void growing_programs::decommit(side& of) {
  const auto [first, end] = range();
  // A page is decommitted on a stream that may use it: page by page.
  for (std::size_t i = first; i < end; ++i) {
    if (of.owner[i] == no_stream) continue;
    const auto on = static_cast<std::size_t>(of.owner[i]);
    ASSERT_TRUE(of.memory.decommit(of.page * i, of.page, streams[on]));
    of.owner[i] = no_stream;
  }
}

void growing_programs::use_page(side& of) {
  const std::size_t page = pick(pages);
  if (of.owner[page] == no_stream) return;
  auto on = static_cast<std::size_t>(of.owner[page]);
  if (pick(4) == 0) {  // the page goes to another stream
    const std::size_t next = pick(streams.size());
    if (next != on) wait(next, on);
    of.owner[page] = static_cast<int>(next);
    on = next;
  }
  use(streams[on], of.memory, of.page * page, of.page);
}

void growing_programs::plan(side& of, std::size_t on) {
  const auto [first, end] = range();
  const byte_range in{of.page * first, of.page * (end - first)};
  auto made = of.memory.prepare({&in, 1}, {}, streams[on]);
  if (!made) {
    EXPECT_EQ(made.code(), errc::out_of_memory);
    return;
  }
  if (pick(2) == 0) return;  // the plan ends without a commit
  made->commit();
  for (std::size_t i = first; i < end; ++i)
    if (of.owner[i] == no_stream) of.owner[i] = static_cast<int>(on);
}

void growing_programs::request(const caching_allocator& memory, std::size_t on) {
  if (live.size() > 3 || (pick(2) == 0 && !live.empty())) {
    const std::size_t index = pick(live.size());
    memory.deallocate(live[index].at, streams[live[index].stream]);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
    return;
  }
  const bytes size{(1 + pick(12)) << 20};
  const auto p = memory.try_allocate(size, streams[on]);
  if (!p) {
    EXPECT_EQ(p.code(), errc::out_of_memory);
    return;
  }
  write(streams[on], *p, size);
  live.push_back({*p, size, on});
}

void growing_programs::check_all(const caching_allocator& memory) {
  bytes sum{};
  for (const side& each : sides) {
    ASSERT_EQ(each.memory.stats().committed, committed(each));
    sum += committed(each) + each.memory.stats().ahead;
  }
  for (const held_block& each : live) sum += each.size;
  const auto stats = memory.stats();
  ASSERT_EQ(stats.requested.current, sum);
  ASSERT_LE(stats.allocated.current, stats.reserved.current);
  ASSERT_LE(stats.reserved.current, memory.limit());
}

void growing_programs::play(std::uint32_t seed, int steps) {
  random.seed(seed);
  const auto memory = make();
  ASSERT_TRUE(memory.set_limit(96_MiB));
  streams.clear();
  sides.clear();
  for (int i = 0; i < 3; ++i) streams.push_back(new_stream());
  for (const bytes page : {4_MiB, 8_MiB}) {
    sides.push_back({reserve_from(memory, page * pages, page), page, {}});
    sides.back().owner.fill(no_stream);
  }
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    side& of = sides[pick(sides.size())];
    const std::size_t on = pick(streams.size());
    switch (pick(12)) {
      case 0:
      case 1:
      case 2:
        commit(of, on);
        break;
      case 3:
      case 4:
        decommit(of);
        break;
      case 5:
        plan(of, on);
        break;
      case 6:
        static_cast<void>(of.memory.commit_ahead(of.page * pick(3), streams[on]));
        break;
      case 7:
        ASSERT_TRUE(of.memory.trim());
        break;
      case 8:
        if (pick(8) == 0) {
          ASSERT_TRUE(memory.empty_cache());
        }
        request(memory, on);
        break;
      case 9:
        request(memory, on);
        break;
      default:
        use_page(of);
    }
    ASSERT_NO_FATAL_FAILURE(check_all(memory));
    ASSERT_THAT(machine->hazards(), ::testing::IsEmpty());
    if (step % 50 == 0) {
      ASSERT_EQ(heap::central_heap::of(memory).inspection().check(), "");
    }
  }
  for (const held_block& each : live) memory.deallocate(each.at, streams[each.stream]);
  live.clear();
  sides.clear();
  EXPECT_EQ(memory.stats().allocated.current, 0_B);
  EXPECT_EQ(heap::central_heap::of(memory).inspection().check(), "");
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(growing_programs, break_no_rule) {
  for (std::uint32_t seed = 1; seed <= (is_sanitized ? 4u : 24u); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_NO_FATAL_FAILURE(play(seed, 300));
  }
}

}}  // namespace weir::testing_support
