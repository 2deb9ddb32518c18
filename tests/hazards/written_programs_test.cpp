// SPDX-License-Identifier: Apache-2.0
// Hand-written programs: each racy one must be reported, each correct one must not.
#include <functional>

#include "program.hpp"

namespace weir::hazards { namespace {

struct scenario {
  const char* name;
  std::function<void(program&)> run;
};

void PrintTo(const scenario& tested, std::ostream* out) { *out << tested.name; }

// --- Racy ---------------------------------------------------------------------------------------

const std::vector<scenario> racy = {
    {"write_write_on_two_streams",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.write(b, x);
     }},
    {"read_while_another_stream_writes",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.read(b, x);
     }},
    {"write_while_another_stream_reads",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       p.read(a, x);
       p.write(b, x);
     }},
    {"one_byte_in_common",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       p.write(a, x, 2048);
       p.write(b, x + 2047, 1024);
     }},
    {"event_recorded_before_the_write",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       const auto e = p.event();
       p.record(e, a);
       p.write(a, x);
       p.wait(b, e);
       p.read(b, x);
     }},
    {"wait_queued_after_the_read",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       const auto e = p.event();
       p.write(a, x);
       p.record(e, a);
       p.read(b, x);
       p.wait(b, e);
     }},
    {"wait_on_an_event_never_recorded",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       const auto e = p.event();
       p.write(a, x);
       p.wait(b, e);
       p.read(b, x);
     }},
    {"wait_before_the_record",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       const auto e = p.event();
       p.write(a, x);
       p.wait(b, e);
       p.record(e, a);
       p.read(b, x);
     }},
    {"event_recorded_again_elsewhere",
     [](program& p) {
       const auto a = p.stream(), b = p.stream(), c = p.stream();
       const auto x = p.buffer();
       const auto e = p.event();
       p.write(a, x);
       p.record(e, a);
       p.record(e, c);  // now stands for c, not for the write
       p.wait(b, e);
       p.read(b, x);
     }},
    {"waited_on_the_wrong_stream",
     [](program& p) {
       const auto a = p.stream(), b = p.stream(), c = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.join(a, c);
       p.read(b, x);
     }},
    {"second_reader_forgotten",
     [](program& p) {
       const auto a = p.stream(), b = p.stream(), c = p.stream();
       const auto x = p.buffer();
       p.read(a, x);
       p.read(b, x);
       p.join(a, c);
       p.write(c, x);
     }},
    {"legacy_stream_does_not_order_non_blocking_ones",
     [](program& p) {
       const auto a = p.stream(CU_STREAM_NON_BLOCKING);
       const auto x = p.buffer();
       p.write(a, x);
       p.read(legacy_stream(), x);
     }},
    {"two_blocking_streams_are_not_ordered_by_each_other",
     [](program& p) {
       const auto a = p.stream(CU_STREAM_DEFAULT), b = p.stream(CU_STREAM_DEFAULT);
       const auto x = p.buffer();
       p.write(a, x);
       p.write(b, x);
     }},
    {"race_through_an_alias",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto m = p.alias();
       p.write(a, m.first + 512, 512);
       p.read(b, m.second + 768, 16);
     }},
    {"host_reads_pinned_memory_too_early",
     [](program& p) {
       const auto a = p.stream();
       auto* const h = p.pinned();
       const auto x = p.buffer();
       p.copy(a, reinterpret_cast<CUdeviceptr>(h), x);
       p.host_read(h);
     }},
    {"host_reuses_pinned_source_too_early",
     [](program& p) {
       const auto a = p.stream();
       auto* const h = p.pinned();
       const auto x = p.buffer();
       p.host_write(h);
       p.copy(a, x, reinterpret_cast<CUdeviceptr>(h));
       p.host_write(h);
     }},
    {"pool_memory_used_on_another_stream_without_wait",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.allocate(a);
       p.write(b, x);
     }},
    {"pool_memory_freed_while_another_stream_uses_it",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.allocate(a);
       p.join(a, b);
       p.write(b, x);
       p.free(a, x);
     }},
    {"pool_memory_used_after_its_free",
     [](program& p) {
       const auto a = p.stream();
       const auto x = p.allocate(a);
       p.write(a, x);
       p.free(a, x);
       p.write(a, x);
     }},
    {"unmapped_while_work_uses_it",
     [](program& p) {
       const auto a = p.stream();
       const auto m = p.alias();
       p.write(a, m.first, 512);
       p.unmap(m.first);
     }},
    {"remapped_handle_while_the_old_address_is_written",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto m = p.alias();
       p.write(a, m.first, 4096);
       p.write(b, m.second, 4096);  // "moved" without waiting for the old use
     }},
    {"access_past_the_end",
     [](program& p) {
       const auto a = p.stream();
       const auto x = p.buffer(4096);
       p.write(a, x, std::size_t{64} << 20);
     }},
    {"ring_of_three_streams_with_one_link_missing",
     [](program& p) {
       const auto a = p.stream(), b = p.stream(), c = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.join(a, b);
       p.write(b, x);
       p.join(a, c);  // should have been b
       p.write(c, x);
     }},
    {"double_buffer_swapped_one_step_too_early",
     [](program& p) {
       const auto copy = p.stream(), compute = p.stream();
       const CUdeviceptr half[] = {p.buffer(), p.buffer()};
       for (std::size_t i = 0; i < 4; ++i) {
         p.write(copy, half[i % 2]);  // never waits for compute to have read it
         p.join(copy, compute);
         p.read(compute, half[i % 2]);
       }
     }},
};

