// SPDX-License-Identifier: Apache-2.0
// A runtime on the fake driver, what was reported meanwhile, and every call of the layer in a list.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/fake_driver.hpp"
#include "support/reports.hpp"
#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir::testing_support {

/// Collects what reaches the process-wide error handler while it lives.
class reported {
 public:
  reported() {
    set_error_handler(
        [](const error& found, void* self) noexcept {
          static_cast<reported*>(self)->errors.push_back(found);
        },
        this);
  }
  ~reported() { set_error_handler(nullptr); }
  reported(const reported&) = delete;
  reported& operator=(const reported&) = delete;

  std::vector<error> errors;
};

/// One of everything that can be owned, on device 0.
struct possessions {
  explicit possessions(device where)
      : stream{weir::stream::create(where).value()},
        event{weir::event::create(where).value()},
        early{weir::event::create(where, {.timing = true}).value()},
        late{weir::event::create(where, {.timing = true}).value()},
        shared{weir::event::create(where, {.interprocess = true}).value()},
        pool{where},
        range{address_range::reserve(where, bytes{8 * fake_driver::granularity}).value()},
        handle{physical_handle::create(where, bytes{fake_driver::granularity},
                                       {.posix_descriptor = true})
                   .value()},
        mapping{weir::mapping::create(range, bytes{}, handle).value()} {
    early.record(stream).value();
    late.record(stream).value();
    stream.synchronize().value();
    auto idle = pool.acquire().value();
    pool.release(std::move(idle)).value();
  }

  weir::stream stream;
  weir::event event;
  weir::event early;
  weir::event late;
  weir::event shared;
  event_pool pool;
  address_range range;
  physical_handle handle;
  weir::mapping mapping;  // goes before range
};

class device_test : public ::testing::Test {
 protected:
  device_test() : runtime_{runtime::open_table(fake.table, "fake").value()} {}

  [[nodiscard]] device device_at(int index) const {
    return runtime_->device(device_id{index}).value();
  }
  /// Makes device 0's context the only one of this thread, as after cudaSetDevice(0).
  void make_current() { fake.stack() = {fake_driver::context_of(0)}; }

  fake_driver fake;
  std::shared_ptr<runtime> runtime_;
};

/// Forks and looks, in the child; what it found: 0, or the number of the first thing that was
/// wrong.
[[nodiscard]] int in_child(const std::function<int()>& look);

/// A call of the layer that needs the driver.
struct operation {
  std::string name;
  std::function<result<void>(device, possessions&)> run;
};

/// Every one of them.
[[nodiscard]] const std::vector<operation>& operations();

}  // namespace weir::testing_support
