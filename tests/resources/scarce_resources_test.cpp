// SPDX-License-Identifier: Apache-2.0
// Every resource where the host has no memory: whichever allocation fails, it is told and nothing
// is lost.
#include <functional>
#include <memory_resource>
#include <string_view>

#include "support/scarce_machine.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/resource/resources.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;

class scarce_resources : public scarce_machine {
 protected:
  /// Allocates and frees, rightly and wrongly, and leaves nothing live.
  template <class Memory>
  void use(const Memory& memory, bool is_bounded = true) {
    const auto first = memory.try_allocate(4_KiB, one, 256_B);
    const auto second = memory.try_allocate(8_KiB, two, 256_B);
    met(memory.try_allocate(0_B, one, 256_B));
    if (is_bounded) met(memory.try_allocate(1_TiB, one, 256_B), errc::out_of_memory);
    work(one);
    met(memory.try_deallocate(this->machine.get(), 4_KiB, one), errc::foreign_pointer);
    if (met(first)) {
      free([&] { return memory.try_deallocate(*first, 4_KiB, one); });
      met(memory.try_deallocate(*first, 4_KiB, one), errc::double_free);
    }
    if (!met(second)) return;
    // A wrong size is told, and the memory is freed all the same, unless there was no host memory.
    const auto wrong = memory.try_deallocate(*second, 4_KiB, two);
    EXPECT_FALSE(wrong);
    if (wrong.code() == errc::no_host_memory)
      free([&] { return memory.try_deallocate(*second, 8_KiB, two); });
    else
      met(wrong, errc::invalid_argument);
  }
  /// Makes an adaptor of a pool and uses it.
  template <class Create>
  void sweep_over_pool(const Create& create) {
    sweep([&] {
      const auto pool = bin_pool::create(gpu());
      if (!met(pool)) return;
      const auto adaptor = create(resource(*pool));
      if (met(adaptor)) use(*adaptor);
    });
  }
  /// What callers make themselves: a constructor cannot but throw.
  template <class Pool>
  [[nodiscard]] static any_resource resource(const Pool& pool) {
    const spared_memory spared;
    return pool;
  }
};

TEST_F(scarce_resources, PlainAndManagedMemoryLoseNothing) {
  sweep([&] {
    const auto plain = plain_resource::create(gpu());
    if (met(plain)) use(*plain);
  });
  sweep([&] {
    const auto managed = managed_resource::create(gpu());
    if (met(managed)) use(*managed, false);
  });
}

TEST_F(scarce_resources, MemoryThatIsLiveAtTheEndIsFreedAndTold) {
  sweep([&] {
    const auto plain = plain_resource::create(gpu());
    if (!met(plain)) return;
    const auto memory = plain->try_allocate(4_KiB, one, 256_B);
    if (met(memory) && !met(plain->try_deallocate(*memory, 4_KiB, one)))
      return;  // it is live, which is reported at the end
  });
}

TEST_F(scarce_resources, AdaptorsLoseNothing) {
  sweep_over_pool([](any_resource under) { return aligned_resource::create(under, 4_KiB); });
  sweep_over_pool([](any_resource under) { return limiting_resource::create(under, 2_TiB); });
  sweep_over_pool([](any_resource under) { return statistics_resource::create(under); });
  sweep_over_pool([](any_resource under) { return tracking_resource::create(under); });
  sweep_over_pool([](any_resource under) { return fallback_resource::create(under, under); });
}

TEST_F(scarce_resources, ALimitThatIsReachedLosesNothing) {
  sweep([&] {
    const auto pool = bin_pool::create(gpu());
    if (!met(pool)) return;
    const auto limited = limiting_resource::create(resource(*pool), 4_KiB);
    if (!met(limited)) return;
    const auto first = limited->try_allocate(4_KiB, one);
    if (met(first)) met(limited->try_allocate(4_KiB, one), errc::out_of_memory);
    if (first) free([&] { return limited->try_deallocate(*first, 4_KiB, one); });
    EXPECT_EQ(limited->used(), 0_B);
  });
}

TEST_F(scarce_resources, ARetryLosesNothing) {
  sweep_over_pool([](any_resource under) {
    return retry_resource::create(under, [](bytes, unsigned attempt) { return attempt < 1; });
  });
}

TEST_F(scarce_resources, ALogLosesNothing) {
  sweep_over_pool([](any_resource under) {
    return logging_resource::create(under,
                                    csv_sink{[](std::string_view) -> result<void> { return {}; }});
  });
}

TEST_F(scarce_resources, MemoryWithoutAStreamLosesNothing) {
  sweep([&] {
    const auto pool = bin_pool::create(gpu());
    if (!met(pool)) return;
    const auto memory = synchronous_resource::create(resource(*pool));
    if (!met(memory)) return;
    const auto block = memory->try_allocate(4_KiB);
    if (met(block)) free([&] { return memory->try_deallocate(*block, 4_KiB); });
  });
}

TEST_F(scarce_resources, AnyResourceReportsWhatItCannotFree) {
  sweep([&] {
    const auto pool = bin_pool::create(gpu());
    if (!met(pool)) return;
    const any_resource memory = resource(*pool);
    const auto block = memory.try_allocate(4_KiB, one);
    if (met(block)) memory.deallocate(*block, 4_KiB, one);
  });
}

TEST_F(scarce_resources, TheCurrentResourceLosesNothing) {
  sweep([&] {
    const auto pool = bin_pool::create(gpu());
    if (!met(pool)) return;
    const any_resource memory = resource(*pool);
    met(set_current_resource(gpu(), memory));
    const auto current = current_resource(gpu());
    if (met(current)) use(*current);
    free([&]() -> result<void> {
      WEIR_TRY(set_current_resource(gpu(), {}));
      return {};
    });
  });
}

}  // namespace
}  // namespace weir::testing_support
