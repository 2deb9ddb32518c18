// The page's store: pieces that the browser inflates one by one, when it needs them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/pack.hpp"

namespace weir::inline v0::report {

/// Pieces by number. Those that the first picture needs stand apart, so that the browser has them
/// before it has read the rest of the file.
class chunk_store {
 public:
  void add(const packer& piece, bool early = false) {
    std::string text = base64(deflated(piece.packed()));
    lengths_.push_back(text.size());
    if (early) early_ = lengths_.size();
    (early ? first_ : rest_) += text;
  }

  [[nodiscard]] std::size_t count() const noexcept { return lengths_.size(); }
  /// Numbers below it are of the early text.
  [[nodiscard]] std::size_t early() const noexcept { return early_; }
  [[nodiscard]] const std::vector<std::size_t>& lengths() const noexcept { return lengths_; }
  [[nodiscard]] const std::string& early_text() const noexcept { return first_; }
  [[nodiscard]] const std::string& text() const noexcept { return rest_; }

 private:
  std::vector<std::size_t> lengths_;
  std::size_t early_ = 0;
  std::string first_;
  std::string rest_;
};

}  // namespace weir::inline v0::report
