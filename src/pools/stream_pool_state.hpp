// SPDX-License-Identifier: Apache-2.0
// What the handles and owners of one stream pool share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/mutex.hpp"
#include "device/state.hpp"
#include "order/stream_ends.hpp"
#include "pools/allocation_table.hpp"
#include "pools/memory_home.hpp"
#include "pools/recorded_uses.hpp"
#include "weir/device/event.hpp"
#include "weir/pool/stream_pool.hpp"

namespace weir { inline namespace v0 { namespace pools {

enum class stream_pool_kind : std::uint8_t {
  created,
  imported,  ///< of another process: hands out nothing
  standard,  ///< the device's default pool: never destroyed
};

/// A pool and the table of its allocations. Owned by its handles; that of a default pool by the
/// runtime, which it does not keep alive. Any thread.
///
/// open_ keeps the handle good: whoever gives it to the driver holds it as a reader, close() as the
/// writer. Nobody holds it who waits for work. A free needs no handle, and so no lock.
class stream_pool_state final : public memory_home, public detail::stream_listener {
 public:
  /// What close() and the destructor destroy. `keep_alive` is empty for a default pool.
  stream_pool_state(detail::device_state& home, std::shared_ptr<detail::device_state> keep_alive,
                    driver::CUmemoryPool handle, stream_pool_kind kind,
                    const stream_pool_config& config);
  ~stream_pool_state() override;
  stream_pool_state(const stream_pool_state&) = delete;
  stream_pool_state& operator=(const stream_pool_state&) = delete;

  [[nodiscard]] weir::device device() const noexcept { return home_.handle(); }
  [[nodiscard]] stream_pool_kind kind() const noexcept { return kind_; }
  [[nodiscard]] const stream_pool_config& config() const noexcept { return config_; }
  [[nodiscard]] driver::CUmemoryPool handle() const noexcept;
  [[nodiscard]] allocation_table& allocations() noexcept { return allocations_; }
  [[nodiscard]] const allocation_table& allocations() const noexcept { return allocations_; }

  [[nodiscard]] result<void*> allocate(bytes size, const stream_ref& stream, bytes alignment);
  /// Allocations on streams of that device learn of the ends of their streams.
  void listen_on(weir::device other) {
    if (other != device()) ends_.listen_on(other);
  }
  /// `size`, where there is one, is checked.
  result<void> free(device_address address, std::optional<bytes> size, const stream_ref& stream);
  /// Without a stream: on the one it was allocated for, come what may.
  result<void> free_owned(void* memory, bytes size, const stream_ref* stream) override;
  result<void> record_stream(void* memory, const stream_ref& stream) override;
  result<stream_pool_remains> close();

  void stream_closing(const stream_ref& stream) noexcept override {
    allocations_.stream_closing(stream);
  }

 private:
  friend class stream_pool_session;

  [[nodiscard]] result<void> check_stream(const stream_ref& stream) const;
  [[nodiscard]] driver::CUresult ask_driver(const context_scope& scope, bytes size,
                                            const stream_ref& stream, device_address& address) const
      WEIR_REQUIRES_SHARED(open_);
  [[nodiscard]] driver::CUresult ask_within_ceiling(const context_scope& scope, bytes size,
                                                    const stream_ref& stream,
                                                    device_address& address) const
      WEIR_REQUIRES_SHARED(open_);
  /// A request, and whether the host has waited for the device since the driver refused it.
  struct memory_request {
    bytes size;
    bytes padded;
    bytes alignment;
    bool waited = false;
  };
  /// One visit to the driver. Nothing: it has no memory, and was not waited for.
  [[nodiscard]] result<std::optional<void*>> ask_once(const memory_request& request,
                                                      const stream_ref& stream);
  /// After a refusal above own_ceiling_: waits for what was freed again, and releases it.
  void release_surplus(const stream_ref& stream);
  [[nodiscard]] result<void*> enter(device_address base, const memory_request& request,
                                    const stream_ref& stream,
                                    const std::optional<capture_id>& capture,
                                    const context_scope& scope);
  [[nodiscard]] error no_room(const context_scope& scope, bytes size) const
      WEIR_REQUIRES_SHARED(open_);
  result<void> free_without_stream(const stream_block& block, device_address address);
  result<void> destroy(const context_scope& scope) WEIR_REQUIRES(open_);

  detail::device_state& home_;
  const std::shared_ptr<detail::device_state> keep_alive_;
  const stream_pool_kind kind_;
  const stream_pool_config config_;
  /// The maximum where the driver cannot be told of it; 0 where it can, and where there is none.
  const std::uint64_t own_ceiling_;

  mutable detail::shared_mutex open_;
  driver::CUmemoryPool handle_ WEIR_GUARDED_BY(open_);  // null: closed
  allocation_table allocations_;
  recorded_uses uses_;
  order::stream_ends ends_{*this};
};

/// One visit to the driver for a pool: the pool stays open, a context is current, and nothing that
/// is called breaks a capture. Stays on its thread and in its block.
class WEIR_THREAD_SAFETY(scoped_lockable) stream_pool_session {
 public:
  explicit stream_pool_session(const stream_pool_state& pool)
      WEIR_THREAD_SAFETY(acquire_shared_capability(pool.open_))
      : stream_pool_session{pool, pool.device()} {}
  stream_pool_session(const stream_pool_state& pool, weir::device device)
      WEIR_THREAD_SAFETY(acquire_shared_capability(pool.open_));
  ~stream_pool_session() WEIR_THREAD_SAFETY(release_capability());
  stream_pool_session(const stream_pool_session&) = delete;
  stream_pool_session& operator=(const stream_pool_session&) = delete;

  /// Must succeed before anything else is used.
  [[nodiscard]] result<void> ready() const;

  [[nodiscard]] const context_scope& scope() const noexcept { return scope_; }
  [[nodiscard]] const driver::table& driver() const noexcept { return scope_.driver(); }
  // The session itself is what holds the lock.
  [[nodiscard]] driver::CUmemoryPool handle() const noexcept WEIR_UNCHECKED_LOCKING {
    return pool_.handle_;
  }

 private:
  const stream_pool_state& pool_;
  bool holds_lock_ = false;  // not in the child of a fork: then nothing is ready
  context_scope scope_;
  thread_capture_mode_guard relaxed_;
};

/// The capture that `stream` takes part in; none: it is not captured. capture_forbidden: it may not
/// be used now; capture_invalid: its capture is broken.
[[nodiscard]] result<std::optional<capture_id>> capture_of(const stream_ref& stream,
                                                           const context_scope& scope);

/// Drivers before CUDA 12.2 know of no maximum: there the pool itself sees to it.
[[nodiscard]] bool driver_takes_maximum(weir::device device) noexcept;

/// The unit in which drivers reserve memory, and newer ones enforce the maximum.
constexpr std::uint64_t driver_unit = std::uint64_t{32} << 20;

/// An attribute as the driver keeps it: an int or 64 bits.
[[nodiscard]] result<std::uint64_t> get_attribute(const driver::table& calls,
                                                  driver::CUmemoryPool pool,
                                                  stream_pool_attribute attribute);
result<void> set_attribute(const driver::table& calls, driver::CUmemoryPool pool,
                           stream_pool_attribute attribute, std::uint64_t value);

}}}  // namespace weir::v0::pools
