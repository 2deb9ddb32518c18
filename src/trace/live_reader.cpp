// SPDX-License-Identifier: Apache-2.0
// Reading live pages: asking for an update, and reading until a copy is consistent.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <compare>
#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "base/host_memory.hpp"
#include "base/member_list.hpp"
#include "base/process.hpp"
#include "sharing/budget_page.hpp"
#include "trace/live_layout.hpp"
#include "trace/live_leftovers.hpp"
#include "weir/trace/live_page.hpp"

namespace weir { inline namespace v0 {
namespace {

using namespace trace::live;

/// A page's file. It is read by calls: to look at memory that is mapped there would be a SIGBUS
/// once somebody cuts the file. Only the kernel uses the mapping, to find whom to wake. One thread.
class page_file {
 public:
  explicit page_file(int file) : file_{file}, mapped_{file, PROT_READ | PROT_WRITE} {}
  ~page_file() { ::close(file_); }
  page_file(const page_file&) = delete;
  page_file& operator=(const page_file&) = delete;

  /// What stands before the content; nothing: it is too short.
  struct heading {
    std::array<char, 8> magic{};
    std::uint32_t version = 0;
    std::uint32_t size = 0;
  };
  [[nodiscard]] std::optional<heading> head() const noexcept {
    heading found;
    const bool is_there = get(found.magic, offsetof(page, magic)) &&
                          get(found.version, offsetof(page, version)) &&
                          get(found.size, offsetof(page, size));
    return is_there ? std::optional{found} : std::nullopt;
  }
  [[nodiscard]] bool is_mapped() const noexcept { return static_cast<bool>(mapped_); }
  /// False: the file is shorter than that, or cannot be read.
  template <class Value>
  [[nodiscard]] bool get(Value& value, std::size_t offset) const noexcept {
    return ::pread(file_, &value, sizeof(value), static_cast<off_t>(offset)) ==
           static_cast<ssize_t>(sizeof(value));
  }

  /// One more request, whose number it returns. Of readers that ask at the same time one counts,
  /// which is enough: all want the next update.
  [[nodiscard]] std::optional<std::uint32_t> ask() const noexcept {
    std::uint32_t request = 0;
    if (!get(request, offsetof(page, requests))) return std::nullopt;
    ++request;
    const auto written = ::pwrite(file_, &request, sizeof(request), offsetof(page, requests));
    if (written != static_cast<ssize_t>(sizeof(request))) return std::nullopt;
    wake_up((*mapped_).requests);
    return request;
  }

