// Whether a program's large requests repeat, and where those of one round could lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "placement/block.hpp"
#include "placement/fit_index.hpp"

namespace weir { inline namespace v0 { namespace placement {

/// The large requests that an arena met lately, as far as they are worth remembering.
///
/// A program that makes the same requests in every step can still move memory in every step: each
/// request takes what lies best for it, and leaves another layout to the next. Where a whole round
/// is known beforehand its blocks can be placed so that none has to move. So requests are noted as
/// soon as memory moves, a round is one that came three times in a row, and its plan puts the
/// largest blocks first, each into the smallest gap between those that are live at the same time.
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
  [[nodiscard]] bool notes() const noexcept { return watched_ != 0; }
  /// A large block was handed out, or came back.
  void requested(const block& given) noexcept;
  void freed(const block& given) noexcept;

  [[nodiscard]] bool has_plan() const noexcept { return height_ != 0; }
  /// Where the plan has the next request, if it is this one.
  [[nodiscard]] std::uint64_t place_of(unit_count units, stream_slot stream) const noexcept;
  /// That place could not be had. After four times in a row it is not named again.
  void miss_place(unit_count units, stream_slot stream) noexcept;
  /// Whether the address lies where planned blocks go.
  [[nodiscard]] bool is_planned(std::uint64_t address) const noexcept {
    return address - low_ < height_;
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
  void drop_plan() noexcept { low_ = height_ = 0; }
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

  static_assert(fit_index::large * unit == std::uint64_t{1} << 20, "begins_ goes by mebibytes");

  struct note {
    unit_count units;
    stream_slot stream = no_stream;
    std::uint32_t lifetime = 0;     // requests until it was freed, itself counted; 0: it lives
    std::uint32_t planned = 0;      // its number in the plan, from 1 on; 0: it has none
    std::uint64_t live = 0;         // units of large blocks before the request, from any start on
    std::uint64_t moved_slots = 0;  // by then
  };

  struct place {
    std::uint64_t address = nowhere;  // an offset until the plan is laid out
    unit_count units;                 // of the request
    std::uint32_t misses = 0;         // in a row
    std::uint64_t missed_by = 0;      // the request that did last
  };

  [[nodiscard]] note& at(std::uint64_t number) noexcept { return notes_[number % kept]; }
  [[nodiscard]] const note& at(std::uint64_t number) const noexcept {
    return notes_[number % kept];
  }
  [[nodiscard]] bool is_kept(std::uint64_t number) const noexcept {
    return number < count_ && count_ - number <= kept;
  }
  /// Whether the request is the one that followed when the last ones came before.
  [[nodiscard]] bool is_next(unit_count units, stream_slot stream) const noexcept {
    return is_kept(next_) && at(next_).units == units && at(next_).stream == stream;
  }
  [[nodiscard]] std::uint64_t round() const noexcept { return count_ - next_; }
  /// The request's number in the plan: that behind the last one, or that of the one that it is
  /// like.
  [[nodiscard]] std::uint32_t number_of(unit_count units, stream_slot stream) const noexcept;
  [[nodiscard]] std::uint64_t recent() const noexcept;  // names the last requests

  std::uint64_t base_;
  std::uint64_t watched_ = 0;            // requests that are still noted; 0: none
  std::vector<note> notes_;              // a ring, by number
  std::vector<std::uint64_t> followed_;  // by recent(): the request that came next, latest
  std::vector<std::uint64_t> begins_;    // by mebibyte: 1 + the request whose block begins there
  std::uint64_t count_ = 0;              // requests noted
  std::uint64_t next_ = unknown;         // the earlier request that comes now, if they repeat
  std::uint64_t alike_ = 0;              // so many in a row came as before
  std::uint64_t one_stream_ = 0;         // so many in a row are of the same stream
  std::uint64_t live_ = 0;
  std::uint64_t moved_slots_ = 0;

  std::vector<place> places_;  // of the plan's requests
  std::uint64_t low_ = 0;
  std::uint64_t height_ = 0;
  std::uint64_t settled_by_ = 0;     // so many requests noted: all should be in its place
  std::uint64_t moved_by_then_ = 0;  // slots, or by the last round after it
  std::uint64_t not_before_ = 0;     // no plan until so many requests were noted
  unsigned plans_ = 0;
};

}}}  // namespace weir::v0::placement
