// SPDX-License-Identifier: Apache-2.0
// Live pages: written when a reader asks, under a sequence number that is odd while they change.
#include "weir/trace/live_page.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <new>
#include <optional>
#include <utility>

#include "base/file.hpp"
#include "base/host_memory.hpp"
#include "base/process.hpp"
#include "base/signals_blocked.hpp"
#include "heap/heap_view.hpp"
#include "trace/live_layout.hpp"
#include "trace/live_leftovers.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 {
namespace {

using namespace trace::live;

content take_content(const heap::heap_view& memory, device gpu) {
  content summary;
  summary.device = static_cast<std::uint64_t>(gpu.id().number());
  summary.device_total = gpu.total_memory().count();
  summary.uuid = gpu.uuid().value_or(std::array<std::uint8_t, 16>{});

  auto tags = memory.stats_by_tag();
  std::stable_sort(tags.begin(), tags.end(), [](const tag_stats& a, const tag_stats& b) {
    return a.stats.requested.current > b.stats.requested.current;
  });
  summary.tags = std::min(tags.size(), most_rows);
  for (std::size_t i = 0; i < summary.tags; ++i) {
    tag_row& row = summary.tag[i];
    const std::string_view name = tags[i].tag.name();
    name.copy(row.name.data(), row.name.size() - 1);
    row.requested = tags[i].stats.requested;
    row.blocks = tags[i].stats.blocks.current;
  }

  std::map<std::uint64_t, stream_row> streams;
  const allocator_snapshot snapshot = memory.snapshot();
  summary.stats = snapshot.stats;
  for (const pool_snapshot& pool : snapshot.pools) {
    for (const block_info& block : pool.blocks) {
      stream_row& row = streams[block.stream.number()];
      if (block.state == block_state::live) row.live += block.size.count();
      if (block.state == block_state::stream_bound || block.state == block_state::thread_cached)
        row.bound += block.size.count();
    }
  }
  std::vector<stream_row> rows;
  for (auto& [number, row] : streams) {
    row.stream = number;
    if (row.live + row.bound != 0) rows.push_back(row);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const stream_row& a, const stream_row& b) {
    return a.live + a.bound > b.live + b.bound;
  });
  summary.streams = std::min(rows.size(), most_rows);
  std::copy_n(rows.begin(), summary.streams, summary.stream.begin());
  return summary;
}

}  // namespace

class live_page::publisher {
 public:
  publisher(caching_allocator& allocator, std::chrono::milliseconds period)
      : memory_{allocator}, gpu_{allocator.device()}, period_{period} {}

  ~publisher() {
    if (::getpid() != process_) {
      if (thread_.joinable()) thread_.detach();  // it never was in this process
      return;
    }
    stopping_.store(true);
    // Again and again: it may be about to sleep. On a page that was cut nothing wakes it.
    while (thread_.joinable() && !ended_.load()) {
      wake_up((**mapped_).requests);
      std::this_thread::sleep_for(std::chrono::microseconds{100});
    }
    if (thread_.joinable()) thread_.join();
    remove();
  }

