// SPDX-License-Identifier: Apache-2.0
// Misuse is told: which memory, whose, and where it was allocated and freed.
#include "base/hexadecimal.hpp"
#include "heap/heap_fixture.hpp"
#include "observe/block_history.hpp"

// By names that a program's table of symbols has.

extern "C" [[gnu::noinline, gnu::visibility("default")]] void* user_takes(
    weir::caching_allocator& memory, std::uint64_t size, const weir::stream& stream) {
  void* const block = memory.allocate(weir::bytes{size}, stream);
  asm volatile("" ::: "memory");  // no tail call: the frame stays
  return block;
}

extern "C" [[gnu::noinline, gnu::visibility("default")]] void user_frees(
    weir::caching_allocator& memory, void* block, const weir::stream& stream) {
  memory.deallocate(block, stream);
  asm volatile("" ::: "memory");
}

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const tag weights = tag::named("misuse test: weights").value();

class misuse_test : public heap_test {
 protected:
  /// The only error that was reported.
  [[nodiscard]] error told() {
    const auto all = heard.take();
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? error{} : all.front();
  }
  [[nodiscard]] static std::string at(const void* address) {
    return detail::hexadecimal(reinterpret_cast<std::uint64_t>(address));
  }
  [[nodiscard]] static std::string on(const stream& stream) {
    return ", stream " + std::to_string(stream.id().number());
  }
};

TEST_F(misuse_test, a_second_free_names_address_size_tag_and_stream) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  void* p = nullptr;
  {
    const tag_scope as{weights};
    p = memory.allocate(3000_B, one);
  }
  memory.deallocate(p, two);
  memory.deallocate(p, one);
  const std::string words = at(p) + ", 3 KiB, tag \"misuse test: weights\"" + on(two);
  EXPECT_EQ(told(), (error{{.code = errc::double_free, .detail = words}}));
  EXPECT_EQ(memory.try_deallocate(p, one).error().detail(), words)
      << "the same where it is returned";
  // Back in the store it is no block any more.
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim(bytes::max()));
  memory.deallocate(p, one);
  EXPECT_EQ(told().detail(), at(p) + ", in the free memory " + at(p) + ", 2 MiB");
}

TEST_F(misuse_test, a_foreign_pointer_is_told_from_one_inside_a_block) {
  auto memory = make();
  const auto stream = new_stream();
  void* p = nullptr;
  {
    const tag_scope as{weights};
    p = memory.allocate(1_MiB, stream);
  }
  int local = 0;
  memory.deallocate(&local, stream);
  EXPECT_EQ(told(), (error{{.code = errc::foreign_pointer,
                            .detail = at(&local) + " is not memory of this allocator"}}));
  void* const inside = static_cast<std::byte*>(p) + 512;
  memory.deallocate(inside, stream);
  EXPECT_EQ(told(), (error{{.code = errc::foreign_pointer,
                            .detail = at(inside) + " is inside a block, not its start: " + at(p) +
                                      ", 1 MiB, tag \"misuse test: weights\"" + on(stream)}}));
  memory.deallocate(p, stream);
}

TEST_F(misuse_test, an_address_is_described_by_the_live_block_around_it) {
  auto memory = make();
  const auto stream = new_stream();
  const auto pool = memory.create_pool("apart").value();
  void* const other = memory.allocate(1_KiB, stream);
  std::byte* p = nullptr;
  {
    const tag_scope as{weights};
    p = static_cast<std::byte*>(pool.allocate(3000_B, stream));
  }
  const std::string words =
      " a live block: " + at(p) + ", 2.93 KiB, tag \"misuse test: weights\"" + on(stream);
  EXPECT_EQ(memory.describe_address(p + 100).value(), at(p + 100) + " is 100 bytes into" + words);
  EXPECT_EQ(memory.describe_address(p + 3000).value(), at(p + 3000) + " is 1 byte after" + words)
      << "of what was asked for";
  EXPECT_EQ(memory.describe_address(other).value(),
            at(other) + " is 0 bytes into a live block: " + at(other) + ", 1 KiB" + on(stream));
  memory.deallocate(p, stream);
  memory.deallocate(other, stream);
  for (const void* const gone : {static_cast<void*>(p), other}) {
    const auto unknown = memory.describe_address(gone);
    ASSERT_EQ(code_of(unknown), errc::foreign_pointer);
    EXPECT_EQ(unknown.error().detail(), at(gone) + " is not memory of this allocator");
  }
}

