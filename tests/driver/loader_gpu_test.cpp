// SPDX-License-Identifier: Apache-2.0
// The machine's own driver: every row of the table is what it claims to be.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>

#include "weir/driver/table.hpp"

namespace weir::driver { namespace {

TEST(loader_on_a_driver, finds_every_call_that_its_version_has) {
  const auto loaded = load();
  ASSERT_TRUE(loaded) << loaded.error().message();
  for (std::size_t row = 0; row < call_count; ++row) {
    const call_info& known = info(static_cast<call>(row));
    const bool missing = std::find((*loaded)->missing.begin(), (*loaded)->missing.end(),
                                   known.exported) != (*loaded)->missing.end();
    EXPECT_EQ(missing, known.version > (*loaded)->driver_version) << known.exported;
  }
}

// The two ways to a call agree: (name, version) and exported name are the same function. This
// proves the table's versions and suffixes, on which the fallback relies.
TEST(loader_on_a_driver, exported_names_are_the_calls_that_the_driver_gives) {
  const auto loaded = load();
  ASSERT_TRUE(loaded) << loaded.error().message();
  void* const handle = dlopen((*loaded)->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr);
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters)             \
  if ((*loaded)->calls.member != nullptr) {                                               \
    EXPECT_EQ(reinterpret_cast<void*>((*loaded)->calls.member), dlsym(handle, #exported)) \
        << #member;                                                                       \
  }
#include "weir/driver/calls.def"
}

TEST(loader_on_a_driver, takes_less_than_five_milliseconds_once_the_library_is_mapped) {
  ASSERT_TRUE(load());
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(load());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds{5});
}

TEST(loader_on_a_driver, agrees_with_it_about_the_names_of_results) {
  const auto loaded = load();
  ASSERT_TRUE(loaded) << loaded.error().message();
  for (int number = 0; number < 1000; ++number) {
    const auto native = static_cast<CUresult>(number);
    const char* theirs = nullptr;
    if ((*loaded)->calls.get_error_name(native, &theirs) != CUDA_SUCCESS) continue;
    // A driver newer than our list may know results that we do not.
    if (result_name(native) == "CUDA_ERROR_UNKNOWN") continue;
    EXPECT_EQ(result_name(native), theirs);
  }
}

}  // namespace
}  // namespace weir::driver
