// SPDX-License-Identifier: Apache-2.0
// Host memory for suspended contents, range by range, and the copies there and back, call by call.
#include "heap/backup.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "heap/graph_fixture.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using heap::backup_copies;
using heap::backup_memory;
using heap::backup_piece;
using heap::copy_meter;
using ::testing::Each;
using ::testing::ElementsAre;

// --- Memory --------------------------------------------------------------------------------------

class backup_test : public graph_test {
 protected:
  static constexpr host_memory_kind kinds[] = {host_memory_kind::pinned,
                                               host_memory_kind::pageable};
  static constexpr std::uint64_t mib = 1 << 20;
  heap::backup_gauge held;
  using stretch = std::pair<const std::byte*, std::uint64_t>;

  [[nodiscard]] static std::vector<stretch> as_stretches(const std::vector<backup_piece>& pieces) {
    std::vector<stretch> all;
    for (const backup_piece& each : pieces) all.emplace_back(each.host, each.size);
    return all;
  }
  [[nodiscard]] static std::vector<backup_piece> take(backup_memory& memory, std::uint64_t size) {
    std::vector<backup_piece> pieces;
    EXPECT_TRUE(memory.take(size, pieces));
    return pieces;
  }
  /// What is free, so much in all.
  [[nodiscard]] static std::vector<stretch> free_ranges(backup_memory& memory, std::uint64_t all) {
    const auto pieces = take(memory, all);
    for (const backup_piece& each : pieces) memory.give(each);
    return as_stretches(pieces);
  }
  /// Pieces of 4 MiB from the front of a segment of 32.
  [[nodiscard]] static std::vector<backup_piece> five(backup_memory& memory) {
    std::vector<backup_piece> pieces;
    for (int i = 0; i < 5; ++i) pieces.push_back(memory.take_whole(4 * mib).value());
    return pieces;
  }
  /// A segment of 32 MiB each, in the order of the list.
  [[nodiscard]] static std::vector<backup_piece> segments(backup_memory& memory, int count) {
    std::vector<backup_piece> pieces;
    for (int i = 0; i < count; ++i) pieces.push_back(memory.take_whole(32 * mib).value());
    return pieces;
  }
  [[nodiscard]] static bool is_mapped(void* address) {
    return ::msync(address, 1, MS_ASYNC) == 0 || errno != ENOMEM;
  }
};

TEST_F(backup_test, segments_come_in_steps_of_32_MiB_for_what_is_missing) {
  for (const auto kind : kinds) {
    SCOPED_TRACE(to_string(kind));
    backup_memory memory{gpu(), kind, held};
    EXPECT_EQ(memory.held(), 0u);
    EXPECT_EQ(held.read().current, 0_B);
    const auto held_with = [&](std::uint64_t size) {
      EXPECT_TRUE(memory.reserve(size));
      return memory.held() / mib;
    };
    EXPECT_EQ(held_with(0), 0u);
    EXPECT_EQ(held_with(1), 32u);
    EXPECT_EQ(held_with(32 * mib), 32u);
    EXPECT_EQ(held_with(32 * mib + 1), 64u);
    const auto taken = memory.take_whole(mib).value();
    EXPECT_EQ(held_with(63 * mib), 64u);
    EXPECT_EQ(held_with(63 * mib + 512), 96u);
    EXPECT_EQ(held_with(160 * mib), 192u) << "95 are there, and 96 more come in one";
    EXPECT_EQ(machine->calls(call::mem_host_alloc), 4u) << "of the pinned kind alone";
    memory.give(taken);
    EXPECT_EQ(memory.trim().value(), 192_MiB);
  }
}

TEST_F(backup_test, a_segment_is_a_gibibyte_at_most) {
  backup_memory memory{gpu(), host_memory_kind::pinned, held};
  ASSERT_TRUE(memory.reserve(1024 * mib));
  EXPECT_EQ(machine->calls(call::mem_host_alloc), 1u);
  EXPECT_EQ(memory.held(), 1024 * mib);
  EXPECT_EQ(memory.trim().value(), 1_GiB);
  ASSERT_TRUE(memory.reserve(1024 * mib + 1));
  EXPECT_EQ(machine->calls(call::mem_host_alloc), 3u);
  EXPECT_EQ(memory.held(), 1056 * mib);
}

TEST_F(backup_test, one_piece_is_one_segment_however_large) {
  backup_memory memory{gpu(), host_memory_kind::pinned, held};
  ASSERT_TRUE(memory.take_whole(1056 * mib + 512));
  EXPECT_EQ(machine->calls(call::mem_host_alloc), 1u);
  EXPECT_EQ(memory.held(), 1088 * mib);
}