// --- Correct ------------------------------------------------------------------------------------

const std::vector<scenario> correct = {
    {"one_stream_many_uses",
     [](program& p) {
       const auto a = p.stream();
       const auto x = p.buffer(), y = p.buffer();
       for (int i = 0; i < 8; ++i) {
         p.write(a, x);
         p.copy(a, y, x);
         p.read(a, y);
       }
     }},
    {"two_streams_two_buffers",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       p.write(a, p.buffer());
       p.write(b, p.buffer());
     }},
    {"neighbouring_bytes",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       p.write(a, x, 2048);
       p.write(b, x + 2048, 2048);
     }},
    {"many_readers",
     [](program& p) {
       const auto a = p.stream(), b = p.stream(), c = p.stream();
       const auto x = p.buffer();
       p.read(a, x);
       p.read(b, x);
       p.read(c, x);
     }},
    {"producer_event_consumer",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.join(a, b);
       p.read(b, x);
     }},
    {"event_recorded_again_is_the_newer_place",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       const auto e = p.event();
       p.record(e, a);
       p.write(a, x);
       p.record(e, a);
       p.wait(b, e);
       p.read(b, x);
     }},
    {"wait_keeps_the_record_it_saw",
     [](program& p) {
       const auto a = p.stream(), b = p.stream(), c = p.stream();
       const auto x = p.buffer();
       const auto e = p.event();
       p.write(a, x);
       p.record(e, a);
       p.wait(b, e);
       p.record(e, c);
       p.read(b, x);
     }},
    {"order_passes_through_a_third_stream",
     [](program& p) {
       const auto a = p.stream(), b = p.stream(), c = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.join(a, b);
       p.join(b, c);
       p.write(c, x);
     }},
    {"host_synchronizes_the_stream",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.synchronize(a);
       p.write(b, x);
     }},
    {"host_synchronizes_the_event",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       const auto e = p.event();
       p.write(a, x);
       p.record(e, a);
       p.synchronize(e);
       p.write(b, x);
     }},
    {"host_polls_the_event",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       const auto e = p.event();
       p.write(a, x);
       p.record(e, a);
       p.poll(e);
       p.write(b, x);
     }},
    {"host_polls_the_stream",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.poll(a);
       p.write(b, x);
     }},
    {"device_synchronize",
     [](program& p) {
       const auto a = p.stream(), b = p.stream(), c = p.stream();
       const auto x = p.buffer();
       p.write(a, x, 2048);
       p.write(b, x + 2048, 2048);
       p.synchronize();
       p.write(c, x);
     }},
    {"legacy_stream_orders_blocking_ones",
     [](program& p) {
       const auto a = p.stream(CU_STREAM_DEFAULT), b = p.stream(CU_STREAM_DEFAULT);
       const auto x = p.buffer();
       p.write(a, x);
       p.write(legacy_stream(), x);
       p.write(b, x);
     }},
    {"per_thread_stream_is_a_blocking_one",
     [](program& p) {
       const auto x = p.buffer();
       p.write(per_thread_stream(), x);
       p.write(legacy_stream(), x);
       p.write(per_thread_stream(), x);
     }},
    {"alias_used_in_order",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto m = p.alias();
       p.write(a, m.first, 4096);
       p.join(a, b);
       p.read(b, m.second, 4096);
     }},
    {"pinned_staging_with_events",
     [](program& p) {
       const auto a = p.stream();
       auto* const h = p.pinned();
       const auto x = p.buffer();
       const auto e = p.event();
       for (int i = 0; i < 4; ++i) {
         p.host_write(h);
         p.copy(a, x, reinterpret_cast<CUdeviceptr>(h));
         p.record(e, a);
         p.synchronize(e);
       }
     }},
    {"pool_memory_passed_on_with_an_event",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.allocate(a);
       p.write(a, x);
       p.join(a, b);
       p.write(b, x);
       p.free(b, x);
     }},
    {"pool_memory_reused_by_every_stream",
     [](program& p) {
       const CUstream streams[] = {p.stream(), p.stream(), p.stream()};
       for (int i = 0; i < 30; ++i) {
         const CUstream on = streams[i % 3];
         const auto x = p.allocate(on);
         p.write(on, x);
         p.free(on, x);
       }
     }},
    {"unmapped_after_waiting",
     [](program& p) {
       const auto a = p.stream();
       const auto m = p.alias();
       p.write(a, m.first, 512);
       p.synchronize(a);
       p.unmap(m.first);
       p.write(a, m.second, 512);
     }},
    {"double_buffer_done_right",
     [](program& p) {
       const auto copy = p.stream(), compute = p.stream();
       const CUdeviceptr half[] = {p.buffer(), p.buffer()};
       const CUevent free_again[] = {p.event(), p.event()};
       for (std::size_t i = 0; i < 6; ++i) {
         p.wait(copy, free_again[i % 2]);
         p.write(copy, half[i % 2]);
         p.join(copy, compute);
         p.read(compute, half[i % 2]);
         p.record(free_again[i % 2], compute);
       }
     }},
    {"stream_destroyed_with_work_then_synchronized",
     [](program& p) {
       const auto a = p.stream(), b = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.check(p.cuda().stream_destroy(a));
       p.synchronize();
       p.write(b, x);
     }},
    {"legacy_stream_comes_after_a_destroyed_blocking_stream",
     [](program& p) {
       const auto a = p.stream(CU_STREAM_DEFAULT);
       const auto x = p.buffer();
       p.write(a, x);
       p.check(p.cuda().stream_destroy(a));
       p.machine().run_until_idle();
       p.write(legacy_stream(), x);
     }},
    {"managed_memory_touched_after_synchronize",
     [](program& p) {
       const auto a = p.stream();
       const auto x = p.managed();
       p.host_write(reinterpret_cast<void*>(x));
       p.write(a, x);
       p.synchronize(a);
       p.host_read(reinterpret_cast<void*>(x));
     }},
    {"plain_free_waits_by_itself",
     [](program& p) {
       const auto a = p.stream();
       const auto x = p.buffer();
       p.write(a, x);
       p.check(p.cuda().mem_free(x));
     }},
};

