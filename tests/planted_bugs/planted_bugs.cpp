// SPDX-License-Identifier: Apache-2.0
// Bugs that programs have with GPU memory, planted one at a time, and what finds each of them: the
// table of docs/debugging.md.
//
// A fault ends the context it happens in, so each bug has a process of its own. The program runs on
// a simulated machine and on a GPU; hazards are the simulator's alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "support/child_process.hpp"
#include "support/driver_fixture.hpp"
#include "support/reports.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;

constexpr debug_checks all_checks[] = {debug_checks::off, debug_checks::red_zones,
                                       debug_checks::guard_pages};

/// An allocator, two streams, and what a bug may leave to be looked at.
struct bench : driver_fixture {
  bench(machine_under_test& of, debug_checks checks)
      : runtime{runtime::open_table(of.driver(), "machine under test",
                                    std::shared_ptr<machine_under_test>{&of, [](auto*) {}})
                    .value()},
        where{runtime->device(device_id{of.device()}).value()},
        memory{caching_allocator::create(where, {.debug = checks}).value()},
        watch{of.watch_blocks()},
        one{stream::create(where).value()},
        two{stream::create(where).value()} {
    open(std::shared_ptr<machine_under_test>{&of, [](auto*) {}});
    if (watch != nullptr) watched = memory.add_observer(*watch).value();
    // So that the block before is the program's own where blocks lie side by side.
    neighbour = memory.allocate(4096_B, one);
  }
  [[nodiscard]] void* block() const { return memory.allocate(1000_B, one); }
  /// A kernel that writes four bytes.
  void write(void* block, std::ptrdiff_t offset, const stream& on) {
    static_cast<void>(fill(address(block, offset), 0x2a2a2a2a, 1, on.handle()));
  }
  /// A kernel that reads four bytes into `result`.
  void read(void* block, const stream& on) {
    static_cast<void>(copy(result, address(block, 0), 1, on.handle()));
  }
  static CUdeviceptr address(void* block, std::ptrdiff_t offset) {
    return reinterpret_cast<std::uintptr_t>(block) + static_cast<std::uint64_t>(offset);
  }

  std::shared_ptr<weir::runtime> runtime;
  weir::device where;
  caching_allocator memory;
  std::unique_ptr<event_sink> watch;
  observer_registration watched;
  stream one, two;
  void* neighbour = nullptr;
  CUdeviceptr result = 0;
};

void overflow_in_the_last_unit(bench& on) {
  void* const p = on.block();
  on.write(p, 1000, on.one);
  on.memory.deallocate(p, on.one);
}
void overflow_further(bench& on) {
  void* const p = on.block();
  on.write(p, 1024, on.one);
  on.memory.deallocate(p, on.one);
}
void underflow(bench& on) {
  void* const p = on.block();
  on.write(p, -4, on.one);
  on.memory.deallocate(p, on.one);
}
void read_before_write(bench& on) {
  void* const p = on.block();
  on.read(p, on.one);
  on.memory.deallocate(p, on.one);
}
void write_after_free(bench& on) {
  void* const p = on.block();
  on.memory.deallocate(p, on.one);
  on.write(p, 0, on.one);
}
void read_after_free(bench& on) {
  void* const p = on.block();
  on.write(p, 0, on.one);
  on.memory.deallocate(p, on.one);
  on.read(p, on.one);
}
/// The other stream comes to it late, when the block is somebody else's.
void use_without_record_stream(bench& on) {
  void* const p = on.block();
  const auto busy = on.occupy(on.two.handle());
  on.write(p, 0, on.two);
  on.memory.deallocate(p, on.one);
  void* const q = on.block();
  on.write(q, 0, on.one);
  static_cast<void>(on.one.synchronize());
  busy->finish();
  static_cast<void>(on.two.synchronize());
  on.memory.deallocate(q, on.one);
}
void double_free(bench& on) {
  void* const p = on.block();
  on.memory.deallocate(p, on.one);
  on.memory.deallocate(p, on.one);
}
void leak(bench& on) { static_cast<void>(on.block()); }

/// What finds a bug: "fault", the name of the error that is reported, "poison" where what is read
/// is neither the program's nor somebody else's data, or "-".
struct row {
  const char* bug;
  void (*plant)(bench&);
  std::array<const char*, 3> found;    // by all_checks
  std::array<const char*, 3> hazards;  // the simulator's first
};

