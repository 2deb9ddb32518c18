// SPDX-License-Identifier: Apache-2.0
// unified_buffer<T>: elements that the host and devices see at one address, each when it is safe.
//
//   auto field = weir::unified_buffer<float>::zeroed(1 << 20, stream).value();
//   launch(field.use_on(stream).value(), stream);    // now the buffer knows the stream
//   {
//     auto view = field.view().value();                     // waits for that stream
//     for (float& each : view) each *= 2;
//   }                                                       // until here devices are refused
//   launch(field.use_on(stream).value(), stream);
//
// docs/unified-memory.md tells about views, prefetches, advice, and old devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/buffer/device_span.hpp"
#include "weir/buffer/managed_memory.hpp"
#include "weir/device/device.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream.hpp"
#include "weir/pool/pooled_buffer.hpp"

namespace weir { inline namespace v0 {

namespace buffers {
class managed_state;
enum class view_patience : std::uint8_t;
}  // namespace buffers

namespace detail {

/// A host view's hold on managed memory: while one lives, devices are refused and the memory stays.
class WEIR_API view_hold {
 public:
  view_hold() noexcept = default;
  explicit view_hold(std::shared_ptr<buffers::managed_state> memory) noexcept
      : memory_{std::move(memory)} {}
  ~view_hold() { drop(); }
  view_hold(view_hold&& other) noexcept = default;
  view_hold& operator=(view_hold&& other) noexcept;

 private:
  void drop() noexcept;
  std::shared_ptr<buffers::managed_state> memory_;
};

/// Managed memory without a type: what unified_buffer<T> is made of.
class WEIR_API managed_block {
 public:
  managed_block() noexcept = default;
  /// A copy of `values`; where that is null, `initial` says what the memory holds.
  [[nodiscard]] static result<managed_block> create(bytes size, bytes alignment, contents initial,
                                                    const void* values, const stream_ref& stream,
                                                    attachment mode);
  result<void> close() noexcept;
  explicit operator bool() const noexcept { return state_ != nullptr; }
  [[nodiscard]] void* data() const noexcept;
  [[nodiscard]] bytes size() const noexcept;
  [[nodiscard]] weir::device device() const noexcept;
  [[nodiscard]] attachment attached() const noexcept;

  result<void> use_on(const stream_ref& stream) const;
  [[nodiscard]] result<view_hold> view() const;
  [[nodiscard]] result<view_hold> view(const event& last_use) const;
  [[nodiscard]] result<view_hold> try_view() const;

  struct part {
    bytes offset{};
    bytes size{};
  };
  result<void> prefetch(part range, managed_place target, const stream_ref& stream) const;
  result<void> read_mostly(part range, bool enabled) const;
  result<void> prefer(part range, std::optional<managed_place> place) const;
  result<void> accessed_by(part range, managed_place accessor, bool enabled) const;
  [[nodiscard]] result<managed_range_info> info(part range) const;
  result<void> attach(attachment mode, const stream_ref& stream) const;
  result<void> resize(bytes size, const stream_ref& stream);

 private:
  [[nodiscard]] static result<managed_block> create_on(const stream_ref& stream, bytes size,
                                                       bytes alignment, contents initial,
                                                       const void* values, attachment mode);
  [[nodiscard]] result<view_hold> begin_view(buffers::view_patience waiting,
                                             const event* last_use) const;
  result<void> move_to(bytes size, const stream_ref& stream);

  std::shared_ptr<buffers::managed_state> state_;
};

}  // namespace detail

/// Elements of managed memory that the host may read and, unless T is const, write while this
/// object lives: the work that used them is over, and the buffer gives them to no stream. Keeps the
/// memory alive, should the buffer go first.
template <class T>
class host_view {
 public:
  [[nodiscard]] std::span<T> span() const noexcept { return elements_; }
  operator std::span<T>() const noexcept { return elements_; }
  [[nodiscard]] T* data() const noexcept { return elements_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] bool empty() const noexcept { return elements_.empty(); }
  [[nodiscard]] auto begin() const noexcept { return elements_.begin(); }
  [[nodiscard]] auto end() const noexcept { return elements_.end(); }
  [[nodiscard]] T& operator[](std::size_t index) const noexcept { return elements_[index]; }

 private:
  template <class>
  friend class unified_buffer;
  host_view(std::span<T> elements, detail::view_hold hold) noexcept
      : elements_{elements}, hold_{std::move(hold)} {}

