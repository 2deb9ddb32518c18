// Live pages: written when somebody asks, under a sequence number that is odd while they change.
#include "weir/trace/live_page.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>

#include "heap/allocator_state.hpp"
#include "trace/live_layout.hpp"

namespace weir::inline v0 {
namespace {

using namespace trace::live;

content look_at(heap::allocator_state& memory, device gpu) {
  content now;
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
  const allocator_snapshot picture = memory.snapshot();
  now.stats = picture.stats;
  for (const pool_snapshot& pool : picture.pools) {
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

}  // namespace

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
    over_.store(true);
    if (thread_.joinable()) {
      (**mapped_).asked.fetch_add(1);
      wake_up((**mapped_).asked);
      thread_.join();
    }
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
    update(0);
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
  /// Looks, and puts off the next look so that looking never takes more than its share of time.
  void update(std::uint32_t asked) {
    const auto inside = memory_.lock();
    if (inside == nullptr) return;
    const std::int64_t began = now();
    try {
      content there = look_at(*inside, gpu_);
      there.updates = ++updates_;
      there.answered = asked;
      there.taken = began;
      there.period = period_.count();
      write(**mapped_, there);
    } catch (const std::bad_alloc&) {
      // The page stays as it is; the next look may find memory again.
    }
    const std::int64_t took = now() - began;
    next_ = began + std::clamp(took * one_in, period_.count(), std::max(longest, period_.count()));
  }

  void live() {
    std::atomic<std::uint32_t>& asked = (**mapped_).asked;
    std::uint32_t answered = 0;
    while (!over_.load()) {
      if (memory_.expired()) {
        ::unlink(path_.c_str());
        return;
      }
      const std::uint32_t seen = asked.load();
      const std::int64_t early = next_ - now();
      if (seen == answered) {
        sleep_on(asked, seen, period_);
      } else if (early > 0) {
        sleep_on(asked, seen, std::min(std::chrono::nanoseconds{early}, period_));
      } else {
        update(seen);
        answered = seen;
      }
    }
  }

  static constexpr std::int64_t one_in = 200;              // half a per cent
  static constexpr std::int64_t longest = 10'000'000'000;  // however slow a look is

  const pid_t process_ = ::getpid();
  std::weak_ptr<heap::allocator_state> memory_;
  const device gpu_;
  const std::chrono::nanoseconds period_;
  std::string path_;
  std::unique_ptr<mapped_page> mapped_;
  std::uint64_t updates_ = 0;
  std::int64_t next_ = 0;  // when the next look may be
  std::atomic<bool> over_{false};
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

}  // namespace weir::inline v0
