// SPDX-License-Identifier: Apache-2.0
// Managed blocks: creating them, viewing them, placing them.
#include "weir/buffer/unified_buffer.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "buffers/managed_state.hpp"
#include "device/finished_work.hpp"
#include "pools/guarded.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/device/runtime.hpp"

namespace weir { inline namespace v0 {

using buffers::managed_state;
using patience = buffers::view_patience;
using driver::call;
using driver::check;

namespace {

void* pointer_to(device_address address) noexcept { return reinterpret_cast<void*>(address); }

/// capture_forbidden: the stream is being captured, or is the legacy stream beside a capture.
result<void> check_outside_captures(const stream_ref& stream) {
  const context_scope bound{stream.device()};
  WEIR_TRY_VALUE(outside, detail::is_outside_captures(stream, bound));
  if (outside) return {};
  return errc::capture_forbidden;
}

/// Memory without contents. Attached to the host unless it is to be global at once.
result<std::shared_ptr<managed_state>> allocate(bytes size, bytes alignment, weir::device home,
                                                bool is_global) {
  auto memory = std::make_shared<managed_state>(home, size, alignment,
                                                is_global ? attachment::global : attachment::host);
  WEIR_TRY(memory->allocate());
  return memory;
}

/// The driver's name of a place. The old form of the calls has numbers only.
driver::CUmemLocation location(managed_place place) noexcept {
  if (place.is_device()) return {driver::CU_MEM_LOCATION_TYPE_DEVICE, place.number()};
  if (place.is_host_node()) return {driver::CU_MEM_LOCATION_TYPE_HOST_NUMA, place.number()};
  return {driver::CU_MEM_LOCATION_TYPE_HOST, 0};
}

driver::CUdevice old_number(managed_place place) noexcept {
  return place.is_device() ? place.number() : driver::cpu_device;
}

/// Whether the place exists and takes part in concurrent access.
result<void> check_place(const managed_state& memory, managed_place place, bool old_form) {
  if (place.is_host_node() && old_form) {
    return error{
        {.code = errc::not_supported, .detail = "host nodes need a driver of CUDA 12.2 or later"}};
  }
  if (!place.is_device()) return {};
  auto& state = detail::device_state::of(memory.device());
  WEIR_TRY_VALUE(target, state.owner->device(device_id{place.number()}));
  if (target.capabilities().concurrent_managed_access) return {};
  return error{{.code = errc::not_supported,
                .detail = to_string(place) + " has no concurrent managed access"}};
}

std::optional<managed_place> place_of(int type, int number) {
  switch (type) {
    case driver::CU_MEM_LOCATION_TYPE_DEVICE:
      return managed_place{device_id{number}};
    case driver::CU_MEM_LOCATION_TYPE_HOST:
      return managed_place::host();
    case driver::CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case driver::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return managed_place::host_node(number);
    default:
      return std::nullopt;
  }
}

std::optional<managed_place> place_of_number(int number) {
  if (number >= 0) return managed_place{device_id{number}};
  return number == driver::cpu_device ? std::optional{managed_place::host()} : std::nullopt;
}

/// Reads the driver's attributes of one range.
class range_attributes {
 public:
  range_attributes(const context_scope& bound, device_address address, bytes size)
      : calls_{bound.driver()}, address_{address}, size_{size} {}

  template <std::size_t Count>
  result<std::array<int, Count>> read(driver::CUmem_range_attribute attribute) const {
    std::array<int, Count> values{};
    WEIR_TRY(check(call::mem_range_get_attribute,
                   calls_.mem_range_get_attribute(values.data(), sizeof values, attribute, address_,
                                                  size_.count())));
    return values;
  }

  /// Drivers since CUDA 12.2 distinguish nodes of the host.
  result<std::optional<managed_place>> place(driver::CUmem_range_attribute number,
                                             driver::CUmem_range_attribute type,
                                             driver::CUmem_range_attribute id) const {
    if (calls_.mem_advise == nullptr) {
      WEIR_TRY_VALUE(old_form, read<1>(number));
      return place_of_number(old_form[0]);
    }
    WEIR_TRY_VALUE(type_value, read<1>(type));
    WEIR_TRY_VALUE(id_value, read<1>(id));
    return place_of(type_value[0], id_value[0]);
  }

