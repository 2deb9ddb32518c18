// SPDX-License-Identifier: Apache-2.0
// Choosing what fails, and in which calls.
#include "faults.hpp"

#include <array>
#include <cstdlib>

namespace weir::programs_test {
namespace {

using driver::call;
// Not thread_exchange_stream_capture_mode: without relaxed mode a call of weir may break a capture.
// Not mem_release: physical memory that the driver refuses to release may be lost.
constexpr std::array fallible{call::mem_create,
                              call::mem_map,
                              call::mem_set_access,
                              call::mem_unmap,
                              call::mem_address_reserve,
                              call::event_create,
                              call::event_record,
                              call::event_query,
                              call::event_synchronize,
                              call::stream_wait_event,
                              call::stream_get_id,
                              call::stream_is_capturing,
                              call::mem_alloc,
                              call::mem_free,
                              call::mem_host_alloc,
                              call::mem_free_host,
                              call::memcpy_async,
                              call::mem_get_info,
                              call::mem_pool_create,
                              call::mem_alloc_from_pool_async,
                              call::mem_free_async,
                              call::ctx_push_current,
                              call::stream_get_capture_info};

}  // namespace

faults::faults(world& in) : world_{in} {
  kind_ = in.random().any_of({kind::none, kind::none, kind::none, kind::host, kind::host,
                              kind::driver, kind::driver, kind::both});
  if (!host_memory_can_fail && kind_ == kind::host) kind_ = kind::none;
  if (!host_memory_can_fail && kind_ == kind::both) kind_ = kind::driver;
  if (kind_ != kind::none) world_.tolerate_reports();
}

void faults::begin(const char* name) {
  armed_ = armed_fault::none;
  struck_ = false;
  rng& random = world_.random();
  if (kind_ == kind::none || !random.one_in(10)) return;
  const bool host = kind_ == kind::host || (kind_ == kind::both && random.one_in(2));
  armed_ = host ? armed_fault::host : armed_fault::driver;
  nth_ = host ? random.magnitude(24) - 1 : random.magnitude(6);
  target_ = fallible[random.below(fallible.size())];
  using namespace driver;
  answer_ = random.any_of({CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_VALUE,
                           CUDA_ERROR_NOT_SUPPORTED});
  const std::string what = host ? "host allocation" : std::string{driver::info(target_).symbol};
  world_.log("in the next call (" + std::string{name} + ") fails: " + what + " number " +
             std::to_string(nth_) + (host ? "" : " with " + std::to_string(answer_)));
}

faults::arming::arming(faults& owner) : owner_{owner} {
  if (owner_.armed_ == armed_fault::driver) {
    calls_before_ = owner_.world_.machine().calls(owner_.target_);
    owner_.world_.machine().fail(owner_.target_, owner_.nth_, owner_.answer_);
  }
  if (owner_.armed_ == armed_fault::host) scarce_.emplace(static_cast<long>(owner_.nth_));
}

faults::arming::~arming() {
  if (owner_.armed_ == armed_fault::host) owner_.struck_ = scarce_memory::take_failure();
  if (owner_.armed_ == armed_fault::driver) {
    owner_.world_.machine().clear_faults();
    owner_.struck_ = owner_.world_.machine().calls(owner_.target_) >= calls_before_ + owner_.nth_;
  }
}

}  // namespace weir::programs_test
