// SPDX-License-Identifier: Apache-2.0
// Live pages: what `weir top` reads of a running allocator.
#include "weir/trace/live_page.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "base/process.hpp"
#include "support/file_size_limit.hpp"
#include "support/live_folder.hpp"
#include "support/no_threads.hpp"
#include "support/sanitizers.hpp"
#include "support/scratch.hpp"
#include "support/small_machine.hpp"
#include "support/this_process.hpp"
#include "trace/live_layout.hpp"
#include "weir/device/runtime.hpp"

namespace weir { namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace live = trace::live;

const testing_support::own_live_folder pages_of_the_tests;

class live_page_tests : public ::testing::Test {
 protected:
  std::shared_ptr<runtime> runtime_ = testing_support::open_small_machine();
  device gpu_ = runtime_->device(device_id{0}).value();
  stream stream_ = stream::create(gpu_).value();

  static std::vector<std::string> texts(const live_view& view) {
    std::vector<std::string> lines;
    for (const live_tag& each : view.tags) lines.push_back(to_string(each));
    for (const live_stream& each : view.streams) lines.push_back(to_string(each));
    return lines;
  }
  /// What a page holds now, without asking for more.
  static live::content content_of(const live_page& page) {
    const int file = ::open(page.path().c_str(), O_RDWR | O_CLOEXEC);
    const live::mapped_page mapped{file, PROT_READ};
    ::close(file);
    live::content found;
    EXPECT_TRUE(mapped && live::read(*mapped, found));
    return found;
  }
  static std::string stream_text(const stream& queue, const std::string& rest) {
    return "stream " + std::to_string(queue.id().number()) + ", " + rest;
  }
};

TEST_F(live_page_tests, of_all_processes_are_those_that_run) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto own = [] {
    live_listing found = read_all_live_pages();
    std::erase_if(found.views, [](const live_view& each) { return each.process != ::getpid(); });
    std::erase_if(found.refused, [](const error& each) {
      return each.detail().find(live::name_of(::getpid())) == std::string::npos;
    });
    return found;
  };
  EXPECT_EQ(own().views.size(), 0u);
  const auto first = live_page::publish(memory).value();
  const auto second = live_page::publish(memory).value();
  live_listing found = own();
  ASSERT_EQ(found.views.size(), 2u);
  EXPECT_EQ(found.refused.size(), 0u);
  EXPECT_EQ(found.views[0].card, "GPU-77656972-2d73-696d-0000-000000000000");
  EXPECT_EQ(to_string(found),
            "2 live pages\n" + to_string(found.views[0]) + "\n" + to_string(found.views[1]));

  // A page that a process of the same number left behind.
  live::content of_another = content_of(*first);
  of_another.start += 1;
  {
    const int file = ::open(first->path().c_str(), O_RDWR | O_CLOEXEC);
    const live::mapped_page mapped{file, PROT_READ | PROT_WRITE};
    ::close(file);
    live::write(*mapped, of_another);
  }
  EXPECT_EQ(own().views.size(), 1u);
  for (const error& each : read_all_live_pages().refused)
    EXPECT_NE(each.code(), errc::not_found) << "who is gone has no page to complain of";

