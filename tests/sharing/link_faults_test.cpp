// SPDX-License-Identifier: Apache-2.0
// Sharing on a machine whose calls fail: one error each, and nothing stays behind. Simulated only.
#include <cstring>
#include <optional>
#include <vector>

#include "sharing/session.hpp"
#include "sharing/sharing_fixture.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Property;

class link_faults : public ::testing::Test {
 protected:
  link_faults() {
    sim::machine_options options;
    options.devices.assign(2, sim::device_spec{.capacity = bytes{std::uint64_t{1} << 30},
                                               .context_overhead = bytes{64 << 20}});
    machine = sim::machine::create(options).value();
    machine_runtime = runtime::open_simulated(machine).value();
    bound.emplace(gpu());
    links.emplace(open_link_to_itself(machine_runtime));
  }
  void TearDown() override {
    EXPECT_THAT(reported.take(), IsEmpty());
    EXPECT_THAT(machine->hazards(), IsEmpty());
  }

  [[nodiscard]] weir::device gpu() const { return machine_runtime->device(device_id{0}).value(); }
  [[nodiscard]] bytes used() const { return machine->used(device_id{0}); }
  [[nodiscard]] share_link& here() { return links->first; }
  [[nodiscard]] share_link& there() { return links->second; }
  imported_memory share(const shared_memory& memory) {
    static_cast<void>(here().offer(memory).value());
    return there().receive(1s).value().open_memory().value();
  }
  /// The next wait for all work of a device fails: so many waits, the first and those after it.
  void fail_waits(std::uint64_t count = 1) {
    for (std::uint64_t i = 1; i <= count; ++i)
      machine->fail(call::mem_free, i, CUDA_ERROR_ILLEGAL_STATE);
  }

  reports reported;
  std::shared_ptr<sim::machine> machine;
  std::shared_ptr<runtime> machine_runtime;
  std::optional<context_scope> bound;
  std::optional<std::pair<share_link, share_link>> links;
};

TEST_F(link_faults, leave_nothing_behind_whichever_call_fails) {
  const auto share_something = [&]() -> result<imported_memory> {
    WEIR_TRY_VALUE(memory, shared_memory::create(gpu(), 4_MiB, {.unit = 2_MiB}));
    WEIR_TRY(here().offer(memory));
    WEIR_TRY_VALUE(offer, there().receive(1s));
    auto opened = offer.open_memory();
    machine->clear_faults();  // what follows releases
    return opened;
  };
  const std::uint64_t calls_before = machine->calls();
  EXPECT_TRUE(share_something().value().close());
  const std::uint64_t calls = machine->calls() - calls_before;
  EXPECT_EQ(here().outstanding(), 0u);
  bytes used_before = used();
  std::size_t open_before = open_descriptors();
  std::size_t failures = 0;
  for (std::uint64_t nth = 1; nth <= calls; ++nth) {
    SCOPED_TRACE(nth);
    machine->fail_any(nth, CUDA_ERROR_OUT_OF_MEMORY);
    const auto outcome = share_something();
    machine->clear_faults();
    if (outcome) {
      EXPECT_TRUE(outcome->close());
    } else {
      ++failures;
      EXPECT_EQ(outcome.code(), errc::out_of_memory);
    }
    EXPECT_EQ(here().outstanding(), 0u);
    if (const auto untold = reported.take(); !untold.empty()) {  // a release that did not happen
      EXPECT_TRUE(outcome);
      EXPECT_THAT(untold, ElementsAre(Property(&error::code, errc::out_of_memory)));
      used_before = used();
      open_before = open_descriptors();
    }
    EXPECT_EQ(used(), used_before);
    EXPECT_EQ(open_descriptors(), open_before);
  }
  EXPECT_GE(failures, 20u);
}

