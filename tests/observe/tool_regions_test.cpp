// SPDX-License-Identifier: Apache-2.0
// What a tool learns of an allocator's blocks: call by call, as a recorder of ours wrote it down.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "observe/tool_regions.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/observe/tag.hpp"
#include "weir/sim/machine.hpp"

namespace weir { namespace {

using namespace literals;

std::string told() {
  void* const library = ::dlopen(std::getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return "the recorder was not loaded";
  const auto take = reinterpret_cast<const char* (*)()>(::dlsym(library, "nvtx_recorder_take"));
  std::string lines = take();
  ::dlclose(library);
  return lines;
}

std::string at(std::uint64_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", reinterpret_cast<void*>(address));
  return text;
}

std::string heap_line(std::uint64_t address, std::uint64_t size) {
  return "heap (nil) 102 48 usage 1 type 1: " + at(address) + ", " + std::to_string(size) +
         ", 1 \"weir\"\n";
}

std::string region_line(int heap, std::uint64_t address, std::uint64_t size) {
  return "region (nil) of heap " + std::to_string(heap) + " type 1 element 16: " + at(address) +
         ", " + std::to_string(size) + "\n";
}

TEST(tool_regions, tells_of_heaps_and_of_the_blocks_in_them) {
  const auto tool = observe::tool_regions::create();
  ASSERT_NE(tool, nullptr) << "ctest sets NVTX_INJECTION64_PATH";
  static_cast<void>(told());
  const auto weights = tag::named("tool test: weights").value();
  tool->on_event({.kind = memory_event_kind::reserve, .address = 0x10000, .size = 0x1000});
  EXPECT_EQ(told(), heap_line(0x10000, 0x1000));
  tool->on_event({.kind = memory_event_kind::allocate,
                  .tag = weights.number(),
                  .address = 0x10200,
                  .size = 1000,
                  .rounded = 1024});
  EXPECT_EQ(told(), region_line(1, 0x10200, 1000) +
                        "name (nil) by 1, 1: 0x10200 \"tool test: weights, 1000 B\"\n");
  tool->on_event({.kind = memory_event_kind::allocate, .address = 0x10e00, .size = 0x201});
  EXPECT_EQ(told(), "") << "beyond its heap";
  tool->on_event({.kind = memory_event_kind::deallocate, .address = 0x10e00, .size = 0x201});
  EXPECT_EQ(told(), "");
  tool->on_event({.kind = memory_event_kind::allocate, .address = 0x10e00, .size = 0x200});
  EXPECT_EQ(told(), region_line(1, 0x10e00, 0x200) + "name (nil) by 1, 1: 0x10e00 \"512 B\"\n")
      << "to the end of it";
  tool->on_event({.kind = memory_event_kind::deallocate, .address = 0x10e00, .size = 0x200});
  EXPECT_EQ(told(), "region (nil) ends, by 1: 0x10e00\n");
  tool->on_event({.kind = memory_event_kind::deallocate, .address = 0x10200, .size = 1000});
  EXPECT_EQ(told(), "region (nil) ends, by 1: 0x10200\n");
  tool->on_event({.kind = memory_event_kind::record_stream, .address = 0x10200});
  EXPECT_EQ(told(), "");
  tool->on_event({.kind = memory_event_kind::release, .address = 0x11000, .size = 0x1000});
  EXPECT_EQ(told(), "") << "behind it";
  tool->on_event({.kind = memory_event_kind::release, .address = 0x10800, .size = 0x1000});
  EXPECT_EQ(told(), "heap (nil) ends: 1\n") << "with a part of it";
  tool->on_event({.kind = memory_event_kind::release, .address = 0x10000, .size = 0x1000});
  EXPECT_EQ(told(), "");
}

TEST(tool_regions, names_are_short_and_printable) {
  const auto tool = observe::tool_regions::create();
  tool->on_event({.kind = memory_event_kind::reserve, .address = 0x10000, .size = 0x1000});
  static_cast<void>(told());
  const auto longer =
      tag::named("tool test: a\tname\x7f of sixty characters, which is too many of it");
  tool->on_event({.kind = memory_event_kind::allocate,
                  .tag = longer.value().number(),
                  .address = 0x10000,
                  .size = 1000});
  const std::string name = "tool test: a?name? of sixty characters, w, 1000 B";
  EXPECT_EQ(name.size(), 49u);
  EXPECT_EQ(told(),
            region_line(2, 0x10000, 1000) + "name (nil) by 1, 1: 0x10000 \"" + name + "\"\n");
  tool->on_event({.kind = memory_event_kind::release, .address = 0x10000, .size = 0x1000});
  EXPECT_EQ(told(), "heap (nil) ends: 2\n");
}

TEST(tool_regions, a_tool_that_refuses_a_heap_is_told_no_more) {
  const auto tool = observe::tool_regions::create();
  static_cast<void>(told());
  tool->on_event({.kind = memory_event_kind::reserve, .address = 0x10000, .size = 12345});
  EXPECT_EQ(told(), heap_line(0x10000, 12345));
  tool->on_event({.kind = memory_event_kind::allocate, .address = 0x10000, .size = 1000});
  tool->on_event({.kind = memory_event_kind::deallocate, .address = 0x10000, .size = 1000});
  tool->on_event({.kind = memory_event_kind::reserve, .address = 0x20000, .size = 0x1000});
  tool->on_event({.kind = memory_event_kind::allocate, .address = 0x20000, .size = 1000});
  tool->on_event({.kind = memory_event_kind::release, .address = 0x10000, .size = 12345});
  EXPECT_EQ(told(), "");
}

TEST(tool_regions, follow_the_classic_policy_whose_memory_is_not_mapped) {
  const auto machine = sim::machine::create().value();
  const auto simulated = runtime::open_simulated(machine).value();
  const auto gpu = simulated->device(device_id{0}).value();
  const auto stream = stream::create(gpu).value();
  static_cast<void>(told());
  const auto memory = caching_allocator::create(gpu, {.policy = placement_policy::classic}).value();
  void* const p = memory.allocate(1000_B, stream);
  const auto address = reinterpret_cast<std::uint64_t>(p);
  std::string lines = told();
  EXPECT_EQ(lines.substr(0, lines.find('\n') + 1), heap_line(address, 2 << 20));
  EXPECT_NE(lines.find(": " + at(address) + ", 1000\n"), lines.npos) << lines;
  memory.deallocate(p, stream);
  EXPECT_EQ(told(), "region (nil) ends, by 1: " + at(address) + "\n") << "cached: not a block's";
  EXPECT_EQ(memory.allocate(2000_B, stream), p);
  lines = told();
  EXPECT_NE(lines.find(": " + at(address) + ", 2000\n"), lines.npos) << lines;
  memory.deallocate(p, stream);
}

// compute-sanitizer drops a heap when its memory is freed, and counts being told so later as an
// error.
TEST(tool_regions, a_heap_ends_before_the_driver_takes_its_memory) {
  const auto machine = sim::machine::create().value();
  const auto simulated = runtime::open_simulated(machine).value();
  const auto gpu = simulated->device(device_id{0}).value();
  const auto stream = stream::create(gpu).value();
  const auto memory = caching_allocator::create(gpu, {.policy = placement_policy::classic}).value();
  void* const p = memory.allocate(1000_B, stream);
  memory.deallocate(p, stream);
  static_cast<void>(told());
  machine->fail(driver::call::mem_free, 1, driver::CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_FALSE(memory.trim());
  std::string lines = told();
  EXPECT_EQ(lines.substr(0, 16), "heap (nil) ends:");
  EXPECT_EQ(lines.substr(lines.find('\n') + 1),
            heap_line(reinterpret_cast<std::uint64_t>(p), 2 << 20))
      << "the memory stayed, and the tool knows it again";
  EXPECT_EQ(memory.trim().value(), 2_MiB);
  lines = told();
  EXPECT_EQ(lines.substr(0, 16), "heap (nil) ends:");
  EXPECT_EQ(lines.find('\n'), lines.size() - 1) << "told once: " << lines;
}

TEST(tool_regions, follow_no_allocator_that_maps_unless_under_heap_debug) {
  const auto machine = sim::machine::create().value();
  const auto simulated = runtime::open_simulated(machine).value();
  const auto gpu = simulated->device(device_id{0}).value();
  const auto stream = stream::create(gpu).value();
  static_cast<void>(told());
  {
    const auto plain = caching_allocator::create(gpu).value();
    plain.deallocate(plain.allocate(1000_B, stream), stream);
  }
  EXPECT_EQ(told(), "");
  const auto memory = caching_allocator::create(gpu, {.debug = debug_checks::guard_pages}).value();
  void* const p = memory.allocate(1000_B, stream);
  const auto address = reinterpret_cast<std::uint64_t>(p);
  std::string lines = told();
  EXPECT_EQ(lines.substr(0, lines.find('\n') + 1), heap_line(address + 1024 - (2 << 20), 2 << 20));
  EXPECT_NE(lines.find(": " + at(address) + ", 1000\n"), lines.npos) << lines;
  EXPECT_NE(lines.find("\"1000 B\""), lines.npos) << lines;
  memory.deallocate(p, stream);
  lines = told();
  EXPECT_EQ(lines.substr(0, lines.find('\n')), "region (nil) ends, by 1: " + at(address));
  EXPECT_NE(lines.find("heap (nil) ends: "), lines.npos) << lines;
}

// Each in a process of its own: a tool is asked for once in the life of a process.
struct tool_attachment : ::testing::Test {
  tool_attachment() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  [[noreturn]] static void ask_for_tool() {
    ::_exit(observe::tool_regions::create() != nullptr ? with_tool : without_tool);
  }
  /// Null: no path.
  [[noreturn]] static void ask_at(const char* path) {
    if (path != nullptr) {
      ::setenv("NVTX_INJECTION64_PATH", path, 1);
    } else {
      ::unsetenv("NVTX_INJECTION64_PATH");
    }
    ask_for_tool();
  }
  [[noreturn]] static void ask_without(const char* slot) {
    ::setenv("NVTX_RECORDER_LACKS", slot, 1);
    ask_for_tool();
  }

  static constexpr int with_tool = 10;
  static constexpr int without_tool = 11;
};

TEST_F(tool_attachment, is_to_a_library_that_is_named) {
  const char* const recorder = std::getenv("NVTX_INJECTION64_PATH");
  ASSERT_NE(recorder, nullptr) << "ctest sets it";
  // What it exports is in everybody's reach, and yet nobody asked for it to be attached.
  ASSERT_NE(::dlopen(recorder, RTLD_LAZY | RTLD_GLOBAL), nullptr);
  EXPECT_EXIT(ask_at(recorder), ::testing::ExitedWithCode(with_tool), "");
  for (const char* const path : {static_cast<const char*>(nullptr), "", "/no/such/tool.so"})
    EXPECT_EXIT(ask_at(path), ::testing::ExitedWithCode(without_tool), "");
}

TEST_F(tool_attachment, needs_what_begins_heaps_and_begins_and_ends_regions) {
  for (const char* const slot : {"0", "3", "5"})
    EXPECT_EXIT(ask_without(slot), ::testing::ExitedWithCode(without_tool), "") << slot;
  for (const char* const slot : {"1", "6"})
    EXPECT_EXIT(ask_without(slot), ::testing::ExitedWithCode(with_tool), "") << slot;
}

}  // namespace
}  // namespace weir