TEST_F(backup_test, one_piece_lies_in_the_first_range_that_holds_it) {
  backup_memory memory{gpu(), host_memory_kind::pageable, held};
  const auto all = segments(memory, 2);
  const auto give = [&](std::size_t segment, std::uint64_t from, std::uint64_t size) {
    memory.give({all[segment].host + from * mib, size * mib});
  };
  give(0, 8, 2);
  give(0, 16, 8);
  give(1, 4, 9);
  const auto whole = [&](std::uint64_t size) { return memory.take_whole(size * mib).value(); };
  const backup_piece exact = whole(8);
  EXPECT_EQ(exact.host, all[0].host + 16 * mib);
  EXPECT_EQ(exact.size, 8 * mib);
  EXPECT_EQ(whole(8).host, all[1].host + 4 * mib) << "the first segment has none any more";
  EXPECT_EQ(whole(1).host, all[0].host + 8 * mib);
  EXPECT_EQ(whole(1).host, all[0].host + 9 * mib) << "what is left of the range";
  EXPECT_EQ(whole(1).host, all[1].host + 12 * mib);
  EXPECT_EQ(memory.held(), 64 * mib);
  give(0, 0, 4);
  give(1, 0, 4);
  const backup_piece fresh = whole(8);
  EXPECT_EQ(memory.held(), 96 * mib) << "8 MiB are free, but not in one";
  give(0, 4, 1);
  EXPECT_EQ(whole(5).host, all[0].host);
  memory.give(fresh);
  EXPECT_EQ(memory.trim().value(), 32_MiB);
}

TEST_F(backup_test, what_is_given_back_joins_what_is_free_before_and_behind) {
  for (const auto kind : kinds) {
    SCOPED_TRACE(to_string(kind));
    backup_memory memory{gpu(), kind, held};
    const auto pieces = five(memory);
    const std::byte* const base = pieces[0].host;
    const auto at = [&](std::uint64_t from, std::uint64_t size) {
      return stretch{base + from * mib, size * mib};
    };
    const auto free_with = [&](std::size_t given, std::uint64_t all) {
      memory.give(pieces[given]);
      return free_ranges(memory, all * mib);
    };
    EXPECT_THAT(free_with(1, 16), ElementsAre(at(4, 4), at(20, 12))) << "neither";
    EXPECT_THAT(free_with(3, 20), ElementsAre(at(4, 4), at(12, 4), at(20, 12)))
        << "between two, and next to neither";
    EXPECT_THAT(free_with(2, 24), ElementsAre(at(4, 12), at(20, 12))) << "both";
    EXPECT_THAT(free_with(4, 28), ElementsAre(at(4, 28))) << "both, to the end";
    EXPECT_THAT(free_with(0, 32), ElementsAre(at(0, 32))) << "behind, from the beginning";

    const auto again = five(memory);
    EXPECT_EQ(as_stretches(again), as_stretches(pieces));
    EXPECT_THAT(free_with(0, 16), ElementsAre(at(0, 4), at(20, 12)));
    EXPECT_THAT(free_with(1, 20), ElementsAre(at(0, 8), at(20, 12))) << "before";
    EXPECT_THAT(free_with(4, 24), ElementsAre(at(0, 8), at(16, 16))) << "behind";
    memory.give({pieces[2].host + 512, 512});
    const auto parts = free_ranges(memory, 24 * mib + 512);
    EXPECT_THAT(parts, ElementsAre(at(0, 8), stretch{pieces[2].host + 512, 512}, at(16, 16)))
        << "a part";
    memory.give({});
    EXPECT_EQ(memory.trim().value(), 0_B) << "nothing is nothing";
    memory.give({pieces[2].host, 512});
    memory.give({pieces[2].host + 1024, 8 * mib - 1024});
    EXPECT_EQ(memory.trim().value(), 32_MiB);
    EXPECT_EQ(memory.held(), 0u);
  }
}

TEST_F(backup_test, pieces_come_from_all_ranges_behind_those_that_are_there) {
  backup_memory memory{gpu(), host_memory_kind::pageable, held};
  const auto all = segments(memory, 2);
  memory.give({all[0].host, 8 * mib});
  memory.give({all[0].host + 16 * mib, 4 * mib});
  memory.give({all[1].host + 4 * mib, 8 * mib});
  std::byte before{};
  std::vector<backup_piece> pieces{{&before, 1}};
  ASSERT_TRUE(memory.take(14 * mib, pieces));
  EXPECT_THAT(as_stretches(pieces), ElementsAre(stretch{&before, 1}, stretch{all[0].host, 8 * mib},
                                                stretch{all[0].host + 16 * mib, 4 * mib},
                                                stretch{all[1].host + 4 * mib, 2 * mib}));
  ASSERT_TRUE(memory.take(0, pieces));
  EXPECT_EQ(pieces.size(), 4u);
  EXPECT_THAT(as_stretches(take(memory, 6 * mib)),
              ElementsAre(stretch{all[1].host + 6 * mib, 6 * mib}))
      << "all that is left";
  EXPECT_EQ(memory.held(), 64 * mib);
  EXPECT_EQ(take(memory, 512).size(), 1u);
  EXPECT_EQ(memory.held(), 96 * mib);
}

