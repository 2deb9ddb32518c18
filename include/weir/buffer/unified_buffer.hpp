// SPDX-License-Identifier: Apache-2.0
// unified_buffer<T>: elements that the host and devices see at one address, each when it is safe.
//
//   auto field = weir::unified_buffer<float>::zeroed(1 << 20, stream).value();
//   launch(field.use_on(stream).value(), stream);    // now the buffer knows the stream
//   {
//     auto view = field.view().value();                     // waits for that stream
//     for (float& each : view) each *= 2;
//   }                                                       // until here use_on() is refused
//   launch(field.use_on(stream).value(), stream);
//
// docs/unified-memory.md explains views, prefetches, advice, and devices without concurrent access.
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
/// object exists. The work that used them is complete, and use_on() refuses streams. Keeps the
/// memory alive if the buffer is destroyed first.
template <class T>
class host_view {
 public:
  /// The elements, valid while the view exists.
  [[nodiscard]] std::span<T> span() const noexcept { return elements_; }
  operator std::span<T>() const noexcept { return elements_; }
  /// The address of the first element.
  [[nodiscard]] T* data() const noexcept { return elements_.data(); }
  /// The number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  /// Whether there are no elements.
  [[nodiscard]] bool empty() const noexcept { return elements_.empty(); }
  /// Iterators over the elements.
  [[nodiscard]] auto begin() const noexcept { return elements_.begin(); }
  [[nodiscard]] auto end() const noexcept { return elements_.end(); }
  /// One element; `index` is not checked.
  [[nodiscard]] T& operator[](std::size_t index) const noexcept { return elements_[index]; }

 private:
  template <class>
  friend class unified_buffer;
  host_view(std::span<T> elements, detail::view_hold hold) noexcept
      : elements_{elements}, hold_{std::move(hold)} {}

  std::span<T> elements_;
  detail::view_hold hold_;
};

/// The elements `first` … `first + count` - 1 of a buffer; by default all. The driver extends the
/// ranges of advice and prefetches to whole pages.
struct element_range {
  std::size_t first = 0;                                        ///< index of the first element
  std::size_t count = std::numeric_limits<std::size_t>::max();  ///< to the end
};

