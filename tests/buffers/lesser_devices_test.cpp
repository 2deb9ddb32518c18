// SPDX-License-Identifier: Apache-2.0
// Unified buffers on devices that can do less, and on drivers that are older: simulated.
#include <thread>
#include <vector>

#include "buffers/simulated_test.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/buffer/unified_buffer.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;

constexpr std::size_t granule_words = 64 * kib / sizeof(word);

// --- The oracle's word on views ------------------------------------------------------------------

class watched_views : public simulated {
 protected:
  void SetUp() override { open({}); }
};

TEST_F(watched_views, what_a_view_shows_races_with_nothing) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, on).value();
  launch(some.use_on(on).value(), on);
  touch(some.view().value());
  launch(some.use_on(on).value(), on);
  EXPECT_THAT(some.view().value().span(), AllAre(3U));
  EXPECT_THAT(machine->hazards(), ::testing::IsEmpty());
}

TEST_F(watched_views, the_unsafe_span_may_race) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, on).value();
  launch(some.use_on(on).value(), on);
  machine->host_read(some.unsafe_span().data(), some.size_bytes().count());
  EXPECT_FALSE(machine->hazards().empty());
  machine->clear_hazards();
}

TEST_F(watched_views, a_closed_stream_is_still_waited_for) {
  auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, on).value();
  launch(some.use_on(on).value(), on);
  WEIR_DONE(on.close());
  touch(some.view().value());
  EXPECT_THAT(some.view().value().span(), AllAre(2U));
}

TEST_F(watched_views, threads_may_ask_at_the_same_time) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, on).value();
  const auto ask = [&] {
    const auto own = make_stream();
    for (int i = 0; i < 50; ++i) {
      const auto used = code_of(some.use_on(own));
      EXPECT_TRUE(!used || used == errc::not_ready);
      EXPECT_EQ(some.view().value()[granule_words - 1], 0U);
      EXPECT_TRUE(some.info());
      EXPECT_EQ(some.attached(), attachment::global);
    }
  };  // each closes a stream that the buffer knows, while the others view
  std::vector<std::thread> all;
  for (int i = 0; i < 4; ++i) all.emplace_back(ask);
  for (auto& each : all) each.join();
}

TEST_F(watched_views, pages_go_where_they_are_sent) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::copy_of(counting(granule_words), on).value();
  touch(some.view().value());
  WEIR_DONE(some.prefetch(gpu(), on));
  WEIR_DONE(on.synchronize());
  EXPECT_EQ(machine->migrations(device_id{0}).to_device, 16U);  // pages of 4 KiB
  WEIR_DONE(some.prefetch(managed_place::host(), on));
  WEIR_DONE(on.synchronize());
  EXPECT_EQ(machine->migrations(device_id{0}).to_host, 16U);
}

// --- More than a device holds --------------------------------------------------------------------

class small_device : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(1, sim::device_spec{.capacity = 72_MiB, .context_overhead = 64_MiB});
    open(settings);
  }
};

TEST_F(small_device, may_have_more_managed_memory_than_it_holds) {
  const auto on = make_stream();
  const std::size_t large = 16 * mib / sizeof(word);
  auto some = unified_buffer<word>::zeroed(large, on).value();
  WEIR_DONE(some.prefetch(gpu(), on));
  launch(some.use_on(on).value(), on);
  {
    const auto view = some.view().value();
    EXPECT_EQ(view[0], 1U);
    EXPECT_EQ(view[large - 1], 1U);
  }
  EXPECT_GT(machine->migrations(device_id{0}).evicted, 0U);
}

// --- Devices without concurrent managed access ---------------------------------------------------

class no_concurrent_access : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(1, sim::device_spec{.concurrent_managed_access = false});
    open(settings);
  }
};

