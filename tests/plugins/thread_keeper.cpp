// SPDX-License-Identifier: Apache-2.0
// A library that keeps pointers of every thread, for thread_word_test.cpp.
#include <memory>

namespace {

/// As torch has its own: reached through a function, made at the first use.
std::shared_ptr<int>& kept() {
  static thread_local std::shared_ptr<int> pointer;
  return pointer;
}
thread_local const void* first_copy = nullptr;
thread_local const void* second_copy = nullptr;

}  // namespace

extern "C" {

const void* weir_test_keep(int* owned) {
  kept().reset(owned);
  return kept().get();
}
const void* weir_test_keep_twice(const void* pointer) {
  first_copy = pointer;
  second_copy = pointer;
  return pointer;
}
const void* weir_test_keep_nowhere(const void* pointer) { return pointer; }
}
