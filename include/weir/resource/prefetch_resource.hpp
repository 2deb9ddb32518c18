// An adaptor that brings managed memory to the device as soon as it is allocated.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"

namespace weir::inline v0 {

/// Queues a prefetch to the stream's device behind each allocation, on the same stream, so that the
/// first kernel does not pay for page faults.
///
/// A prefetch is advice: where it cannot be given the memory is handed out all the same. It is left
/// out where the device has no concurrent_managed_access and while the stream is captured; one that
/// the driver refuses is counted, and the latest error kept.
///
/// A shared handle, never empty; keeps the upstream alive. Any thread. Costs two driver calls for
/// each allocation. Bad input: as the upstream says.
class WEIR_API prefetch_resource {
 public:
  /// invalid_argument: the upstream is empty, or its memory is not managed.
  [[nodiscard]] static result<prefetch_resource> create(any_resource upstream);
  prefetch_resource(const prefetch_resource&) = default;
  prefetch_resource& operator=(const prefetch_resource&) = default;

  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = bytes{256});
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream);

  [[nodiscard]] std::uint64_t prefetches() const noexcept;  ///< that the driver took
  [[nodiscard]] std::uint64_t refused() const noexcept;     ///< that it did not
  [[nodiscard]] std::optional<error> last_error() const;

  [[nodiscard]] any_resource upstream() const;
  [[nodiscard]] weir::device device() const;
  [[nodiscard]] memory_kind kind() const noexcept;
  friend bool operator==(const prefetch_resource&, const prefetch_resource&) noexcept = default;

 private:
  struct state;
  explicit prefetch_resource(std::shared_ptr<state> inside) noexcept : inside_{std::move(inside)} {}

  std::shared_ptr<state> inside_;
};

static_assert(stream_resource<prefetch_resource>);

}  // namespace weir::inline v0
