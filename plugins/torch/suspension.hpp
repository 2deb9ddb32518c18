// SPDX-License-Identifier: Apache-2.0
// Suspended memory for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace weir_torch {

/// Adds the calls that python/weir/_torch_suspend.py makes.
void define_suspension(pybind11::module_& module);

}  // namespace weir_torch