  const std::string garbled = live::path_of(::getpid(), 1000);
  const int file = ::open(garbled.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  EXPECT_EQ(own().refused.size(), 0u) << "its process is about to make it";
  ASSERT_EQ(::ftruncate(file, sizeof(live::page)), 0);
  EXPECT_EQ(own().refused.size(), 0u) << "the magic comes last";
  ASSERT_EQ(::pwrite(file, "x", 1, offsetof(live::page, magic)), 1);
  ::close(file);
  found = own();
  EXPECT_EQ(found.views.size(), 1u);
  ASSERT_EQ(found.refused.size(), 1u);
  EXPECT_EQ(found.refused.front().detail(), garbled + ": not a live page (bad header); skipped");
  EXPECT_THAT(to_string(found), HasSubstr("\nrefused invalid_argument: "));
  const std::string pipe = live::path_of(::getpid(), 1001);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  found = own();
  ::unlink(pipe.c_str());
  EXPECT_EQ(found.refused.size(), 2u);
  EXPECT_THAT(to_string(found), HasSubstr(pipe + ": not a live page (bad header); skipped"));

  // What a process of the same number left is not this one's, whoever wrote it.
  constexpr timespec long_ago{.tv_sec = 1'000'000'000, .tv_nsec = 0};
  const timespec times[]{long_ago, long_ago};
  ASSERT_EQ(::utimensat(AT_FDCWD, garbled.c_str(), times, 0), 0);
  found = own();
  EXPECT_EQ(found.views.size(), 1u);
  EXPECT_EQ(found.refused.size(), 0u);
  ::unlink(garbled.c_str());
}

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
  EXPECT_EQ(0, view.device);
  EXPECT_EQ(1u, view.updates);
  EXPECT_EQ(to_string(memory.stats()), to_string(view.stats));
  EXPECT_EQ(gpu_.total_memory(), view.device_total);
  EXPECT_THAT(texts(view), ElementsAre("name kv cache, requested 3 MiB (peak 3 MiB), blocks 1",
                                       stream_text(stream_, "live 3 MiB, bound 0 B")));
  memory.deallocate(block, stream_);
}

TEST_F(live_page_tests, say_when_they_were_written_and_how_often_they_may_be) {
  auto memory = caching_allocator::create(gpu_).value();
  const std::int64_t before = live::now();
  const auto page = live_page::publish(memory, {.period = std::chrono::milliseconds{250}}).value();
  const live::content first = content_of(*page);
  EXPECT_GE(first.time, before);
  EXPECT_LE(first.time, live::now());
  EXPECT_EQ(first.period, 250'000'000);
  EXPECT_EQ(first.updates, 1u);
  EXPECT_EQ(first.answered, 0u);
}

TEST_F(live_page_tests, show_as_bound_what_waits_for_a_stream_in_a_cache_or_outside) {
  for (const auto& [cache, state] : {std::pair{bytes{1 << 20}, block_state::thread_cached},
                                     std::pair{bytes{}, block_state::stream_bound}}) {
    allocator_options options;
    options.thread_cache = cache;
    auto memory = caching_allocator::create(gpu_, options).value();
    void* const freed = memory.allocate(bytes{64 << 10}, stream_);
    void* const live = memory.allocate(bytes{4 << 10}, stream_);
    memory.deallocate(freed, stream_);
    std::vector<block_state> states;
    for (const pool_snapshot& pool : memory.snapshot().pools) {
      for (const block_info& each : pool.blocks)
        if (each.size == bytes{64 << 10}) states.push_back(each.state);
    }
    ASSERT_THAT(states, ElementsAre(state));
    const auto page = live_page::publish(memory).value();
    EXPECT_THAT(texts(read_live_pages(::getpid()).value().at(0)),
                ElementsAre("name (no tag), requested 4 KiB (peak 68 KiB), blocks 1",
                            stream_text(stream_, "live 4 KiB, bound 64 KiB")));
    memory.deallocate(live, stream_);
  }
}

TEST_F(live_page_tests, show_which_device_it_is) {
  sim::machine_options two;
  two.devices.assign(2, sim::device_spec{.capacity = bytes{std::uint64_t{1} << 30},
                                         .context_overhead = bytes{64 << 20}});
  two.devices[1].capacity = bytes{std::uint64_t{2} << 30};
  const auto machine = runtime::open_simulated(sim::machine::create(two).value()).value();
  std::vector<caching_allocator> memories;
  std::vector<std::unique_ptr<live_page>> pages;
  for (int i = 0; i < 2; ++i) {
    memories.push_back(caching_allocator::create(machine->device(device_id{i}).value()).value());
    pages.push_back(live_page::publish(memories.back()).value());
  }
  const auto views = read_live_pages(::getpid()).value();
  ASSERT_EQ(2u, views.size());
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(static_cast<int>(i), views[i].device);
    EXPECT_EQ(two.devices[i].capacity, views[i].device_total);
    EXPECT_TRUE(views[i].tags.empty());
    EXPECT_TRUE(views[i].streams.empty());
  }
}

