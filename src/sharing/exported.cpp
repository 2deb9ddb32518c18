// SPDX-License-Identifier: Apache-2.0
// Memory that can be exported: handles of its own, or a block of an allocator.
#include <algorithm>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "sharing/device_idle.hpp"
#include "sharing/session.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 {

using sharing::exported;

namespace {

error too_many_pieces(bytes size) {
  return {{.code = errc::limit_exceeded,
           .requested = size,
           .detail = "more than " + std::to_string(most_share_pieces) + " handles"}};
}

/// A handle of its own for each piece, mapped one behind the other.
result<void> create_pieces(exported& memory, weir::device home, std::uint64_t count) {
  WEIR_TRY_VALUE(range, address_range::reserve(home, memory.unit * count));
  memory.address = range.base();
  memory.range.emplace(std::move(range));
  for (std::uint64_t i = 0; i < count; ++i) {
    WEIR_TRY_VALUE(handle, physical_handle::create(home, memory.unit, {.posix_descriptor = true}));
    WEIR_TRY_VALUE(mapped, mapping::create(*memory.range, memory.unit * i, handle));
    memory.pieces.push_back(handle.get());
    memory.handles.push_back(std::move(handle));
    memory.mappings.push_back(std::move(mapped));
    WEIR_TRY(memory.mappings.back().set_access(home));
  }
  return {};
}

/// Whether the block begins and ends with a handle, and all of them are of one size.
bool fills_its_handles(const block_handles& under, bytes size) {
  bytes whole{};
  for (const auto& each : under.handles) {
    if (each.size != under.handles.front().size) return false;
    whole += each.size;
  }
  return under.offset == bytes{} && whole == size;
}

}  // namespace

namespace sharing {

/// The mappings without their owner. Unmapped before the addresses are released.
struct orphaned_mappings {
  std::optional<address_range> range;
  std::vector<physical_handle> handles;
  std::vector<mapping> mappings;
};

exported::exported(weir::device device)
    : home{detail::device_state::keep(device)}, orphans{std::make_shared<orphaned_mappings>()} {}

result<void> exported::end_mappings() noexcept {
  auto idle = wait_until_idle(home->handle());
  if (may_unmap(idle)) return idle;
  *orphans = {std::exchange(range, std::nullopt), std::move(handles), std::move(mappings)};
  place.keep_until_idle(home->handle(), std::move(orphans));
  error reason = std::move(idle).error();
  reason.set_requested(size);
  return reason;
}

exported::~exported() {
  if (range) detail::report_failure(end_mappings());
  if (block == nullptr) return;
  if (!exposed.load(std::memory_order_relaxed)) {
    heap->deallocate(block);
    return;
  }
  report_error({{.code = errc::not_ready,
                 .requested = size,
                 .detail = "a block stays allocated: another process may still have it mapped"}});
}

}  // namespace sharing

result<shared_memory> shared_memory::create(weir::device home, bytes size,
                                            shared_memory_options settings) try {
  WEIR_TRY_VALUE(whole, round_to_granularity(home, size));
  bytes unit = whole;
  if (settings.unit != bytes{}) {
    WEIR_TRY_VALUE(rounded, round_to_granularity(home, settings.unit));
    unit = rounded;
  }
  const auto all = checked_round_up(whole, unit);
  if (!all) return error{{.code = errc::size_overflow, .requested = size}};
  if (*all / unit > most_share_pieces) return too_many_pieces(size);
  auto memory = std::make_shared<exported>(home);
  memory->size = size;
  memory->unit = unit;
  WEIR_TRY(create_pieces(*memory, home, *all / unit));
  return shared_memory{std::move(memory)};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<shared_memory> shared_memory::allocate(const caching_allocator& from,
                                              const memory_pool& pool, bytes size,
                                              const stream_ref& stream) try {
  if (!pool) return errc::invalid_argument;
  WEIR_TRY_VALUE(whole, round_to_granularity(from.device(), size));
  const bytes unit = from.device().capabilities().granularity;
  if (whole / unit > most_share_pieces) return too_many_pieces(size);
  auto memory = std::make_shared<exported>(from.device());
  memory->heap.emplace(from);
  memory->pool = pool;
  memory->size = size;
  WEIR_TRY_VALUE(block, pool.try_allocate(whole, stream, unit));
  memory->block = block;  // from here on it is freed with `memory`
  memory->address = reinterpret_cast<device_address>(block);
  WEIR_TRY_VALUE(under, pool.handles_under(block));
  if (!fills_its_handles(under, whole)) {
    return error{
        {.code = errc::internal,
         .detail = "the block shares physical handles with others and cannot be exported alone"}};
  }
  memory->unit = under.handles.front().size;
  memory->pieces = std::move(under.handles);
  return shared_memory{std::move(memory)};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

device_address shared_memory::address() const noexcept { return state_->address; }
bytes shared_memory::size() const noexcept { return state_->size; }
bytes shared_memory::unit() const noexcept { return state_->unit; }
weir::device shared_memory::device() const noexcept { return state_->home->handle(); }

}}  // namespace weir::v0
