// SPDX-License-Identifier: Apache-2.0
// What a trace tracker throws inside a request, kept for the request.
#include "tracker_failure.hpp"

#include <utility>

#include "weir/base/error.hpp"

namespace weir_torch {
namespace {

thread_local constinit tracker_failure* innermost_failure = nullptr;

}  // namespace

tracker_failure::tracker_failure() noexcept : outer_{std::exchange(innermost_failure, this)} {}
tracker_failure::~tracker_failure() { innermost_failure = outer_; }
void tracker_failure::note_current() noexcept {
  if (innermost_failure == nullptr) {
    weir::report_error({{.code = weir::errc::internal,
                         .detail = "an allocator trace tracker threw an exception for a segment"}});
  } else if (innermost_failure->thrown_ == nullptr) {
    innermost_failure->thrown_ = std::current_exception();
  }
}

}  // namespace weir_torch
