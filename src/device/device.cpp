// Devices: what they are, their primary context, and binding it to a thread.
#include "weir/device/device.hpp"

#include <array>
#include <cstring>

#include "device/state.hpp"

namespace weir::inline v0 {
namespace detail {
namespace {

using driver::call;
using driver::check;
using driver::CUdevice_attribute;

struct flag {
  CUdevice_attribute attribute;
  bool device_capabilities::*member;
};

constexpr flag flags[] = {
    {driver::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, &device_capabilities::unified_addressing},
    {driver::CU_DEVICE_ATTRIBUTE_INTEGRATED, &device_capabilities::integrated},
    {driver::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED,
     &device_capabilities::stream_priorities},
    {driver::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1,
     &device_capabilities::stream_memory_operations},
    {driver::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
     &device_capabilities::virtual_memory},
    {driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
     &device_capabilities::posix_descriptors},
    {driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
     &device_capabilities::fabric_handles},
    {driver::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, &device_capabilities::multicast},
    {driver::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &device_capabilities::memory_pools},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
     &device_capabilities::host_memory_pools},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
     &device_capabilities::host_numa_memory_pools},
    {driver::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, &device_capabilities::managed_memory},
    {driver::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
     &device_capabilities::concurrent_managed_access},
    {driver::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
     &device_capabilities::managed_access_from_host},
    {driver::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
     &device_capabilities::pageable_memory_access},
    {driver::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
     &device_capabilities::host_page_tables},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, &device_capabilities::host_register},
    {driver::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
     &device_capabilities::host_pointer_for_registered},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
     &device_capabilities::host_virtual_memory},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
     &device_capabilities::host_numa_virtual_memory},
    {driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, &device_capabilities::rdma},
    {driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
     &device_capabilities::rdma_with_virtual_memory},
    {driver::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, &device_capabilities::dma_buf},
};

/// A driver answers INVALID_VALUE to attributes that were invented after it.
result<int> attribute(const device_state& about, CUdevice_attribute which, int unknown = 0) {
  int value = 0;
  const auto native = about.calls->device_get_attribute(&value, which, about.native);
  if (native == driver::CUDA_ERROR_INVALID_VALUE) return unknown;
  WEIR_TRY(check(call::device_get_attribute, native));
  return value;
}

result<bytes> granularity(const device_state& about,
                          driver::CUmemAllocationGranularity_flags which) {
  driver::CUmemAllocationProp properties{};
  properties.type = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {driver::CU_MEM_LOCATION_TYPE_DEVICE, about.native};
  std::size_t unit = 0;
  WEIR_TRY(check(call::mem_get_allocation_granularity,
                 about.calls->mem_get_allocation_granularity(&unit, &properties, which)));
  return bytes{unit};
}

result<void> ask_identity(device_state& about, int ordinal) {
  const auto& calls = *about.calls;
  WEIR_TRY(check(call::device_get, calls.device_get(&about.native, ordinal)));
  about.id = device_id{ordinal};

  std::array<char, 256> text{};
  constexpr int room = static_cast<int>(text.size()) - 1;
  WEIR_TRY(check(call::device_get_name, calls.device_get_name(text.data(), room, about.native)));
  about.name = text.data();
  text.fill('\0');
  WEIR_TRY(check(call::device_get_pci_bus_id,
                 calls.device_get_pci_bus_id(text.data(), room, about.native)));
  about.pci_bus_id = text.data();

  if (calls.device_get_uuid != nullptr) {
    driver::CUuuid uuid{};
    WEIR_TRY(check(call::device_get_uuid, calls.device_get_uuid(&uuid, about.native)));
    std::memcpy(about.uuid.emplace().data(), uuid.bytes, sizeof uuid.bytes);
  }

  std::size_t total = 0;
  WEIR_TRY(check(call::device_total_mem, calls.device_total_mem(&total, about.native)));
  about.total = bytes{total};
  return {};
}

