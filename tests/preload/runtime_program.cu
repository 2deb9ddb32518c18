// SPDX-License-Identifier: Apache-2.0
// A program of the CUDA runtime that knows nothing of weir: runtime_program SCENARIO.
//
// What it prints does not depend on addresses, so that two runs can be compared.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t mib = 1 << 20;

__global__ void add(unsigned* into, unsigned value, std::size_t count) {
  const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count) into[i] += value;
}

void queue(unsigned* into, unsigned value, std::size_t count, cudaStream_t on) {
  add<<<static_cast<unsigned>((count + 255) / 256), 256, 0, on>>>(into, value, count);
}

/// How many of `count` numbers on the device are not `value`.
std::size_t others(const unsigned* from, unsigned value, std::size_t count, cudaStream_t on) {
  std::vector<unsigned> host(count);
  cudaMemcpyAsync(host.data(), from, count * 4, cudaMemcpyDeviceToHost, on);
  cudaStreamSynchronize(on);
  std::size_t wrong = 0;
  for (const unsigned each : host) wrong += each != value;
  return wrong;
}

/// 100 blocks of 1 KiB to 4 MiB, at most 8 at a time, each written, read and freed.
void sums() {
  unsigned* blocks[8] = {};
  std::size_t wrong = 0, failures = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    unsigned*& block = blocks[i % 8];
    failures += cudaFree(block) != cudaSuccess;
    const std::size_t count = (1 + i * 37 % 4096) * 256;
    failures += cudaMalloc(&block, count * 4) != cudaSuccess;
    failures += cudaMemset(block, 0, count * 4) != cudaSuccess;
    queue(block, static_cast<unsigned>(i), count, nullptr);
    wrong += others(block, static_cast<unsigned>(i), count, nullptr);
  }
  for (unsigned* const each : blocks) failures += cudaFree(each) != cudaSuccess;
  std::printf("sums: %zu wrong, %zu failures\n", wrong, failures);
}

/// Two streams, each with memory in its own order; blocks go from one to the other behind an event.
void ordered() {
  cudaStream_t streams[2];
  cudaEvent_t event;
  std::size_t wrong = 0, failures = 0;
  for (auto& each : streams) cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  for (unsigned i = 0; i < 60; ++i) {
    const cudaStream_t here = streams[i % 2], there = streams[1 - i % 2];
    const std::size_t count = mib / 4 * (1 + i % 5);
    unsigned *made = nullptr, *beside = nullptr;
    failures += cudaMallocAsync(&made, count * 4, here) != cudaSuccess;
    failures += cudaMallocAsync(&beside, count * 4, there) != cudaSuccess;
    cudaMemsetAsync(made, 0, count * 4, here);
    cudaMemsetAsync(beside, 0, count * 4, there);
    queue(made, i, count, here);
    cudaEventRecord(event, here);
    cudaStreamWaitEvent(there, event, 0);
    queue(made, 1, count, there);
    queue(beside, 7, count, there);
    wrong += others(made, i + 1, count, there);
    wrong += others(beside, 7, count, there);
    failures += cudaFreeAsync(made, there) != cudaSuccess;
    failures += cudaFreeAsync(beside, there) != cudaSuccess;
  }
  for (const auto each : streams) cudaStreamDestroy(each);
  std::printf("ordered: %zu wrong, %zu failures\n", wrong, failures);
}