/// Managed memory with enforced turns of the host and the devices.
///
/// Streams get the elements from use_on(). The host gets them from view(), which waits for those
/// streams. While a view exists, use_on(), prefetches, attach() and resize() fail. A weir::stream
/// may be destroyed at any time; other streams must outlive the next view(), or the buffer.
///
/// Owns its memory, which is freed when the buffer and its views have ended and the streams have
/// completed their work on it: the last owner waits. Keeps its runtime alive. Thread-safe, except
/// to move, close or resize it. A view() sees work of another thread only after that thread has
/// queued it, so the program must order use_on() with its launch before the view().
template <class T>
class unified_buffer {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);

 public:
  /// The element type.
  using value_type = T;

  /// Empty, like one that was closed or moved from: calls return moved_from.
  unified_buffer() noexcept = default;

  /// A buffer of `count` elements for the stream's device, undefined or zero. The zeros are written
  /// by a fill that is queued on the stream; for attachment::host by the host, before the call
  /// returns. invalid_argument: `count` is zero; size_overflow: the size does not fit;
  /// not_supported: the device has no managed memory; capture_forbidden: the stream is being
  /// captured.
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
  /// A copy of `values`, made by the host before the call returns.
  [[nodiscard]] static result<unified_buffer> copy_of(std::span<const T> values,
                                                      const stream_ref& stream,
                                                      attachment mode = attachment::global) {
    return allocate(values.size(), contents::undefined, values.data(), stream, mode);
  }
  /// Waits for the streams that use the memory and frees it, now or with the last view. Returns the
  /// driver's result. Empty afterwards, also on failure.
  result<void> close() noexcept { return memory_.close(); }
  /// Whether it owns memory.
  explicit operator bool() const noexcept { return static_cast<bool>(memory_); }

  /// The number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size().count() / sizeof(T); }
  /// Whether there are no elements.
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// The number of bytes of all elements.
  [[nodiscard]] bytes size_bytes() const noexcept { return memory_.size(); }
  /// The address, the same for the host and the devices. use_on() and view() control who may use
  /// it.
  [[nodiscard]] T* data() noexcept { return first(); }
  [[nodiscard]] const T* data() const noexcept { return first(); }
  /// Address and number of the elements; gives no access and records no stream.
  [[nodiscard]] device_span<T> span() noexcept { return {first(), size()}; }
  [[nodiscard]] device_span<const T> span() const noexcept { return {first(), size()}; }
  /// The device of the memory. Precondition: the buffer is not empty.
  [[nodiscard]] weir::device device() const noexcept { return memory_.device(); }
  /// Who may use the memory. Precondition: the buffer is not empty.
  [[nodiscard]] attachment attached() const noexcept { return memory_.attached(); }

  // --- Devices ----------------------------------------------------------------------------------

  /// The elements, for work that is queued on `stream` next; the stream may belong to another
  /// device. not_ready: a host view exists. On a device without concurrent managed access, a view
  /// of any unified buffer counts, except of memory attached to the host or to another stream;
  /// there, bad_stream: this memory is attached to another stream; not_permitted: it is attached to
  /// the host.
  [[nodiscard]] result<device_span<T>> use_on(const stream_ref& stream) {
    WEIR_TRY(memory_.use_on(stream));
    return span();
  }
  [[nodiscard]] result<device_span<const T>> use_on(const stream_ref& stream) const {
    WEIR_TRY(memory_.use_on(stream));
    return span();
  }

  // --- The host ---------------------------------------------------------------------------------

  /// A view of the elements, after waiting for the streams of use_on(). On a device without
  /// concurrent managed access it waits for all work. capture_forbidden: one of the streams is
  /// being captured.
  [[nodiscard]] result<host_view<T>> view() { return viewed<T>(memory_.view()); }
  [[nodiscard]] result<host_view<const T>> view() const { return viewed<const T>(memory_.view()); }
  /// The same, but waits only for `last_use`, which the caller recorded after all work on the
  /// buffer. capture_forbidden: a stream of use_on() is being captured, and the event may be in the
  /// capture.
  [[nodiscard]] result<host_view<T>> view(const event& last_use) {
    return viewed<T>(memory_.view(last_use));
  }
  [[nodiscard]] result<host_view<const T>> view(const event& last_use) const {
    return viewed<const T>(memory_.view(last_use));
  }
  /// A view without waiting. not_ready: a stream has not completed its work; not_supported: this
  /// cannot be known without waiting, because the device has no concurrent managed access and the
  /// memory is global.
  [[nodiscard]] result<host_view<T>> try_view() { return viewed<T>(memory_.try_view()); }
  [[nodiscard]] result<host_view<const T>> try_view() const {
    return viewed<const T>(memory_.try_view());
  }
  /// The elements without any check. The caller guarantees that no device writes what the host
  /// reads, or accesses what the host writes, and that the device has concurrent managed access or
  /// is idle.
  [[nodiscard]] std::span<T> unsafe_span() noexcept { return {first(), size()}; }
  [[nodiscard]] std::span<const T> unsafe_span() const noexcept { return {first(), size()}; }

  // --- Placement --------------------------------------------------------------------------------
  // invalid_argument: the range exceeds the buffer or is empty; not_supported: the device of the
  // place has no concurrent managed access; no_device: the device does not exist.

  /// Queues a migration of the pages to `target` on the stream.
  result<void> prefetch(managed_place target, const stream_ref& stream,
                        element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.prefetch(part, target, stream);
  }
  /// Advises that the elements are mostly read: each reader gets a copy; a write discards the
  /// others.
  result<void> advise_read_mostly(bool enabled = true, element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.read_mostly(part, enabled);
  }
  /// Advises where the pages should stay; nullopt withdraws the advice.
  result<void> advise_preferred(std::optional<managed_place> place,
                                element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.prefer(part, place);
  }
  /// Advises that `accessor` uses the pages where they are, without migrating them.
  result<void> advise_accessed_by(managed_place accessor, bool enabled = true,
                                  element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.accessed_by(part, accessor, enabled);
  }
  /// The advice that is in effect for the elements, and their last prefetch.
  [[nodiscard]] result<managed_range_info> info(element_range range = {}) const {
    WEIR_TRY_VALUE(part, part_of(range));
    return memory_.info(part);
  }
  /// Changes who may use the memory, in the stream's order. attachment::single assigns it to that
  /// stream, which must not be a default stream (invalid_argument). not_ready: a host view exists.
  result<void> attach(attachment mode, const stream_ref& stream) const {
    return memory_.attach(mode, stream);
  }
  /// Moves to new memory of `count` elements: the old ones as far as they fit, then zeros. Waits
  /// for the streams that use the old memory; its advice is lost.
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
