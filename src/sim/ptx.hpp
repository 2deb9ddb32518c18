// SPDX-License-Identifier: Apache-2.0
// Reads from PTX text what a launch needs to know: the entries and the sizes of their parameters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// One parameter as it lies in a buffer of all parameters.
struct ptx_parameter {
  std::size_t size = 0;
  std::size_t offset = 0;
};

struct ptx_entry {
  std::string name;
  std::vector<ptx_parameter> parameters;
};

struct ptx_module {
  int version = 0;  ///< 70 is PTX ISA 7.0
  int target = 0;   ///< 90 is sm_90
  std::vector<ptx_entry> entries;
};

/// Reads a module's text. CUDA_ERROR_INVALID_IMAGE if it is no PTX at all (it does not begin with
/// .version), CUDA_ERROR_INVALID_PTX if it is broken PTX. Instructions are not checked.
[[nodiscard]] driver::CUresult read_ptx(std::string_view text, ptx_module& module);

}}}  // namespace weir::v0::sim