TEST_F(live_page_tests, show_the_largest_tags_and_streams_first) {
  auto memory = caching_allocator::create(gpu_).value();
  const stream other = stream::create(gpu_).value();
  std::vector<std::pair<void*, const stream*>> blocks;
  const auto allocate = [&](const std::string& name, std::uint64_t kibibytes, const stream& queue) {
    const tag_scope tagged{tag::named(name).value()};
    blocks.emplace_back(memory.allocate(bytes{kibibytes << 10}, queue), &queue);
  };
  const std::string long_name(60, 'x');
  allocate("small", 4, stream_);
  allocate(long_name, 64, other);
  allocate("small", 8, stream_);
  allocate("middle", 16, stream_);
  void* const freed = memory.allocate(bytes{128 << 10}, stream_);
  memory.deallocate(freed, stream_);
  const auto page = live_page::publish(memory).value();
  const auto views = read_live_pages(::getpid()).value();
  ASSERT_EQ(1u, views.size());
  EXPECT_THAT(texts(views[0]), ElementsAre("name " + long_name.substr(0, 47) +
                                               ", requested 64 KiB (peak 64 KiB), blocks 1",
                                           "name middle, requested 16 KiB (peak 16 KiB), blocks 1",
                                           "name small, requested 12 KiB (peak 12 KiB), blocks 2",
                                           "name (no tag), requested 0 B (peak 128 KiB), blocks 0",
                                           stream_text(stream_, "live 28 KiB, bound 128 KiB"),
                                           stream_text(other, "live 64 KiB, bound 0 B")));
  for (const auto& [block, queue] : blocks) memory.deallocate(block, *queue);
}

/// What a stream keeps counts as much as what is live, whichever is the more.
TEST_F(live_page_tests, show_the_streams_by_what_is_live_and_bound_together) {
  auto memory = caching_allocator::create(gpu_).value();
  struct amounts {
    std::uint64_t live, bound;  // KiB
  };
  // In the order of their ids: neither falling nor rising, in sum or in any of the two.
  const std::vector<amounts> wanted = {{64, 0}, {160, 128}, {32, 0}, {16, 256}, {8, 16}};
  std::vector<stream> streams;
  std::vector<void*> live;
  for (const amounts& each : wanted) {
    streams.push_back(stream::create(gpu_).value());
    live.push_back(memory.allocate(bytes{each.live << 10}, streams.back()));
    if (each.bound == 0) continue;
    void* const freed = memory.allocate(bytes{each.bound << 10}, streams.back());
    memory.deallocate(freed, streams.back());
  }
  const auto page = live_page::publish(memory).value();
  const auto views = read_live_pages(::getpid()).value();
  ASSERT_EQ(1u, views.size());
  std::vector<std::string> lines;
  for (const live_stream& each : views[0].streams) lines.push_back(to_string(each));
  EXPECT_THAT(lines, ElementsAre(stream_text(streams[1], "live 160 KiB, bound 128 KiB"),
                                 stream_text(streams[3], "live 16 KiB, bound 256 KiB"),
                                 stream_text(streams[0], "live 64 KiB, bound 0 B"),
                                 stream_text(streams[2], "live 32 KiB, bound 0 B"),
                                 stream_text(streams[4], "live 8 KiB, bound 16 KiB")));
  for (std::size_t i = 0; i < wanted.size(); ++i) memory.deallocate(live[i], streams[i]);
}

TEST_F(live_page_tests, show_no_more_rows_than_they_have) {
  auto memory = caching_allocator::create(gpu_).value();
  std::vector<stream> streams;
  std::vector<void*> blocks;
  for (std::uint64_t i = 0; i < 40; ++i) {
    streams.push_back(stream::create(gpu_).value());
    const tag_scope tagged{tag::named("row " + std::to_string(i)).value()};
    blocks.push_back(memory.allocate(bytes{(i + 1) << 20}, streams.back()));
  }
  const auto page = live_page::publish(memory).value();
  const live_view view = read_live_pages(::getpid()).value().at(0);
  ASSERT_EQ(32u, view.tags.size());
  ASSERT_EQ(32u, view.streams.size());
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ("row " + std::to_string(39 - i), view.tags[i].name);
    EXPECT_EQ(bytes{(40 - i) << 20}, view.tags[i].requested.current);
    EXPECT_EQ(streams[39 - i].id(), view.streams[i].stream);
    EXPECT_EQ(bytes{(40 - i) << 20}, view.streams[i].live);
  }
  for (std::size_t i = 0; i < 40; ++i) memory.deallocate(blocks[i], streams[i]);
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

