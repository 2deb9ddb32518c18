// SPDX-License-Identifier: Apache-2.0
// heap_debug: what is found of a program's memory bugs, and that nothing else changes for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "heap/heap_fixture.hpp"
#include "support/sanitizers.hpp"
#include "weir/observe/tag.hpp"

namespace weir { namespace {

using namespace literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using testing_support::code_of;
using testing_support::heap_test;
using testing_support::is_sanitized;

std::string at(const void* pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx",
                static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(pointer)));
  return text;
}

std::uint8_t* byte_of(void* block, std::ptrdiff_t offset) {
  return static_cast<std::uint8_t*>(block) + offset;  // device addresses are host addresses here
}

class debug_policy_test : public heap_test {
 protected:
  static constexpr debug_checks both[] = {debug_checks::red_zones, debug_checks::guard_pages};

  [[nodiscard]] caching_allocator checked(debug_checks checks,
                                          bytes quarantine = bytes{std::uint64_t{1} << 30}) const {
    return make({.debug = checks, .debug_quarantine = quarantine});
  }
  [[nodiscard]] error told() {
    const auto all = heard.take();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? error{} : all.front();
  }
  [[nodiscard]] sim::hazard hazard() {
    const auto all = machine->hazards();
    EXPECT_EQ(all.size(), 1u);
    machine->clear_hazards();
    return all.empty() ? sim::hazard{} : all.front();
  }
};

TEST_F(debug_policy_test, memory_is_as_ever_and_every_block_has_addresses_of_its_own) {
  for (const debug_checks checks : both) {
    auto memory = checked(checks);
    const auto stream = new_stream();
    std::vector<void*> seen;
    for (int i = 0; i < 20; ++i) {
      void* const p = memory.allocate(1000_B, stream);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 512, 0u);
      EXPECT_THAT(seen, Not(::testing::Contains(p))) << "addresses come back late";
      seen.push_back(p);
      write(stream, p, 1000_B);
      EXPECT_EQ(memory.size_of(p).value(), 1000_B);
      EXPECT_EQ(memory.block_at(byte_of(p, 999)).value().address,
                reinterpret_cast<std::uintptr_t>(p));
      EXPECT_EQ(check(memory), "");
      memory.deallocate(p, stream);
      EXPECT_EQ(check(memory), "");
    }
    EXPECT_EQ(memory.stats().allocations, 20u);
    EXPECT_EQ(memory.stats().hits, 0u);
    EXPECT_EQ(memory.stats().pending, 0_B);
    EXPECT_EQ(memory.stats().handles_created, checks == debug_checks::guard_pages ? 20u : 1u);
    ASSERT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
    ASSERT_TRUE(memory.close());
  }
}

TEST_F(debug_policy_test, what_it_costs_in_memory) {
  if (is_sanitized) GTEST_SKIP() << "figures are the same without a sanitizer";
  // Blocks of each size, and what a hundred of them reserve.
  struct row {
    bytes size;
    std::uint64_t red_zones;
    std::uint64_t guard_pages;
  };
  for (const row& each : {row{1_B, 1, 100}, row{4096_B, 1, 100}, row{64_KiB, 4, 100},
                          row{512_KiB, 34, 100}, row{2_MiB, 100, 100}}) {
    for (const debug_checks checks : both) {
      auto memory = checked(checks);
      const auto stream = new_stream();
      std::vector<void*> blocks;
      for (int i = 0; i < 100; ++i) blocks.push_back(memory.allocate(each.size, stream));
      EXPECT_EQ(memory.stats().reserved.current,
                2_MiB * (checks == debug_checks::red_zones ? each.red_zones : each.guard_pages))
          << to_string(each.size) << " " << to_string(checks);
      for (void* const p : blocks) memory.deallocate(p, stream);
      ASSERT_TRUE(memory.close());
    }
  }
}

