// Memory of another process, mapped here.
#include "imported_block.hpp"

#include <new>
#include <utility>

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

void leaving_blocks::add(std::unique_ptr<imported_block> block) noexcept {
  try {
    const std::lock_guard lock{mutex_};
    all_.push_back(std::move(block));
  } catch (const std::bad_alloc&) {
    static_cast<void>(device_.synchronize());  // there is no room to keep it in: it goes now
  }
}

void leaving_blocks::unmap(bool capturing) noexcept {
  if (capturing) return;
  std::vector<std::unique_ptr<imported_block>> going;
  {
    const std::lock_guard lock{mutex_};
    going.swap(all_);
  }
  if (going.empty()) return;
  const auto rested = device_.synchronize();
  // A device that is lost or gone does no more work; one with a capture that nobody told of does.
  if (rested || rested.code() != weir::errc::capture_forbidden) return;
  const std::lock_guard lock{mutex_};
  if (all_.empty()) {
    all_.swap(going);
    return;
  }
  try {
    all_.reserve(all_.size() + going.size());
  } catch (const std::bad_alloc&) {
    return;  // there is no room to keep them in
  }
  for (auto& each : going) all_.push_back(std::move(each));
}

}  // namespace weir_torch
