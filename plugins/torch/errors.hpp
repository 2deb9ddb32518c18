// SPDX-License-Identifier: Apache-2.0
// weir's errors as torch's exceptions.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <limits>
#include <utility>

#include "weir/base/result.hpp"

namespace weir_torch {

[[noreturn]] inline void fail(const weir::error& reason) {
  TORCH_CHECK(false, "weir: ", reason.message());
}

/// The value, or a RuntimeError in Python.
template <class Value>
Value checked(weir::result<Value> outcome) {
  if (!outcome) fail(outcome.error());
  return *std::move(outcome);
}

inline void checked(const weir::result<void>& outcome) {
  if (!outcome) fail(outcome.error());
}

/// A device's number from Python, which may be any.
inline c10::DeviceIndex index_from(int device) {
  TORCH_CHECK(device >= 0 && device <= std::numeric_limits<c10::DeviceIndex>::max(),
              "Invalid device argument ", device);
  return static_cast<c10::DeviceIndex>(device);
}

}  // namespace weir_torch
