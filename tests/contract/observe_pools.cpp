// SPDX-License-Identifier: Apache-2.0
// Observed: how driver pools grow, count, keep and give back.
#include <limits>

#include "support/observe.hpp"

namespace weir::testing_support { namespace {

std::int64_t number(driver_fixture& fixture, CUmemoryPool pool, CUmemPool_attribute attribute) {
  std::uint64_t value = 0;
  fixture.cu->mem_pool_get_attribute(pool, attribute, &value);
  return static_cast<std::int64_t>(value);
}

void figures(driver_fixture& fixture, fact_sheet& facts, const std::string& when,
             CUmemoryPool pool) {
  facts.text(
      when,
      "reserved " + std::to_string(number(fixture, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)) +
          " high " + std::to_string(number(fixture, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)) +
          ", used " + std::to_string(number(fixture, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)) +
          " high " + std::to_string(number(fixture, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH)));
}

CUmemoryPool keeping_pool(driver_fixture& fixture) {
  const CUmemoryPool pool = fixture.new_pool();
  std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  fixture.cu->mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
  return pool;
}

WEIR_OBSERVE(pool_growth) {
  const table& cu = *fixture.cu;
  const CUstream stream = fixture.new_stream();
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{512}, std::size_t{513}, 64 * kib, mib, 2 * mib, 2 * mib + 1,
        31 * mib, 32 * mib, 33 * mib, 64 * mib, 65 * mib, 96 * mib, 100 * mib, 512 * mib}) {
    const CUmemoryPool pool = keeping_pool(fixture);
    CUdeviceptr memory = 0;
    cu.mem_alloc_from_pool_async(&memory, bytes, pool, stream);
    figures(fixture, facts, "first allocation of " + std::to_string(bytes), pool);
    facts.number("largest power of two that divides its address",
                 static_cast<std::int64_t>(memory & (~memory + 1)));
    cu.mem_free_async(memory, stream);
    cu.stream_synchronize(stream);
    cu.mem_pool_trim_to(pool, 0);
  }
  const CUmemoryPool pool = keeping_pool(fixture);
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 12; ++i) {
    CUdeviceptr memory = 0;
    cu.mem_alloc_from_pool_async(&memory, 10 * mib, pool, stream);
    figures(fixture, facts, std::to_string(i + 1) + " allocations of 10 MiB", pool);
    facts.number("distance to the first",
                 static_cast<std::int64_t>(memory - (all.empty() ? memory : all.front())));
    all.push_back(memory);
  }
  for (const CUdeviceptr memory : all) cu.mem_free_async(memory, stream);
  figures(fixture, facts, "all freed, not synchronized", pool);
  cu.stream_synchronize(stream);
  figures(fixture, facts, "all freed, synchronized", pool);
  CUdeviceptr memory = 0;
  cu.mem_alloc_from_pool_async(&memory, 100 * mib, pool, stream);
  figures(fixture, facts, "one of 100 MiB in their place", pool);
  facts.number("is it where the first one was", memory == all.front());
  cu.mem_free_async(memory, stream);
  cu.stream_synchronize(stream);
}

