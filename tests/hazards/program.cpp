// SPDX-License-Identifier: Apache-2.0
// A small vocabulary for writing multi-stream programs.
#include "program.hpp"

namespace weir::hazards {

namespace {

constexpr std::size_t handle_size = std::size_t{2} << 20;

sim::machine_options options(std::uint64_t seed) {
  sim::machine_options chosen;
  chosen.seed = seed;
  chosen.devices.resize(2);
  return chosen;
}

}  // namespace

program::program(std::uint64_t seed) : machine_{sim::machine::create(options(seed)).value()} {
  CUcontext context{};
  check(cuda().init(0));
  check(cuda().device_primary_ctx_retain(&context, 0));
  check(cuda().ctx_set_current(context));
}

CUstream program::stream(unsigned flags) {
  CUstream created{};
  check(cuda().stream_create(&created, flags));
  return created;
}

CUevent program::event() {
  CUevent created{};
  check(cuda().event_create(&created, CU_EVENT_DISABLE_TIMING));
  return created;
}

CUdeviceptr program::buffer(std::size_t size) {
  CUdeviceptr address{};
  check(cuda().mem_alloc(&address, size));
  return address;
}

unsigned char* program::pinned(std::size_t size) {
  void* pointer{};
  check(cuda().mem_host_alloc(&pointer, size, 0));
  return static_cast<unsigned char*>(pointer);
}

CUdeviceptr program::managed(std::size_t size) {
  CUdeviceptr address{};
  check(cuda().mem_alloc_managed(&address, size, CU_MEM_ATTACH_GLOBAL));
  return address;
}

program::mapped_twice program::alias() {
  mapped_twice mapping{};
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  check(cuda().mem_create(&mapping.handle, handle_size, &properties, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (CUdeviceptr* address : {&mapping.first, &mapping.second}) {
    check(cuda().mem_address_reserve(address, handle_size, 0, 0, 0));
    check(cuda().mem_map(*address, handle_size, 0, mapping.handle, 0));
    check(cuda().mem_set_access(*address, handle_size, &access, 1));
  }
  return mapping;
}

void program::write(CUstream on, CUdeviceptr address, std::size_t size) {
  ASSERT_TRUE(machine_->launch(on, "write", {sim::writes(address, size)}));
}

void program::read(CUstream on, CUdeviceptr address, std::size_t size) {
  ASSERT_TRUE(machine_->launch(on, "read", {sim::reads(address, size)}));
}

void program::copy(CUstream on, CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  check(cuda().memcpy_async(to, from, size, on));
}

void program::fill(CUstream on, CUdeviceptr address, std::size_t size) {
  check(cuda().memset_d8_async(address, 7, size, on));
}

void program::record(CUevent recorded, CUstream on) { check(cuda().event_record(recorded, on)); }
void program::wait(CUstream on, CUevent awaited) {
  check(cuda().stream_wait_event(on, awaited, 0));
}

void program::join(CUstream first, CUstream second) {
  const CUevent done = event();
  record(done, first);
  wait(second, done);
}

void program::synchronize(CUstream on) { check(cuda().stream_synchronize(on)); }
void program::synchronize(CUevent awaited) { check(cuda().event_synchronize(awaited)); }
void program::synchronize() { check(cuda().ctx_synchronize()); }

void program::poll(CUevent awaited) {
  CUresult answer = CUDA_ERROR_NOT_READY;
  while (answer == CUDA_ERROR_NOT_READY) answer = cuda().event_query(awaited);
  check(answer);
}

void program::poll(CUstream on) {
  CUresult answer = CUDA_ERROR_NOT_READY;
  while (answer == CUDA_ERROR_NOT_READY) answer = cuda().stream_query(on);
  check(answer);
}

CUdeviceptr program::allocate(CUstream on, std::size_t size) {
  CUdeviceptr address{};
  check(cuda().mem_alloc_async(&address, size, on));
  return address;
}

void program::free(CUstream on, CUdeviceptr address) { check(cuda().mem_free_async(address, on)); }
void program::unmap(CUdeviceptr address) { check(cuda().mem_unmap(address, handle_size)); }
void program::host_read(const void* pointer, std::size_t size) {
  machine_->host_read(pointer, size);
}
void program::host_write(void* pointer, std::size_t size) { machine_->host_write(pointer, size); }

std::string program::describe_hazards() const {
  std::string text;
  for (const sim::hazard& hazard : machine_->hazards()) text += hazard.message() + "\n";
  return text;
}

}  // namespace weir::hazards
