// Reading live pages: asking for a look, and taking what is there until it held.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <vector>

#include "trace/live_layout.hpp"
#include "weir/trace/live_page.hpp"

namespace weir::inline v0 {
namespace {

using namespace trace::live;

/// Asks for a new look, and waits for it, unless the last is younger than a period. A writer that
/// does not answer, because it is stopped or looking takes it too long, is not waited for much.
void ask(page& whom) {
  content there;
  if (!read(whom, there)) return;
  const std::int64_t began = now();
  const std::int64_t period = std::clamp<std::int64_t>(there.period, 0, 1'000'000'000);
  if (there.taken <= began && there.taken > began - period) return;
  const std::uint64_t mine = whom.asked.fetch_add(1) + 1;
  wake_up(whom.asked);
  const std::int64_t patience = std::max<std::int64_t>(2 * period, 100'000'000);
  while (there.answered < mine && now() - began < patience) {
    std::this_thread::sleep_for(std::chrono::microseconds{200});
    if (!read(whom, there)) return;
  }
}

/// The numbers of a process's pages, lowest first.
std::vector<int> pages_of(int process) {
  const std::string name = name_of(process);
  std::vector<int> found;
  std::error_code none;
  for (const auto& each : std::filesystem::directory_iterator{folder, none}) {
    const std::string file = each.path().filename().string();
    if (!file.starts_with(name)) continue;
    const char* const end = file.data() + file.size();
    int number = 0;
    const auto [last, wrong] = std::from_chars(file.data() + name.size(), end, number);
    if (wrong == std::errc{} && last == end) found.push_back(number);
  }
  std::sort(found.begin(), found.end());
  return found;
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

result<live_view> read_page(const std::string& path, int process) {
  const auto wrong = [&](errc code, const char* why) {
    return error{.code = code, .detail = path + ": " + why};
  };
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
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
  const mapped_page there{file, PROT_READ | PROT_WRITE};
  ::close(file);
  if (!there) return refused(path);
  if ((*there).magic != right_magic) return wrong(errc::invalid_argument, "is no live page");
  if ((*there).version != right_version || (*there).size != sizeof(page))
    return wrong(errc::bad_version, "was written by another weir");
  ask(*there);
  return view_of(*there, process);
}

}  // namespace

result<std::vector<live_view>> read_live_pages(int process) {
  std::vector<live_view> views;
  for (const int number : pages_of(process)) {
    auto view = read_page(path_of(process, number), process);
    if (view) {
      views.push_back(std::move(*view));
    } else if (view.error().code != errc::not_found && view.error().code != errc::not_ready) {
      return view.error();
    }
  }
  if (views.empty())
    return error{.code = errc::not_found,
                 .detail = "process " + std::to_string(process) + " publishes no live page"};
  return views;
}

}  // namespace weir::inline v0
