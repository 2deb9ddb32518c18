// SPDX-License-Identifier: Apache-2.0
// The machine under test is a GPU, reached through libcuda.
#include <cstdlib>
#include <cstring>

#include "support/machine_under_test.hpp"

namespace weir::testing_support {
namespace {

using driver::CUDA_SUCCESS;

/// Longer than any test waits for something on purpose.
constexpr std::uint64_t hold_limit_ns = 4'000'000'000;

/// Runs weir_hold until its flag, a word of pinned memory, is set.
class gpu_occupation final : public occupation {
 public:
  gpu_occupation(const driver::table& cu, driver::CUfunction hold, driver::CUstream stream)
      : cu_{cu} {
    void* flag = nullptr;
    if (cu_.mem_host_alloc(&flag, sizeof(std::uint32_t), driver::host_alloc_portable) !=
        CUDA_SUCCESS)
      return;
    flag_ = static_cast<volatile std::uint32_t*>(flag);
    *flag_ = 0;
    std::uint64_t address = reinterpret_cast<std::uintptr_t>(flag);
    std::uint64_t limit = hold_limit_ns;
    void* parameters[] = {&address, &limit};
    launched_ = cu_.launch_kernel(hold, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    stream_ = stream;
  }
  ~gpu_occupation() override {
    finish();
    if (flag_ == nullptr) return;
    // The kernel reads the flag until it sees it set: the word must not go before the kernel does.
    if (launched_ == CUDA_SUCCESS) cu_.stream_synchronize(stream_);
    cu_.mem_free_host(const_cast<std::uint32_t*>(flag_));
  }
  void finish() override {
    if (flag_ != nullptr) *flag_ = 1;
  }

 private:
  const driver::table& cu_;
  volatile std::uint32_t* flag_ = nullptr;
  driver::CUstream stream_ = nullptr;
  driver::CUresult launched_ = driver::CUDA_ERROR_INVALID_VALUE;
};

class gpu_under_test final : public machine_under_test {
 public:
  gpu_under_test() : machine_under_test{0} {}

  result<void> open() {
    // Kernels that are loaded at their first launch wait for the device at that launch, and streams
    // that share a hardware queue wait for each other: both would hang behind an occupied stream.
    ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    auto library = driver::load();
    if (!library) return std::move(library).error();
    library_ = std::move(*library);
    WEIR_TRY(start(library_->calls));
    return warm_up();
  }

  std::unique_ptr<occupation> occupy(driver::CUstream stream) override {
    return std::make_unique<gpu_occupation>(driver(), kernels().hold, stream);
  }
  std::vector<std::string> take_hazards() override { return {}; }

 private:
  /// Makes the driver load what it loads lazily: fills and copies are kernels too.
  result<void> warm_up() {
    const driver::table& cu = driver();
    driver::CUdeviceptr memory = 0;
    WEIR_TRY(driver::check(driver::call::mem_alloc, cu.mem_alloc(&memory, 4096)));
    char host[64] = {};
    cu.memset_d8(memory, 0, 63);
    cu.memset_d32(memory, 0, 16);
    cu.memset_d2d8_async(memory, 64, 0, 31, 3, nullptr);
    cu.memcpy_htod(memory, host, sizeof(host));
    cu.memcpy_dtod(memory + 64, memory, 64);
    cu.memcpy_dtoh(host, memory, sizeof(host));
    cu.ctx_synchronize();
    return driver::check(driver::call::mem_free, cu.mem_free(memory));
  }

  std::unique_ptr<driver::library> library_;
};

bool gpu_required() {
  const char* value = std::getenv("WEIR_REQUIRE_GPU");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace

result<std::shared_ptr<machine_under_test>> open_machine(std::uint64_t) {
  static const auto opened = []() -> result<std::shared_ptr<machine_under_test>> {
    auto gpu = std::make_shared<gpu_under_test>();
    WEIR_TRY(gpu->open());
    return std::shared_ptr<machine_under_test>{gpu};
  }();
  if (opened) {
    const auto& machine = opened.value();
    machine->driver().ctx_set_current(machine->context());
  }
  return opened;
}

std::vector<std::uint64_t> machine_seeds() { return {0}; }

bool machine_may_be_absent() { return !gpu_required(); }

}  // namespace weir::testing_support
