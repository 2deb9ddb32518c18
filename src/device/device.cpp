// SPDX-License-Identifier: Apache-2.0
// Devices: what they are, their primary context, and binding it to a thread.
#include "weir/device/device.hpp"

#include <array>
#include <cstring>

#include "base/member_list.hpp"
#include "device/state.hpp"

namespace weir { inline namespace v0 {
namespace detail {
namespace {

using driver::call;
using driver::check;
using driver::CUdevice_attribute;

struct flag {
  CUdevice_attribute attribute;
  bool device_capabilities::*member;
  std::string_view name;
};

constexpr flag flags[] = {
    {driver::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, &device_capabilities::unified_addressing,
     "unified_addressing"},
    {driver::CU_DEVICE_ATTRIBUTE_INTEGRATED, &device_capabilities::integrated, "integrated"},
    {driver::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED,
     &device_capabilities::stream_priorities, "stream_priorities"},
    {driver::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1,
     &device_capabilities::stream_memory_operations, "stream_memory_operations"},
    {driver::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
     &device_capabilities::virtual_memory, "virtual_memory"},
    {driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
     &device_capabilities::posix_descriptors, "posix_descriptors"},
    {driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, &device_capabilities::fabric_handles,
     "fabric_handles"},
    {driver::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, &device_capabilities::multicast, "multicast"},
    {driver::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &device_capabilities::memory_pools,
     "memory_pools"},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
     &device_capabilities::host_memory_pools, "host_memory_pools"},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
     &device_capabilities::host_numa_memory_pools, "host_numa_memory_pools"},
    {driver::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, &device_capabilities::managed_memory,
     "managed_memory"},
    {driver::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
     &device_capabilities::concurrent_managed_access, "concurrent_managed_access"},
    {driver::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
     &device_capabilities::managed_access_from_host, "managed_access_from_host"},
    {driver::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
     &device_capabilities::pageable_memory_access, "pageable_memory_access"},
    {driver::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
     &device_capabilities::host_page_tables, "host_page_tables"},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, &device_capabilities::host_register,
     "host_register"},
    {driver::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
     &device_capabilities::host_pointer_for_registered, "host_pointer_for_registered"},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
     &device_capabilities::host_virtual_memory, "host_virtual_memory"},
    {driver::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
     &device_capabilities::host_numa_virtual_memory, "host_numa_virtual_memory"},
    {driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, &device_capabilities::rdma, "rdma"},
    {driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
     &device_capabilities::rdma_with_virtual_memory, "rdma_with_virtual_memory"},
    {driver::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, &device_capabilities::dma_buf, "dma_buf"},
};

/// A driver answers INVALID_VALUE to attributes that were invented after it.
result<int> attribute(const device_state& state, CUdevice_attribute attribute_id,
                      int fallback = 0) {
  int value = 0;
  const auto native = state.calls->device_get_attribute(&value, attribute_id, state.native);
  if (native == driver::CUDA_ERROR_INVALID_VALUE) return fallback;
  WEIR_TRY(check(call::device_get_attribute, native));
  return value;
}

result<bytes> granularity(const device_state& state,
                          driver::CUmemAllocationGranularity_flags kind) {
  driver::CUmemAllocationProp properties{};
  properties.type = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {driver::CU_MEM_LOCATION_TYPE_DEVICE, state.native};
  std::size_t unit = 0;
  WEIR_TRY(check(call::mem_get_allocation_granularity,
                 state.calls->mem_get_allocation_granularity(&unit, &properties, kind)));
  return bytes{unit};
}

result<void> query_identity(device_state& state, int ordinal) {
  const auto& calls = *state.calls;
  WEIR_TRY(check(call::device_get, calls.device_get(&state.native, ordinal)));
  state.id = device_id{ordinal};

  std::array<char, 256> text{};
  constexpr int capacity = static_cast<int>(text.size()) - 1;
  WEIR_TRY(
      check(call::device_get_name, calls.device_get_name(text.data(), capacity, state.native)));
  state.name = text.data();
  text.fill('\0');
  WEIR_TRY(check(call::device_get_pci_bus_id,
                 calls.device_get_pci_bus_id(text.data(), capacity, state.native)));
  state.pci_bus_id = text.data();

  if (calls.device_get_uuid != nullptr) {
    driver::CUuuid uuid{};
    WEIR_TRY(check(call::device_get_uuid, calls.device_get_uuid(&uuid, state.native)));
    std::memcpy(state.uuid.emplace().data(), uuid.bytes, sizeof uuid.bytes);
  }

  std::size_t total = 0;
  WEIR_TRY(check(call::device_total_mem, calls.device_total_mem(&total, state.native)));
  state.total = bytes{total};
  return {};
}

