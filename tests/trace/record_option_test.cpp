// SPDX-License-Identifier: Apache-2.0
// Recording, and live pages, because the options or the environment say so.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "support/scratch.hpp"
#include "support/small_machine.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"
#include "weir/trace/live_page.hpp"
#include "weir/trace/trace_file.hpp"

namespace {

bool is_child = false;

}  // namespace

// Asked by LeakSanitizer: to look takes it seconds, and the parent looks as well.
extern "C" int __lsan_is_turned_off();                              // NOLINT: its own name
extern "C" int __lsan_is_turned_off() { return is_child ? 1 : 0; }  // NOLINT

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

struct ended_child {
  int status = -1;  ///< what it returned
  std::string process;
};

/// Runs `body` in a process of its own that ends as programs do.
template <class Function>
ended_child in_child(Function body) {
  const pid_t child = fork();
  if (child == 0) {
    is_child = true;
    std::exit(body());
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return {};
  return {WEXITSTATUS(status), std::to_string(child)};
}

int allocate_twice(const allocator_options& settings) {
  const auto machine = open_small_machine();
  const auto gpu = machine->device(device_id{0}).value();
  for (std::uint64_t size : {5000, 9000}) {
    auto memory = caching_allocator::create(gpu, settings);
    if (!memory) return memory.code() == errc::system ? 2 : 3;
    const auto stream = weir::stream::create(gpu).value();
    memory->deallocate(memory->allocate(bytes{size}, stream), stream);
  }
  return 0;
}

/// One of allocate_twice()'s allocators.
recording expect_recorded(const std::string& path, std::uint64_t size) {
  auto read = read_trace(path).value();
  EXPECT_FALSE(read.damage);
  std::vector<std::string> kinds;
  for (const trace_event& each : read.events) kinds.push_back(to_string(each.kind));
  EXPECT_THAT(kinds, ElementsAre("reserve", "allocate", "deallocate", "release"));
  EXPECT_EQ(read.events.at(1).size, size);
  EXPECT_EQ(read.events.at(2).size, size);
  EXPECT_EQ(read.program, program_invocation_short_name);
  const auto machine = open_small_machine();
  const auto gpu = machine->device(device_id{0}).value();
  EXPECT_EQ(read.device, gpu.name());
  EXPECT_EQ(read.device_capacity, gpu.total_memory());
  return read;
}

std::vector<std::string> files_in(const scratch_folder& folder) {
  std::vector<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator{folder.path("")})
    names.push_back(each.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(record_option, records_each_allocator_into_a_file) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("run.weirtrace");
  EXPECT_EQ(in_child([&] { return allocate_twice(settings); }).status, 0);
  EXPECT_THAT(files_in(folder), ElementsAre("run.2.weirtrace", "run.weirtrace"));
  EXPECT_THAT(expect_recorded(folder.path("run.weirtrace"), 5000).stacks, IsEmpty());
  expect_recorded(folder.path("run.2.weirtrace"), 9000);
}

std::ptrdiff_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator all{folder};
  return std::distance(std::filesystem::begin(all), std::filesystem::end(all));
}

TEST(record_option, of_allocators_that_are_gone_takes_no_thread_and_no_descriptor) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("run.weirtrace");
  const auto allocate_again_and_again = [&] {
    static_cast<void>(allocate_twice(settings));
    const auto threads = entries_of("/proc/self/task");
    const auto descriptors = entries_of("/proc/self/fd");
    for (int i = 0; i < 5; ++i) static_cast<void>(allocate_twice(settings));
    if (!std::filesystem::exists(folder.path("run.11.weirtrace"))) return 4;
    if (entries_of("/proc/self/task") != threads) return 5;
    return entries_of("/proc/self/fd") == descriptors ? 0 : 6;
  };
  EXPECT_EQ(in_child(allocate_again_and_again).status, 0);
  EXPECT_EQ(files_in(folder).size(), 12u);
  expect_recorded(folder.path("run.7.weirtrace"), 5000);
  expect_recorded(folder.path("run.12.weirtrace"), 9000);
}

