// Managed blocks: making them, viewing them, placing them.
#include "weir/buffer/unified_buffer.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "buffers/managed_state.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/device/runtime.hpp"

namespace weir::inline v0 {

using buffers::managed_state;
using driver::call;
using driver::check;

namespace {

void* pointer_to(device_address address) noexcept { return reinterpret_cast<void*>(address); }

/// Memory that holds nothing yet. Attached to the host unless it is to be global at once.
result<std::shared_ptr<managed_state>> allocate(bytes size, bytes alignment, weir::device where,
                                                bool global) {
  auto made = std::make_shared<managed_state>(where, size, alignment,
                                              global ? attachment::global : attachment::host);
  WEIR_TRY(made->allocate());
  return made;
}

/// What the driver calls a place. The old form of the calls has numbers only.
driver::CUmemLocation location(managed_place where) noexcept {
  if (where.is_device()) return {driver::CU_MEM_LOCATION_TYPE_DEVICE, where.number()};
  if (where.is_host_node()) return {driver::CU_MEM_LOCATION_TYPE_HOST_NUMA, where.number()};
  return {driver::CU_MEM_LOCATION_TYPE_HOST, 0};
}

driver::CUdevice old_number(managed_place where) noexcept {
  return where.is_device() ? where.number() : driver::cpu_device;
}

/// Whether the place exists and takes part in concurrent access.
result<void> check_place(const managed_state& memory, managed_place where, bool old_form) {
  if (where.is_host_node() && old_form) {
    return error{.code = errc::not_supported, .detail = "a driver before CUDA 12.2 has no nodes"};
  }
  if (!where.is_device()) return {};
  auto& state = detail::device_state::of(memory.device());
  WEIR_TRY_VALUE(target, state.owner->device(device_id{where.number()}));
  if (target.capabilities().concurrent_managed_access) return {};
  return error{
      .code = errc::not_supported,
      .detail = "device " + std::to_string(where.number()) + " has no concurrent managed access"};
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

/// Asks the driver about one range.
class range_question {
 public:
  range_question(const context_scope& bound, device_address address, bytes size)
      : calls_{bound.driver()}, address_{address}, size_{size} {}

  template <std::size_t Count>
  result<std::array<int, Count>> ask(driver::CUmem_range_attribute which) const {
    std::array<int, Count> answer{};
    WEIR_TRY(check(call::mem_range_get_attribute,
                   calls_.mem_range_get_attribute(answer.data(), sizeof answer, which, address_,
                                                  size_.count())));
    return answer;
  }

  /// Drivers since CUDA 12.2 tell nodes of the host apart.
  result<std::optional<managed_place>> place(driver::CUmem_range_attribute number,
                                             driver::CUmem_range_attribute type,
                                             driver::CUmem_range_attribute id) const {
    if (calls_.mem_advise == nullptr) {
      WEIR_TRY_VALUE(old, ask<1>(number));
      return place_of_number(old[0]);
    }
    WEIR_TRY_VALUE(what, ask<1>(type));
    WEIR_TRY_VALUE(which, ask<1>(id));
    return place_of(what[0], which[0]);
  }

 private:
  const driver::table& calls_;
  device_address address_;
  bytes size_;
};

result<void> advise(const managed_state& memory, detail::managed_block::part which,
                    driver::CUmem_advise advice, managed_place where) {
  const context_scope bound{memory.device()};
  if (!bound) return bound.error();
  const auto& calls = bound.driver();
  const device_address from = memory.first() + which.offset.count();
  if (calls.mem_advise != nullptr) {
    return check(call::mem_advise,
                 calls.mem_advise(from, which.size.count(), advice, location(where)));
  }
  return check(call::mem_advise_v1,
               calls.mem_advise_v1(from, which.size.count(), advice, old_number(where)));
}

}  // namespace

namespace detail {

view_hold& view_hold::operator=(view_hold&& other) noexcept {
  if (this == &other) return *this;
  drop();
  of_ = std::move(other.of_);
  return *this;
}

void view_hold::drop() noexcept {
  if (of_ != nullptr) of_->end_view();
  of_.reset();
}

result<managed_block> managed_block::create(bytes size, bytes alignment, const void* data,
                                            const stream_ref& stream, attachment mode) {
  if (size == bytes{}) {
    return error{.code = errc::invalid_argument, .detail = "a unified buffer of nothing"};
  }
  const weir::device where = stream.device();
  if (!where.capabilities().managed_memory) {
    return error{.code = errc::not_supported, .detail = "the device has no managed memory"};
  }
  WEIR_TRY_VALUE(captured, stream.is_capturing());
  if (captured) return errc::capture_forbidden;
  // What the host writes first begins as the host's: there it may write while the device works,
  // with and without concurrent access.
  const bool by_host = data != nullptr || mode == attachment::host;
  managed_block made;
  WEIR_TRY_VALUE(memory, allocate(size, alignment, where, !by_host && mode == attachment::global));
  made.inside_ = std::move(memory);
  if (data != nullptr) {
    std::memcpy(made.data(), data, size.count());
  } else if (by_host) {
    std::memset(made.data(), 0, size.count());
  }
  if (made.attached() != mode) WEIR_TRY(made.attach(mode, stream));
  if (!by_host) {
    WEIR_TRY(made.use_on(stream));
    WEIR_TRY(fill_bytes(made.data(), 0, size, stream));
  }
  return made;
}

result<void> managed_block::close() noexcept {
  const auto inside = std::exchange(inside_, nullptr);
  // A view that still lives frees it later.
  return inside != nullptr && inside.use_count() == 1 ? inside->free() : result<void>{};
}

void* managed_block::data() const noexcept {
  return inside_ != nullptr ? pointer_to(inside_->first()) : nullptr;
}
bytes managed_block::size() const noexcept {
  return inside_ != nullptr ? inside_->size() : bytes{};
}
weir::device managed_block::device() const noexcept { return inside_->device(); }
attachment managed_block::attached() const noexcept { return inside_->attached(); }

result<void> managed_block::use_on(const stream_ref& stream) const {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->use_on(stream);
}

result<view_hold> managed_block::view() const {
  if (inside_ == nullptr) return errc::already_freed;
  WEIR_TRY(inside_->begin_view(managed_state::patience::wait, nullptr));
  return view_hold{inside_};
}

result<view_hold> managed_block::view(const event& behind) const {
  if (inside_ == nullptr) return errc::already_freed;
  WEIR_TRY(inside_->begin_view(managed_state::patience::wait, &behind));
  return view_hold{inside_};
}

result<view_hold> managed_block::try_view() const {
  if (inside_ == nullptr) return errc::already_freed;
  WEIR_TRY(inside_->begin_view(managed_state::patience::do_not_wait, nullptr));
  return view_hold{inside_};
}

result<void> managed_block::prefetch(part which, managed_place to, const stream_ref& stream) const {
  const bool old_form = stream.device().driver().mem_prefetch_async == nullptr;
  WEIR_TRY(check_place(*inside_, to, old_form));
  // The driver asks this of the stream's device too, whatever the target.
  WEIR_TRY(check_place(*inside_, stream.device(), old_form));
  WEIR_TRY(inside_->use_on(stream));
  const context_scope bound{stream.device()};
  WEIR_TRY_VALUE(captured, stream.is_capturing(bound));
  if (captured) return errc::capture_forbidden;
  const auto& calls = bound.driver();
  const device_address from = inside_->first() + which.offset.count();
  if (!old_form) {
    return check(
        call::mem_prefetch_async,
        calls.mem_prefetch_async(from, which.size.count(), location(to), 0, stream.handle()),
        which.size);
  }
  return check(
      call::mem_prefetch_async_v1,
      calls.mem_prefetch_async_v1(from, which.size.count(), old_number(to), stream.handle()),
      which.size);
}

result<void> managed_block::read_mostly(part which, bool on) const {
  // The place means nothing for this advice, but must be one.
  return advise(
      *inside_, which,
      on ? driver::CU_MEM_ADVISE_SET_READ_MOSTLY : driver::CU_MEM_ADVISE_UNSET_READ_MOSTLY,
      inside_->device());
}

result<void> managed_block::prefer(part which, std::optional<managed_place> where) const {
  if (!where) {
    return advise(*inside_, which, driver::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
                  inside_->device());
  }
  const bool old_form = inside_->device().driver().mem_advise == nullptr;
  WEIR_TRY(check_place(*inside_, *where, old_form));
  return advise(*inside_, which, driver::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, *where);
}

result<void> managed_block::accessed_by(part which, managed_place who, bool on) const {
  if (who.is_host_node()) {
    return error{.code = errc::invalid_argument,
                 .detail = "the whole host accesses, no node of it"};
  }
  WEIR_TRY(check_place(*inside_, who, false));
  return advise(
      *inside_, which,
      on ? driver::CU_MEM_ADVISE_SET_ACCESSED_BY : driver::CU_MEM_ADVISE_UNSET_ACCESSED_BY, who);
}

result<managed_range_info> managed_block::info(part which) const {
  const context_scope bound{device()};
  if (!bound) return bound.error();
  const range_question about{bound, inside_->first() + which.offset.count(), which.size};
  managed_range_info found;
  WEIR_TRY_VALUE(mostly, about.ask<1>(driver::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY));
  found.read_mostly = mostly[0] != 0;
  WEIR_TRY_VALUE(preferred, about.place(driver::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                                        driver::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE,
                                        driver::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID));
  found.preferred = preferred;
  constexpr std::size_t most_processors = 65;  // more devices than any machine has, and the host
  WEIR_TRY_VALUE(accessors, about.ask<most_processors>(driver::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY));
  for (const int each : accessors) {
    if (const auto who = place_of_number(each)) found.accessed_by.push_back(*who);
  }
  WEIR_TRY_VALUE(last, about.place(driver::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
                                   driver::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE,
                                   driver::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID));
  found.last_prefetch = last;
  return found;
}

result<void> managed_block::resize(bytes size, const stream_ref& stream) {
  if (inside_ == nullptr) return errc::already_freed;
  if (size == bytes{}) return errc::invalid_argument;
  const attachment mode = attached();
  WEIR_TRY(inside_->rest());
  managed_block fresh;
  WEIR_TRY_VALUE(
      memory, allocate(size, inside_->alignment(), inside_->device(), mode == attachment::global));
  fresh.inside_ = std::move(memory);
  const bytes kept = std::min(size, inside_->size());
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
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->attach(mode, stream);
}

}  // namespace detail

}  // namespace weir::inline v0
