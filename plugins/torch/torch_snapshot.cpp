// SPDX-License-Identifier: Apache-2.0
// A pool's snapshot in torch's terms.
#include "torch_snapshot.hpp"

namespace weir_torch {
namespace {

snapshot_block::kind kind_of(weir::block_state state) noexcept {
  switch (state) {
    case weir::block_state::live:
      return snapshot_block::kind::allocated;
    case weir::block_state::pending:
      return snapshot_block::kind::pending_free;
    default:
      return snapshot_block::kind::inactive;
  }
}

/// Both are sorted by address.
void number_segments(std::vector<snapshot_segment>& segments,
                     const std::vector<weir::physical_info>& physical) {
  auto piece = physical.begin();
  for (snapshot_segment& segment : segments) {
    while (piece != physical.end() && piece->address < segment.address) ++piece;
    if (piece != physical.end() && piece->address == segment.address)
      segment.number = piece->number;
  }
}

}  // namespace

std::vector<snapshot_segment> segments_of(const weir::pool_snapshot& pool) {
  std::vector<snapshot_segment> segments;
  std::uint64_t end = 0;
  std::size_t next_segment = 0;  // in pool.physical, where those are segments
  for (const weir::block_info& info : pool.blocks) {
    if (info.state == weir::block_state::hole) continue;
    const bool begins = pool.in_segments && next_segment < pool.physical.size() &&
                        pool.physical[next_segment].address == info.address;
    if (begins) ++next_segment;
    if (segments.empty() || info.address != end || begins) {
      segments.emplace_back();
      segments.back().address = info.address;
    }
    snapshot_segment& segment = segments.back();
    const snapshot_block block{.address = info.address,
                               .size = info.size.count(),
                               .requested = info.requested.count(),
                               .state = kind_of(info.state),
                               .stream = info.stream};
    segment.size += block.size;
    if (block.state == snapshot_block::kind::allocated) segment.allocated += block.size;
    if (block.state != snapshot_block::kind::inactive) {
      segment.active += block.size;
      segment.requested += block.requested;
    }
    if (segment.stream == weir::stream_id{}) segment.stream = block.stream;
    segment.blocks.push_back(block);
    end = info.address + info.size.count();
  }
  number_segments(segments, pool.physical);
  return segments;
}

}  // namespace weir_torch
