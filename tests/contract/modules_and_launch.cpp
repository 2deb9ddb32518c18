// SPDX-License-Identifier: Apache-2.0
// Contract: modules from PTX text, their functions, and launches.
#include <string>

#include "support/child_process.hpp"
#include "support/contract_test.hpp"
#include "support/kernels.hpp"

namespace weir::testing_support { namespace {

class modules_and_launch : public contract_test {};
WEIR_CONTRACT(modules_and_launch);

CUresult launch_fill(driver_fixture& b, CUfunction function, unsigned grid, unsigned block,
                     unsigned shared = 0) {
  CUdeviceptr memory = b.new_memory(16);
  word value = 0;
  std::uint64_t count = 0;
  void* parameters[] = {&memory, &value, &count};
  return b.cu->launch_kernel(function, grid, 1, 1, block, 1, 1, shared, b.new_stream(), parameters,
                             nullptr);
}

const refusal_list modules_and_launch_refusals{
    "modules_and_launch",
    {
        {"module_load_data into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return b.cu->module_load_data(nullptr, kernel_text); }},
        {"module_load_data of nothing", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmodule module = nullptr;
           return b.cu->module_load_data(&module, nullptr);
         }},
        {"module_load_data of text that is no PTX", CUDA_ERROR_INVALID_IMAGE,
         [](driver_fixture& b) {
           CUmodule module = nullptr;
           return b.cu->module_load_data(&module, "this is not a module");
         }},
        {"module_load_data of PTX with an error", CUDA_ERROR_INVALID_PTX,
         [](driver_fixture& b) {
           CUmodule module = nullptr;
           return b.cu->module_load_data(
               &module, ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry f( { }\n");
         }},
        {"module_unload(null)", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return b.cu->module_unload(nullptr); }},
        {"module_get_function of no module", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) {
           CUfunction function = nullptr;
           return b.cu->module_get_function(&function, nullptr, "weir_fill");
         }},
        {"module_get_function of no such name", CUDA_ERROR_NOT_FOUND,
         [](driver_fixture& b) {
           CUmodule module = nullptr;
           b.cu->module_load_data(&module, kernel_text);
           CUfunction function = nullptr;
           const CUresult answer = b.cu->module_get_function(&function, module, "weir_nothing");
           b.cu->module_unload(module);
           return answer;
         }},
        {"module_get_function into null", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           CUmodule module = nullptr;
           b.cu->module_load_data(&module, kernel_text);
           const CUresult answer = b.cu->module_get_function(nullptr, module, "weir_fill");
           b.cu->module_unload(module);
           return answer;
         }},
        {"launch_kernel of no function", CUDA_ERROR_INVALID_HANDLE,
         [](driver_fixture& b) { return launch_fill(b, nullptr, 1, 1); }},
        {"launch_kernel with an empty grid", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return launch_fill(b, b.machine->kernels().fill, 0, 1); }},
        {"launch_kernel with an empty block", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return launch_fill(b, b.machine->kernels().fill, 1, 0); }},
        {"launch_kernel with a block of 1025 threads", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) { return launch_fill(b, b.machine->kernels().fill, 1, 1025); }},
        {"launch_kernel with 1 MiB of shared memory", CUDA_ERROR_INVALID_VALUE,
         [](driver_fixture& b) {
           return launch_fill(b, b.machine->kernels().fill, 1, 1, 1 << 20);
         }},
    }};

TEST_P(modules_and_launch, refuses) { expect_refusals(modules_and_launch_refusals, machine); }

TEST_P(modules_and_launch, two_modules_of_one_text_are_two) {
  CUmodule first = nullptr;
  CUmodule second = nullptr;
  WEIR_OK(cu->module_load_data(&first, kernel_text));
  WEIR_OK(cu->module_load_data(&second, kernel_text));
  EXPECT_NE(first, second);
  CUfunction of_first = nullptr;
  CUfunction of_second = nullptr;
  WEIR_OK(cu->module_get_function(&of_first, first, "weir_fill"));
  WEIR_OK(cu->module_get_function(&of_second, second, "weir_fill"));
  EXPECT_NE(of_first, of_second);
  WEIR_OK(cu->module_unload(first));
  // The other module's function still runs.
  CUdeviceptr memory = new_memory(16);
  word value = 77;
  std::uint64_t count = 4;
  void* parameters[] = {&memory, &value, &count};
  WEIR_OK(cu->launch_kernel(of_second, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
  EXPECT_EQ(0u, mismatches(memory, 77, 4));
  WEIR_OK(cu->module_unload(second));
}

TEST_P(modules_and_launch, parameters_are_taken_when_the_launch_is_queued) {
  const CUstream stream = new_stream();
  const CUdeviceptr memory = new_memory(4 * kib);
  auto held = occupy(stream);
  {
    CUdeviceptr address = memory;
    word value = 5;
    std::uint64_t count = kib;
    void* parameters[] = {&address, &value, &count};
    WEIR_OK(cu->launch_kernel(machine->kernels().fill, 4, 1, 1, 256, 1, 1, 0, stream, parameters,
                              nullptr));
    value = 6;
    count = 1;
    address = 0;
  }
  held->finish();
  EXPECT_EQ(0u, mismatches(memory, 5, kib));
}

TEST_P(modules_and_launch, any_shape_of_launch_covers_all_words) {
  const CUdeviceptr memory = new_memory(40 * kib);
  CUdeviceptr address = memory;
  std::uint64_t count = 10 * kib;
  word value = 0;
  void* parameters[] = {&address, &value, &count};
  const unsigned shapes[][2] = {{1, 1}, {1, 1024}, {3, 96}, {1000, 32}};
  for (const auto& [grid, block] : shapes) {
    ++value;
    WEIR_OK(cu->launch_kernel(machine->kernels().fill, grid, 1, 1, block, 1, 1, 0, nullptr,
                              parameters, nullptr));
    EXPECT_EQ(0u, mismatches(memory, value, 10 * kib)) << grid << " x " << block;
  }
}

TEST_P(modules_and_launch, the_checking_kernel_finds_what_is_wrong) {
  const CUdeviceptr memory = new_memory(4 * kib);
  const CUdeviceptr wrong = new_memory(sizeof(word));
  WEIR_OK(cu->memset_d32(wrong, 0, 1));
  WEIR_OK(fill(memory, 4, kib, nullptr));
  WEIR_OK(cu->memset_d32(memory + 40, 5, 3));
  WEIR_OK(check(memory, 4, kib, wrong, nullptr));
  EXPECT_EQ(3u, words(wrong, 1)[0]);
}

/// A kernel that writes where nothing is mapped: the context is lost, and says so from then on.
WEIR_CHILD(illegal_address) {
  const table& cu = machine.driver();
  CUdeviceptr range = 0;
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.mem_address_reserve(&range, 2 * mib, 0, 0, 0));
  word value = 1;
  std::uint64_t count = 1;
  void* parameters[] = {&range, &value, &count};
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.launch_kernel(machine.kernels().fill, 1, 1, 1, 1, 1, 1, 0,
                                                   nullptr, parameters, nullptr));
  WEIR_CHILD_EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cu.ctx_synchronize());
  CUdeviceptr memory = 0;
  WEIR_CHILD_EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cu.mem_alloc(&memory, 16));
  WEIR_CHILD_EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cu.stream_synchronize(nullptr));
  return 0;
}

TEST_P(modules_and_launch, an_illegal_address_ends_the_context) {
  child_process child{"illegal_address", GetParam()};
  EXPECT_EQ(0, child.wait());
}

}  // namespace
}  // namespace weir::testing_support
