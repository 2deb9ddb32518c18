// SPDX-License-Identifier: Apache-2.0
// Blocks and waits on their way between programs that run at once.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "weir/base/ids.hpp"
#include "weir/device/event.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir::order_test {

/// What the programs of several threads send each other. Any thread.
class mailbox {
 public:
  struct message {
    device_address address = 0;
    std::uint64_t size = 0;
    std::uint64_t content = 0;  // 0: never written
    stream_id home{};           // where it was allocated
    std::optional<event> ready;
  };
  /// Blocks on their way from one program to another, each behind an event.
  void put(message sent);
  [[nodiscard]] std::optional<message> take();

  /// The stream must wait for the event before it uses again what it freed. Called before the free.
  void defer_wait(stream_id home, event until);
  /// Queues those waits; when this returns they are queued, whoever did it.
  [[nodiscard]] bool queue_deferred_waits(stream_id home,
                                          const std::function<bool(const event&)>& wait);

 private:
  std::mutex mutex_;
  std::vector<message> messages_;
  std::unordered_map<stream_id, std::vector<event>> deferred_;
};

}  // namespace weir::order_test
