// Tensors between processes: export and import.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <utility>
#include <vector>

#include "allocator.hpp"
#include "errors.hpp"

namespace weir_torch {
namespace {

constexpr const char* not_exportable =
    "this memory cannot be shared with other processes: weir.torch.enable() was called with "
    "exportable=False, or with a classic policy, or the GPU has no descriptors. ";

}  // namespace

torch_cuda::ShareableHandle weir_allocator::shareIpcHandle(void* pointer) {
  device_state& state = owner_of(pointer);
  const weir::block_info block = checked(state.memory.block_at(pointer));
  void* const start = reinterpret_cast<void*>(block.address);
  const auto under = state.memory.handles_under(start);
  TORCH_CHECK(under, not_exportable, "weir: ", under.error().message());
  const auto offset = static_cast<std::ptrdiff_t>(
      under->offset.count() + (reinterpret_cast<std::uint64_t>(pointer) - block.address));

  const std::lock_guard lock{sharing_mutex_};
  ipc_server* server = ipc_server_.load(std::memory_order_acquire);
  if (server == nullptr) {
    server = checked(ipc_server::open());
    ipc_server_.store(server, std::memory_order_release);
    update_slow_path();  // from now on frees withdraw offers
  }
  if (const auto handle = server->find(block.address)) return {offset, handle->serialize()};
  std::vector<weir::descriptor> descriptors;
  std::vector<std::uint64_t> sizes;
  const weir::context_scope bound{state.gpu};
  for (const weir::vmm::physical& physical : under->handles) {
    descriptors.push_back(checked(weir::vmm::export_descriptor(bound, physical)));
    sizes.push_back(physical.size.count());
  }
  const ipc_handle handle =
      checked(server->offer(block.address, std::move(descriptors), std::move(sizes)));
  return {offset, handle.serialize()};
}

std::shared_ptr<void> weir_allocator::getIpcDevPtr(std::string handle) {
  const std::lock_guard lock{sharing_mutex_};
  std::erase_if(imported_, [](const auto& each) { return each.second.expired(); });
  if (const auto known = imported_.find(handle); known != imported_.end()) {
    if (auto mapped = known->second.lock()) return mapped;
  }
  device_state& state = state_of(c10::cuda::current_device());
  const ipc_handle parsed = checked(ipc_handle::parse(handle));
  const std::vector<weir::descriptor> descriptors = checked(fetch_descriptors(parsed));
  auto block = checked(imported_block::open(state.gpu, parsed, descriptors));
  void* const base = block->base();
  // Owned by its deleter: unmapped when the last tensor is gone, behind the work that uses it.
  std::shared_ptr<void> mapped{base, [owned = block.release(), &state](void*) {
                                 state.unmaps.add(std::unique_ptr<imported_block>{owned});
                                 state.unmaps.drain(state.pools.is_capturing());
                               }};
  imported_[std::move(handle)] = mapped;
  return mapped;
}

}  // namespace weir_torch
