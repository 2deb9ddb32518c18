// SPDX-License-Identifier: Apache-2.0
// The fixture of the allocator's contract: one allocator on the machine under test, streams that
// write and verify patterns, and a judgement at the end.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "allocator_contract/effort.hpp"
#include "support/contract_test.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"

namespace weir::testing_support {

using namespace weir::literals;

/// Collects what reaches the process-wide error handler while it lives.
class error_log {
 public:
  error_log();
  ~error_log();
  error_log(const error_log&) = delete;
  error_log& operator=(const error_log&) = delete;
  /// What came so far; reading empties it.
  [[nodiscard]] std::vector<error> take();

 private:
  std::mutex mutex_;
  std::vector<error> errors_;
};

/// A stream and a counter, in device memory of its own, of the words that were not as expected.
/// Work is queued in the stream's order and waited for by nobody. Any thread whose current context
/// is the machine's may use it.
class lane {
 public:
  lane(driver_fixture& bench, weir::device where);

  [[nodiscard]] const weir::stream& stream() const { return stream_; }
  [[nodiscard]] CUstream handle() const { return stream_.handle(); }
  operator stream_ref() const { return stream_.ref(); }

  void fill(void* memory, bytes size, word value) const;
  void check(void* memory, bytes size, word value) const;
  void wait_for(const lane& other) const;
  /// Once the stream is at rest.
  [[nodiscard]] word mismatches() const;
  void close() { EXPECT_TRUE(stream_.close()); }

 private:
  driver_fixture& bench_;
  weir::stream stream_;
  CUdeviceptr counter_;
  const bytes whole_up_to_ = machine_effort().whole_up_to;
};

/// A block and the word that all of it is filled with.
struct filled_block {
  void* memory = nullptr;
  bytes size{};
  word value = 0;
};

/// A test for one policy and one seed of the machine.
///
/// At its end every lane must have found what it expected, the allocator must close without a word
/// to the error handler, and the machine must have found no fault with the program.
class allocator_test : public ::testing::TestWithParam<std::tuple<placement_policy, std::uint64_t>>,
                       public driver_fixture {
 public:
  [[nodiscard]] weir::device where() const { return *where_; }
  [[nodiscard]] caching_allocator& memory() { return *memory_; }
  [[nodiscard]] placement_policy policy() const { return std::get<0>(GetParam()); }
  /// Whether the policy moves memory rather than fail: then no request may fail for want of
  /// contiguous room.
  [[nodiscard]] bool moves() const;
  [[nodiscard]] bool is_classic() const;

  [[nodiscard]] lane& new_lane();
  /// A word that no other call returns for a long time. Any thread.
  [[nodiscard]] word new_value() { return 0x9e3779b9U * next_value_.fetch_add(1); }
  /// A new block, filled on the lane.
  [[nodiscard]] filled_block make(bytes size, const lane& on);
  /// Checks and frees on the lane.
  void finish(const filled_block& block, const lane& on);

  /// What the driver says is free on the device.
  [[nodiscard]] bytes device_free() const { return where().memory_info().value().free; }
  /// Expects that the allocator's numbers agree with each other. Any thread, any time.
  void expect_books();
  /// The same of a snapshot, which must be alone: nothing else may use the allocator.
  void expect_snapshot();

  /// Replaces the allocator by one with these options, but this test's policy.
  void reopen(allocator_options settings = {});

  error_log heard;

 protected:
  void SetUp() override;
  void TearDown() override;

 private:
  std::shared_ptr<runtime> runtime_;
  std::optional<weir::device> where_;
  std::optional<caching_allocator> memory_;
  std::vector<std::unique_ptr<lane>> lanes_;
  std::atomic<word> next_value_{1};
};

/// What WEIR_CONTRACT_DEBUG names: the suite's allocators have it as their heap_debug.
[[nodiscard]] debug_checks checks_under_test();

[[nodiscard]] std::string policy_name(placement_policy policy);

/// The error's code, or nothing where there was none.
template <class Result>
[[nodiscard]] std::optional<errc> code_of(const Result& outcome) {
  if (outcome) return std::nullopt;
  return outcome.code();
}

inline constexpr placement_policy all_policies[] = {
    placement_policy::balanced, placement_policy::throughput,
    placement_policy::compact,  placement_policy::never_move,
    placement_policy::classic,  placement_policy::classic_expandable};

}  // namespace weir::testing_support

/// Instantiates the tests of fixture `name` for every policy on the machine under test.
#define WEIR_ALLOCATOR_CONTRACT(name)                                                         \
  INSTANTIATE_TEST_SUITE_P(                                                                   \
      contract, name,                                                                         \
      ::testing::Combine(::testing::ValuesIn(::weir::testing_support::all_policies),          \
                         ::testing::ValuesIn(::weir::testing_support::machine_seeds())),      \
      [](const auto& parameter) {                                                             \
        return ::weir::testing_support::policy_name(std::get<0>(parameter.param)) + "_seed" + \
               std::to_string(std::get<1>(parameter.param));                                  \
      })
