// SPDX-License-Identifier: Apache-2.0
// pmr_resource: a std::pmr::memory_resource over managed or pinned memory.
//
//   auto managed = weir::pmr_resource::create(weir::managed_resource::create(gpu).value()).value();
//   std::pmr::vector<float> samples{&managed};
#pragma once

#include <cstddef>
#include <memory_resource>

#include "weir/base/export.hpp"
#include "weir/resource/resource.hpp"
#include "weir/resource/synchronous_resource.hpp"

namespace weir { inline namespace v0 {

/// Managed or pinned memory for the standard library's containers.
///
/// Memory may be used at once and must not be in use by a device when it is freed (see
/// synchronous_resource). If the device has no concurrent_managed_access, the host must not access
/// managed memory while the device works. Keeps the upstream alive; equal if the upstreams are
/// equal. Thread-safe. Failures of frees go to the error handler.
class WEIR_API pmr_resource final : public std::pmr::memory_resource {
 public:
  /// A memory_resource over `upstream`. invalid_argument: the upstream is empty, or the host cannot
  /// access its memory.
  [[nodiscard]] static result<pmr_resource> create(any_resource upstream);
  pmr_resource(const pmr_resource&) = default;
  pmr_resource& operator=(const pmr_resource&) = default;
  ~pmr_resource() override;

  /// The resource that requests go to.
  [[nodiscard]] const any_resource& upstream() const noexcept { return memory_.upstream(); }

 private:
  explicit pmr_resource(synchronous_resource memory) noexcept : memory_{std::move(memory)} {}
  void* do_allocate(std::size_t size, std::size_t alignment) override;
  void do_deallocate(void* pointer, std::size_t size, std::size_t alignment) override;
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  synchronous_resource memory_;
};

}}  // namespace weir::v0
