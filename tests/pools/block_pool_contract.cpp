// SPDX-License-Identifier: Apache-2.0
// What the pools that cache freed blocks promise, checked by what streams read; for any machine.
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>

#include "support/call_counter.hpp"
#include "support/contract_test.hpp"
#include "weir/device/event.hpp"
#include "weir/device/runtime.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/pinned_pool.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;

[[nodiscard]] std::uint64_t calls_so_far() {
  const call_counts now = counted();
  return std::accumulate(now.succeeded.begin(), now.succeeded.end(), std::uint64_t{0}) +
         std::accumulate(now.failed.begin(), now.failed.end(), std::uint64_t{0});
}

class block_pool_contract : public contract_test {
 protected:
  void SetUp() override {
    contract_test::SetUp();
    if (machine == nullptr || IsSkipped() || HasFatalFailure()) return;
    runtime_ = runtime::open_table(*cu, "machine under test", machine).value();
    gpu.emplace(runtime_->device(device_id{contract_test::device}).value());
  }
  void TearDown() override {
    gpu.reset();
    runtime_.reset();
    contract_test::TearDown();
  }

  [[nodiscard]] stream make_stream() const { return stream::create(*gpu).value(); }
  [[nodiscard]] static CUdeviceptr at(const void* memory) {
    return reinterpret_cast<std::uintptr_t>(memory);
  }

  std::shared_ptr<runtime> runtime_;
  std::optional<weir::device> gpu;
};

constexpr std::size_t words_in(bytes size) { return size.count() / sizeof(word); }

TEST_P(block_pool_contract, patterns_survive_random_traffic_of_many_streams) {
  const auto pool = bin_pool::create(*gpu).value();
  struct live_block {
    void* memory;
    bytes size;
    word value;
    std::size_t stream_index;
  };
  std::array<stream, 3> streams{make_stream(), make_stream(), make_stream()};
  std::array<CUdeviceptr, 3> wrong{};  // how many words, as each stream counts them
  for (std::size_t i = 0; i < streams.size(); ++i) {
    wrong[i] = new_memory(sizeof(word));
    WEIR_OK(cu->memset_d32_async(wrong[i], 0, 1, streams[i].handle()));
  }
  std::minstd_rand rng(static_cast<unsigned>(GetParam()) + 7);
  std::vector<live_block> live;
  for (word i = 1; i <= 400; ++i) {
    const std::size_t index = rng() % streams.size();
    const bytes size{(4_KiB).count() << rng() % 4};
    live_block block{pool.allocate(size, streams[index]), size, i * 0x9e3779b9U, index};
    WEIR_OK(fill(at(block.memory), block.value, words_in(size), streams[index].handle()));
    live.push_back(block);
    while (live.size() > rng() % 12) {
      std::swap(live[rng() % live.size()], live.back());
      const live_block last = live.back();
      live.pop_back();
      const stream& home = streams[last.stream_index];
      const std::size_t reader_index = rng() % 3 == 0 ? rng() % streams.size() : last.stream_index;
      const stream& reader = streams[reader_index];
      if (reader_index != last.stream_index) {  // somebody else reads it last
        auto mark = event::create(*gpu).value();
        ASSERT_TRUE(mark.record(home));
        ASSERT_TRUE(reader.wait(mark));
        ASSERT_TRUE(pool.record_stream(last.memory, reader));
      }
      WEIR_OK(check(at(last.memory), last.value, words_in(last.size), wrong[reader_index],
                    reader.handle()));
      ASSERT_TRUE(pool.try_deallocate(last.memory, last.size, home));
    }
  }
  for (const live_block& each : live) ASSERT_TRUE(pool.try_deallocate(each.memory));
  for (const stream& each : streams) ASSERT_TRUE(each.synchronize());
  for (const CUdeviceptr each : wrong) EXPECT_EQ(words(each, 1)[0], 0u);
  EXPECT_GT(pool.stats().hits, 0u);
  ASSERT_TRUE(pool.empty_cache());
  EXPECT_EQ(pool.stats().reserved.current, 0_B);
}