TEST_F(debug_policy_test, what_a_pair_costs_in_driver_calls) {
  struct row {
    debug_checks checks;
    std::uint64_t allocation;
    std::uint64_t free;
  };
  for (const row& each :
       {row{debug_checks::red_zones, 10, 16}, row{debug_checks::guard_pages, 14, 16}}) {
    auto memory = checked(each.checks);
    const auto stream = new_stream();
    memory.deallocate(memory.allocate(1000_B, stream), stream);  // the store, an event
    const std::uint64_t created = machine->calls(driver::call::mem_create);
    const std::uint64_t unmapped = machine->calls(driver::call::mem_unmap);
    const std::uint64_t before = machine->calls();
    void* const p = memory.allocate(1000_B, stream);
    const std::uint64_t between = machine->calls();
    memory.deallocate(p, stream);
    EXPECT_EQ(between - before, each.allocation) << to_string(each.checks);
    EXPECT_EQ(machine->calls() - between, each.free) << to_string(each.checks);
    // The dear ones among them.
    const std::uint64_t dear = each.checks == debug_checks::guard_pages ? 1 : 0;
    EXPECT_EQ(machine->calls(driver::call::mem_create) - created, dear);
    EXPECT_EQ(machine->calls(driver::call::mem_unmap) - unmapped, dear);
  }
}

TEST_F(debug_policy_test, poison_shows_what_was_not_written) {
  for (const debug_checks checks : both) {
    auto memory = checked(checks);
    const auto stream = new_stream();
    void* const p = memory.allocate(1000_B, stream);
    EXPECT_EQ(*byte_of(p, 0), 0xff);
    EXPECT_EQ(*byte_of(p, 999), 0xff);
    EXPECT_EQ(*byte_of(p, 1000), 0xfd);
    EXPECT_EQ(*byte_of(p, -1), 0xfd);
    memory.deallocate(p, stream);
    if (checks == debug_checks::red_zones) {
      EXPECT_EQ(*byte_of(p, 0), 0xdd);
    }
  }
}

// --- Damage
// ---------------------------------------------------------------------------------------

TEST_F(debug_policy_test, an_overflow_is_the_frees_error_with_both_stacks) {
  for (const debug_checks checks : both) {
    auto memory = checked(checks);
    const auto stream = new_stream();
    const tag_scope as{tag::named("debug test: weights").value()};
    void* const p = memory.allocate(1000_B, stream);
    for (int i = 0; i < 5; ++i) *byte_of(p, 1000 + i) = 0x2a;
    const auto freed = memory.try_deallocate(p, stream);
    ASSERT_EQ(code_of(freed), errc::memory_damaged);
    const std::string on = std::to_string(stream.id().number());
    EXPECT_THAT(freed.error().detail(),
                StartsWith(at(p) +
                           ", 1000 B: 5 bytes after its end were written, at offsets 1000 to 1004: "
                           "fd there became 2a 2a 2a 2a 2a\n"
                           "  allocated on stream " +
                           on + ", 1000 B, tag \"debug test: weights\"\n    "));
    EXPECT_THAT(freed.error().detail(), HasSubstr("\n  freed on stream " + on + "\n    "));
    EXPECT_EQ(memory.stats().blocks.current, 0u) << "it is freed all the same";
    EXPECT_EQ(check(memory), "");
    ASSERT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
    ASSERT_TRUE(memory.close());
  }
}

TEST_F(debug_policy_test, an_underflow_is_told_by_the_handler_where_nothing_is_returned) {
  auto memory = checked(debug_checks::guard_pages);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  *byte_of(p, -1) = 0;
  memory.deallocate(p, stream);
  const error found = told();
  EXPECT_EQ(found.code(), errc::memory_damaged);
  EXPECT_THAT(
      found.message(),
      StartsWith(
          "memory_damaged: memory corruption: bytes outside a live allocation were overwritten: " +
          at(p) +
          ", 1000 B: 1 byte before its start was written, at offset -1: fd there "
          "became 00\n"));
}