class RacyProgram : public testing::TestWithParam<scenario> {};
class CorrectProgram : public testing::TestWithParam<scenario> {};

/// The verdict follows from what was queued, not from when it happened to run: every seed agrees.
constexpr std::uint64_t seeds = 16;

TEST_P(RacyProgram, IsReportedWithBothSides) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    program p{seed};
    GetParam().run(p);
    const auto hazards = p.machine().hazards();
    ASSERT_FALSE(hazards.empty()) << "seed " << seed;
    EXPECT_FALSE(hazards.front().second.label.empty());
    EXPECT_FALSE(hazards.front().first.label.empty());
    EXPECT_GT(hazards.front().shared.size, 0U);
  }
}

TEST_P(CorrectProgram, IsNotReported) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    program p{seed};
    GetParam().run(p);
    p.synchronize();
    ASSERT_EQ(p.describe_hazards(), "") << "seed " << seed;
  }
}

std::string name_of(const testing::TestParamInfo<scenario>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Written, RacyProgram, testing::ValuesIn(racy), name_of);
INSTANTIATE_TEST_SUITE_P(Written, CorrectProgram, testing::ValuesIn(correct), name_of);

TEST(WrittenPrograms, AreAtLeastTwentyOfEachKind) {
  EXPECT_GE(racy.size(), 20U);
  EXPECT_GE(correct.size(), 20U);
}

