// SPDX-License-Identifier: Apache-2.0
// The page of a card's budget: a file that the processes of one user share.
//
// Nothing in it is trusted. It is read and written by system calls, never mapped, so that a file
// that somebody truncates is an error and no signal. Whoever changes it holds the file's lock,
// which the kernel takes back from a process that dies, and writes one place at a time with one
// call: a process that is killed leaves a page that is whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/process.hpp"
#include "observe/shortage.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/share/budget.hpp"

namespace weir { inline namespace v0 { namespace budget {

constexpr std::array<char, 8> page_magic = {'w', 'e', 'i', 'r', 'c', 'a', 'r', 'd'};
constexpr std::uint32_t page_version = 1;
constexpr std::size_t most_members = 64;
constexpr int most_priority = 1000;

struct page_header {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t places = 0;
  std::uint64_t capacity = 0;
  std::array<std::uint64_t, 5> unused{};
};

/// A member's place; free where the process is 0.
struct place {
  std::int32_t process = 0;
  std::int32_t number = 0;  // of the process's members
  std::uint64_t start = 0;  // of the process
  std::array<char, 32> name{};
  std::uint64_t floor = 0;
  std::uint64_t ceiling = 0;
  std::int64_t priority = 0;
  std::uint64_t held = 0;
  std::uint64_t asked = 0;     // what others wait for
  std::uint64_t given = 0;     // ever
  std::uint64_t requests = 0;  // how often others asked
  std::uint64_t answered = 0;  // the last request that was served
  std::uint64_t period = 0;    // it looks at the page so often, in ms; 0: when its user says so
  std::uint64_t unused = 0;

  [[nodiscard]] bool is_free() const noexcept { return process == 0; }
  [[nodiscard]] detail::process_identity owner() const noexcept { return {process, start}; }
  [[nodiscard]] bool is(const place& other) const noexcept {
    return process == other.process && start == other.start && number == other.number;
  }
};

struct page {
  page_header header{};
  std::array<place, most_members> places{};
};
static_assert(sizeof(page_header) == 64 && sizeof(place) == 128);
static_assert(std::is_trivially_copyable_v<page> && sizeof(page) == 64 + 128 * most_members);

/// Whether the page can be believed: bad_version or invalid_argument, with the reason. A page
/// whose bytes are all 0 is one that nobody has joined yet.
[[nodiscard]] result<void> check(const page& content);
[[nodiscard]] bool is_blank(const page& content) noexcept;

/// "GPU-00112233-4455-6677-8899-aabbccddeeff".
[[nodiscard]] std::string card_name(const std::array<std::uint8_t, 16>& uuid);
[[nodiscard]] std::string default_folder();

[[nodiscard]] budget_row row_of(const place& from);
[[nodiscard]] std::vector<observe::neighbour> neighbours_of(const page& content, const place& self);

/// invalid_argument: it cannot be a share. The ceiling becomes the card where it is more.
[[nodiscard]] result<budget_share> checked_share(budget_share share, bytes capacity);

/// A page with the lock on its file, from open() to the end of this object. Nothing that waits for
/// another process or for an allocator may be called meanwhile.
///
/// One thread. The file is opened anew each time: a lock belongs to what was opened, and a forked
/// child would keep that alive.
class locked_page {
 public:
  enum class purpose : std::uint8_t {
    look,    ///< the lock is shared, and nothing is written
    change,  ///< dead processes' places are taken back
    join,    ///< the same; folder and file are made where they are missing, for `capacity`
  };
  static constexpr std::chrono::milliseconds patience{2000};

  [[nodiscard]] static result<locked_page> open(const std::string& folder, std::string_view card,
                                                purpose why, bytes capacity = {});
  /// Gives the lock up, also where a process that was forked meanwhile has the descriptor, too.
  ~locked_page();
  locked_page(locked_page&&) noexcept = default;
  locked_page& operator=(locked_page&&) = delete;

  [[nodiscard]] const page& content() const noexcept { return content_; }
  [[nodiscard]] bytes capacity() const noexcept { return bytes{content_.header.capacity}; }
  /// The members that are running have these places.
  [[nodiscard]] std::optional<std::size_t> find(const place& member) const noexcept;
  [[nodiscard]] std::optional<std::size_t> find_free() const noexcept;
  /// Of the processes whose places were taken back: what they had, and how many there were.
  [[nodiscard]] std::uint64_t taken_back() const noexcept { return taken_back_; }
  [[nodiscard]] std::size_t dead() const noexcept { return dead_; }

  /// One call of the system.
  [[nodiscard]] result<void> write(std::size_t index, const place& content);
  /// Gives the place, which may be a new member's, that share. limit_exceeded: the floors would
  /// pass the card.
  [[nodiscard]] result<void> write_share(std::size_t index, place content,
                                         const budget_share& share);

 private:
  locked_page() = default;
  [[nodiscard]] result<void> lock(bool shared);
  [[nodiscard]] result<void> read(purpose why, bytes capacity);
  [[nodiscard]] result<void> begin(bytes capacity);
  [[nodiscard]] result<void> take_back();
  [[nodiscard]] error refusal(errc code, std::string_view reason) const;
  [[nodiscard]] error system_refusal() const;

  std::string path_;
  descriptor file_;
  page content_{};
  std::uint64_t taken_back_ = 0;
  std::size_t dead_ = 0;
};

/// The cards that have a page in the folder, by name; none: there is no folder.
[[nodiscard]] result<std::vector<std::string>> cards_in(const std::string& folder);

}}}  // namespace weir::v0::budget
