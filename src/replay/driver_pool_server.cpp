// Requests served by the driver's own stream-ordered pool.
#include <limits>
#include <unordered_map>
#include <vector>

#include "replay/server.hpp"
#include "weir/device/event.hpp"

namespace weir::inline v0::replay {

namespace {

using driver::call;
using driver::check;

class driver_pool_server final : public server {
 public:
  driver_pool_server(device gpu, driver::CUmemoryPool pool) : gpu_{gpu}, pool_{pool} {}

  void* allocate(const step& now, const stream_ref& on) override {
    if (now.size == 0) return nullptr;
    const context_scope bound{gpu_};
    if (!bound) throw failure{bound.error()};
    driver::CUdeviceptr address = 0;
    const driver::CUresult answer =
        bound.driver().mem_alloc_from_pool_async(&address, now.size, pool_, on.handle());
    if (answer == driver::CUDA_ERROR_OUT_OF_MEMORY) return nullptr;
    check(call::mem_alloc_from_pool_async, answer, bytes{now.size}).value();
    return reinterpret_cast<void*>(address);
  }

  void free(void* block, const stream_ref& on) override {
    if (block == nullptr) return;
    const context_scope bound{gpu_};
    if (!bound) throw failure{bound.error()};
    if (const auto users = recorded_.find(block); users != recorded_.end()) {
      for (const stream_ref& each : users->second) make_wait(on, each, bound);
      recorded_.erase(users);
    }
    check(call::mem_free_async,
          bound.driver().mem_free_async(reinterpret_cast<driver::CUdeviceptr>(block), on.handle()))
        .value();
  }

  void record_stream(void* block, const stream_ref& on) override {
    if (block != nullptr) recorded_[block].push_back(on);
  }

  std::uint64_t take_reserved_peak() override {
    const context_scope bound{gpu_};
    if (!bound) throw failure{bound.error()};
    std::uint64_t peak = 0;
    check(call::mem_pool_get_attribute,
          bound.driver().mem_pool_get_attribute(pool_, driver::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
                                                &peak))
        .value();
    std::uint64_t none = 0;  // setting it to zero begins a new peak
    check(call::mem_pool_set_attribute,
          bound.driver().mem_pool_set_attribute(pool_, driver::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
                                                &none))
        .value();
    return peak;
  }

  void close() override {
    const context_scope bound{gpu_};
    if (!bound) throw failure{bound.error()};
    check(call::mem_pool_destroy, bound.driver().mem_pool_destroy(pool_)).value();
  }

 private:
  void make_wait(const stream_ref& waiting, const stream_ref& until, const context_scope& bound) {
    if (waiting == until) return;
    event mark = event::create(gpu_).value();
    mark.record(until, bound).value();
    waiting.wait(mark, bound).value();
  }

  device gpu_;
  driver::CUmemoryPool pool_;
  std::unordered_map<void*, std::vector<stream_ref>> recorded_;
};

}  // namespace

result<std::unique_ptr<server>> serve_by_driver_pool(device gpu, const settings& how) {
  if (!gpu.capabilities().memory_pools) return errc::not_supported;
  const context_scope bound{gpu};
  if (!bound) return bound.error();
  driver::CUmemPoolProps wanted{};
  wanted.allocType = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {driver::CU_MEM_LOCATION_TYPE_DEVICE, gpu.id().number()};
  if (!how.where.simulated) wanted.maxSize = how.capacity.count();
  driver::CUmemoryPool pool = nullptr;
  WEIR_TRY(check(call::mem_pool_create, bound.driver().mem_pool_create(&pool, &wanted)));
  std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
  WEIR_TRY(check(call::mem_pool_set_attribute,
                 bound.driver().mem_pool_set_attribute(
                     pool, driver::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything)));
  return std::unique_ptr<server>{new driver_pool_server{gpu, pool}};
}

}  // namespace weir::inline v0::replay
