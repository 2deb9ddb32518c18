// SPDX-License-Identifier: Apache-2.0
// A machine, a runtime over it, and links: to another process, to oneself, to a liar.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sharing/packet.hpp"
#include "support/child_process.hpp"
#include "support/contract_test.hpp"
#include "support/reports.hpp"
#include "support/this_process.hpp"
#include "weir/share/session.hpp"

namespace weir::testing_support {

using namespace weir::literals;
using namespace std::chrono_literals;

/// "code: detail" of the error, "" where there was none.
template <class Result>
[[nodiscard]] std::string reason_of(const Result& outcome) {
  return outcome ? "" : to_string(outcome.code()) + ": " + outcome.error().detail();
}
/// The code as a number, 0 where there was none: for children.
template <class Result>
[[nodiscard]] int number_of(const Result& outcome) {
  return outcome ? 0 : static_cast<int>(outcome.code());
}
[[nodiscard]] constexpr int number_of(errc code) { return static_cast<int>(code); }

[[nodiscard]] inline std::span<const std::byte> as_note(std::string_view text) {
  return std::as_bytes(std::span{text});
}
[[nodiscard]] std::string text_of(const share_offer& note);

/// The runtime over a machine under test; a child's, too.
[[nodiscard]] std::shared_ptr<runtime> runtime_over(const machine_under_test& machine);
/// The child's end of the link that its parent opened with sharing_test::link_to().
[[nodiscard]] result<share_link> link_from_parent(const machine_under_test& machine,
                                                  process_link& parent);

/// A link whose ends are both in this process.
[[nodiscard]] std::pair<share_link, share_link> open_link_to_itself(
    const std::shared_ptr<runtime>& machine, share_link_options settings = {});

/// A ticket for one handle of 2 MiB, as `exporter` would write it.
[[nodiscard]] share_ticket ticket_of(std::uint64_t exporter, device home, bytes size);

/// A test for one seed of the machine. At its end nothing may have been reported that the test did
/// not take, and the machine must have found no fault.
class sharing_test : public contract_test {
 protected:
  void SetUp() override;
  void TearDown() override;

  [[nodiscard]] weir::device gpu() const { return machine_runtime->device(device_id{0}).value(); }
  [[nodiscard]] bytes unit() const { return gpu().capabilities().granularity; }
  /// Opens a link to a child, which calls link_from_parent().
  [[nodiscard]] share_link link_to(child_process& child);
  /// Both ends in this process.
  [[nodiscard]] std::pair<share_link, share_link> link_to_itself(share_link_options settings = {}) {
    return open_link_to_itself(machine_runtime, settings);
  }
  /// What the error handler heard since the last time.
  [[nodiscard]] std::vector<error> take_reports() { return reported_.take(); }

  std::shared_ptr<runtime> machine_runtime;

 private:
  reports reported_;
};

/// The other end of a link, in the hands of somebody who can say anything.
struct liar {
  share_channel end;
  std::uint64_t number = 0x1234;  // the process it claims to be

  void say(std::span<const std::byte> content, std::span<const int> descriptors = {}) const {
    ASSERT_EQ(code_of(end.send(content, descriptors, 1s)), std::nullopt);
  }
  void offer(const share_ticket& ticket, std::span<const int> descriptors = {}) const {
    say(sharing::encode_offer(ticket), descriptors);
  }
};

}  // namespace weir::testing_support
