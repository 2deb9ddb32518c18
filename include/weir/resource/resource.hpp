// SPDX-License-Identifier: Apache-2.0
// stream_resource: the concept of types that allocate in stream order. any_resource: any of them.
//
//   using namespace weir::literals;
//   weir::any_resource memory = weir::caching_allocator::create(gpu).value();
//   memory = weir::limiting_resource::create(memory, 8_GiB).value();   // an adaptor over it
//   void* p = memory.allocate(64_MiB, stream);
//   memory.deallocate(p, 64_MiB, stream);
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "weir/base/bytes.hpp"
#include "weir/base/error.hpp"
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/pool/memory_kind.hpp"

namespace weir { inline namespace v0 {

namespace detail {

template <class Type>
concept serves_streams = requires(Type& memory, const Type& same, bytes size,
                                  const stream_ref& stream, void* pointer) {
  { memory.try_allocate(size, stream, size) } -> std::same_as<result<void*>>;
  { memory.try_deallocate(pointer, size, stream) } -> std::same_as<result<void>>;
  { same.device() } -> std::same_as<weir::device>;
};

}  // namespace detail

/// A type that allocates in stream order: a handle, cheap to copy, with try_allocate(), and
/// try_deallocate() with the requested size (caching_allocator explains stream order). Zero bytes
/// give null, and freeing null does nothing. Thread-safe. Every allocating type of weir is one.
///
/// Such a type may also have `result<void> record_stream(void* pointer, const stream_ref& stream)`:
/// work queued on that stream until the free may use the block, too. All types of weir have it.
///
/// A type whose memory is not device memory has a member `static constexpr memory_kind kind`, or a
/// member function kind() if the kind depends on its construction.
// The calls come first: otherwise the concept would be recursive for types that hold an
// any_resource.
template <class Type>
concept stream_resource =
    detail::serves_streams<Type> && std::copyable<Type> && std::equality_comparable<Type>;

/// The kind of a resource's memory: its kind, or memory_kind::device if it does not say.
template <class Type>
[[nodiscard]] constexpr memory_kind kind_of(const Type& memory) noexcept {
  if constexpr (requires { memory.kind(); }) {
    return memory.kind();
  } else if constexpr (requires { Type::kind; }) {
    return Type::kind;
  } else {
    return memory_kind::device;
  }
}

/// A type-erased stream_resource. A shared handle, as cheap to copy as a shared_ptr; empty if
/// default-constructed.
///
/// Equal if both hold equal resources of the same type: then memory of one can be freed with the
/// other. Thread-safe, except for assignment. Costs one virtual call more than the held resource.
class WEIR_API any_resource {
 public:
  any_resource() noexcept = default;
  /// Holds a copy of `memory`.
  // any_resource is excluded first: otherwise the concept would depend on this constructor.
  template <class Type>
  requires(!std::same_as<Type, any_resource> && stream_resource<Type>) any_resource(Type memory)
      : state_{std::make_shared<holder<Type>>(std::move(memory))} {}

  /// Whether it holds a resource.
  explicit operator bool() const noexcept { return state_ != nullptr; }

  /// Memory for work queued on `stream` from now on. Throws out_of_memory or failure.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const {
    return try_allocate(size, stream, alignment).value();
  }
  /// The same, but returns the error. moved_from: the handle is empty.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// Frees memory with the requested size. A failure goes to the error handler.
  void deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept;
  /// The same, but returns the error.
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;

  /// Declares that work queued on `stream` until the free may use the block, too. not_supported:
  /// the held resource is not one of weir and has no record_stream().
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  /// The device of the held resource. An empty handle throws moved_from.
  [[nodiscard]] weir::device device() const { return held().device(); }
  /// The kind of its memory. An empty handle throws moved_from.
  [[nodiscard]] memory_kind kind() const { return held().kind(); }
  /// The held resource if it is of this type, otherwise null.
  template <stream_resource Type>
  [[nodiscard]] Type* target() const noexcept {
    auto* const held = dynamic_cast<holder<Type>*>(state_.get());
    return held != nullptr ? &held->memory : nullptr;
  }

  /// Whether both hold equal resources of the same type, or both are empty.
  // A member: a friend would be considered for every type that converts to a resource.
  bool operator==(const any_resource& other) const noexcept {
    return state_ == other.state_ ||
           (state_ != nullptr && other.state_ != nullptr && state_->equals(*other.state_));
  }

 private:
  struct interface {
    virtual ~interface() = default;
    virtual result<void*> try_allocate(bytes size, const stream_ref& stream, bytes alignment) = 0;
    virtual result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) = 0;
    virtual result<void> record_stream(void* pointer, const stream_ref& stream) = 0;
    [[nodiscard]] virtual weir::device device() const = 0;
    [[nodiscard]] virtual memory_kind kind() const noexcept = 0;
    [[nodiscard]] virtual bool equals(const interface& other) const noexcept = 0;
  };

  template <class Type>
  struct holder final : interface {
    explicit holder(Type held) : memory{std::move(held)} {}
    result<void*> try_allocate(bytes size, const stream_ref& stream, bytes alignment) override {
      return memory.try_allocate(size, stream, alignment);
    }
    result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) override {
      return memory.try_deallocate(pointer, size, stream);
    }
    result<void> record_stream(void* pointer, const stream_ref& stream) override {
      if constexpr (requires {
                      { memory.record_stream(pointer, stream) } -> std::same_as<result<void>>;
                    })
        return memory.record_stream(pointer, stream);
      else
        return errc::not_supported;
    }
    [[nodiscard]] weir::device device() const override { return memory.device(); }
    [[nodiscard]] memory_kind kind() const noexcept override { return kind_of(memory); }
    [[nodiscard]] bool equals(const interface& other) const noexcept override {
      const auto* const same = dynamic_cast<const holder*>(&other);
      return same != nullptr && same->memory == memory;
    }

    Type memory;
  };

  [[nodiscard]] const interface& held() const {
    if (state_ == nullptr) raise(errc::moved_from);
    return *state_;
  }

  std::shared_ptr<interface> state_;
};

}}  // namespace weir::v0
