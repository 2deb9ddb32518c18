// SPDX-License-Identifier: Apache-2.0
// Memory that a process running weir shares, opened by one that does not.
#include "opened_memory.hpp"

#include <map>
#include <mutex>

#include "errors.hpp"
#include "weir/device/runtime.hpp"

namespace weir_torch {
namespace {

weir::device device_of_default_runtime(int index) {
  static const std::shared_ptr<weir::runtime>& runtime =
      *new std::shared_ptr<weir::runtime>{checked(weir::runtime::open_cuda())};
  return checked(runtime->device(weir::device_id{index}));
}

/// What was given up before the device could be waited for, by device. Never destroyed: the end of
/// a process unmaps everything anyway.
unmap_queue& abandoned(const weir::device& gpu) {
  static std::mutex& mutex = *new std::mutex;
  static auto& queues = *new std::map<int, unmap_queue>;
  const std::lock_guard lock{mutex};
  return queues.try_emplace(gpu.id().number(), gpu).first->second;
}

}  // namespace

opened_memory::opened_memory(const std::string& handle, int device)
    : gpu_{device_of_default_runtime(device)},
      block_{checked(imported_block::open(gpu_, handle))} {}

opened_memory::~opened_memory() {
  if (block_ == nullptr) return;
  unmap_queue& queue = abandoned(gpu_);
  queue.add(std::move(block_));
  queue.drain(false);
}

void opened_memory::close() {
  if (block_ == nullptr) return;
  const auto waited = wait_for_all_work(gpu_);
  if (!may_unmap(waited)) checked(waited);
  block_.reset();
}

bool needs_weir(const std::string& handle) {
  const auto parsed = ipc_handle::parse(handle);
  return parsed && parsed->offer && !parsed->offer->opens_without_weir;
}

}  // namespace weir_torch
