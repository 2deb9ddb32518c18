// SPDX-License-Identifier: Apache-2.0
// What the examples of headers and documents use without showing where it comes from.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "weir/weir.hpp"

namespace snippets {

using namespace std::chrono_literals;
using namespace weir::literals;

// Devices, streams and memory.
extern std::shared_ptr<weir::runtime> machine;
extern weir::device gpu;
extern weir::stream stream;
extern weir::stream other;
extern ::CUstream_st* cuda_stream;  // a cudaStream_t
extern weir::caching_allocator memory;
extern weir::share_channel channel;
extern std::shared_ptr<weir::memory_source> registered;

// Data on both sides.
extern std::vector<float> host;
extern weir::device_vector<float> on_device;
extern void* to;
extern const void* from;
extern std::size_t rows;

// Whatever queues work.
template <class... Arguments>
void launch(const Arguments&...);

}  // namespace snippets

// As much of NCCL as it takes to have memory from it.
enum ncclResult_t { ncclSuccess };
ncclResult_t ncclMemAlloc(void** memory, std::size_t size);
ncclResult_t ncclMemFree(void* memory);

// As much of Thrust as it takes to call it with an allocator.
namespace thrust {
namespace cuda {
struct policy {
  policy on(::CUstream_st* stream) const;
};
template <class Allocator>
policy par(Allocator& temporaries);
}  // namespace cuda
template <class Iterator>
void sort(const cuda::policy& policy, Iterator first, Iterator last);
}  // namespace thrust
