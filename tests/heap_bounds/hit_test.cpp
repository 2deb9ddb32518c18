// SPDX-License-Identifier: Apache-2.0
// What a hit touches: no driver, no lock, nothing that threads share.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <new>
#include <thread>

#include "heap/heap_fixture.hpp"
#include "support/sanitizers.hpp"

#if !WEIR_WITH_ADDRESS_SANITIZER && !WEIR_WITH_THREAD_SANITIZER
// What is large gets pages that nothing else is in, so that they can be protected.
void* operator new(std::size_t size) {
  constexpr std::size_t large = 1024;
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const made = size < large ? std::malloc(size == 0 ? 1 : size)
                                  : std::aligned_alloc(page, (size + page - 1) / page * page);
  if (made == nullptr) throw std::bad_alloc{};
  return made;
}
void operator delete(void* gone) noexcept { std::free(gone); }
void operator delete(void* gone, std::size_t) noexcept { std::free(gone); }
#endif

namespace weir::testing_support { namespace {

using heap::address_table;
using heap::block;
using heap::block_index;
using heap::block_store;
using heap::central_heap;

// The way to what is private. To a private base: a cast in functional notation, as in C.
using core_reference = heap::heap_core&;
detail::mutex& lock_of(central_heap& of) { return core_reference(of).mutex_; }
address_table& table_of(central_heap& of) { return core_reference(of).table_; }
block_store& records_of(central_heap& of) { return core_reference(of).blocks_; }
// To a private member: an explicit instantiation may name it.
const void* entries_of(const address_table& of);
template <std::unique_ptr<std::atomic<std::uint64_t>[]> address_table::*Entries>
struct table_door {
  friend const void* entries_of(const address_table& of) { return (of.*Entries).get(); }
};
template struct table_door<&address_table::entries_>;

constexpr int hits = 10'000;
const tag somebody = tag::named("hit test").value();

class hit_test : public heap_test {
 protected:
  hit_test() : memory{make()}, on{new_stream()}, inside{central_heap::of(memory)} { fill(); }

  /// The thread's cache then holds one of each size.
  void fill() {
    const tag_scope tagged{somebody};
    std::vector<void*> all;
    for (const bytes size : {4_KiB, 1_MiB, 64_MiB}) all.push_back(memory.allocate(size, on));
    for (void* const p : all) memory.deallocate(p, on);
  }
  /// Pairs of the sizes that threads keep by size, and of one that they keep singly.
  void hit(int pairs) {
    const tag_scope tagged{somebody};
    for (int i = 0; i < pairs; ++i) {
      memory.deallocate(memory.allocate(4_KiB, on), on);
      memory.deallocate(memory.allocate(1_MiB, on), on);
      memory.deallocate(memory.allocate(64_MiB, on), on);
    }
  }
  /// The record of the block that a request of that size hits.
  [[nodiscard]] block_index record_for(bytes size) {
    const tag_scope tagged{somebody};
    void* const hit = memory.allocate(size, on);
    const block_index found = table_of(inside).find(reinterpret_cast<std::uint64_t>(hit));
    memory.deallocate(hit, on);
    return found;
  }

  caching_allocator memory;
  stream on;
  central_heap& inside;
};

TEST_F(hit_test, makes_no_driver_call) {
  const auto before = memory.stats().hits;
  const auto calls = machine->calls();
  hit(hits);
  EXPECT_EQ(machine->calls(), calls);
  EXPECT_EQ(memory.stats().hits - before, 3u * hits);
}

TEST_F(hit_test, is_not_held_up_by_the_heaps_lock) {
  std::promise<void> warm;
  std::promise<void> held;
  std::promise<void> done;
  const auto before = memory.stats().hits;
  std::thread other{[&] {
    fill();  // the thread's first: these need the lock
    warm.set_value();
    held.get_future().wait();
    hit(hits);
    done.set_value();
  }};
  warm.get_future().wait();
  {
    const std::lock_guard lock{lock_of(inside)};
    held.set_value();
    // Generous: what waits for the lock waits for ever.
    EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds{60}), std::future_status::ready);
  }
  other.join();
  EXPECT_EQ(memory.stats().hits - before, 3u * hits);
}

