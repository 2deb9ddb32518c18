// SPDX-License-Identifier: Apache-2.0
// What was allocated goes back where the host has no memory to remember it with.
#include <utility>

#include "resources/driver_memory.hpp"
#include "resources/resources_fixture.hpp"
#include "support/scarce_memory.hpp"
#include "weir/resource/aligned_resource.hpp"
#include "weir/resource/fallback_resource.hpp"
#include "weir/resource/limiting_resource.hpp"
#include "weir/resource/statistics_resource.hpp"
#include "weir/resource/tracking_resource.hpp"

namespace weir::testing_support { namespace {

/// A ledger after whose allocations, if they succeed, the host has no memory.
class last_straw {
 public:
  explicit last_straw(ledger_resource under) : under_{std::move(under)} {}

  result<void*> try_allocate(bytes size, const stream_ref& stream, bytes alignment) {
    auto pointer = under_.try_allocate(size, stream, alignment);
    if (pointer) scarce_memory::fail_next();
    return pointer;
  }
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) {
    return under_.try_deallocate(pointer, size, stream);
  }
  [[nodiscard]] weir::device device() const { return under_.device(); }
  [[nodiscard]] memory_kind kind() const noexcept { return under_.kind(); }
  friend bool operator==(const last_straw&, const last_straw&) = default;

 private:
  ledger_resource under_;
};

class host_memory_test : public resources_test {
 protected:
  /// What `adaptor` says of a request, how often it asked its upstream, and what that then has.
  template <class Adaptor>
  void expect_nothing_kept(const Adaptor& adaptor, int asked = 1) {
    const int before = ledger.requests();
    const auto refused = adaptor.try_allocate(4_KiB, stream);
    EXPECT_TRUE(scarce_memory::take_failure()) << "nothing was allocated";
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error(), error{{.code = errc::no_host_memory}});
    EXPECT_EQ(ledger.requests(), before + asked);
    EXPECT_EQ(ledger.live(), 0U);
  }

  any_resource upstream{last_straw{ledger}};
};

TEST_F(host_memory_test, adaptors_keep_nothing_that_they_cannot_remember) {
  expect_nothing_kept(aligned_resource::create(upstream, 256_B).value());
  expect_nothing_kept(aligned_resource::create(upstream, 4_KiB).value(), 2);  // then with padding
  expect_nothing_kept(tracking_resource::create(upstream, {.stacks = false}).value());
  const auto limited = limiting_resource::create(upstream, 4_KiB).value();
  expect_nothing_kept(limited);
  EXPECT_EQ(limited.used(), 0_B);
  const auto counted = statistics_resource::create(upstream).value();
  expect_nothing_kept(counted);
  EXPECT_EQ(counted.stats(), resource_stats{});
}

TEST_F(host_memory_test, a_fallback_gives_back_to_the_one_that_gave) {
  const ledger_resource other{gpu};
  const auto first = fallback_resource::create(upstream, other).value();
  expect_nothing_kept(first);
  EXPECT_EQ(first.fallbacks(), 0U);
  EXPECT_EQ(other.requests(), 0);
  ledger_resource refuses{gpu};
  refuses.refuse({errc::out_of_memory});
  const auto second = fallback_resource::create(refuses, upstream).value();
  expect_nothing_kept(second);
  EXPECT_EQ(second.fallbacks(), 0U);
}

TEST_F(host_memory_test, driver_memory_goes_back_to_the_driver) {
  resources::driver_memory memory{
      gpu, [](const context_scope& bound, bytes size) -> result<device_address> {
        auto address = allocate_plain(bound, size);
        scarce_memory::fail_next();
        return address;
      }};
  const auto refused = memory.allocate(1_MiB, stream, 256_B);
  EXPECT_TRUE(scarce_memory::take_failure()) << "nothing was allocated";
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), error{{.code = errc::no_host_memory}});
  EXPECT_EQ(machine->calls(driver::call::mem_alloc), 1U);
  EXPECT_EQ(machine->calls(driver::call::mem_free), 1U);
  EXPECT_EQ(memory.in_use(), 0_B);
}

// Where there is none for the stack the upstream is not asked at all.
TEST_F(host_memory_test, tracking_has_its_stack_first) {
  const auto tracked = tracking_resource::create(ledger).value();
  static_cast<void>(tracked.live());
  scarce_memory::fail_next();
  const auto refused = tracked.try_allocate(4_KiB, stream);
  EXPECT_TRUE(scarce_memory::take_failure());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), error{{.code = errc::no_host_memory}});
  EXPECT_EQ(ledger.requests(), 0);
  EXPECT_EQ(ledger.live(), 0U);
}

}  // namespace
}  // namespace weir::testing_support
