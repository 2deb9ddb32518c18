// SPDX-License-Identifier: Apache-2.0
// Stream pools: allocating, freeing, and what is tried before memory counts as exhausted.
#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/any_size.hpp"
#include "base/host_memory.hpp"
#include "device/finished_work.hpp"
#include "observe/misuse.hpp"
#include "pools/guarded.hpp"
#include "pools/stream_pool_state.hpp"
#include "pools/thread_stream.hpp"
#include "pools/undo_allocation.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 {

using driver::call;
using driver::check;

namespace {

device_address address_of(const void* pointer) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

void* as_pointer(device_address address) noexcept {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

/// What to ask the driver for, so that an aligned block of `size` fits in.
result<bytes> padded_size(bytes size, bytes alignment) {
  if (!is_power_of_two(alignment.count()) || alignment > pools::largest_alignment) {
    return error{{.code = errc::bad_alignment,
                  .requested = size,
                  .detail = "alignment must be a power of two of at most " +
                            to_string(pools::largest_alignment) + ", got " +
                            std::to_string(alignment.count())}};
  }
  const auto sum = checked_add(size, std::max(alignment, default_alignment) - default_alignment);
  // The driver reserves whole units.
  if (!sum || !checked_round_up(sum->count(), pools::driver_unit))
    return error{{.code = errc::size_overflow, .requested = size}};
  return *sum;
}

/// Of memory that was freed all the same.
error freed_with_wrong_size(bytes given, bytes allocated) noexcept {
  error reason{{.code = errc::invalid_argument, .requested = given}};
  try {
    reason.set_detail("the block was freed, but it was allocated with " + to_string(allocated));
  } catch (const std::bad_alloc&) {  // then without details
  }
  return reason;
}

}  // namespace

namespace pools {

result<void> stream_pool_state::check_stream(const stream_ref& stream) const {
  if (&stream.device().driver() == home_.calls) return {};
  return error{{.code = errc::bad_stream, .detail = "the stream belongs to another runtime"}};
}

driver::CUresult stream_pool_state::ask_driver(const context_scope& scope, bytes size,
                                               const stream_ref& stream,
                                               device_address& address) const {
  return scope.driver().mem_alloc_from_pool_async(&address, size.count(), handle_, stream.handle());
}

driver::CUresult stream_pool_state::ask_within_ceiling(const context_scope& scope, bytes size,
                                                       const stream_ref& stream,
                                                       device_address& address) const {
  const auto native = ask_driver(scope, size, stream, address);
  if (native != driver::CUDA_SUCCESS || own_ceiling_ == 0) return native;
  const auto& calls = scope.driver();
  const auto reserved = get_attribute(calls, handle_, stream_pool_attribute::reserved);
  if (reserved && *reserved <= own_ceiling_) return native;
  // What is over the maximum is seen only now.
  const auto undone = undo_allocation(calls, address, stream.handle());
  if (undone != driver::CUDA_SUCCESS) return undone;
  return reserved ? driver::CUDA_ERROR_OUT_OF_MEMORY
                  : static_cast<driver::CUresult>(reserved.error().native());
}

error stream_pool_state::no_room(const context_scope& scope, bytes size) const {
  const auto text_of = [&calls = scope.driver(),
                        handle = handle_](stream_pool_attribute attribute) {
    const auto value = get_attribute(calls, handle, attribute);
    return value ? to_string(bytes{*value}) : std::string{"unknown"};
  };
  std::string detail = "the pool uses " + text_of(stream_pool_attribute::used) + " of " +
                       text_of(stream_pool_attribute::reserved) + " reserved";
  if (config_.max != bytes{}) detail += ", at most " + to_string(config_.max);
  return driver::make_error(call::mem_alloc_from_pool_async, driver::CUDA_ERROR_OUT_OF_MEMORY, size,
                            std::move(detail));
}

result<void*> stream_pool_state::allocate(bytes size, const stream_ref& stream, bytes alignment) {
  WEIR_TRY_VALUE(padded, padded_size(size, alignment));
  if (kind_ == stream_pool_kind::imported) {
    return error{{.code = errc::not_supported,
                  .requested = size,
                  .detail = "an imported pool cannot allocate; allocate in the exporting process "
                            "and share the pointer"}};
  }
  WEIR_TRY(check_stream(stream));
  if (home_.forked()) return detail::fork_error();
  listen_on(stream.device());
  memory_request request{size, padded, alignment};
  WEIR_TRY_VALUE(at_once, ask_once(request, stream));
  if (at_once) return *at_once;
  // Memory that others freed counts as free, wherever it lies, once the device has come that far.
  // Of the stream itself the driver wants the host to have waited for it alone.
  {
    const context_scope scope{stream.device()};
    request.waited = detail::wait_for_all_work(scope) && detail::wait_for_work(stream, scope);
  }
  if (!request.waited) {
    const stream_pool_session session{*this, stream.device()};
    WEIR_TRY(session.ready());
    return no_room(session.scope(), size);
  }
  auto later = ask_once(request, stream);
  if (later) return **later;
  if (own_ceiling_ != 0 && later.code() == errc::out_of_memory) release_surplus(stream);
  return std::move(later).error();
}

void stream_pool_state::release_surplus(const stream_ref& stream) {
  {
    const context_scope scope{stream.device()};
    if (!detail::wait_for_all_work(scope) || !detail::wait_for_work(stream, scope)) return;
  }
  const stream_pool_session session{*this, stream.device()};
  if (session.ready()) static_cast<void>(session.driver().mem_pool_trim_to(handle_, own_ceiling_));
}

result<std::optional<void*>> stream_pool_state::ask_once(const memory_request& request,
                                                         const stream_ref& stream) {
  const stream_pool_session session{*this, stream.device()};
  WEIR_TRY(session.ready());
  if (request.size == bytes{}) return std::optional<void*>{nullptr};
  const context_scope& scope = session.scope();
  WEIR_TRY_VALUE(capture, capture_of(stream, scope));
  if (!capture && config_.max != bytes{} && request.padded > config_.max)
    return no_room(scope, request.size);
  device_address base = 0;
  auto native = driver::CUDA_SUCCESS;
  if (capture) {
    native = ask_driver(scope, request.padded, stream, base);  // the graph's: no maximum of ours
  } else {
    if (request.waited && scope.driver().mem_pool_trim_to(handle_, 0) != driver::CUDA_SUCCESS)
      return no_room(scope, request.size);  // nothing was released
    native = ask_within_ceiling(scope, request.padded, stream, base);
    if (native == driver::CUDA_ERROR_OUT_OF_MEMORY && !request.waited)
      return std::optional<void*>{};
    if (native == driver::CUDA_ERROR_OUT_OF_MEMORY) return no_room(scope, request.size);
  }
  WEIR_TRY(check(call::mem_alloc_from_pool_async, native, request.size));
  WEIR_TRY_VALUE(memory, enter(base, request, stream, capture, scope));
  return std::optional<void*>{memory};
}

result<void*> stream_pool_state::enter(device_address base, const memory_request& request,
                                       const stream_ref& stream,
                                       const std::optional<capture_id>& capture,
                                       const context_scope& scope) {
  const device_address address = checked_round_up(base, request.alignment.count()).value_or(base);
  try {
    allocations_.add(address, {.base = base,
                               .size = request.size,
                               .stream = stream,
                               .capture = capture,
                               .tag = current_tag(),
                               .thread = detail::thread_of(stream)});
  } catch (const std::bad_alloc&) {
    WEIR_TRY(check(call::mem_free_async, undo_allocation(scope.driver(), base, stream.handle())));
    return detail::no_host_memory();
  }
  return as_pointer(address);
}

result<void> stream_pool_state::free(device_address address, std::optional<bytes> size,
                                     const stream_ref& stream) {
  if (home_.forked()) return detail::fork_error();
  WEIR_TRY(check_stream(stream));
  const context_scope scope{stream.device()};
  if (!scope) return scope.error();
  WEIR_TRY(allocations_.check(address, stream));
  const thread_capture_mode_guard relaxed{stream.device()};
  if (!relaxed) return relaxed.error();
  WEIR_TRY_VALUE(capture, capture_of(stream, scope));
  WEIR_TRY(uses_.queue_before(as_pointer(address), stream));
  WEIR_TRY_VALUE(taken, allocations_.take(address, capture));
  uses_.forget(as_pointer(address));
  const auto native = scope.driver().mem_free_async(taken.block.base, stream.handle());
  if (native != driver::CUDA_SUCCESS) {
    if (!taken.still_listed) allocations_.add(address, taken.block);
    auto reason = driver::make_error(call::mem_free_async, native, taken.block.size);
    if (taken.still_listed && native == driver::CUDA_ERROR_INVALID_VALUE) {
      reason.set_code(errc::double_free);
      reason.set_detail(observe::words_of({.address = address,
                                           .size = taken.block.size,
                                           .tag = taken.block.tag,
                                           .stream = taken.block.stream.known_id(),
                                           .life = {}}) +
                        ": it was allocated by a graph, and no launch has left it allocated");
    }
    return reason;
  }
  if (!size || *size == taken.block.size || taken.block.size == bytes{}) return {};
  return freed_with_wrong_size(*size, taken.block.size);
}

result<void> stream_pool_state::free_owned(void* memory, bytes, const stream_ref* stream) {
  const device_address address = address_of(memory);
  if (stream != nullptr) return free(address, std::nullopt, *stream);
  if (home_.forked()) return detail::fork_error();
  WEIR_TRY_VALUE(block, allocations_.find(address));
  if (block.stream_gone || detail::is_of_another_thread(block.thread))
    return free_without_stream(block, address);
  if (block.capture) {
    const context_scope scope{block.stream.device()};
    WEIR_TRY_VALUE(capture, capture_of(block.stream, scope));
    if (capture != block.capture) return {};  // the graph's
  }
  return free(address, std::nullopt, block.stream);
}

result<void> stream_pool_state::record_stream(void* memory, const stream_ref& stream) {
  if (home_.forked()) return detail::fork_error();
  if (memory == nullptr)
    return error{{.code = errc::invalid_argument, .detail = "the pointer is null"}};
  WEIR_TRY(check_stream(stream));
  WEIR_TRY(allocations_.find(address_of(memory)));
  return uses_.add(memory, stream);
}

result<void> stream_pool_state::free_without_stream(const stream_block& block,
                                                    device_address address) {
  if (block.capture) return {};  // the graph's
  return detail::free_behind_all_work(block.stream.device(), device(), [&](const stream_ref& idle) {
    return free(address, std::nullopt, idle);
  });
}

}  // namespace pools

// --- The handle ---------------------------------------------------------------------------------

result<void*> stream_pool::try_allocate(bytes size, const stream_ref& stream,
                                        bytes alignment) const {
  if (state_ == nullptr) return errc::moved_from;
  return pools::guarded([&] { return state_->allocate(size, stream, alignment); });
}

result<void> stream_pool::try_deallocate(void* pointer, const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  if (pointer == nullptr) return {};
  return pools::guarded([&] { return state_->free(address_of(pointer), std::nullopt, stream); });
}

result<void> stream_pool::try_deallocate(void* pointer, bytes size,
                                         const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  if (pointer == nullptr) return {};
  return pools::guarded([&] { return state_->free(address_of(pointer), size, stream); });
}

result<void> stream_pool::record_stream(void* pointer, const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return pools::guarded([&] { return state_->record_stream(pointer, stream); });
}

void stream_pool::deallocate(void* pointer, const stream_ref& stream) const noexcept {
  pools::report_failed_free(try_deallocate(pointer, stream), pointer, detail::any_size);
}

void stream_pool::deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept {
  pools::report_failed_free(try_deallocate(pointer, size, stream), pointer, size);
}

result<stream_allocation> stream_pool::allocate_owned(bytes size, const stream_ref& stream,
                                                      bytes alignment) const {
  if (size == bytes{}) {
    return error{{.code = errc::invalid_argument, .detail = "size must be greater than zero"}};
  }
  WEIR_TRY_VALUE(memory, try_allocate(size, stream, alignment));
  return stream_allocation{state_, memory, size, stream};
}

namespace {

/// What accessors need that return no result.
pools::stream_pool_state& usable(const std::shared_ptr<pools::stream_pool_state>& state) {
  if (state == nullptr) raise(errc::moved_from);
  return *state;
}

}  // namespace

stream_pool::operator bool() const noexcept {
  return state_ != nullptr && state_->handle() != nullptr;
}
weir::device stream_pool::device() const { return usable(state_).device(); }
const stream_pool_config& stream_pool::config() const { return usable(state_).config(); }
driver::CUmemoryPool stream_pool::handle() const { return usable(state_).handle(); }
result<stream_pool_remains> stream_pool::close() const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->close();
}
bool stream_pool::is_default() const {
  return usable(state_).kind() == pools::stream_pool_kind::standard;
}
bool stream_pool::is_imported() const {
  return usable(state_).kind() == pools::stream_pool_kind::imported;
}

// --- The owner ----------------------------------------------------------------------------------

stream_allocation::stream_allocation(const std::shared_ptr<pools::stream_pool_state>& pool,
                                     void* data, bytes size, const stream_ref& stream) noexcept
    : memory_owner{pool, data, size, stream} {}

stream_pool stream_allocation::pool() const {
  if (home_ == nullptr) raise(errc::moved_from);
  return stream_pool{std::static_pointer_cast<pools::stream_pool_state>(home_)};
}

}}  // namespace weir::v0
