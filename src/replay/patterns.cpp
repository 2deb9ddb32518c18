// Writing patterns and looking for them, by driver calls that are not the policy's.
#include "replay/patterns.hpp"

#include <algorithm>

namespace weir::inline v0::replay {

namespace {

using driver::call;
using driver::check;

/// Different for every block, and never what fresh memory holds.
std::uint32_t value_of(std::uint32_t block) { return (block * 2'654'435'761U) | 1U; }

driver::CUdeviceptr address_of(void* block) { return reinterpret_cast<driver::CUdeviceptr>(block); }

}  // namespace

patterns::patterns(device gpu, const driver::table& calls, bool whole, std::size_t blocks)
    : gpu_{gpu}, calls_{calls}, whole_{whole}, writer_(blocks), mark_{event::create(gpu).value()} {
  const context_scope bound{gpu_};
  if (!bound) throw failure{bound.error()};
  void* memory = nullptr;
  const std::size_t size = room * words * sizeof(std::uint32_t);
  check(call::mem_host_alloc, calls_.mem_host_alloc(&memory, size, driver::host_alloc_portable),
        bytes{size})
      .value();
  found_ = static_cast<std::uint32_t*>(memory);
}

patterns::~patterns() {
  const context_scope bound{gpu_};
  if (bound) calls_.mem_free_host(found_);
}

/// Words at equal distances, the first and nearly the last among them.
patterns::shape patterns::shape_of(std::uint64_t size) {
  const std::uint64_t available = size / sizeof(std::uint32_t);
  const std::size_t rows = static_cast<std::size_t>(std::min<std::uint64_t>(available, words));
  if (rows < 2) return {rows, sizeof(std::uint32_t)};
  return {rows, static_cast<std::size_t>((available - 1) / (rows - 1)) * sizeof(std::uint32_t)};
}

void patterns::write(const step& now, void* block, const stream_ref& on) {
  const shape where = shape_of(now.size);
  const auto known = std::find(written_on_.begin(), written_on_.end(), on);
  writer_[now.block] = static_cast<std::uint32_t>(known - written_on_.begin());
  if (known == written_on_.end()) written_on_.push_back(on);
  if (where.rows == 0) return;
  const context_scope bound{gpu_};
  if (!bound) throw failure{bound.error()};
  const std::uint32_t value = value_of(now.block);
  if (whole_) {
    check(call::memset_d32_async,
          calls_.memset_d32_async(address_of(block), value, now.size / 4, on.handle()))
        .value();
    return;
  }
  for (std::size_t row = 0; row < where.rows; ++row) {
    check(call::memset_d32_async,
          calls_.memset_d32_async(address_of(block) + row * where.pitch, value, 1, on.handle()))
        .value();
  }
}

void patterns::look(const step& now, void* block, const stream_ref& on) {
  const shape where = shape_of(now.size);
  if (where.rows == 0) return;
  if (expected_.size() == room) settle();
  const context_scope bound{gpu_};
  if (!bound) throw failure{bound.error()};
  order(written_on_[writer_[now.block]], on, bound);
  driver::CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = driver::CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = address_of(block);
  copy.srcPitch = where.pitch;
  copy.dstMemoryType = driver::CU_MEMORYTYPE_HOST;
  copy.dstHost = found_ + expected_.size() * words;
  copy.dstPitch = sizeof(std::uint32_t);
  copy.WidthInBytes = sizeof(std::uint32_t);
  copy.Height = where.rows;
  check(call::memcpy_2d_async, calls_.memcpy_2d_async(&copy, on.handle())).value();
  expected_.push_back({value_of(now.block), where.rows});
  if (std::find(lookers_.begin(), lookers_.end(), on) == lookers_.end()) lookers_.push_back(on);
}

/// The program ordered its streams by itself; what it did is not recorded.
void patterns::order(const stream_ref& first, const stream_ref& then, const context_scope& bound) {
  if (first == then) return;
  mark_.record(first, bound).value();
  then.wait(mark_, bound).value();
}

std::uint64_t patterns::mismatches() {
  settle();
  return mismatches_;
}

void patterns::settle() {
  for (const stream_ref& each : lookers_) each.synchronize().value();
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    const std::uint32_t* const words_of = found_ + i * words;
    const auto& [value, rows] = expected_[i];
    if (!std::all_of(words_of, words_of + rows, [v = value](auto word) { return word == v; })) {
      ++mismatches_;
    }
  }
  expected_.clear();
  lookers_.clear();
}

}  // namespace weir::inline v0::replay
