// SPDX-License-Identifier: Apache-2.0
// Resources: every type that hands out memory in stream order, behind one interface.
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

/// What every allocating type of weir is: a handle, cheap to copy, that hands out memory in stream
/// order (see caching_allocator for what that means) and takes it back with the size that was asked
/// for. Zero bytes give null, and freeing null does nothing. Any thread.
///
/// Such a type may also have `result<void> record_stream(void* pointer, const stream_ref& stream)`:
/// work queued on that stream until the block is freed may use it, too. All of weir's have it.
///
/// A type whose memory is not device memory says so with a member `static constexpr memory_kind
/// kind`, or with a member function kind() where that depends on what it was made of.
// The calls come first: a type that holds an any_resource would be asked about itself otherwise.
template <class Type>
concept stream_resource =
    detail::serves_streams<Type> && std::copyable<Type> && std::equality_comparable<Type>;

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

/// Any stream_resource. A shared handle, as cheap to copy as a shared_ptr; empty if default-made.
///
/// Equal if both hold the same type and the things held are equal: then memory of one may be freed
/// with the other. Any thread, except to assign to it. One virtual call on top of what it holds.
class WEIR_API any_resource {
 public:
  any_resource() noexcept = default;
  // Excluded first: asking the concept about the type itself would ask about this constructor.
  template <class Type>
  requires(!std::same_as<Type, any_resource> && stream_resource<Type>) any_resource(Type memory)
      : state_{std::make_shared<holder<Type>>(std::move(memory))} {}

  explicit operator bool() const noexcept { return state_ != nullptr; }

  /// Throws out_of_memory or failure.
  [[nodiscard]] void* allocate(bytes size, const stream_ref& stream,
                               bytes alignment = default_alignment) const {
    return try_allocate(size, stream, alignment).value();
  }
  /// moved_from: this is empty.
  [[nodiscard]] result<void*> try_allocate(bytes size, const stream_ref& stream,
                                           bytes alignment = default_alignment) const;
  /// A failure goes to the error handler.
  void deallocate(void* pointer, bytes size, const stream_ref& stream) const noexcept;
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const;

  /// Work queued on `stream` until the block is freed may use it, too; call it at any time before
  /// the free. not_supported: what is held is not of weir and has no record_stream().
  result<void> record_stream(void* pointer, const stream_ref& stream) const;

  // An empty one throws moved_from.
  [[nodiscard]] weir::device device() const { return held().device(); }
  [[nodiscard]] memory_kind kind() const { return held().kind(); }
  /// The thing held, if it is of that type.
  template <stream_resource Type>
  [[nodiscard]] Type* target() const noexcept {
    auto* const held = dynamic_cast<holder<Type>*>(state_.get());
    return held != nullptr ? &held->memory : nullptr;
  }

  // A member: as a friend it would be asked about whatever converts to a resource.
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
