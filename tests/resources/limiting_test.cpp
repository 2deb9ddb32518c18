// SPDX-License-Identifier: Apache-2.0
// limiting_resource: the budget holds, at every moment and for every thread.
#include <atomic>
#include <chrono>
#include <semaphore>
#include <stdexcept>
#include <thread>

#include "resources/resources_fixture.hpp"
#include "support/watched_thread.hpp"
#include "weir/resource/limiting_resource.hpp"
#include "weir/resource/retry_resource.hpp"

namespace weir::testing_support { namespace {

using limiting_test = resources_test;

TEST_F(limiting_test, refuses_what_is_over_the_budget_and_takes_what_is_not) {
  auto limited = limiting_resource::create(ledger, 10_KiB).value();
  void* const six = limited.try_allocate(6_KiB, stream).value();
  const auto refused = limited.try_allocate(4_KiB + 1_B, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(),
            (error{{.code = errc::out_of_memory,
                    .requested = 4_KiB + 1_B,
                    .detail = "the limit of this resource: 6 KiB of 10 KiB are used"}}));
  EXPECT_EQ(ledger.requests(), 1) << "the upstream is not asked for what is over the budget";
  void* const four = limited.try_allocate(4_KiB, stream).value();
  EXPECT_EQ(limited.used(), limited.limit());
  EXPECT_TRUE(limited.try_deallocate(six, 6_KiB, stream));
  EXPECT_TRUE(limited.try_deallocate(four, 4_KiB, stream));
  EXPECT_EQ(limited.used(), 0_B);
}

TEST_F(limiting_test, no_size_wraps_around_the_budget) {
  auto limited = limiting_resource::create(ledger, 1_MiB).value();
  void* const some = limited.try_allocate(1_KiB, stream).value();
  for (const bytes size : {bytes::max(), bytes::max() - 1_KiB, bytes::max() - 1023_B})
    EXPECT_EQ(code_of(limited.try_allocate(size, stream)), errc::out_of_memory);
  EXPECT_EQ(limited.used(), 1_KiB);
  EXPECT_TRUE(limited.try_deallocate(some, 1_KiB, stream));
}

TEST_F(limiting_test, what_the_upstream_refuses_costs_no_budget) {
  auto limited = limiting_resource::create(ledger, 1_MiB).value();
  ledger.refuse({errc::out_of_memory, errc::device_lost});
  EXPECT_EQ(code_of(limited.try_allocate(1_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(code_of(limited.try_allocate(1_MiB, stream)), errc::device_lost);
  EXPECT_EQ(limited.used(), 0_B);
}

TEST_F(limiting_test, a_free_that_fails_gives_no_budget_back) {
  auto limited = limiting_resource::create(ledger, 1_MiB).value();
  void* const p = limited.try_allocate(1_MiB, stream).value();
  ledger.refuse_free({errc::bad_stream});
  EXPECT_EQ(code_of(limited.try_deallocate(p, 1_MiB, stream)), errc::bad_stream);
  EXPECT_EQ(limited.used(), 1_MiB);
  EXPECT_TRUE(limited.try_deallocate(p, 1_MiB, stream));
  EXPECT_EQ(limited.used(), 0_B);
}

TEST_F(limiting_test, wrong_frees_do_not_bend_the_budget) {
  auto limited = limiting_resource::create(ledger, 1_MiB).value();
  void* const p = limited.try_allocate(1_KiB, stream).value();
  void* const q = limited.try_allocate(1_KiB, stream).value();
  EXPECT_EQ(
      limited.try_deallocate(p, 512_KiB, stream).error(),
      (error{
          {.code = errc::invalid_argument,
           .requested = 512_KiB,
           .detail = "the block was freed with another size than it was allocated with, 1 KiB"}}));
  EXPECT_EQ(limited.used(), 1_KiB) << "it is gone, with the size that was asked for";
  EXPECT_EQ(code_of(limited.try_deallocate(p, 1_KiB, stream)), errc::double_free);
  EXPECT_EQ(code_of(limited.try_deallocate(&limited, 1_KiB, stream)), errc::foreign_pointer);
  EXPECT_EQ(limited.used(), 1_KiB);
  EXPECT_TRUE(limited.try_deallocate(q, 1_KiB, stream));
}

TEST_F(limiting_test, nothing_costs_nothing) {
  auto limited = limiting_resource::create(ledger, 0_B).value();
  EXPECT_EQ(limited.limit(), 0_B);
  EXPECT_EQ(limited.try_allocate(0_B, stream).value(), nullptr);
  EXPECT_EQ(code_of(limited.try_allocate(1_B, stream)), errc::out_of_memory);
  EXPECT_TRUE(limited.try_deallocate(nullptr, 1_KiB, stream));
  EXPECT_EQ(limited.used(), 0_B);
}

/// A resource that hands out nothing, whatever the size, and calls that no error.
struct empty_handed_resource {
  result<void*> try_allocate(bytes, const stream_ref&, bytes) { return nullptr; }
  result<void> try_deallocate(void*, bytes, const stream_ref&) { return errc::foreign_pointer; }
  [[nodiscard]] weir::device device() const { return home; }
  friend bool operator==(const empty_handed_resource&, const empty_handed_resource&) = default;
  weir::device home;
};

TEST_F(limiting_test, an_upstream_that_hands_out_nothing_costs_no_budget) {
  auto limited = limiting_resource::create(empty_handed_resource{gpu}, 1_KiB).value();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(limited.try_allocate(1_KiB, stream).value(), nullptr);
  EXPECT_EQ(limited.used(), 0_B);
}

TEST_F(limiting_test, the_latest_frees_are_remembered) {
  auto limited = limiting_resource::create(ledger, 1_MiB).value();
  std::vector<void*> all;
  for (int i = 0; i < 32; ++i) all.push_back(limited.try_allocate(1_KiB, stream).value());
  for (void* const each : all) EXPECT_TRUE(limited.try_deallocate(each, 1_KiB, stream));
  for (void* const each : all)
    EXPECT_EQ(code_of(limited.try_deallocate(each, 1_KiB, stream)), errc::double_free);
}

// Each part of the table remembers 32. Were all pointers in one part, threads would wait for each
// other, too.
TEST_F(limiting_test, the_live_are_spread_over_the_table) {
  auto limited = limiting_resource::create(ledger, 1_MiB).value();
  std::vector<void*> all;
  for (int i = 0; i < 256; ++i) all.push_back(limited.try_allocate(1_KiB, stream).value());
  for (void* const each : all) EXPECT_TRUE(limited.try_deallocate(each, 1_KiB, stream));
  for (void* const each : all)
    EXPECT_EQ(code_of(limited.try_deallocate(each, 1_KiB, stream)), errc::double_free);
}

TEST_F(limiting_test, what_went_with_the_driver_is_not_live) {
  auto limited = limiting_resource::create(ledger, 1_MiB).value();
  void* const p = limited.try_allocate(1_KiB, stream).value();
  ledger.refuse_free({errc::driver_gone});
  EXPECT_EQ(code_of(limited.try_deallocate(p, 1_KiB, stream)), errc::driver_gone);
  EXPECT_EQ(code_of(limited.try_deallocate(p, 1_KiB, stream)), errc::double_free);
}

TEST_F(limiting_test, a_lower_limit_is_for_requests_to_come) {
  auto limited = limiting_resource::create(ledger, 1_MiB).value();
  void* const p = limited.try_allocate(512_KiB, stream).value();
  limited.set_limit(256_KiB);
  EXPECT_EQ(code_of(limited.try_allocate(1_B, stream)), errc::out_of_memory);
  EXPECT_TRUE(limited.try_deallocate(p, 512_KiB, stream));
  void* const q = limited.try_allocate(256_KiB, stream).value();
  EXPECT_TRUE(limited.try_deallocate(q, 256_KiB, stream));
}

// Checked and then taken, in two steps, two threads would pass together.
TEST_F(limiting_test, threads_cannot_pass_together) {
  constexpr int threads = 4, rounds = 3'000;
  auto limited = limiting_resource::create(ledger, 3_KiB).value();  // room for three of four
  std::atomic<int> granted{0}, refused{0};
  std::vector<std::thread> crowd;
  for (int t = 0; t < threads; ++t) {
    crowd.emplace_back([&] {
      for (int i = 0; i < rounds; ++i) {
        const auto p = limited.try_allocate(1_KiB, stream);
        if (!p) {
          EXPECT_EQ(p.code(), errc::out_of_memory);
          ++refused;
          continue;
        }
        ++granted;
        EXPECT_TRUE(limited.try_deallocate(*p, 1_KiB, stream));
      }
    });
  }
  for (std::thread& each : crowd) each.join();
  EXPECT_LE(ledger.peak(), 3_KiB);
  EXPECT_EQ(limited.used(), 0_B);
  EXPECT_EQ(granted + refused, threads * rounds);
}

// Added first and checked then, a hopeless request would make others fail meanwhile.
TEST_F(limiting_test, a_hopeless_request_disturbs_nobody) {
  auto limited = limiting_resource::create(ledger, 8_KiB).value();
  std::atomic<bool> over{false};
  std::thread hopeless{[&] {
    while (!over) EXPECT_FALSE(limited.try_allocate(1_GiB, stream));
  }};
  for (int i = 0; i < 5'000; ++i) {
    const auto p = limited.try_allocate(8_KiB, stream);
    ASSERT_TRUE(p);
    ASSERT_TRUE(limited.try_deallocate(*p, 8_KiB, stream));
  }
  over = true;
  hopeless.join();
}

TEST_F(limiting_test, AnExceptionCostsNoBudget) {
  const auto throwing = retry_resource::create(ledger, [](bytes, unsigned) -> bool {
                          throw std::runtime_error{"callback"};
                        }).value();
  const auto limited = limiting_resource::create(throwing, 1_MiB).value();
  for (int i = 0; i < 3; ++i) {
    ledger.refuse({errc::out_of_memory});
    EXPECT_THROW(static_cast<void>(limited.try_allocate(1_MiB, stream)), std::runtime_error);
    EXPECT_EQ(limited.used(), 0_B);
  }
  void* const p = limited.try_allocate(1_MiB, stream).value();
  EXPECT_TRUE(limited.try_deallocate(p, 1_MiB, stream));
}

TEST_F(limiting_test, NothingIsNullWhateverIsUsed) {
  const auto limited = limiting_resource::create(ledger, 1_MiB).value();
  void* const p = limited.try_allocate(512_KiB, stream).value();
  limited.set_limit(1_KiB);
  EXPECT_EQ(limited.try_allocate(0_B, stream).value(), nullptr);
  EXPECT_TRUE(limited.try_deallocate(p, 512_KiB, stream));
}

/// A ledger that takes its time over large requests.
class slow_resource {
 public:
  struct gate {
    std::binary_semaphore begun{0};
    std::binary_semaphore end{0};
  };
  explicit slow_resource(ledger_resource under)
      : under_{std::move(under)}, gate_{std::make_shared<gate>()} {}

  result<void*> try_allocate(bytes size, const stream_ref& stream, bytes alignment) {
    if (size >= 1_MiB) {
      gate_->begun.release();
      gate_->end.acquire();
    }
    return under_.try_allocate(size, stream, alignment);
  }
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) {
    return under_.try_deallocate(pointer, size, stream);
  }
  [[nodiscard]] weir::device device() const { return under_.device(); }
  [[nodiscard]] gate& slow() const { return *gate_; }
  friend bool operator==(const slow_resource&, const slow_resource&) = default;

 private:
  ledger_resource under_;
  std::shared_ptr<gate> gate_;
};

TEST_F(limiting_test, ARequestThatTheUpstreamRefusesMakesNoOtherOneFail) {
  const slow_resource slow{ledger};
  const auto limited = limiting_resource::create(slow, 1_MiB).value();
  ledger.refuse({errc::out_of_memory});
  std::thread large{
      [&] { EXPECT_EQ(code_of(limited.try_allocate(1_MiB, stream)), errc::out_of_memory); }};
  slow.slow().begun.acquire();
  void* p = nullptr;
  {
    const watched_thread small{[&] { p = limited.try_allocate(1_KiB, stream).value_or(nullptr); }};
    EXPECT_TRUE(small.falls_asleep()) << "it waits for the other one";
    EXPECT_EQ(limited.used(), 0_B);
    slow.slow().end.release();
  }
  large.join();
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(limited.used(), 1_KiB);
  EXPECT_TRUE(limited.try_deallocate(p, 1_KiB, stream));
}

TEST_F(limiting_test, ARequestFailsOnceTheOneBeforeItWasMet) {
  const slow_resource slow{ledger};
  const auto limited = limiting_resource::create(slow, 1_MiB).value();
  void* p = nullptr;
  std::thread large{[&] { p = limited.try_allocate(1_MiB, stream).value_or(nullptr); }};
  slow.slow().begun.acquire();
  std::optional<errc> refused;
  {
    const watched_thread small{[&] { refused = code_of(limited.try_allocate(1_KiB, stream)); }};
    EXPECT_TRUE(small.falls_asleep());
    slow.slow().end.release();
  }
  large.join();
  EXPECT_EQ(refused, errc::out_of_memory);
  EXPECT_EQ(ledger.peak(), 1_MiB);
  EXPECT_TRUE(limited.try_deallocate(p, 1_MiB, stream));
}

// Its callback may wait for the other thread's request, which must not wait for it.
TEST_F(limiting_test, NobodyWaitsForARequestWhoseUserIsFreeingMemory) {
  std::binary_semaphore begun{0};
  std::binary_semaphore end{0};
  const auto retrying = retry_resource::create(ledger, [&](bytes, unsigned) {
                          begun.release();
                          end.acquire();
                          return false;
                        }).value();
  const auto limited = limiting_resource::create(retrying, 1_MiB).value();
  ledger.refuse({errc::out_of_memory});
  std::thread large{
      [&] { EXPECT_EQ(code_of(limited.try_allocate(1_MiB, stream)), errc::out_of_memory); }};
  begun.acquire();
  EXPECT_EQ(code_of(limited.try_allocate(1_KiB, stream)), errc::out_of_memory);
  end.release();
  large.join();
}

TEST_F(limiting_test, NobodyWaitsForARequestWhoseUserHasCalledAnotherRetryResource) {
  const ledger_resource elsewhere{gpu};
  const auto inner =
      retry_resource::create(elsewhere, [](bytes, unsigned) { return false; }).value();
  std::binary_semaphore begun{0};
  std::binary_semaphore end{0};
  const auto retrying =
      retry_resource::create(ledger, [&](bytes, unsigned) {
        EXPECT_EQ(code_of(inner.try_allocate(1_KiB, stream)), errc::out_of_memory);
        begun.release();
        end.acquire();
        return false;
      }).value();
  const auto limited = limiting_resource::create(retrying, 1_MiB).value();
  ledger.refuse({errc::out_of_memory});
  ledger_resource{elsewhere}.refuse({errc::out_of_memory});
  std::thread large{
      [&] { EXPECT_EQ(code_of(limited.try_allocate(1_MiB, stream)), errc::out_of_memory); }};
  begun.acquire();
  const auto asked = std::chrono::steady_clock::now();
  EXPECT_EQ(code_of(limited.try_allocate(1_KiB, stream)), errc::out_of_memory);
  EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds{8})
      << "a request waits for others for 10 s at most, and for this one not at all";
  end.release();
  large.join();
  EXPECT_EQ(ledger.requests(), 1) << "the small request never got that far";
}

TEST_F(limiting_test, ACallbackThatAsksForMemoryDoesNotWaitForItself) {
  std::optional<limiting_resource> limited;
  std::optional<errc> inner;
  const auto retrying = retry_resource::create(ledger, [&](bytes, unsigned) {
                          inner = code_of(limited->try_allocate(1_KiB, stream));
                          return false;
                        }).value();
  limited = limiting_resource::create(retrying, 1_MiB).value();
  ledger.refuse({errc::out_of_memory});
  EXPECT_EQ(code_of(limited->try_allocate(1_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(inner, errc::out_of_memory);
}

}  // namespace
}  // namespace weir::testing_support