TEST(record_option, ends_where_files_may_grow_no_further_and_the_program_goes_on) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("run.weirtrace");
  const auto record_beyond_the_limit = [&] {
    const auto machine = open_small_machine();
    const auto gpu = machine->device(device_id{0}).value();
    const auto memory = caching_allocator::create(gpu, settings).value();
    const auto stream = weir::stream::create(gpu).value();
    const rlimit limit{4096, 4096};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 4;
    for (std::uint64_t i = 1; i <= 50'000; ++i)
      memory.deallocate(memory.allocate(bytes{i * 7919 % 500'000 + 1}, stream), stream);
    return 0;
  };
  EXPECT_EQ(in_child(record_beyond_the_limit).status, 0);
  EXPECT_FALSE(std::filesystem::exists(folder.path("run.weirtrace")));
}

TEST(services, leave_the_signals_of_the_program_to_its_threads) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("run.weirtrace");
  settings.live = true;
  settings.budget = "floor=1MiB folder=" + folder.path("budget");
  const auto wait_for_a_signal = [&] {
    const auto machine = open_small_machine();
    const auto memory = caching_allocator::create(machine->device(device_id{0}).value(), settings);
    if (!memory) return 4;
    sigset_t waited_for;
    sigemptyset(&waited_for);
    sigaddset(&waited_for, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &waited_for, nullptr);
    kill(getpid(), SIGTERM);
    int taken = 0;
    sigwait(&waited_for, &taken);
    return taken == SIGTERM ? 0 : 5;
  };
  EXPECT_EQ(in_child(wait_for_a_signal).status, 0);
}

TEST(record_option, has_stacks_where_asked) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("run.weirtrace");
  settings.record_stacks = true;
  EXPECT_EQ(in_child([&] { return allocate_twice(settings); }).status, 0);
  EXPECT_THAT(expect_recorded(folder.path("run.weirtrace"), 5000).stacks, Not(IsEmpty()));
}

TEST(record_option, numbers_files_before_their_ending) {
  const scratch_folder folder;
  std::filesystem::create_directory(folder.path("a.b"));
  allocator_options settings;
  settings.record = folder.path("a.b/run");
  EXPECT_EQ(in_child([&] { return allocate_twice(settings); }).status, 0);
  expect_recorded(folder.path("a.b/run"), 5000);
  expect_recorded(folder.path("a.b/run.2"), 9000);
  settings.record = ".run";
  EXPECT_EQ(in_child([&] {
              std::filesystem::current_path(folder.path("a.b"));
              return allocate_twice(settings);
            }).status,
            0);
  expect_recorded(folder.path("a.b/.run"), 5000);
  expect_recorded(folder.path("a.b/.run.2"), 9000);
}

TEST(record_option, is_an_error_where_the_file_cannot_be_made) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("no/such/run.weirtrace");
  EXPECT_EQ(in_child([&] { return allocate_twice(settings); }).status, 2);
}

TEST(record_option, works_through_the_environment_alone) {
  const scratch_folder folder;
  const auto child = in_child([&] {
    setenv("WEIR_RECORD", folder.path("run-%p.weirtrace").c_str(), 1);
    setenv("WEIR_RECORD_STACKS", "on", 1);
    return allocate_twice({});
  });
  EXPECT_EQ(child.status, 0);
  const std::string first = "run-" + child.process + ".weirtrace";
  const std::string second = "run-" + child.process + ".2.weirtrace";
  EXPECT_THAT(files_in(folder), ElementsAre(second, first));
  EXPECT_THAT(expect_recorded(folder.path(first), 5000).stacks, Not(IsEmpty()));
  expect_recorded(folder.path(second), 9000);
}

TEST(record_option, of_the_environment_replaces_no_file) {
  const scratch_folder folder;
  for (int run = 0; run < 2; ++run)
    EXPECT_EQ(in_child([&] {
                setenv("WEIR_RECORD", folder.path("run.weirtrace").c_str(), 1);
                return allocate_twice({});
              }).status,
              0);
  EXPECT_THAT(files_in(folder), ElementsAre("run.2.weirtrace", "run.3.weirtrace", "run.4.weirtrace",
                                            "run.weirtrace"));
  expect_recorded(folder.path("run.weirtrace"), 5000);
  expect_recorded(folder.path("run.2.weirtrace"), 9000);
  expect_recorded(folder.path("run.3.weirtrace"), 5000);
}

TEST(record_option, of_the_program_replaces_the_file_that_it_names_and_no_other) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("run.weirtrace");
  write_bytes(folder.path("run.weirtrace"), "old");
  write_bytes(folder.path("run.2.weirtrace"), "of somebody else");
  EXPECT_EQ(in_child([&] { return allocate_twice(settings); }).status, 0);
  expect_recorded(folder.path("run.weirtrace"), 5000);
  expect_recorded(folder.path("run.3.weirtrace"), 9000);
  EXPECT_EQ(read_bytes(folder.path("run.2.weirtrace")), "of somebody else");
}

TEST(record_option, means_the_folder_in_which_the_program_was_then) {
  const scratch_folder folder;
  const scratch_folder other;
  EXPECT_EQ(in_child([&] {
              std::filesystem::current_path(folder.path(""));
              setenv("WEIR_RECORD", "run.weirtrace", 1);
              const auto machine = open_small_machine();
              auto memory = caching_allocator::create(machine->device(device_id{0}).value());
              std::filesystem::current_path(other.path(""));
              return memory ? 0 : 1;
            }).status,
            0);
  EXPECT_THAT(files_in(folder), ElementsAre("run.weirtrace"));
  EXPECT_THAT(files_in(other), IsEmpty());
}

