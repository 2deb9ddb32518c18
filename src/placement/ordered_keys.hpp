// SPDX-License-Identifier: Apache-2.0
// A set of numbers in order, for hundreds that come and go all the time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace weir { inline namespace v0 { namespace placement {

/// Keys in ascending order, none twice.
///
/// They lie side by side in leaves of a kilobyte, so that a search reads a few cache lines and what
/// comes or goes shifts some hundred bytes: cheaper than a tree for the hundreds of long runs that
/// an arena has. A leaf that is full is cut in two; one that is empty goes.
///
/// Owned by a fit_index, under the heap's lock.
class ordered_keys {
 public:
  /// No key: above all of them.
  static constexpr std::uint64_t none = ~std::uint64_t{0};

  /// False where the host has no memory; then the key is not in it.
  [[nodiscard]] bool insert(std::uint64_t key) noexcept;
  /// The key must be in it.
  void remove(std::uint64_t key) noexcept;
  /// `from`, which must be in it, becomes `to`, which is less and is not. False where the host has
  /// no memory; then neither is.
  [[nodiscard]] bool lower(std::uint64_t from, std::uint64_t to) noexcept;
  /// The first that is not below `key`.
  [[nodiscard]] std::uint64_t at_least(std::uint64_t key) const noexcept;
  /// Calls `see` with the keys that are not below `key`, in order, until it answers true.
  template <class Function>
  void see_from(std::uint64_t key, Function see) const {
    if (leaves_.empty()) return;
    std::size_t number = leaf_of(key);
    std::size_t at = place_in(*leaves_[number], key);
    for (; number < leaves_.size(); ++number, at = 0)
      for (const leaf& in = *leaves_[number]; at < in.count; ++at)
        if (see(in.keys[at])) return;
  }
  [[nodiscard]] std::uint64_t last() const noexcept;
  [[nodiscard]] std::size_t footprint() const noexcept;

 private:
  static constexpr std::size_t most = 127;
  struct leaf {
    std::uint64_t count = 0;
    std::array<std::uint64_t, most> keys;
  };

  /// The leaf that the key is in, or would be; there must be one.
  [[nodiscard]] std::size_t leaf_of(std::uint64_t key) const noexcept;
  [[nodiscard]] static std::size_t place_in(const leaf& in, std::uint64_t key) noexcept;
  [[nodiscard]] bool cut_in_two(std::size_t number) noexcept;

  std::vector<std::unique_ptr<leaf>> leaves_;
  std::vector<std::uint64_t> bounds_;  // by leaf: none of its keys is less; of the first leaf 0
};

}}}  // namespace weir::v0::placement
