// SPDX-License-Identifier: Apache-2.0
// Stream pools and their pointers in other processes.
#include <cstring>
#include <new>
#include <string>

#include "pools/guarded.hpp"
#include "pools/stream_pool_state.hpp"
#include "pools/thread_stream.hpp"
#include "pools/undo_allocation.hpp"

namespace weir { inline namespace v0 {

using detail::device_state;
using driver::call;
using driver::check;
using pools::stream_pool_kind;
using pools::stream_pool_session;

namespace {

constexpr auto posix = driver::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
static_assert(sizeof(stream_pool_pointer::data) == sizeof(driver::CUmemPoolPtrExportData));

error not_shared() {
  return {{.code = errc::not_supported,
           .detail = "the pool was not created exportable (posix_descriptor)"}};
}

}  // namespace

result<descriptor> stream_pool::export_descriptor() const {
  if (state_ == nullptr) return errc::moved_from;
  if (config().handles != stream_pool_handles::posix_descriptor || is_imported()) {
    return not_shared();
  }
  const stream_pool_session session{*state_};
  WEIR_TRY(session.ready());
  int number = -1;
  WEIR_TRY(check(
      call::mem_pool_export_to_shareable_handle,
      session.driver().mem_pool_export_to_shareable_handle(&number, session.handle(), posix, 0)));
  return descriptor{number};
}

result<stream_pool> stream_pool::import_descriptor(weir::device device, int number) {
  if (number < 0) {
    return error{
        {.code = errc::invalid_argument, .detail = "descriptor " + std::to_string(number)}};
  }
  if (!device.capabilities().memory_pools) {
    return error{{.code = errc::not_supported,
                  .detail = "the device does not support stream-ordered pools; use bin_pool or "
                            "caching_allocator"}};
  }
  const context_scope scope{device};
  if (!scope) return scope.error();
  const thread_capture_mode_guard relaxed{device};
  if (!relaxed) return relaxed.error();
  // The driver takes the number itself in place of a pointer.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const shareable = reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
  driver::CUmemoryPool handle = nullptr;
  const auto native =
      scope.driver().mem_pool_import_from_shareable_handle(&handle, shareable, posix, 0);
  if (native == driver::CUDA_ERROR_UNKNOWN) {  // the driver has no better word for it
    auto reason = driver::make_error(call::mem_pool_import_from_shareable_handle, native);
    reason.set_code(errc::invalid_handle);
    reason.set_detail("the descriptor is not one of an exported pool");
    return reason;
  }
  WEIR_TRY(check(call::mem_pool_import_from_shareable_handle, native));
  auto imported = pools::guarded([&]() -> result<stream_pool> {
    return stream_pool{std::make_shared<pools::stream_pool_state>(
        device_state::of(device), device_state::keep(device), handle, stream_pool_kind::imported,
        stream_pool_config{.handles = stream_pool_handles::posix_descriptor})};
  });
  if (!imported)
    detail::report_failure(check(call::mem_pool_destroy, scope.driver().mem_pool_destroy(handle)));
  return imported;
}

result<stream_pool_pointer> stream_pool::export_pointer(const void* pointer) const {
  if (state_ == nullptr) return errc::moved_from;
  if (config().handles != stream_pool_handles::posix_descriptor || is_imported()) {
    return not_shared();
  }
  const device_address address = reinterpret_cast<std::uintptr_t>(pointer);
  if (device_state::of(device()).forked()) return detail::fork_error();
  WEIR_TRY_VALUE(block, pools::guarded([&] { return state_->allocations().find(address); }));
  // The driver gives away no pointer of a pool that was never given away itself.
  WEIR_TRY(export_descriptor());
  const stream_pool_session session{*state_};
  WEIR_TRY(session.ready());
  if (block.base != address) {
    return error{{.code = errc::not_supported,
                  .detail = "memory with an alignment above 256 bytes cannot be shared"}};
  }
  driver::CUmemPoolPtrExportData data{};
  WEIR_TRY(check(call::mem_pool_export_pointer,
                 session.driver().mem_pool_export_pointer(&data, address)));
  stream_pool_pointer exported;
  std::memcpy(exported.data.data(), &data, sizeof(data));
  return exported;
}

result<stream_allocation> stream_pool::import_pointer(const stream_pool_pointer& exported,
                                                      const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  if (!is_imported()) {
    return error{{.code = errc::not_supported,
                  .detail = "the pool was created by this process; import it in another one"}};
  }
  if (&stream.device().driver() != &device().driver()) return errc::bad_stream;
  if (device_state::of(device()).forked()) return detail::fork_error();
  WEIR_TRY(pools::guarded([&]() -> result<void> {
    state_->listen_on(stream.device());
    return {};
  }));
  const stream_pool_session session{*state_};
  WEIR_TRY(session.ready());
  const auto& calls = session.driver();
  driver::CUmemPoolPtrExportData data{};
  std::memcpy(&data, exported.data.data(), sizeof(data));
  device_address address = 0;
  const auto native = calls.mem_pool_import_pointer(&address, session.handle(), &data);
  if (native == driver::CUDA_ERROR_INVALID_VALUE) {
    auto reason = driver::make_error(call::mem_pool_import_pointer, native);
    reason.set_code(errc::foreign_pointer);
    return reason;
  }
  WEIR_TRY(check(call::mem_pool_import_pointer, native));
  std::size_t size = 0;
  if (calls.mem_get_address_range(nullptr, &size, address) != driver::CUDA_SUCCESS) size = 0;
  // The driver answers with the same address again, and would take it back only once.
  try {
    const pools::stream_block block{.base = address,
                                    .size = bytes{size},
                                    .stream = stream,
                                    .thread = detail::thread_of(stream)};
    if (!state_->allocations().add_unless_live(address, block)) return errc::already_mapped;
  } catch (const std::bad_alloc&) {
    WEIR_TRY(check(call::mem_free_async, pools::undo_allocation(calls, address, stream.handle())));
    return errc::no_host_memory;
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const memory = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  return stream_allocation{state_, memory, bytes{size}, stream};
}

}}  // namespace weir::v0
