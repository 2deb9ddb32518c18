// SPDX-License-Identifier: Apache-2.0
// A change of pages that is ready to take effect: what a plan holds.
#pragma once

#include <vector>

#include "growable/page_table.hpp"
#include "weir/device/stream.hpp"

namespace weir { inline namespace v0 { namespace growable {

/// Pages that change together, on behalf of one stream.
///
/// The pages of `fresh` and `adopted` are in state page_state::changing as long as the change is
/// open; those of `leaving` are committed. Made and ended by a reservation, with its mutex.
struct page_change {
  /// A page that had memory already.
  struct adoption {
    page_number page = 0;
    page_state before{};  // ahead or held
  };

  explicit page_change(const stream_ref& on) noexcept : stream{on} {}

  stream_ref stream;
  std::vector<page_number> fresh;    // lent for this change
  std::vector<adoption> adopted;     // ready ahead, or held by a graph
  std::vector<page_number> leaving;  // to be decommitted
};

}}}  // namespace weir::v0::growable
