// Live pages: written under a sequence number that is odd while they change, read until it held.
#include "weir/live_page.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "heap/allocator_state.hpp"

namespace weir::inline v0 {
namespace {

constexpr std::array<char, 8> right_magic = {'w', 'e', 'i', 'r', 'l', 'i', 'v', 'e'};
constexpr std::uint32_t right_version = 1;
constexpr std::size_t most_rows = 32;

struct tag_row {
  std::array<char, 48> name{};
  gauge requested;
  std::uint64_t blocks = 0;
};

struct stream_row {
  std::uint64_t stream = 0;
  std::uint64_t live = 0;
  std::uint64_t bound = 0;
};

struct content {
  std::uint64_t updates = 0;
  std::uint64_t device_total = 0;
  std::uint64_t device = 0;
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
  // Words that are loaded and stored one by one: a reader may look while they change, and must not
  // be undefined for it.
  std::array<std::atomic<std::uint64_t>, sizeof(content) / 8> text{};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

void write(page& to, const content& what) {
  const auto raw = std::bit_cast<words>(what);
  const std::uint64_t before = to.sequence.load(std::memory_order_relaxed);
  to.sequence.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < raw.size(); ++i) to.text[i].store(raw[i], std::memory_order_relaxed);
  to.sequence.store(before + 2, std::memory_order_release);
}

bool read(const page& from, content& into) {
  words raw{};
  for (int tries = 0; tries < 1000; ++tries) {
    const std::uint64_t before = from.sequence.load(std::memory_order_acquire);
    if (before % 2 == 0) {
      for (std::size_t i = 0; i < raw.size(); ++i)
        raw[i] = from.text[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (from.sequence.load(std::memory_order_relaxed) == before) {
        into = std::bit_cast<content>(raw);
        return true;
      }
    }
    std::this_thread::yield();
  }
  return false;  // its writer died in the middle
}

std::string path_of(int process, int number) {
  return "/dev/shm/weir." + std::to_string(process) + "." + std::to_string(number);
}

error refused(std::string what) {
  return {.code = errc::system, .detail = std::move(what) + ": " + std::strerror(errno)};
}

content look_at(heap::allocator_state& memory, device gpu) {
  content now;
  now.stats = memory.stats();
  now.device = static_cast<std::uint64_t>(gpu.id().number());
  now.device_total = gpu.total_memory().count();

  auto tags = memory.stats_by_tag();
  std::stable_sort(tags.begin(), tags.end(), [](const tag_stats& a, const tag_stats& b) {
    return a.stats.requested.current > b.stats.requested.current;
  });
  now.tags = std::min(tags.size(), most_rows);
  for (std::size_t i = 0; i < now.tags; ++i) {
    tag_row& row = now.tag[i];
    const std::string_view name = tags[i].tag.name();
    name.copy(row.name.data(), row.name.size() - 1);
    row.requested = tags[i].stats.requested;
    row.blocks = tags[i].stats.blocks.current;
  }

  std::map<std::uint64_t, stream_row> streams;
  for (const pool_snapshot& pool : memory.snapshot().pools) {
    for (const block_info& each : pool.blocks) {
      stream_row& row = streams[each.stream.number()];
      if (each.state == block_state::live) row.live += each.size.count();
      if (each.state == block_state::stream_bound || each.state == block_state::thread_cached)
        row.bound += each.size.count();
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
  now.streams = std::min(rows.size(), most_rows);
  std::copy_n(rows.begin(), now.streams, now.stream.begin());
  return now;
}

result<live_view> view_of(const page& from, int process) {
  content now;
  if (!read(from, now)) return errc::not_ready;
  if (now.tags > most_rows || now.streams > most_rows) return errc::invalid_argument;
  live_view view{.process = process,
                 .device = static_cast<int>(now.device),
                 .device_total = now.device_total,
                 .updates = now.updates,
                 .stats = now.stats,
                 .tags = {},
                 .streams = {}};
  for (std::size_t i = 0; i < now.tags; ++i) {
    tag_row& row = now.tag[i];
    row.name.back() = '\0';
    view.tags.push_back({row.name.data(), row.requested, row.blocks});
  }
  for (std::size_t i = 0; i < now.streams; ++i) {
    const stream_row& row = now.stream[i];
    view.streams.push_back({stream_id{row.stream}, row.live, row.bound});
  }
  return view;
}

/// A mapping of a page's file.
class mapped_page {
 public:
  mapped_page() = default;
  mapped_page(int file, int protection)
      : at_{::mmap(nullptr, sizeof(page), protection, MAP_SHARED, file, 0)} {}
  ~mapped_page() {
    if (*this) ::munmap(at_, sizeof(page));
  }
  mapped_page(const mapped_page&) = delete;
  mapped_page& operator=(const mapped_page&) = delete;

  explicit operator bool() const noexcept { return at_ != MAP_FAILED; }
  [[nodiscard]] page& operator*() const noexcept { return *static_cast<page*>(at_); }

 private:
  void* at_ = MAP_FAILED;
};

result<live_view> read_page(const std::string& path, int process) {
  const auto wrong = [&](errc code, const char* why) {
    return error{.code = code, .detail = path + ": " + why};
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0)
    return error{.code = errno == ENOENT ? errc::not_found : errc::system,
                 .detail = path + ": " + std::strerror(errno)};
  struct stat facts {};
  const bool long_enough = ::fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) &&
                           facts.st_size >= static_cast<off_t>(sizeof(page));
  if (!long_enough) {
    ::close(file);
    return wrong(errc::invalid_argument, "is no live page");
  }
  const mapped_page there{file, PROT_READ};
  ::close(file);
  if (!there) return refused(path);
  if ((*there).magic != right_magic) return wrong(errc::invalid_argument, "is no live page");
  if ((*there).version != right_version || (*there).size != sizeof(page))
    return wrong(errc::bad_version, "was written by another weir");
  return view_of(*there, process);
}

}  // namespace

// --- Publishing ----------------------------------------------------------------------------------

class live_page::publisher {
 public:
  publisher(caching_allocator& of, std::chrono::milliseconds period)
      : memory_{heap::allocator_state::of(of).weak_from_this()},
        gpu_{of.device()},
        period_{period} {}

  ~publisher() {
    if (::getpid() != process_) {
      if (thread_.joinable()) thread_.detach();  // it never was in this process
      return;
    }
    {
      const std::lock_guard held{mutex_};
      over_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  result<void> start() {
    static std::atomic<int> count{0};
    path_ = path_of(process_, ++count);
    ::unlink(path_.c_str());  // of a process that had our number and crashed
    const int file = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                            S_IRUSR | S_IWUSR);
    if (file < 0) return refused(std::exchange(path_, {}));
    // Allocated now: a page that cannot be had must not become a signal later.
    const int full = ::posix_fallocate(file, 0, sizeof(page));
    errno = full;
    if (full == 0) mapped_ = std::make_unique<mapped_page>(file, PROT_READ | PROT_WRITE);
    ::close(file);
    if (!mapped_ || !*mapped_) return refused(path_);
    page& made = **mapped_;
    made.version = right_version;
    made.size = sizeof(page);
    update();
    made.magic = right_magic;  // last: without it nobody looks further
    try {
      thread_ = std::thread{[this] { live(); }};
    } catch (const std::system_error& none) {
      return error{.code = errc::system,
                   .detail = std::string{"a live page needs a thread: "} + none.what()};
    }
    return {};
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  /// Whether the allocator is still there.
  bool update() {
    const auto inside = memory_.lock();
    if (inside == nullptr) return false;
    try {
      content now = look_at(*inside, gpu_);
      now.updates = ++updates_;
      write(**mapped_, now);
    } catch (const std::bad_alloc&) {
      // The page stays as it is; the next look may find memory again.
    }
    return true;
  }

  void live() {
    std::unique_lock held{mutex_};
    while (!wake_.wait_for(held, period_, [&] { return over_; })) {
      held.unlock();
      const bool there = update();
      held.lock();
      if (there) continue;
      ::unlink(path_.c_str());
      return;
    }
  }

  const pid_t process_ = ::getpid();
  std::weak_ptr<heap::allocator_state> memory_;
  const device gpu_;
  std::chrono::milliseconds period_;
  std::string path_;
  std::unique_ptr<mapped_page> mapped_;
  std::uint64_t updates_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

live_page::live_page(std::unique_ptr<publisher> inside) noexcept : inside_{std::move(inside)} {}
live_page::~live_page() = default;

result<std::unique_ptr<live_page>> live_page::publish(caching_allocator& of,
                                                      const live_page_options& how) {
  if (how.period < std::chrono::milliseconds{10})
    return error{.code = errc::invalid_argument, .detail = "a live page's period is too short"};
  auto inside = std::make_unique<publisher>(of, how.period);
  WEIR_TRY(inside->start());
  return std::unique_ptr<live_page>{new live_page{std::move(inside)}};
}

const std::string& live_page::path() const noexcept { return inside_->path(); }

// --- Reading -------------------------------------------------------------------------------------

result<std::vector<live_view>> read_live_pages(int process) {
  constexpr int most_pages = 1024;
  std::vector<live_view> views;
  int missing = 0;
  // Allocators come and go: numbers may be missing, but not many in a row.
  for (int number = 1; number <= most_pages && missing < 64; ++number) {
    auto view = read_page(path_of(process, number), process);
    if (view) {
      views.push_back(std::move(*view));
      missing = 0;
    } else if (view.error().code == errc::not_found || view.error().code == errc::not_ready) {
      ++missing;
    } else {
      return view.error();
    }
  }
  if (views.empty())
    return error{.code = errc::not_found,
                 .detail = "process " + std::to_string(process) + " publishes no live page"};
  return views;
}

}  // namespace weir::inline v0
