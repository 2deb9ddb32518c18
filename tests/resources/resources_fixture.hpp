// A simulated GPU with a stream, a resource that keeps a ledger, and what was reported meanwhile.
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

/// A resource without memory: it hands out addresses, refuses when told to, and knows whether what
/// comes back is what went out.
class ledger_resource {
 public:
  ledger_resource(weir::device where, memory_kind kind = memory_kind::device)
      : inside_{std::make_shared<books>(where, kind)} {}

  result<void*> try_allocate(bytes size, const stream_ref&, bytes alignment) {
    const std::lock_guard lock{inside_->mutex};
    ++inside_->asked;
    if (!inside_->refusals.empty()) {
      const errc code = inside_->refusals.front();
      inside_->refusals.pop_front();
      return error{.code = code, .requested = size, .detail = "the ledger says so"};
    }
    if (alignment > bytes{256}) return errc::bad_alignment;
    if (size == bytes{}) return nullptr;
    // Odd multiples of 256, so that nothing is aligned to more by accident.
    inside_->next = (inside_->next + size.count() + 511) / 512 * 512;
    auto* const pointer = reinterpret_cast<void*>(inside_->next + 256);
    inside_->live[pointer] = size;
    inside_->used += size;
    inside_->most = std::max(inside_->most, inside_->used);
    return pointer;
  }
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref&) {
    if (pointer == nullptr) return {};
    const std::lock_guard lock{inside_->mutex};
    if (!inside_->free_refusals.empty()) {
      const errc code = inside_->free_refusals.front();
      inside_->free_refusals.pop_front();
      return code;
    }
    const auto found = inside_->live.find(pointer);
    EXPECT_TRUE(found != inside_->live.end()) << "this never came from here";
    if (found == inside_->live.end()) return errc::foreign_pointer;
    EXPECT_EQ(found->second, size) << "this is not the size that went out";
    inside_->used -= found->second;
    inside_->live.erase(found);
    return {};
  }
  [[nodiscard]] weir::device device() const { return inside_->where; }
  [[nodiscard]] memory_kind kind() const noexcept { return inside_->kind; }
  friend bool operator==(const ledger_resource&, const ledger_resource&) = default;

  /// The next requests, or frees, are answered so.
  void refuse(std::initializer_list<errc> codes) { inside_->refusals.assign(codes); }
  void refuse_free(std::initializer_list<errc> codes) { inside_->free_refusals.assign(codes); }
  [[nodiscard]] std::size_t live() const { return inside_->live.size(); }
  [[nodiscard]] bytes used() const { return inside_->used; }
  [[nodiscard]] bytes most() const { return inside_->most; }
  [[nodiscard]] int asked() const { return inside_->asked; }

 private:
  struct books {
    books(weir::device at, memory_kind of) : where{at}, kind{of} {}
    weir::device where;
    memory_kind kind;
    std::mutex mutex;
    std::uint64_t next = std::uint64_t{1} << 40;
    std::map<void*, bytes> live;
    bytes used{}, most{};
    int asked = 0;
    std::deque<errc> refusals, free_refusals;
  };
  std::shared_ptr<books> inside_;
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
        [](const error& found, void* self) noexcept {
          auto& me = *static_cast<resources_test*>(self);
          const std::lock_guard lock{me.mutex_};
          me.reported_.push_back(found);
        },
        this);
  }
  void TearDown() override {
    for (const error& each : take_reports()) ADD_FAILURE() << "reported: " << each.message();
    set_error_handler(nullptr);
    for (const auto& each : machine->hazards()) ADD_FAILURE() << each.story();
  }

 private:
  std::mutex mutex_;
  std::vector<error> reported_;
};

}  // namespace weir::testing_support