/// Segments often lie next to each other, in either order.
TEST_F(backup_test, a_piece_goes_home_though_another_segment_ends_where_it_begins) {
  for (const auto kind : kinds) {
    SCOPED_TRACE(to_string(kind));
    backup_memory memory{gpu(), kind, held};
    auto all = segments(memory, 2);
    for (int turn = 0; turn < 2; ++turn) {
      std::memset(all[0].host, 7, 512);
      memory.give(all[1]);
      ASSERT_EQ(memory.trim().value(), 32_MiB);
      EXPECT_TRUE(is_mapped(all[0].host));
      EXPECT_EQ(all[0].host[511], std::byte{7});
      all[1] = segments(memory, 1).front();
      memory.give(all[0]);
      ASSERT_EQ(memory.trim().value(), 32_MiB);
      all = {all[1], segments(memory, 1).front()};
    }
  }
}

TEST_F(backup_test, segments_of_which_nothing_is_taken_go) {
  for (const auto kind : kinds) {
    SCOPED_TRACE(to_string(kind));
    const auto returned = machine->calls(call::mem_free_host);
    backup_memory memory{gpu(), kind, held};
    const auto all = segments(memory, 4);
    memory.give(all[0]);
    memory.give({all[1].host, 32 * mib - 512});
    memory.give(all[2]);
    EXPECT_EQ(memory.trim().value(), 64_MiB);
    EXPECT_EQ(memory.held(), 64 * mib);
    EXPECT_TRUE(is_mapped(all[1].host));
    EXPECT_TRUE(is_mapped(all[3].host));
    if (kind == host_memory_kind::pageable) {
      EXPECT_FALSE(is_mapped(all[0].host));
      EXPECT_FALSE(is_mapped(all[2].host));
    }
    EXPECT_EQ(memory.trim().value(), 0_B);
    memory.give({all[1].host + 32 * mib - 512, 512});
    EXPECT_EQ(memory.trim().value(), 32_MiB);
    EXPECT_EQ(memory.held(), 32 * mib);
    EXPECT_EQ(machine->calls(call::mem_free_host) - returned,
              kind == host_memory_kind::pinned ? 3u : 0u);
  }
}

TEST_F(backup_test, a_segment_that_cannot_go_stays) {
  backup_memory memory{gpu(), host_memory_kind::pinned, held};
  for (const backup_piece& each : segments(memory, 3)) memory.give(each);
  machine->fail(call::mem_free_host, 2, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(memory.trim()), errc::driver_error);
  EXPECT_EQ(memory.held(), 64 * mib);
  EXPECT_EQ(take(memory, 64 * mib).size(), 2u);
  EXPECT_EQ(memory.held(), 64 * mib);
}

TEST_F(backup_test, all_of_it_goes_with_the_arena) {
  std::byte* plain = nullptr;
  {
    backup_memory pinned{gpu(), host_memory_kind::pinned, held};
    backup_memory pageable{gpu(), host_memory_kind::pageable, held};
    const auto kept = segments(pinned, 2);
    pinned.give(kept[0]);
    plain = segments(pageable, 1)[0].host;
    machine->fail(call::mem_free_host, 2, driver::CUDA_ERROR_UNKNOWN);
  }
  EXPECT_EQ(machine->calls(call::mem_free_host), 2u) << "taken or not";
  EXPECT_FALSE(is_mapped(plain));
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].code(), errc::driver_error);
}

TEST_F(backup_test, the_peak_is_the_most_that_was_held) {
  backup_memory memory{gpu(), host_memory_kind::pageable, held};
  const auto held_and_peak = [&] {
    return std::pair{memory.held() / mib, held.read().peak.count() / mib};
  };
  using amounts = std::pair<std::uint64_t, std::uint64_t>;
  ASSERT_TRUE(memory.reserve(64 * mib));
  EXPECT_EQ(held_and_peak(), (amounts{64, 64}));
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(held_and_peak(), (amounts{0, 64}));
  ASSERT_TRUE(memory.reserve(32 * mib));
  EXPECT_EQ(held_and_peak(), (amounts{32, 64}));
  held.reset_peak();
  EXPECT_EQ(held_and_peak(), (amounts{32, 32}));
  ASSERT_TRUE(memory.reserve(96 * mib));
  EXPECT_EQ(held_and_peak(), (amounts{96, 96}));
}