TEST_F(no_concurrent_access, a_view_waits_for_all_work_of_the_device) {
  const auto on = make_stream();
  const auto other = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, on).value();
  auto elsewhere = unified_buffer<word>::zeroed(granule_words, other).value();
  launch(elsewhere.use_on(other).value(), other);  // nothing to do with `some`
  EXPECT_EQ(code_of(some.try_view()), errc::not_supported);
  touch(some.view().value());
  EXPECT_TRUE(other.is_complete().value());
  EXPECT_THAT(elsewhere.view().value().span(), AllAre(1U));
}

TEST_F(no_concurrent_access, no_event_suffices_for_a_view) {
  const auto on = make_stream();
  const auto other = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, on).value();
  auto behind = event::create(gpu()).value();
  WEIR_DONE(behind.record(on));
  auto elsewhere = unified_buffer<word>::zeroed(granule_words, other).value();
  launch(elsewhere.use_on(other).value(), other);
  touch(some.view(behind).value());
  EXPECT_TRUE(other.is_complete().value());
}

TEST_F(no_concurrent_access, while_the_host_has_a_view_of_one_buffer_no_other_is_used) {
  const auto on = make_stream();
  auto one = unified_buffer<word>::zeroed(granule_words, on).value();
  auto two = unified_buffer<word>::zeroed(granule_words, on).value();
  {
    const auto first = one.view().value();
    auto second = one.view().value();
    EXPECT_EQ(code_of(two.use_on(on)), errc::not_ready);
    EXPECT_EQ(code_of(unified_buffer<word>::zeroed(granule_words, on)), errc::not_ready);
  }
  EXPECT_TRUE(two.use_on(on));
}

TEST_F(no_concurrent_access, memory_attached_to_the_host_is_the_hosts) {
  const auto on = make_stream();
  auto work = unified_buffer<word>::zeroed(granule_words, on).value();
  auto some = unified_buffer<word>::zeroed(granule_words, on, attachment::host).value();
  WEIR_DONE(on.synchronize());
  launch(work.use_on(on).value(), on);
  touch(some.try_view().value());  // while the device works
  EXPECT_FALSE(on.is_complete().value());
  EXPECT_EQ(code_of(some.use_on(on)), errc::not_permitted);
  WEIR_DONE(some.attach(attachment::global, on));
  launch(some.use_on(on).value(), on);
  EXPECT_THAT(some.view().value().span(), AllAre(2U));
}

TEST_F(no_concurrent_access, copies_of_data_can_be_created_while_the_device_works) {
  const auto on = make_stream();
  auto work = unified_buffer<word>::zeroed(granule_words, on).value();
  launch(work.use_on(on).value(), on);
  auto some = unified_buffer<word>::copy_of(counting(granule_words), on).value();
  EXPECT_FALSE(on.is_complete().value());
  launch(some.use_on(on).value(), on);
  EXPECT_EQ(some.view().value()[granule_words - 1], granule_words);
}

TEST_F(no_concurrent_access, memory_attached_to_a_stream_is_that_streams) {
  const auto own = make_stream();
  const auto other = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, own, attachment::single).value();
  auto work = unified_buffer<word>::zeroed(granule_words, other).value();
  WEIR_DONE(other.synchronize());
  EXPECT_EQ(code_of(some.use_on(other)), errc::bad_stream);
  launch(some.use_on(own).value(), own);
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready);
  machine->hold(other.handle());
  launch(work.use_on(other).value(), other);
  touch(some.view().value());  // would never return if it waited for the other stream
  EXPECT_FALSE(other.is_complete().value());
  machine->release(other.handle());
  // Work of the stream counts that was not recorded.
  launch(device_span<word>{some.unsafe_span().data(), 1}, own);
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready);
  EXPECT_EQ(some.view().value()[0], 3U);
}

