// SPDX-License-Identifier: Apache-2.0
// What the tests of the C ABI have in common: a simulated machine behind handles, and failures as
// text.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/objects.hpp"
#include "support/reports.hpp"
#include "weir.h"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

inline constexpr std::uint64_t kib = std::uint64_t{1} << 10;
inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;

/// "" for success; else the calling thread's message, without what all failures of its code say:
/// "closed: the stream is closed".
[[nodiscard]] inline std::string said(weir_error code) {
  if (code == weir_ok) return "";
  const std::string name = weir_error_name(code);
  const std::string usual = name + ": " + weir_error_meaning(code);
  std::string message = weir_last_error_message();
  if (message.starts_with(usual)) message.replace(0, usual.size(), name);
  return message;
}
#define EXPECT_OK(call) EXPECT_EQ(::weir::testing_support::said(call), "")
#define ASSERT_OK(call) ASSERT_EQ(::weir::testing_support::said(call), "")

/// A structure to be filled in, full of something else.
template <class Info>
[[nodiscard]] Info unset() {
  Info info;
  std::memset(static_cast<void*>(&info), 0xa5, sizeof(info));
  info.struct_size = sizeof(info);
  return info;
}
/// What `get(info)` writes into a structure.
template <class Info, class Get>
[[nodiscard]] Info read(const Get& get) {
  auto info = unset<Info>();
  EXPECT_OK(get(&info));
  return info;
}

/// The calls that name a stream, in their order, of a table of with_noted_streams().
using noted_streams = std::vector<std::pair<driver::call, driver::CUstream>>;
namespace noting {
inline const driver::table* real = nullptr;
inline noted_streams seen;
}  // namespace noting
[[nodiscard]] inline noted_streams take_noted_streams() { return std::exchange(noting::seen, {}); }

/// A table that notes streams and forwards to `real`, which must outlive it.
[[nodiscard]] inline driver::table with_noted_streams(const driver::table& real) {
  using namespace driver;
  using noting::seen;
  noting::real = &real;
  seen.clear();
  table noted = real;
  noted.mem_alloc_from_pool_async = [](CUdeviceptr* address, std::size_t size, CUmemoryPool pool,
                                       CUstream stream) {
    seen.emplace_back(call::mem_alloc_from_pool_async, stream);
    return noting::real->mem_alloc_from_pool_async(address, size, pool, stream);
  };
  noted.mem_free_async = [](CUdeviceptr address, CUstream stream) {
    seen.emplace_back(call::mem_free_async, stream);
    return noting::real->mem_free_async(address, stream);
  };
  noted.memset_d8_async = [](CUdeviceptr to, unsigned char value, std::size_t count,
                             CUstream stream) {
    seen.emplace_back(call::memset_d8_async, stream);
    return noting::real->memset_d8_async(to, value, count, stream);
  };
  noted.mem_prefetch_async = [](CUdeviceptr address, std::size_t size, CUmemLocation place,
                                unsigned flags, CUstream stream) {
    seen.emplace_back(call::mem_prefetch_async, stream);
    return noting::real->mem_prefetch_async(address, size, place, flags, stream);
  };
  noted.stream_attach_mem_async = [](CUstream stream, CUdeviceptr address, std::size_t size,
                                     unsigned flags) {
    seen.emplace_back(call::stream_attach_mem_async, stream);
    return noting::real->stream_attach_mem_async(stream, address, size, flags);
  };
  return noted;
}

/// Two devices that differ in every number, three streams. Nothing happens on the machine unless
/// somebody waits for it. At its end nothing may have been reported that the test did not take, and
/// the machine must have found no fault.
class c_machine : public ::testing::Test {
 protected:
  explicit c_machine(int driver_version = 13000) {
    sim::machine_options options;
    options.mode = sim::progress::manual;
    options.driver_version = driver_version;
    options.devices = {sim::device_spec{.name = "first device",
                                        .capacity = bytes{1024 * mib},
                                        .context_overhead = bytes{64 * mib},
                                        .compute_major = 8,
                                        .compute_minor = 6,
                                        .multiprocessors = 11},
                       sim::device_spec{.name = "second device",
                                        .capacity = bytes{512 * mib},
                                        .context_overhead = bytes{32 * mib},
                                        .compute_major = 9,
                                        .compute_minor = 1,
                                        .multiprocessors = 22,
                                        .granularity = bytes{4 * mib}}};
    machine = sim::machine::create(options).value();
    runtime = runtime_over(machine->driver());
    EXPECT_OK(weir_stream_create(runtime, 0, 0, 0, &stream));
    EXPECT_OK(weir_stream_create(runtime, 0, 0, 0, &other));
    EXPECT_OK(weir_stream_create(runtime, 1, 0, 0, &elsewhere));
  }
  void TearDown() override {
    EXPECT_OK(weir_stream_close(stream));
    EXPECT_OK(weir_stream_close(other));
    EXPECT_OK(weir_stream_close(elsewhere));
    EXPECT_OK(weir_runtime_close(runtime));
    for (const error& each : reported.take()) ADD_FAILURE() << each.message();
    for (const auto& each : machine->hazards()) ADD_FAILURE() << each.message();
  }

