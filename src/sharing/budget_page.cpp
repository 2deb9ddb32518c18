// SPDX-License-Identifier: Apache-2.0
// Creating, locking, reading and validating the budget file.
#include "sharing/budget_page.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "base/environment.hpp"
#include "base/file.hpp"

namespace weir { inline namespace v0 { namespace budget {
namespace {

using clock = std::chrono::steady_clock;

std::string name_in(const place& from) {
  return {from.name.data(), ::strnlen(from.name.data(), from.name.size())};
}

error invalid(std::string reason) {
  return {{.code = errc::invalid_argument, .detail = std::move(reason)}};
}

/// A member's place, but for how it stands to others.
const char* flaw_of(const place& each, std::uint64_t capacity) {
  if (each.process < 0 || each.number <= 0 || each.start == 0)
    return "damaged: a member has no process";
  const std::string name = name_in(each);
  if (name.empty() || name.size() == each.name.size()) return "damaged: a member has no name";
  for (const char letter : name)
    if (letter < ' ' || letter > '~') return "damaged: a name is invalid";
  if (each.floor > each.ceiling || each.ceiling == 0 || each.ceiling > capacity)
    return "damaged: a share is invalid";
  if (each.priority < -most_priority || each.priority > most_priority)
    return "damaged: a priority is invalid";
  if (each.held > capacity || each.asked > capacity || each.answered > each.requests)
    return "damaged: figures are inconsistent";
  return nullptr;
}

/// The folder, which must be the user's alone; empty where there is none and it is not made.
result<descriptor> open_folder(const std::string& path, bool make) {
  if (make && ::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return error{{.code = errc::system, .detail = path + ": " + std::strerror(errno)}};
  descriptor folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  if (!folder) {
    if (errno == ENOENT) return descriptor{};
    const bool is_other = errno == ELOOP || errno == ENOTDIR;
    return error{{.code = is_other ? errc::not_permitted : errc::system,
                  .detail = path + ": " + (is_other ? "expected a folder" : std::strerror(errno))}};
  }
  struct stat status {};
  if (::fstat(folder.get(), &status) != 0)
    return error{{.code = errc::system, .detail = path + ": " + std::strerror(errno)}};
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return error{
        {.code = errc::not_permitted,
         .detail =
             path + ": other users can write it; expected a folder of this user with mode 0700"}};
  return folder;
}

/// Processes that do not see each other's numbers cannot tell who is dead: each group of them has
/// pages of its own.
std::string ending() { return "." + std::to_string(detail::process_namespace()); }

bool is_card_name(std::string_view name) {
  constexpr std::string_view form = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (name.size() != form.size()) return false;
  for (std::size_t i = 0; i < form.size(); ++i) {
    const char each = name[i];
    const bool is_digit = (each >= '0' && each <= '9') || (each >= 'a' && each <= 'f');
    if (form[i] == 'x' ? !is_digit : each != form[i]) return false;
  }
  return true;
}

}  // namespace

bool is_blank(const page& content) noexcept {
  static constexpr page blank{};
  return std::memcmp(&content, &blank, sizeof(page)) == 0;
}

result<void> check(const page& content) {
  if (is_blank(content)) return {};
  const page_header& header = content.header;
  if (header.magic != page_magic) return invalid("not a budget file");
  if (header.version != page_version || header.places != most_members)
    return error{{.code = errc::bad_version, .detail = "written by another version of weir"}};
  if (header.capacity == 0) return invalid("damaged: the card has no memory");
  std::uint64_t rest = header.capacity;
  for (std::size_t i = 0; i < most_members; ++i) {
    const place& each = content.places[i];
    if (each.is_free()) continue;
    if (const char* const flaw = flaw_of(each, header.capacity)) return invalid(flaw);
    if (each.floor > rest) return invalid("damaged: the floors exceed the card");
    rest -= each.floor;
    for (std::size_t k = 0; k < i; ++k)
      if (content.places[k].is(each)) return invalid("damaged: a member is listed twice");
  }
  return {};
}

std::string card_name(const std::array<std::uint8_t, 16>& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", uuid[i]);
    text += digits.data();
  }
  return text;
}

std::string default_folder() {
  const std::string_view chosen = detail::environment_value("WEIR_BUDGET_FOLDER");
  if (!chosen.empty()) return detail::absolute_path(std::string{chosen});
  return "/dev/shm/weir.budget." + std::to_string(::geteuid());
}

budget_row row_of(const place& from) {
  return {.process = from.process,
          .number = from.number,
          .name = name_in(from),
          .share = {bytes{from.floor}, bytes{from.ceiling}, static_cast<int>(from.priority)},
          .held = bytes{from.held},
          .asked = bytes{from.asked},
          .given = bytes{from.given}};
}

std::vector<observe::neighbour> neighbours_of(const page& content, const place& self) {
  std::vector<observe::neighbour> others;
  for (const place& each : content.places) {
    if (each.is_free() || each.is(self) || !detail::is_running(each.owner())) continue;
    others.push_back({.name = name_in(each),
                      .process = each.process,
                      .priority = static_cast<int>(each.priority),
                      .floor = each.floor,
                      .held = each.held});
  }
  return others;
}

result<budget_share> checked_share(budget_share share, bytes capacity) {
  share.ceiling = std::min(share.ceiling, capacity);
  if (share.ceiling == bytes{}) return invalid("ceiling must be greater than zero");
  if (share.floor > share.ceiling) {
    return invalid("a floor of " + to_string(share.floor) + " is above the ceiling of " +
                   to_string(share.ceiling));
  }
  if (share.priority < -most_priority || share.priority > most_priority)
    return invalid("priority " + std::to_string(share.priority) +
                   " is invalid; expected -1000 to 1000");
  return share;
}

// --- The file ------------------------------------------------------------------------------------

locked_page::~locked_page() {
  if (file_) ::flock(file_.get(), LOCK_UN);
}

error locked_page::refusal(errc code, std::string_view reason) const {
  return {{.code = code, .detail = path_ + ": " + std::string{reason}}};
}

error locked_page::system_refusal() const { return refusal(errc::system, std::strerror(errno)); }

result<locked_page> locked_page::open(const std::string& folder, std::string_view card, purpose why,
                                      bytes capacity) {
  locked_page opened;
  const std::string path = folder.empty() ? default_folder() : folder;
  const std::string file = std::string{card} + ending();
  opened.path_ = path + "/" + file;
  if (!is_card_name(card))
    return opened.refusal(errc::invalid_argument, "not the identity of a card");
  WEIR_TRY_VALUE(within, open_folder(path, why == purpose::join));
  if (!within) return opened.refusal(errc::not_found, "no process has joined this budget");
  const int create = why == purpose::join ? O_CREAT : 0;
  // Not to wait for the other end of a pipe, if it is one.
  opened.file_ = descriptor{detail::apart(
      ::openat(within.get(), file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | create,
               S_IRUSR | S_IWUSR))};
  if (!opened.file_) {
    if (errno == ENOENT)
      return opened.refusal(errc::not_found, "no process has joined this budget");
    if (errno == ELOOP || errno == EISDIR || errno == ENXIO)
      return opened.refusal(errc::not_permitted, "expected a regular file");
    return opened.system_refusal();
  }
  struct stat status {};
  if (::fstat(opened.file_.get(), &status) != 0) return opened.system_refusal();
  if (!S_ISREG(status.st_mode))
    return opened.refusal(errc::not_permitted, "expected a regular file");
  constexpr unsigned rights = S_IRWXU | S_IRWXG | S_IRWXO;
  if (status.st_uid != ::geteuid() || (status.st_mode & rights) != (S_IRUSR | S_IWUSR) ||
      status.st_nlink != 1)
    return opened.refusal(errc::not_permitted, "other users can access it; expected mode 0600");
  WEIR_TRY(opened.lock(why == purpose::look));
  WEIR_TRY(opened.read(why, capacity));
  return opened;
}

result<void> locked_page::lock(bool shared) {
  const auto deadline = clock::now() + patience;
  while (::flock(file_.get(), (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return system_refusal();
    if (clock::now() >= deadline) return refusal(errc::not_ready, "is locked by another process");
    std::this_thread::sleep_for(std::chrono::microseconds{500});
  }
  return {};
}

result<void> locked_page::read(purpose why, bytes capacity) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return system_refusal();
  // Just made, or its maker was killed right then.
  if (status.st_size == 0 && why == purpose::join) {
    if (::ftruncate(file_.get(), sizeof(page)) != 0) return system_refusal();
  } else if (status.st_size != 0) {
    if (status.st_size != static_cast<off_t>(sizeof(page)))
      return refusal(errc::invalid_argument, "not a budget file");
    const ssize_t size = ::pread(file_.get(), &content_, sizeof(page), 0);
    if (size < 0) return system_refusal();
    if (size != static_cast<ssize_t>(sizeof(page)))
      return refusal(errc::invalid_argument, "not a budget file");
  }
  if (auto sound = check(content_); !sound) return refusal(sound.code(), sound.error().detail());
  if (why == purpose::look) {
    for (place& each : content_.places)
      if (!each.is_free() && !detail::is_running(each.owner())) each = {};
    return {};
  }
  WEIR_TRY(take_back());
  return why == purpose::join ? begin(capacity) : result<void>{};
}

result<void> locked_page::take_back() {
  for (std::size_t i = 0; i < most_members; ++i) {
    const place each = content_.places[i];
    if (each.is_free() || detail::is_running(each.owner())) continue;
    WEIR_TRY(write(i, place{}));
    taken_back_ += each.held;
    ++dead_;
  }
  return {};
}

/// The header of a page that nobody uses.
result<void> locked_page::begin(bytes capacity) {
  if (content_.header.capacity == capacity.count()) return {};
  const bool is_used = std::any_of(content_.places.begin(), content_.places.end(),
                                   [](const place& each) { return !each.is_free(); });
  if (is_used) {
    return refusal(errc::invalid_argument, "its members use a card of " +
                                               to_string(this->capacity()) + ", not of " +
                                               to_string(capacity));
  }
  const page_header header{.magic = page_magic,
                           .version = page_version,
                           .places = most_members,
                           .capacity = capacity.count()};
  if (::pwrite(file_.get(), &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header)))
    return system_refusal();
  content_.header = header;
  return {};
}

std::optional<std::size_t> locked_page::find(const place& member) const noexcept {
  for (std::size_t i = 0; i < most_members; ++i)
    if (!content_.places[i].is_free() && content_.places[i].is(member)) return i;
  return std::nullopt;
}

std::optional<std::size_t> locked_page::find_free() const noexcept {
  for (std::size_t i = 0; i < most_members; ++i)
    if (content_.places[i].is_free()) return i;
  return std::nullopt;
}

result<void> locked_page::write(std::size_t index, const place& content) {
  const auto offset = static_cast<off_t>(offsetof(page, places) + index * sizeof(place));
  if (::pwrite(file_.get(), &content, sizeof(content), offset) !=
      static_cast<ssize_t>(sizeof(content)))
    return system_refusal();
  content_.places[index] = content;
  return {};
}

result<void> locked_page::write_share(std::size_t index, place content, const budget_share& share) {
  WEIR_TRY_VALUE(possible, checked_share(share, capacity()));
  std::uint64_t floors = 0;
  for (std::size_t i = 0; i < most_members; ++i)
    if (i != index) floors += content_.places[i].floor;
  const std::uint64_t rest = content_.header.capacity - floors;
  if (possible.floor.count() > rest) {
    return error{{.code = errc::limit_exceeded,
                  .requested = possible.floor,
                  .detail = "the floors of others leave " + to_string(bytes{rest}) +
                            " of the card's " + to_string(capacity()) + ": " +
                            observe::holders_of(neighbours_of(content_, content))}};
  }
  content.floor = possible.floor.count();
  content.ceiling = possible.ceiling.count();
  content.priority = possible.priority;
  return write(index, content);
}

result<std::vector<std::string>> cards_in(const std::string& folder) {
  std::vector<std::string> names;
  WEIR_TRY_VALUE(within, open_folder(folder.empty() ? default_folder() : folder, false));
  if (!within) return names;
  struct closes {
    void operator()(DIR* opened) const noexcept { ::closedir(opened); }
  };
  const std::unique_ptr<DIR, closes> entries{::fdopendir(within.get())};
  if (entries == nullptr) return error{{.code = errc::system, .detail = std::strerror(errno)}};
  static_cast<void>(within.release());
  const std::string end = ending();
  while (const dirent* const entry = ::readdir(entries.get())) {
    std::string name = entry->d_name;
    if (!name.ends_with(end)) continue;
    name.resize(name.size() - end.size());
    if (is_card_name(name)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}}}  // namespace weir::v0::budget
