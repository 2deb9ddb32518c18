// Live pages: what `weir top` reads of a running allocator.
#include "weir/trace/live_page.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "support/no_threads.hpp"
#include "support/small_machine.hpp"
#include "weir/device/runtime.hpp"

namespace weir {
namespace {

class live_page_tests : public ::testing::Test {
 protected:
  std::shared_ptr<runtime> runtime_ = testing_support::open_small_machine();
  device gpu_ = runtime_->device(device_id{0}).value();
  stream stream_ = stream::create(gpu_).value();
};

TEST_F(live_page_tests, show_what_the_allocator_holds_by_tag_and_stream) {
  auto memory = caching_allocator::create(gpu_).value();
  const tag cache = tag::named("kv cache").value();
  void* block = nullptr;
  {
    const tag_scope tagged{cache};
    block = memory.allocate(bytes{3 << 20}, stream_);
  }
  const auto page = live_page::publish(memory).value();
  const auto views = read_live_pages(::getpid()).value();
  ASSERT_EQ(1u, views.size());
  const live_view& view = views[0];
  EXPECT_EQ(::getpid(), view.process);
  EXPECT_EQ(memory.stats().requested, view.stats.requested);
  EXPECT_EQ(memory.stats().reserved, view.stats.reserved);
  EXPECT_EQ(gpu_.total_memory(), view.device_total);
  ASSERT_FALSE(view.tags.empty());
  EXPECT_EQ("kv cache", view.tags[0].name);
  EXPECT_EQ(bytes{3 << 20}, view.tags[0].requested.current);
  EXPECT_EQ(1u, view.tags[0].blocks);
  ASSERT_FALSE(view.streams.empty());
  EXPECT_EQ(stream_.ref().id().value(), view.streams[0].stream);
  EXPECT_EQ(bytes{3 << 20}, view.streams[0].live);
  memory.deallocate(block, stream_);
}

TEST_F(live_page_tests, need_a_thread_and_say_so) {
  auto memory = caching_allocator::create(gpu_).value();
  const testing_support::no_threads nothing;
  if (!nothing) GTEST_SKIP() << "threads cannot be refused here";
  const auto page = live_page::publish(memory);
  ASSERT_FALSE(page);
  EXPECT_EQ(page.code(), errc::system);
  EXPECT_FALSE(read_live_pages(::getpid())) << "nothing is left behind";
}

TEST_F(live_page_tests, are_written_again_and_again) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto page = live_page::publish(memory, {.period = std::chrono::milliseconds{10}}).value();
  void* const block = memory.allocate(bytes{1 << 20}, stream_);
  bytes seen{};
  for (int tries = 0; tries < 2000 && seen == bytes{}; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
    seen = read_live_pages(::getpid()).value().at(0).stats.requested.current;
  }
  EXPECT_EQ(bytes{1 << 20}, seen);
  memory.deallocate(block, stream_);
}

TEST_F(live_page_tests, are_written_only_when_a_reader_asks) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto page = live_page::publish(memory, {.period = std::chrono::milliseconds{10}}).value();
  std::this_thread::sleep_for(std::chrono::milliseconds{150});
  void* const block = memory.allocate(bytes{1 << 20}, stream_);
  // By publishing and by this request, which is not answered with what was there before.
  const live_view view = read_live_pages(::getpid()).value().at(0);
  EXPECT_EQ(2u, view.updates);
  EXPECT_EQ(bytes{1 << 20}, view.stats.requested.current);
  memory.deallocate(block, stream_);
}

TEST_F(live_page_tests, take_no_more_than_half_a_per_cent_of_the_time) {
  using clock = std::chrono::steady_clock;
  auto memory = caching_allocator::create(gpu_).value();
  std::vector<void*> blocks;
  for (int i = 0; i < 10'000; ++i) blocks.push_back(memory.allocate(bytes{512}, stream_));
  auto snapshot_time = clock::duration::max();  // the least that a snapshot can have taken
  for (int i = 0; i < 5; ++i) {
    const auto from = clock::now();
    EXPECT_FALSE(memory.snapshot().pools.empty());
    snapshot_time = std::min(snapshot_time, clock::now() - from);
  }
  const auto page = live_page::publish(memory, {.period = std::chrono::milliseconds{10}}).value();
  const auto from = clock::now();
  std::uint64_t updates = 0;
  while (clock::now() - from < std::chrono::milliseconds{400})
    updates = read_live_pages(::getpid()).value().at(0).updates;
  const auto most = (clock::now() - from) / (200 * snapshot_time) + 2;
  EXPECT_LE(updates, static_cast<std::uint64_t>(most));
  for (void* const each : blocks) memory.deallocate(each, stream_);
}

TEST_F(live_page_tests, go_with_their_object_and_keep_no_allocator) {
  std::string path;
  {
    auto memory = caching_allocator::create(gpu_).value();
    const auto page = live_page::publish(memory).value();
    path = page->path();
    EXPECT_TRUE(std::filesystem::exists(path));
    const auto rights = std::filesystem::status(path).permissions();
    EXPECT_EQ(std::filesystem::perms::none, rights & std::filesystem::perms::others_all);
    EXPECT_TRUE(memory.close());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  const auto closed = read_live_pages(::getpid());
  ASSERT_FALSE(closed);
  EXPECT_EQ(errc::not_found, closed.error().code);
}

TEST_F(live_page_tests, are_found_after_many_have_gone) {
  auto memory = caching_allocator::create(gpu_).value();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(live_page::publish(memory));
  const auto first = live_page::publish(memory).value();
  auto other = caching_allocator::create(gpu_).value();
  const auto second = live_page::publish(other).value();
  EXPECT_EQ(2u, read_live_pages(::getpid()).value().size());
}

TEST_F(live_page_tests, refuse_a_period_that_would_disturb) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto refused = live_page::publish(memory, {.period = std::chrono::milliseconds{1}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(errc::invalid_argument, refused.error().code);
}

}  // namespace
}  // namespace weir
