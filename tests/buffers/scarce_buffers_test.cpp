// SPDX-License-Identifier: Apache-2.0
// Buffers and copies where the host has no memory: whichever allocation fails, it is told and
// nothing is lost.
#include <array>
#include <cstddef>
#include <optional>
#include <thread>

#include "support/scarce_machine.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/buffer/device_buffer.hpp"
#include "weir/buffer/device_vector.hpp"
#include "weir/buffer/host_memory.hpp"
#include "weir/buffer/pinned_buffer.hpp"
#include "weir/buffer/staging.hpp"
#include "weir/buffer/unified_buffer.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/pinned_pool.hpp"
#include "weir/resource/plain_resource.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;

class scarce_buffers : public scarce_machine {
 protected:
  /// What callers make themselves: a constructor cannot but throw.
  template <class Pool>
  [[nodiscard]] static any_resource resource(const Pool& pool) {
    const spared_memory spared;
    return pool;
  }
};

TEST_F(scarce_buffers, DeviceBuffersLoseNothing) {
  sweep([&] {
    const auto pool = bin_pool::create(gpu());
    if (!met(pool)) return;
    auto first = device_buffer::create(resource(*pool), 64_KiB, one, contents::zeroed);
    auto second = device_buffer::create(resource(*pool), 64_KiB, two);
    if (!met(first) || !met(second)) return;
    met(first->resize(128_KiB));
    met(first->reserve(256_KiB));
    met(first->shrink_to_fit());
    met(first->join(two));
    met(first->record_stream(far));
    met(copy_between(*second, 0_B, *first, 0_B, 4_KiB));
    met(copy_between(*second, 1_MiB, *first, 0_B, 4_KiB), errc::invalid_argument);
    std::array<std::byte, 64> values{};
    met(first->read(values.data(), 0_B, 64_B));
    met(first->hand_over(two));
    met(first->hand_over(far), errc::bad_stream);
    device_buffer moved = std::move(*second);
    met(first->close());
  });
}

TEST_F(scarce_buffers, BuffersOfPlainMemoryLoseNothing) {
  sweep([&] {
    const auto plain = plain_resource::create(gpu());
    if (!met(plain)) return;
    auto first = device_buffer::create(resource(*plain), 64_KiB, one, contents::zeroed);
    if (met(first)) met(first->resize_discarding(128_KiB));
  });
}

TEST_F(scarce_buffers, ABufferOfAnotherThreadsStreamLosesNothing) {
  sweep([&] {
    const auto pool = bin_pool::create(gpu());
    if (!met(pool)) return;
    std::optional<device_buffer> buffer;
    {
      const spared_memory spared;
      std::thread{[&] {
        buffer = device_buffer::create(*pool, 64_KiB, stream_ref::per_thread(gpu())).value();
      }}.join();
    }
    met(buffer->check_stream(), errc::bad_stream);
    met(buffer->close());
  });
}

TEST_F(scarce_buffers, VectorsLoseNothing) {
  sweep([&] {
    const auto pool = bin_pool::create(gpu());
    if (!met(pool)) return;
    std::array<int, 16> values{};
    auto some = device_vector<int>::create(resource(*pool), 16, one, contents::zeroed);
    if (!met(some)) return;
    met(some->copy_from(values));
    met(some->copy_to(values));
    met(some->fill(3));
    met(some->set(1, 4));
    met(some->get(1));
    met(some->resize(64));
    met(device_vector<int>::copy_of(resource(*pool), std::span<const int>{values}, two));
    met(one.synchronize());
    met(two.synchronize());
  });
}

TEST_F(scarce_buffers, PinnedAndMappedMemoryLosesNothing) {
  std::array<std::byte, 8192> own{};
  sweep([&] {
    const auto pool = pinned_pool::create(gpu());
    if (!met(pool)) return;
    auto pinned = pinned_buffer<int>::zeroed(*pool, 64, one);
    if (met(pinned)) met(pinned->record_stream(two));
    if (pinned) met(pinned->join(two));
    if (pinned) met(pinned->hand_over(two));
    auto mapped = mapped_buffer<int>::create(gpu(), 64);
    if (met(mapped)) met(mapped->close());
    auto registered = registered_memory::create(gpu(), std::span<std::byte>{own});
    if (met(registered)) met(registered->close());
  });
}

