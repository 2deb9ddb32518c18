// SPDX-License-Identifier: Apache-2.0
// Pointers that another library keeps for every thread, found in one that is loaded like torch's.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "torch/thread_word.hpp"

namespace weir_torch { namespace {

class thread_word_test : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(library, nullptr) << dlerror();
    keep = reinterpret_cast<const void* (*)(int*)>(dlsym(library, "weir_test_keep"));
    ASSERT_NE(keep, nullptr);
  }

  [[nodiscard]] thread_word find_kept() const {
    return thread_word::find(reinterpret_cast<const void*>(keep),
                             [&](bool holds) { return keep(holds ? new int{7} : nullptr); });
  }
  /// What is found when `function` is told a pointer and null.
  [[nodiscard]] thread_word find_with(const char* function) const {
    const auto tell = reinterpret_cast<const void* (*)(const void*)>(dlsym(library, function));
    return thread_word::find(reinterpret_cast<const void*>(keep),
                             [&](bool holds) { return tell(holds ? this : nullptr); });
  }

  void* library = dlopen(THREAD_KEEPER, RTLD_NOW | RTLD_LOCAL);  // stays: other tests may hold it
  const void* (*keep)(int*) = nullptr;
};

TEST_F(thread_word_test, follows_what_the_library_holds) {
  const thread_word word = find_kept();
  ASSERT_TRUE(word);
  const void* const volatile* const own = word.of_this_thread();
  EXPECT_EQ(*own, nullptr);
  const void* const held = keep(new int{1});
  EXPECT_EQ(*own, held);
  const void* const next = keep(new int{2});
  EXPECT_EQ(*own, next);
  keep(nullptr);
  EXPECT_EQ(*own, nullptr);
}

TEST_F(thread_word_test, is_found_while_the_library_holds_something) {
  static_cast<void>(keep(new int{3}));
  int restored = 0;
  const thread_word word =
      thread_word::find(reinterpret_cast<const void*>(keep), [&](bool holds) -> const void* {
        if (!holds) ++restored;
        return keep(new int{holds ? 4 : 5});
      });
  ASSERT_TRUE(word);
  EXPECT_EQ(restored, 1);
  EXPECT_EQ(*static_cast<const int*>(*word.of_this_thread()), 5);
  keep(nullptr);
}

TEST_F(thread_word_test, is_another_in_every_thread) {
  const thread_word word = find_kept();
  ASSERT_TRUE(word);
  const void* const held = keep(new int{1});
  std::thread{[&] {
    const void* const volatile* const own = word.of_this_thread();
    EXPECT_EQ(*own, nullptr) << "a thread that never used the library";
    const void* const held_here = keep(new int{2});
    EXPECT_EQ(*own, held_here);
    EXPECT_NE(held_here, held);
  }}.join();
  EXPECT_EQ(*word.of_this_thread(), held);
  keep(nullptr);
}

TEST_F(thread_word_test, is_not_guessed) {
  EXPECT_FALSE(thread_word{});
  EXPECT_FALSE(find_with("weir_test_keep_twice")) << "which of the two?";
  EXPECT_FALSE(find_with("weir_test_keep_nowhere"));
  EXPECT_FALSE(thread_word::find(nullptr, [&](bool holds) { return holds ? this : nullptr; }))
      << "no library has that code";
  EXPECT_FALSE(thread_word::find(reinterpret_cast<const void*>(keep), [&](bool) {
    return keep(nullptr);
  })) << "nothing changes";
}

}  // namespace
}  // namespace weir_torch
