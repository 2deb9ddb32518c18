// Memory of another process, mapped here.
#include "imported_block.hpp"

namespace weir_torch {

weir::result<std::unique_ptr<imported_block>> imported_block::open(
    weir::device where, const ipc_handle& what, const std::vector<weir::descriptor>& memory) {
  if (memory.size() != what.pieces.size()) return weir::errc::invalid_argument;
  weir::bytes total{};
  for (const std::uint64_t size : what.pieces) {
    if (size > weir::bytes::max().count() - total.count())
      return weir::error{.code = weir::errc::size_overflow};
    total += weir::bytes{size};
  }
  WEIR_TRY_VALUE(range, weir::address_range::reserve(where, total));
  std::unique_ptr<imported_block> made{new imported_block{std::move(range)}};
  weir::bytes offset{};
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const weir::bytes size{what.pieces[i]};
    WEIR_TRY_VALUE(handle, weir::physical_handle::import_descriptor(where, memory[i].get(), size));
    WEIR_TRY_VALUE(mapped, weir::mapping::create(made->range_, offset, handle));
    WEIR_TRY(mapped.set_access(where));
    made->mappings_.push_back(std::move(mapped));
    offset += size;
  }
  return made;
}

}  // namespace weir_torch
