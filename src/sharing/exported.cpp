// Memory that can be given away: made of its own handles, or a block of an allocator.
#include <algorithm>
#include <new>
#include <utility>

#include "sharing/rest.hpp"
#include "sharing/session.hpp"
#include "weir/base/checked.hpp"

namespace weir::inline v0 {

using sharing::exported;

namespace {

error too_many_pieces(bytes size) {
  return {.code = errc::limit_exceeded,
          .requested = size,
          .detail = "more than " + std::to_string(most_share_pieces) + " handles"};
}

/// A handle of its own for each piece, mapped one behind the other.
result<void> make_pieces(exported& into, weir::device where, std::uint64_t count) {
  WEIR_TRY_VALUE(range, address_range::reserve(where, into.unit * count));
  into.address = range.base();
  into.range.emplace(std::move(range));
  for (std::uint64_t i = 0; i < count; ++i) {
    WEIR_TRY_VALUE(handle, physical_handle::create(where, into.unit, {.posix_descriptor = true}));
    WEIR_TRY_VALUE(there, mapping::create(*into.range, into.unit * i, handle));
    into.pieces.push_back(handle.get());
    into.handles.push_back(std::move(handle));
    into.mappings.push_back(std::move(there));
    WEIR_TRY(into.mappings.back().set_access(where));
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

/// What was mapped, apart from its owner. Unmapped before the addresses go.
struct remains {
  std::optional<address_range> range;
  std::vector<physical_handle> handles;
  std::vector<mapping> mappings;
};

result<void> exported::end_mappings() {
  auto rested = wait_for_rest(home->handle());
  if (rested || rested.code() != errc::capture_forbidden) return rested;
  try {
    keep_until_rest(home->handle(),
                    std::make_shared<remains>(remains{std::exchange(range, std::nullopt),
                                                      std::move(handles), std::move(mappings)}));
    return {};
  } catch (const std::bad_alloc&) {
    return rested;  // there is no room to keep it in: it goes at once
  }
}

exported::~exported() {
  if (range) detail::report_failure(end_mappings());
  if (block == nullptr) return;
  if (!exposed.load(std::memory_order_relaxed)) {
    heap->deallocate(block);
    return;
  }
  report_error({.code = errc::not_ready,
                .requested = size,
                .detail = "a block stays allocated: another process may still have it mapped"});
}

}  // namespace sharing

result<shared_memory> shared_memory::create(weir::device where, bytes size,
                                            shared_memory_options settings) {
  WEIR_TRY_VALUE(whole, round_to_granularity(where, size));
  bytes unit = whole;
  if (settings.unit != bytes{}) {
    WEIR_TRY_VALUE(rounded, round_to_granularity(where, settings.unit));
    unit = rounded;
  }
  const auto all = checked_round_up(whole, unit);
  if (!all) return error{.code = errc::size_overflow, .requested = size};
  if (*all / unit > most_share_pieces) return too_many_pieces(size);
  auto made = std::make_shared<exported>(where);
  made->size = size;
  made->unit = unit;
  WEIR_TRY(make_pieces(*made, where, *all / unit));
  return shared_memory{std::move(made)};
}

result<shared_memory> shared_memory::allocate(const caching_allocator& from,
                                              const memory_pool& pool, bytes size,
                                              const stream_ref& stream) {
  if (!pool) return errc::invalid_argument;
  WEIR_TRY_VALUE(whole, round_to_granularity(from.device(), size));
  const bytes unit = from.device().capabilities().granularity;
  if (whole / unit > most_share_pieces) return too_many_pieces(size);
  auto made = std::make_shared<exported>(from.device());
  made->heap.emplace(from);
  made->pool = pool;
  made->size = size;
  WEIR_TRY_VALUE(block, pool.try_allocate(whole, stream, unit));
  made->block = block;  // from here on it goes back with `made`
  made->address = reinterpret_cast<device_address>(block);
  WEIR_TRY_VALUE(under, pool.handles_under(block));
  if (!fills_its_handles(under, whole)) {
    return error{.code = errc::internal, .detail = "a block that shares its handles"};
  }
  made->unit = under.handles.front().size;
  made->pieces = std::move(under.handles);
  return shared_memory{std::move(made)};
}

device_address shared_memory::address() const noexcept { return inside_->address; }
bytes shared_memory::size() const noexcept { return inside_->size; }
bytes shared_memory::unit() const noexcept { return inside_->unit; }
weir::device shared_memory::device() const noexcept { return inside_->home->handle(); }

}  // namespace weir::inline v0
