// SPDX-License-Identifier: Apache-2.0
// The page's data: pieces that the browser inflates one by one, when it needs them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/pack.hpp"

namespace weir { inline namespace v0 { namespace report {

/// Pieces by number. Those that the first picture needs stand apart, so that the browser has them
/// before it has read the rest of the file.
class chunk_store {
 public:
  void add(const packer& piece, bool early = false) {
    std::string text = base64(deflated(piece.packed()));
    lengths_.push_back(text.size());
    if (early) early_count_ = lengths_.size();
    (early ? early_text_ : late_text_) += text;
  }

  [[nodiscard]] std::size_t count() const noexcept { return lengths_.size(); }
  /// Numbers below it are of the early text.
  [[nodiscard]] std::size_t early() const noexcept { return early_count_; }
  [[nodiscard]] const std::vector<std::size_t>& lengths() const noexcept { return lengths_; }
  [[nodiscard]] const std::string& early_text() const noexcept { return early_text_; }
  [[nodiscard]] const std::string& text() const noexcept { return late_text_; }

 private:
  std::vector<std::size_t> lengths_;
  std::size_t early_count_ = 0;
  std::string early_text_;
  std::string late_text_;
};

}}}  // namespace weir::v0::report
