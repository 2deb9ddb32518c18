// Tensors between processes: what is shared, and what came from others.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <utility>
#include <vector>

#include "allocator.hpp"
#include "errors.hpp"

namespace weir_torch {
namespace {

constexpr const char* cannot =
    "this memory cannot be shared with other processes: weir.torch.enable() was called with "
    "exportable=False, or with a classic policy, or the GPU has no descriptors. ";

}  // namespace

torch_cuda::ShareableHandle weir_allocator::shareIpcHandle(void* pointer) {
  device_seat& seat = checked_owner(pointer);
  const weir::block_info block = checked(seat.memory.block_at(pointer));
  void* const start = reinterpret_cast<void*>(block.address);
  const auto found = seat.memory.handles_under(start);
  TORCH_CHECK(found, cannot, "weir: ", found.error().message());
  const auto offset = static_cast<std::ptrdiff_t>(
      found->offset.count() + (reinterpret_cast<std::uint64_t>(pointer) - block.address));

  const std::lock_guard lock{sharing_};
  descriptor_desk* desk = desk_.load(std::memory_order_acquire);
  if (desk == nullptr) {
    desk = checked(descriptor_desk::open());
    desk_.store(desk, std::memory_order_release);
    update_attention();  // from now on frees withdraw what was offered
  }
  ipc_handle handle;
  if (desk->offered(block.address, handle)) return {offset, handle.write()};
  std::vector<weir::descriptor> descriptors;
  std::vector<std::uint64_t> sizes;
  const weir::context_scope bound{seat.gpu};
  for (const weir::vmm::physical& each : found->handles) {
    descriptors.push_back(checked(weir::vmm::export_descriptor(bound, each)));
    sizes.push_back(each.size.count());
  }
  handle = checked(desk->offer(block.address, std::move(descriptors), std::move(sizes)));
  return {offset, handle.write()};
}

std::shared_ptr<void> weir_allocator::getIpcDevPtr(std::string handle) {
  const std::lock_guard lock{sharing_};
  std::erase_if(imported_, [](const auto& each) { return each.second.expired(); });
  if (const auto found = imported_.find(handle); found != imported_.end()) {
    if (auto mapped = found->second.lock()) return mapped;
  }
  device_seat& seat = at(c10::cuda::current_device());
  const ipc_handle named = checked(ipc_handle::read(handle));
  const std::vector<weir::descriptor> memory = checked(descriptor_desk::fetch(named));
  auto block = checked(imported_block::open(seat.gpu, named, memory));
  void* const base = block->base();
  // Kept by its deleter: unmapped when the last tensor is gone, behind the work that uses it.
  std::shared_ptr<void> mapped{base, [kept = block.release(), &seat](void*) {
                                 seat.leaving.add(std::unique_ptr<imported_block>{kept});
                                 seat.leaving.unmap(seat.pools.capturing());
                               }};
  imported_[std::move(handle)] = mapped;
  return mapped;
}

}  // namespace weir_torch
