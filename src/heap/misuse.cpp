// What is told of pointers that were not to be freed, and of blocks that were.
#include <algorithm>
#include <vector>

#include "base/hexadecimal.hpp"
#include "heap/central_heap.hpp"

namespace weir::inline v0::heap {
namespace {

using detail::hexadecimal;

/// "0x7f0000000000, 2 MiB, tag "weights", stream 7".
std::string words_of(const block_info& block) {
  std::string text = hexadecimal(block.address) + ", " + to_string(block.size);
  if (block.tag != tag{}) text += ", tag \"" + std::string{block.tag.name()} + "\"";
  if (block.stream != stream_id{}) text += ", stream " + std::to_string(block.stream.number());
  return text;
}

}  // namespace

std::string central_heap::life_of(std::uint64_t address) const {
  return history_ != nullptr ? history_->life_of(address) : std::string{};
}

error central_heap::freed_already(const block& block) const {
  const block_info info{.address = block.address,
                        .size = bytes{block.size()},
                        .stream = order_.id(block.stream),
                        .tag = accounts_.tag_of(block.account)};
  return {.code = errc::double_free, .detail = words_of(info) + life_of(block.address)};
}

error central_heap::why_not_live(std::uint64_t address) {
  // What went back to a store is no block any more; its bytes lie in something free.
  for (const auto& each : pools_) {
    if (each->memory == nullptr) continue;
    pool_snapshot snapshot;
    each->memory->describe(snapshot);
    for (const block_info& piece : snapshot.blocks) {
      if (address < piece.address || address - piece.address >= piece.size.count()) continue;
      const bool is_free = piece.state == block_state::free ||
                           piece.state == block_state::stream_bound ||
                           piece.state == block_state::hole;
      if (is_free) {
        return {.code = errc::double_free,
                .detail = hexadecimal(address) + ", in the free memory " + words_of(piece) +
                          life_of(address)};
      }
      block_info owner = piece;
      if (const block_index index = table_.find(piece.address); index != no_block)
        owner.tag = accounts_.tag_of(blocks_[index].account);
      return {.code = errc::foreign_pointer,
              .detail = hexadecimal(address) + " is inside a block, not its start: " +
                        words_of(owner) + life_of(piece.address)};
    }
  }
  return {.code = errc::foreign_pointer,
          .detail = hexadecimal(address) + " is no memory of this allocator"};
}

error central_heap::leak() {
  const ledger& total = accounts_.total();
  error told{.code = errc::still_live,
             .requested = bytes{total.allocated.current},
             .detail = "an allocator was closed with " + std::to_string(total.blocks.current) +
                       " live blocks of " + to_string(bytes{total.allocated.current})};
  std::vector<block_info> blocks;
  for (const auto& each : pools_) {
    if (each->memory == nullptr) continue;
    pool_snapshot snapshot;
    describe(*each, snapshot);
    std::copy_if(snapshot.blocks.begin(), snapshot.blocks.end(), std::back_inserter(blocks),
                 [](const block_info& piece) { return piece.state == block_state::live; });
  }
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const block_info& a, const block_info& b) { return a.size > b.size; });
  constexpr std::size_t most = 8;
  for (std::size_t i = 0; i < std::min(most, blocks.size()); ++i)
    told.detail += "\n  " + words_of(blocks[i]) + life_of(blocks[i].address);
  if (blocks.size() > most)
    told.detail += "\n  and " + std::to_string(blocks.size() - most) + " more";
  return told;
}

}  // namespace weir::inline v0::heap
