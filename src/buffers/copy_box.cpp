// SPDX-License-Identifier: Apache-2.0
// Copies and fills of rows and planes.
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "buffers/interval.hpp"
#include "pools/queueable.hpp"
#include "weir/buffer/copy.hpp"

namespace weir { inline namespace v0 {

using buffers::address_of;
using buffers::interval;
using buffers::interval_of;
using driver::call;
using driver::check;

namespace {

error bad_box(const char* reason) { return {{.code = errc::invalid_argument, .detail = reason}}; }

/// From the first byte of the first row to the last byte of the last, gaps included.
result<interval> extent_of(const const_pitched_memory& side, const box& size) {
  if (size.rows * size.planes > 1 && side.pitch < size.width) {
    return bad_box("pitch must be at least the width");
  }
  if (size.planes > 1 && side.rows < size.rows)
    return bad_box("rows per plane must be at least the height");
  const auto plane = checked_multiply(side.pitch, size.planes > 1 ? side.rows : 0);
  const auto planes = plane ? checked_multiply(*plane, size.planes - 1) : std::nullopt;
  const auto rows = checked_multiply(side.pitch, size.rows - 1);
  const auto gaps = planes && rows ? checked_add(*planes, *rows) : std::nullopt;
  const auto all = gaps ? checked_add(*gaps, size.width) : std::nullopt;
  if (!all) return error{{.code = errc::size_overflow, .requested = size.width}};
  return interval_of(side.data, *all);
}

/// Whether two boxes of one shape, `apart` bytes from each other in the same grid, share a byte.
/// In a grid an offset is so many planes, rows and bytes forward, or one more of each and then
/// back.
bool share_bytes(std::uint64_t apart, bytes pitch, std::uint64_t rows_of_plane, const box& size) {
  const auto rows_meet = [&](std::uint64_t rows) {
    if (size.planes == 1) return rows < size.rows;
    const std::uint64_t planes = rows / rows_of_plane;
    const std::uint64_t rest = rows % rows_of_plane;
    return (rest < size.rows && planes < size.planes) ||
           (rows_of_plane - rest < size.rows && planes + 1 < size.planes);
  };
  const std::uint64_t rows = apart / pitch.count();
  const std::uint64_t rest = apart % pitch.count();
  return (rest < size.width.count() && rows_meet(rows)) ||
         (pitch.count() - rest < size.width.count() && rows_meet(rows + 1));
}

result<void> check_sides(const pitched_memory& to, const const_pitched_memory& from,
                         const box& size) {
  if (!checked_multiply(size.rows, size.planes)) return errc::size_overflow;
  WEIR_TRY_VALUE(target, extent_of(to, size));
  WEIR_TRY_VALUE(source, extent_of(from, size));
  if (!target.overlaps(source)) return {};
  const bool one_grid =
      to.pitch == from.pitch && to.pitch != bytes{} && (size.planes == 1 || to.rows == from.rows);
  const std::uint64_t apart =
      target.first < source.first ? source.first - target.first : target.first - source.first;
  if (one_grid && !share_bytes(apart, to.pitch, to.rows, size)) return {};
  return buffers::overlap_error(size.width);
}

bool is_empty(const box& size) {
  return size.width == bytes{} || size.rows == 0 || size.planes == 0;
}

/// Whether the rows of the box follow each other without gaps.
bool is_line(const const_pitched_memory& side, const box& size) {
  if (size.rows * size.planes == 1) return true;
  return side.pitch == size.width && (size.planes == 1 || side.rows == size.rows);
}

}  // namespace

result<void> copy_2d(const pitched_memory& to, const const_pitched_memory& from, bytes width,
                     std::uint64_t rows, const stream_ref& stream) {
  return copy_3d(to, from, {width, rows, 1}, stream);
}

result<void> copy_3d(const pitched_memory& to, const const_pitched_memory& from, const box& size,
                     const stream_ref& stream) try {
  if (is_empty(size)) return {};
  WEIR_TRY(check_sides(to, from, size));
  if (is_line(to, size) && is_line(from, size)) {
    return copy_bytes(to.data, from.data, size.width * (size.rows * size.planes), stream);
  }
  const context_scope bound{stream.device()};
  WEIR_TRY(pools::check_queueable(stream, bound));
  if (size.planes == 1) {
    driver::CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = driver::CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = address_of(from.data);
    copy.srcPitch = from.pitch.count();
    copy.dstDevice = address_of(to.data);
    copy.dstPitch = to.pitch.count();
    copy.WidthInBytes = size.width.count();
    copy.Height = size.rows;
    return check(call::memcpy_2d_async, bound.driver().memcpy_2d_async(&copy, stream.handle()),
                 size.width * size.rows);
  }
  driver::CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = driver::CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = address_of(from.data);
  copy.srcPitch = from.pitch.count();
  copy.srcHeight = from.rows;
  copy.dstDevice = address_of(to.data);
  copy.dstPitch = to.pitch.count();
  copy.dstHeight = to.rows;
  copy.WidthInBytes = size.width.count();
  copy.Height = size.rows;
  copy.Depth = size.planes;
  return check(call::memcpy_3d_async, bound.driver().memcpy_3d_async(&copy, stream.handle()),
               size.width * (size.rows * size.planes));
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> fill_2d(const pitched_memory& to, std::uint8_t value, bytes width, std::uint64_t rows,
                     const stream_ref& stream) try {
  const box size{width, rows, 1};
  if (is_empty(size)) return {};
  WEIR_TRY_VALUE(target, extent_of(to, size));
  if (is_line(to, size)) return fill_bytes(to.data, value, width * rows, stream);
  const context_scope bound{stream.device()};
  WEIR_TRY(pools::check_queueable(stream, bound));
  return check(call::memset_d2d8_async,
               bound.driver().memset_d2d8_async(target.first, to.pitch.count(), value,
                                                width.count(), rows, stream.handle()),
               width * rows);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

}}  // namespace weir::v0
