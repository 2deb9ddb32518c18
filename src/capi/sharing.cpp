// SPDX-License-Identifier: Apache-2.0
// The C ABI's sharing by descriptors: the handles under a block, and mapping them elsewhere.
#include "capi/sharing.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "capi/guard.hpp"
#include "capi/structures.hpp"
#include "sharing/device_idle.hpp"
#include "weir.h"

namespace weir { inline namespace v0 { namespace capi { namespace {

/// The array that begins at `first`. bad_version, invalid_argument: an entry cannot be a piece.
result<std::vector<weir_shared_piece>> read_pieces(const weir_shared_piece* first,
                                                   std::uint64_t count) {
  if (count == 0)
    return error{{.code = errc::invalid_argument, .detail = "count must be greater than zero"}};
  if (count > most_share_pieces)
    return error{{.code = errc::limit_exceeded, .detail = "too many pieces"}};
  WEIR_TRY(check_size(first, "pieces"));
  std::vector<weir_shared_piece> all;
  const auto* const at = reinterpret_cast<const std::byte*>(first);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::byte* const piece = at + i * first->struct_size;
    WEIR_TRY(check_unknown_members(piece, sizeof(weir_shared_piece), first->struct_size));
    weir_shared_piece each;
    std::memcpy(&each, piece, sizeof(each));
    if (each.size == 0 || each.descriptor < 0)
      return error{{.code = errc::invalid_argument, .detail = "a piece has size zero"}};
    all.push_back(each);
  }
  return all;
}

result<mapped_pieces> map_pieces(weir::device device, const std::vector<weir_shared_piece>& pieces,
                                 bytes total, access_rights rights) {
  WEIR_TRY_VALUE(range, address_range::reserve(device, total));
  mapped_pieces memory{device, std::move(range), {}, {}, {}, rights};
  bytes offset{};
  for (const weir_shared_piece& each : pieces) {
    WEIR_TRY_VALUE(handle,
                   physical_handle::import_descriptor(device, each.descriptor, bytes{each.size}));
    WEIR_TRY_VALUE(mapped, mapping::create(memory.range, offset, handle));
    WEIR_TRY(mapped.set_access(device, rights));
    memory.mappings.push_back(std::move(mapped));
    offset = bytes{offset.count() + each.size};
  }
  return memory;
}

result<bytes> total_of(const std::vector<weir_shared_piece>& pieces) {
  std::uint64_t total = 0;
  for (const weir_shared_piece& each : pieces)
    if (__builtin_add_overflow(total, each.size, &total)) return errc::size_overflow;
  return bytes{total};
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_allocator_export_block(weir_allocator* allocator, const void* pointer,
                                       weir_shared_piece* pieces, uint64_t capacity,
                                       uint64_t* count, uint64_t* offset) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(allocator));
    WEIR_NEEDS(count);
    WEIR_NEEDS(offset);
    WEIR_TRY_VALUE(into, array_argument<weir_shared_piece>::of(pieces, capacity));
    WEIR_TRY_VALUE(under, object->memory.handles_under(pointer));
    if (under.handles.size() > capacity) {
      *count = under.handles.size();
      return error{{.code = errc::invalid_argument,
                    .detail = "the array is too short for all pieces; pass a larger capacity"}};
    }
    const context_scope bound{object->legacy.device()};
    if (!bound) return bound.error();
    std::vector<descriptor> exported;  // all, or none
    for (const vmm::physical& each : under.handles) {
      WEIR_TRY_VALUE(one, vmm::export_descriptor(bound, each));
      exported.push_back(std::move(one));
    }
    for (std::size_t i = 0; i < exported.size(); ++i)
      into.write(i, {0, exported[i].release(), under.handles[i].size.count()});
    *count = exported.size();
    *offset = under.offset.count();
    return {};
  });
}

weir_error weir_import_pieces(weir_runtime* runtime, int32_t device,
                              const weir_shared_piece* pieces, uint64_t count, uint64_t offset,
                              uint64_t size, int32_t rights, weir_imported** imported) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(imported);
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    WEIR_TRY_VALUE(all, read_pieces(pieces, count));
    WEIR_TRY_VALUE(total, total_of(all));
    WEIR_TRY_VALUE(allowed, rights_from(rights));
    if (size == 0 || offset > total.count() || size > total.count() - offset)
      return error{{.code = errc::invalid_argument, .detail = "the part exceeds the pieces"}};
    WEIR_TRY_VALUE(mapped, map_pieces(home.device, all, total, allowed));
    mapped.offset = bytes{offset};
    mapped.size = bytes{size};
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_imported>(std::make_shared<imported_object>(
                               imported_object{std::move(mapped)})));
    *imported = handle;
    return {};
  });
}

weir_error weir_imported_get_info(weir_imported* imported, weir_imported_info* info) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(imported));
    weir_imported_info known{};
    if (const auto* const linked = std::get_if<imported_memory>(&object->memory)) {
      WEIR_TRY_VALUE(address, linked->address());
      known.rights = static_cast<std::int32_t>(linked->rights());
      known.address = address;
      known.size = linked->size().count();
    } else if (const auto* const mapped = std::get_if<mapped_pieces>(&object->memory)) {
      known.rights = static_cast<std::int32_t>(mapped->rights);
      known.address = mapped->range.base() + mapped->offset.count();
      known.size = mapped->size.count();
    }
    return hand_out(known, info);
  });
}

weir_error weir_imported_close(weir_imported* imported) {
  return guarded([&]() -> result<void> {
    if (imported == nullptr) return {};
    WEIR_TRY_VALUE(object, find(imported));
    result<void> outcome;
    // Where the devices cannot be waited for it stays open, and can be closed later.
    if (auto* const linked = std::get_if<imported_memory>(&object->memory)) {
      outcome = linked->close();
      if (!outcome && linked->mapped_at() != 0) return outcome;
    } else if (const auto* const mapped = std::get_if<mapped_pieces>(&object->memory)) {
      outcome = sharing::wait_until_idle(mapped->device);
      if (!sharing::may_unmap(outcome)) return outcome;
    }
    object.reset();
    WEIR_TRY(take(imported));  // whoever else holds it unmaps it when done
    return outcome;
  });
}
}
