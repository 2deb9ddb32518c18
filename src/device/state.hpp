// SPDX-License-Identifier: Apache-2.0
// What a runtime keeps about one device, and the few helpers that every wrapper shares.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/stream_registry.hpp"
#include "weir/device/device.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/observe/events.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// How often this process came out of a fork as the child. Objects remember the number they were
/// born under; one that differs belongs to the parent, whose driver the child must not touch. The
/// child cannot trust the locks of such an object either: a thread that held one is not there.
extern std::atomic<std::uint32_t> fork_generation;

/// Learns of streams that weir destroys while they can still be queried: the driver says nothing of
/// streams that are destroyed, and does not survive a query.
class stream_listener {
 public:
  virtual ~stream_listener() = default;
  virtual void stream_closing(const stream_ref& stream) noexcept = 0;
};

/// A number that no other open runtime has, from 0: the lowest that is free, so that a process with
/// one runtime at a time always has 0. Held by the runtime's devices.
class runtime_number {
 public:
  [[nodiscard]] static result<std::shared_ptr<const runtime_number>> take();
  explicit runtime_number(std::size_t taken) noexcept : value_{taken} {}
  ~runtime_number();
  runtime_number(const runtime_number&) = delete;
  runtime_number& operator=(const runtime_number&) = delete;

  static constexpr std::size_t most = 4096;
  /// The driver's number of a stream, made one that no other runtime's streams have: two drivers,
  /// or two simulated machines, count the same numbers. A driver that numbers streams counts them
  /// up and never gets to 2^48.
  [[nodiscard]] std::uint64_t with(std::uint64_t of_driver) const noexcept {
    return of_driver | std::uint64_t{value_} << 48;
  }

 private:
  std::size_t value_;
};

/// The driver's numbers of per-thread default streams of one device, by thread. They cannot be
/// queried while they are being captured, so they are kept when they are. Of more threads than it
/// holds, those that asked longest ago are forgotten. Any thread; needs no host memory.
class thread_stream_numbers {
 public:
  /// 0: not known.
  [[nodiscard]] std::uint64_t of(std::uint64_t thread) noexcept {
    const std::lock_guard lock{mutex_};
    for (const entry& each : entries_)
      if (each.thread == thread) return each.number;
    return 0;
  }
  void keep(std::uint64_t thread, std::uint64_t number) noexcept {
    const std::lock_guard lock{mutex_};
    for (entry& each : entries_) {
      if (each.thread != thread) continue;
      each.number = number;
      return;
    }
    entries_[next_++ % entries_.size()] = {thread, number};
  }

 private:
  struct entry {
    std::uint64_t thread = 0;  // see thread_number()
    std::uint64_t number = 0;
  };
  std::mutex mutex_;
  std::array<entry, 64> entries_{};
  std::size_t next_ = 0;
};

/// Whether the driver maps memory that network cards can reach.
enum class rdma_answer : std::uint8_t { unknown, yes, no };

/// Owned by its runtime; at the same address for as long as that lives. Everything but the context
/// and the numbering of streams is fixed when the runtime is opened.
struct device_state {
  runtime* owner = nullptr;
  const driver::table* calls = nullptr;
  int driver_version = 0;
  std::uint32_t generation = 0;
  std::shared_ptr<const runtime_number> runtime_tag;

  driver::CUdevice native = 0;
  device_id id{};
  std::string name;
  std::string pci_bus_id;
  std::optional<std::array<std::uint8_t, 16>> uuid;
  bytes total{};
  device_capabilities capabilities;

  /// Null until first needed; then retained until the runtime goes.
  std::atomic<driver::CUcontext> context{nullptr};
  std::mutex context_mutex;

  /// What maps_with_rdma() found out.
  std::atomic<rdma_answer> rdma{rdma_answer::unknown};

  /// The driver's number of the legacy stream once it is known; 0: not yet. It cannot be queried
  /// while a stream that synchronises with it is being captured.
  std::atomic<std::uint64_t> legacy_number{0};

  /// The driver's numbers of the default streams of the threads that asked last.
  thread_stream_numbers thread_streams;

  /// Stream numbers for drivers that give none; see stream_ref::id().
  std::mutex numbers_mutex;
  std::unordered_map<driver::CUstream, std::uint64_t> numbers;

  /// Called with the lock held, so that a listener that was removed is not called.
  std::mutex listeners_mutex;
  std::vector<stream_listener*> listeners;

  /// Makes an observer that every allocator of this device must have: the driver is a simulated one
  /// that checks uses of memory. Empty: there is none. Fixed when the runtime is opened.
  std::function<std::unique_ptr<event_sink>()> make_block_watch;

  /// Streams that can be queried whenever somebody must know how far the device has come.
  stream_registry known_streams;

  /// What a layer above keeps about the device's default pool. Goes with the runtime, before the
  /// context; must not keep the runtime alive.
  std::mutex default_pool_mutex;
  std::shared_ptr<void> default_pool;

  [[nodiscard]] static device_state& of(weir::device device) noexcept { return *device.state_; }
  [[nodiscard]] weir::device handle() noexcept { return weir::device{*this}; }
  /// For owners: this state, with the runtime kept alive.
  [[nodiscard]] static std::shared_ptr<device_state> keep(weir::device device) {
    return {of(device).owner->shared_from_this(), &of(device)};
  }
  [[nodiscard]] bool forked() const noexcept {
    return generation != fork_generation.load(std::memory_order_relaxed);
  }
  /// The primary context, retained if it was not yet.
  [[nodiscard]] driver::CUresult retain_context(driver::CUcontext& out) noexcept;
};

/// Queries the driver for what this device is and can do.
[[nodiscard]] result<void> query_device(device_state& state, int ordinal);

void add_listener(device_state& state, stream_listener& listener);
void remove_listener(device_state& state, stream_listener& listener) noexcept;

/// The stream is about to end: tells the listeners; nobody queries it from now on.
void emit_stream_end(device_state& state, const stream_ref& stream) noexcept;

/// The stream with this handle is gone: whatever gets the handle next is another stream.
void forget_stream(device_state& state, driver::CUstream handle) noexcept;

/// Reports what a destructor could not return, unless the driver is gone: then everything the
/// driver held is gone with it and there is nothing to tell.
void report_failure(const result<void>& outcome) noexcept;

/// Takes `pushed` off the thread's stack. Where the driver refuses and it is still current, once
/// more: what the caller does next, which may be in a scope of another device, must not find it.
result<void> pop_context(const driver::table& calls, driver::CUcontext pushed);

/// No detail, so that destructors can make one without memory.
[[nodiscard]] inline error fork_error() { return error{{.code = errc::driver_gone}}; }

/// A call was given a scope of another device than its object's.
[[nodiscard]] error wrong_scope(weir::device entered, weir::device owner);

/// What every call with a scope checks first.
[[nodiscard]] inline result<void> check_scope(const context_scope& scope, weir::device owner) {
  if (!scope) [[unlikely]]
    return scope.error();
  if (scope.device() != owner) [[unlikely]]
    return wrong_scope(scope.device(), owner);
  return {};
}

}}}  // namespace weir::v0::detail
