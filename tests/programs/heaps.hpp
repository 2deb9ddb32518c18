// SPDX-License-Identifier: Apache-2.0
// The caching allocators of a mixed program.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "faults.hpp"
#include "supplier.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir::programs_test {

/// One caching allocator, with tags and pools that can be suspended on their own ("groups").
///
/// A request goes to the allocator itself, to one of the groups, or to a plain pool. The simulated
/// machine learns of every block, so that uses of cached memory are hazards. One thread at a time.
class heap_supplier final : public supplier {
 public:
  struct group {
    weir::tag tag{};  // used if there is no pool
    memory_pool pool{};
    bool evictable = false;
    bool away = false;   // the program suspended it: it must be resumed before it is used
    bool async = false;  // with suspend_async()
  };

  heap_supplier(world& in, faults& failing, std::string name, std::size_t device);
  ~heap_supplier() override;

  [[nodiscard]] caching_allocator& memory() { return *memory_; }
  [[nodiscard]] const allocator_options& settings() const { return settings_; }
  [[nodiscard]] bool is_classic() const;
  [[nodiscard]] std::vector<group>& groups() { return groups_; }
  /// Whether the program suspended everything.
  bool away = false;
  /// Whether it did so with suspend_async().
  bool async = false;
  /// Whether a tag of this allocator has a limit.
  bool limited = false;

  /// Waits until a suspension that was called off has ended. Its copies read the memory until then,
  /// which the machine takes for a race with writes. Requests wait for that.
  void settle(std::size_t group);
  void declare_group();
  /// Creates a plain pool, or lets go of one.
  void change_pools();
  void drop_pools();
  void enable_peer();

  [[nodiscard]] result<supplied_block> allocate(bytes size, const stream_ref& stream) override;
  result<void> free(void* memory, const std::optional<stream_ref>& stream) override;
  [[nodiscard]] bool holds(void* memory) const override;
  [[nodiscard]] bool records_streams() const override { return true; }
  result<void> record_stream(void* memory, const stream_ref& stream) override;
  [[nodiscard]] bool has_peer() const override { return peer_; }
  [[nodiscard]] bool maps_for_peers() const override {
    return peer_ && settings_.policy != placement_policy::classic;
  }
  [[nodiscard]] bool make_resident(std::size_t group) override;
  [[nodiscard]] bool may_refuse(errc code) const override;

  /// The allocator's own check of its metadata.
  void check();
  /// All is freed: everything must go back to the driver.
  void check_empty();

 private:
  class spared_sink;

  world& world_;
  faults& faults_;
  allocator_options settings_;
  std::unique_ptr<spared_sink> watch_;
  std::optional<caching_allocator> memory_;
  observer_registration watching_;
  std::vector<group> groups_;
  std::vector<memory_pool> pools_;
  std::vector<weir::tag> tags_;
  bool peer_ = false;
};

}  // namespace weir::programs_test
