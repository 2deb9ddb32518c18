// A pool's memory as torch draws it.
#include "pictures.hpp"

namespace weir_torch {
namespace {

block_picture::kind kind_of(weir::block_state state) noexcept {
  switch (state) {
    case weir::block_state::live:
      return block_picture::kind::allocated;
    case weir::block_state::pending:
      return block_picture::kind::pending_free;
    default:
      return block_picture::kind::inactive;
  }
}

}  // namespace

std::vector<segment_picture> draw(const weir::pool_snapshot& pool) {
  std::vector<segment_picture> out;
  std::uint64_t end = 0;
  for (const weir::block_info& piece : pool.blocks) {
    if (piece.state == weir::block_state::hole) continue;
    if (out.empty() || piece.address != end) {
      out.emplace_back();
      out.back().address = piece.address;
    }
    segment_picture& into = out.back();
    const block_picture block{.address = piece.address,
                              .size = piece.size.count(),
                              .requested = piece.requested.count(),
                              .state = kind_of(piece.state),
                              .stream = piece.stream};
    into.size += block.size;
    if (block.state == block_picture::kind::allocated) into.allocated += block.size;
    if (block.state != block_picture::kind::inactive) {
      into.active += block.size;
      into.requested += block.requested;
    }
    if (into.stream == weir::stream_id{}) into.stream = block.stream;
    into.blocks.push_back(block);
    end = piece.address + piece.size.count();
  }
  return out;
}

}  // namespace weir_torch
