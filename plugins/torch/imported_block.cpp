// Memory of another process, mapped here.
#include "imported_block.hpp"

#include <new>
#include <utility>

namespace weir_torch {

weir::result<std::unique_ptr<imported_block>> imported_block::open(
    weir::device gpu, const ipc_handle& handle, const std::vector<weir::descriptor>& descriptors) {
  if (descriptors.size() != handle.sizes.size()) return weir::errc::invalid_argument;
  weir::bytes total{};
  for (const std::uint64_t size : handle.sizes) {
    if (size > weir::bytes::max().count() - total.count())
      return weir::error{.code = weir::errc::size_overflow};
    total += weir::bytes{size};
  }
  WEIR_TRY_VALUE(range, weir::address_range::reserve(gpu, total));
  std::unique_ptr<imported_block> block{new imported_block{std::move(range)}};
  weir::bytes offset{};
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    const weir::bytes size{handle.sizes[i]};
    WEIR_TRY_VALUE(memory,
                   weir::physical_handle::import_descriptor(gpu, descriptors[i].get(), size));
    WEIR_TRY_VALUE(mapping, weir::mapping::create(block->range_, offset, memory));
    WEIR_TRY(mapping.set_access(gpu));
    block->mappings_.push_back(std::move(mapping));
    offset += size;
  }
  return block;
}

void unmap_queue::add(std::unique_ptr<imported_block> block) noexcept {
  try {
    const std::lock_guard lock{mutex_};
    blocks_.push_back(std::move(block));
  } catch (const std::bad_alloc&) {
    static_cast<void>(device_.synchronize());  // the queue cannot grow: it is unmapped now
  }
}

void unmap_queue::drain(bool is_capturing) noexcept {
  if (is_capturing) return;
  std::vector<std::unique_ptr<imported_block>> unmapped;
  {
    const std::lock_guard lock{mutex_};
    unmapped.swap(blocks_);
  }
  if (unmapped.empty()) return;
  const auto synchronized = device_.synchronize();
  // A device that is lost or gone does no more work; one with an undeclared capture does.
  if (synchronized || synchronized.code() != weir::errc::capture_forbidden) return;
  const std::lock_guard lock{mutex_};
  if (blocks_.empty()) {
    blocks_.swap(unmapped);
    return;
  }
  try {
    blocks_.reserve(blocks_.size() + unmapped.size());
  } catch (const std::bad_alloc&) {
    return;  // the queue cannot grow: they are unmapped now
  }
  for (auto& block : unmapped) blocks_.push_back(std::move(block));
}

}  // namespace weir_torch