TEST(record_option, never_takes_the_number_of_a_standard_output) {
  const scratch_folder folder;
  EXPECT_EQ(in_child([&] {
              for (const int each : {0, 1, 2}) ::close(each);
              setenv("WEIR_RECORD", folder.path("run.weirtrace").c_str(), 1);
              const auto machine = open_small_machine();
              auto memory = caching_allocator::create(machine->device(device_id{0}).value());
              return memory && ::write(2, "x", 1) < 0 && ::write(1, "x", 1) < 0 ? 0 : 1;
            }).status,
            0);
  EXPECT_FALSE(read_trace(folder.path("run.weirtrace")).value().damage);
}

TEST(record_option, is_off_in_the_environment_where_it_says_so) {
  const scratch_folder folder;
  for (const char* const value : {"off", ""}) {
    EXPECT_EQ(in_child([&] {
                std::filesystem::current_path(folder.path(""));
                setenv("WEIR_RECORD", value, 1);
                return allocate_twice({});
              }).status,
              0);
    EXPECT_THAT(files_in(folder), IsEmpty());
  }
}

TEST(record_option, goes_before_the_environment) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("options");
  EXPECT_EQ(in_child([&] {
              setenv("WEIR_RECORD", folder.path("environment").c_str(), 1);
              setenv("WEIR_RECORD_STACKS", "on", 1);
              return allocate_twice(settings);
            }).status,
            0);
  EXPECT_THAT(files_in(folder), ElementsAre("options", "options.2"));
  EXPECT_THAT(expect_recorded(folder.path("options"), 5000).stacks, IsEmpty());
}

TEST(record_option, of_the_environment_stops_no_program_that_knows_nothing_of_it) {
  const scratch_folder folder;
  const auto errors = [&](const char* path, const char* stacks) {
    return in_child([&] {
             setenv("WEIR_RECORD", folder.path(path).c_str(), 1);
             setenv("WEIR_RECORD_STACKS", stacks, 1);
             const auto before = reported_errors();
             const int status = allocate_twice({});
             return status != 0 ? 100 : static_cast<int>(reported_errors() - before);
           })
        .status;
  };
  EXPECT_EQ(errors("no/such", ""), 1);  // reported once, not for each allocator
  EXPECT_EQ(errors("run", "perhaps"), 1);
  EXPECT_THAT(expect_recorded(folder.path("run"), 5000).stacks, IsEmpty());
  EXPECT_EQ(errors("run", ""), 0);
}

TEST(record_option, of_the_environment_stops_no_program_that_takes_its_options_from_there) {
  const scratch_folder folder;
  const auto errors = [&](const char* variable, const std::string& value) {
    return in_child([&] {
             setenv(variable, value.c_str(), 1);
             const auto before = reported_errors();
             const auto settings = options_from_environment();
             if (!settings) return 101;
             const int status = allocate_twice(allocator_options::from(*settings));
             return status != 0 ? 100 : static_cast<int>(reported_errors() - before);
           })
        .status;
  };
  EXPECT_EQ(errors("WEIR_RECORD", folder.path("no/such")), 1);
  EXPECT_EQ(errors("WEIR_BUDGET", "floor=900GiB,folder=" + folder.path("pages")), 1);
  EXPECT_EQ(errors("WEIR_BUDGET", "nonsense"), 1);
  EXPECT_EQ(errors("WEIR_RECORD", folder.path("run")), 0);
  expect_recorded(folder.path("run.2"), 9000);
}

TEST(record_option, of_the_program_is_its_own_error_beside_one_of_the_environment) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("no/such");
  EXPECT_EQ(in_child([&] {
              setenv("WEIR_RECORD", folder.path("run").c_str(), 1);
              return allocate_twice(settings);
            }).status,
            2);
}

// --- Live pages ---------------------------------------------------------------------------------

/// How many pages the child has while it has two allocators.
int count_pages(const allocator_options& settings) {
  const auto machine = open_small_machine();
  const auto gpu = machine->device(device_id{0}).value();
  const auto first = caching_allocator::create(gpu, settings);
  const auto second = caching_allocator::create(gpu, settings);
  if (!first || !second) return 100;
  const auto views = read_live_pages(getpid());
  return views ? static_cast<int>(views->size()) : 0;
}

TEST(live_option, publishes_a_page_of_each_allocator_until_the_process_ends) {
  allocator_options settings;
  settings.live = true;
  const auto child = in_child([&] { return count_pages(settings); });
  EXPECT_EQ(child.status, 2);
  EXPECT_EQ(read_live_pages(std::stoi(child.process)).code(), errc::not_found);
  EXPECT_EQ(in_child([] { return count_pages({}); }).status, 0);
}

TEST(live_option, works_through_the_environment_alone) {
  const auto pages = [](const char* value) {
    return in_child([&] {
             setenv("WEIR_LIVE", value, 1);
             const auto before = reported_errors();
             return count_pages({}) + 10 * static_cast<int>(reported_errors() - before);
           })
        .status;
  };
  EXPECT_EQ(pages("on"), 2);
  EXPECT_EQ(pages("off"), 0);
  EXPECT_EQ(pages(""), 0);
  EXPECT_EQ(pages("perhaps"), 10);  // one error, and no page
}

}  // namespace
}  // namespace weir::testing_support
