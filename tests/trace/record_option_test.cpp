// Recording because the options or the environment say so.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "gtest/gtest.h"
#include "support/scratch.hpp"
#include "support/small_machine.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::testing_support {
namespace {

/// Runs `body` in a process of its own that ends as programs do; its exit status.
template <class Function>
int in_child(Function body) {
  const pid_t child = fork();
  if (child == 0) std::exit(body());
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

int allocate_twice(const allocator_options& settings) {
  const auto machine = open_small_machine();
  const auto gpu = machine->device(device_id{0}).value();
  for (int i = 0; i < 2; ++i) {
    auto memory = caching_allocator::create(gpu, settings);
    if (!memory) return memory.code() == errc::system ? 2 : 3;
    const auto stream = weir::stream::create(gpu).value();
    memory->deallocate(memory->allocate(bytes{5000}, stream), stream);
  }
  return 0;
}

void expect_recorded(const std::string& path) {
  const auto read = read_trace(path);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_FALSE(read->damage);
  EXPECT_GE(read->events.size(), 2u);
  EXPECT_NE(read->device, "");
}

TEST(record_option, records_each_allocator_into_a_file) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("run.weirtrace");
  EXPECT_EQ(in_child([&] { return allocate_twice(settings); }), 0);
  expect_recorded(folder.path("run.weirtrace"));
  expect_recorded(folder.path("run.2.weirtrace"));
  EXPECT_EQ(folder.files(), 2u);
}

TEST(record_option, is_an_error_where_the_file_cannot_be_made) {
  const scratch_folder folder;
  allocator_options settings;
  settings.record = folder.path("no/such/run.weirtrace");
  EXPECT_EQ(in_child([&] { return allocate_twice(settings); }), 2);
}

TEST(record_option, works_through_the_environment_alone) {
  const scratch_folder folder;
  EXPECT_EQ(in_child([&] {
              setenv("WEIR_RECORD", folder.path("run-%p.weirtrace").c_str(), 1);
              setenv("WEIR_RECORD_STACKS", "on", 1);
              const int done = allocate_twice({});
              if (done != 0) return done;
              return 0;
            }),
            0);
  EXPECT_EQ(folder.files(), 2u);
  // A file that cannot be made does not stop a program that knows nothing of it.
  EXPECT_EQ(in_child([&] {
              setenv("WEIR_RECORD", folder.path("no/such").c_str(), 1);
              return allocate_twice({});
            }),
            0);
}

}  // namespace
}  // namespace weir::testing_support
