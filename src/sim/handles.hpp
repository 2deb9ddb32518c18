// SPDX-License-Identifier: Apache-2.0
// Tables of driver handles: unknown and destroyed handles are recognised, never dereferenced.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace weir { inline namespace v0 { namespace sim {

/// Objects of one kind by their driver handle. Handles are numbers, not addresses, and are handed
/// out again as soon as they are free, youngest first, as the real driver does: code that keys
/// anything on a handle instead of an id is meant to trip here.
///
/// `Tag` keeps the handles of different kinds apart; looking up costs two comparisons.
template <class Handle, class Object, std::uint64_t Tag>
class handle_table {
 public:
  Handle insert(std::shared_ptr<Object> object) {
    std::size_t slot = objects_.size();
    if (free_.empty()) {
      objects_.push_back(std::move(object));
    } else {
      slot = free_.back();
      free_.pop_back();
      objects_[slot] = std::move(object);
    }
    return to_handle(base + slot * stride);
  }

  /// Null for a handle that is not alive.
  [[nodiscard]] Object* find(Handle handle) const noexcept {
    const std::size_t slot = to_slot(handle);
    return slot < objects_.size() ? objects_[slot].get() : nullptr;
  }
  [[nodiscard]] std::shared_ptr<Object> share(Handle handle) const noexcept {
    const std::size_t slot = to_slot(handle);
    return slot < objects_.size() ? objects_[slot] : nullptr;
  }

  /// Takes the object out and frees the handle; null if the handle was not alive.
  std::shared_ptr<Object> erase(Handle handle) {
    const std::size_t slot = to_slot(handle);
    if (slot >= objects_.size() || !objects_[slot]) return nullptr;
    free_.push_back(slot);
    return std::exchange(objects_[slot], nullptr);
  }

  /// Takes out every object that `matches` says, and hands each to `take`.
  template <class Matches, class Take>
  void erase_if(Matches&& matches, Take&& take) {
    for (std::size_t slot = 0; slot < objects_.size(); ++slot) {
      if (!objects_[slot] || !matches(*objects_[slot])) continue;
      free_.push_back(slot);
      take(std::exchange(objects_[slot], nullptr));
    }
  }

  template <class F>
  void for_each(F&& visit) const {
    for (const auto& object : objects_) {
      if (object) visit(*object);
    }
  }

 private:
  static constexpr std::uint64_t stride = 64;
  static constexpr std::uint64_t base = 0x5100'0000'0000 + (Tag << 36);

  static Handle to_handle(std::uint64_t number) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(number));
    } else {
      return number;
    }
  }
  static std::size_t to_slot(Handle handle) noexcept {
    std::uint64_t number = 0;
    if constexpr (std::is_pointer_v<Handle>) {
      number = reinterpret_cast<std::uintptr_t>(handle);
    } else {
      number = handle;
    }
    if (number < base || (number - base) % stride != 0) return ~std::size_t{0};
    return (number - base) / stride;
  }

  std::vector<std::shared_ptr<Object>> objects_;
  std::vector<std::size_t> free_;
};

}}}  // namespace weir::v0::sim