  result<void> start() {
    static std::atomic<int> count{0};
    remove_leftovers();
    // A file without a name, where the file system has them: readers see the page when it is whole.
    descriptor opened{
        detail::open_apart(folder(), O_RDWR | O_TMPFILE | O_CLOEXEC, S_IRUSR | S_IWUSR)};
    const bool is_nameless = static_cast<bool>(opened);
    path_ = path_of(process_, ++count);
    for (int tries = 0; !is_nameless && tries < most_names; ++tries) {
      remove_leftover(path_);  // of a process that had our number and crashed
      opened = descriptor{detail::open_apart(
          path_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR)};
      if (opened || errno != EEXIST) break;
      path_ = path_of(process_, ++count);
    }
    if (!opened) return system_error(std::exchange(path_, {}));
    const int file = opened.get();
    identity_ = detail::identity_of(file).value_or(detail::file_identity{});
    // Allocated now: a page that cannot be had must not become a signal later.
    const int status = ::posix_fallocate(file, 0, sizeof(page));
    errno = status;
    if (status == 0) mapped_ = std::make_unique<mapped_page>(file, PROT_READ | PROT_WRITE);
    if (!mapped_ || !*mapped_) return refuse(is_nameless);
    if (!write_first(file)) return refuse(is_nameless);
    if (is_nameless && !give_name(file, count)) return refuse(true);
    try {
      thread_ = std::thread{[this] {
        run();
        ended_.store(true);
      }};
    } catch (const std::system_error& refusal) {
      return error{{.code = errc::system,
                    .detail = std::string{"the live page's thread could not be started: "} +
                              refusal.what()}};
    }
    return {};
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  error refuse(bool is_nameless) {
    return system_error(is_nameless ? std::exchange(path_, {}) : path_);
  }

  /// Names the page by the next number that others have not taken.
  [[nodiscard]] bool give_name(int file, std::atomic<int>& count) {
    const std::string source = "/proc/self/fd/" + std::to_string(file);
    for (int tries = 0; tries < most_names; ++tries) {
      remove_leftover(path_);  // of a process that had our number and crashed
      if (::linkat(AT_FDCWD, source.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0)
        return true;
      if (errno != EEXIST) return false;
      path_ = path_of(process_, ++count);
    }
    errno = EEXIST;
    return false;
  }

  /// The page's file, which is written by calls: to touch memory that is mapped there would be a
  /// SIGBUS once somebody cuts the file. Only the kernel uses the mapping, to find whom to wake.
  /// Opened each time, as a number that is kept may become another file's. Empty: what has the name
  /// is no longer our page.
  [[nodiscard]] descriptor open_page() const {
    descriptor file{detail::open_apart(path_, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
    struct stat status {};
    const bool is_ours = file && detail::identity_of(file.get()) == identity_ &&
                         ::fstat(file.get(), &status) == 0 &&
                         status.st_size >= static_cast<off_t>(sizeof(page));
    return is_ours ? std::move(file) : descriptor{};
  }

  template <class Value>
  static bool put(int file, const Value& value, std::size_t offset) noexcept {
    return ::pwrite(file, &value, sizeof(value), static_cast<off_t>(offset)) ==
           static_cast<ssize_t>(sizeof(value));
  }

  void remove() const noexcept {
    if (!path_.empty() && detail::identity_at(path_) == identity_) ::unlink(path_.c_str());
  }

  [[nodiscard]] bool write_first(int file) {
    if (!write_update(file, take(0).value_or(content{}))) return false;
    constexpr auto size = static_cast<std::uint32_t>(sizeof(page));
    // The magic last: without it no reader reads on.
    return put(file, page_version, offsetof(page, version)) &&
           put(file, size, offsetof(page, size)) && put(file, page_magic, offsetof(page, magic));
  }

  [[nodiscard]] bool write_update(int file, const content& fresh) noexcept {
    if (!put(file, sequence_ + 1, offsetof(page, sequence))) return false;
    std::atomic_thread_fence(std::memory_order_release);
    if (!put(file, fresh, offsetof(page, text))) return false;
    std::atomic_thread_fence(std::memory_order_release);
    sequence_ += 2;
    return put(file, sequence_, offsetof(page, sequence));
  }

  /// How often readers have asked; nothing: there is no page any more.
  [[nodiscard]] std::optional<std::uint32_t> requested() const {
    const descriptor file = open_page();
    std::uint32_t requests = 0;
    const bool is_read = file && ::pread(file.get(), &requests, sizeof(requests),
                                         offsetof(page, requests)) == sizeof(requests);
    return is_read ? std::optional{requests} : std::nullopt;
  }

  /// A snapshot, which puts off the next so that they never take more than their share of time.
  [[nodiscard]] std::optional<content> take(std::uint32_t request) {
    const auto heap = memory_.lock();
    if (!heap) return std::nullopt;
    std::optional<content> fresh;
    const std::int64_t began = now();
    try {
      fresh = take_content(heap, gpu_);
      fresh->updates = ++updates_;
      fresh->answered = request;
      fresh->time = began;
      fresh->period = period_.count();
      fresh->start = start_;
      fresh->processes = processes_;
    } catch (const std::bad_alloc&) {
      // The page stays as it is; the next update may find memory again.
    }
    const std::int64_t elapsed = now() - began;
    next_ = began + std::clamp(elapsed * pause_factor, period_.count(),
                               std::max(longest_pause, period_.count()));
    return fresh;
  }

  void update(std::uint32_t request) {
    const auto fresh = take(request);
    if (!fresh) return;
    if (const descriptor file = open_page()) static_cast<void>(write_update(file.get(), *fresh));
  }

  void run() {
    std::uint32_t answered = 0;
    while (!stopping_.load()) {
      if (memory_.expired()) return remove();
      const auto seen = requested();
      if (!seen) return;
      const std::int64_t remaining = next_ - now();
      if (*seen == answered) {
        sleep_on((**mapped_).requests, *seen, period_);
      } else if (remaining > 0) {
        sleep_on((**mapped_).requests, *seen,
                 std::min(std::chrono::nanoseconds{remaining}, period_));
      } else {
        update(*seen);
        answered = *seen;
      }
    }
  }

  static constexpr int most_names = 16;                          // that others have taken
  static constexpr std::int64_t pause_factor = 200;              // snapshots take half a per cent
  static constexpr std::int64_t longest_pause = 10'000'000'000;  // however slow a snapshot is

  const pid_t process_ = ::getpid();
  const std::uint64_t start_ = detail::own_process().start;
  const std::uint64_t processes_ = detail::process_namespace();
  heap::weak_heap_view memory_;
  const device gpu_;
  const std::chrono::nanoseconds period_;
  std::string path_;
  detail::file_identity identity_;
  std::unique_ptr<mapped_page> mapped_;
  std::uint64_t sequence_ = 0;
  std::uint64_t updates_ = 0;
  std::int64_t next_ = 0;  // when the next snapshot may be taken
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

live_page::live_page(std::unique_ptr<publisher> state) noexcept : state_{std::move(state)} {}
live_page::~live_page() = default;

result<std::unique_ptr<live_page>> live_page::publish(caching_allocator& allocator,
                                                      const live_page_options& options) try {
  if (options.period < std::chrono::milliseconds{10})
    return error{{.code = errc::invalid_argument, .detail = "the live page's period is too short"}};
  const detail::signals_blocked quiet;
  auto state = std::make_unique<publisher>(allocator, options.period);
  WEIR_TRY(state->start());
  return std::unique_ptr<live_page>{new live_page{std::move(state)}};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

const std::string& live_page::path() const noexcept { return state_->path(); }

}}  // namespace weir::v0
