// SPDX-License-Identifier: Apache-2.0
// Memory that the driver allocates and frees at once, handed out in stream order all the same.
#pragma once

#include <memory>

#include "device/state.hpp"
#include "pools/recorded_uses.hpp"
#include "resources/live_table.hpp"
#include "weir/device/device.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 { namespace resources {

/// The state of plain_resource and managed_resource, shared by their handles. Each block is one of
/// the driver's; a free waits for the stream first, because cuMemFree promises no order with
/// streams that do not synchronise with the legacy one. Memory that is live at the end is freed and
/// reported. Any thread.
class driver_memory {
 public:
  using allocate_call = result<device_address> (*)(const context_scope& bound, bytes size);

  driver_memory(weir::device home, allocate_call call)
      : home_{detail::device_state::keep(home)}, allocate_{call} {}
  ~driver_memory();
  driver_memory(const driver_memory&) = delete;
  driver_memory& operator=(const driver_memory&) = delete;

  [[nodiscard]] result<void*> allocate(bytes size, const stream_ref& stream, bytes alignment);
  result<void> deallocate(void* pointer, bytes size, const stream_ref& stream);
  /// Work queued on `stream` until the block is freed may use it: the free waits for it.
  result<void> record_stream(void* pointer, const stream_ref& stream);
  [[nodiscard]] weir::device device() const noexcept { return home_->handle(); }
  [[nodiscard]] bytes in_use() const { return home_->forked() ? bytes{} : live_.total().size; }

 private:
  struct record {
    bytes size{};
  };

  std::shared_ptr<detail::device_state> home_;
  allocate_call allocate_;
  live_table<record> live_;
  pools::recorded_uses uses_;
};

}}}  // namespace weir::v0::resources