 private:
  const driver::table& calls_;
  device_address address_;
  bytes size_;
};

result<void> advise(const managed_state& memory, detail::managed_block::part range,
                    driver::CUmem_advise advice, managed_place place) {
  const context_scope bound{memory.device()};
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{memory.device()};
  if (!relaxed) return relaxed.error();
  const auto& calls = bound.driver();
  const device_address first = memory.first() + range.offset.count();
  if (calls.mem_advise != nullptr) {
    return check(call::mem_advise,
                 calls.mem_advise(first, range.size.count(), advice, location(place)));
  }
  return check(call::mem_advise_v1,
               calls.mem_advise_v1(first, range.size.count(), advice, old_number(place)));
}

result<managed_range_info> read_info(const managed_state& memory,
                                     detail::managed_block::part range) {
  const context_scope bound{memory.device()};
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{memory.device()};
  if (!relaxed) return relaxed.error();
  const range_attributes attributes{bound, memory.first() + range.offset.count(), range.size};
  managed_range_info info;
  WEIR_TRY_VALUE(mostly, attributes.read<1>(driver::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY));
  info.read_mostly = mostly[0] != 0;
  WEIR_TRY_VALUE(preferred, attributes.place(driver::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                                             driver::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE,
                                             driver::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID));
  info.preferred = preferred;
  constexpr std::size_t most_processors = 65;  // more devices than any machine has, and the host
  WEIR_TRY_VALUE(accessors,
                 attributes.read<most_processors>(driver::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY));
  for (const int number : accessors) {
    if (const auto accessor = place_of_number(number)) info.accessed_by.push_back(*accessor);
  }
  WEIR_TRY_VALUE(last, attributes.place(driver::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
                                        driver::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE,
                                        driver::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID));
  info.last_prefetch = last;
  return info;
}

/// Queues the move of the pages. The stream is recorded as a user only once nothing forbids it.
result<void> queue_prefetch(managed_state& memory, detail::managed_block::part range,
                            managed_place target, const stream_ref& stream) {
  const bool old_form = stream.device().driver().mem_prefetch_async == nullptr;
  WEIR_TRY(check_place(memory, target, old_form));
  // The driver requires this of the stream's device too, whatever the target.
  WEIR_TRY(check_place(memory, stream.device(), old_form));
  WEIR_TRY(check_outside_captures(stream));
  WEIR_TRY(memory.use_on(stream));
  const context_scope bound{stream.device()};
  if (!bound) return bound.error();
  const auto& calls = bound.driver();
  const device_address first = memory.first() + range.offset.count();
  if (!old_form) {
    return check(
        call::mem_prefetch_async,
        calls.mem_prefetch_async(first, range.size.count(), location(target), 0, stream.handle()),
        range.size);
  }
  return check(
      call::mem_prefetch_async_v1,
      calls.mem_prefetch_async_v1(first, range.size.count(), old_number(target), stream.handle()),
      range.size);
}

}  // namespace

namespace detail {

view_hold& view_hold::operator=(view_hold&& other) noexcept {
  if (this == &other) return *this;
  drop();
  memory_ = std::move(other.memory_);
  return *this;
}

void view_hold::drop() noexcept {
  if (memory_ != nullptr) memory_->end_view();
  memory_.reset();
}

result<managed_block> managed_block::create(bytes size, bytes alignment, contents initial,
                                            const void* values, const stream_ref& stream,
                                            attachment mode) {
  return pools::guarded([&] { return create_on(stream, size, alignment, initial, values, mode); });
}

result<managed_block> managed_block::create_on(const stream_ref& stream, bytes size,
                                               bytes alignment, contents initial,
                                               const void* values, attachment mode) {
  if (size == bytes{}) {
    return error{{.code = errc::invalid_argument, .detail = "size must be greater than zero"}};
  }
  const weir::device home = stream.device();
  if (!home.capabilities().managed_memory) {
    return error{
        {.code = errc::not_supported, .detail = "the device does not support managed memory"}};
  }
  WEIR_TRY(check_outside_captures(stream));
  // Memory that the host writes first is attached to the host until then: so it may write while the
  // device works, with and without concurrent access.
  const bool is_host_first = values != nullptr || mode == attachment::host;
  const bool is_zeroed = values == nullptr && initial == contents::zeroed;
  managed_block block;
  WEIR_TRY_VALUE(memory,
                 allocate(size, alignment, home, !is_host_first && mode == attachment::global));
  block.state_ = std::move(memory);
  if (values != nullptr) {
    std::memcpy(block.data(), values, size.count());
  } else if (is_zeroed && is_host_first) {
    std::memset(block.data(), 0, size.count());
  }
  if (block.attached() != mode) WEIR_TRY(block.attach(mode, stream));
  if (is_zeroed && !is_host_first) {
    WEIR_TRY(block.use_on(stream));
    WEIR_TRY(fill_bytes(block.data(), 0, size, stream));
  }
  return block;
}

result<void> managed_block::close() noexcept {
  const auto memory = std::exchange(state_, nullptr);
  // A view that still lives frees it later.
  return memory.use_count() == 1 ? memory->free() : result<void>{};
}

void* managed_block::data() const noexcept {
  return state_ != nullptr ? pointer_to(state_->first()) : nullptr;
}
bytes managed_block::size() const noexcept { return state_ != nullptr ? state_->size() : bytes{}; }
weir::device managed_block::device() const noexcept { return state_->device(); }
attachment managed_block::attached() const noexcept { return state_->attached(); }

result<void> managed_block::use_on(const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return pools::guarded([&] { return state_->use_on(stream); });
}

result<view_hold> managed_block::begin_view(patience waiting, const event* behind) const {
  if (state_ == nullptr) return errc::moved_from;
  WEIR_TRY(pools::guarded([&] { return state_->begin_view(waiting, behind); }));
  return view_hold{state_};
}

result<view_hold> managed_block::view() const { return begin_view(patience::wait, nullptr); }

result<view_hold> managed_block::view(const event& behind) const {
  return begin_view(patience::wait, &behind);
}

result<view_hold> managed_block::try_view() const {
  return begin_view(patience::do_not_wait, nullptr);
}

result<void> managed_block::prefetch(part range, managed_place target,
                                     const stream_ref& stream) const {
  if (state_->forked()) return fork_error();
  return pools::guarded([&] { return queue_prefetch(*state_, range, target, stream); });
}

result<void> managed_block::read_mostly(part range, bool on) const {
  // The place means nothing for this advice, but must be one.
  return advise(
      *state_, range,
      on ? driver::CU_MEM_ADVISE_SET_READ_MOSTLY : driver::CU_MEM_ADVISE_UNSET_READ_MOSTLY,
      state_->device());
}

result<void> managed_block::prefer(part range, std::optional<managed_place> place) const {
  if (!place) {
    return advise(*state_, range, driver::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, state_->device());
  }
  const bool old_form = state_->device().driver().mem_advise == nullptr;
  WEIR_TRY(pools::guarded([&] { return check_place(*state_, *place, old_form); }));
  return advise(*state_, range, driver::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, *place);
}

result<void> managed_block::accessed_by(part range, managed_place accessor, bool on) const {
  WEIR_TRY(pools::guarded([&]() -> result<void> {
    if (!accessor.is_host_node()) return check_place(*state_, accessor, false);
    return error{{.code = errc::invalid_argument,
                  .detail = "the accessor must be a device or the whole host, not a host node"}};
  }));
  return advise(
      *state_, range,
      on ? driver::CU_MEM_ADVISE_SET_ACCESSED_BY : driver::CU_MEM_ADVISE_UNSET_ACCESSED_BY,
      accessor);
}

result<managed_range_info> managed_block::info(part range) const {
  return pools::guarded([&] { return read_info(*state_, range); });
}

result<void> managed_block::resize(bytes size, const stream_ref& stream) {
  if (state_ == nullptr) return errc::moved_from;
  if (size == bytes{}) return errc::invalid_argument;
  if (state_->forked()) return fork_error();
  return pools::guarded([&] { return move_to(size, stream); });
}

result<void> managed_block::move_to(bytes size, const stream_ref& stream) {
  // In a capture the elements would be copied when the graph is launched, from freed memory.
  WEIR_TRY(check_outside_captures(stream));
  const attachment mode = attached();
  WEIR_TRY(state_->wait_until_unused());
  managed_block fresh;
  WEIR_TRY_VALUE(memory,
                 allocate(size, state_->alignment(), state_->device(), mode == attachment::global));
  fresh.state_ = std::move(memory);
  const bytes kept = std::min(size, state_->size());
  void* const rest = static_cast<std::byte*>(fresh.data()) + kept.count();
  if (mode == attachment::host) {
    std::memcpy(fresh.data(), data(), kept.count());
    std::memset(rest, 0, (size - kept).count());
  } else {
    if (mode == attachment::single) WEIR_TRY(fresh.attach(mode, stream));
    WEIR_TRY(use_on(stream));
    WEIR_TRY(fresh.use_on(stream));
    WEIR_TRY(copy_bytes(fresh.data(), data(), kept, stream));
    WEIR_TRY(fill_bytes(rest, 0, size - kept, stream));
  }
  *this = std::move(fresh);
  return {};
}

result<void> managed_block::attach(attachment mode, const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return pools::guarded([&] { return state_->attach(mode, stream); });
}

}  // namespace detail

}}  // namespace weir::v0
