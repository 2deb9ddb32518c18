// SPDX-License-Identifier: Apache-2.0
// The layout of a live page in shared memory, for its writer and its readers.
#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/environment.hpp"
#include "base/file.hpp"
#include "weir/base/error.hpp"
#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 { namespace trace { namespace live {

constexpr std::array<char, 8> page_magic = {'w', 'e', 'i', 'r', 'l', 'i', 'v', 'e'};
constexpr std::uint32_t page_version = 6;
constexpr std::size_t most_rows = 32;

struct tag_row {
  std::array<char, 48> name{};
  byte_gauge requested;
  std::uint64_t blocks = 0;
};

struct stream_row {
  std::uint64_t stream = 0;
  std::uint64_t live = 0;
  std::uint64_t bound = 0;
};

struct content {
  std::uint64_t updates = 0;
  std::uint64_t answered = 0;  // the request that this answers
  std::int64_t time = 0;       // of the snapshot, by the system's monotonic clock, in nanoseconds
  std::int64_t period = 0;
  std::uint64_t device_total = 0;
  std::uint64_t device = 0;
  std::array<std::uint8_t, 16> uuid{};  // all 0: the driver does not say
  std::uint64_t start = 0;              // of the process
  std::uint64_t processes = 0;          // among which its number is unique; 0: unknown
  std::uint64_t tags = 0;
  std::uint64_t streams = 0;
  memory_stats stats;
  std::array<tag_row, most_rows> tag;
  std::array<stream_row, most_rows> stream;
};
static_assert(std::is_trivially_copyable_v<content> && sizeof(content) % 8 == 0);

using words = std::array<std::uint64_t, sizeof(content) / 8>;

struct page {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t size = 0;
  std::atomic<std::uint64_t> sequence{0};
  std::atomic<std::uint32_t> requests{0};  // one more by each reader; the writer sleeps on it
  std::uint32_t unused = 0;
  // Words that are loaded and stored one by one: a reader may read while they change, which must
  // not be undefined.
  std::array<std::atomic<std::uint64_t>, sizeof(content) / 8> text{};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

inline void write(page& target, const content& update) {
  const auto raw = std::bit_cast<words>(update);
  const std::uint64_t before = target.sequence.load(std::memory_order_relaxed);
  target.sequence.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < raw.size(); ++i)
    target.text[i].store(raw[i], std::memory_order_relaxed);
  target.sequence.store(before + 2, std::memory_order_release);
}

inline bool read(const page& source, content& out) {
  words raw{};
  for (int tries = 0; tries < 1000; ++tries) {
    const std::uint64_t before = source.sequence.load(std::memory_order_acquire);
    if (before % 2 == 0) {
      for (std::size_t i = 0; i < raw.size(); ++i)
        raw[i] = source.text[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (source.sequence.load(std::memory_order_relaxed) == before) {
        out = std::bit_cast<content>(raw);
        return true;
      }
    }
    std::this_thread::yield();
  }
  return false;  // its writer died in the middle
}

inline std::int64_t now() {
  return std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count();
}

/// Sleeps until the word is no longer `seen`, for that long at most; may wake for no reason. Works
/// between processes, which waiting on a std::atomic does not.
inline void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen,
                     std::chrono::nanoseconds at_most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec time{seconds.count(), (at_most - seconds).count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
}

inline void wake_up(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

/// Where live pages are: WEIR_LIVE_FOLDER, else /dev/shm. Absolute, with a slash at its end.
inline std::string folder() {
  const std::string_view chosen = detail::environment_value("WEIR_LIVE_FOLDER");
  return chosen.empty() ? "/dev/shm/" : detail::absolute_path(std::string{chosen}) + "/";
}

inline std::string name_of(int process) { return "weir." + std::to_string(process) + "."; }

inline std::string path_of(int process, int number) {
  return folder() + name_of(process) + std::to_string(number);
}

inline error system_error(std::string path) {
  return {{.code = errc::system, .detail = std::move(path) + ": " + std::strerror(errno)}};
}

/// A mapping of a page's file.
class mapped_page {
 public:
  mapped_page() = default;
  mapped_page(int file, int protection)
      : address_{::mmap(nullptr, sizeof(page), protection, MAP_SHARED, file, 0)} {}
  ~mapped_page() {
    if (*this) ::munmap(address_, sizeof(page));
  }
  mapped_page(const mapped_page&) = delete;
  mapped_page& operator=(const mapped_page&) = delete;

  explicit operator bool() const noexcept { return address_ != MAP_FAILED; }
  [[nodiscard]] page& operator*() const noexcept { return *static_cast<page*>(address_); }

 private:
  void* address_ = MAP_FAILED;
};

}}}}  // namespace weir::v0::trace::live
