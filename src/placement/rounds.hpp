// SPDX-License-Identifier: Apache-2.0
// Whether a program's large requests repeat, and where those of one round could lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "placement/block.hpp"
#include "placement/fit_index.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// The large requests that an arena had lately, and where those of a repeating round could lie.
///
/// A program that makes the same requests in every step can still move memory in every step: each
/// request takes what lies best for it, and leaves another layout to the next. Where a whole round
/// is known beforehand its blocks can be placed so that none has to move. So requests are noted as
/// soon as memory moves. A round is a row of requests that came three times in succession. Its plan
/// is a best fit with known lifetimes (offline_fit.hpp). An example, a round of eight requests:
///
///   request     a   b   c   d   e   f   g   h   a   b   ...
///   MiB        20   6   2   2  10   4   2   2  20   6
///   lifetime    8   4   2   2   8   4   2   2   8   4      requests until it is freed
///
///   After 32 requests noted_ is 32, and expected_ is 24: the last time that eight requests were
///   like the last eight, request 24 followed, an a. round_length() is noted_ - expected_ = 8.
///
///   plan_begin_ + 38 MiB   . . . d d . . .
///               + 36 MiB   h . c c . . . h
///               + 34 MiB   . b b b b . g g
///               + 30 MiB   f b b b b f f f
///               + 20 MiB   e e e e e e e e
///   plan_begin_            a a a a a a a a
///   during request         a b c d e f g h
///
///   The largest are placed first: a, e, b, f and so on. e, f and h live on into the next round. b
///   and f have the same place, because they are never alive together. plan_height_ is 40 MiB; so
///   much is alive at a time, and no plan is lower.
///
/// Nothing depends on the program keeping to it: the plan names a place for the next request as
/// long as requests come in their order, and the arena takes it if it is free.
///
/// Requests count as large from more than a mebibyte on, so one block at most begins in each
/// mebibyte. Where the host has no memory for the notes there are none.
///
/// Owned by an arena, under the heap's lock. Notes are taken while memory moves or a plan serves,
/// and cost a comparison otherwise; a plan costs the square of its requests, milliseconds at most.
class rounds {
 public:
  /// The most requests of a round.
  static constexpr std::size_t longest = 2048;
  /// The fewest: less is a loop somewhere in a step.
  static constexpr std::size_t shortest = 8;
  /// No place.
  static constexpr std::uint64_t nowhere = 0;

  /// For an arena whose addresses begin there.
  explicit rounds(std::uint64_t base) noexcept : base_{base} {}

  [[nodiscard]] static constexpr bool is_large(std::uint64_t units) noexcept {
    return units > fit_index::large;
  }

  /// So many slots were moved: requests are noted from now on, for some rounds.
  void moved(std::uint64_t slots) noexcept;
  /// Whether requests and frees are to be told.
  [[nodiscard]] bool notes() const noexcept { return notes_left_ != 0; }
  /// A large block was handed out, or came back.
  void requested(const block& given) noexcept;
  void freed(const block& given) noexcept;

  [[nodiscard]] bool has_plan() const noexcept { return plan_height_ != 0; }
  /// Where the plan has the next request, if it is this one.
  [[nodiscard]] std::uint64_t place_of(unit_count units, stream_slot stream) const noexcept;
  /// That place could not be had. After four times in a row it is not named again.
  void miss_place(unit_count units, stream_slot stream) noexcept;
  /// Whether the address lies where planned blocks go.
  [[nodiscard]] bool is_planned(std::uint64_t address) const noexcept {
    return address - plan_begin_ < plan_height_;
  }

