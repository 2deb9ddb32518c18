// SPDX-License-Identifier: Apache-2.0
// Starting a machine: the same driver calls for both kinds.
#include "support/machine_under_test.hpp"

#include "support/call_counter.hpp"
#include "support/kernels.hpp"

namespace weir::testing_support {

result<void> machine_under_test::start(const driver::table& real) {
  using driver::call;
  using driver::check;
  table_ = &count_calls(real);
  const driver::table& cu = *table_;
  WEIR_TRY(check(call::init, cu.init(0)));
  WEIR_TRY(check(call::device_get, cu.device_get(&device_, 0)));
  WEIR_TRY(
      check(call::device_primary_ctx_retain, cu.device_primary_ctx_retain(&context_, device_)));
  WEIR_TRY(check(call::ctx_set_current, cu.ctx_set_current(context_)));
  driver::CUmodule module = nullptr;
  WEIR_TRY(check(call::module_load_data, cu.module_load_data(&module, kernel_text)));
  const auto find = [&](driver::CUfunction& function, const char* name) {
    return check(call::module_get_function, cu.module_get_function(&function, module, name));
  };
  WEIR_TRY(find(kernels_.fill, "weir_fill"));
  WEIR_TRY(find(kernels_.check, "weir_check"));
  WEIR_TRY(find(kernels_.increment, "weir_increment"));
  WEIR_TRY(find(kernels_.copy, "weir_copy"));
  WEIR_TRY(find(kernels_.spin, "weir_spin"));
  WEIR_TRY(find(kernels_.hold, "weir_hold"));
  return {};
}

}  // namespace weir::testing_support
