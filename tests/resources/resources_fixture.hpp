// SPDX-License-Identifier: Apache-2.0
// A simulated GPU with a stream, a resource that checks its users, and the errors reported
// meanwhile.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/few_addresses.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/resource/resource.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

using namespace weir::literals;

/// The error's code, or nothing where there was none.
template <class Result>
[[nodiscard]] std::optional<errc> code_of(const Result& outcome) {
  if (outcome) return std::nullopt;
  return outcome.code();
}

/// A resource without memory: it hands out addresses, refuses requests on demand, and checks that
/// each free names an allocation and its size.
class ledger_resource {
 public:
  ledger_resource(weir::device home, memory_kind kind = memory_kind::device)
      : state_{std::make_shared<state>(home, kind)} {}

  result<void*> try_allocate(bytes size, const stream_ref&, bytes alignment) {
    const std::lock_guard lock{state_->mutex};
    ++state_->requests;
    if (!state_->refusals.empty()) {
      const errc code = state_->refusals.front();
      state_->refusals.pop_front();
      return error{{.code = code, .requested = size, .detail = "the ledger says so"}};
    }
    if (alignment > default_alignment) return errc::bad_alignment;
    if (size == bytes{}) return nullptr;
    // Odd multiples of 256, so that nothing is aligned to more by accident.
    state_->next = (state_->next + size.count() + 511) / 512 * 512;
    auto* const pointer = reinterpret_cast<void*>(state_->next + 256);
    state_->live[pointer] = size;
    state_->used += size;
    state_->peak = std::max(state_->peak, state_->used);
    return pointer;
  }
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref&) {
    if (pointer == nullptr) return {};
    const std::lock_guard lock{state_->mutex};
    if (!state_->free_refusals.empty()) {
      const errc code = state_->free_refusals.front();
      state_->free_refusals.pop_front();
      return code;
    }
    const auto entry = state_->live.find(pointer);
    EXPECT_TRUE(entry != state_->live.end()) << "this never came from here";
    if (entry == state_->live.end()) return errc::foreign_pointer;
    EXPECT_EQ(entry->second, size) << "this is not the size that went out";
    state_->used -= entry->second;
    state_->live.erase(entry);
    return {};
  }
  [[nodiscard]] weir::device device() const { return state_->home; }
  [[nodiscard]] memory_kind kind() const noexcept { return state_->kind; }
  friend bool operator==(const ledger_resource&, const ledger_resource&) = default;

  /// The next requests, or frees, are answered so.
  void refuse(std::initializer_list<errc> codes) { state_->refusals.assign(codes); }
  void refuse_free(std::initializer_list<errc> codes) { state_->free_refusals.assign(codes); }
  [[nodiscard]] std::size_t live() const { return state_->live.size(); }
  [[nodiscard]] bytes used() const { return state_->used; }
  [[nodiscard]] bytes peak() const { return state_->peak; }
  [[nodiscard]] int requests() const { return state_->requests; }
  /// The address that was handed out last.
  [[nodiscard]] std::uint64_t last() const { return state_->next + 256; }

 private:
  struct state {
    state(weir::device of, memory_kind memory) : home{of}, kind{memory} {}
    weir::device home;
    memory_kind kind;
    std::mutex mutex;
    std::uint64_t next = std::uint64_t{1} << 40;
    std::map<void*, bytes> live;
    bytes used{}, peak{};
    int requests = 0;
    std::deque<errc> refusals, free_refusals;
  };
  std::shared_ptr<state> state_;
};

static_assert(stream_resource<ledger_resource>);

/// A test on a simulated machine with two devices. At its end nothing must have been reported that
/// the test did not take, and the machine must have seen no hazard.
class resources_test : public ::testing::Test {
 public:
  [[nodiscard]] std::vector<error> take_reports() {
    const std::lock_guard lock{mutex_};
    return std::exchange(reported_, {});
  }

  std::shared_ptr<sim::machine> machine =
      sim::machine::create({.devices = {device_with_room(), device_with_room()}}).value();
  std::shared_ptr<weir::runtime> runtime = weir::runtime::open_simulated(machine).value();
  weir::device gpu = runtime->device(device_id{0}).value();
  weir::device other_gpu = runtime->device(device_id{1}).value();
  weir::stream stream = weir::stream::create(gpu).value();
  ledger_resource ledger{gpu};

 protected:
  void SetUp() override {
    set_error_handler(
        [](const error& failure, void* self) noexcept {
          auto& fixture = *static_cast<resources_test*>(self);
          const std::lock_guard lock{fixture.mutex_};
          fixture.reported_.push_back(failure);
        },
        this);
  }
  void TearDown() override {
    for (const error& each : take_reports()) ADD_FAILURE() << "reported: " << each.message();
    set_error_handler(nullptr);
    for (const auto& each : machine->hazards()) ADD_FAILURE() << each.message();
  }

 private:
  std::mutex mutex_;
  std::vector<error> reported_;
};

}  // namespace weir::testing_support
