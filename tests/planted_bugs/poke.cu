// SPDX-License-Identifier: Apache-2.0
// The kernel of the planted bugs: writes four bytes where it is told, after a while.
#include <cuda_runtime.h>

__global__ void write_late(unsigned* there, unsigned value, long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
  *there = value;
}

extern "C" int poke(void* there, unsigned value, long long cycles, void* stream) {
  write_late<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<unsigned*>(there), value, cycles);
  return cudaGetLastError();
}
