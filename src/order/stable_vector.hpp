// SPDX-License-Identifier: Apache-2.0
// A vector whose elements stay where they are.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace weir { inline namespace v0 { namespace order {

/// Elements by number that never move, as in a deque; but a number is found with two loads, where a
/// deque of elements this large divides. Owned like a vector.
template <class T>
class stable_vector {
 public:
  explicit stable_vector(std::size_t count) {
    while (places_.size() < count) emplace_back();
  }

  void emplace_back() { places_.push_back(std::make_unique<T>()); }
  [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }
  [[nodiscard]] T& operator[](std::size_t at) noexcept { return *places_[at]; }
  [[nodiscard]] const T& operator[](std::size_t at) const noexcept { return *places_[at]; }

  template <class Element>
  class iterator {
   public:
    explicit iterator(const std::unique_ptr<T>* at) noexcept : at_{at} {}
    [[nodiscard]] Element& operator*() const noexcept { return **at_; }
    iterator& operator++() noexcept {
      ++at_;
      return *this;
    }
    friend bool operator==(iterator, iterator) = default;

   private:
    const std::unique_ptr<T>* at_;
  };
  [[nodiscard]] auto begin() noexcept { return iterator<T>{places_.data()}; }
  [[nodiscard]] auto end() noexcept { return iterator<T>{places_.data() + size()}; }
  [[nodiscard]] auto begin() const noexcept { return iterator<const T>{places_.data()}; }
  [[nodiscard]] auto end() const noexcept { return iterator<const T>{places_.data() + size()}; }

 private:
  std::vector<std::unique_ptr<T>> places_;
};

}}}  // namespace weir::v0::order
