// The process's own runtime and allocators: made once, at the first question, and never taken down.
#include "capi/defaults.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "capi/guard.hpp"
#include "weir.h"
#include "weir/base/options.hpp"

namespace weir::inline v0::capi {
namespace {

/// What is published when the runtime is open; never changed, but for allocators that come.
struct opened_runtime {
  std::shared_ptr<runtime> machine;
  weir_runtime* handle = nullptr;
  options settings;
  std::int32_t devices = 0;
  struct entry {
    std::atomic<allocator_object*> object{nullptr};
    weir_allocator* handle = nullptr;  // good once `object` is
  };
  std::unique_ptr<entry[]> allocators;
};

// Constant and without a destructor: frees arrive while the process goes down.
constinit std::mutex default_mutex;
constinit std::atomic<opened_runtime*> default_machine{nullptr};
constinit std::string* default_list = nullptr;  // of weir_default_set_options

/// What the options are now: the real machine, strangers' streams, the environment, the list.
result<options> default_options(const char* from_program) {
  options initial;
  initial.runtime = runtime_choice::cuda;
  // Those who call hooks tell nobody when they destroy a stream.
  initial.heap_unannounced_ends = true;
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
  if (opened_runtime* const there = default_machine.load(std::memory_order_relaxed)) return there;
  WEIR_TRY_VALUE(settings,
                 default_options(default_list == nullptr ? nullptr : default_list->c_str()));
  WEIR_TRY_VALUE(machine, runtime::open(settings));
  auto made = std::make_unique<opened_runtime>();
  made->machine = machine;
  made->settings = settings;
  made->devices = machine->device_count();
  made->allocators =
      std::make_unique<opened_runtime::entry[]>(static_cast<std::size_t>(made->devices));
  auto object = std::make_shared<runtime_object>();
  object->machine = std::move(machine);
  object->permanent = true;
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_runtime>(std::move(object)));
  made->handle = handle;
  default_machine.store(made.get(), std::memory_order_release);
  return made.release();
}

result<default_allocator> make_default_allocator(opened_runtime& of, std::int32_t number) {
  WEIR_TRY_VALUE(which, of.machine->device(device_id{number}));
  opened_runtime::entry& at = of.allocators[static_cast<std::size_t>(number)];
  if (allocator_object* const there = at.object.load(std::memory_order_relaxed))
    return default_allocator{there, at.handle};
  WEIR_TRY_VALUE(settings,
                 default_options(default_list == nullptr ? nullptr : default_list->c_str()));
  WEIR_TRY_VALUE(made, make_allocator({of.machine, which}, settings));
  made->permanent = true;
  allocator_object* const object = made.get();  // its handle is never closed
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_allocator>(std::move(made)));
  at.handle = handle;
  at.object.store(object, std::memory_order_release);
  return default_allocator{object, handle};
}

}  // namespace

default_allocator existing_allocator_of(std::int32_t device) noexcept {
  const opened_runtime* const there = default_machine.load(std::memory_order_acquire);
  if (there == nullptr || device < 0 || device >= there->devices) return {};
  const opened_runtime::entry& at = there->allocators[static_cast<std::size_t>(device)];
  allocator_object* const object = at.object.load(std::memory_order_acquire);
  return object == nullptr ? default_allocator{} : default_allocator{object, at.handle};
}

std::int32_t default_device_count() noexcept {
  const opened_runtime* const there = default_machine.load(std::memory_order_acquire);
  return there == nullptr ? 0 : there->devices;
}

result<default_allocator> default_allocator_of(std::int32_t device) {
  const default_allocator there = existing_allocator_of(device);
  if (there.object != nullptr) [[likely]]
    return there;
  const std::lock_guard lock{default_mutex};
  WEIR_TRY_VALUE(machine, open_default_runtime());
  return make_default_allocator(*machine, device);
}

}  // namespace weir::inline v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

weir_error weir_default_runtime(weir_runtime** runtime) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(runtime);
    const std::lock_guard lock{default_mutex};
    WEIR_TRY_VALUE(there, open_default_runtime());
    *runtime = there->handle;
    return {};
  });
}

weir_error weir_default_allocator(int32_t device, weir_allocator** allocator) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(allocator);
    WEIR_TRY_VALUE(there, default_allocator_of(device));
    *allocator = there.handle;
    return {};
  });
}

weir_error weir_default_set_options(const char* wanted) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(settings, default_options(wanted));
    const std::lock_guard lock{default_mutex};
    const opened_runtime* const there = default_machine.load(std::memory_order_relaxed);
    if (there != nullptr && !same_machine(there->settings, settings)) {
      return error{.code = errc::not_permitted,
                   .detail = "the process's runtime is open already, with other options"};
    }
    if (default_list == nullptr) default_list = new std::string;
    *default_list = wanted == nullptr ? "" : wanted;
    return {};
  });
}
}