TEST_F(scarce_buffers, StagingLosesNothing) {
  std::array<std::byte, 40> values{};
  sweep([&] {
    const auto pool = pinned_pool::create(gpu());
    const auto bins = bin_pool::create(gpu());
    if (!met(pool) || !met(bins)) return;
    auto target = device_buffer::create(resource(*bins), 1_KiB, one);
    auto staging = staging_buffer::create(*pool, one, {.chunk = 16_B});
    if (!met(target) || !met(staging)) return;
    met(staging->upload(target->data(), values));
    met(staging->download(values, target->data()));
  });
}

TEST_F(scarce_buffers, CopiesLoseNothing) {
  const auto pool = bin_pool::create(gpu()).value();
  auto memory = device_buffer::create(pool, 64_KiB, one).value();
  auto* const data = static_cast<std::byte*>(memory.data());
  std::array<std::byte, 1024> host{};
  sweep([&] {
    met(copy_bytes(data, host.data(), 1_KiB, one));
    met(copy_bytes(data, data + 1, 1_KiB, one), errc::invalid_argument);
    met(copy_2d({data, 128_B}, {host.data(), 64_B}, 64_B, 8, one));
    met(copy_2d({data, 8_B}, {host.data(), 64_B}, 64_B, 8, one), errc::invalid_argument);
    met(copy_3d({data, 128_B, 4}, {host.data(), 64_B, 4}, {64_B, 4, 2}, one));
    met(fill_bytes(data, 7, 1_KiB, one));
    met(fill_2d({data, 128_B}, 7, 64_B, 8, one));
    const std::uint64_t pattern = 5;
    met(fill_pattern(data, &pattern, 8_B, 16, one));
    const copy_item items[] = {{data, host.data(), 64_B}, {data + 64, host.data() + 64, 64_B}};
    met(copy_batch(items, one));
    met(one.synchronize());
  });
}

class scarce_unified_buffers : public scarce_machine {
 protected:
  using scarce_machine::scarce_machine;
  /// What a program asks of one. On devices without concurrent access the host waits for them.
  void use(bool concurrent) {
    auto some = unified_buffer<int>::zeroed(1024, one);
    if (!met(some)) return;
    auto passing = stream::create(gpu());
    if (met(passing) && met(some->use_on(*passing))) work(*passing);
    met(some->use_on(far));
    if (passing) met(passing->close());
    const auto early = some->try_view();
    EXPECT_FALSE(early);
    // Where there was no memory for a mark, only waiting can tell about the closed stream.
    if (early.code() != errc::not_ready) met(early, errc::not_supported);
    if (concurrent) {
      met(some->prefetch(gpu(), two));
      met(some->advise_preferred(managed_place::host()));
      met(some->advise_read_mostly());
      met(some->info());
    }
    met(some->view());
    met(some->use_on(two));
    auto behind = event::create(gpu());
    if (met(behind) && met(behind->record(two))) met(some->view(*behind));
    met(some->attach(attachment::host, one));
    met(some->attach(attachment::global, one));
    met(some->resize(2048, one));
    met(some->use_on(one));
    if (concurrent) met(some->close());
  }
};

TEST_F(scarce_unified_buffers, LoseNothing) {
  sweep([&] { use(true); });
}

class scarce_exclusive_devices : public scarce_unified_buffers {
 protected:
  scarce_exclusive_devices() : scarce_unified_buffers{{.concurrent_managed_access = false}} {}
};

TEST_F(scarce_exclusive_devices, LoseNothing) {
  sweep([&] { use(false); });
}

}  // namespace
}  // namespace weir::testing_support