 private:
  int file_;
  mapped_page mapped_;
};

enum class reading : std::uint8_t { done, changing, cut };

/// A consistent copy; `changing` if the writer died in the middle.
reading read(const page_file& source, content& out) {
  for (int tries = 0; tries < 1000; ++tries) {
    std::uint64_t before = 0;
    std::uint64_t after = 0;
    if (!source.get(before, offsetof(page, sequence))) return reading::cut;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0) {
      if (!source.get(out, offsetof(page, text))) return reading::cut;
      std::atomic_thread_fence(std::memory_order_acquire);
      if (!source.get(after, offsetof(page, sequence))) return reading::cut;
      if (before == after) return reading::done;
    }
    std::this_thread::yield();
  }
  return reading::changing;
}

constexpr std::int64_t least_patience = 100'000'000;  // nanoseconds

/// Asks for an update, and waits for it, unless the last is younger than a period. A writer that
/// does not answer, because it is stopped or its snapshot takes too long, is not waited for much.
void request_update(const page_file& source, std::int64_t most_patience) {
  content current;
  if (read(source, current) != reading::done) return;
  const std::int64_t start = now();
  const std::int64_t period = std::clamp<std::int64_t>(current.period, 0, 1'000'000'000);
  if (current.time <= start && current.time > start - period) return;
  const auto request = source.ask();
  const std::int64_t patience =
      std::min(std::max<std::int64_t>(2 * period, least_patience), most_patience);
  while (request && current.answered < *request && now() - start < patience) {
    std::this_thread::sleep_for(std::chrono::microseconds{200});
    if (read(source, current) != reading::done) return;
  }
}

/// A page by its file's name.
struct page_name {
  int process = 0;
  int number = 0;
  auto operator<=>(const page_name&) const = default;
};

/// "weir.7.1"; nothing: the file is something else.
std::optional<page_name> parse_name(std::string_view file) {
  constexpr std::string_view prefix = "weir.";
  if (!file.starts_with(prefix)) return std::nullopt;
  const char* const end = file.data() + file.size();
  page_name name;
  const auto [dot, process] = std::from_chars(file.data() + prefix.size(), end, name.process);
  if (process != std::errc{} || dot == end || *dot != '.') return std::nullopt;
  const auto [last, number] = std::from_chars(dot + 1, end, name.number);
  if (number != std::errc{} || last != end) return std::nullopt;
  return name;
}

/// The pages in the order of their numbers; those of one process, or of all.
std::vector<page_name> find_pages(std::optional<int> process) {
  std::vector<page_name> names;
  // Not std::filesystem: its iterators end the process where the host has no memory.
  struct closing {
    void operator()(DIR* open) const noexcept { ::closedir(open); }
  };
  const std::unique_ptr<DIR, closing> listed{::opendir(folder().c_str())};
  if (listed == nullptr) return names;
  while (const dirent* const entry = ::readdir(listed.get())) {
    const auto name = parse_name(entry->d_name);
    if (name && (!process || name->process == *process)) names.push_back(*name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

result<live_view> view_of(const page_file& source, int process) {
  content copy;
  const reading outcome = read(source, copy);
  if (outcome == reading::changing) return errc::not_ready;
  if (outcome == reading::cut) return errc::invalid_argument;
  if (copy.tags > most_rows || copy.streams > most_rows) return errc::invalid_argument;
  live_view view{.process = process,
                 .device = static_cast<int>(copy.device),
                 .card = {},
                 .device_total = bytes{copy.device_total},
                 .updates = copy.updates,
                 .stats = copy.stats,
                 .tags = {},
                 .streams = {}};
  if (copy.uuid != decltype(copy.uuid){}) view.card = budget::card_name(copy.uuid);
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

/// Whether the user who owns the page may speak for the process: this one, or the process's own.
bool may_speak_for(uid_t owner, int process) noexcept {
  if (owner == ::geteuid()) return true;
  struct stat status {};
  return ::stat(("/proc/" + std::to_string(process)).c_str(), &status) == 0 &&
         status.st_uid == owner;
}

/// not_found: it is gone, its process is, as far as that is asked, or another user wrote it.
result<live_view> read_page(const std::string& path, int process, std::int64_t patience,
                            bool of_running_process) {
  const auto refuse = [&](errc code, const char* reason) {
    return error{{.code = code, .detail = path + ": " + reason}};
  };
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0)
    return error{{.code = errno == ENOENT ? errc::not_found : errc::system,
                  .detail = path + ": " + std::strerror(errno)}};
  const page_file source{file};
  struct stat status {};
  const bool is_known = ::fstat(file, &status) == 0;
  if (is_known && !may_speak_for(status.st_uid, process)) return errc::not_found;
  const bool is_file = is_known && S_ISREG(status.st_mode);
  std::optional<page_file::heading> head;
  if (is_file && status.st_size >= static_cast<off_t>(sizeof(page))) head = source.head();
  // A process that runs writes the magic last.
  const bool is_begun =
      is_file && (status.st_size == 0 || (head && head->magic == decltype(head->magic){}));
  if (of_running_process && is_begun) return errc::not_ready;
  if (!head || head->magic != page_magic)
    return refuse(errc::invalid_argument, "not a live page (bad header); skipped");
  if (!source.is_mapped()) return system_error(path);
  if (head->version != page_version || head->size != sizeof(page))
    return refuse(errc::bad_version, "written by another version of weir; skipped");
  if (of_running_process) {
    content last;
    const bool is_read = read(source, last) == reading::done;
    if (is_read && !detail::is_running({process, last.start})) return errc::not_found;
  }
  request_update(source, patience);
  auto view = view_of(source, process);
  if (!view && view.code() == errc::invalid_argument)
    return refuse(errc::invalid_argument, "not a live page (bad header); skipped");
  return view;
}

/// Whether a process among those that we know wrote it; then who that was.
std::optional<content> known_page(const std::string& path) {
  const std::uint64_t ours = detail::process_namespace();
  if (ours == 0) return std::nullopt;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  const page_file source{file};
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != ::geteuid())
    return std::nullopt;
  const auto head = source.head();
  content last;
  const bool is_known = head && head->magic == page_magic && head->version == page_version &&
                        head->size == sizeof(page) && read(source, last) == reading::done &&
                        last.processes == ours;
  return is_known ? std::optional{last} : std::nullopt;
}

/// Whether a process among those that we know wrote it, and nobody has its number.
bool is_leftover(const std::string& path, int process) {
  return detail::start_of_process(process) == 0 && known_page(path);
}

}  // namespace

void trace::live::remove_leftovers() noexcept try {
  for (const page_name& each : find_pages(std::nullopt)) {
    const std::string path = path_of(each.process, each.number);
    if (is_leftover(path, each.process)) ::unlink(path.c_str());
  }
} catch (const std::exception&) {  // no host memory: another time
}

void trace::live::remove_leftover(const std::string& path) noexcept try {
  const auto last = known_page(path);
  if (last && last->start != detail::own_process().start) ::unlink(path.c_str());
} catch (const std::exception&) {  // no host memory: another time
}

result<std::vector<live_view>> read_live_pages(int process) try {
  std::vector<live_view> views;
  constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();
  for (const page_name& each : find_pages(process)) {
    auto view = read_page(path_of(process, each.number), process, no_limit, false);
    if (view) {
      views.push_back(std::move(*view));
    } else if (view.error().code() != errc::not_found && view.error().code() != errc::not_ready) {
      return view.error();
    }
  }
  if (views.empty())
    return error{
        {.code = errc::not_found,
         .detail = "process " + std::to_string(process) +
                   " publishes no live page; start it with WEIR_LIVE=on or under weir record"}};
  return views;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

live_listing read_all_live_pages() {
  trace::live::remove_leftovers();
  live_listing listing;
  for (const page_name& each : find_pages(std::nullopt)) {
    const std::string path = path_of(each.process, each.number);
    struct stat status {};
    const bool is_own = ::lstat(path.c_str(), &status) == 0 && status.st_uid == ::geteuid();
    if (!is_own || detail::start_of_process(each.process) == 0) continue;
    auto view = read_page(path, each.process, least_patience, true);
    if (view) {
      listing.views.push_back(std::move(*view));
    } else if (view.code() != errc::not_found && view.code() != errc::not_ready &&
               !detail::began_after(each.process, status.st_mtim)) {  // another left it behind
      listing.refused.push_back(view.error());
    }
  }
  return listing;
}

std::string to_string(const live_listing& listing) {
  std::string text = std::to_string(listing.views.size()) + " live pages";
  for (const live_view& each : listing.views) text += "\n" + to_string(each);
  for (const error& each : listing.refused) text += "\nrefused " + each.message();
  return text;
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
      .add("card", view.card.empty() ? "unknown" : view.card)
      .add("device_total", view.device_total)
      .add("updates", view.updates)
      .next_line();
  std::string text = std::move(members).text() + to_string(view.stats);
  for (const live_tag& each : view.tags) text += "\n" + to_string(each);
  for (const live_stream& each : view.streams) text += "\n" + to_string(each);
  return text;
}

}}  // namespace weir::v0