TEST_F(debug_policy_test, both_ends_are_told) {
  auto memory = checked(debug_checks::red_zones);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  *byte_of(p, -8) = 1;
  *byte_of(p, -2) = 1;
  *byte_of(p, 1100) = 1;
  const auto freed = memory.try_deallocate(p, stream);
  ASSERT_EQ(code_of(freed), errc::memory_damaged);
  EXPECT_THAT(
      freed.error().detail(),
      HasSubstr("2 bytes before its start were written, between offsets -8 and -2: fd there "
                "became 01 fd fd fd fd fd 01\n"));
  EXPECT_THAT(told().detail(), HasSubstr("1 byte after its end was written, at offset 1100"));
}

TEST_F(debug_policy_test, of_what_was_written_eight_bytes_are_shown) {
  auto memory = checked(debug_checks::red_zones);
  const auto stream = new_stream();
  for (const std::uint8_t length : {std::uint8_t{8}, std::uint8_t{9}}) {
    void* const p = memory.allocate(1000_B, stream);
    for (std::uint8_t i = 0; i < length; ++i) *byte_of(p, 1000 + i) = i;
    EXPECT_THAT(
        memory.try_deallocate(p, stream).error().detail(),
        HasSubstr(std::to_string(length) +
                  " bytes after its end were written, at offsets 1000 to " +
                  std::to_string(999 + length) + ": fd there became 00 01 02 03 04 05 06 07" +
                  (length == 8 ? "\n" : " ...\n")));
  }
}

TEST_F(debug_policy_test, a_write_after_the_free_is_told_when_the_allocator_is_closed) {
  for (const bool by_close : {true, false}) {
    SCOPED_TRACE(by_close ? "close()" : "the last handle");
    void* p = nullptr;
    {
      auto memory = checked(debug_checks::red_zones);
      const auto stream = new_stream();
      p = memory.allocate(1000_B, stream);
      void* const beside = memory.allocate(1000_B, stream);
      memory.deallocate(p, stream);
      memory.deallocate(beside, stream);
      *byte_of(p, 40) = 7;
      EXPECT_TRUE(!by_close || memory.close());
    }
    const error found = told();
    EXPECT_EQ(found.code(), errc::memory_damaged);
    EXPECT_THAT(found.detail(),
                StartsWith(at(p) + ", 1000 B: 1 byte was written after its free, at "
                                   "offset 40"));
  }
}

TEST_F(debug_policy_test, a_write_after_the_free_is_told_when_the_memory_goes) {
  auto memory = checked(debug_checks::red_zones);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  memory.deallocate(p, stream);
  *byte_of(p, 16) = 7;
  EXPECT_THAT(heard.take(), IsEmpty());
  ASSERT_TRUE(memory.empty_cache());
  const error found = told();
  EXPECT_EQ(found.code(), errc::memory_damaged);
  EXPECT_THAT(found.detail(), StartsWith(at(p) + ", 1000 B: 1 byte was written after its free, at "
                                                 "offset 16: dd there became 07\n  allocated on"));
  EXPECT_THAT(found.detail(), HasSubstr("\n  freed on stream"));
}

TEST_F(debug_policy_test, a_leaked_block_is_checked_when_the_allocator_ends) {
  auto memory = checked(debug_checks::guard_pages);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  *byte_of(p, 1023) = 0;
  ASSERT_TRUE(memory.close());
  const auto all = heard.take();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].code(), errc::memory_damaged);
  EXPECT_EQ(all[1].code(), errc::still_live);
  EXPECT_THAT(all[1].detail(), HasSubstr("\n  allocated on stream"));
}

// --- Faults, as the simulated device has them
// ------------------------------------------------------

