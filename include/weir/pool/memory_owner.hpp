// SPDX-License-Identifier: Apache-2.0
// memory_owner: the common base of pooled_memory and stream_allocation, which own a pool's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 {

namespace pools {
class memory_home;
}

/// Memory of a pool that is freed with this object, on its stream, after the work queued there.
///
/// Owns memory unless default-constructed, moved from, freed or released; keeps its pool alive. One
/// thread at a time; any thread may destroy it. Failures of the destructor go to the error handler,
/// with the memory's address and size.
class WEIR_API memory_owner {
 public:
  /// Whether it owns memory.
  explicit operator bool() const noexcept { return data_ != nullptr; }
  /// Whether it was freed by free().
  [[nodiscard]] bool is_freed() const noexcept { return past_ == past::freed; }
  /// The address; null if it owns no memory.
  [[nodiscard]] void* data() const noexcept { return data_; }
  /// The requested size; 0 if it owns no memory. Of an imported pointer: the size that the driver
  /// reports, or 0.
  [[nodiscard]] bytes size() const noexcept { return size_; }
  /// The stream that it was allocated for and will be freed on. Throws moved_from if it was
  /// default-constructed or moved from.
  [[nodiscard]] const stream_ref& stream() const {
    if (!stream_) raise(errc::moved_from);
    return *stream_;
  }

  /// Frees the memory now, after the work queued on its stream, or on `stream` instead. Empty
  /// afterwards, except on failure. already_freed: it was freed or released before; moved_from: it
  /// was default-constructed or moved from.
  result<void> free() { return free(nullptr); }
  result<void> free(const stream_ref& stream) { return free(&stream); }
  /// Declares that work queued on `stream` until the free may use the memory, too; see the pool's
  /// record_stream().
  result<void> record_stream(const stream_ref& stream) const;
  /// Passes the memory to the caller, who frees it with the pool's try_deallocate().
  [[nodiscard]] void* release() noexcept;

 protected:
  memory_owner() noexcept = default;
  memory_owner(std::shared_ptr<pools::memory_home> home, void* data, bytes size,
               const stream_ref& stream) noexcept;
  ~memory_owner();
  memory_owner(memory_owner&& other) noexcept;
  memory_owner& operator=(memory_owner&& other) noexcept;

  /// What free() says where there is nothing to free.
  [[nodiscard]] result<void> check_owned() const;

  std::shared_ptr<pools::memory_home> home_;  ///< the pool; null: default-constructed or moved from

 private:
  enum class past : std::uint8_t { none, freed, released };

  result<void> free(const stream_ref* stream);
  void free_or_report() noexcept;

  void* data_ = nullptr;
  bytes size_{};
  std::optional<stream_ref> stream_;
  past past_ = past::none;
};

/// "64 MiB at 0x7f0000000000", or "no memory".
[[nodiscard]] WEIR_API std::string to_string(const memory_owner& memory);

}}  // namespace weir::v0
