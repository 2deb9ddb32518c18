// SPDX-License-Identifier: Apache-2.0
// Tensors between processes: export and import.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "allocator.hpp"
#include "errors.hpp"
#include "weir/driver/table.hpp"

namespace weir_torch {
namespace {

/// What torch's own allocator of this version reads.
constexpr torch_format own_format = TORCH_VERSION_MAJOR > 2 ||
                                            (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13)
                                        ? torch_format::with_kind
                                        : torch_format::without_kind;

constexpr const char* not_exportable =
    "this memory cannot be shared with other processes: weir.torch.enable() was called with "
    "exportable=False, or with policy=\"classic_expandable\", or the GPU has no descriptors. ";

/// Memory of the driver's own, which the policy "classic" uses, in torch's format.
torch_cuda::ShareableHandle share_plain(const weir::device& gpu, weir::device_address address) {
  const weir::context_scope bound{gpu};
  if (!bound) fail(bound.error());
  const weir::driver::table& cuda = bound.driver();
  weir::device_address base = 0;
  checked(weir::driver::check(weir::driver::call::mem_get_address_range,
                              cuda.mem_get_address_range(&base, nullptr, address)));
  weir::driver::CUipcMemHandle native{};
  checked(weir::driver::check(weir::driver::call::ipc_get_mem_handle,
                              cuda.ipc_get_mem_handle(&native, base)));
  ipc_handle handle;
  std::memcpy(handle.plain.emplace().data(), &native, sizeof native);
  return {static_cast<std::ptrdiff_t>(address - base), handle.serialize(own_format)};
}

}  // namespace

torch_cuda::ShareableHandle weir_allocator::shareIpcHandle(void* pointer) {
  device_state& state = owner_of(pointer);
  const weir::block_info block = checked(state.memory.block_at(pointer));
  void* const start = reinterpret_cast<void*>(block.address);
  const auto address = reinterpret_cast<weir::device_address>(pointer);
  const auto under = state.memory.handles_under(start);
  if (!under && settings_.heap_policy == weir::placement_policy::classic)
    return share_plain(state.gpu, address);
  TORCH_CHECK(under, not_exportable, "weir: ", under.error().message());
  const auto offset = static_cast<std::ptrdiff_t>(under->offset.count() + address - block.address);

  const std::lock_guard lock{sharing_mutex_};
  ipc_server* server = ipc_server_.load(std::memory_order_acquire);
  if (server == nullptr) {
    server = checked(ipc_server::open(own_format));
    ipc_server_.store(server, std::memory_order_release);
    update_slow_path();  // from now on frees withdraw offers
  }
  // Called by the server's threads, too, while others may be capturing.
  const auto export_descriptor =
      [gpu = state.gpu](const weir::vmm::physical& physical) -> weir::result<weir::descriptor> {
    const weir::context_scope bound{gpu};
    if (!bound) return bound.error();
    const weir::thread_capture_mode_guard relaxed{gpu};
    return weir::vmm::export_descriptor(bound, physical);
  };
  return {offset, checked(server->offer(block.address, under->handles, export_descriptor))};
}

std::shared_ptr<void> weir_allocator::getIpcDevPtr(std::string handle) {
  const std::lock_guard lock{sharing_mutex_};
  std::erase_if(imported_, [](const auto& each) { return each.second.memory.expired(); });
  if (const auto known = imported_.find(handle); known != imported_.end()) {
    if (auto mapped = known->second.memory.lock()) return mapped;
  }
  device_state& state = state_of(c10::cuda::current_device());
  auto block = checked(imported_block::open(state.gpu, handle));
  for (const weir::device& peer : state.peers) checked(block->enable_peer(peer));
  const imported_block* const opened = block.get();
  // Owned by its deleter: unmapped when the last tensor is gone, behind the work that uses it.
  std::shared_ptr<void> mapped{block->base(), [owned = block.release(), &state](void*) {
                                 state.unmaps.add(std::unique_ptr<imported_block>{owned});
                                 state.unmaps.drain(state.pools.is_capturing());
                               }};
  imported_[std::move(handle)] = {mapped, opened, state.index};
  return mapped;
}

void weir_allocator::enable_peer_of_imported(device_state& owner, const weir::device& peer) {
  const std::lock_guard lock{sharing_mutex_};
  if (std::find(owner.peers.begin(), owner.peers.end(), peer) != owner.peers.end()) return;
  owner.peers.push_back(peer);
  for (const auto& [handle, each] : imported_) {
    const std::shared_ptr<void> kept = each.memory.lock();
    if (kept != nullptr && each.device == owner.index) checked(each.block->enable_peer(peer));
  }
}

}  // namespace weir_torch
