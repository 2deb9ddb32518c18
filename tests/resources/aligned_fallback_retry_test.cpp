// SPDX-License-Identifier: Apache-2.0
// The adaptors that change what the upstream is asked: aligned, fallback, retry.
#include <stdexcept>
#include <thread>

#include "resources/resources_fixture.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/resource/aligned_resource.hpp"
#include "weir/resource/fallback_resource.hpp"
#include "weir/resource/limiting_resource.hpp"
#include "weir/resource/retry_resource.hpp"

namespace weir::testing_support { namespace {

std::uint64_t address(void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// --- aligned ------------------------------------------------------------------------------------

using aligned_test = resources_test;

TEST_F(aligned_test, aligns_beyond_the_upstream_and_gives_back_what_it_got) {
  auto aligned = aligned_resource::create(ledger, 4_KiB).value();
  std::vector<std::pair<void*, bytes>> live;
  for (const bytes alignment : {1_B, 256_B, 4_KiB, 64_KiB, 1_MiB}) {
    for (const bytes size : {1_B, 700_B, 4_KiB, 100_KiB}) {
      void* const p = aligned.try_allocate(size, stream, alignment).value();
      EXPECT_EQ(address(p) % std::max(alignment, 4_KiB).count(), 0U);
      live.emplace_back(p, size);
    }
  }
  for (const auto& [p, size] : live) EXPECT_TRUE(aligned.try_deallocate(p, size, stream));
  EXPECT_EQ(ledger.live(), 0U);  // the ledger checks pointers and sizes itself
}

TEST_F(aligned_test, blocks_stay_inside_what_the_upstream_gave) {
  auto aligned = aligned_resource::create(ledger, 8_KiB).value();
  void* const p = aligned.try_allocate(1_KiB, stream).value();
  EXPECT_EQ(ledger.used(), 1_KiB + 8_KiB - 256_B) << "no more padding than is needed";
  const std::uint64_t origin = ledger.last();
  EXPECT_EQ(address(p), (origin + 8191) / 8192 * 8192) << "the first place that is aligned";
  EXPECT_LE(address(p) + 1024, origin + 1024 + 8192 - 256);
  void* const q = aligned.try_allocate(1_KiB, stream).value();
  EXPECT_GE(address(q), address(p) + 1024);
  EXPECT_TRUE(aligned.try_deallocate(p, 1_KiB, stream));
  EXPECT_TRUE(aligned.try_deallocate(q, 1_KiB, stream));
}

TEST_F(aligned_test, an_upstream_that_can_is_not_asked_for_more) {
  auto allocator = caching_allocator::create(gpu).value();
  auto aligned = aligned_resource::create(allocator, 64_KiB).value();
  void* const p = aligned.try_allocate(1_MiB, stream).value();
  EXPECT_EQ(address(p) % (64_KiB).count(), 0U);
  EXPECT_EQ(bytes{allocator.stats().requested.current}, 1_MiB);
  EXPECT_TRUE(aligned.try_deallocate(p, 1_MiB, stream));
}

TEST_F(aligned_test, what_cannot_be_aligned_is_refused) {
  for (const bytes wrong : {0_B, 3_B, 513_B}) {
    EXPECT_EQ(code_of(aligned_resource::create(ledger, wrong)), errc::bad_alignment);
    auto aligned = aligned_resource::create(ledger, 4_KiB).value();
    EXPECT_EQ(code_of(aligned.try_allocate(1_KiB, stream, wrong)), errc::bad_alignment);
  }
  auto aligned = aligned_resource::create(ledger, 4_KiB).value();
  EXPECT_EQ(code_of(aligned.try_allocate(bytes::max() - 1_KiB, stream)), errc::size_overflow);
  EXPECT_EQ(aligned.try_allocate(0_B, stream).value(), nullptr);
  EXPECT_EQ(ledger.live(), 0U);
}

TEST_F(aligned_test, only_an_alignment_that_can_be_padded_is_tried_again) {
  auto aligned = aligned_resource::create(ledger, 1_B).value();
  EXPECT_EQ(aligned.alignment(), 1_B);
  ledger.refuse({errc::bad_alignment});
  EXPECT_EQ(code_of(aligned.try_allocate(1_KiB, stream, 256_B)), errc::bad_alignment);
  EXPECT_EQ(ledger.requests(), 1) << "every resource can give this one";
  ledger.refuse({errc::out_of_memory});
  EXPECT_EQ(code_of(aligned.try_allocate(1_KiB, stream, 512_B)), errc::out_of_memory);
  EXPECT_EQ(ledger.requests(), 2) << "padding would not help";
  ledger.refuse({errc::bad_alignment, errc::device_lost});
  EXPECT_EQ(code_of(aligned.try_allocate(1_KiB, stream, 512_B)), errc::device_lost);
  EXPECT_EQ(ledger.requests(), 4);
  void* const p = aligned.try_allocate(1_KiB, stream, 512_B).value();
  EXPECT_EQ(ledger.used(), 1_KiB + 256_B);
  EXPECT_TRUE(aligned.try_deallocate(p, 1_KiB, stream));
}

TEST_F(aligned_test, only_pointers_it_gave_come_back) {
  auto aligned = aligned_resource::create(ledger, 4_KiB).value();
  void* const p = aligned.try_allocate(1_KiB, stream).value();
  EXPECT_EQ(code_of(aligned.try_deallocate(static_cast<char*>(p) - 256, 1_KiB, stream)),
            errc::foreign_pointer);
  ledger.refuse_free({errc::bad_stream});
  EXPECT_EQ(code_of(aligned.try_deallocate(p, 1_KiB, stream)), errc::bad_stream);
  EXPECT_TRUE(aligned.try_deallocate(p, 1_KiB, stream)) << "it was still live";
  EXPECT_EQ(code_of(aligned.try_deallocate(p, 1_KiB, stream)), errc::double_free);
}

// --- fallback -----------------------------------------------------------------------------------

using fallback_test = resources_test;

TEST_F(fallback_test, each_block_goes_back_where_it_came_from) {
  ledger_resource second{gpu};
  auto both = fallback_resource::create(ledger, second).value();
  void* const p = both.try_allocate(1_KiB, stream).value();
  ledger.refuse({errc::out_of_memory, errc::out_of_memory});
  void* const q = both.try_allocate(2_KiB, stream).value();
  void* const r = both.try_allocate(3_KiB, stream).value();
  EXPECT_EQ(ledger.live(), 1U);
  EXPECT_EQ(second.live(), 2U);
  EXPECT_EQ(both.fallbacks(), 2U);
  both.reset_counters();
  EXPECT_EQ(both.fallbacks(), 0U);
  EXPECT_TRUE(both.try_deallocate(q, 2_KiB, stream));
  EXPECT_TRUE(both.try_deallocate(p, 1_KiB, stream));
  EXPECT_TRUE(both.try_deallocate(r, 3_KiB, stream));
  EXPECT_EQ(ledger.live() + second.live(), 0U);
}

TEST_F(fallback_test, only_a_shortage_leads_to_the_second) {
  ledger_resource second{gpu};
  auto both = fallback_resource::create(ledger, second).value();
  for (const errc code : {errc::device_lost, errc::bad_stream, errc::size_overflow}) {
    ledger.refuse({code});
    EXPECT_EQ(code_of(both.try_allocate(1_KiB, stream)), code);
  }
  EXPECT_EQ(second.requests(), 0);
  ledger.refuse({errc::out_of_memory});
  second.refuse({errc::out_of_memory});
  EXPECT_EQ(code_of(both.try_allocate(1_KiB, stream)), errc::out_of_memory);
  EXPECT_EQ(both.fallbacks(), 0U) << "nobody met that one";
}

TEST_F(fallback_test, nothing_is_no_block_of_either) {
  ledger_resource second{gpu};
  auto both = fallback_resource::create(ledger, second).value();
  ledger.refuse({errc::out_of_memory});
  EXPECT_EQ(both.try_allocate(0_B, stream).value(), nullptr);
  EXPECT_EQ(second.requests(), 1);
  EXPECT_EQ(both.fallbacks(), 0U);
}

TEST_F(fallback_test, promises_only_what_both_keep) {
  const ledger_resource managed{gpu, memory_kind::managed};
  EXPECT_EQ(fallback_resource::create(managed, managed).value().kind(), memory_kind::managed);
  EXPECT_EQ(fallback_resource::create(ledger, managed).value().kind(), memory_kind::device);
  EXPECT_EQ(fallback_resource::create(managed, ledger).value().kind(), memory_kind::device);
  EXPECT_EQ(code_of(fallback_resource::create(ledger, ledger_resource(other_gpu))),
            errc::invalid_argument);
}

// --- retry --------------------------------------------------------------------------------------

using retry_test = resources_test;

TEST_F(retry_test, asks_until_there_is_room) {
  std::vector<unsigned> attempts;
  auto patient = retry_resource::create(ledger, [&](bytes needed, unsigned attempt) {
                   EXPECT_EQ(needed, 1_KiB);
                   attempts.push_back(attempt);
                   return true;
                 }).value();
  ledger.refuse({errc::out_of_memory, errc::out_of_memory, errc::out_of_memory});
  void* const p = patient.try_allocate(1_KiB, stream).value();
  EXPECT_THAT(attempts, ::testing::ElementsAre(1U, 2U, 3U));
  EXPECT_EQ(patient.recoveries(), 1U) << "one request recovered, not three retries";
  patient.reset_counters();
  EXPECT_EQ(patient.recoveries(), 0U);
  EXPECT_TRUE(patient.try_deallocate(p, 1_KiB, stream));
}

TEST_F(retry_test, tries_eight_times_unless_told_otherwise) {
  int calls = 0;
  auto patient =
      retry_resource::create(ledger, [&](bytes, unsigned) { return ++calls > 0; }).value();
  ledger.refuse({errc::out_of_memory, errc::out_of_memory, errc::out_of_memory, errc::out_of_memory,
                 errc::out_of_memory, errc::out_of_memory, errc::out_of_memory, errc::out_of_memory,
                 errc::out_of_memory});
  EXPECT_EQ(code_of(patient.try_allocate(1_KiB, stream)), errc::out_of_memory);
  EXPECT_EQ(calls, 8);
  EXPECT_EQ(ledger.requests(), 9);
  auto hasty = retry_resource::create(
                   ledger, [&](bytes, unsigned) { return ++calls > 0; }, 0)
                   .value();
  ledger.refuse({errc::out_of_memory});
  EXPECT_EQ(code_of(hasty.try_allocate(1_KiB, stream)), errc::out_of_memory);
  EXPECT_EQ(calls, 8) << "never";
}

TEST_F(retry_test, a_callback_may_use_another_such_resource_which_calls_its_own) {
  std::optional<retry_resource> outer;
  std::vector<std::string> called;
  const auto inner = retry_resource::create(ledger, [&](bytes, unsigned) {
                       called.emplace_back("inner");
                       ledger.refuse({errc::out_of_memory});
                       EXPECT_FALSE(outer->try_allocate(1_B, stream)) << "the outer one runs";
                       return false;
                     }).value();
  outer = retry_resource::create(ledger, [&](bytes, unsigned) {
            called.emplace_back("outer");
            ledger.refuse({errc::out_of_memory});
            EXPECT_FALSE(inner.try_allocate(2_B, stream));
            return false;
          }).value();
  for (int i = 0; i < 2; ++i) {
    ledger.refuse({errc::out_of_memory});
    EXPECT_FALSE(outer->try_allocate(3_B, stream));
  }
  EXPECT_THAT(called, ::testing::ElementsAre("outer", "inner", "outer", "inner"));
  outer.reset();
}

TEST_F(retry_test, counts_only_real_recoveries) {
  bool helps = true;
  auto patient = retry_resource::create(
                     ledger, [&](bytes, unsigned) { return helps; }, 2)
                     .value();
  void* const p = patient.try_allocate(1_KiB, stream).value();
  EXPECT_EQ(patient.recoveries(), 0U) << "nothing was wrong";
  EXPECT_TRUE(patient.try_deallocate(p, 1_KiB, stream));
  ledger.refuse({errc::out_of_memory, errc::out_of_memory, errc::out_of_memory});
  EXPECT_EQ(code_of(patient.try_allocate(1_KiB, stream)), errc::out_of_memory);
  EXPECT_EQ(ledger.requests(), 1 + 3) << "two retries at most";
  EXPECT_EQ(patient.recoveries(), 0U);
  helps = false;
  ledger.refuse({errc::out_of_memory});
  EXPECT_EQ(code_of(patient.try_allocate(1_KiB, stream)), errc::out_of_memory);
  EXPECT_EQ(patient.recoveries(), 0U);
}

TEST_F(retry_test, asks_for_shortages_only) {
  auto patient = retry_resource::create(ledger, [](bytes, unsigned) {
                   ADD_FAILURE() << "there is no shortage";
                   return false;
                 }).value();
  ledger.refuse({errc::device_lost});
  EXPECT_EQ(code_of(patient.try_allocate(1_KiB, stream)), errc::device_lost);
  EXPECT_EQ(code_of(retry_resource::create(ledger, {})), errc::invalid_argument);
}

TEST_F(retry_test, an_error_of_another_kind_ends_it) {
  int calls = 0;
  auto patient =
      retry_resource::create(ledger, [&](bytes, unsigned) { return ++calls > 0; }).value();
  ledger.refuse({errc::out_of_memory, errc::device_lost, errc::out_of_memory});
  EXPECT_EQ(code_of(patient.try_allocate(1_KiB, stream)), errc::device_lost);
  EXPECT_EQ(calls, 1);
}

// A retry is a whole request: the budget below is checked again each time.
TEST_F(retry_test, does_not_go_around_a_budget) {
  auto limited = limiting_resource::create(ledger, 1_MiB).value();
  void* spare = limited.try_allocate(768_KiB, stream).value();
  auto patient = retry_resource::create(limited, [&](bytes, unsigned attempt) {
                   if (attempt == 2) {
                     EXPECT_TRUE(limited.try_deallocate(spare, 768_KiB, stream));
                     spare = nullptr;
                   }
                   return true;
                 }).value();
  EXPECT_EQ(code_of(patient.try_allocate(2_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(ledger.requests(), 1) << "never asked for what is over the budget";
  spare = limited.try_allocate(768_KiB, stream).value();
  void* const p = patient.try_allocate(512_KiB, stream).value();
  EXPECT_EQ(spare, nullptr);
  EXPECT_LE(ledger.peak(), 1_MiB);
  EXPECT_EQ(patient.recoveries(), 1U);
  EXPECT_TRUE(patient.try_deallocate(p, 512_KiB, stream));
}

TEST_F(retry_test, a_callback_may_use_the_resource_and_is_not_asked_from_inside) {
  std::optional<retry_resource> patient;
  int calls = 0;
  patient = retry_resource::create(ledger, [&](bytes, unsigned) {
              ++calls;
              ledger.refuse({errc::out_of_memory});
              EXPECT_FALSE(patient->try_allocate(1_B, stream));
              return true;
            }).value();
  ledger.refuse({errc::out_of_memory});
  void* const p = patient->try_allocate(1_KiB, stream).value();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(patient->try_deallocate(p, 1_KiB, stream));
  patient.reset();
}

TEST_F(retry_test, what_the_callback_throws_reaches_the_caller) {
  auto patient = retry_resource::create(ledger, [](bytes, unsigned) -> bool {
                   throw std::runtime_error{"enough"};
                 }).value();
  ledger.refuse({errc::out_of_memory, errc::out_of_memory});
  for (int i = 0; i < 2; ++i)
    EXPECT_THROW(static_cast<void>(patient.try_allocate(1_KiB, stream)), std::runtime_error)
        << "and the next shortage asks again";
}

}  // namespace
}  // namespace weir::testing_support
