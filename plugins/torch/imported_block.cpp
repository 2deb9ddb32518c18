// SPDX-License-Identifier: Apache-2.0
// Memory of another process, mapped here.
#include "imported_block.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "ipc_server.hpp"
#include "process_descriptors.hpp"
#include "weir/device/event.hpp"
#include "weir/driver/table.hpp"

namespace weir_torch {

weir::result<std::unique_ptr<imported_block>> imported_block::open(weir::device gpu,
                                                                   std::string_view handle) {
  WEIR_TRY_VALUE(parsed, ipc_handle::parse(handle));
  if (parsed.plain) return open_plain(gpu, *parsed.plain);
  // An offer that is gone is not looked for by the numbers of its descriptors: they may be other
  // memory's by now.
  if (parsed.offer) {
    WEIR_TRY_VALUE(block, reserve(gpu, parsed.offer->sizes));
    WEIR_TRY(fetch_descriptors(*parsed.offer, [&](std::span<const weir::descriptor> some) {
      return block->append(parsed.offer->sizes, some);
    }));
    return std::move(block);
  }
  const process_descriptors& named = *parsed.descriptors;
  const std::vector<std::uint64_t> sizes(named.numbers.size(), named.size);
  WEIR_TRY_VALUE(block, reserve(gpu, sizes));
  constexpr std::size_t at_a_time = 128;
  for (std::span<const std::int32_t> rest{named.numbers}; !rest.empty();) {
    const auto some = rest.first(std::min(rest.size(), at_a_time));
    rest = rest.subspan(some.size());
    WEIR_TRY_VALUE(copies, copy_descriptors(named.process, some));
    WEIR_TRY(block->append(sizes, copies));
  }
  return std::move(block);
}

weir::result<std::unique_ptr<imported_block>> imported_block::open(
    weir::device gpu, std::span<const std::uint64_t> sizes,
    const std::vector<weir::descriptor>& descriptors) {
  if (descriptors.size() != sizes.size()) return weir::errc::invalid_argument;
  WEIR_TRY_VALUE(block, reserve(gpu, sizes));
  WEIR_TRY(block->append(sizes, descriptors));
  return std::move(block);
}

weir::result<std::unique_ptr<imported_block>> imported_block::reserve(
    weir::device gpu, std::span<const std::uint64_t> sizes) {
  weir::bytes total{};
  for (const std::uint64_t size : sizes) {
    if (size > weir::bytes::max().count() - total.count())
      return weir::error{{.code = weir::errc::size_overflow}};
    total += weir::bytes{size};
  }
  WEIR_TRY_VALUE(range, weir::address_range::reserve(gpu, total));
  return std::unique_ptr<imported_block>{new imported_block{gpu, std::move(range)}};
}

weir::result<void> imported_block::append(std::span<const std::uint64_t> sizes,
                                          std::span<const weir::descriptor> descriptors) {
  for (const weir::descriptor& each : descriptors) {
    if (mappings_.size() == sizes.size()) return weir::errc::invalid_argument;
    const weir::bytes size{sizes[mappings_.size()]};
    WEIR_TRY_VALUE(memory, weir::physical_handle::import_descriptor(gpu_, each.get(), size));
    WEIR_TRY_VALUE(mapping, weir::mapping::create(ranges_.front(), mapped_, memory));
    WEIR_TRY(mapping.set_access(gpu_));
    mappings_.push_back(std::move(mapping));
    mapped_ += size;
  }
  return {};
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
  if (!is_plain_) return;
  const weir::context_scope bound{gpu_};
  if (!bound) return;  // the driver is gone, and the memory with it
  const auto closed = weir::driver::check(weir::driver::call::ipc_close_mem_handle,
                                          bound.driver().ipc_close_mem_handle(base_));
  if (!closed) weir::report_error(closed.error());
}

weir::result<void> imported_block::enable_peer(weir::device other) const {
  for (const weir::mapping& each : mappings_) WEIR_TRY(each.set_access(other));
  return {};
}

weir::result<void> wait_for_all_work(weir::device gpu) {
  const weir::context_scope bound{gpu};
  if (!bound) return bound.error();
  const weir::thread_capture_mode_guard relaxed{gpu};
  if (!relaxed) return relaxed.error();
  // The driver waits for all work before it frees plain or pinned memory.
  if (const auto little = weir::allocate_plain(bound, weir::bytes{1})) {
    auto waited = weir::free_plain(bound, *little);
    if (!waited) static_cast<void>(weir::free_plain(bound, *little));  // only to lose no memory
    return waited;
  }
  using weir::driver::call;
  void* page = nullptr;
  WEIR_TRY(
      weir::driver::check(call::mem_host_alloc, bound.driver().mem_host_alloc(&page, 4096, 0)));
  auto waited = weir::driver::check(call::mem_free_host, bound.driver().mem_free_host(page));
  if (!waited) static_cast<void>(bound.driver().mem_free_host(page));
  return waited;
}

void unmap_queue::add(std::unique_ptr<imported_block> block) noexcept {
  try {
    const std::lock_guard lock{mutex_};
    blocks_.push_back(nullptr);
    blocks_.back() = std::move(block);
  } catch (const std::bad_alloc&) {
    if (!may_unmap(wait_for_all_work(device_))) static_cast<void>(block.release());
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
  if (may_unmap(wait_for_all_work(device_))) return;
  const std::lock_guard lock{mutex_};
  if (blocks_.empty()) {
    blocks_.swap(unmapped);
    return;
  }
  try {
    blocks_.reserve(blocks_.size() + unmapped.size());
  } catch (const std::bad_alloc&) {
    for (auto& block : unmapped) static_cast<void>(block.release());  // until the process ends
    return;
  }
  for (auto& block : unmapped) blocks_.push_back(std::move(block));
}

}  // namespace weir_torch
