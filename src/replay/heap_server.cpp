// Requests served by the caching allocator.
#include <vector>

#include "replay/server.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir::inline v0::replay {

namespace {

placement_policy heap_policy_of(policy which) {
  switch (which) {
    case policy::torch_default:
      return placement_policy::classic;
    case policy::torch_expandable:
      return placement_policy::classic_expandable;
    case policy::throughput:
      return placement_policy::throughput;
    case policy::compact:
      return placement_policy::compact;
    case policy::never_move:
      return placement_policy::never_move;
    case policy::balanced:
    case policy::driver_pool:
      break;
  }
  return placement_policy::balanced;
}

class heap_server final : public server {
 public:
  explicit heap_server(caching_allocator memory) : memory_{std::move(memory)} {}

  void* allocate(const step& now, const stream_ref& on) override {
    try {
      if (now.pool == 0) [[likely]]
        return memory_.allocate(bytes{now.size}, on);
      return pool(now.pool).allocate(bytes{now.size}, on);
    } catch (const out_of_memory&) {
      return nullptr;
    }
  }

  void free(void* block, const stream_ref& on) override { memory_.deallocate(block, on); }

  void record_stream(void* block, const stream_ref& on) override {
    memory_.record_stream(block, on).value();
  }

  std::uint64_t take_reserved_peak() override {
    const std::uint64_t peak = memory_.stats().reserved.peak;
    memory_.reset_peaks();
    return peak;
  }

  memory_stats stats() const override { return memory_.stats(); }

  void close() override {
    pools_.clear();
    memory_.close().value();
  }

 private:
  const memory_pool& pool(std::uint16_t number) {
    if (pools_.size() <= number) pools_.resize(std::size_t{number} + 1);
    if (!pools_[number]) pools_[number] = memory_.create_pool("recorded").value();
    return pools_[number];
  }

  caching_allocator memory_;
  std::vector<memory_pool> pools_;  // by the recording's number
};

}  // namespace

result<std::unique_ptr<server>> serve_by_heap(device gpu, const settings& how) {
  options wanted;
  wanted.heap_policy = heap_policy_of(how.how);
  // A simulated card has this size itself; a real one is shared out.
  if (!how.where.simulated && how.capacity.count() != 0) wanted.heap_limit = how.capacity;
  WEIR_TRY_VALUE(memory, caching_allocator::create(gpu, wanted));
  if (how.observer != nullptr) memory.set_observer(how.observer);
  return std::unique_ptr<server>{new heap_server{std::move(memory)}};
}

}  // namespace weir::inline v0::replay
