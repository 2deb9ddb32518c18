// SPDX-License-Identifier: Apache-2.0
// The process's own runtime and allocators: created once, at the first request, and never closed.
#include "capi/defaults.hpp"

#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "capi/guard.hpp"
#include "weir.h"
#include "weir/base/options.hpp"

namespace weir { inline namespace v0 { namespace capi {
namespace {

/// Published when the runtime is open; never changed, but for allocators that are added.
struct opened_runtime {
  std::shared_ptr<runtime> machine;
  weir_runtime* handle = nullptr;
  options settings;
  std::int32_t devices = 0;
  std::optional<weir::device> first;
  struct entry {
    std::atomic<allocator_object*> object{nullptr};
    weir_allocator* handle = nullptr;  // good once `object` is
  };
  std::unique_ptr<entry[]> allocators;
};

// Constant and without a destructor: frees arrive while the process goes down.
constinit std::mutex default_mutex;
constinit std::atomic<opened_runtime*> default_machine{nullptr};
// Of weir_default_set_options; never the address of a string that is being changed, for forked
// children.
constinit const std::string* default_list = nullptr;

/// In a forked child: a thread of the parent was opening the runtime or an allocator. It is not
/// here, and what it held stays held.
constinit std::atomic<bool> is_lost_to_fork{false};

void look_after_fork() noexcept {
  if (default_mutex.try_lock())
    default_mutex.unlock();
  else
    is_lost_to_fork.store(true, std::memory_order_relaxed);
}

// Not at the first call: a fork in its middle would be missed.
const int fork_watch = ::pthread_atfork(nullptr, nullptr, look_after_fork);

/// driver_gone: see is_lost_to_fork. All who open something of the process's hold the lock.
result<std::unique_lock<std::mutex>> lock_defaults() {
  if (fork_watch != 0)
    return error{{.code = errc::system, .native = fork_watch, .detail = "pthread_atfork"}};
  if (is_lost_to_fork.load(std::memory_order_relaxed))
    return error{{.code = errc::driver_gone,
                  .detail = "the process was forked while another thread was opening the default "
                            "runtime or allocator; open them before fork()"}};
  return std::unique_lock{default_mutex};
}

/// The options as they are now: the real machine, strangers' streams, the environment, the list.
result<options> default_options(const char* from_program) {
  options initial;
  initial.runtime = runtime_choice::cuda;
  // Those who call hooks tell nobody when they destroy a stream.
  initial.heap_allow_unreleased_streams = true;
  WEIR_TRY_VALUE(from_environment, options_from_environment({}, initial));
  return read_options(from_environment, from_program);
}

bool same_machine(const options& a, const options& b) {
  return a.runtime == b.runtime && a.driver_path == b.driver_path &&
         a.sim_devices == b.sim_devices && a.sim_capacity == b.sim_capacity &&
         a.sim_seed == b.sim_seed && a.sim_mode == b.sim_mode && a.sim_lag == b.sim_lag &&
         a.sim_hazards == b.sim_hazards;
}

// The next two need the lock.

result<opened_runtime*> open_default_runtime() {
  if (opened_runtime* const open = default_machine.load(std::memory_order_relaxed)) return open;
  WEIR_TRY_VALUE(settings,
                 default_options(default_list == nullptr ? nullptr : default_list->c_str()));
  WEIR_TRY_VALUE(machine, runtime::open(settings));
  auto opened = std::make_unique<opened_runtime>();
  opened->machine = machine;
  opened->settings = settings;
  opened->devices = machine->device_count();
  if (opened->devices > 0) {
    WEIR_TRY_VALUE(first, machine->device(device_id{0}));
    opened->first = first;
  }
  opened->allocators =
      std::make_unique<opened_runtime::entry[]>(static_cast<std::size_t>(opened->devices));
  auto object = std::make_shared<runtime_object>();
  object->machine = std::move(machine);
  object->permanent = true;
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_runtime>(std::move(object)));
  opened->handle = handle;
  default_machine.store(opened.get(), std::memory_order_release);
  return opened.release();
}

result<default_allocator> make_default_allocator(opened_runtime& opened, std::int32_t number) {
  WEIR_TRY_VALUE(device, opened.machine->device(device_id{number}));
  opened_runtime::entry& entry = opened.allocators[static_cast<std::size_t>(number)];
  if (allocator_object* const existing = entry.object.load(std::memory_order_relaxed))
    return default_allocator{existing, entry.handle};
  WEIR_TRY_VALUE(settings,
                 default_options(default_list == nullptr ? nullptr : default_list->c_str()));
  WEIR_TRY_VALUE(owner, make_allocator({opened.machine, device}, settings));
  owner->permanent = true;
  allocator_object* const object = owner.get();  // its handle is never closed
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_allocator>(std::move(owner)));
  entry.handle = handle;
  entry.object.store(object, std::memory_order_release);
  return default_allocator{object, handle};
}

}  // namespace

default_allocator existing_allocator_of(std::int32_t device) noexcept {
  const opened_runtime* const opened = default_machine.load(std::memory_order_acquire);
  if (opened == nullptr || device < 0 || device >= opened->devices) return {};
  const opened_runtime::entry& entry = opened->allocators[static_cast<std::size_t>(device)];
  allocator_object* const object = entry.object.load(std::memory_order_acquire);
  return object == nullptr ? default_allocator{} : default_allocator{object, entry.handle};
}

result<void> open_default_runtime_if_closed() {
  if (default_machine.load(std::memory_order_acquire) != nullptr) [[likely]]
    return {};
  const auto lock = lock_defaults();
  if (!lock) return lock.error();
  WEIR_TRY(open_default_runtime());
  return {};
}

std::optional<weir::device> first_default_device() noexcept {
  const opened_runtime* const opened = default_machine.load(std::memory_order_acquire);
  return opened == nullptr ? std::nullopt : opened->first;
}

std::int32_t default_device_count() noexcept {
  const opened_runtime* const opened = default_machine.load(std::memory_order_acquire);
  return opened == nullptr ? 0 : opened->devices;
}

result<default_allocator> default_allocator_of(std::int32_t device) {
  const default_allocator existing = existing_allocator_of(device);
  if (existing.object != nullptr) [[likely]]
    return existing;
  const auto lock = lock_defaults();
  if (!lock) return lock.error();
  WEIR_TRY_VALUE(machine, open_default_runtime());
  return make_default_allocator(*machine, device);
}

}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_default_runtime(weir_runtime** runtime) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(runtime);
    const auto lock = lock_defaults();
    if (!lock) return lock.error();
    WEIR_TRY_VALUE(opened, open_default_runtime());
    *runtime = opened->handle;
    return {};
  });
}

weir_error weir_default_allocator(int32_t device, weir_allocator** allocator) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(allocator);
    WEIR_TRY_VALUE(existing, default_allocator_of(device));
    *allocator = existing.handle;
    return {};
  });
}

weir_error weir_default_set_options(const char* list) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(settings, default_options(list));
    const auto lock = lock_defaults();
    if (!lock) return lock.error();
    const opened_runtime* const opened = default_machine.load(std::memory_order_relaxed);
    if (opened != nullptr && !same_machine(opened->settings, settings)) {
      return error{{.code = errc::not_permitted,
                    .detail = "the process's default runtime is already open with other options; "
                              "set options before the first use"}};
    }
    const std::unique_ptr<const std::string> replaced{
        std::exchange(default_list, new std::string{list == nullptr ? "" : list})};
    return {};
  });
}
}
