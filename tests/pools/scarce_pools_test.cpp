// SPDX-License-Identifier: Apache-2.0
// Pools where the host has no memory: whichever allocation fails, it is told and nothing is lost.
#include <array>

#include "support/scarce_machine.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"
#include "weir/pool/stream_pool.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;

class scarce_pools : public scarce_machine {
 protected:
  template <class Pool>
  void use(const Pool& pool) {
    auto passing = stream::create(gpu());
    if (!met(passing)) return;
    std::array<void*, 6> blocks{};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto memory =
          pool.try_allocate(4_KiB * (std::uint64_t{1} << i), i % 2 == 0 ? one : *passing);
      if (met(memory)) blocks[i] = *memory;
    }
    if (blocks[0] != nullptr) met(pool.record_stream(blocks[0], two));
    met(pool.record_stream(blocks[1], *passing), errc::invalid_argument);
    if (blocks[4] != nullptr) met(pool.record_stream(blocks[4], far));
    const auto distant = pool.try_allocate(4_KiB, far);
    if (met(distant, errc::bad_stream)) free([&] { return pool.try_deallocate(*distant); });
    for (const stream_ref& each : {one.ref(), two.ref(), passing->ref()}) work(each);
    met(pool.try_deallocate(this, one), errc::foreign_pointer);
    if (blocks[2] != nullptr) {
      met(pool.try_deallocate(blocks[2], 1_B, one), errc::invalid_argument);
      // Not freed where there was no memory before.
      if (!pool.try_deallocate(blocks[2], one))
        met(pool.try_deallocate(blocks[2], one), errc::double_free);
    }
    if (blocks[3] != nullptr) free([&] { return pool.try_deallocate(blocks[3]); });
    if (blocks[0] != nullptr) free([&] { return pool.try_deallocate(blocks[0], one); });
    met(passing->close());
    const auto crossing = pool.try_allocate(32_KiB, two);
    if (met(crossing)) pool.deallocate(*crossing, two);
    met(pool.trim());
    met(pool.set_threshold(8_KiB));
    met(pool.release_stream(two));
    met(pool.empty_cache());
    EXPECT_LE(pool.stats().cached, pool.stats().reserved.current);
    for (const int each : {1, 4})
      if (blocks[each] != nullptr) free([&] { return pool.try_deallocate(blocks[each]); });
    if (blocks[5] != nullptr) free([&] { return pool.try_deallocate(blocks[5], far); });
  }
};

TEST_F(scarce_pools, ABinPoolLosesNothing) {
  for (const crossing_rule rule : {crossing_rule::all_work, crossing_rule::declared_uses}) {
    sweep([&] {
      const auto pool = bin_pool::create(gpu(), {.crossing = rule});
      if (!met(pool)) return;
      use(*pool);
      const auto large = pool->try_allocate(1_GiB, one);
      work(one);
      if (met(large)) free([&] { return pool->try_deallocate(*large, one); });
      // Does not fit beside what is cached, and needs a wait for its stream.
      const auto next = pool->try_allocate(1536_MiB, two);
      if (met(next, errc::out_of_memory)) free([&] { return pool->try_deallocate(*next, two); });
      met(pool->try_allocate(1_TiB, one), errc::out_of_memory);
    });
  }
}

TEST_F(scarce_pools, APinnedPoolLosesNothing) {
  sweep([&] {
    const auto pool = pinned_pool::create(gpu());
    if (met(pool)) use(*pool);
  });
}

TEST_F(scarce_pools, AClosedPoolLosesNothing) {
  sweep([&] {
    const auto pool = bin_pool::create(gpu());
    if (!met(pool)) return;
    const auto first = pool->try_allocate(1_MiB, one);
    const auto second = pool->try_allocate(2_MiB, one);
    work(one);
    if (met(second)) free([&] { return pool->try_deallocate(*second, one); });
    met(pool->close());
    if (met(first)) free([&] { return pool->try_deallocate(*first, one); });
  });
}