TEST_F(misuse_test, a_leak_lists_the_largest_blocks) {
  auto memory = make();
  const auto stream = new_stream();
  std::vector<void*> blocks;
  for (std::uint64_t i = 1; i <= 10; ++i) {
    const tag_scope as{i == 10 ? weights : tag{}};
    blocks.push_back(memory.allocate(i * 1_KiB, stream));
  }
  ASSERT_TRUE(memory.close());
  const error leak = told();
  EXPECT_EQ(leak.code(), errc::still_live);
  EXPECT_EQ(leak.requested(), 55_KiB);
  std::string expected = "an allocator was closed with 10 live blocks of 55 KiB\n  " +
                         at(blocks[9]) + ", 10 KiB, tag \"misuse test: weights\"" + on(stream);
  for (std::uint64_t i = 9; i >= 3; --i)
    expected += "\n  " + at(blocks[i - 1]) + ", " + to_string(i * 1_KiB) + on(stream);
  EXPECT_EQ(leak.detail(), expected + "\n  and 2 more");
}

TEST_F(misuse_test, a_leak_counts_every_pool) {
  auto memory = make();
  const auto stream = new_stream();
  const auto unused = memory.create_pool("never used").value();
  const auto pool = memory.create_pool("apart").value();
  void* const small = memory.allocate(1_KiB, stream);
  void* const large = pool.allocate(2_KiB, stream);
  memory.deallocate(memory.allocate(4_KiB, stream), stream);
  ASSERT_TRUE(memory.close());
  const error leak = told();
  EXPECT_EQ(leak.requested(), 3_KiB);
  EXPECT_EQ(leak.detail(), "an allocator was closed with 2 live blocks of 3 KiB\n  " + at(large) +
                               ", 2 KiB" + on(stream) + "\n  " + at(small) + ", 1 KiB" +
                               on(stream));
}

TEST_F(misuse_test, both_stacks_are_told_where_they_are_remembered) {
  auto memory = make({.debug_stacks = true});
  const auto one = new_stream();
  const auto two = new_stream();
  void* p = nullptr;
  {
    const tag_scope as{weights};
    p = user_takes(memory, 3000, one);
  }
  memory.deallocate(static_cast<std::byte*>(p) + 512, one);
  std::string text = told().detail();
  const auto allocated = text.find("\n  allocated on stream " + std::to_string(one.id().number()) +
                                   ", 2.93 KiB, tag \"misuse test: weights\"\n");
  ASSERT_NE(allocated, text.npos) << text;
  EXPECT_NE(text.find("user_takes+0x", allocated), text.npos) << text;
  EXPECT_THAT(text, Not(HasSubstr("freed on")));
  user_frees(memory, p, two);
  memory.deallocate(p, one);
  text = told().detail();
  const auto taken = text.find("user_takes+0x");
  const auto freed = text.find("\n  freed on stream " + std::to_string(two.id().number()) + "\n");
  ASSERT_NE(freed, text.npos) << text;
  EXPECT_LT(taken, freed);
  EXPECT_NE(text.find("user_frees+0x", freed), text.npos) << text;
  // What was handed out again is told of its new life.
  ASSERT_EQ(memory.allocate(3000_B, two), p);
  ASSERT_TRUE(memory.close());
  text = told().detail();
  EXPECT_THAT(text, HasSubstr("allocated on stream " + std::to_string(two.id().number())));
  EXPECT_THAT(text, Not(HasSubstr("user_takes")));
  EXPECT_THAT(text, Not(HasSubstr("freed on")));
}

TEST(block_history, forgets_the_oldest_of_many_freed_blocks) {
  observe::block_history history;
  const auto send = [&](memory_event_kind kind, std::uint64_t address) {
    history.on_event(
        {.kind = kind, .stream = stream_id{7}, .address = address, .size = 512, .rounded = 512});
  };
  EXPECT_EQ(history.life_of(512), "");
  send(memory_event_kind::reserve, 512);
  EXPECT_EQ(history.life_of(512), "");
  send(memory_event_kind::allocate, 512);
  send(memory_event_kind::allocate, 1024);
  send(memory_event_kind::deallocate, 512);
  send(memory_event_kind::allocate, 512);  // live again: stays
  send(memory_event_kind::deallocate, 1024);
  for (std::uint64_t i = 0; i < 65535; ++i) {
    send(memory_event_kind::allocate, 1 << 20);
    send(memory_event_kind::deallocate, 1 << 20);
  }
  EXPECT_THAT(history.life_of(512), HasSubstr("allocated on stream 7, 512 B"));
  EXPECT_THAT(history.life_of(1024), HasSubstr("freed on stream 7"));
  send(memory_event_kind::deallocate, 1 << 20);
  EXPECT_EQ(history.life_of(1024), "");
  EXPECT_THAT(history.life_of(1 << 20), HasSubstr("freed on stream 7"));
}

}  // namespace
}  // namespace weir::testing_support