TEST_F(debug_policy_test, an_overflow_into_the_guard_faults_and_names_the_block) {
  auto memory = checked(debug_checks::guard_pages);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  write(stream, byte_of(p, 1028), 4_B);
  const sim::hazard found = hazard();
  EXPECT_EQ(found.kind, sim::hazard_kind::bad_access);
  EXPECT_THAT(found.message(), HasSubstr("\n  nearby: 29 bytes after " + at(p) + ", 1000 B"));
  EXPECT_EQ(found.remedy(),
            "stay within the block's size; the neighbouring addresses are unmapped");
  EXPECT_EQ(code_of(stream.synchronize()), errc::device_lost);
  EXPECT_THAT(memory.describe_address(byte_of(p, 1028)).value(),
              StartsWith(at(byte_of(p, 1028)) + " is 29 bytes after a live block: " + at(p) +
                         ", 1000 B\n  allocated on stream"));
  static_cast<void>(memory.close());  // of a device that is lost
  static_cast<void>(heard.take());
}

TEST_F(debug_policy_test, a_use_after_the_free_faults_and_names_the_block) {
  auto memory = checked(debug_checks::guard_pages);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  memory.deallocate(p, stream);
  write(stream, byte_of(p, 8), 4_B);
  const sim::hazard found = hazard();
  EXPECT_EQ(found.kind, sim::hazard_kind::bad_access);
  EXPECT_THAT(found.message(), HasSubstr("\n  block:  " + at(p) + ", 1000 B, allocated on stream"));
  EXPECT_EQ(code_of(stream.synchronize()), errc::device_lost);
  EXPECT_THAT(memory.describe_address(byte_of(p, 8)).value(),
              StartsWith(at(byte_of(p, 8)) + " is 8 bytes into a freed block: " + at(p) +
                         ", 1000 B\n  allocated on stream"));
  static_cast<void>(memory.close());
  static_cast<void>(heard.take());
}

TEST_F(debug_policy_test, a_use_that_nobody_declared_is_found_at_the_free) {
  auto memory = checked(debug_checks::guard_pages);
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory.allocate(1000_B, one);
  auto held = hold(two);
  write(two, p, 1000_B);
  memory.deallocate(p, one);  // does not wait for the other stream
  const sim::hazard found = hazard();
  EXPECT_EQ(found.kind, sim::hazard_kind::freed_in_use);
  EXPECT_THAT(found.message(), HasSubstr("kernel write"));
  EXPECT_THAT(found.remedy(), StartsWith("call record_stream() for stream "));
  held.release();
  EXPECT_EQ(code_of(two.synchronize()), errc::device_lost);
  static_cast<void>(memory.close());
  static_cast<void>(heard.take());
}

TEST_F(debug_policy_test, under_red_zones_too_such_a_use_is_to_be_declared) {
  auto memory = checked(debug_checks::red_zones);
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory.allocate(1000_B, one);
  auto held = hold(two);
  write(two, p, 1000_B);
  memory.deallocate(p, one);  // fills the block on a stream of the allocator's own
  const sim::hazard found = hazard();
  EXPECT_EQ(found.kind, sim::hazard_kind::race);
  EXPECT_THAT(found.message(), HasSubstr("kernel write"));
  EXPECT_EQ(found.second.label, "fill");
  EXPECT_THAT(found.remedy(),
              StartsWith("call record_stream() for stream " + std::to_string(two.id().number()) +
                         " before the block is freed"));
  held.release();
  ASSERT_TRUE(two.synchronize());
  static_cast<void>(memory.close());
  static_cast<void>(heard.take());
}

TEST_F(debug_policy_test, the_stream_of_the_allocation_is_not_declared_by_that) {
  auto memory = checked(debug_checks::guard_pages);
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory.allocate(1000_B, one);
  auto held = hold(one);
  write(one, p, 1000_B);
  memory.deallocate(p, two);
  EXPECT_EQ(hazard().kind, sim::hazard_kind::freed_in_use);
  held.release();
  EXPECT_EQ(code_of(one.synchronize()), errc::device_lost);
  static_cast<void>(memory.close());
  static_cast<void>(heard.take());
}