TEST_F(link_faults, of_an_unmapping_are_returned_and_end_the_import_all_the_same) {
  for (const call failing : {call::mem_unmap, call::mem_address_free}) {
    const auto memory = shared_memory::create(gpu(), 4_MiB, {.unit = 2_MiB}).value();
    const auto taken = share(memory);
    const std::uint64_t unmapped = machine->calls(call::mem_unmap);
    machine->fail(failing, 1, CUDA_ERROR_ILLEGAL_STATE);
    const auto closed = taken.close();
    ASSERT_FALSE(closed);
    EXPECT_EQ(closed.error().native(), CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(closed.error().call(), driver::info(failing).symbol);
    EXPECT_EQ(machine->calls(call::mem_unmap), unmapped + 2) << "each piece is tried";
    EXPECT_EQ(taken.mapped_at(), 0u);
    EXPECT_EQ(here().outstanding(), 0u);
    EXPECT_TRUE(taken.close());
    machine->clear_faults();
  }
}

TEST_F(link_faults, name_the_call_that_failed) {
  CUdeviceptr plain = 0;
  ASSERT_EQ(machine->driver().mem_alloc(&plain, 2 << 20), CUDA_SUCCESS);
  const auto memory = shared_memory::create(gpu(), 2_MiB).value();
  const auto failed_call = [&](call failing, const auto& act) {
    machine->fail(failing, 1, CUDA_ERROR_ILLEGAL_STATE);
    const auto outcome = act();
    machine->clear_faults();
    return outcome ? std::string_view{} : outcome.error().call();
  };
  for (const call failing : {call::mem_get_address_range, call::ipc_get_mem_handle}) {
    EXPECT_EQ(failed_call(failing, [&] { return here().offer_legacy(gpu(), plain); }),
              driver::info(failing).symbol);
  }
  static_cast<void>(here().offer(memory).value());
  auto offer = there().receive(1s).value();
  EXPECT_EQ(failed_call(call::mem_get_allocation_properties, [&] { return offer.open_memory(); }),
            driver::info(call::mem_get_allocation_properties).symbol);
  EXPECT_EQ(here().outstanding(), 0u);
  ASSERT_EQ(machine->driver().mem_free(plain), CUDA_SUCCESS);
}

/// What a driver that opens a process's own handles answers, and what it was asked to close.
namespace own_handles {
CUresult answer = CUDA_SUCCESS;
CUdeviceptr opened = 0;
std::vector<CUdeviceptr> closed;
}  // namespace own_handles

// No driver opens a handle in the process that made it; this one does.
TEST_F(link_faults, of_legacy_memory_close_it_again) {
  CUdeviceptr plain = 0;
  CUdeviceptr other = 0;
  ASSERT_EQ(machine->driver().mem_alloc(&plain, 2 << 20), CUDA_SUCCESS);
  ASSERT_EQ(machine->driver().mem_alloc(&other, 4 << 20), CUDA_SUCCESS);
  own_handles::closed.clear();
  table calls = machine->driver();
  calls.ipc_open_mem_handle = [](CUdeviceptr* address, CUipcMemHandle, unsigned) {
    *address = own_handles::opened;
    return own_handles::answer;
  };
  calls.ipc_close_mem_handle = [](CUdeviceptr address) {
    own_handles::closed.push_back(address);
    return CUDA_SUCCESS;
  };
  {
    const auto opener = runtime::open_table(calls, "opens its own handles", machine).value();
    const device home = opener->device(device_id{0}).value();
    auto [from, to] = open_link_to_itself(opener);
    const auto open = [&, &sender = from, &receiver = to](CUresult answer, CUdeviceptr address,
                                                          std::optional<call> failing = {}) {
      static_cast<void>(sender.offer_legacy(home, plain).value());
      auto offer = receiver.receive(1s).value();
      own_handles::answer = answer;
      own_handles::opened = address;
      if (failing) machine->fail(*failing, 1, CUDA_ERROR_ILLEGAL_STATE);
      return offer.open_memory();
    };
    using addresses = std::vector<CUdeviceptr>;

    const auto refused = open(CUDA_ERROR_ILLEGAL_STATE, plain);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().call(), driver::info(call::ipc_open_mem_handle).symbol);
    EXPECT_EQ(own_handles::closed, addresses{}) << "there is nothing to close";

    const auto unmeasured = open(CUDA_SUCCESS, plain, call::mem_get_address_range);
    ASSERT_FALSE(unmeasured);
    EXPECT_EQ(unmeasured.error().call(), driver::info(call::mem_get_address_range).symbol);
    EXPECT_EQ(unmeasured.error().native(), CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(own_handles::closed, addresses{plain});

    const auto larger = open(CUDA_SUCCESS, other);
    ASSERT_FALSE(larger);
    EXPECT_EQ(larger.error(), (error{{.code = errc::invalid_argument,
                                      .requested = 2_MiB,
                                      .detail = "the memory has 4 MiB"}}));
    EXPECT_EQ(own_handles::closed, (addresses{plain, other}));

    const auto good = open(CUDA_SUCCESS, plain);
    ASSERT_TRUE(good);
    EXPECT_EQ(good->mapped_at(), plain);
    EXPECT_EQ(good->size(), 2_MiB);
    EXPECT_EQ(own_handles::closed.size(), 2u);
    const std::uint64_t waits = machine->calls(call::mem_free);
    EXPECT_TRUE(good->close());
    EXPECT_EQ(machine->calls(call::mem_free), waits + 1) << "for work that uses it";
    EXPECT_EQ(good->mapped_at(), 0u);
    EXPECT_EQ(own_handles::closed, (addresses{plain, other, plain}));
    EXPECT_EQ(from.outstanding(), 0u);
  }
  ASSERT_EQ(machine->driver().mem_free(plain), CUDA_SUCCESS);
  ASSERT_EQ(machine->driver().mem_free(other), CUDA_SUCCESS);
}

TEST(share_link_options, wait_for_five_seconds_and_let_in_no_other_users) {
  EXPECT_EQ(share_link_options{}.limit, 5s);
  EXPECT_FALSE(share_link_options{}.other_users);
}

TEST_F(link_faults, of_several_unmappings_are_told_by_the_first) {
  const auto memory = shared_memory::create(gpu(), 4_MiB, {.unit = 2_MiB}).value();
  const auto taken = share(memory);
  machine->fail(call::mem_unmap, 1, CUDA_ERROR_ILLEGAL_STATE);
  machine->fail(call::mem_unmap, 2, CUDA_ERROR_INVALID_VALUE);
  const auto closed = taken.close();
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().native(), CUDA_ERROR_ILLEGAL_STATE);
  machine->clear_faults();
}

