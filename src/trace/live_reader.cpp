// Reading live pages: asking for an update, and reading until a copy is consistent.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <vector>

#include "base/member_list.hpp"
#include "trace/live_layout.hpp"
#include "weir/trace/live_page.hpp"

namespace weir::inline v0 {
namespace {

using namespace trace::live;

/// Asks for an update, and waits for it, unless the last is younger than a period. A writer that
/// does not answer, because it is stopped or its snapshot takes too long, is not waited for much.
void request_update(page& source) {
  content current;
  if (!read(source, current)) return;
  const std::int64_t start = now();
  const std::int64_t period = std::clamp<std::int64_t>(current.period, 0, 1'000'000'000);
  if (current.time <= start && current.time > start - period) return;
  const std::uint64_t request = source.requests.fetch_add(1) + 1;
  wake_up(source.requests);
  const std::int64_t patience = std::max<std::int64_t>(2 * period, 100'000'000);
  while (current.answered < request && now() - start < patience) {
    std::this_thread::sleep_for(std::chrono::microseconds{200});
    if (!read(source, current)) return;
  }
}

/// The numbers of a process's pages, lowest first.
std::vector<int> pages_of(int process) {
  const std::string name = name_of(process);
  std::vector<int> numbers;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator{folder, ignored}) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(name)) continue;
    const char* const end = file.data() + file.size();
    int number = 0;
    const auto [last, status] = std::from_chars(file.data() + name.size(), end, number);
    if (status == std::errc{} && last == end) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

result<live_view> view_of(const page& source, int process) {
  content copy;
  if (!read(source, copy)) return errc::not_ready;
  if (copy.tags > most_rows || copy.streams > most_rows) return errc::invalid_argument;
  live_view view{.process = process,
                 .device = static_cast<int>(copy.device),
                 .device_total = bytes{copy.device_total},
                 .updates = copy.updates,
                 .stats = copy.stats,
                 .tags = {},
                 .streams = {}};
  for (std::size_t i = 0; i < copy.tags; ++i) {
    tag_row& row = copy.tag[i];
    row.name.back() = '\0';
    view.tags.push_back({row.name.data(), row.requested, row.blocks});
  }
  for (std::size_t i = 0; i < copy.streams; ++i) {
    const stream_row& row = copy.stream[i];
    view.streams.push_back({stream_id{row.stream}, bytes{row.live}, bytes{row.bound}});
  }
  return view;
}

result<live_view> read_page(const std::string& path, int process) {
  const auto refuse = [&](errc code, const char* reason) {
    return error{.code = code, .detail = path + ": " + reason};
  };
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0)
    return error{.code = errno == ENOENT ? errc::not_found : errc::system,
                 .detail = path + ": " + std::strerror(errno)};
  struct stat status {};
  const bool is_page_sized = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                             status.st_size >= static_cast<off_t>(sizeof(page));
  if (!is_page_sized) {
    ::close(file);
    return refuse(errc::invalid_argument, "is no live page");
  }
  const mapped_page mapped{file, PROT_READ | PROT_WRITE};
  ::close(file);
  if (!mapped) return system_error(path);
  if ((*mapped).magic != page_magic) return refuse(errc::invalid_argument, "is no live page");
  if ((*mapped).version != page_version || (*mapped).size != sizeof(page))
    return refuse(errc::bad_version, "was written by another weir");
  request_update(*mapped);
  auto view = view_of(*mapped, process);
  if (!view && view.code() == errc::invalid_argument)
    return refuse(errc::invalid_argument, "is no live page");
  return view;
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
                 .detail = "process " + std::to_string(process) +
                           " publishes no live page: run it with WEIR_LIVE=on, or by weir record"};
  return views;
}

std::string to_string(const live_tag& tag) {
  detail::member_list members;
  members.add("name", tag.name.empty() ? "(no tag)" : tag.name)
      .add("requested", tag.requested)
      .add("blocks", tag.blocks);
  return std::move(members).text();
}

std::string to_string(const live_stream& stream) {
  detail::member_list members;
  members.add("stream", stream.stream.number()).add("live", stream.live).add("bound", stream.bound);
  return std::move(members).text();
}

std::string to_string(const live_view& view) {
  detail::member_list members;
  members.add("process", view.process)
      .add("device", view.device)
      .add("device_total", view.device_total)
      .add("updates", view.updates)
      .next_line();
  std::string text = std::move(members).text() + to_string(view.stats);
  for (const live_tag& each : view.tags) text += "\n" + to_string(each);
  for (const live_stream& each : view.streams) text += "\n" + to_string(each);
  return text;
}

}  // namespace weir::inline v0