  std::span<T> elements_;
  detail::view_hold hold_;
};

/// Elements `first` … `first + count` - 1 of a buffer; by default all. Advice and
/// prefetches are rounded outwards to pages by the driver.
struct element_range {
  std::size_t first = 0;
  std::size_t count = std::numeric_limits<std::size_t>::max();  ///< to the end
};

/// Managed memory with an enforced rule of who may touch it.
///
/// Streams get the elements from use_on(), the host gets them from view(), which waits for
/// those streams; while a view lives use_on() refuses, and so do prefetches, attach() and
/// resize(). Streams that weir created may be destroyed at any time; others must outlive the next
/// view(), or the buffer.
///
/// Owns its memory, which is freed when the buffer and its views are gone and the streams have
/// completed the work on it: the last owner waits. Keeps its runtime alive. Any thread may call,
/// except to move, close or resize it; but work that one thread queues after use_on() is
/// seen by another's view() only once it is queued, so the program keeps the two apart.
template <class T>
class unified_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);

 public:
  using value_type = T;

  /// Empty, like one that was closed or moved from: calls return moved_from.
  unified_buffer() noexcept = default;

  /// `count` elements for the stream's device, undefined or zeros. The zeros are written by a fill
  /// that is queued on the stream; for attachment::host by the host, before the call returns.
  /// invalid_argument: `count` is zero; size_overflow: there is no such size; not_supported: the
  /// device has no managed memory; capture_forbidden: the stream is being captured.
  [[nodiscard]] static result<unified_buffer> create(std::size_t count, const stream_ref& stream,
                                                     contents initial = contents::undefined,
                                                     attachment mode = attachment::global) {
    return allocate(count, initial, nullptr, stream, mode);
  }
  /// create() with contents::zeroed.
  [[nodiscard]] static result<unified_buffer> zeroed(std::size_t count, const stream_ref& stream,
                                                     attachment mode = attachment::global) {
    return create(count, stream, contents::zeroed, mode);
  }
  /// The elements of `values`, copied by the host before the call returns.
  [[nodiscard]] static result<unified_buffer> copy_of(std::span<const T> values,
                                                      const stream_ref& stream,
                                                      attachment mode = attachment::global) {
    return allocate(values.size(), contents::undefined, values.data(), stream, mode);
  }
  /// Waits for the streams that use the memory and frees it, now or with the last view, and returns
  /// the driver's answer. Empty afterwards in any case.
  result<void> close() noexcept { return memory_.close(); }
  explicit operator bool() const noexcept { return static_cast<bool>(memory_); }

  [[nodiscard]] std::size_t size() const noexcept { return memory_.size().count() / sizeof(T); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] bytes size_bytes() const noexcept { return memory_.size(); }
  /// The address, one for the host and the devices; use_on() and view() say who may follow
  /// it when.
  [[nodiscard]] T* data() noexcept { return first(); }
  [[nodiscard]] const T* data() const noexcept { return first(); }
  /// The elements for code that must not touch them; records no stream.
  [[nodiscard]] device_span<T> span() noexcept { return {first(), size()}; }
  [[nodiscard]] device_span<const T> span() const noexcept { return {first(), size()}; }
  /// Needs one that is not empty.
  [[nodiscard]] weir::device device() const noexcept { return memory_.device(); }
  [[nodiscard]] attachment attached() const noexcept { return memory_.attached(); }

  // --- Devices ----------------------------------------------------------------------------------

  /// The elements, for work that is queued on `stream` next; it may be of another device.
  /// not_ready: a host view lives (of any unified buffer, where the device has no concurrent
  /// managed access, but for memory of the host or of another stream); bad_stream, not_permitted:
  /// on such a device, the memory is attached to another stream, or to the host.
  [[nodiscard]] result<device_span<T>> use_on(const stream_ref& stream) {
    WEIR_TRY(memory_.use_on(stream));
    return span();
  }
  [[nodiscard]] result<device_span<const T>> use_on(const stream_ref& stream) const {
    WEIR_TRY(memory_.use_on(stream));
    return span();
  }

  // --- The host ---------------------------------------------------------------------------------