WEIR_OBSERVE(pool_counters) {
  const table& cu = *fixture.cu;
  const CUstream stream = fixture.new_stream();
  const CUmemoryPool pool = keeping_pool(fixture);
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  auto held = fixture.occupy(stream);
  cu.mem_alloc_from_pool_async(&first, 4 * mib, pool, stream);
  figures(fixture, facts, "4 MiB allocated behind a busy stream", pool);
  cu.mem_alloc_from_pool_async(&second, 1000, pool, stream);
  figures(fixture, facts, "1000 bytes more", pool);
  cu.mem_free_async(first, stream);
  figures(fixture, facts, "the 4 MiB freed behind a busy stream", pool);
  held->finish();
  cu.stream_synchronize(stream);
  figures(fixture, facts, "and synchronized", pool);
  std::uint64_t zero = 0;
  facts.result("reset of the used high mark",
               cu.mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
  figures(fixture, facts, "after reset of the used high mark", pool);
  facts.result("reset of the reserved high mark",
               cu.mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
  figures(fixture, facts, "after reset of the reserved high mark", pool);
  cu.mem_free_async(second, stream);
  cu.stream_synchronize(stream);
  facts.result("trim to 0", cu.mem_pool_trim_to(pool, 0));
  figures(fixture, facts, "after trim to 0", pool);
}

WEIR_OBSERVE(pool_thresholds) {
  const table& cu = *fixture.cu;
  const CUstream stream = fixture.new_stream();
  const CUstream other = fixture.new_stream();
  const CUevent event = fixture.new_event();
  const auto fill_and_free = [&](CUmemoryPool pool) {
    CUdeviceptr memory = 0;
    cu.mem_alloc_from_pool_async(&memory, 64 * mib, pool, stream);
    cu.mem_free_async(memory, stream);
  };
  const CUmemoryPool pool = fixture.new_pool();
  fill_and_free(pool);
  figures(fixture, facts, "threshold 0: freed", pool);
  for (int i = 0; i < 100 && cu.stream_query(stream) != CUDA_SUCCESS; ++i) {
  }
  figures(fixture, facts, "threshold 0: after stream_query = success", pool);
  cu.stream_synchronize(other);
  figures(fixture, facts, "threshold 0: after synchronize of another stream", pool);
  cu.stream_synchronize(stream);
  figures(fixture, facts, "threshold 0: after stream_synchronize", pool);
  fill_and_free(pool);
  cu.event_record(event, stream);
  cu.event_synchronize(event);
  figures(fixture, facts, "threshold 0: after event_synchronize", pool);
  cu.stream_synchronize(stream);
  fill_and_free(pool);
  cu.ctx_synchronize();
  figures(fixture, facts, "threshold 0: after ctx_synchronize", pool);
  std::uint64_t threshold = 40 * mib;
  cu.mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  std::vector<CUdeviceptr> all(6);
  for (auto& memory : all) cu.mem_alloc_from_pool_async(&memory, 32 * mib, pool, stream);
  figures(fixture, facts, "threshold 40 MiB: 6 of 32 MiB", pool);
  for (const auto memory : all) cu.mem_free_async(memory, stream);
  cu.stream_synchronize(stream);
  figures(fixture, facts, "threshold 40 MiB: freed and synchronized", pool);
  for (const std::size_t keep : {64 * mib, 33 * mib, mib, std::size_t{0}}) {
    cu.mem_pool_trim_to(pool, keep);
    figures(fixture, facts, "trim to " + std::to_string(keep), pool);
  }
  threshold = std::numeric_limits<std::uint64_t>::max();
  cu.mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  for (auto& memory : all) cu.mem_alloc_from_pool_async(&memory, 32 * mib, pool, stream);
  for (std::size_t i = 0; i < all.size(); i += 2) cu.mem_free_async(all[i], stream);
  facts.result("trim before the frees are synchronized", cu.mem_pool_trim_to(pool, 0));
  figures(fixture, facts, "after it", pool);
  cu.stream_synchronize(stream);
  cu.mem_pool_trim_to(pool, 0);
  figures(fixture, facts, "trim with every second of 6 freed", pool);
  for (std::size_t i = 1; i < all.size(); i += 2) cu.mem_free_async(all[i], stream);
  threshold = 0;
  facts.result("threshold set back to 0",
               cu.mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  figures(fixture, facts, "after it", pool);
  cu.stream_synchronize(stream);
  figures(fixture, facts, "and a synchronize", pool);
}

WEIR_OBSERVE(pool_reuse) {
  const table& cu = *fixture.cu;
  const CUstream busy = fixture.new_stream();
  const CUstream other = fixture.new_stream();
  const CUevent event = fixture.new_event();
  for (int flags = 0; flags < 8; ++flags) {
    for (int with_event = 0; with_event < 2; ++with_event) {
      for (int finished = 0; finished < 2; ++finished) {
        const CUmemoryPool pool = keeping_pool(fixture);
        for (int bit = 0; bit < 3; ++bit) {
          int on = flags >> bit & 1;
          cu.mem_pool_set_attribute(pool, static_cast<CUmemPool_attribute>(1 + bit), &on);
        }
        CUdeviceptr first = 0;
        CUdeviceptr second = 0;
        cu.mem_alloc_from_pool_async(&first, 32 * mib, pool, busy);
        cu.stream_synchronize(busy);
        auto held = fixture.occupy(busy);
        cu.mem_free_async(first, busy);
        cu.event_record(event, busy);
        if (finished != 0) {
          held->finish();
          while (cu.stream_query(busy) != CUDA_SUCCESS) {
          }
        }
        if (with_event != 0) cu.stream_wait_event(other, event, 0);
        cu.mem_alloc_from_pool_async(&second, 32 * mib, pool, other);
        const CUresult now = cu.stream_query(other);
        facts.text("follow_events " + std::to_string(flags & 1) + ", opportunistic " +
                       std::to_string(flags >> 1 & 1) + ", internal " +
                       std::to_string(flags >> 2 & 1) + ", event " + std::to_string(with_event) +
                       ", free has run " + std::to_string(finished),
                   std::string{first == second ? "reused" : "fresh"} +
                       (now == CUDA_ERROR_NOT_READY ? ", waits" : ", does not wait"));
        held->finish();
        cu.stream_synchronize(busy);
        cu.mem_free_async(second, other);
        cu.stream_synchronize(other);
        cu.mem_pool_trim_to(pool, 0);
      }
    }
  }
}

WEIR_OBSERVE(pool_limits) {
  const table& cu = *fixture.cu;
  const CUstream stream = fixture.new_stream();
  for (const std::size_t limit : {mib, 32 * mib, 100 * mib}) {
    auto request = fixture.pool_properties();
    request.maxSize = limit;
    CUmemoryPool pool = nullptr;
    const std::string label = "pool limited to " + std::to_string(limit);
    facts.result(label, cu.mem_pool_create(&pool, &request));
    if (pool == nullptr) continue;
    std::vector<CUdeviceptr> all;
    for (int i = 0; i < 40; ++i) {
      CUdeviceptr memory = 0;
      const CUresult answer = cu.mem_alloc_from_pool_async(&memory, 8 * mib, pool, stream);
      if (answer != CUDA_SUCCESS) {
        facts.result(label + ": refuses with", answer);
        break;
      }
      all.push_back(memory);
    }
    facts.number(label + ": allocations of 8 MiB", static_cast<std::int64_t>(all.size()));
    figures(fixture, facts, label, pool);
    for (const auto memory : all) cu.mem_free_async(memory, stream);
    cu.stream_synchronize(stream);
    cu.mem_pool_destroy(pool);
  }
  CUmemoryPool pool = nullptr;
  cu.device_get_default_mem_pool(&pool, fixture.device);
  figures(fixture, facts, "default pool", pool);
  facts.number("default pool: threshold", number(fixture, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
  for (const int type : {0, 1, 8, 9}) {
    const auto request = fixture.pool_properties(static_cast<CUmemAllocationHandleType>(type));
    pool = nullptr;
    facts.result("mem_pool_create with handle types " + std::to_string(type),
                 cu.mem_pool_create(&pool, &request));
    if (pool != nullptr) cu.mem_pool_destroy(pool);
  }
  for (const int location : {0, 2, 3, 4}) {
    auto request = fixture.pool_properties();
    request.location = {static_cast<CUmemLocationType>(location), 0};
    pool = nullptr;
    facts.result("mem_pool_create at location type " + std::to_string(location),
                 cu.mem_pool_create(&pool, &request));
    if (pool != nullptr) cu.mem_pool_destroy(pool);
  }
  pool = fixture.new_pool();
  int odd = 7;
  facts.result("a flag set to 7",
               cu.mem_pool_set_attribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &odd));
  odd = -1;
  cu.mem_pool_get_attribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &odd);
  facts.number("and read back", odd);
  const CUmemAccessDesc none{fixture.here(), CU_MEM_ACCESS_FLAGS_PROT_NONE};
  facts.result("owner's access set to none", cu.mem_pool_set_access(pool, &none, 1));
  const CUmemAccessDesc read{fixture.here(), CU_MEM_ACCESS_FLAGS_PROT_READ};
  facts.result("owner's access set to read", cu.mem_pool_set_access(pool, &read, 1));
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  CUmemAccess_flags flags{};
  facts.number("host's access", cu.mem_pool_get_access(&flags, pool, &host), flags);
}

}  // namespace
}  // namespace weir::testing_support