TEST(Hazard, NamesBothSidesAndTheBytesInCommon) {
  program p;
  const auto a = p.stream(), b = p.stream();
  const auto x = p.buffer();
  p.fill(a, x, 1024);
  p.read(b, x + 1000, 100);
  const auto hazards = p.machine().hazards();
  ASSERT_EQ(hazards.size(), 1U);
  EXPECT_EQ(hazards[0].kind, sim::hazard_kind::race);
  EXPECT_EQ(hazards[0].first.label, "fill");
  EXPECT_EQ(hazards[0].second.label, "read");
  EXPECT_TRUE(hazards[0].first.writes);
  EXPECT_FALSE(hazards[0].second.writes);
  EXPECT_NE(hazards[0].first.stream, hazards[0].second.stream);
  EXPECT_EQ(hazards[0].shared.address, x + 1000);
  EXPECT_EQ(hazards[0].shared.size, 24U);
  EXPECT_NE(hazards[0].message().find("fill"), std::string::npos);
}

TEST(Hazard, KindsTellRaceFromLifetime) {
  const auto kind_of = [](const std::function<void(program&)>& run) {
    program p;
    run(p);
    const auto hazards = p.machine().hazards();
    EXPECT_FALSE(hazards.empty());
    return hazards.empty() ? sim::hazard_kind::race : hazards.front().kind;
  };
  EXPECT_EQ(kind_of([](program& p) {
              const auto a = p.stream();
              const auto x = p.allocate(a);
              p.free(a, x);
              p.write(a, x);
            }),
            sim::hazard_kind::use_after_free);
  EXPECT_EQ(kind_of([](program& p) {
              const auto a = p.stream(), b = p.stream();
              const auto x = p.allocate(a);
              p.join(a, b);
              p.write(b, x);
              p.free(a, x);
            }),
            sim::hazard_kind::freed_in_use);
  EXPECT_EQ(kind_of([](program& p) {
              const auto a = p.stream();
              p.write(a, 0x1000, 16);
            }),
            sim::hazard_kind::bad_access);
}

TEST(Hazard, IsReportedBeforeItCostsTheDevice) {
  program p;
  const auto a = p.stream(), b = p.stream();
  const auto x = p.allocate(a);
  p.join(a, b);
  p.machine().hold(b);
  p.write(b, x);
  p.free(a, x);
  const auto hazards = p.machine().hazards();
  ASSERT_EQ(hazards.size(), 1U);
  EXPECT_EQ(hazards[0].kind, sim::hazard_kind::freed_in_use);
  // The host waits for the free alone: the pool releases the memory from under the write.
  p.synchronize(a);
  p.machine().release(b);
  EXPECT_EQ(p.cuda().stream_synchronize(b), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(p.machine().hazards().size(), 1U);
}

TEST(Hazard, ListenerHearsEachReportAndClearForgets) {
  program p;
  int heard = 0;
  p.machine().on_hazard([&](const sim::hazard&) { ++heard; });
  const auto a = p.stream(), b = p.stream();
  const auto x = p.buffer();
  p.write(a, x);
  p.write(b, x);
  EXPECT_EQ(heard, 1);
  p.machine().clear_hazards();
  EXPECT_TRUE(p.machine().hazards().empty());
}

}  // namespace
}  // namespace weir::hazards
