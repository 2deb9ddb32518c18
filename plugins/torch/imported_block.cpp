// Memory of another process, mapped here.
#include "imported_block.hpp"

#include <cstring>
#include <new>
#include <utility>

#include "ipc_server.hpp"
#include "process_descriptors.hpp"
#include "weir/driver/table.hpp"

namespace weir_torch {

weir::result<std::unique_ptr<imported_block>> imported_block::open(weir::device gpu,
                                                                   std::string_view handle) {
  WEIR_TRY_VALUE(parsed, ipc_handle::parse(handle));
  if (parsed.plain) return open_plain(gpu, *parsed.plain);
  // An offer that is gone is not looked for by the numbers of its descriptors: they may be other
  // memory's by now.
  if (parsed.offer) {
    WEIR_TRY_VALUE(descriptors, fetch_descriptors(*parsed.offer));
    return open(gpu, parsed.offer->sizes, descriptors);
  }
  WEIR_TRY_VALUE(descriptors,
                 copy_descriptors(parsed.descriptors->process, parsed.descriptors->numbers));
  const std::vector<std::uint64_t> sizes(descriptors.size(), parsed.descriptors->size);
  return open(gpu, sizes, descriptors);
}

weir::result<std::unique_ptr<imported_block>> imported_block::open(
    weir::device gpu, std::span<const std::uint64_t> sizes,
    const std::vector<weir::descriptor>& descriptors) {
  if (descriptors.size() != sizes.size()) return weir::errc::invalid_argument;
  weir::bytes total{};
  for (const std::uint64_t size : sizes) {
    if (size > weir::bytes::max().count() - total.count())
      return weir::error{.code = weir::errc::size_overflow};
    total += weir::bytes{size};
  }
  WEIR_TRY_VALUE(range, weir::address_range::reserve(gpu, total));
  std::unique_ptr<imported_block> block{new imported_block{std::move(range)}};
  weir::bytes offset{};
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    const weir::bytes size{sizes[i]};
    WEIR_TRY_VALUE(memory,
                   weir::physical_handle::import_descriptor(gpu, descriptors[i].get(), size));
    WEIR_TRY_VALUE(mapping, weir::mapping::create(block->ranges_.front(), offset, memory));
    WEIR_TRY(mapping.set_access(gpu));
    block->mappings_.push_back(std::move(mapping));
    offset += size;
  }
  return block;
}

weir::result<std::unique_ptr<imported_block>> imported_block::open_plain(
    weir::device gpu, const plain_handle& handle) {
  weir::driver::CUipcMemHandle native{};
  static_assert(sizeof native == sizeof handle);
  std::memcpy(&native, handle.data(), sizeof native);
  const weir::context_scope bound{gpu};
  if (!bound) return bound.error();
  weir::device_address address = 0;
  WEIR_TRY(
      weir::driver::check(weir::driver::call::ipc_open_mem_handle,
                          bound.driver().ipc_open_mem_handle(
                              &address, native, weir::driver::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)));
  return std::unique_ptr<imported_block>{new imported_block{gpu, address}};
}

imported_block::~imported_block() {
  if (!plain_on_) return;
  const weir::context_scope bound{*plain_on_};
  if (!bound) return;  // the driver is gone, and the memory with it
  const auto closed = weir::driver::check(weir::driver::call::ipc_close_mem_handle,
                                          bound.driver().ipc_close_mem_handle(base_));
  if (!closed) weir::report_error(closed.error());
}

weir::result<void> imported_block::enable_peer(weir::device other) const {
  for (const weir::mapping& each : mappings_) WEIR_TRY(each.set_access(other));
  return {};
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
