// SPDX-License-Identifier: Apache-2.0
// Which graphs and holds keep which pages.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "growable/page_table.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"

namespace weir { inline namespace v0 { namespace growable {

/// The pages of a graph or hold. The driver ends it on a thread of its own, where nothing may be
/// locked: it leaves a mark, and the next call of the reservation looks.
struct hold_record {
  std::vector<page_number> pages;
  std::atomic<bool> ended{false};
};

/// The holds of a reservation.
///
/// A page counts its holds in the page table. Owned by a reservation, under its mutex. Ending holds
/// costs as much as they have pages.
class holds {
 public:
  /// Keeps all committed pages. May throw std::bad_alloc, and changes nothing then.
  [[nodiscard]] std::shared_ptr<hold_record> add(page_table& pages);
  /// Pages that were held and that nobody keeps any more, of holds that have ended.
  [[nodiscard]] std::vector<page_number> sweep(page_table& pages);
  [[nodiscard]] bool empty() const noexcept { return all_.empty(); }

 private:
  std::vector<std::shared_ptr<hold_record>> all_;
};

/// From now on the record ends with the graph and every executable made of it. not_supported: the
/// driver has no user objects.
[[nodiscard]] result<void> tie_record(const std::shared_ptr<hold_record>& record,
                                      driver::CUgraph graph, const context_scope& bound);

}}}  // namespace weir::v0::growable
