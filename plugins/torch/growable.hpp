// SPDX-License-Identifier: Apache-2.0
// Growable memory of a device's allocator, for Python.
#pragma once

#include <pybind11/pybind11.h>

namespace weir_torch {

/// Adds the class Growable to the module.
void define_growable(pybind11::module_& module);

}  // namespace weir_torch
