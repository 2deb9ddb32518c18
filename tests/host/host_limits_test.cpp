// SPDX-License-Identifier: Apache-2.0
// host_limits: what /proc and control groups say, and what follows.
#include "host/host_limits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "support/system_limit.hpp"
#include "weir/base/bytes.hpp"

namespace weir::host_test { namespace {

using namespace weir::literals;
using host::system_memory;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class HostLimits : public ::testing::Test {
 protected:
  HostLimits() {
    std::string pattern = (std::filesystem::temp_directory_path() / "weir-limits-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
  }
  ~HostLimits() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << text;
  }
  void write_machine() const {
    write("/proc/meminfo", "MemTotal:       8192 kB\nMemFree: 1 kB\nMemAvailable:    4096 kB\n");
  }

  std::string root_;
};

TEST_F(HostLimits, what_cannot_be_read_is_no_limit) {
  const system_memory memory = host::read_system_memory(root_);
  EXPECT_EQ(memory.available, ~std::uint64_t{0});
  EXPECT_EQ(memory.total, ~std::uint64_t{0});
  EXPECT_FALSE(memory.by_control_group);
}

TEST_F(HostLimits, the_machine_says_what_is_available) {
  write_machine();
  const system_memory memory = host::read_system_memory(root_);
  EXPECT_EQ(memory.available, 4096u * 1024);
  EXPECT_EQ(memory.total, 8192u * 1024);
}

TEST_F(HostLimits, a_control_group_and_those_above_it_narrow_that) {
  write_machine();
  write("/proc/self/cgroup", "0::/pod/job\n");
  write("/sys/fs/cgroup/pod/job/memory.max", "max\n");
  write("/sys/fs/cgroup/pod/job/memory.current", "1000\n");
  write("/sys/fs/cgroup/pod/memory.max", "1048576\n");
  write("/sys/fs/cgroup/pod/memory.current", "524288\n");
  write("/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 262144\n");
  const system_memory memory = host::read_system_memory(root_);
  EXPECT_EQ(memory.available, 1048576u - 262144u) << "file pages that are given up do not count";
  EXPECT_EQ(memory.total, 1048576u);
  EXPECT_TRUE(memory.by_control_group);
}

TEST_F(HostLimits, a_group_that_is_over_its_limit_leaves_nothing) {
  write_machine();
  write("/proc/self/cgroup", "0::/job\n");
  write("/sys/fs/cgroup/job/memory.max", "1000\n");
  write("/sys/fs/cgroup/job/memory.current", "2000\n");
  EXPECT_EQ(host::read_system_memory(root_).available, 0u);
}

TEST_F(HostLimits, version_1_of_the_memory_controller_counts_too) {
  write_machine();
  write("/proc/self/cgroup", "3:cpu:/x\n2:memory:/job\n0::/\n");
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2097152\n");
  write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1048576\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1048576\n");
  EXPECT_EQ(host::read_system_memory(root_).available, 1048576u);
}

TEST_F(HostLimits, this_machine_has_some_memory) {
  const system_memory memory = host::read_system_memory();
  EXPECT_GT(memory.available, 1u << 20);
  EXPECT_LE(memory.available, memory.total);
}

TEST(HostRoom, the_users_limit_comes_first) {
  EXPECT_TRUE(host::check_room(100, 0, 100, {}));
  EXPECT_TRUE(host::check_room(40, 60, 100, {}));
  const auto refused = host::check_room(41, 60, 100, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::limit_exceeded);
  EXPECT_EQ(refused.error().requested(), 41_B);
  EXPECT_THAT(refused.error().detail(), AllOf(HasSubstr("60 B"), HasSubstr("100 B")));
  EXPECT_FALSE(host::check_room(1, 200, 100, {})) << "a limit that was lowered";
}

TEST(HostRoom, then_what_the_system_has) {
  system_memory system{.available = 1000, .total = 4000};
  EXPECT_TRUE(host::check_room(1000, 0, 5000, system));
  auto refused = host::check_room(1001, 0, 5000, system);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), errc::no_host_memory);
  EXPECT_THAT(refused.error().detail(), HasSubstr("the machine has 1000 B left"));
  system.by_control_group = true;
  refused = host::check_room(1001, 0, 5000, system);
  EXPECT_THAT(refused.error().detail(), HasSubstr("the control group of the process has"));
}

TEST(HostRoom, a_refusal_names_the_limit_of_locked_memory) {
  const error lack{{.code = errc::no_host_memory, .native = 2, .requested = 5_MiB}};
  const testing_support::system_limit locked{RLIMIT_MEMLOCK, 65536};
  const error told = host::explain_refusal(lack, {.available = 1 << 20});
  EXPECT_EQ(told.code(), errc::no_host_memory);
  EXPECT_EQ(told.native(), 2);
  EXPECT_EQ(told.requested(), 5_MiB);
  EXPECT_THAT(told.detail(), AllOf(HasSubstr("RLIMIT_MEMLOCK is 64 KiB"), HasSubstr("1 MiB")));
  EXPECT_EQ(host::lock_limit(), 65536u);
  const error other{{.code = errc::driver_error}};
  EXPECT_EQ(host::explain_refusal(other, {}), other) << "other errors are left alone";
}

}  // namespace
}  // namespace weir::host_test