TEST_P(block_pool_contract, memory_behind_a_busy_stream_is_nobody_elses) {
  const auto pool = bin_pool::create(*gpu).value();
  const auto one = make_stream();
  const auto two = make_stream();
  void* const p = pool.allocate(1_MiB, one);
  const auto busy = occupy(one.handle());
  WEIR_OK(fill(at(p), 1, words_in(1_MiB), one.handle()));
  ASSERT_TRUE(pool.try_deallocate(p, one));
  void* const q = pool.allocate(1_MiB, two);
  EXPECT_NE(q, p);
  void* const r = pool.allocate(1_MiB, one);
  EXPECT_EQ(r, p);
  busy->finish();
  ASSERT_TRUE(one.synchronize());
  ASSERT_TRUE(pool.try_deallocate(r, one));
  void* const s = pool.allocate(1_MiB, two);
  EXPECT_EQ(s, p);
  for (void* const each : {q, s}) ASSERT_TRUE(pool.try_deallocate(each, two));
}

TEST_P(block_pool_contract, the_host_never_overwrites_what_a_copy_still_reads) {
  const auto pool = pinned_pool::create(*gpu).value();
  const auto stream = make_stream();
  constexpr std::size_t pieces = 32;
  constexpr std::size_t count = 4096;
  const CUdeviceptr all = new_memory(pieces * count * sizeof(word));
  for (std::size_t i = 0; i < pieces; ++i) {
    const auto staging = pooled_buffer<word>::create(pool, count, stream).value();
    std::fill_n(staging.data(), count, static_cast<word>(i + 1));
    WEIR_OK(cu->memcpy_htod_async(all + i * count * sizeof(word), staging.data(),
                                  staging.size_bytes().count(), stream.handle()));
  }
  for (std::size_t i = 0; i < pieces; ++i)
    EXPECT_EQ(mismatches(all + i * count * sizeof(word), static_cast<word>(i + 1), count), 0u);
}

TEST_P(block_pool_contract, a_zeroed_hit_costs_one_fill) {
  const auto pool = buffer_pool::create().value();
  const auto stream = make_stream();
  {
    const auto first = pool.take<word>(4096, stream).value();
    WEIR_OK(fill(at(first.data()), 0xffffffff, 4096, stream.handle()));
  }
  auto before = calls_so_far();
  { const auto plain = pool.take<word>(4096, stream).value(); }
  EXPECT_EQ(calls_so_far(), before);
  const auto fills = [] {
    return counted().succeeded[static_cast<std::size_t>(driver::call::memset_d8_async)];
  };
  const auto context_queries = [] {
    return counted().succeeded[static_cast<std::size_t>(driver::call::ctx_get_current)];
  };
  const auto fills_before = fills();
  const auto context_queries_before = context_queries();
  const auto zeros = pool.take<word>(4096, stream, contents::zeroed).value();
  EXPECT_EQ(fills(), fills_before + 1);
  EXPECT_EQ(calls_so_far() - before, 1 + context_queries() - context_queries_before);
  EXPECT_EQ(mismatches(at(zeros.data()), 0, 4096), 0u);
  EXPECT_EQ(pool.stats().hits, 2u);
}

TEST_P(block_pool_contract, what_is_released_is_free_on_the_device) {
  const auto pool = buffer_pool::create().value();
  const auto stream = make_stream();
  ASSERT_TRUE(gpu->synchronize());
  const bytes before = gpu->memory_info().value().free;
  { const auto large = pool.take<word>(words_in(256_MiB), stream).value(); }
  EXPECT_LE(gpu->memory_info().value().free, before - 256_MiB);
  EXPECT_EQ(pool.empty_cache(*gpu).value(), 256_MiB);
  EXPECT_GE(gpu->memory_info().value().free + 4_MiB, before);
}

WEIR_CONTRACT(block_pool_contract);

}  // namespace
}  // namespace weir::testing_support
