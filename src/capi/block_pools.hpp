// SPDX-License-Identifier: Apache-2.0
// What stands behind a weir_block_pool.
#pragma once

#include <memory>
#include <variant>

#include "capi/objects.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir { inline namespace v0 { namespace capi {

/// Either pool, with the same interface.
struct block_pool_object {
  std::shared_ptr<runtime> machine;
  std::variant<bin_pool, pinned_pool> kind;

  [[nodiscard]] const block_pool& pool() const noexcept {
    if (const auto* const bins = std::get_if<bin_pool>(&kind)) return *bins;
    return *std::get_if<pinned_pool>(&kind);
  }
};
WEIR_HANDLE_KIND(block_pool)

}}}  // namespace weir::v0::capi
