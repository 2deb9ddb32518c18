// SPDX-License-Identifier: Apache-2.0
// Allocating with the driver's own calls, freeing behind the stream, and freeing at the end.
#include "resources/driver_memory.hpp"

#include "device/finished_work.hpp"
#include "pools/all_devices.hpp"
#include "weir/base/checked.hpp"
#include "weir/device/event.hpp"
#include "weir/resource/resource.hpp"

namespace weir { inline namespace v0 { namespace resources {
namespace {

/// The unit in which the driver hands out; a size that cannot be rounded to it is no size.
constexpr bytes unit{512};

device_address address_of(void* pointer) {
  return static_cast<device_address>(reinterpret_cast<std::uintptr_t>(pointer));
}

}  // namespace

result<void*> driver_memory::allocate(bytes size, const stream_ref& stream, bytes alignment) {
  if (stream.device() != device()) return errc::bad_stream;
  if (!is_power_of_two(alignment.count()) || alignment > default_alignment)
    return errc::bad_alignment;
  if (size == bytes{}) return nullptr;
  if (!checked_round_up(size, unit)) return error{{.code = errc::size_overflow, .requested = size}};
  const context_scope bound{device()};
  if (!bound) return bound.error();
  const thread_capture_mode_guard relaxed{device()};
  if (!relaxed) return relaxed.error();
  WEIR_TRY_VALUE(address, allocate_(bound, size));
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  if (auto entered = live_.put(pointer, {size}, stream); !entered) {
    detail::report_failure(free_plain(bound, address));
    return std::move(entered).error();
  }
  return pointer;
}

result<void> driver_memory::deallocate(void* pointer, bytes size, const stream_ref& stream) {
  if (pointer == nullptr) return {};
  if (stream.device() != device()) return errc::bad_stream;
  const context_scope bound{device()};
  if (!bound) return bound.error();
  WEIR_TRY_VALUE(capturing, stream.is_capturing(bound));
  if (capturing)
    return error{
        {.code = errc::capture_forbidden,
         .detail =
             "a graph that is being captured may still use the memory; end the capture first"}};
  return resources::deallocate(live_, pointer, size, [&](const record&) -> result<void> {
    const thread_capture_mode_guard relaxed{device()};
    if (!relaxed) return relaxed.error();
    WEIR_TRY(detail::wait_for_work(stream, bound));
    WEIR_TRY(uses_.wait(pointer));
    uses_.forget(pointer);  // before the driver hands the address out again
    return free_plain(bound, address_of(pointer));
  });
}

result<void> driver_memory::record_stream(void* pointer, const stream_ref& stream) {
  if (home_->forked()) return detail::fork_error();
  if (&stream.device().driver() != home_->calls)
    return error{{.code = errc::bad_stream, .detail = "the stream belongs to another runtime"}};
  WEIR_TRY(live_.find(pointer));
  return uses_.add(pointer, stream);
}

driver_memory::~driver_memory() {
  // After a fork, or at the end of the process, the memory went with the driver.
  if (home_->forked()) return;
  uses_.stop();
  const auto live = live_.total();
  if (live.count == 0) return;
  const context_scope bound{device()};
  if (!bound) return;
  const thread_capture_mode_guard relaxed{device()};
  auto idle = relaxed ? detail::wait_for_all_work(bound) : result<void>{relaxed.error()};
  if (idle) idle = pools::wait_for_other_devices(*home_);
  if (!idle && idle.code() == errc::driver_gone) return;
  const error told = live_.leak("a resource was destroyed");
  if (idle || detail::does_no_work(idle.error())) {
    detail::report_failure(idle);
    live_.for_each([&](void* pointer, const record&) {
      detail::report_failure(free_plain(bound, address_of(pointer)));
    });
  } else {
    report_error(pools::kept_memory(std::move(idle).error(), live.size));
  }
  report_error(told);
}

}}}  // namespace weir::v0::resources
