// The loader reports a lack of host memory instead of throwing, at whatever allocation it happens.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "weir/driver/table.hpp"

namespace {
// How many allocations of this thread succeed before one fails; negative: all do.
thread_local long allocations_left = -1;
thread_local bool one_failed = false;
}  // namespace

void* operator new(std::size_t size) {
  if (allocations_left == 0) {
    one_failed = true;
    throw std::bad_alloc{};
  }
  if (allocations_left > 0) --allocations_left;
  if (void* const memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc{};
}
// Every form that a sanitizer would otherwise bring its own of, to be freed by the ones below.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace weir::driver {
namespace {

// Loads `path` again and again, with memory for one allocation more each time, until there is
// enough.
long failures_until_enough(const char* path) {
  for (long enough = 0; enough < 1000; ++enough) {
    one_failed = false;
    allocations_left = enough;
    const auto loaded = load(path);
    allocations_left = -1;
    if (!one_failed) return enough;
    EXPECT_FALSE(loaded) << enough;
    EXPECT_EQ(loaded.error(), error{.code = errc::no_host_memory}) << enough;
  }
  return -1;
}

TEST(loader_without_memory, fails_cleanly_with_a_good_driver) {
  EXPECT_GT(failures_until_enough(WEIR_FAKE_FIRST_PROC_ADDRESS), 1);
}
TEST(loader_without_memory, fails_cleanly_with_a_bad_driver) {
  EXPECT_GT(failures_until_enough(WEIR_FAKE_LACKS_REQUIRED), 1);
}
TEST(loader_without_memory, fails_cleanly_without_a_driver) {
  EXPECT_GT(failures_until_enough("libweir_no_such_driver.so.1"), 0);
}

}  // namespace
}  // namespace weir::driver
