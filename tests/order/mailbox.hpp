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

namespace weir::order_test {

/// What the programs of several threads tell each other. Any thread.
class mailbox {
 public:
  struct parcel {
    device_address address = 0;
    std::uint64_t size = 0;
    std::uint64_t content = 0;  // 0: never written
    stream_id home{};           // where it was allocated
    std::optional<event> ready;
  };
  /// Blocks on their way from one program to another, each behind an event.
  void put(parcel sent);
  [[nodiscard]] std::optional<parcel> take();

  /// The stream must wait for the event before it uses again what it freed. Said before the free.
  void owe(stream_id home, event until);
  /// Queues those waits; when this returns they are queued, whoever did it.
  [[nodiscard]] bool settle(stream_id home, const std::function<bool(const event&)>& wait);

 private:
  std::mutex mutex_;
  std::vector<parcel> waiting_;
  std::unordered_map<stream_id, std::vector<event>> owed_;
};

}  // namespace weir::order_test