  /// Whether two rounds have just ended, like one before them, each of which moved a sixty-fourth
  /// of what is reserved, all for one stream: moving everything once more, to where the next rounds
  /// lie, is paid for by sixty-four. A program that comes to rest by itself is none of those.
  [[nodiscard]] bool is_worth_a_plan(std::uint64_t reserved_slots) const noexcept;
  struct outline {
    std::uint64_t height = 0;  // bytes; 0: nothing of the round can be planned
    std::uint64_t live = 0;    // bytes of planned blocks between two rounds
  };
  /// Plans that round, and serves for nothing until it is laid out.
  [[nodiscard]] outline plan();
  /// From there on lie the blocks of the plan that was just made.
  void lay_out(std::uint64_t low) noexcept;
  /// Whether requests have been coming as planned for more than three rounds, and a quarter of what
  /// is reserved was moved in this one all the same.
  [[nodiscard]] bool has_failed(std::uint64_t reserved_slots) const noexcept;
  /// There is no plan any more; what is noted stays.
  void drop_plan() noexcept { plan_begin_ = plan_height_ = 0; }
  /// Nothing is noted any more, until memory moves again.
  void forget() noexcept;

  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  /// How many requests are remembered: two rounds.
  static constexpr std::size_t kept = 2 * longest;
  /// How many requests in a row are looked for where requests left their order.
  static constexpr std::size_t context = 8;
  static constexpr std::uint64_t unknown = ~std::uint64_t{0};
  static constexpr std::uint32_t most_misses = 4;

  static_assert(fit_index::large * unit == std::uint64_t{1} << 20,
                "one block at most begins in a mebibyte: request_at_mebibyte_");

  struct note {
    unit_count units;
    stream_slot stream = no_stream;
    std::uint32_t lifetime = 0;      // requests until it was freed, itself counted; 0: it lives
    std::uint32_t plan_number = 0;   // of the request in the plan, from 1 on; 0: it has none
    std::uint64_t live_before = 0;   // units of large blocks before it, from any start on
    std::uint64_t moved_before = 0;  // slots before it
  };

  struct place {
    std::uint64_t address = nowhere;  // an offset until the plan is laid out
    unit_count units;                 // of the request
    std::uint32_t misses = 0;         // in a row
    std::uint64_t missed_by = 0;      // the number of the request that missed it last
  };

  [[nodiscard]] note& at(std::uint64_t number) noexcept { return notes_[number % kept]; }
  [[nodiscard]] const note& at(std::uint64_t number) const noexcept {
    return notes_[number % kept];
  }
  [[nodiscard]] bool is_kept(std::uint64_t number) const noexcept {
    return number < noted_ && noted_ - number <= kept;
  }
  /// Whether the request is the one that is expected: it followed when the last ones came before.
  [[nodiscard]] bool is_expected(unit_count units, stream_slot stream) const noexcept {
    return is_kept(expected_) && at(expected_).units == units && at(expected_).stream == stream;
  }
  /// How many requests ago the expected one came.
  [[nodiscard]] std::uint64_t round_length() const noexcept { return noted_ - expected_; }
  /// The number that the next request has in the plan, if it is this one: that behind the last one,
  /// or that of the expected one. 0: none.
  [[nodiscard]] std::uint32_t plan_number_of(unit_count units, stream_slot stream) const noexcept;
  /// A hash of the last requests; an index of successors_.
  [[nodiscard]] std::uint64_t recent_requests() const noexcept;

  std::uint64_t base_;  // the arena's first address

  // The notes. Requests have numbers, in their order: 0 … noted_ - 1.
  std::uint64_t notes_left_ = 0;  // requests that are still noted if nothing moves; 0: none is
  std::vector<note> notes_;       // a ring: the last ones, by number
  std::uint64_t noted_ = 0;       // requests noted
  std::vector<std::uint64_t> successors_;           // by recent_requests(): which request came next
  std::vector<std::uint64_t> request_at_mebibyte_;  // 1 + the request whose block begins there
  std::uint64_t expected_ = unknown;        // the earlier request that comes now, if they repeat
  std::uint64_t repeats_in_a_row_ = 0;      // requests that were the expected ones
  std::uint64_t same_stream_in_a_row_ = 0;  // requests of one stream
  std::uint64_t live_units_ = 0;            // of large blocks, from any start on
  std::uint64_t moved_slots_ = 0;           // in all

  // The plan. It is there if its height is not 0.
  std::vector<place> places_;             // of its requests, in their order
  std::uint64_t plan_begin_ = 0;          // the address from which on its blocks lie
  std::uint64_t plan_height_ = 0;         // bytes
  std::uint64_t settled_at_ = 0;          // the value of noted_ from which on nothing should move
  std::uint64_t moved_when_settled_ = 0;  // moved_slots_ then, or when the last round since ended
  std::uint64_t next_plan_at_ = 0;        // the value of noted_ from which on another may be made
  unsigned plans_made_ = 0;
};

}}}  // namespace weir::v0::placement
