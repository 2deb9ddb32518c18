// SPDX-License-Identifier: Apache-2.0
// Requests served by the driver's own stream-ordered pool.
#include <limits>
#include <unordered_map>
#include <vector>

#include "replay/backend.hpp"
#include "weir/device/event.hpp"

namespace weir { inline namespace v0 { namespace replay {

namespace {

using driver::call;
using driver::check;

class driver_pool_backend final : public backend {
 public:
  driver_pool_backend(device gpu, driver::CUmemoryPool pool) : gpu_{gpu}, pool_{pool} {}

  void* allocate(const step& request, const stream_ref& stream) override {
    if (request.size == 0) return nullptr;
    const context_scope bound{gpu_};
    if (!bound) throw failure{bound.error()};
    driver::CUdeviceptr address = 0;
    const driver::CUresult status =
        bound.driver().mem_alloc_from_pool_async(&address, request.size, pool_, stream.handle());
    if (status == driver::CUDA_ERROR_OUT_OF_MEMORY) return nullptr;
    check(call::mem_alloc_from_pool_async, status, bytes{request.size}).value();
    return reinterpret_cast<void*>(address);
  }

  void free(void* block, const stream_ref& stream) override {
    if (block == nullptr) return;
    const context_scope bound{gpu_};
    if (!bound) throw failure{bound.error()};
    if (const auto recorded = recorded_.find(block); recorded != recorded_.end()) {
      for (const stream_ref& each : recorded->second) make_wait(stream, each, bound);
      recorded_.erase(recorded);
    }
    check(call::mem_free_async, bound.driver().mem_free_async(
                                    reinterpret_cast<driver::CUdeviceptr>(block), stream.handle()))
        .value();
  }

  void record_stream(void* block, const stream_ref& stream) override {
    if (block != nullptr) recorded_[block].push_back(stream);
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
    event reached = event::create(gpu_).value();
    reached.record(until, bound).value();
    waiting.wait(reached, bound).value();
  }

  device gpu_;
  driver::CUmemoryPool pool_;
  std::unordered_map<void*, std::vector<stream_ref>> recorded_;
};

}  // namespace

result<std::unique_ptr<backend>> make_driver_pool_backend(device gpu, const settings& settings) {
  if (!gpu.capabilities().memory_pools) return errc::not_supported;
  const context_scope bound{gpu};
  if (!bound) return bound.error();
  driver::CUmemPoolProps properties{};
  properties.allocType = driver::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {driver::CU_MEM_LOCATION_TYPE_DEVICE, gpu.id().number()};
  if (!settings.target.simulated) properties.maxSize = settings.capacity.count();
  driver::CUmemoryPool pool = nullptr;
  WEIR_TRY(check(call::mem_pool_create, bound.driver().mem_pool_create(&pool, &properties)));
  std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
  const auto kept = check(call::mem_pool_set_attribute,
                          bound.driver().mem_pool_set_attribute(
                              pool, driver::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything));
  if (!kept) {
    static_cast<void>(bound.driver().mem_pool_destroy(pool));
    return kept.error();
  }
  return std::unique_ptr<backend>{new driver_pool_backend{gpu, pool}};
}

}}}  // namespace weir::v0::replay