TEST_F(debug_policy_test, a_free_waits_for_what_was_declared) {
  for (const debug_checks checks : both) {
    auto memory = checked(checks);
    const auto one = new_stream();
    const auto two = new_stream();
    void* const p = memory.allocate(1000_B, one);
    write(one, p, 1000_B);
    ASSERT_TRUE(memory.record_stream(p, two));
    auto written = event::create(gpu()).value();
    ASSERT_TRUE(written.record(one));
    ASSERT_TRUE(two.wait(written));
    write(two, p, 1000_B);
    memory.deallocate(p, one);
    EXPECT_TRUE(one.is_complete().value());
    EXPECT_TRUE(two.is_complete().value());
    EXPECT_EQ(memory.stats().pending, 0_B);
    EXPECT_EQ(check(memory), "");
  }
}

TEST_F(debug_policy_test, others_are_served_while_a_free_waits) {
  auto memory = checked(debug_checks::guard_pages);
  const auto one = new_stream();
  const auto two = new_stream();
  void* const p = memory.allocate(1000_B, one);
  auto held = hold(one);
  write(one, p, 1000_B);
  std::thread freeing{[&] { memory.deallocate(p, one); }};
  while (memory.stats().pending == 0_B) std::this_thread::yield();
  void* const q = memory.allocate(1000_B, two);
  memory.deallocate(q, two);
  EXPECT_EQ(memory.stats().pending, 1024_B);
  EXPECT_EQ(code_of(memory.try_deallocate(p, one)), errc::double_free);
  held.release();
  freeing.join();
  EXPECT_EQ(memory.stats().pending, 0_B);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

// --- Pointers ------------------------------------------------------------------------------------

TEST_F(debug_policy_test, a_double_free_is_told_with_the_life_of_the_block) {
  for (const debug_checks checks : both) {
    auto memory = checked(checks);
    const auto stream = new_stream();
    void* const p = memory.allocate(1000_B, stream);
    memory.deallocate(p, stream);
    auto twice = memory.try_deallocate(p, stream);
    ASSERT_EQ(code_of(twice), errc::double_free);
    EXPECT_THAT(twice.error().detail(), StartsWith(at(p) + ", 1000 B\n  allocated on stream"));
    EXPECT_THAT(twice.error().detail(), HasSubstr("\n  freed on stream"));
    twice = memory.try_deallocate(byte_of(p, 512), stream);
    ASSERT_EQ(code_of(twice), errc::double_free);
    EXPECT_THAT(twice.error().detail(), StartsWith(at(byte_of(p, 512)) + ", in the free memory "));
    const auto beside = memory.try_deallocate(byte_of(p, 1000), stream);
    ASSERT_EQ(code_of(beside), errc::foreign_pointer);
    EXPECT_THAT(beside.error().detail(),
                StartsWith(at(byte_of(p, 1000)) + " is 1 byte after a block: " + at(p)));
    EXPECT_EQ(memory.stats().frees, 1u);
  }
}

TEST_F(debug_policy_test, an_address_is_described_from_all_sides) {
  for (const debug_checks checks : both) {
    auto memory = checked(checks);
    const auto stream = new_stream();
    void* const p = memory.allocate(1000_B, stream);
    const auto says = [&](std::ptrdiff_t offset, const std::string& words) {
      EXPECT_THAT(memory.describe_address(byte_of(p, offset)).value(),
                  StartsWith(at(byte_of(p, offset)) + " is " + words + " block: " + at(p) +
                             ", 1000 B\n  allocated on stream "));
    };
    says(0, "0 bytes into a live");
    says(999, "999 bytes into a live");
    says(1004, "5 bytes after a live");
    says(-1, "1 byte before a live");
    memory.deallocate(p, stream);
    says(5, "5 bytes into a freed");
    says(-3, "3 bytes before a freed");
    EXPECT_EQ(code_of(memory.describe_address(&memory)), errc::foreign_pointer);
    ASSERT_TRUE(memory.close());
    EXPECT_EQ(code_of(memory.describe_address(p)), errc::closed);
  }
}

TEST_F(debug_policy_test, an_address_is_described_without_the_policy_too) {
  auto memory = make({.debug_stacks = true});
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  const std::string on = std::to_string(stream.id().number());
  EXPECT_THAT(memory.describe_address(byte_of(p, 3)).value(),
              StartsWith(at(byte_of(p, 3)) + " is 3 bytes into a live block: " + at(p) +
                         ", 1000 B, stream " + on + "\n  allocated on stream " + on));
  memory.deallocate(p, stream);
  EXPECT_THAT(memory.describe_address(byte_of(p, 3)).value(),
              StartsWith(at(byte_of(p, 3)) + " is 3 bytes into a freed block: " + at(p)));
  EXPECT_EQ(code_of(memory.describe_address(byte_of(p, 1 << 20))), errc::foreign_pointer);
  auto plain = make();
  EXPECT_EQ(code_of(plain.describe_address(p)), errc::foreign_pointer);
}

TEST_F(debug_policy_test, addresses_that_left_quarantine_are_nobodys) {
  auto memory = checked(debug_checks::guard_pages, 6_MiB);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  memory.deallocate(p, stream);
  EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), errc::double_free);
  void* const q = memory.allocate(1000_B, stream);
  memory.deallocate(q, stream);
  if (p != q) {
    EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), errc::foreign_pointer);
  }
}

