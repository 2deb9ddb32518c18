// SPDX-License-Identifier: Apache-2.0
// Requests served by the caching allocator.
#include <vector>

#include "heap/heap_view.hpp"
#include "replay/backend.hpp"
#include "weir/allocator/caching_allocator.hpp"

namespace weir { inline namespace v0 { namespace replay {

namespace {

placement_policy heap_policy_of(policy replayed) {
  switch (replayed) {
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

class heap_backend final : public backend {
 public:
  heap_backend(caching_allocator memory, event_sink* observer)
      : memory_{std::move(memory)}, observer_{observer} {
    if (observer != nullptr) registration_ = memory_.add_observer(*observer).value();
  }

  void* allocate(const step& request, const stream_ref& stream) override {
    try {
      if (request.pool == 0) [[likely]]
        return memory_.allocate(bytes{request.size}, stream);
      return pool(request.pool).allocate(bytes{request.size}, stream);
    } catch (const out_of_memory&) {
      return nullptr;
    } catch (const failure& refusal) {
      // Larger than any address space: no memory for it either.
      if (refusal.code() != errc::size_overflow) throw;
      if (observer_ != nullptr)
        observer_->on_event({.kind = memory_event_kind::out_of_memory, .size = request.size});
      return nullptr;
    }
  }

  void free(void* block, const stream_ref& stream) override { memory_.deallocate(block, stream); }

  void record_stream(void* block, const stream_ref& stream) override {
    memory_.record_stream(block, stream).value();
  }

  void release_pool(std::uint16_t number) override {
    if (number >= pools_.size()) return;
    pools_[number] = {};
    has_released_ = true;
    sweep();
  }

  void sweep() override { static_cast<void>(memory_.trim(bytes::max()).value()); }

  std::uint64_t take_reserved_peak() override {
    const std::uint64_t peak = memory_.stats().reserved.peak.count();
    memory_.reset_peaks();
    return peak;
  }

  memory_stats stats() const override { return memory_.stats(); }
  std::uint64_t reserved() const override { return heap::heap_view{memory_}.reserved().count(); }
  std::optional<allocator_snapshot> snapshot() const override { return memory_.snapshot(); }

  const heap::search_trail* trail() const override { return &heap::heap_view{memory_}.trail(); }

  void close() override {
    pools_.clear();
    memory_.close().value();
  }

 private:
  const memory_pool& pool(std::uint16_t number) {
    if (pools_.size() <= number) pools_.resize(std::size_t{number} + 1);
    if (pools_[number]) return pools_[number];
    // What was released while streams still used it goes before another pool takes memory.
    if (has_released_) sweep();
    pools_[number] = memory_.create_pool("recorded").value();
    return pools_[number];
  }

  caching_allocator memory_;
  event_sink* observer_;
  observer_registration registration_;
  bool has_released_ = false;
  std::vector<memory_pool> pools_;  // by the recording's number
};

}  // namespace

result<std::unique_ptr<backend>> make_heap_backend(device gpu, const settings& settings) {
  // What a replay compares must not depend on the environment.
  allocator_options options = allocator_options::from(weir::options{});
  options.policy = heap_policy_of(settings.policy);
  // A simulated card has this size itself; a real one is shared out.
  if (!settings.target.simulated && settings.capacity.count() != 0)
    options.limit = settings.capacity;
  WEIR_TRY_VALUE(memory, caching_allocator::create(gpu, options));
  return std::unique_ptr<backend>{new heap_backend{std::move(memory), settings.observer}};
}

}}}  // namespace weir::v0::replay
