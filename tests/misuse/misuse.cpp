// SPDX-License-Identifier: Apache-2.0
// A program with mistakes: what it frees twice and never frees. Compiled with and without NDEBUG.
#include <cstdio>
#include <cstring>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"

using namespace weir::literals;

int main(int count, char** words) {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  const auto memory = weir::caching_allocator::create(gpu).value();
  const auto stream = weir::stream::create(gpu).value();
  for (int i = 1; i < count; ++i) {
    void* const p = memory.allocate(4_KiB, stream);
    if (std::strcmp(words[i], "double_free") == 0) {
      memory.deallocate(p, stream);
      memory.deallocate(p, stream);
    } else if (std::strcmp(words[i], "foreign_pointer") == 0) {
      memory.deallocate(&count, stream);
      memory.deallocate(p, stream);
    } else if (std::strcmp(words[i], "handler") == 0) {
      weir::set_error_handler([](const weir::error&) {});
      memory.deallocate(p, stream);
    } else if (std::strcmp(words[i], "limit") == 0) {
      std::printf("%llu\n", static_cast<unsigned long long>(memory.limit().count()));
      memory.deallocate(p, stream);
    }  // "leak": it stays
  }
}