TEST_F(link_faults, of_a_lost_device_do_not_hide_that_another_may_be_at_work) {
  const auto second = machine_runtime->device(device_id{1}).value();
  auto memory = shared_memory::create(gpu(), 2_MiB).value();
  const auto taken = share(memory);
  ASSERT_TRUE(taken.allow(second));
  machine->fail(call::mem_free, 1, CUDA_ERROR_ILLEGAL_ADDRESS);  // of the first: it is lost
  machine->fail(call::mem_free, 2, CUDA_ERROR_ILLEGAL_STATE);    // of the second
  const auto refused = taken.close();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_NE(taken.mapped_at(), 0u) << "it is open still";
  EXPECT_EQ(here().outstanding(), 1u);
  EXPECT_TRUE(taken.close());
  EXPECT_EQ(here().outstanding(), 0u);
}

TEST_F(link_faults, of_a_wait_leave_kept_mappings_for_the_next_one) {
  const auto memory = shared_memory::create(gpu(), 2_MiB).value();
  auto dropped = share(memory);
  const auto second = share(memory);
  fail_waits(2);
  dropped = {};
  const auto told = reported.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].native(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(told[0].requested(), 2_MiB) << "so much stays mapped";
  EXPECT_EQ(here().outstanding(), 2u);
  const auto closed = second.close();
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().native(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_NE(second.mapped_at(), 0u) << "its work may go on";
  EXPECT_EQ(here().outstanding(), 2u);
  EXPECT_TRUE(second.close());
  EXPECT_EQ(here().outstanding(), 0u) << "what could not go then goes now";
}

TEST_F(link_faults, of_a_wait_keep_an_import_for_the_devices_that_may_use_it) {
  const auto second = machine_runtime->device(device_id{1}).value();
  const auto memory = shared_memory::create(gpu(), 2_MiB).value();
  auto dropped = share(memory);
  ASSERT_TRUE(dropped.allow(second));
  machine->fail(call::mem_free, 2, CUDA_ERROR_ILLEGAL_STATE);  // of the second device
  dropped = {};
  EXPECT_EQ(reported.take().size(), 1u);
  EXPECT_EQ(here().outstanding(), 1u);
  { const auto waits = shared_memory::create(gpu(), 2_MiB).value(); }
  EXPECT_EQ(here().outstanding(), 1u) << "the first device was idle before";
  { const auto waits = shared_memory::create(second, 2_MiB).value(); }
  EXPECT_EQ(here().outstanding(), 0u);
}

TEST_F(link_faults, of_an_end_are_reported_though_an_earlier_wait_failed) {
  const auto memory = shared_memory::create(gpu(), 2_MiB).value();
  auto taken = share(memory);
  fail_waits();
  EXPECT_FALSE(taken.close());
  machine->fail(call::mem_unmap, 1, CUDA_ERROR_ILLEGAL_STATE);
  taken = {};
  machine->clear_faults();
  const auto errors = reported.take();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].native(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(errors[0].call(), "cuMemUnmap");
  EXPECT_EQ(here().outstanding(), 0u);
}

TEST_F(link_faults, of_a_wait_keep_the_exporters_memory_until_the_next_wait) {
  const bytes before = used();
  auto memory = shared_memory::create(gpu(), 6_MiB, {.unit = 2_MiB}).value();
  EXPECT_EQ(used(), before + 6_MiB);
  fail_waits();
  memory = {};
  EXPECT_EQ(used(), before + 6_MiB);
  const auto told = reported.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].native(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(told[0].requested(), 6_MiB);
  { const auto waits = shared_memory::create(gpu(), 2_MiB).value(); }
  EXPECT_EQ(used(), before);
}

TEST_F(link_faults, of_a_lost_device_end_imports_with_an_error) {
  auto memory = shared_memory::create(gpu(), 2_MiB).value();
  auto closed = share(memory);
  auto dropped = share(memory);
  machine->lose_device(device_id{0});
  EXPECT_EQ(code_of(closed.close()), errc::device_lost);
  EXPECT_EQ(closed.mapped_at(), 0u);
  EXPECT_EQ(here().outstanding(), 1u);
  dropped = {};
  EXPECT_EQ(here().outstanding(), 0u);
  EXPECT_THAT(reported.take(), ::testing::Contains(Property(&error::code, errc::device_lost)));
  memory = {};
  EXPECT_THAT(reported.take(), ::testing::Contains(Property(&error::code, errc::device_lost)));
}

TEST_F(link_faults, are_answered_where_a_device_has_no_name) {
  table nameless = machine->driver();
  nameless.device_get_uuid = nullptr;
  const auto other_runtime = runtime::open_table(nameless, "nameless", machine).value();
  const auto ends = open_link_to_itself(other_runtime);
  const auto home = other_runtime->device(device_id{0}).value();
  const auto memory = shared_memory::create(home, 2_MiB).value();
  EXPECT_EQ(reason_of(ends.first.offer(memory)), "not_supported: the device has no UUID");
  EXPECT_EQ(ends.first.outstanding(), 0u);
}

TEST_F(link_faults, are_answered_where_memory_needs_too_many_handles) {
  const bytes before = used();
  {
    const auto most = shared_memory::create(gpu(), 480_MiB, {.unit = 2_MiB}).value();
    EXPECT_EQ(used(), before + 480_MiB);
    const auto taken = share(most);
    EXPECT_EQ(taken.size(), 480_MiB);
  }
  EXPECT_EQ(here().outstanding(), 0u);
  EXPECT_EQ(reason_of(shared_memory::create(gpu(), 480_MiB + 1_B, {.unit = 2_MiB})),
            "limit_exceeded: more than 240 handles");
  EXPECT_EQ(used(), before);
  // Both sizes are rounded up: the unit to the granularity, the whole to the unit.
  const auto uneven = shared_memory::create(gpu(), 5_MiB, {.unit = 3_MiB}).value();
  EXPECT_EQ(uneven.size(), 5_MiB);
  EXPECT_EQ(uneven.unit(), 4_MiB);
  EXPECT_EQ(used(), before + 8_MiB);
}

// The size in a ticket is a claim; an allocation of a pool is as large as the driver says.
TEST_F(link_faults, of_a_lying_peer_free_what_was_imported) {
  auto [ours, theirs] = share_channel::pair().value();
  const liar other{std::move(theirs)};
  other.say(sharing::encode_number(sharing::packet_kind::hello, other.number));
  const auto link = share_link::open(machine_runtime, std::move(ours)).value();
  const auto stream = weir::stream::create(gpu()).value();
  const auto pool =
      stream_pool::create(gpu(), {.handles = stream_pool_handles::posix_descriptor}).value();
  auto memory = pool.allocate_owned(4_MiB, stream).value();
  ASSERT_TRUE(stream.synchronize());
  const auto exported = pool.export_descriptor().value();
  auto imported = stream_pool::import_descriptor(gpu(), exported.get()).value();
  share_ticket ticket{.kind = share_kind::pool_pointer,
                      .device = gpu().uuid().value(),
                      .exporter = other.number,
                      .object = 1,
                      .payload = pool.export_pointer(memory.data()).value().data};
  const auto open_as = [&](bytes size) {
    ++ticket.grant;
    ticket.size = size;
    other.offer(ticket);
    return link.receive(1s).value().open_allocation(imported, stream);
  };
  const auto refused = open_as(4_MiB + 1_B);
  EXPECT_EQ(reason_of(refused), "invalid_argument: the allocation has 4 MiB");
  EXPECT_EQ(refused.error().requested(), 4_MiB + 1_B);
  ASSERT_TRUE(stream.synchronize());
  for (const bytes size : {4_MiB, 1_MiB}) {
    auto opened = open_as(size);
    ASSERT_EQ(reason_of(opened), "");
    EXPECT_TRUE(opened->free());
    ASSERT_TRUE(stream.synchronize());
  }
  // Where the driver tells no size there is nothing to hold against the claim.
  machine->fail(call::mem_get_address_range, 1, CUDA_ERROR_NOT_SUPPORTED);
  auto unmeasured = open_as(4_MiB + 1_B);
  ASSERT_EQ(reason_of(unmeasured), "");
  EXPECT_EQ(unmeasured->size(), 0_B);
  EXPECT_TRUE(unmeasured->free());
  EXPECT_TRUE(memory.free());
  ASSERT_TRUE(stream.synchronize());
}

}  // namespace
}  // namespace weir::testing_support
