// A small vocabulary for writing multi-stream programs.
#include "program.hpp"

namespace weir::hazards {

namespace {

constexpr std::size_t handle_size = std::size_t{2} << 20;

sim::machine_options options(std::uint64_t seed) {
  sim::machine_options wanted;
  wanted.seed = seed;
  wanted.devices.resize(2);
  return wanted;
}

}  // namespace

program::program(std::uint64_t seed) : machine_{sim::machine::create(options(seed)).value()} {
  CUcontext context{};
  check(cuda().init(0));
  check(cuda().device_primary_ctx_retain(&context, 0));
  check(cuda().ctx_set_current(context));
}

CUstream program::stream(unsigned flags) {
  CUstream made{};
  check(cuda().stream_create(&made, flags));
  return made;
}

CUevent program::event() {
  CUevent made{};
  check(cuda().event_create(&made, CU_EVENT_DISABLE_TIMING));
  return made;
}

CUdeviceptr program::buffer(std::size_t size) {
  CUdeviceptr made{};
  check(cuda().mem_alloc(&made, size));
  return made;
}

unsigned char* program::pinned(std::size_t size) {
  void* made{};
  check(cuda().mem_host_alloc(&made, size, 0));
  return static_cast<unsigned char*>(made);
}

CUdeviceptr program::managed(std::size_t size) {
  CUdeviceptr made{};
  check(cuda().mem_alloc_managed(&made, size, CU_MEM_ATTACH_GLOBAL));
  return made;
}

program::mapped_twice program::alias() {
  mapped_twice made{};
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  check(cuda().mem_create(&made.handle, handle_size, &properties, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (CUdeviceptr* where : {&made.first, &made.second}) {
    check(cuda().mem_address_reserve(where, handle_size, 0, 0, 0));
    check(cuda().mem_map(*where, handle_size, 0, made.handle, 0));
    check(cuda().mem_set_access(*where, handle_size, &access, 1));
  }
  return made;
}

void program::write(CUstream on, CUdeviceptr where, std::size_t size) {
  ASSERT_TRUE(machine_->launch(on, "write", {sim::writes(where, size)}));
}

void program::read(CUstream on, CUdeviceptr where, std::size_t size) {
  ASSERT_TRUE(machine_->launch(on, "read", {sim::reads(where, size)}));
}

void program::copy(CUstream on, CUdeviceptr to, CUdeviceptr from, std::size_t size) {
  check(cuda().memcpy_async(to, from, size, on));
}

void program::fill(CUstream on, CUdeviceptr where, std::size_t size) {
  check(cuda().memset_d8_async(where, 7, size, on));
}

void program::record(CUevent which, CUstream on) { check(cuda().event_record(which, on)); }
void program::wait(CUstream on, CUevent which) { check(cuda().stream_wait_event(on, which, 0)); }

void program::join(CUstream first, CUstream second) {
  const CUevent done = event();
  record(done, first);
  wait(second, done);
}

void program::synchronize(CUstream on) { check(cuda().stream_synchronize(on)); }
void program::synchronize(CUevent which) { check(cuda().event_synchronize(which)); }
void program::synchronize() { check(cuda().ctx_synchronize()); }

void program::poll(CUevent which) {
  CUresult answer = CUDA_ERROR_NOT_READY;
  while (answer == CUDA_ERROR_NOT_READY) answer = cuda().event_query(which);
  check(answer);
}

void program::poll(CUstream on) {
  CUresult answer = CUDA_ERROR_NOT_READY;
  while (answer == CUDA_ERROR_NOT_READY) answer = cuda().stream_query(on);
  check(answer);
}

CUdeviceptr program::allocate(CUstream on, std::size_t size) {
  CUdeviceptr made{};
  check(cuda().mem_alloc_async(&made, size, on));
  return made;
}

void program::free(CUstream on, CUdeviceptr where) { check(cuda().mem_free_async(where, on)); }
void program::unmap(CUdeviceptr where) { check(cuda().mem_unmap(where, handle_size)); }
void program::host_read(const void* where, std::size_t size) { machine_->host_read(where, size); }
void program::host_write(void* where, std::size_t size) { machine_->host_write(where, size); }

std::string program::stories() const {
  std::string all;
  for (const sim::hazard& found : machine_->hazards()) all += found.story() + "\n";
  return all;
}

}  // namespace weir::hazards