TEST_F(backup_test, pinned_memory_is_pinned_for_every_device) {
  backup_memory memory{gpu(), host_memory_kind::pinned, held};
  unsigned flags = 0;
  ASSERT_EQ(cuda().mem_host_get_flags(&flags, segments(memory, 1)[0].host), driver::CUDA_SUCCESS);
  EXPECT_NE(flags & driver::host_alloc_portable, 0u);
}

TEST_F(backup_test, a_refusal_says_how_much_of_what_was_asked_for) {
  backup_memory memory{gpu(), host_memory_kind::pinned, held};
  const auto refused_with = [&](call failing, driver::CUresult with) {
    machine->fail(failing, 1, with);
    std::vector<backup_piece> pieces;
    const auto refused = memory.take(33 * mib, pieces);
    EXPECT_EQ(pieces.size(), 0u);
    EXPECT_EQ(memory.held(), 0u);
    return refused ? error{} : refused.error();
  };
  EXPECT_EQ(refused_with(call::mem_host_alloc, driver::CUDA_ERROR_OUT_OF_MEMORY),
            (error{{.code = errc::no_host_memory,
                    .requested = 64_MiB,
                    .detail = "for contents of suspended memory, pinned"}}));
  const error other = refused_with(call::mem_host_alloc, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(other.code(), errc::driver_error);
  EXPECT_EQ(other.requested(), 64_MiB);
  const auto asked = machine->calls(call::mem_host_alloc);
  EXPECT_EQ(refused_with(call::ctx_push_current, driver::CUDA_ERROR_OUT_OF_MEMORY).code(),
            errc::out_of_memory);
  EXPECT_EQ(machine->calls(call::mem_host_alloc), asked) << "not without a context";
  machine->fail(call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(memory.take_whole(512).error().requested(), 32_MiB);

  backup_memory pageable{gpu(), host_memory_kind::pageable, held};
  EXPECT_EQ(pageable.take_whole(std::uint64_t{1} << 60).error(),
            (error{{.code = errc::no_host_memory,
                    .requested = bytes{std::uint64_t{1} << 60},
                    .detail = "for contents of suspended memory, pageable"}}));
  EXPECT_EQ(pageable.held(), 0u);
}

TEST_F(backup_test, what_is_taken_stays_where_more_is_refused) {
  backup_memory memory{gpu(), host_memory_kind::pinned, held};
  const backup_piece taken = memory.take_whole(mib).value();
  std::memset(taken.host, 5, taken.size);
  machine->fail(call::mem_host_alloc, 2, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(code_of(memory.reserve(2048 * mib)), errc::no_host_memory);
  EXPECT_EQ(memory.held(), 32 * mib);
  EXPECT_EQ(held.read().peak.count(), 1056 * mib);
  EXPECT_EQ(taken.host[mib - 1], std::byte{5});
  EXPECT_EQ(memory.take_whole(31 * mib).value().host, taken.host + mib);
}

// --- Copies --------------------------------------------------------------------------------------

/// Device memory with contents of which no two chunks are equal, and host memory of either kind.
class backup_copies_test : public backup_test {
 protected:
  static constexpr bytes chunk = 4_KiB;
  static constexpr std::uint64_t most = 64 << 10;
  using steps = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

  backup_copies_test() {
    for (std::size_t i = 0; i < most; ++i)
      contents[i] = static_cast<unsigned char>(1 + (i * 31 + i / 1024 * 7) % 255);
    device_memory = allocate_plain(bound, bytes{most}).value();
    upload(contents);
  }
  /// Complete when it returns. A copy from pageable memory alone is not: it may still be on its
  /// way.
  void upload(const std::vector<unsigned char>& from) {
    EXPECT_EQ(cuda().memcpy_htod(device_memory, from.data(), most), driver::CUDA_SUCCESS);
    EXPECT_EQ(cuda().ctx_synchronize(), driver::CUDA_SUCCESS);
  }
  [[nodiscard]] backup_memory& of(host_memory_kind kind) {
    return kind == host_memory_kind::pinned ? pinned : pageable;
  }
  /// All zero.
  [[nodiscard]] backup_piece host(host_memory_kind kind, std::uint64_t size) {
    const backup_piece piece = of(kind).take_whole(size).value();
    std::memset(piece.host, 0, size);
    return piece;
  }
  [[nodiscard]] backup_piece filled_host(host_memory_kind kind, std::uint64_t size) {
    const backup_piece piece = of(kind).take_whole(size).value();
    std::memcpy(piece.host, contents.data(), size);
    return piece;
  }
  void clear_device() { upload(std::vector<unsigned char>(most)); }
  /// How many bytes are there from the beginning.
  [[nodiscard]] std::uint64_t arrived(const void* at, std::uint64_t size) const {
    const auto* const seen = static_cast<const unsigned char*>(at);
    return static_cast<std::uint64_t>(std::mismatch(seen, seen + size, contents.begin()).first -
                                      seen);
  }
  [[nodiscard]] std::uint64_t arrived(const backup_piece& piece) const {
    return arrived(piece.host, piece.size);
  }
  [[nodiscard]] std::uint64_t arrived_on_device() const {
    std::vector<unsigned char> seen(most);
    EXPECT_EQ(cuda().memcpy_dtoh(seen.data(), device_memory, most), driver::CUDA_SUCCESS);
    return arrived(seen.data(), most);
  }
  [[nodiscard]] result<void> begin(host_memory_kind kind, copy_meter& with, bytes size = chunk) {
    return copies.begin(kind, size, with, bound);
  }
  [[nodiscard]] result<void> begin(host_memory_kind kind, bytes size = chunk) {
    return begin(kind, unread, size);
  }

  const context_scope bound{gpu()};
  std::vector<unsigned char> contents = std::vector<unsigned char>(most);
  device_address device_memory = 0;
  steps told;
  const suspend_progress nobody{};
  const suspend_progress reader = [this](bytes done, bytes total) {
    told.emplace_back(done.count(), total.count());
  };
  copy_meter unread{nobody, 0};
  backup_memory pinned{gpu(), host_memory_kind::pinned, held};
  backup_memory pageable{gpu(), host_memory_kind::pageable, held};
  backup_copies copies{gpu(), pinned};
};

TEST_F(backup_copies_test, pinned_contents_are_queued_in_chunks_and_waited_for_at_the_end) {
  backup_piece to = host(host_memory_kind::pinned, 32 << 10);
  to.size = 18 << 10;
  ASSERT_TRUE(begin(host_memory_kind::pinned));
  ASSERT_TRUE(copies.save(device_memory, to, bound));
  EXPECT_EQ(machine->calls(call::memcpy_dtoh_async), 5u);
  EXPECT_EQ(machine->calls(call::stream_synchronize), 0u);
  EXPECT_EQ(arrived(to), 0u) << "nobody waited";
  ASSERT_TRUE(copies.finish(bound));
  EXPECT_EQ(arrived(to), to.size);
  EXPECT_EQ(to.host[to.size], std::byte{0});
  EXPECT_EQ(machine->calls(call::event_synchronize), 4u);
  EXPECT_EQ(machine->calls(call::stream_synchronize), 4u);
  EXPECT_EQ(pinned.held(), 32 * mib) << "nothing is staged";

  clear_device();
  ASSERT_TRUE(copies.restore(device_memory, to, bound));
  EXPECT_EQ(machine->calls(call::memcpy_htod_async), 5u);
  EXPECT_EQ(machine->calls(call::stream_synchronize), 4u);
  ASSERT_TRUE(copies.finish(bound));
  EXPECT_EQ(arrived_on_device(), to.size);
  copies.drain(bound);
}

TEST_F(backup_copies_test, contents_that_are_not_pinned_arrive_when_their_lane_is_needed_again) {
  const backup_piece to = host(host_memory_kind::pageable, 22 << 10);
  ASSERT_TRUE(begin(host_memory_kind::pageable));
  ASSERT_TRUE(copies.save(device_memory, {to.host, 16 << 10}, bound));
  EXPECT_EQ(machine->calls(call::memcpy_dtoh_async), 4u);
  EXPECT_EQ(machine->calls(call::stream_synchronize), 4u);
  EXPECT_EQ(arrived(to), 0u);
  ASSERT_TRUE(copies.save(device_memory + (16 << 10), {to.host + (16 << 10), 6 << 10}, bound));
  EXPECT_EQ(arrived(to), 8u << 10) << "two chunks made way";
  ASSERT_TRUE(copies.finish(bound));
  EXPECT_EQ(arrived(to), to.size);
  EXPECT_EQ(machine->calls(call::event_create), 0u);
  copies.drain(bound);
}

TEST_F(backup_copies_test, contents_that_are_not_pinned_are_read_when_they_are_queued) {
  const backup_piece from = filled_host(host_memory_kind::pageable, 22 << 10);
  clear_device();
  ASSERT_TRUE(begin(host_memory_kind::pageable));
  ASSERT_TRUE(copies.restore(device_memory, from, bound));
  EXPECT_EQ(machine->calls(call::memcpy_htod_async), 6u);
  EXPECT_EQ(machine->calls(call::stream_synchronize), 6u) << "one copy at a time";
  std::memset(from.host, 0, from.size);
  ASSERT_TRUE(copies.finish(bound));
  EXPECT_EQ(arrived_on_device(), from.size);
  EXPECT_EQ(arrived(from), 0u) << "nothing came the other way";
  copies.drain(bound);
}

TEST_F(backup_copies_test, what_is_staged_is_8_MiB_at_most_and_goes_back_at_the_end) {
  ASSERT_TRUE(begin(host_memory_kind::pageable, 32_MiB));
  EXPECT_EQ(pinned.held(), 32 * mib);
  const backup_piece beside = pinned.take_whole(512).value();
  EXPECT_EQ(pinned.held(), 64 * mib) << "four pieces of 8 MiB leave nothing";
  pinned.give(beside);
  copies.drain(bound);
  EXPECT_EQ(pinned.trim().value(), 64_MiB);
  ASSERT_TRUE(begin(host_memory_kind::pageable, 8_MiB - 512_B));
  ASSERT_TRUE(pinned.take_whole(2048));
  EXPECT_EQ(pinned.held(), 32 * mib) << "no more than a chunk each";
  copies.drain(bound);
  copies.drain(bound);
  EXPECT_EQ(pinned.take_whole(32 * mib - 2048).value().size, 32 * mib - 2048);
  EXPECT_EQ(pinned.held(), 32 * mib);
}

TEST_F(backup_copies_test, pinned_contents_are_copied_in_chunks_of_any_size) {
  const auto large = allocate_plain(bound, 9_MiB).value();
  const backup_piece to = host(host_memory_kind::pinned, 9 * mib);
  ASSERT_TRUE(begin(host_memory_kind::pinned, 9_MiB));
  ASSERT_TRUE(copies.save(large, to, bound));
  EXPECT_EQ(machine->calls(call::memcpy_dtoh_async), 1u);
  ASSERT_TRUE(copies.finish(bound));
  copies.drain(bound);
}

/// Copies of 1, 2, … KiB: what is told says whose they are.
TEST_F(backup_copies_test, what_has_arrived_is_told_lane_by_lane_the_oldest_first) {
  for (const auto kind : kinds) {
    for (const bool back : {false, true}) {
      SCOPED_TRACE(to_string(kind) + (back ? ", back" : ""));
      told.clear();
      copy_meter meter{reader, 21 << 10};
      ASSERT_TRUE(begin(kind, meter, 16_KiB));
      const backup_piece all = filled_host(kind, 32 << 10);
      std::uint64_t at = 0;
      const auto copy = [&](std::uint64_t kib) {
        const backup_piece piece{all.host + at, kib << 10};
        const auto address = device_memory + std::exchange(at, at + piece.size);
        return back ? copies.restore(address, piece, bound) : copies.save(address, piece, bound);
      };
      for (const std::uint64_t each : {1, 2, 3, 4}) {
        ASSERT_TRUE(copy(each));
        EXPECT_EQ(told.size(), 0u);
      }
      ASSERT_TRUE(copy(5));
      ASSERT_TRUE(copy(6));
      EXPECT_EQ(told, (steps{{1 << 10, 21 << 10}, {3 << 10, 21 << 10}}));
      ASSERT_TRUE(copies.finish(bound));
      EXPECT_EQ(told, (steps{{1 << 10, 21 << 10},
                             {3 << 10, 21 << 10},
                             {6 << 10, 21 << 10},
                             {10 << 10, 21 << 10},
                             {15 << 10, 21 << 10},
                             {21 << 10, 21 << 10}}));
      ASSERT_TRUE(copies.finish(bound));
      EXPECT_EQ(told.size(), 6u) << "once each";
      copies.drain(bound);
      ASSERT_TRUE(begin(kind));
      ASSERT_TRUE(copy(1));
      ASSERT_TRUE(copy(1));
      ASSERT_TRUE(copies.finish(bound));
      EXPECT_EQ(told.size(), 6u) << "nobody asks any more";
      copies.drain(bound);
    }
  }
}

TEST_F(backup_copies_test, what_was_drained_is_forgotten) {
  const backup_piece to = host(host_memory_kind::pageable, 4 << 10);
  copy_meter meter{reader, to.size};
  ASSERT_TRUE(begin(host_memory_kind::pageable, meter));
  ASSERT_TRUE(copies.save(device_memory, to, bound));
  copies.drain(bound);
  EXPECT_EQ(arrived(to), 0u) << "nothing of it matters";
  ASSERT_TRUE(begin(host_memory_kind::pageable, meter));
  ASSERT_TRUE(copies.finish(bound));
  EXPECT_EQ(arrived(to), 0u);
  EXPECT_EQ(told, steps{});
  copies.drain(bound);
  EXPECT_EQ(pinned.trim().value(), 32_MiB);
}

TEST_F(backup_copies_test, to_drain_is_to_wait) {
  const backup_piece to = host(host_memory_kind::pinned, 20 << 10);
  copies.drain(bound);
  EXPECT_EQ(machine->calls(call::stream_synchronize), 0u) << "nothing has begun";
  ASSERT_TRUE(begin(host_memory_kind::pinned));
  ASSERT_TRUE(copies.save(device_memory, to, bound));
  EXPECT_EQ(arrived(to), 0u);
  copies.drain(bound);
  EXPECT_EQ(machine->calls(call::stream_synchronize), 4u);
  EXPECT_EQ(arrived(to), to.size);
}

TEST_F(backup_copies_test, without_a_context_nothing_is_waited_for) {
  ASSERT_TRUE(begin(host_memory_kind::pageable));
  std::thread{[&] {
    machine->fail(call::ctx_push_current, 1, driver::CUDA_ERROR_UNKNOWN);
    const context_scope refused{gpu()};
    ASSERT_FALSE(refused);
    EXPECT_FALSE(copies.drain(refused));
  }}.join();
  EXPECT_EQ(machine->calls(call::stream_synchronize), 0u);
  EXPECT_EQ(pinned.trim().value(), 0_B) << "copies may still use what was staged";
}

TEST_F(backup_copies_test, work_behind_them_waits_for_every_lane) {
  const auto behind = new_stream();
  ASSERT_TRUE(copies.precede(behind, bound));
  ASSERT_TRUE(copies.finish(bound));
  EXPECT_EQ(machine->calls(call::stream_synchronize), 0u) << "nothing has begun";
  EXPECT_EQ(machine->calls(call::event_create), 0u) << "nothing has begun";
  const backup_piece to = host(host_memory_kind::pinned, 16 << 10);
  ASSERT_TRUE(begin(host_memory_kind::pinned));
  ASSERT_TRUE(copies.save(device_memory, to, bound));
  ASSERT_TRUE(copies.precede(behind, bound));
  EXPECT_EQ(machine->calls(call::stream_wait_event), 4u);
  EXPECT_EQ(arrived(to), 0u);
  ASSERT_TRUE(behind.synchronize());
  EXPECT_EQ(arrived(to), to.size);
  copies.drain(bound);
}

TEST_F(backup_copies_test, lanes_are_made_once_and_those_that_failed_again) {
  machine->fail(call::stream_create_with_priority, 3, driver::CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(begin(host_memory_kind::pageable)), errc::driver_error);
  copies.drain(bound);
  EXPECT_EQ(pinned.trim().value(), 32_MiB) << "two had theirs";
  ASSERT_TRUE(begin(host_memory_kind::pinned));
  EXPECT_EQ(machine->calls(call::stream_create_with_priority), 5u);
  copies.drain(bound);
  ASSERT_TRUE(begin(host_memory_kind::pinned));
  EXPECT_EQ(machine->calls(call::stream_create_with_priority), 5u);
  copies.drain(bound);
}

TEST_F(backup_copies_test, lanes_end_with_them) {
  { const backup_copies unused{gpu(), pinned}; }
  EXPECT_EQ(machine->calls(call::stream_destroy), 0u);
  {
    backup_copies used{gpu(), pinned};
    ASSERT_TRUE(used.begin(host_memory_kind::pinned, chunk, unread, bound));
    machine->fail(call::stream_destroy, 2, driver::CUDA_ERROR_UNKNOWN);
  }
  EXPECT_EQ(machine->calls(call::stream_destroy), 4u);
  EXPECT_EQ(heard.take().size(), 1u);
}

TEST_F(backup_copies_test, every_failure_is_told) {
  const backup_piece to = host(host_memory_kind::pinned, 6 << 10);
  const backup_piece plain = host(host_memory_kind::pageable, 6 << 10);
  const auto failing = [&](call which, std::uint64_t nth, const auto& action) {
    machine->fail(which, nth, driver::CUDA_ERROR_UNKNOWN);
    const result<void> outcome = action();
    machine->clear_faults();
    EXPECT_EQ(code_of(outcome), errc::driver_error) << static_cast<int>(which);
    return outcome ? error{} : outcome.error();
  };
  failing(call::ctx_get_stream_priority_range, 1, [&] { return begin(host_memory_kind::pinned); });
  machine->fail(call::mem_host_alloc, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(code_of(begin(host_memory_kind::pageable, 8_MiB)), errc::no_host_memory);
  copies.drain(bound);

  const auto save = [&] { return copies.save(device_memory, to, bound); };
  const auto restore = [&] { return copies.restore(device_memory, to, bound); };
  const auto finish = [&] { return copies.finish(bound); };
  const auto behind = new_stream();
  const auto precede = [&] { return copies.precede(behind, bound); };
  ASSERT_TRUE(begin(host_memory_kind::pinned));
  EXPECT_EQ(failing(call::memcpy_dtoh_async, 2, save).requested(), 2_KiB);
  ASSERT_TRUE(finish());
  EXPECT_EQ(failing(call::memcpy_htod_async, 2, restore).requested(), 2_KiB);
  for (const call each :
       {call::event_create, call::event_record, call::event_synchronize, call::stream_synchronize})
    failing(each, 4, finish);
  for (const call each : {call::event_create, call::event_record, call::stream_wait_event})
    failing(each, 4, precede);
  copies.drain(bound);

  ASSERT_TRUE(begin(host_memory_kind::pageable));
  const auto copied = machine->calls(call::memcpy_dtoh_async);
  failing(call::stream_synchronize, 1, [&] { return copies.save(device_memory, plain, bound); });
  failing(call::stream_synchronize, 1, [&] { return copies.restore(device_memory, plain, bound); });
  EXPECT_EQ(machine->calls(call::memcpy_dtoh_async), copied) << "what is there is still needed";
  copies.drain(bound);
}

TEST_F(backup_copies_test, the_legacy_stream_holds_nobody_up) {
  const backup_piece to = host(host_memory_kind::pinned, 16 << 10);
  const held_stream held{*machine, driver::legacy_stream()};
  ASSERT_TRUE(machine->launch(driver::legacy_stream(), "kernel", {}));
  ASSERT_TRUE(begin(host_memory_kind::pinned));
  ASSERT_TRUE(copies.save(device_memory, to, bound));
  ASSERT_TRUE(copies.finish(bound));
  EXPECT_EQ(arrived(to), to.size);
  copies.drain(bound);
}

/// What is copied may reach over bytes that nobody has.
TEST_F(backup_copies_test, what_lies_between_blocks_is_copied_too) {
  const auto memory = make();
  const auto on = new_stream();
  void* const block = memory.allocate(1_MiB, on);
  void* const gap = memory.allocate(1_MiB, on);
  ASSERT_EQ(static_cast<std::byte*>(block) + mib, gap);
  memory.deallocate(gap, on);
  const backup_piece to = host(host_memory_kind::pinned, 2 * mib);
  const auto address = reinterpret_cast<std::uint64_t>(block);
  ASSERT_TRUE(begin(host_memory_kind::pinned, 1_MiB));
  ASSERT_TRUE(copies.save(address, to, bound));
  ASSERT_TRUE(copies.finish(bound));
  ASSERT_TRUE(copies.restore(address, to, bound));
  ASSERT_TRUE(copies.finish(bound));
  copies.drain(bound);
  EXPECT_THAT(machine->hazards(), ::testing::IsEmpty());
  memory.deallocate(block, on);
}

/// What the driver was told of streams and events.
struct noted_flags {
  static inline const driver::table* real = nullptr;
  static inline std::vector<int> priorities;
  static inline std::vector<unsigned> events;

  static driver::table over(const driver::table& calls) {
    real = &calls;
    priorities.clear();
    events.clear();
    driver::table noting = calls;
    noting.stream_create_with_priority = [](driver::CUstream* made, unsigned flags, int priority) {
      priorities.push_back(priority);
      return real->stream_create_with_priority(made, flags, priority);
    };
    noting.event_create = [](driver::CUevent* made, unsigned flags) {
      events.push_back(flags);
      return real->event_create(made, flags);
    };
    return noting;
  }
};

TEST_F(backup_copies_test, lanes_come_after_everybody_else_and_are_waited_for_asleep) {
  const auto calls = noted_flags::over(machine->driver());
  const auto opened = runtime::open_table(calls, "notes flags", machine).value();
  const device there = opened->device(device_id{0}).value();
  const auto behind = stream::create(there).value();
  noted_flags::priorities.clear();
  backup_copies noted{there, pinned};
  const context_scope inside{there};
  ASSERT_TRUE(noted.begin(host_memory_kind::pinned, chunk, unread, inside));
  EXPECT_THAT(noted_flags::priorities, ElementsAre(0, 0, 0, 0)) << "the least there is";
  ASSERT_TRUE(noted.precede(behind, inside));
  EXPECT_THAT(noted_flags::events, Each(unsigned{driver::CU_EVENT_DISABLE_TIMING}));
  noted_flags::events.clear();
  ASSERT_TRUE(noted.finish(inside));
  EXPECT_EQ(noted_flags::events.size(), 4u);
  EXPECT_THAT(noted_flags::events,
              Each(unsigned{driver::CU_EVENT_DISABLE_TIMING | driver::CU_EVENT_BLOCKING_SYNC}));
  noted.drain(inside);
}

}  // namespace
}  // namespace weir::testing_support
