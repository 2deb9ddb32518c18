// SPDX-License-Identifier: Apache-2.0
// What stands behind the handles that several files use, and how arguments become them.
//
// Objects hold what they are made of, so that handles may be closed in any order: a stream's own
// object goes with the last buffer that is freed on it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "capi/guard.hpp"
#include "capi/handles.hpp"
#include "heap/heap_view.hpp"
#include "weir.h"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/observe/tag.hpp"
#include "weir/pool/stream_pool.hpp"
#include "weir/share/session.hpp"

namespace weir { inline namespace v0 { namespace capi {

struct runtime_object {
  std::shared_ptr<runtime> machine;
  bool permanent = false;  // the process's own
};

struct stream_object {
  std::shared_ptr<runtime> machine;
  stream_ref ref;               // knows its number
  std::optional<stream> owned;  // empty: somebody else's
};

struct event_object {
  event mark;
};

/// A caching_allocator and what the C side adds to it. `memory`, `heap` and `legacy` never change.
struct allocator_object {
  allocator_object(std::shared_ptr<runtime> runtime, caching_allocator allocator,
                   const stream_ref& identified)
      : machine{std::move(runtime)},
        memory{std::move(allocator)},
        heap{&heap::heap_of(memory)},
        legacy{identified} {}

  std::shared_ptr<runtime> machine;
  caching_allocator memory;
  heap::central_heap* heap;
  stream_ref legacy;  // knows its number
  bool permanent = false;

  std::mutex mutex;  // of the following
  weir_out_of_memory_handler handler = nullptr;
  void* handler_context = nullptr;
};

/// A memory_pool, and the allocator that it is of.
struct pool_object {
  std::shared_ptr<allocator_object> owner;
  weir_allocator* owner_handle;
  memory_pool pool;
};

struct stream_pool_object {
  std::shared_ptr<runtime> machine;
  stream_pool pool;
};

struct callback_object {
  callback_registration registered;
};

struct shared_object {
  shared_memory memory;
};

/// Memory of another process: what came over a link, or pieces that were mapped here.
struct imported_object;

#define WEIR_HANDLE_KIND(name)                             \
  template <>                                              \
  struct handle_traits<weir_##name> {                      \
    using object = name##_object;                          \
    static constexpr handle_kind kind = handle_kind::name; \
  };
WEIR_HANDLE_KIND(runtime)
WEIR_HANDLE_KIND(stream)
WEIR_HANDLE_KIND(event)
WEIR_HANDLE_KIND(allocator)
WEIR_HANDLE_KIND(pool)
WEIR_HANDLE_KIND(callback)
WEIR_HANDLE_KIND(stream_pool)
WEIR_HANDLE_KIND(shared)
WEIR_HANDLE_KIND(imported)

// --- Arguments ----------------------------------------------------------------------------------

[[nodiscard]] inline error missing(const char* parameter) {
  return {{.code = errc::invalid_argument, .detail = std::string{parameter} + " is null"}};
}

/// Returns early where a pointer that the call needs is null.
#define WEIR_NEEDS(pointer) \
  if ((pointer) == nullptr) return missing(#pointer)

[[nodiscard]] inline result<void> check_flags(std::uint32_t flags, std::uint32_t known) {
  if ((flags & ~known) == 0) return {};
  return error{{.code = errc::invalid_argument, .detail = "flags contains an unknown bit"}};
}

/// A device of a runtime, which is kept alive.
struct device_argument {
  std::shared_ptr<runtime> machine;
  weir::device device;
};
[[nodiscard]] result<device_argument> find_device(weir_runtime* handle, std::int32_t number);

/// A stream that is kept alive for the call; the legacy stream of `home` for null.
struct stream_argument {
  std::shared_ptr<stream_object> held;
  stream_ref ref;
};
[[nodiscard]] result<stream_argument> find_stream(weir_stream* handle, weir::device home);
/// The same where null is the legacy stream of the allocator.
[[nodiscard]] result<stream_argument> find_stream(weir_stream* handle,
                                                  const allocator_object& home);

/// not_found: no tag has the number.
[[nodiscard]] result<tag> find_tag(std::uint32_t number);

// --- Allocators ---------------------------------------------------------------------------------

[[nodiscard]] result<std::shared_ptr<allocator_object>> make_allocator(const device_argument& home,
                                                                       const options& settings);
/// weir_pool_create, for pools that are going to be suspended, too.
[[nodiscard]] result<void> create_pool(weir_allocator* allocator, const char* name,
                                       std::uint32_t flags,
                                       std::optional<suspendable_options> suspendable,
                                       weir_pool** pool);
/// The options of a list that may be null.
[[nodiscard]] result<options> read_options(options settings, const char* list);

/// Whom to ask about a request that failed for want of memory.
struct oom_handler {
  weir_allocator* allocator = nullptr;
  weir_out_of_memory_handler function = nullptr;
  void* context = nullptr;
};
[[nodiscard]] oom_handler oom_handler_of(allocator_object& object, weir_allocator* handle);
[[nodiscard]] bool lacks_memory(errc code) noexcept;

/// Tries to allocate until that succeeds or the handler gives up. `attempt(oom_handler&)` is one
/// try, and says whom to ask when it fails; it returns a result<void*>.
///
/// The handler is called behind the wall of guarded(), when nothing is held and nothing waits to be
/// destroyed: it may leave by an exception or a jump.
template <class Attempt>
weir_error allocate_or_ask(std::uint64_t size, void** pointer, const Attempt& attempt) {
  if (pointer == nullptr) return remember(errc::invalid_argument, "pointer is null");
  for (;;) {
    oom_handler handler;
    *pointer = nullptr;
    const weir_error code = guarded([&]() -> result<void> {
      WEIR_TRY_VALUE(memory, attempt(handler));
      *pointer = memory;
      return {};
    });
    if (handler.function == nullptr || !lacks_memory(static_cast<errc>(code)) ||
        handler.function(handler.context, handler.allocator, size, code) == 0)
      return code;
  }
}

}}}  // namespace weir::v0::capi
