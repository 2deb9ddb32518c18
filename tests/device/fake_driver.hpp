// SPDX-License-Identifier: Apache-2.0
// A driver that keeps books and does nothing else: for tests that count calls and make them fail.
//
// What memory, streams and events do is the simulator's business (weir/sim/machine.hpp). This one
// answers at once, remembers every call with the context it was made under, and fails where it is
// told to.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "weir/driver/table.hpp"

namespace weir::testing_support {

/// One lives at a time: table entries are plain functions and find it through a global. Any thread
/// may call the table; the rest is for the test's own thread.
class fake_driver {
 public:
  struct made {
    driver::call which;
    driver::CUcontext current;  ///< the calling thread's, when it called
  };
  struct mapped {
    driver::CUdeviceptr address;
    std::size_t size;
    std::size_t offset;
    driver::CUmemGenericAllocationHandle handle;
  };

  static constexpr std::size_t granularity = std::size_t{2} << 20;
  static constexpr std::size_t recommended_granularity = std::size_t{4} << 20;

  explicit fake_driver(int devices = 2);
  ~fake_driver();
  fake_driver(const fake_driver&) = delete;
  fake_driver& operator=(const fake_driver&) = delete;

  /// Tests may take entries away before they open a runtime.
  driver::table table;

  // What the devices are; for tests to change before they open a runtime.
  std::map<driver::CUdevice_attribute, int> attributes;
  int device_count;

  // What calls answer.
  std::map<driver::call, driver::CUresult> always;        ///< these calls, from now on
  std::optional<driver::CUresult> everything;             ///< all calls, from now on
  void fail_nth(std::size_t nth, driver::CUresult with);  ///< 1 is the next call
  driver::CUstreamCaptureStatus capture = driver::CU_STREAM_CAPTURE_STATUS_NONE;
  std::chrono::milliseconds retaining_takes{0};  ///< how long a context takes to be created
  driver::CUcontext stream_context = nullptr;    ///< of every stream; null: device 0's
  int reaches_peers = 1;

  // What happened.
  [[nodiscard]] std::vector<made> log() const;
  [[nodiscard]] std::vector<driver::call> calls() const;
  [[nodiscard]] std::size_t count(driver::call which) const;
  void clear_log();
  /// Streams, events, reservations, handles and mappings that exist.
  [[nodiscard]] std::size_t live() const;
  [[nodiscard]] int retained(int device) const { return retained_.at(device); }
  [[nodiscard]] std::vector<mapped> mappings() const { return mappings_; }
  driver::CUmemAllocationProp last_properties{};
  std::vector<driver::CUmemAccessDesc> last_access;
  std::uintptr_t last_imported = 0;
  unsigned last_stream_flags = 0;
  int last_stream_priority = 0;
  std::pair<driver::CUdevice, driver::CUdevice> last_peers{-1, -1};  ///< who reaches whom
  driver::CUcontext last_peer_context = nullptr;
  std::atomic<unsigned> last_event_flags{0};
  driver::CUstreamCaptureMode thread_mode = driver::CU_STREAM_CAPTURE_MODE_GLOBAL;

  // The calling thread's contexts.
  [[nodiscard]] static std::vector<driver::CUcontext>& stack();
  [[nodiscard]] static driver::CUcontext context_of(int device);

  /// The next object gets this handle, as a driver recycles those of destroyed ones.
  std::uintptr_t next_handle = 0x10000;

 private:
  driver::CUresult enter(driver::call which);
  template <class Handle>
  driver::CUresult make(driver::call which, Handle* out);
  template <class Handle>
  driver::CUresult destroy(driver::call which, Handle handle);
  void fill_identity();
  void fill_contexts();
  void fill_streams_and_events();
  void fill_memory();

  static fake_driver* instance_;
  mutable std::mutex mutex_;
  std::vector<made> log_;
  std::size_t fail_at_ = 0;
  driver::CUresult fail_with_ = driver::CUDA_SUCCESS;
  std::map<int, int> retained_;
  std::set<std::uintptr_t> objects_;
  std::map<std::uintptr_t, unsigned long long> stream_numbers_;
  unsigned long long next_number_ = 100;
  std::map<driver::CUdeviceptr, std::size_t> reserved_;
  std::vector<mapped> mappings_;
};

}  // namespace weir::testing_support