// --- What the policy leaves alone
// ------------------------------------------------------------------

TEST_F(debug_policy_test, private_pools_are_checked_too_and_end) {
  for (const debug_checks checks : both) {
    auto memory = checked(checks);
    const auto stream = new_stream();
    auto pool = memory.create_pool("kept apart").value();
    void* const p = pool.allocate(1000_B, stream);
    *byte_of(p, 1000) = 0;
    pool = {};
    EXPECT_EQ(memory.snapshot().pools.size(), 2u);
    EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), errc::memory_damaged);
    EXPECT_EQ(memory.snapshot().pools.size(), 1u);
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
  }
}

TEST_F(debug_policy_test, what_is_freed_while_captures_may_run_is_inspected_later) {
  auto memory = checked(debug_checks::guard_pages);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  *byte_of(p, 1000) = 0;
  {
    const capture_guard notice = memory.guard_captures().value();
    ASSERT_TRUE(memory.try_deallocate(p, stream));
    EXPECT_EQ(memory.stats().pending, 1024_B);
    EXPECT_EQ(check(memory), "");
  }
  EXPECT_THAT(heard.take(), IsEmpty());
  memory.deallocate(memory.allocate(1000_B, stream), stream);
  EXPECT_EQ(told().code(), errc::memory_damaged);
  EXPECT_EQ(memory.stats().pending, 0_B);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

TEST_F(debug_policy_test, graphs_and_suspendable_pools_have_ordinary_memory) {
  auto memory = checked(debug_checks::guard_pages);
  const auto stream = new_stream();
  for (pool_options options : {pool_options{.for_graphs = true}, pool_options{.segments = true},
                               pool_options{.suspendable = suspendable_options{}}}) {
    auto pool = memory.create_pool("plain", options).value();
    void* const p = pool.allocate(1000_B, stream);
    *byte_of(p, 1000) = 0;
    EXPECT_TRUE(memory.try_deallocate(p, stream));
    EXPECT_EQ(pool.allocate(1000_B, stream), p) << "had again";
    EXPECT_TRUE(memory.try_deallocate(p, stream));
  }
}

TEST_F(debug_policy_test, checked_memory_is_shared_whole_handles_at_a_time) {
  for (const debug_checks checks : both) {
    auto memory = make({.debug = checks, .exportable = true});
    const bool apart = checks == debug_checks::guard_pages;
    const auto stream = new_stream();
    void* const p = memory.allocate(1000_B, stream);
    void* const q = memory.allocate(3_MiB, stream);
    const auto under = memory.handles_under(p).value();
    ASSERT_EQ(under.handles.size(), 1u);
    EXPECT_EQ(under.handles[0].size, 2_MiB);
    EXPECT_EQ(under.offset, apart ? 2_MiB - 1024_B : 512_B);
    void* const beside = memory.allocate(1000_B, stream);
    EXPECT_EQ(memory.handles_under(beside).value().handles[0].handle == under.handles[0].handle,
              !apart)
        << "small blocks lie side by side under red_zones, also where they can be shared";
    memory.deallocate(beside, stream);
    EXPECT_EQ(memory.handles_under(q).value().handles[0].size, 4_MiB);
    EXPECT_EQ(memory.handles_under(q).value().offset, 1_MiB);
    memory.deallocate(p, stream);
    memory.deallocate(q, stream);
    EXPECT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
  }
}

TEST_F(debug_policy_test, peers_reach_checked_memory) {
  auto memory = checked(debug_checks::red_zones);
  const auto stream = new_stream();
  const auto other = stream::create(gpu(1)).value();
  void* const before = memory.allocate(1000_B, stream);
  ASSERT_TRUE(memory.enable_peer(gpu(1)));
  void* const later = memory.allocate(3_MiB, stream);
  for (void* const each : {before, later}) {
    {
      const context_scope bound{gpu(1)};
      ASSERT_TRUE(
          machine->launch(other.handle(), "kernel of the peer",
                          {sim::writes(reinterpret_cast<driver::CUdeviceptr>(each), 1000)}));
    }
    ASSERT_TRUE(memory.record_stream(each, other));
    memory.deallocate(each, stream);
    EXPECT_TRUE(other.is_complete().value()) << "waited for by way of the joint stream";
  }
}

TEST_F(debug_policy_test, checked_memory_is_not_suspended) {
  auto memory = checked(debug_checks::guard_pages);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  const auto suspended = memory.suspend();
  ASSERT_EQ(code_of(suspended), errc::not_supported);
  EXPECT_EQ(suspended.error().detail(), "memory under heap_debug cannot be suspended");
  write(stream, p, 1000_B);
  memory.deallocate(p, stream);
}

TEST_F(debug_policy_test, out_of_memory_says_what_the_checks_take) {
  auto memory = make({.limit = 8_MiB, .debug = debug_checks::guard_pages});
  const auto stream = new_stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(memory.allocate(512_KiB, stream));
  const auto refused = memory.try_allocate(512_KiB, stream);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_THAT(
      refused.error().detail(),
      HasSubstr(
          "The allocator's limit of 8 MiB is in the way: 2 MiB are live, 8 MiB reserved. Raise it "
          "by 512 KiB, or free 512 KiB. heap_debug uses 6 MiB of the reserved memory, around "
          "blocks and for freed blocks; red_zones uses less than guard_pages."));
  EXPECT_THAT(memory.explain(512_KiB, stream).text(), HasSubstr("heap_debug uses 6 MiB"));
  for (void* const p : blocks) memory.deallocate(p, stream);
  EXPECT_TRUE(memory.try_allocate(8_MiB, stream));
  static_cast<void>(memory.close());
  EXPECT_EQ(told().code(), errc::still_live);
}

TEST_F(debug_policy_test, any_driver_call_may_fail) {
  const std::vector<bytes> alone{100_B, 1000_B};
  // In two granules, or in one where every byte that is filled and compared is checked.
  const std::vector<bytes> sharing =
      is_sanitized ? alone : std::vector<bytes>{100_B, 600_KiB, 600_KiB, 600_KiB};
  for (const debug_checks checks : both) {
    const bool shares = checks == debug_checks::red_zones;
    fail_each_call(
        {.debug = checks, .debug_quarantine = 8_MiB}, 4_MiB,
        [&](caching_allocator& memory, const stream& one, const stream& two) {
          std::vector<void*> blocks;
          for (const bytes size : shares ? sharing : alone) {
            const auto block = memory.try_allocate(size, one);
            if (block) blocks.push_back(*block);
          }
          bool is_first = true;
          for (void* const each : blocks) {
            if (std::exchange(is_first, false)) static_cast<void>(memory.record_stream(each, two));
            static_cast<void>(memory.try_deallocate(each, one));
          }
        },
        [](caching_allocator& memory, const stream& one, const stream&) {
          // What could not be freed because its stream could not be asked.
          const auto blocks = memory.snapshot().pools.front().blocks;
          for (const block_info& each : blocks) {
            if (each.state != block_state::live) continue;
            ASSERT_TRUE(memory.try_deallocate(reinterpret_cast<void*>(each.address), one));
          }
        });
  }
}

TEST_F(debug_policy_test, a_free_whose_check_the_driver_refuses_is_a_free) {
  for (const debug_checks checks : both) {
    for (std::uint64_t nth = 1; nth <= 40; ++nth) {
      auto memory = checked(checks);
      const auto stream = new_stream();
      void* const p = memory.allocate(1000_B, stream);
      write(stream, p, 1000_B);
      machine->fail_any(nth, driver::CUDA_ERROR_OUT_OF_MEMORY);
      const auto freed = memory.try_deallocate(p, stream);
      machine->clear_faults();
      EXPECT_EQ(memory.size_of(p).has_value(), !freed) << "call " << nth;
      if (!freed) {
        EXPECT_EQ(code_of(memory.try_deallocate(p, stream)), std::nullopt);
      }
      EXPECT_TRUE(memory.empty_cache());
      EXPECT_EQ(memory.stats().pending, 0_B) << "call " << nth;
      static_cast<void>(heard.take());
    }
  }
  EXPECT_THAT(machine->hazards(), IsEmpty());
}

TEST_F(debug_policy_test, damage_is_told_by_the_call_that_can_look) {
  auto memory = checked(debug_checks::red_zones);
  const auto stream = new_stream();
  void* const p = memory.allocate(1000_B, stream);
  *byte_of(p, 1000) = 0x2a;
  machine->fail(driver::call::memcpy_dtoh_async, 1, driver::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(memory.try_deallocate(p, stream));
  EXPECT_THAT(heard.take(), IsEmpty());
  EXPECT_TRUE(memory.empty_cache());
  EXPECT_EQ(told().code(), errc::memory_damaged);
}

TEST_F(debug_policy_test, a_stream_that_the_driver_keeps_is_told_at_the_end) {
  {
    auto memory = checked(debug_checks::red_zones);
    const auto stream = new_stream();
    memory.deallocate(memory.allocate(1000_B, stream), stream);
    machine->fail(driver::call::stream_destroy, 2, driver::CUDA_ERROR_UNKNOWN);  // after the test's
  }
  const error found = told();
  EXPECT_EQ(found.call(), "cuStreamDestroy");
  EXPECT_EQ(found.native(), static_cast<int>(driver::CUDA_ERROR_UNKNOWN));
}

TEST_F(debug_policy_test, many_threads_at_a_time) {
  for (const debug_checks checks : both) {
    auto memory = checked(checks, 64_MiB);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const auto stream = new_stream();
        for (int round = 0; round < 30; ++round) {
          const bytes size{static_cast<std::uint64_t>(500 * (i + 1) * (round % 7 + 1))};
          void* const p = memory.allocate(size, stream);
          write(stream, p, size);
          ASSERT_TRUE(memory.try_deallocate(p, stream));
        }
      });
    }
    for (std::thread& each : threads) each.join();
    EXPECT_EQ(check(memory), "");
    EXPECT_EQ(memory.stats().pending, 0_B);
    ASSERT_TRUE(memory.empty_cache());
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
  }
}

}  // namespace
}  // namespace weir