result<void> ask_capabilities(device_state& about) {
  auto& can = about.capabilities;
  for (const auto& [which, member] : flags) {
    WEIR_TRY_VALUE(value, attribute(about, which));
    can.*member = value != 0;
  }
  WEIR_TRY_VALUE(major, attribute(about, driver::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  WEIR_TRY_VALUE(minor, attribute(about, driver::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  WEIR_TRY_VALUE(processors, attribute(about, driver::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  WEIR_TRY_VALUE(engines, attribute(about, driver::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT));
  WEIR_TRY_VALUE(cache, attribute(about, driver::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  WEIR_TRY_VALUE(handles,
                 attribute(about, driver::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES));
  WEIR_TRY_VALUE(node, attribute(about, driver::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1));
  can.compute_major = major;
  can.compute_minor = minor;
  can.multiprocessors = processors;
  can.copy_engines = engines;
  can.l2_cache = bytes{static_cast<std::uint64_t>(cache)};
  can.pool_handle_types = static_cast<unsigned>(handles);
  can.host_numa_node = node;
  if (can.virtual_memory) {
    WEIR_TRY_VALUE(least, granularity(about, driver::CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    WEIR_TRY_VALUE(good, granularity(about, driver::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    can.granularity = least;
    can.recommended_granularity = good;
  }
  return {};
}

}  // namespace

result<void> ask(device_state& about, int ordinal) {
  WEIR_TRY(ask_identity(about, ordinal));
  return ask_capabilities(about);
}

driver::CUresult device_state::retain_context(driver::CUcontext& out) noexcept {
  out = context.load(std::memory_order_acquire);
  if (out != nullptr) [[likely]]
    return driver::CUDA_SUCCESS;
  const std::lock_guard lock{context_mutex};
  out = context.load(std::memory_order_relaxed);
  if (out != nullptr) return driver::CUDA_SUCCESS;
  const auto native_result = calls->device_primary_ctx_retain(&out, native);
  if (native_result == driver::CUDA_SUCCESS) context.store(out, std::memory_order_release);
  return native_result;
}

void report_failure(const result<void>& outcome) noexcept {
  if (outcome) return;
  if (outcome.code() != errc::driver_gone) report_error(outcome.error());
}

error wrong_scope(weir::device bound, weir::device wanted) {
  return error{.code = errc::invalid_argument,
               .detail = "the scope is of device " + std::to_string(bound.id().number()) +
                         ", the object of device " + std::to_string(wanted.id().number())};
}

}  // namespace detail

using detail::device_state;
using driver::call;
using driver::check;

device_id device::id() const noexcept { return state_->id; }
std::string_view device::name() const noexcept { return state_->name; }
bytes device::total_memory() const noexcept { return state_->total; }
const device_capabilities& device::capabilities() const noexcept { return state_->capabilities; }
std::string_view device::pci_bus_id() const noexcept { return state_->pci_bus_id; }
const std::optional<std::array<std::uint8_t, 16>>& device::uuid() const noexcept {
  return state_->uuid;
}
const driver::table& device::driver() const noexcept { return *state_->calls; }
int device::driver_version() const noexcept { return state_->driver_version; }

result<weir::memory_info> device::memory_info() const {
  const context_scope bound{*this};
  if (!bound) return bound.error();
  std::size_t free = 0;
  std::size_t total = 0;
  WEIR_TRY(check(call::mem_get_info, driver().mem_get_info(&free, &total)));
  return weir::memory_info{bytes{free}, bytes{total}};
}

result<priority_range> device::stream_priorities() const {
  const context_scope bound{*this};
  if (!bound) return bound.error();
  priority_range range;
  WEIR_TRY(check(call::ctx_get_stream_priority_range,
                 driver().ctx_get_stream_priority_range(&range.least, &range.greatest)));
  return range;
}

result<void> device::synchronize() const {
  const context_scope bound{*this};
  if (!bound) return bound.error();
  return check(call::ctx_synchronize, driver().ctx_synchronize());
}

namespace {
result<void> same_machine(device a, device b) {
  if (device_state::of(a).owner == device_state::of(b).owner) return {};
  return error{.code = errc::invalid_argument, .detail = "the devices are of two runtimes"};
}
}  // namespace

result<bool> device::can_access_peer(device other) const {
  WEIR_TRY(same_machine(*this, other));
  if (other == *this) return true;
  if (state_->forked()) return detail::fork_error();
  int can = 0;
  WEIR_TRY(
      check(call::device_can_access_peer,
            driver().device_can_access_peer(&can, state_->native, device_state::of(other).native)));
  return can != 0;
}

result<void> device::enable_peer_access(device other) const {
  WEIR_TRY(same_machine(*this, other));
  if (other == *this) return {};
  WEIR_TRY_VALUE(peer, other.context());
  const context_scope bound{*this};
  if (!bound) return bound.error();
  const auto native = driver().ctx_enable_peer_access(peer, 0);
  if (native == driver::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return {};
  return check(call::ctx_enable_peer_access, native);
}

result<void> device::disable_peer_access(device other) const {
  WEIR_TRY(same_machine(*this, other));
  if (other == *this) return {};
  WEIR_TRY_VALUE(peer, other.context());
  const context_scope bound{*this};
  if (!bound) return bound.error();
  const auto native = driver().ctx_disable_peer_access(peer);
  if (native == driver::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) return {};
  return check(call::ctx_disable_peer_access, native);
}

result<driver::CUcontext> device::context() const {
  if (state_->forked()) return detail::fork_error();
  driver::CUcontext context = nullptr;
  WEIR_TRY(check(call::device_primary_ctx_retain, state_->retain_context(context)));
  return context;
}

context_scope::context_scope(weir::device which) noexcept
    : device_{which}, calls_{&which.driver()} {
  device_state& state = *which.state_;
  if (state.forked()) [[unlikely]] {
    failure_ = failure::forked;
    return;
  }
  const auto fails = [this](call made, driver::CUresult native) {
    if (native == driver::CUDA_SUCCESS) [[likely]]
      return false;
    failure_ = failure::driver;
    call_ = made;
    native_ = native;
    return true;
  };
  driver::CUcontext wanted = nullptr;
  if (fails(call::device_primary_ctx_retain, state.retain_context(wanted))) return;
  driver::CUcontext current = nullptr;
  if (fails(call::ctx_get_current, calls_->ctx_get_current(&current))) return;
  if (current == wanted) [[likely]]
    return;
  // Push and pop, not set and set back: to set would replace the top of the user's stack, and where
  // the stack is empty there is nothing that could be set back.
  pushed_ = !fails(call::ctx_push_current, calls_->ctx_push_current(wanted));
}

context_scope::~context_scope() {
  if (!pushed_) return;
  driver::CUcontext popped = nullptr;
  detail::report_failure(check(call::ctx_pop_current, calls_->ctx_pop_current(&popped)));
}

weir::error context_scope::error() const {
  if (failure_ == failure::forked) return detail::fork_error();
  return driver::make_error(call_, native_);
}

}  // namespace weir::inline v0