TEST_F(scarce_pools, BuffersOfPoolsLoseNothing) {
  sweep([&] {
    const auto pool = bin_pool::create(gpu());
    if (!met(pool)) return;
    auto first = pooled_buffer<int>::create(*pool, 1024, one, contents::zeroed);
    auto second = pooled_buffer<int>::create(*pool, 1024, two);
    if (met(first)) met(first->record_stream(two));
    if (met(second)) met(second->free(one));
  });
}

TEST_F(scarce_pools, ABufferPoolLosesNothing) {
  sweep([&] {
    const auto pool = buffer_pool::create({.max_cached = 1_MiB});
    if (!met(pool)) return;
    auto first = pool->take<int>(1024, one, contents::zeroed);
    auto second = pool->take<int>(1 << 20, far);
    met(first);
    if (met(second)) met(second->record_stream(far));
    const auto foreign = buffer_pool::create();
    if (first && met(foreign)) met(foreign->free(std::move(*first), one), errc::foreign_pointer);
    if (first) met(pool->free(std::move(*first), two));
    work(one);
    met(pool->try_take_cached<int>(1024, two), errc::not_found);
    met(pool->trim());
    met(pool->empty_cache(gpu(1)));
    EXPECT_LE(pool->stats().hits, 1u);
    met(pool->close());
  });
}

TEST_F(scarce_pools, AStreamPoolLosesNothing) {
  sweep([&] {
    const auto pool = stream_pool::create(gpu(), {.initial = 2_MiB, .max = 256_MiB});
    if (!met(pool)) return;
    auto passing = stream::create(gpu(1));
    auto owner = pool->allocate_owned(1_MiB, one);
    if (met(owner)) met(owner->free());
    met(pool->enable_peer(gpu(1)));
    auto other = met(passing) ? pool->allocate_owned(1_MiB, *passing) : errc::not_found;
    met(other, errc::not_found);
    if (passing) met(passing->close());
    const auto memory = pool->try_allocate(1_MiB, one, 4_KiB);
    met(pool->try_allocate(1_TiB, one), errc::out_of_memory);
    met(pool->try_allocate(256_MiB, one), errc::out_of_memory);
    met(pool->try_deallocate(this, one), errc::foreign_pointer);
    if (met(memory)) {
      met(pool->try_deallocate(*memory, 1_B, one), errc::invalid_argument);
      if (!pool->try_deallocate(*memory, one))
        met(pool->try_deallocate(*memory, one), errc::double_free);
    }
    met(pool->set_threshold(1_MiB));
    met(pool->stats());
    met(pool->trim());
  });
}

TEST_F(scarce_pools, AStreamPoolThatIsClosedLosesNothing) {
  sweep([&] {
    const auto pool = stream_pool::create(gpu());
    if (!met(pool)) return;
    auto owner = pool->allocate_owned(1_MiB, one);
    met(owner);
    met(pool->close());
    if (owner) free([&] { return owner->is_freed() ? result<void>{} : owner->free(); });
  });
}

TEST_F(scarce_pools, TheDefaultPoolLosesNothing) {
  sweep([&] {
    auto memory = stream_alloc(1_MiB, one);
    if (met(memory)) free([&] { return stream_free(*memory); });
    met(one.synchronize());
    const auto pool = stream_pool::default_of(gpu());
    if (met(pool)) met(pool->trim());
  });
}

TEST_F(scarce_pools, SharedStreamPoolsLoseNothing) {
  sweep([&] {
    const auto shared =
        stream_pool::create(gpu(), {.handles = stream_pool_handles::posix_descriptor});
    if (!met(shared)) return;
    auto memory = shared->allocate_owned(1_MiB, one);
    const auto sent = shared->export_descriptor();
    if (!met(memory) || !met(sent)) return;
    const auto pointer = shared->export_pointer(memory->data());
    const auto imported = stream_pool::import_descriptor(gpu(), sent->get());
    if (!met(pointer) || !met(imported)) return;
    auto taken = imported->import_pointer(*pointer, two);
    if (met(taken)) met(taken->free());
  });
}

}  // namespace
}  // namespace weir::testing_support