result<void> query_capabilities(device_state& state) {
  auto& capabilities = state.capabilities;
  for (const auto& [attribute_id, member, name] : flags) {
    WEIR_TRY_VALUE(value, attribute(state, attribute_id));
    capabilities.*member = value != 0;
  }
  WEIR_TRY_VALUE(major, attribute(state, driver::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  WEIR_TRY_VALUE(minor, attribute(state, driver::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  WEIR_TRY_VALUE(processors, attribute(state, driver::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  WEIR_TRY_VALUE(engines, attribute(state, driver::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT));
  WEIR_TRY_VALUE(cache, attribute(state, driver::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  WEIR_TRY_VALUE(handles,
                 attribute(state, driver::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES));
  WEIR_TRY_VALUE(node, attribute(state, driver::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1));
  capabilities.compute_major = major;
  capabilities.compute_minor = minor;
  capabilities.multiprocessors = processors;
  capabilities.copy_engines = engines;
  capabilities.l2_cache = bytes{static_cast<std::uint64_t>(cache)};
  capabilities.pool_handle_types = static_cast<unsigned>(handles);
  capabilities.host_numa_node = node;
  if (capabilities.virtual_memory) {
    WEIR_TRY_VALUE(minimum, granularity(state, driver::CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    WEIR_TRY_VALUE(recommended, granularity(state, driver::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    capabilities.granularity = minimum;
    capabilities.recommended_granularity = recommended;
  }
  return {};
}

}  // namespace

result<void> query_device(device_state& state, int ordinal) {
  WEIR_TRY(query_identity(state, ordinal));
  return query_capabilities(state);
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

result<void> pop_context(const driver::table& calls, driver::CUcontext pushed) {
  driver::CUcontext current = nullptr;
  auto native_result = calls.ctx_pop_current(&current);
  if (native_result == driver::CUDA_SUCCESS) [[likely]]
    return {};
  if (calls.ctx_get_current(&current) == driver::CUDA_SUCCESS && current == pushed)
    native_result = calls.ctx_pop_current(&current);
  return check(call::ctx_pop_current, native_result);
}

void report_failure(const result<void>& outcome) noexcept {
  if (outcome) return;
  if (outcome.code() != errc::driver_gone) report_error(outcome.error());
}

error wrong_scope(weir::device entered, weir::device owner) {
  return error{{.code = errc::invalid_argument,
                .detail = "the scope belongs to device " + std::to_string(entered.id().number()) +
                          ", the object to device " + std::to_string(owner.id().number())}};
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
  const context_scope scope{*this};
  if (!scope) return scope.error();
  std::size_t free = 0;
  std::size_t total = 0;
  WEIR_TRY(check(call::mem_get_info, driver().mem_get_info(&free, &total)));
  return weir::memory_info{bytes{free}, bytes{total}};
}

result<priority_range> device::stream_priorities() const {
  const context_scope scope{*this};
  if (!scope) return scope.error();
  priority_range range;
  WEIR_TRY(check(call::ctx_get_stream_priority_range,
                 driver().ctx_get_stream_priority_range(&range.least, &range.greatest)));
  return range;
}

result<void> device::synchronize() const {
  const context_scope scope{*this};
  if (!scope) return scope.error();
  return check(call::ctx_synchronize, driver().ctx_synchronize());
}

std::string to_string(const device_capabilities& capabilities) {
  detail::member_list numbers;
  numbers
      .add("compute", std::to_string(capabilities.compute_major) + '.' +
                          std::to_string(capabilities.compute_minor))
      .add("multiprocessors", capabilities.multiprocessors)
      .add("copy_engines", capabilities.copy_engines)
      .add("l2_cache", capabilities.l2_cache)
      .add("granularity", capabilities.granularity)
      .add("recommended_granularity", capabilities.recommended_granularity)
      .add("pool_handle_types", capabilities.pool_handle_types)
      .add("host_numa_node", capabilities.host_numa_node);
  std::string names;
  for (const auto& flag : detail::flags) {
    if (!(capabilities.*flag.member)) continue;
    if (!names.empty()) names += ", ";
    names += flag.name;
  }
  std::string text = std::move(numbers).text();
  return names.empty() ? text : text + '\n' + names;
}

std::string to_string(const memory_info& info) {
  return to_string(info.free) + " of " + to_string(info.total) + " free";
}

std::string to_string(device owner) {
  return "device " + to_string(owner.id()) + ": " + std::string{owner.name()} + ", " +
         to_string(owner.total_memory());
}

namespace {
result<void> same_machine(device a, device b) {
  if (device_state::of(a).owner == device_state::of(b).owner) return {};
  return error{
      {.code = errc::invalid_argument, .detail = "the devices belong to different runtimes"}};
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
  const context_scope scope{*this};
  if (!scope) return scope.error();
  const auto native = driver().ctx_enable_peer_access(peer, 0);
  if (native == driver::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return {};
  return check(call::ctx_enable_peer_access, native);
}

result<void> device::disable_peer_access(device other) const {
  WEIR_TRY(same_machine(*this, other));
  if (other == *this) return {};
  WEIR_TRY_VALUE(peer, other.context());
  const context_scope scope{*this};
  if (!scope) return scope.error();
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

context_scope::context_scope(weir::device device) noexcept
    : device_{device}, calls_{&device.driver()} {
  device_state& state = *device.state_;
  if (state.forked()) [[unlikely]] {
    failure_ = failure::forked;
    return;
  }
  const auto fails = [this](call failed_call, driver::CUresult native) {
    if (native == driver::CUDA_SUCCESS) [[likely]]
      return false;
    failure_ = failure::driver;
    call_ = failed_call;
    native_ = native;
    return true;
  };
  driver::CUcontext context = nullptr;
  if (fails(call::device_primary_ctx_retain, state.retain_context(context))) return;
  driver::CUcontext current = nullptr;
  if (fails(call::ctx_get_current, calls_->ctx_get_current(&current))) return;
  if (current == context) [[likely]]
    return;
  // Push and pop, not set and set back: to set would replace the top of the user's stack, and where
  // the stack is empty there is nothing that could be set back.
  pushed_ = !fails(call::ctx_push_current, calls_->ctx_push_current(context));
}

context_scope::~context_scope() {
  if (!pushed_) return;
  driver::CUcontext pushed = nullptr;
  static_cast<void>(device_.state_->retain_context(pushed));  // it is retained
  detail::report_failure(detail::pop_context(*calls_, pushed));
}

weir::error context_scope::error() const {
  if (failure_ == failure::forked) return detail::fork_error();
  return driver::make_error(call_, native_);
}

}}  // namespace weir::v0
