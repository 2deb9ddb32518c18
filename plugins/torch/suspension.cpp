// SPDX-License-Identifier: Apache-2.0
// Suspended memory for Python: of a tag, of one of torch's pools, of all memory of a device.
//
// Calls answer (code, the driver's code, message) and what they did behind it; Python makes its
// exceptions of the first three. Code 0 is success. They let go of the GIL while they work.
#include "suspension.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "allocator.hpp"
#include "errors.hpp"
#include "weir/allocator/suspend.hpp"
#include "weir/observe/tag.hpp"

namespace weir_torch {
namespace {

namespace py = pybind11;

py::tuple failure(const weir::error& reason) {
  return py::make_tuple(static_cast<std::int32_t>(reason.code()), reason.native(),
                        reason.message());
}
template <class... Values>
py::tuple success(Values... values) {
  return py::make_tuple(0, 0, "", values...);
}

/// What is suspended or resumed: the pool, or the tag, or else everything of the device.
struct target {
  device_state& state;
  weir::memory_pool pool;
  std::optional<weir::tag> tag;
};

/// From None, a tag's name or torch's id of a pool.
target target_from(int device, const py::object& what) {
  target found{installed_or_throw().state_of(index_from(device)), {}, {}};
  if (what.is_none()) return found;
  if (py::isinstance<py::str>(what)) {
    found.tag = checked(weir::tag::named(what.cast<std::string>()));
    return found;
  }
  const auto [first, second] = what.cast<std::pair<std::uint64_t, std::uint64_t>>();
  found.pool = found.state.pools.find(MempoolId_t(first, second));
  TORCH_CHECK(found.pool, "unknown memory pool (", first, ", ", second, ")");
  return found;
}

/// Calls Python's function. It is the argument of a call that is under way, so it lives; it must
/// not be copied without the GIL.
weir::suspend_progress progress_from(const py::object& function) {
  if (function.is_none()) return {};
  return [callable = function.ptr()](weir::bytes done, weir::bytes total) {
    const py::gil_scoped_acquire held;
    try {
      py::reinterpret_borrow<py::object>(callable)(done.count(), total.count());
    } catch (py::error_already_set& raised) {
      raised.discard_as_unraisable("weir.torch: progress");
    }
  };
}

/// (contents, host memory, requests, chunk, streams), numbered as in weir.h; chunk 0 is the initial
/// one.
weir::suspend_options options_from(const py::tuple& from) {
  weir::suspend_options options;
  options.contents = static_cast<weir::suspended_contents>(from[0].cast<int>());
  options.to = static_cast<weir::host_memory_kind>(from[1].cast<int>());
  options.requests = static_cast<weir::suspended_requests>(from[2].cast<int>());
  if (const auto chunk = from[3].cast<std::uint64_t>(); chunk != 0)
    options.chunk = weir::bytes{chunk};
  options.streams = static_cast<weir::awaited_streams>(from[4].cast<int>());
  return options;
}

weir::suspendable_options suspendable_from(bool evictable, int priority,
                                           const py::tuple& eviction) {
  weir::suspendable_options options;
  options.evictable = evictable;
  options.priority = priority;
  options.eviction = options_from(eviction);
  return options;
}

template <class Action>
auto without_gil(const Action& action) {
  const py::gil_scoped_release released;
  return action();
}

py::tuple declare_suspendable(int device, const std::string& tag, bool evictable, int priority,
                              const py::tuple& eviction) {
  const weir::tag named = checked(weir::tag::named(tag));
  device_state& state = installed_or_throw().state_of(index_from(device));
  const auto options = suspendable_from(evictable, priority, eviction);
  const auto declared =
      without_gil([&] { return state.memory.declare_suspendable(named, options); });
  return declared ? success() : failure(declared.error());
}

void make_pool_suspendable(int device, const py::object& id, bool evictable, int priority,
                           const py::tuple& eviction) {
  const auto [first, second] = id.cast<std::pair<std::uint64_t, std::uint64_t>>();
  device_state& state = installed_or_throw().state_of(index_from(device));
  state.pools.make_suspendable(MempoolId_t(first, second),
                               suspendable_from(evictable, priority, eviction));
}

py::tuple suspend(int device, const py::object& what, const py::tuple& chosen,
                  const py::object& progress) {
  const target meant = target_from(device, what);
  weir::suspend_options options = options_from(chosen);
  options.progress = progress_from(progress);
  const auto outcome = without_gil([&]() -> weir::result<weir::suspend_outcome> {
    if (meant.pool) return meant.pool.suspend(options);
    if (meant.tag) return meant.state.memory.suspend(*meant.tag, options);
    return meant.state.memory.suspend(options);
  });
  if (!outcome) return failure(outcome.error());
  return success(outcome->released.count(), outcome->saved.count(), outcome->not_suspended.count());
}

py::tuple resume(int device, const py::object& what, const py::object& progress) {
  const target meant = target_from(device, what);
  const weir::resume_options options{.progress = progress_from(progress)};
  const auto outcome = without_gil([&]() -> weir::result<weir::resume_outcome> {
    if (meant.pool) return meant.pool.resume(options);
    if (meant.tag) return meant.state.memory.resume(*meant.tag, options);
    return meant.state.memory.resume(options);
  });
  if (!outcome) return failure(outcome.error());
  return success(outcome->reserved.count(), outcome->restored.count());
}

py::tuple suspend_async(int device, const py::object& what, const py::tuple& chosen) {
  const target meant = target_from(device, what);
  const weir::suspend_options options = options_from(chosen);
  const auto begun = without_gil([&]() -> weir::result<void> {
    if (meant.pool) return meant.pool.suspend_async(options);
    if (meant.tag) return meant.state.memory.suspend_async(*meant.tag, options);
    return meant.state.memory.suspend_async(options);
  });
  return begun ? success() : failure(begun.error());
}

py::tuple resume_async(int device, const py::object& what, std::uintptr_t stream) {
  const target meant = target_from(device, what);
  std::optional<weir::stream_ref> scratch;
  const weir::stream_ref waiting =
      meant.state.streams.look_up(reinterpret_cast<cudaStream_t>(stream), scratch);
  const auto outcome = without_gil([&]() -> weir::result<weir::resume_outcome> {
    if (meant.pool) return meant.pool.resume_async(waiting);
    if (meant.tag) return meant.state.memory.resume_async(*meant.tag, waiting);
    return meant.state.memory.resume_async(waiting);
  });
  if (!outcome) return failure(outcome.error());
  return success(outcome->reserved.count(), outcome->restored.count());
}

bool is_suspended(int device, const py::object& what) {
  const target meant = target_from(device, what);
  return without_gil([&] {
    return meant.pool ? meant.pool.is_suspended()
                      : meant.tag && meant.state.memory.is_suspended(*meant.tag);
  });
}

py::tuple suspend_stats(int device, const py::object& what) {
  const target meant = target_from(device, what);
  const weir::memory_stats stats = without_gil([&] {
    if (meant.pool) return meant.pool.stats();
    return meant.tag ? meant.state.memory.stats(*meant.tag) : meant.state.memory.stats();
  });
  return py::make_tuple(stats.suspended.count(), stats.backup.current.count(),
                        stats.backup.peak.count(), stats.reserved_and_suspended.current.count(),
                        stats.reserved_and_suspended.peak.count());
}

py::tuple reserve_backup(int device, std::uint64_t size, int kind) {
  device_state& state = installed_or_throw().state_of(index_from(device));
  const auto reserved = without_gil([&] {
    return state.memory.reserve_backup(weir::bytes{size},
                                       static_cast<weir::host_memory_kind>(kind));
  });
  return reserved ? success() : failure(reserved.error());
}

py::tuple trim_backup(int device) {
  device_state& state = installed_or_throw().state_of(index_from(device));
  const auto released = without_gil([&] { return state.memory.trim_backup(); });
  return released ? success(released->count()) : failure(released.error());
}

}  // namespace

void define_suspension(py::module_& module) {
  module.def("declare_suspendable", &declare_suspendable);
  module.def("make_pool_suspendable", &make_pool_suspendable);
  module.def("suspend", &suspend);
  module.def("resume", &resume);
  module.def("suspend_async", &suspend_async);
  module.def("resume_async", &resume_async);
  module.def("is_suspended", &is_suspended);
  module.def("suspend_stats", &suspend_stats);
  module.def("reserve_backup", &reserve_backup);
  module.def("trim_backup", &trim_backup);
}

}  // namespace weir_torch
