// SPDX-License-Identifier: Apache-2.0
// Writing patterns and checking them, by driver calls that are not the policy's.
#include "replay/patterns.hpp"

#include <algorithm>

namespace weir { inline namespace v0 { namespace replay {

namespace {

using driver::call;
using driver::check;

/// Different for every block, and never what fresh memory holds.
std::uint32_t value_of(std::uint32_t block) { return (block * 2'654'435'761U) | 1U; }

driver::CUdeviceptr address_of(void* block) { return reinterpret_cast<driver::CUdeviceptr>(block); }

}  // namespace

patterns::patterns(device gpu, const driver::table& calls, bool whole, std::size_t blocks)
    : gpu_{gpu}, calls_{calls}, whole_{whole}, writer_(blocks), event_{event::create(gpu).value()} {
  const context_scope bound{gpu_};
  if (!bound) throw failure{bound.error()};
  void* memory = nullptr;
  const std::size_t size = most_checks * words * sizeof(std::uint32_t);
  check(call::mem_host_alloc, calls_.mem_host_alloc(&memory, size, driver::host_alloc_portable),
        bytes{size})
      .value();
  copies_ = static_cast<std::uint32_t*>(memory);
}

patterns::~patterns() {
  const context_scope bound{gpu_};
  if (bound) calls_.mem_free_host(copies_);
}

/// Words at equal distances, the first and nearly the last among them.
patterns::shape patterns::shape_of(std::uint64_t size) {
  const std::uint64_t available = size / sizeof(std::uint32_t);
  const std::size_t rows = static_cast<std::size_t>(std::min<std::uint64_t>(available, words));
  if (rows < 2) return {rows, sizeof(std::uint32_t)};
  return {rows, static_cast<std::size_t>((available - 1) / (rows - 1)) * sizeof(std::uint32_t)};
}

void patterns::write(const step& request, void* block, const stream_ref& stream) {
  const shape sampled = shape_of(request.size);
  const auto known = std::find(writing_streams_.begin(), writing_streams_.end(), stream);
  writer_[request.block] = static_cast<std::uint32_t>(known - writing_streams_.begin());
  if (known == writing_streams_.end()) writing_streams_.push_back(stream);
  if (sampled.rows == 0) return;
  const context_scope bound{gpu_};
  if (!bound) throw failure{bound.error()};
  const std::uint32_t value = value_of(request.block);
  if (whole_) {
    check(call::memset_d32_async,
          calls_.memset_d32_async(address_of(block), value, request.size / 4, stream.handle()))
        .value();
    return;
  }
  for (std::size_t row = 0; row < sampled.rows; ++row) {
    check(call::memset_d32_async, calls_.memset_d32_async(address_of(block) + row * sampled.pitch,
                                                          value, 1, stream.handle()))
        .value();
  }
}

void patterns::queue_check(const step& request, void* block, const stream_ref& stream) {
  const shape sampled = shape_of(request.size);
  if (sampled.rows == 0) return;
  if (expected_.size() == most_checks) finish_checks();
  const context_scope bound{gpu_};
  if (!bound) throw failure{bound.error()};
  order(writing_streams_[writer_[request.block]], stream, bound);
  driver::CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = driver::CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = address_of(block);
  copy.srcPitch = sampled.pitch;
  copy.dstMemoryType = driver::CU_MEMORYTYPE_HOST;
  copy.dstHost = copies_ + expected_.size() * words;
  copy.dstPitch = sizeof(std::uint32_t);
  copy.WidthInBytes = sizeof(std::uint32_t);
  copy.Height = sampled.rows;
  check(call::memcpy_2d_async, calls_.memcpy_2d_async(&copy, stream.handle())).value();
  expected_.push_back({value_of(request.block), sampled.rows});
  if (std::find(checking_streams_.begin(), checking_streams_.end(), stream) ==
      checking_streams_.end())
    checking_streams_.push_back(stream);
}

/// The program ordered its streams by itself; what it did is not recorded.
void patterns::order(const stream_ref& first, const stream_ref& second,
                     const context_scope& bound) {
  if (first == second) return;
  event_.record(first, bound).value();
  second.wait(event_, bound).value();
}

std::uint64_t patterns::mismatches() {
  finish_checks();
  return mismatches_;
}

void patterns::finish_checks() {
  for (const stream_ref& each : checking_streams_) each.synchronize().value();
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    const std::uint32_t* const copied = copies_ + i * words;
    const auto& [value, rows] = expected_[i];
    if (!std::all_of(copied, copied + rows, [v = value](auto word) { return word == v; })) {
      ++mismatches_;
    }
  }
  expected_.clear();
  checking_streams_.clear();
}

}}}  // namespace weir::v0::replay