/// Sets a variable until the end of the scope.
class variable_set {
 public:
  variable_set(const char* name, const std::string& value) : name_{name} {
    if (const char* const now = std::getenv(name)) before_ = now;
    ::setenv(name, value.c_str(), 1);
  }
  ~variable_set() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  variable_set(const variable_set&) = delete;
  variable_set& operator=(const variable_set&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

TEST_F(live_page_tests, are_in_the_folder_that_the_environment_names) {
  const testing_support::scratch_folder scratch;
  const variable_set chosen{"WEIR_LIVE_FOLDER", scratch.path("")};
  auto memory = caching_allocator::create(gpu_).value();
  testing_support::write_bytes(scratch.path("weir.1.1"), "garbled");
  {
    const auto page = live_page::publish(memory).value();
    EXPECT_THAT(page->path(), StartsWith(scratch.path("")));
    EXPECT_EQ(scratch.files(), 2u);
    EXPECT_EQ(read_live_pages(::getpid()).value().size(), 1u);
  }
  EXPECT_EQ(scratch.files(), 1u);
}

TEST_F(live_page_tests, take_the_next_name_where_others_have_taken_one) {
  const testing_support::scratch_folder scratch;
  const variable_set chosen{"WEIR_LIVE_FOLDER", scratch.path("")};
  auto memory = caching_allocator::create(gpu_).value();
  std::string next;
  {
    const auto page = live_page::publish(memory).value();
    const auto dot = page->path().rfind('.');
    next = page->path().substr(0, dot + 1) +
           std::to_string(std::stoi(page->path().substr(dot + 1)) + 1);
  }
  ASSERT_EQ(::mkdir(next.c_str(), 0700), 0);  // cannot be removed as a file can
  const auto page = live_page::publish(memory);
  ASSERT_TRUE(page) << page.error().message();
  EXPECT_NE((*page)->path(), next);
}

// Processes of two containers that share the folder may have the same number.
TEST_F(live_page_tests, leave_alone_what_others_may_still_use) {
  const testing_support::scratch_folder scratch;
  const variable_set chosen{"WEIR_LIVE_FOLDER", scratch.path("")};
  auto memory = caching_allocator::create(gpu_).value();
  const auto first = live_page::publish(memory).value();
  const auto published_over = [&](std::uint64_t processes, std::uint64_t start) {
    auto probe = live_page::publish(memory).value();
    const auto dot = probe->path().rfind('.') + 1;
    const std::string next =
        probe->path().substr(0, dot) + std::to_string(std::stoi(probe->path().substr(dot)) + 1);
    probe.reset();
    std::filesystem::copy_file(first->path(), next);
    live::content shown = content_of(*first);
    shown.processes = processes;
    shown.start = start;
    shown.device_total = 4711;
    {
      const int file = ::open(next.c_str(), O_RDWR | O_CLOEXEC);
      const live::mapped_page mapped{file, PROT_READ | PROT_WRITE};
      ::close(file);
      live::write(*mapped, shown);
    }
    const auto page = live_page::publish(memory).value();
    const bool is_over = page->path() == next;
    const std::string text = testing_support::read_bytes(next);
    const live::page& there = *reinterpret_cast<const live::page*>(text.data());
    live::content left;
    EXPECT_TRUE(live::read(there, left));
    EXPECT_EQ(left.device_total == 4711, !is_over);
    std::filesystem::remove(next);
    return is_over;
  };
  const std::uint64_t ours = detail::process_namespace();
  const std::uint64_t start = detail::own_process().start;
  EXPECT_FALSE(published_over(ours + 1, start + 1)) << "of another container";
  EXPECT_FALSE(published_over(0, start + 1)) << "nobody knows of whom";
  EXPECT_FALSE(published_over(ours, start)) << "of this process";
  EXPECT_TRUE(published_over(ours, start + 1)) << "of a process that had the number before";
}

TEST_F(live_page_tests, are_there_only_when_they_are_whole) {
  const testing_support::scratch_folder scratch;
  const variable_set chosen{"WEIR_LIVE_FOLDER", scratch.path("")};
  const int nameless = ::open(scratch.path("").c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (nameless < 0) GTEST_SKIP() << "the file system has no files without names";
  ::close(nameless);
  auto memory = caching_allocator::create(gpu_).value();
  std::atomic<bool> is_over{false};
  std::atomic<int> seen{0};
  std::thread reader{[&] {
    while (!is_over) {
      std::error_code ignored;
      for (const auto& entry : std::filesystem::directory_iterator{scratch.path(""), ignored}) {
        const std::string text = testing_support::read_bytes(entry.path());
        if (!std::filesystem::exists(entry.path())) continue;  // it ended meanwhile
        ASSERT_EQ(text.size(), sizeof(live::page));
        const live::page& there = *reinterpret_cast<const live::page*>(text.data());
        EXPECT_EQ(there.magic, live::page_magic);
        EXPECT_GE(there.sequence.load(), 2u);
        ++seen;
      }
    }
  }};
  for (int i = 0; i < 100 || (seen < 20 && i < 100'000); ++i)
    EXPECT_TRUE(live_page::publish(memory));
  is_over = true;
  reader.join();
  EXPECT_GE(seen, 20);
}

TEST_F(live_page_tests, need_shared_memory_and_say_so) {
  auto memory = caching_allocator::create(gpu_).value();
  std::optional<testing_support::file_size_limit> full{sizeof(live::page) - 1};
  const auto page = live_page::publish(memory);
  full.reset();
  ASSERT_FALSE(page);
  EXPECT_EQ(page.code(), errc::system);
  EXPECT_THAT(page.error().detail(), StartsWith(live::folder() + live::name_of(::getpid())));
  EXPECT_THAT(page.error().detail(), EndsWith(": File too large"));
  EXPECT_EQ(read_live_pages(::getpid()).code(), errc::not_found) << "nothing is left behind";
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
  std::this_thread::sleep_for(std::chrono::milliseconds{100});
  const live::content answer = content_of(*page);
  EXPECT_EQ(2u, answer.updates) << "once for each who asks";
  EXPECT_EQ(1u, answer.answered);
  memory.deallocate(block, stream_);
}

TEST_F(live_page_tests, take_no_more_than_half_a_per_cent_of_the_time) {
  using clock = std::chrono::steady_clock;
  auto memory = caching_allocator::create(gpu_).value();
  std::vector<void*> blocks;
  for (int i = 0; i < 10'000; ++i) blocks.push_back(memory.allocate(bytes{512}, stream_));
  auto snapshot_time = clock::duration::max();  // the least that a snapshot can have taken
  const auto measure = [&] {
    for (int i = 0; i < 5; ++i) {
      const auto from = clock::now();
      EXPECT_FALSE(memory.snapshot().pools.empty());
      snapshot_time = std::min(snapshot_time, clock::now() - from);
    }
  };
  measure();
  const auto page = live_page::publish(memory, {.period = std::chrono::milliseconds{10}}).value();
  const auto from = clock::now();
  std::uint64_t updates = 0;
  while (clock::now() - from < std::chrono::milliseconds{400})
    updates = read_live_pages(::getpid()).value().at(0).updates;
  const auto time = clock::now() - from;
  measure();  // the machine may have been busy before
  const auto most = time / (200 * snapshot_time) + 2;
  EXPECT_LE(updates, static_cast<std::uint64_t>(most));
  for (void* const each : blocks) memory.deallocate(each, stream_);
}

TEST_F(live_page_tests, go_with_their_object_and_keep_no_allocator) {
  std::string path;
  {
    auto memory = caching_allocator::create(gpu_).value();
    const auto page = live_page::publish(memory).value();
    path = page->path();
    EXPECT_TRUE(path.starts_with(live::folder() + "weir." + std::to_string(::getpid()) + "."))
        << path;
    ASSERT_TRUE(std::filesystem::exists(path));
    using std::filesystem::perms;
    EXPECT_EQ(perms::owner_read | perms::owner_write, std::filesystem::status(path).permissions());
    EXPECT_TRUE(memory.close());
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  const auto closed = read_live_pages(::getpid());
  ASSERT_FALSE(closed);
  EXPECT_EQ(errc::not_found, closed.error().code());
}

TEST_F(live_page_tests, go_with_their_allocator_where_that_goes_first) {
  std::optional<caching_allocator> memory = caching_allocator::create(gpu_).value();
  const auto page = live_page::publish(*memory, {.period = std::chrono::milliseconds{10}}).value();
  memory.reset();
  for (int tries = 0; tries < 10'000 && std::filesystem::exists(page->path()); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  EXPECT_FALSE(std::filesystem::exists(page->path()));
}

TEST_F(live_page_tests, end_at_once) {
  auto memory = caching_allocator::create(gpu_).value();
  auto page = live_page::publish(memory, {.period = std::chrono::seconds{10}}).value();
  std::this_thread::sleep_for(std::chrono::milliseconds{2});  // until its thread sleeps
  const auto begin = std::chrono::steady_clock::now();
  page.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds{5});
}

TEST_F(live_page_tests, that_are_cut_end_no_program) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto page = live_page::publish(memory, {.period = std::chrono::milliseconds{10}}).value();
  ASSERT_EQ(::truncate(page->path().c_str(), 0), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds{50});
  EXPECT_EQ(testing_support::read_bytes(page->path()), "");
}

TEST_F(live_page_tests, leave_alone_what_has_taken_their_name) {
  auto memory = caching_allocator::create(gpu_).value();
  auto page = live_page::publish(memory, {.period = std::chrono::milliseconds{10}}).value();
  const std::string path = page->path();
  ASSERT_EQ(::unlink(path.c_str()), 0);
  testing_support::write_bytes(path, "of somebody else");
  std::this_thread::sleep_for(std::chrono::milliseconds{50});
  page.reset();
  EXPECT_EQ(testing_support::read_bytes(path), "of somebody else");
  ASSERT_EQ(::unlink(path.c_str()), 0);
}

TEST_F(live_page_tests, are_their_parents_after_a_fork) {
  if (testing_support::with_thread_sanitizer) {
    GTEST_SKIP() << "ThreadSanitizer does not know the parent's threads in a child";
  }
  auto memory = caching_allocator::create(gpu_).value();
  auto page = live_page::publish(memory).value();
  const pid_t child = ::fork();
  if (child == 0) {
    page.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(std::filesystem::exists(page->path()));
  EXPECT_EQ(1u, read_live_pages(::getpid()).value().size());
}

TEST_F(live_page_tests, are_found_after_many_have_gone) {
  auto memory = caching_allocator::create(gpu_).value();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(live_page::publish(memory));
  const auto first = live_page::publish(memory).value();
  auto other = caching_allocator::create(gpu_).value();
  void* const block = other.allocate(bytes{1 << 20}, stream_);
  const auto second = live_page::publish(other).value();
  const auto views = read_live_pages(::getpid()).value();
  ASSERT_EQ(2u, views.size());
  EXPECT_EQ(0u, views[0].stats.allocations);
  EXPECT_EQ(1u, views[1].stats.allocations);
  other.deallocate(block, stream_);
}

TEST_F(live_page_tests, refuse_a_period_that_would_disturb) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto refused = live_page::publish(memory, {.period = std::chrono::milliseconds{9}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(errc::invalid_argument, refused.error().code());
  EXPECT_EQ("the live page's period is too short", refused.error().detail());
  EXPECT_TRUE(live_page::publish(memory, {.period = std::chrono::milliseconds{10}}));
}

// --- Pages of others ----------------------------------------------------------------------------

/// Files of a process that is not there.
class strange_page_tests : public ::testing::Test {
 protected:
  static constexpr std::int64_t second = 1'000'000'000;

  ~strange_page_tests() override {
    for (const std::string& each : files_) ::unlink(each.c_str());
  }
  std::string file(const std::string& number, std::size_t size) {
    const std::string path = live::folder() + live::name_of(process_) + number;
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EXPECT_EQ(0, ::ftruncate(descriptor, static_cast<off_t>(size)));
    ::close(descriptor);
    return files_.emplace_back(path);
  }
  /// A page that is right, so young that nobody asks for a new one, and changed as the test likes.
  live::page& page(const std::string& number, const live::content& shown) {
    const std::string path = file(number, sizeof(live::page));
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    pages_.push_back(std::make_unique<live::mapped_page>(descriptor, PROT_READ | PROT_WRITE));
    ::close(descriptor);
    live::page& fresh = **pages_.back();
    fresh.magic = live::page_magic;
    fresh.version = live::page_version;
    fresh.size = sizeof(live::page);
    live::write(fresh, shown);
    return fresh;
  }
  static live::content young(std::uint64_t updates = 1) {
    live::content shown;
    shown.updates = updates;
    shown.time = live::now();
    shown.period = 1000 * second;  // is taken for a second
    return shown;
  }
  /// The updates of all pages, or why there are none.
  std::string read() {
    const auto views = read_live_pages(process_);
    if (!views) return to_string(views.error().code()) + ": " + views.error().detail();
    std::string text;
    for (const live_view& each : *views) text += std::to_string(each.updates) + " ";
    return text;
  }

  const int process_ = 1'000'000'000 + ::getpid();
  std::vector<std::string> files_;
  std::vector<std::unique_ptr<live::mapped_page>> pages_;
};

TEST_F(strange_page_tests, are_shown_as_they_are) {
  live::content shown = young(7);
  shown.device = 3;
  shown.device_total = 1000;
  shown.stats.allocations = 11;
  shown.tags = 2;
  shown.tag[0].name.fill('x');
  shown.tag[0].requested = {bytes{512}, bytes{1024}};
  shown.tag[0].blocks = 4;
  shown.streams = 1;
  shown.stream[0] = {.stream = 5, .live = 6, .bound = 7};
  const live::page& source = page("1", shown);
  const auto views = read_live_pages(process_).value();
  ASSERT_EQ(1u, views.size());
  const live_view& view = views[0];
  EXPECT_EQ(process_, view.process);
  EXPECT_EQ(3, view.device);
  EXPECT_EQ(bytes{1000}, view.device_total);
  EXPECT_EQ(7u, view.updates);
  EXPECT_EQ(shown.stats, view.stats);
  ASSERT_EQ(2u, view.tags.size());
  EXPECT_EQ(std::string(47, 'x'), view.tags[0].name);
  EXPECT_EQ(shown.tag[0].requested, view.tags[0].requested);
  EXPECT_EQ(4u, view.tags[0].blocks);
  EXPECT_EQ("", view.tags[1].name);
  ASSERT_EQ(1u, view.streams.size());
  EXPECT_EQ(stream_id{5}, view.streams[0].stream);
  EXPECT_EQ(bytes{6}, view.streams[0].live);
  EXPECT_EQ(bytes{7}, view.streams[0].bound);
  EXPECT_EQ(0u, source.requests.load()) << "a young page is not asked for";
}

TEST_F(strange_page_tests, that_are_old_are_asked_for_and_shown_as_they_were) {
  live::content old = young(5);
  old.time -= 2 * second;
  old.period = 1;  // the longest wait is a tenth of a second
  const live::page& first = page("1", old);
  live::content later = young(6);
  later.time += 3600 * second;  // another machine's clock
  later.period = 1;
  const live::page& second_page = page("2", later);
  EXPECT_EQ("5 6 ", read());
  EXPECT_EQ(1u, first.requests.load());
  EXPECT_EQ(1u, second_page.requests.load());
}

TEST_F(strange_page_tests, that_are_old_are_waited_for_until_they_answer) {
  for (const std::int64_t period : {std::int64_t{1}, 1000 * second}) {
    live::content shown = young(5);
    shown.time -= 2 * second;
    shown.period = period;  // waited for a tenth of a second at least, and two seconds at most
    live::page& source = page("1", shown);
    // Of a few answers one comes well before that, however busy the machine is.
    bool is_prompt = false;
    for (std::uint32_t request = 1; request <= 5 && !is_prompt; ++request) {
      std::atomic<bool> is_read{false};
      std::thread writer{[&source, &is_read, shown, request]() mutable {
        while (source.requests.load() != request && !is_read)
          std::this_thread::sleep_for(std::chrono::microseconds{100});
        shown.updates = 10 * request;
        shown.answered = request - 1;  // of the request before
        live::write(source, shown);
        std::this_thread::sleep_for(std::chrono::milliseconds{2});
        shown.updates = 10 * request + 1;
        shown.answered = request;
        live::write(source, shown);
      }};
      const std::int64_t start = live::now();
      const std::string text = read();
      is_prompt = text == std::to_string(10 * request + 1) + " " && live::now() - start < second;
      is_read = true;
      writer.join();
      EXPECT_EQ(request, source.requests.load());
    }
    EXPECT_TRUE(is_prompt) << period;
    ::unlink(files_.back().c_str());
  }
}

TEST_F(strange_page_tests, whose_writer_sleeps_wake_it_when_they_are_asked_for) {
  live::content shown = young(5);
  shown.time -= 2 * second;
  live::page& source = page("1", shown);
  std::atomic<pid_t> number{0};
  std::thread writer{[&] {
    number = ::gettid();
    live::sleep_on(source.requests, 0, std::chrono::seconds{20});
    shown.updates = 6;
    shown.answered = 1;
    live::write(source, shown);
  }};
  while (number == 0 || !testing_support::is_asleep(number)) std::this_thread::yield();
  EXPECT_EQ("6 ", read());
  live::wake_up(source.requests);
  writer.join();
}

TEST_F(strange_page_tests, come_by_number_and_other_files_do_not_count) {
  page("10", young(10));
  page("9", young(9));
  page("2", young(2));
  file("x", 1);
  file("3x", 1);
  file("", 1);
  file("03", 1);  // of a page 3 that is not there
  EXPECT_EQ("2 9 10 ", read());
}

TEST_F(strange_page_tests, of_no_process_are_none) {
  EXPECT_EQ("not_found: process " + std::to_string(process_) +
                " publishes no live page; start it with WEIR_LIVE=on or under weir record",
            read());
}

TEST_F(strange_page_tests, that_are_none_are_refused) {
  const std::string path = file("1", sizeof(live::page) - 1);
  EXPECT_EQ("invalid_argument: " + path + ": not a live page (bad header); skipped", read());
  EXPECT_EQ(0, ::truncate(path.c_str(), sizeof(live::page)));
  EXPECT_EQ("invalid_argument: " + path + ": not a live page (bad header); skipped",
            read());  // it has no magic
  ::unlink(path.c_str());
  ASSERT_EQ(0, ::symlink("/dev/null", path.c_str()));
  EXPECT_THAT(read(), HasSubstr("system: " + path));
}

TEST_F(strange_page_tests, of_another_user_are_not_believed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  page("1", young(1));
  page("2", young(2));
  EXPECT_EQ("1 2 ", read());
  ASSERT_EQ(0, ::chown(files_[1].c_str(), 65534, 65534));  // the process is this user's
  EXPECT_EQ("1 ", read());
}

TEST_F(strange_page_tests, that_are_cut_while_they_are_read_are_refused) {
  live::content old = young(5);
  old.time -= 2 * second;
  old.period = second;  // the answer is waited for two seconds
  live::page& source = page("1", old);
  std::thread cutter{[&] {
    while (source.requests.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds{1});
    EXPECT_EQ(0, ::truncate(files_[0].c_str(), 0));
  }};
  EXPECT_EQ("invalid_argument: " + files_[0] + ": not a live page (bad header); skipped", read());
  cutter.join();
}

TEST_F(strange_page_tests, of_another_version_are_refused) {
  live::page& source = page("1", young());
  const auto refusal =
      "bad_version: " + files_[0] + ": written by another version of weir; skipped";
  ++source.version;
  EXPECT_EQ(refusal, read());
  --source.version;
  --source.size;
  EXPECT_EQ(refusal, read());
  ++source.size;
  EXPECT_EQ("1 ", read());
}

TEST_F(strange_page_tests, whose_writer_died_in_the_middle_are_left_out) {
  page("1", young(1));
  page("2", young(2)).sequence.fetch_add(1);
  page("3", young(3));
  EXPECT_EQ("1 3 ", read());
}

TEST_F(strange_page_tests, that_a_crash_left_behind_are_removed) {
  // The magic last: programs that run beside this remove such pages, too.
  const auto make = [&](const std::string& number, std::uint64_t processes,
                        std::uint32_t version = live::page_version, int unfinished = 0) {
    live::page& fresh = page(number, young());
    fresh.magic = {};
    live::content shown = young();
    shown.processes = processes;
    live::write(fresh, shown);
    fresh.version = version;
    fresh.sequence.fetch_add(static_cast<std::uint64_t>(unfinished));
    fresh.magic = live::page_magic;
  };
  const std::uint64_t ours = detail::process_namespace();
  ASSERT_NE(ours, 0u);
  make("1", ours);
  make("2", ours + 1);  // of a container, say: who runs there is not known
  make("3", 0);
  make("4", ours, live::page_version + 1);
  make("5", ours, live::page_version, 1);  // it died while it wrote
  make("6", ours);
  const auto left = [&] {
    std::vector<std::string> numbers;
    for (const std::string& each : files_)
      if (std::filesystem::exists(each)) numbers.push_back(each.substr(each.rfind('.') + 1));
    return numbers;
  };
  static_cast<void>(read_all_live_pages());
  EXPECT_THAT(left(), ElementsAre("2", "3", "4", "5"));
}

TEST_F(live_page_tests, take_the_place_of_what_a_crash_left_behind) {
  auto memory = caching_allocator::create(gpu_).value();
  const auto page = live_page::publish(memory).value();
  const live::content shown = content_of(*page);
  EXPECT_EQ(shown.processes, detail::process_namespace());
  // As a process left it whose number nobody has.
  const std::string left = live::path_of(1'000'000'000 + ::getpid(), 1);
  std::filesystem::copy_file(page->path(), left);
  const auto next = live_page::publish(memory).value();
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(page->path())) << "its process runs";
}

TEST_F(strange_page_tests, with_more_rows_than_there_are_are_refused) {
  live::content shown = young();
  shown.tags = 32;
  shown.streams = 32;
  live::page& source = page("1", shown);
  EXPECT_EQ("1 ", read());
  shown.tags = 33;
  live::write(source, shown);
  EXPECT_EQ(errc::invalid_argument, read_live_pages(process_).code());
  shown.tags = 32;
  shown.streams = 33;
  live::write(source, shown);
  EXPECT_EQ(errc::invalid_argument, read_live_pages(process_).code());
}

}  // namespace
}  // namespace weir
