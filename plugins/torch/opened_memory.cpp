// Memory that a process running weir shares, opened by one that does not.
#include "opened_memory.hpp"

#include "errors.hpp"
#include "weir/device/runtime.hpp"

namespace weir_torch {
namespace {

weir::device device_of_default_runtime(int index) {
  static const std::shared_ptr<weir::runtime>& runtime =
      *new std::shared_ptr<weir::runtime>{checked(weir::runtime::open_cuda())};
  return checked(runtime->device(weir::device_id{index}));
}

}  // namespace

opened_memory::opened_memory(const std::string& handle, int device)
    : gpu_{device_of_default_runtime(device)},
      block_{checked(imported_block::open(gpu_, handle))} {}

void opened_memory::close() {
  if (block_ == nullptr) return;
  checked(gpu_.synchronize());
  block_.reset();
}

bool needs_weir(const std::string& handle) {
  const auto parsed = ipc_handle::parse(handle);
  return parsed && parsed->offer && !parsed->offer->opens_without_weir;
}

}  // namespace weir_torch