TEST_F(no_concurrent_access,
       while_the_host_has_a_view_of_a_streams_memory_the_stream_gets_no_other) {
  const auto on = make_stream();
  const auto other = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, on, attachment::single).value();
  auto more = unified_buffer<word>::zeroed(granule_words, on).value();
  auto same = unified_buffer<word>::zeroed(granule_words, on, attachment::single).value();
  {
    const auto view = some.view().value();
    EXPECT_EQ(code_of(more.use_on(on)), errc::not_ready);
    EXPECT_EQ(code_of(same.use_on(on)), errc::not_ready);
    EXPECT_EQ(code_of(unified_buffer<word>::zeroed(granule_words, on)), errc::not_ready);
    launch(more.use_on(other).value(), other);
    touch(view);
  }
  {
    const auto first = some.try_view().value();
    const auto second = same.view().value();
    touch(first);
    EXPECT_EQ(code_of(more.use_on(on)), errc::not_ready);
  }
  WEIR_DONE(other.synchronize());
  launch(more.use_on(on).value(), on);
  EXPECT_THAT(more.view().value().span(), AllAre(2U));
  EXPECT_THAT(machine->hazards(), ::testing::IsEmpty());
}

TEST_F(no_concurrent_access, the_stream_of_a_single_attachment_may_go) {
  auto own = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, own, attachment::single).value();
  launch(some.use_on(own).value(), own);
  WEIR_DONE(own.close());
  EXPECT_THAT(some.view().value().span(), AllAre(1U));  // while no other has its handle
  const auto other = make_stream();
  EXPECT_EQ(code_of(some.use_on(other)), errc::bad_stream);
  EXPECT_THAT(some.view().value().span(), AllAre(1U));
  WEIR_DONE(some.attach(attachment::single, other));
  EXPECT_TRUE(some.use_on(other));
}

TEST_F(no_concurrent_access, placement_is_not_supported) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, on).value();
  EXPECT_EQ(code_of(some.prefetch(gpu(), on)), errc::not_supported);
  EXPECT_EQ(code_of(some.prefetch(managed_place::host(), on)), errc::not_supported);
  EXPECT_EQ(code_of(some.advise_preferred(managed_place{gpu()})), errc::not_supported);
  EXPECT_EQ(code_of(some.advise_accessed_by(gpu())), errc::not_supported);
}

class no_managed_memory : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(1, sim::device_spec{.managed_memory = false});
    open(settings);
  }
};

TEST_F(no_managed_memory, is_said_so) {
  EXPECT_EQ(code_of(unified_buffer<word>::zeroed(granule_words, make_stream())),
            errc::not_supported);
}

// --- Older drivers -------------------------------------------------------------------------------

/// A driver from before locations and batches.
class older_driver : public simulated {
 protected:
  void SetUp() override {
    machine = sim::machine::create({}).value();
    calls_ = machine->driver();
    calls_.mem_prefetch_async = nullptr;
    calls_.mem_advise = nullptr;
    calls_.memcpy_batch_async = nullptr;
    runtime_ = runtime::open_table(calls_, "older", machine).value();
  }

 private:
  driver::table calls_{};
};

TEST_F(older_driver, takes_device_numbers) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(granule_words, on).value();
  WEIR_DONE(some.prefetch(gpu(), on));
  EXPECT_EQ(some.info().value().last_prefetch, managed_place{gpu()});
  WEIR_DONE(some.prefetch(managed_place::host(), on));
  EXPECT_EQ(some.info().value().last_prefetch, managed_place::host());
  WEIR_DONE(some.advise_preferred(managed_place::host()));
  EXPECT_EQ(some.info().value().preferred, managed_place::host());
  WEIR_DONE(some.advise_accessed_by(gpu()));
  EXPECT_THAT(some.info().value().accessed_by, ElementsAre(managed_place{gpu()}));
  EXPECT_EQ(code_of(some.prefetch(managed_place::host_node(0), on)), errc::not_supported);
  EXPECT_EQ(code_of(some.advise_preferred(managed_place::host_node(0))), errc::not_supported);
}

TEST_F(older_driver, copies_batches_one_by_one) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::copy_of(counting(8), on).value();
  const auto there = some.use_on(on).value();
  const std::vector<copy_item> items{{there.data() + 4, there.data(), 8_B},
                                     {there.data() + 6, there.data() + 2, 8_B}};
  WEIR_DONE(copy_batch(items, on));
  EXPECT_THAT(some.view().value().span(), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
}

}  // namespace
}  // namespace weir::testing_support
