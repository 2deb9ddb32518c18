// SPDX-License-Identifier: Apache-2.0
// What `weir top` can say of a file that is no live page though it looks like one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "trace/live_layout.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/trace/live_page.hpp"

namespace weir { namespace {

using namespace trace::live;

TEST(live_refusals, name_the_file_that_says_what_cannot_be) {
  auto wrong = std::make_unique<page>();
  wrong->magic = page_magic;
  wrong->version = page_version;
  wrong->size = sizeof(page);
  content impossible;
  impossible.time = now();  // so young that the reader waits for no update
  impossible.period = 1'000'000'000;
  impossible.tags = most_rows + 1;
  write(*wrong, impossible);
  const int process = 1'500'000'000 + ::getpid();  // that is not there
  const std::string path = path_of(process, 1);
  const descriptor file{::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRWXU)};
  ASSERT_EQ(::write(file.get(), static_cast<void*>(wrong.get()), sizeof(page)),
            static_cast<ssize_t>(sizeof(page)));
  const auto read = read_live_pages(process);
  ::unlink(path.c_str());
  ASSERT_FALSE(read);
  EXPECT_EQ(read.code(), errc::invalid_argument);
  EXPECT_EQ(read.error().detail(), path + ": not a live page (bad header); skipped");
}

}  // namespace
}  // namespace weir