  /// Waits for the recorded streams, and, where the device has no concurrent managed
  /// access, for all its work. capture_forbidden: one of the streams is being captured.
  [[nodiscard]] result<host_view<T>> view() { return viewed<T>(memory_.view()); }
  [[nodiscard]] result<host_view<const T>> view() const { return viewed<const T>(memory_.view()); }
  /// The same, waiting only for `last_use`, which the caller recorded behind all work on the
  /// buffer. capture_forbidden: a recorded stream is being captured, and the event may be in the
  /// capture.
  [[nodiscard]] result<host_view<T>> view(const event& last_use) {
    return viewed<T>(memory_.view(last_use));
  }
  [[nodiscard]] result<host_view<const T>> view(const event& last_use) const {
    return viewed<const T>(memory_.view(last_use));
  }
  /// Does not wait. not_ready: a stream has not finished; not_supported: nobody can tell without
  /// waiting, because the device has no concurrent managed access and the memory is global.
  [[nodiscard]] result<host_view<T>> try_view() { return viewed<T>(memory_.try_view()); }
  [[nodiscard]] result<host_view<const T>> try_view() const {
    return viewed<const T>(memory_.try_view());
  }
  /// The elements without any check: the caller knows that no device writes what the host reads or
  /// touches what the host writes, and that the device has concurrent managed access or is idle.
  [[nodiscard]] std::span<T> unsafe_span() noexcept { return {first(), size()}; }
  [[nodiscard]] std::span<const T> unsafe_span() const noexcept { return {first(), size()}; }

  // --- Placement --------------------------------------------------------------------------------
  // invalid_argument: elements outside the buffer, or none; not_supported: the named device has no
  // concurrent managed access; no_device: there is none of that number.

  /// Queues the move of the pages on the stream.
  result<void> prefetch(managed_place target, const stream_ref& stream,
                        element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.prefetch(part, target, stream);
  }
  /// Mostly read: each reader gets a copy; a write ends all but the writer's.
  result<void> advise_read_mostly(bool enabled = true, element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.read_mostly(part, enabled);
  }
  /// Where pages should stay; nullopt withdraws the advice.
  result<void> advise_preferred(std::optional<managed_place> place,
                                element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.prefer(part, place);
  }
  /// The accessor reaches the pages without moving them.
  result<void> advise_accessed_by(managed_place accessor, bool enabled = true,
                                  element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.accessed_by(part, accessor, enabled);
  }
  [[nodiscard]] result<managed_range_info> info(element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.info(part);
  }
  /// Changes who may use the memory, in the stream's order; attachment::single gives it to that
  /// stream, which must not be the legacy one (invalid_argument). not_ready: a host view lives.
  result<void> attach(attachment mode, const stream_ref& stream) const {
    return memory_.attach(mode, stream);
  }
  /// Other memory with `count` elements: the old ones as far as there are, then zeros. Waits for
  /// the streams that use the old memory; advice for it is lost.
  result<void> resize(std::size_t count, const stream_ref& stream) {
    WEIR_TRY_VALUE(size, detail::size_of_elements(count, sizeof(T)));
    return memory_.resize(size, stream);
  }

 private:
  [[nodiscard]] static result<unified_buffer> allocate(std::size_t count, contents initial,
                                                       const T* values, const stream_ref& stream,
                                                       attachment mode) {
    WEIR_TRY_VALUE(size, detail::size_of_elements(count, sizeof(T)));
    WEIR_TRY_VALUE(memory, detail::managed_block::create(size, bytes{alignof(T)}, initial, values,
                                                         stream, mode));
    unified_buffer buffer;
    buffer.memory_ = std::move(memory);
    return buffer;
  }
  [[nodiscard]] T* first() const noexcept { return static_cast<T*>(memory_.data()); }
  template <class Element>
  [[nodiscard]] result<host_view<Element>> viewed(result<detail::view_hold> hold) const {
    if (!hold) return std::move(hold).error();
    return host_view<Element>{{first(), size()}, *std::move(hold)};
  }
  [[nodiscard]] result<detail::managed_block::part> part_of(element_range range) const {
    if (!memory_) return errc::moved_from;
    if (range.first >= size()) return errc::invalid_argument;
    const std::size_t rest = size() - range.first;
    if (range.count == std::numeric_limits<std::size_t>::max()) range.count = rest;
    if (range.count == 0 || range.count > rest) return errc::invalid_argument;
    return detail::managed_block::part{bytes{sizeof(T)} * range.first,
                                       bytes{sizeof(T)} * range.count};
  }

  detail::managed_block memory_;
};

}}  // namespace weir::v0
