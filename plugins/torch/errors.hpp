// weir's errors as torch's exceptions.
#pragma once

#include <c10/util/Exception.h>

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

}  // namespace weir_torch
