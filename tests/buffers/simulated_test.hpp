// SPDX-License-Identifier: Apache-2.0
// The fixture of the buffers' tests on simulated machines alone: every operation happens only when
// somebody waits for it, so what a call waited for can be seen.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "buffers/buffers_test.hpp"
#include "support/few_addresses.hpp"
#include "weir/buffer/device_span.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {

/// A machine of its own, whose oracle knows the accesses of the host. Nothing may be left that
/// races or was reported, unless a test took it.
class simulated : public ::testing::Test {
 protected:
  void open(sim::machine_options settings) {
    settings.mode = sim::progress::manual;
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
  }
  void TearDown() override {
    runtime_.reset();
    for (const auto& hazard : machine->hazards()) ADD_FAILURE() << hazard.message();
    for (const auto& each : heard.take()) ADD_FAILURE() << each.message();
  }
  [[nodiscard]] weir::device gpu(int index = 0) const {
    return runtime_->device(device_id{index}).value();
  }
  [[nodiscard]] stream make_stream(int index = 0) const {
    return stream::create(gpu(index)).value();
  }
  /// A kernel that adds one to each element.
  void launch(device_span<word> on, const stream_ref& stream) {
    const context_scope bound{stream.device()};
    ASSERT_TRUE(machine->launch(stream.handle(), "increment",
                                {sim::writes(address_of(on.data()), on.size_bytes().count())},
                                [on] {
                                  for (std::size_t i = 0; i < on.size(); ++i) ++on.data()[i];
                                }));
  }
  /// The host adds one to each element, and says so.
  void touch(std::span<word> elements) {
    machine->host_write(elements.data(), elements.size_bytes());
    for (word& each : elements) ++each;
  }

  error_reports heard;
  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> runtime_;
};

}  // namespace weir::testing_support