  /// A handle to a runtime over a table of calls.
  [[nodiscard]] weir_runtime* runtime_over(const driver::table& calls) const {
    auto object = std::make_shared<capi::runtime_object>();
    object->machine = weir::runtime::open_table(calls, "a table", machine).value();
    return capi::hand_out_handle<weir_runtime>(std::move(object)).value();
  }
  /// The same stream as another runtime's.
  [[nodiscard]] static weir_stream* wrapped(weir_runtime* by, weir_stream* of) {
    weir_stream* made = nullptr;
    EXPECT_OK(weir_stream_wrap(by, 0, native(of), &made));
    return made;
  }
  [[nodiscard]] weir::device device(int number = 0) const {
    return capi::find(runtime).value()->machine->device(device_id{number}).value();
  }
  [[nodiscard]] static driver::CUstream native(weir_stream* of) {
    void* handle = nullptr;
    EXPECT_OK(weir_stream_get_native(of, &handle));
    return static_cast<driver::CUstream>(handle);
  }
  [[nodiscard]] static std::uint64_t id(weir_stream* of) {
    std::uint64_t number = 0;
    EXPECT_OK(weir_stream_get_id(of, &number));
    return number;
  }
  /// The number of the legacy stream.
  [[nodiscard]] std::uint64_t legacy_id(int number = 0) const {
    return stream_ref::legacy(device(number)).id().value().number();
  }
  [[nodiscard]] static bool is_idle(weir_stream* queried) {
    std::int32_t complete = -1;
    EXPECT_OK(weir_stream_is_complete(queried, &complete));
    return complete == 1;
  }
  [[nodiscard]] bool is_legacy_idle(int number = 0) const {
    return stream_ref::legacy(device(number)).is_complete().value();
  }
  /// Queues work that touches no memory.
  void occupy(weir_stream* busy) const {
    const context_scope bound{capi::find(busy).value()->ref.device()};
    EXPECT_TRUE(machine->launch(native(busy), "work", {}));
  }
  void wait_for_all() const {
    EXPECT_OK(weir_device_synchronize(runtime, 0));
    EXPECT_OK(weir_device_synchronize(runtime, 1));
  }
  /// The bytes at a device address, once all streams are idle.
  [[nodiscard]] std::vector<int> bytes_at(const void* address, std::size_t count) const {
    wait_for_all();
    std::vector<unsigned char> copied(count);
    const context_scope bound{device()};
    EXPECT_EQ(machine->driver().memcpy_dtoh(copied.data(),
                                            reinterpret_cast<std::uintptr_t>(address), count),
              driver::CUDA_SUCCESS);
    return {copied.begin(), copied.end()};
  }
  [[nodiscard]] std::uint64_t calls(driver::call row) const { return machine->calls(row); }
  [[nodiscard]] std::uint64_t used(int number = 0) const {
    return machine->used(device_id{number}).count();
  }

  reports reported;
  std::shared_ptr<sim::machine> machine;
  weir_runtime* runtime = nullptr;
  weir_stream* stream = nullptr;
  weir_stream* other = nullptr;      // of the same device
  weir_stream* elsewhere = nullptr;  // of the second one
};

/// With an allocator of either device.
class c_memory : public c_machine {
 protected:
  c_memory() {
    EXPECT_OK(weir_allocator_create(runtime, 0, heap_options, &memory));
    EXPECT_OK(weir_allocator_create(runtime, 1, heap_options, &far_memory));
  }
  void TearDown() override {
    EXPECT_OK(weir_allocator_close(memory));
    EXPECT_OK(weir_allocator_close(far_memory));
    c_machine::TearDown();
  }
  [[nodiscard]] void* allocate(std::uint64_t size, weir_stream* on) const {
    void* pointer = nullptr;
    EXPECT_OK(weir_allocator_allocate(memory, size, on, &pointer));
    return pointer;
  }
  [[nodiscard]] weir_block_info block_at(const void* address) const {
    return read<weir_block_info>(
        [&](auto* info) { return weir_allocator_find_block(memory, address, info); });
  }
  [[nodiscard]] weir_memory_stats stats() const {
    return read<weir_memory_stats>(
        [&](auto* info) { return weir_allocator_get_stats(memory, info); });
  }
  /// The number of the stream that a freed block is bound to; 0: none.
  [[nodiscard]] std::uint64_t bound_to(const void* freed) const {
    const auto shown = capi::find(memory).value()->memory.snapshot();
    for (const auto& pool : shown.pools)
      for (const auto& block : pool.blocks)
        if (block.address <= reinterpret_cast<std::uintptr_t>(freed) &&
            reinterpret_cast<std::uintptr_t>(freed) < block.address + block.size.count())
          return block.state == block_state::live ? 0 : block.stream.number();
    return 0;
  }

  static constexpr const char* heap_options = "heap_queued_waits=off";
  weir_allocator* memory = nullptr;
  weir_allocator* far_memory = nullptr;
};

}  // namespace weir::testing_support
