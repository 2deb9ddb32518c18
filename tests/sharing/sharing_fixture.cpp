// SPDX-License-Identifier: Apache-2.0
// Opening machines and links, and judging what was reported.
#include "sharing/sharing_fixture.hpp"

#include <thread>

namespace weir::testing_support {

std::string text_of(const share_offer& note) {
  const auto raw = note.note();
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

std::shared_ptr<runtime> runtime_over(const machine_under_test& machine) {
  return runtime::open_table(machine.driver(), "machine under test").value();
}

result<share_link> link_from_parent(const machine_under_test& machine, process_link& parent) {
  WEIR_TRY_VALUE(channel, share_channel::adopt(descriptor{parent.receive_descriptor()}));
  return share_link::open(runtime_over(machine), std::move(channel));
}

std::pair<share_link, share_link> open_link_to_itself(const std::shared_ptr<runtime>& machine,
                                                      share_link_options settings) {
  auto [one, two] = share_channel::pair().value();
  std::optional<share_link> second;
  std::thread other{
      [&, end = &two] { second = share_link::open(machine, std::move(*end), settings).value(); }};
  auto first = share_link::open(machine, std::move(one), settings).value();
  other.join();
  return {std::move(first), *std::move(second)};
}

share_ticket ticket_of(std::uint64_t exporter, device home, bytes size) {
  return {.device = home.uuid().value(),
          .exporter = exporter,
          .object = 1,
          .grant = 1,
          .size = size,
          .piece = home.capabilities().granularity,
          .pieces = 1};
}

void sharing_test::SetUp() {
  contract_test::SetUp();
  if (machine == nullptr) return;
  machine_runtime = runtime_over(*machine);
}

void sharing_test::TearDown() {
  machine_runtime.reset();
  contract_test::TearDown();
  for (const error& each : take_reports()) ADD_FAILURE() << each.message();
}

share_link sharing_test::link_to(child_process& child) {
  auto [ours, theirs] = share_channel::pair().value();
  EXPECT_TRUE(child.link().send_descriptor(theirs.get()));
  theirs.close();
  return share_link::open(machine_runtime, std::move(ours), {.limit = 20s}).value();
}

}  // namespace weir::testing_support