/// Memory of graphs, of a pool of its own, managed, pinned and in arrays: the driver's.
void kinds() {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  unsigned *managed = nullptr, *pinned = nullptr, *pooled = nullptr, *captured = nullptr, *kept = nullptr;
  cudaArray_t array = nullptr;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  std::printf("managed %d\n", cudaMallocManaged(&managed, mib));
  std::printf("pinned %d\n", cudaMallocHost(&pinned, mib));
  std::printf("array %d\n", cudaMallocArray(&array, &format, 64, 64));
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t pool = nullptr;
  std::printf("pool %d\n", cudaMemPoolCreate(&pool, &properties));
  std::printf("from it %d\n", cudaMallocFromPoolAsync(&pooled, mib, pool, stream));
  cudaMalloc(&kept, mib);
  cudaMemset(kept, 0, mib);
  cudaDeviceSynchronize();
  cudaGraph_t graph;
  cudaGraphExec_t runnable;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  std::printf("in a capture %d\n", cudaMallocAsync(&captured, mib, stream));
  cudaMemsetAsync(captured, 0, mib, stream);
  queue(captured, 3, mib / 4, stream);
  queue(kept, 2, mib / 4, stream);
  std::printf("freed there %d\n", cudaFreeAsync(captured, stream));
  std::printf("captured %d\n", cudaStreamEndCapture(stream, &graph));
  std::printf("instance %d\n", cudaGraphInstantiate(&runnable, graph, 0));
  for (int i = 0; i < 5; ++i) cudaGraphLaunch(runnable, stream);
  std::printf("graph: %zu wrong\n", others(kept, 10, mib / 4, stream));
  std::printf("end %d %d %d %d %d %d %d\n", cudaGraphExecDestroy(runnable), cudaGraphDestroy(graph),
              cudaFreeAsync(pooled, stream), cudaMemPoolDestroy(pool), cudaFreeArray(array),
              cudaFreeHost(pinned), cudaFree(managed));
  std::printf("and %d %d\n", cudaFree(kept), cudaStreamDestroy(stream));
}

void threads() {
  std::vector<std::thread> all;
  std::vector<std::size_t> wrong(8);
  for (std::size_t t = 0; t < wrong.size(); ++t)
    all.emplace_back([t, &wrong] {
      cudaStream_t stream;
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      for (unsigned i = 0; i < 50; ++i) {
        unsigned* block = nullptr;
        if (i % 2 == 0)
          cudaMallocAsync(&block, mib, stream);
        else
          cudaMalloc(&block, mib);
        cudaMemsetAsync(block, 0, mib, stream);
        queue(block, i, mib / 4, stream);
        wrong[t] += others(block, i, mib / 4, stream);
        if (i % 2 == 0)
          cudaFreeAsync(block, stream);
        else
          cudaFree(block);
      }
      cudaStreamDestroy(stream);
    });
  std::size_t sum = 0;
  for (std::size_t t = 0; t < all.size(); ++t) all[t].join(), sum += wrong[t];
  std::printf("threads: %zu wrong\n", sum);
}

/// Blocks of 64 MiB until there are no more, or 64.
void fill() {
  std::size_t available = 0, total = 0, blocks = 0;
  cudaMemGetInfo(&available, &total);
  cudaDeviceProp card;
  cudaGetDeviceProperties(&card, 0);
  std::printf("total %zu MiB, %zu MiB\n", total / mib, card.totalGlobalMem / mib);
  void* each = nullptr;
  while (blocks < 64 && cudaMalloc(&each, 64 * mib) == cudaSuccess) ++blocks;
  std::printf("%zu blocks, then %s\n", blocks, cudaGetErrorName(cudaGetLastError()));
}

/// A kernel that leaves everything; what is asked afterwards hears of it.
void fault() {
  unsigned* block = nullptr;
  cudaMalloc(&block, mib);
  queue(block + (std::size_t{1} << 40), 1, 1, nullptr);
  std::printf("free: %s\n", cudaGetErrorName(cudaFree(block)));
  std::printf("malloc: %s\n", cudaGetErrorName(cudaMalloc(&block, mib)));
  std::printf("last: %s\n", cudaGetErrorName(cudaGetLastError()));
}

/// Four bytes too many, and a block that is never freed.
void overflow() {
  unsigned *block = nullptr, *lost = nullptr;
  cudaMalloc(&block, 1000);
  cudaMalloc(&lost, 1000);
  queue(block, 1, 251, nullptr);
  std::printf("overflow: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  cudaFree(block);
}

constexpr struct {
  const char* name;
  void (*run)();
} scenarios[] = {{"sums", sums}, {"ordered", ordered}, {"kinds", kinds}, {"threads", threads},
                 {"fill", fill}, {"fault", fault},     {"overflow", overflow}};

}  // namespace

int main(int count, char** words) {
  for (const auto& each : scenarios)
    if (count == 2 && std::strcmp(each.name, words[1]) == 0) {
      each.run();
      return 0;
    }
  return 2;
}