constexpr row table[] = {
    {"overflow by 4 bytes",
     overflow_in_the_last_unit,
     {"-", "memory_damaged", "memory_damaged"},
     {"out_of_bounds", "out_of_bounds", "out_of_bounds"}},
    {"overflow, further",
     overflow_further,
     {"-", "memory_damaged", "fault"},
     {"out_of_bounds", "out_of_bounds", "bad_access"}},
    {"underflow by 4 bytes",
     underflow,
     {"-", "memory_damaged", "memory_damaged"},
     // Without checks the bytes are another live block's: nobody can tell whose the use was meant
     // for.
     {"-", "out_of_bounds", "out_of_bounds"}},
    {"read before write", read_before_write, {"-", "poison", "poison"}, {"-", "-", "-"}},
    {"write after free",
     write_after_free,
     {"-", "memory_damaged", "fault"},
     {"use_after_free", "use_after_free", "bad_access"}},
    {"read after free",
     read_after_free,
     {"-", "poison", "fault"},
     {"use_after_free", "use_after_free", "bad_access"}},
    {"use without record_stream",
     use_without_record_stream,
     {"-", "memory_damaged", "fault"},
     {"race", "race", "freed_in_use"}},
    {"double free", double_free, {"double_free", "double_free", "double_free"}, {"-", "-", "-"}},
    {"leak", leak, {"still_live", "still_live", "still_live"}, {"-", "-", "-"}},
};

std::string kind_of(std::string_view story) {
  constexpr std::array<std::array<std::string_view, 2>, 5> headlines{{
      {"race", "race"},
      {"use after free", "use_after_free"},
      {"memory removed", "freed_in_use"},
      {"access to unmapped", "bad_access"},
      {"access outside", "out_of_bounds"},
  }};
  for (const auto& [begin, kind] : headlines)
    if (story.starts_with(begin)) return std::string{kind};
  return std::string{story};
}

/// What a child tells.
struct verdict {
  char found[64] = "-";
  char hazard[64] = "-";
};

void put(char (&into)[64], const std::string& text) {
  std::snprintf(into, sizeof into, "%s", text.c_str());
}

verdict plant(machine_under_test& machine, const row& planted, debug_checks checks) {
  verdict told;
  reports heard;
  auto on = std::make_unique<bench>(machine, checks);
  on->result = on->new_memory(sizeof(word));
  planted.plant(*on);
  const bool faults = on->cu->ctx_synchronize() != CUDA_SUCCESS;
  word seen = 0;
  if (!faults) static_cast<void>(on->cu->memcpy_dtoh(&seen, on->result, sizeof seen));
  if (seen == 0xffffffff || seen == 0xdddddddd) put(told.found, "poison");
  on->memory.deallocate(on->neighbour, on->one);
  static_cast<void>(on->memory.empty_cache());
  if (const auto hazards = machine.take_hazards(); !hazards.empty())
    put(told.hazard, kind_of(hazards.front()));
  on->watched.close();
  static_cast<void>(on->memory.close());
  const auto errors = heard.take();
  if (!errors.empty()) put(told.found, std::string{name(errors.front().code())});
  if (faults) {
    put(told.found, "fault");
    static_cast<void>(on.release());  // nothing of it can be given back
  }
  return told;
}

WEIR_CHILD(planted_bug) {
  std::uint64_t chosen = 0;
  if (!parent.receive(chosen)) return 1;
  const row& planted = table[chosen / std::size(all_checks)];
  const verdict told = plant(machine, planted, all_checks[chosen % std::size(all_checks)]);
  std::_Exit(parent.send(told) ? 0 : 1);  // whatever became of its context
}

TEST(planted_bugs, each_is_found_by_what_the_table_says) {
  if (const auto machine = open_machine(1); !machine) {
    if (machine_may_be_absent()) GTEST_SKIP() << machine.error().message();
    FAIL() << machine.error().message();
  }
  bool on_simulator = false;
  std::printf("%-27s", "planted");
  for (const debug_checks checks : all_checks) std::printf("%-34s", to_string(checks).c_str());
  for (std::size_t i = 0; i < std::size(table); ++i) {
    std::printf("\n%-27s", table[i].bug);
    for (std::size_t column = 0; column < std::size(all_checks); ++column) {
      SCOPED_TRACE(std::string{table[i].bug} + ", " + to_string(all_checks[column]));
      child_process child{"planted_bug", 1};
      const std::uint64_t chosen = i * std::size(all_checks) + column;
      verdict told;
      ASSERT_TRUE(child.link().send(chosen) && child.link().receive(told));
      static_cast<void>(child.wait());
      std::printf("%-34s", (std::string{told.found} + ", " + told.hazard).c_str());
      EXPECT_STREQ(told.found, table[i].found[column]);
      on_simulator = on_simulator || std::strcmp(told.hazard, "-") != 0;
      if (on_simulator) {
        EXPECT_STREQ(told.hazard, table[i].hazards[column]);
      }
    }
  }
  std::printf("\n");
}

}  // namespace
}  // namespace weir::testing_support

int main(int argc, char** argv) {
  using namespace weir::testing_support;
  if (const int status = run_as_child(argc, argv); status >= 0) return status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
