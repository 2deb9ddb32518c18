// SPDX-License-Identifier: Apache-2.0
// The host memory of a bare core for the contents of suspended pools.
#include "heap/heap_backup.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using heap::backup_copies;
using heap::backup_piece;
using heap::heap_backup;
using heap::pool_state;
using heap::saved_range;

class heap_backup_test : public heap_test {
 protected:
  static constexpr std::uint64_t kib = 1024;

  /// Contents of a pool that begin at that address.
  void save(pool_state& pool, std::uint64_t address, std::uint64_t size, host_memory_kind kind) {
    pool.saved.push_back({address, part.of(kind).take_whole(size).value()});
    pool.saved_in = kind;
  }
  void drop(pool_state& pool, std::uint64_t start, std::uint64_t end) {
    const detail::mutex_lock lock{core.mutex_};
    part.drop(pool, start, end);
  }
  void drop(pool_state& pool) {
    const detail::mutex_lock lock{core.mutex_};
    part.drop(pool);
  }
  /// What is saved of the pool: address, size, and where in the host memory from `base` on.
  struct place {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    std::int64_t offset = 0;
    friend bool operator==(const place&, const place&) = default;
  };
  [[nodiscard]] static std::vector<place> saved_of(const pool_state& pool, const std::byte* base) {
    std::vector<place> all;
    for (const saved_range& each : pool.saved)
      all.push_back({each.address, each.to.size, each.to.host - base});
    return all;
  }

  bare_core core{gpu(), {}};
  heap_backup part{core};
};

TEST_F(heap_backup_test, memory_is_reserved_and_trimmed) {
  ASSERT_TRUE(part.reserve(40_MiB, host_memory_kind::pageable));
  EXPECT_EQ(part.held(), (byte_gauge{64_MiB, 64_MiB})) << "in steps of 32 MiB";
  ASSERT_TRUE(part.reserve(1_MiB, host_memory_kind::pinned));
  EXPECT_EQ(part.held().current, 96_MiB) << "both kinds together";
  EXPECT_EQ(part.trim().value(), 96_MiB);
  EXPECT_EQ(part.held(), (byte_gauge{0_B, 96_MiB}));
  part.reset_peak();
  EXPECT_EQ(part.held(), (byte_gauge{0_B, 0_B}));
}

TEST_F(heap_backup_test, of_contents_any_part_is_dropped) {
  for (const auto kind : {host_memory_kind::pinned, host_memory_kind::pageable}) {
    pool_state pool;
    save(pool, 100 * kib, 20 * kib, kind);
    const std::byte* const base = pool.saved.front().to.host;
    drop(pool, 0, 100 * kib);
    drop(pool, 120 * kib, 200 * kib);
    EXPECT_EQ(saved_of(pool, base), (std::vector<place>{{100 * kib, 20 * kib, 0}}));
    drop(pool, 90 * kib, 102 * kib);
    EXPECT_EQ(saved_of(pool, base), (std::vector<place>{{102 * kib, 18 * kib, 2 * kib}}));
    drop(pool, 108 * kib, 110 * kib);
    EXPECT_EQ(saved_of(pool, base),
              (std::vector<place>{{102 * kib, 6 * kib, 2 * kib}, {110 * kib, 10 * kib, 10 * kib}}));
    EXPECT_EQ(part.trim().value(), 0_B) << "some is in use";
    drop(pool, 106 * kib, 116 * kib);
    EXPECT_EQ(saved_of(pool, base),
              (std::vector<place>{{102 * kib, 4 * kib, 2 * kib}, {116 * kib, 4 * kib, 16 * kib}}));
    drop(pool, 102 * kib, 106 * kib);
    EXPECT_EQ(saved_of(pool, base), (std::vector<place>{{116 * kib, 4 * kib, 16 * kib}}));
    drop(pool);
    EXPECT_TRUE(pool.saved.empty());
    EXPECT_EQ(part.trim().value(), 32_MiB) << "every byte was given back";
  }
}

TEST_F(heap_backup_test, a_copier_that_was_kept_serves_the_next_move) {
  const detail::mutex_lock lock{core.mutex_};
  auto first = part.take_copies();
  auto second = part.take_copies();
  ASSERT_NE(first, nullptr);
  const backup_copies* const known = first.get();
  first->stop();
  part.keep_copies(std::move(first));
  EXPECT_EQ(part.take_copies().get(), known);
  EXPECT_NE(second.get(), known);
}

TEST_F(heap_backup_test, release_returns_what_pools_have_as_well) {
  const detail::mutex_lock lock{core.mutex_};
  pool_state& pool = core.add_pool("some");
  save(pool, 1 << 20, 4 * kib, host_memory_kind::pageable);
  save(*core.pools_.front(), 2 << 20, 4 * kib, host_memory_kind::pinned);
  core.closed_ = true;
  ASSERT_TRUE(part.release());
  EXPECT_EQ(part.held().current, 0_B);
  EXPECT_TRUE(pool.saved.empty());
  EXPECT_TRUE(core.pools_.front()->saved.empty());
}

TEST_F(heap_backup_test, a_closed_heap_takes_no_memory) {
  core.closed_ = true;
  EXPECT_EQ(code_of(part.reserve(1_MiB, host_memory_kind::pinned)), errc::closed);
  EXPECT_EQ(code_of(part.trim()), errc::closed);
  EXPECT_EQ(part.held().current, 0_B);
}

}}  // namespace weir::testing_support