TEST_F(hit_test, leaves_everything_that_is_shared_as_it_was) {
  // Somebody else's cache, with something in it.
  std::promise<void> over;
  std::promise<heap::thread_cache*> theirs;
  std::thread other{[&] {
    fill();
    theirs.set_value(heap::this_thread.cache);
    over.get_future().wait();
  }};
  const heap::thread_cache* const foreign = theirs.get_future().get();
  ASSERT_NE(foreign, heap::this_thread.cache);
  fill();  // once more: the other thread's misses took from this one's cache
  const std::array own{record_for(4_KiB), record_for(1_MiB), record_for(64_MiB)};
  block_store& records = records_of(inside);
  constexpr block_index looked_at = 4096;

  const auto bytes_of = [](const void* at, std::size_t size) {
    std::vector<unsigned char> copied(size);
    std::memcpy(copied.data(), at, size);
    return copied;
  };
  const auto look = [&] {
    std::vector<std::vector<unsigned char>> all;
    all.push_back(bytes_of(&inside, sizeof inside));
    all.push_back(bytes_of(entries_of(table_of(inside)), table_of(inside).footprint()));
    all.push_back(bytes_of(foreign, sizeof *foreign));
    for (block_index i = 0; i < looked_at; ++i)
      if (std::find(own.begin(), own.end(), i) == own.end())
        all.push_back(bytes_of(&records[i], sizeof(block)));
    return all;
  };
  const auto before = look();
  const auto own_before = bytes_of(&heap::this_thread.cache->sum, sizeof(heap::account_delta));
  hit(1000);
  EXPECT_TRUE(look() == before);
  // The look can tell: what a hit does write has changed.
  EXPECT_NE(bytes_of(&heap::this_thread.cache->sum, own_before.size()), own_before);
  over.set_value();
  other.join();
}

/// Stricter: what is written and restored, a count of owners or a lock, would be seen as well.
TEST_F(hit_test, works_while_all_that_is_shared_cannot_be_written) {
#if WEIR_WITH_ADDRESS_SANITIZER || WEIR_WITH_THREAD_SANITIZER
  GTEST_SKIP() << "a sanitizer has its own operator new";
#else
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  central_heap& shared = inside;
  const auto record_of = [&](bytes size) {
    const tag_scope tagged{somebody};
    void* const p = memory.allocate(size, on);
    const auto found = table_of(shared).find(reinterpret_cast<std::uint64_t>(p));
    memory.deallocate(p, on);
    return reinterpret_cast<std::uint64_t>(&records_of(shared)[found]);
  };
  const std::array own{record_of(4_KiB), record_of(1_MiB), record_of(64_MiB)};

  struct pages {
    std::uint64_t from, to;
  };
  std::vector<pages> all;
  const auto add = [&](const void* at, std::size_t size) {
    ASSERT_GE(size, 1024u);
    const auto address = reinterpret_cast<std::uint64_t>(at);
    const std::uint64_t from = address / page * page;
    ASSERT_LE(address - from, 64u) << "more than a shared_ptr's count comes before it";
    all.push_back({from, (address + size + page - 1) / page * page});
  };
  add(&shared, sizeof shared);
  add(entries_of(table_of(shared)), table_of(shared).footprint());
  // Of the records, the pages without those of the blocks in use.
  const auto first = reinterpret_cast<std::uint64_t>(&records_of(shared)[0]) / page * page;
  const std::uint64_t end = reinterpret_cast<std::uint64_t>(&records_of(shared)[4095]);
  std::size_t record_pages = 0;
  for (std::uint64_t at = first; at + page <= end; at += page) {
    const bool in_use = std::any_of(own.begin(), own.end(), [&](std::uint64_t record) {
      return record + sizeof(block) > at && record < at + page;
    });
    if (in_use) continue;
    all.push_back({at, at + page});
    ++record_pages;
  }
  EXPECT_GT(record_pages, 0u);

  const auto protect = [&](int how) {
    for (const pages& each : all)
      ASSERT_EQ(::mprotect(reinterpret_cast<void*>(each.from), each.to - each.from, how), 0);
  };
  const auto before = memory.stats().hits;
  protect(PROT_READ);
  hit(1000);  // a write that should not be is a fault here
  protect(PROT_READ | PROT_WRITE);
  EXPECT_EQ(memory.stats().hits - before, 3000u);
  EXPECT_EQ(check(memory), "");
#endif
}

}  // namespace
}  // namespace weir::testing_support
