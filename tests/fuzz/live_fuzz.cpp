// SPDX-License-Identifier: Apache-2.0
// Any bytes where another process has its live page, also while they change: refused with the
// file's name, or one of the views that were written, whole.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "fuzz_input.hpp"
#include "sharing/budget_page.hpp"
#include "support/live_folder.hpp"
#include "trace/live_layout.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/trace/live_page.hpp"

namespace weir::fuzz { namespace {

using namespace trace::live;

const testing_support::own_live_folder pages;

/// A file among the live pages of this process, gone with this object.
class page_file {
 public:
  page_file(const std::string& ending, std::string_view bytes)
      : path_{folder() + name_of(::getpid()) + ending},
        file_{::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR)} {
    if (!file_) return;
    require(::write(file_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
            "no room for a page");
  }
  ~page_file() {
    if (file_) ::unlink(path_.c_str());
  }
  page_file(const page_file&) = delete;
  page_file& operator=(const page_file&) = delete;

  explicit operator bool() const noexcept { return static_cast<bool>(file_); }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int file() const noexcept { return file_.get(); }

 private:
  std::string path_;
  descriptor file_;
};

/// A page with that content, as its writer leaves it.
std::unique_ptr<page> page_of(const content& written) {
  auto made = std::make_unique<page>();
  made->magic = page_magic;
  made->version = page_version;
  made->size = sizeof(page);
  write(*made, written);
  return made;
}
std::string_view bytes_of(const page& source) {
  return {reinterpret_cast<const char*>(&source), sizeof(source)};
}

/// Content of which the input says every byte, but for what a reader would wait for.
content any_content(fuzz_input& input) {
  content made;
  const auto raw = reinterpret_cast<std::uint8_t*>(&made);
  if (input.chance(2)) {
    for (std::size_t i = 0; i < sizeof(made); ++i) raw[i] = input.next();
  } else {  // most of it zeros
    for (std::size_t count = input.below(32); count > 0; --count)
      raw[input.word() % sizeof(made)] = input.next();
    made.tags = input.below(most_rows + 2);
    made.streams = input.below(most_rows + 2);
  }
  made.answered = UINT64_MAX;
  return made;
}

bool same(const byte_gauge& a, const byte_gauge& b) {
  return a.current == b.current && a.peak == b.peak;
}

/// Whether the view shows that content.
bool shows(const live_view& view, const content& written) {
  const std::string card =
      written.uuid == decltype(written.uuid){} ? "" : budget::card_name(written.uuid);
  if (view.process != ::getpid() || view.card != card ||
      view.device != static_cast<int>(written.device) ||
      view.device_total != bytes{written.device_total} || view.updates != written.updates ||
      std::memcmp(&view.stats, &written.stats, sizeof(view.stats)) != 0 ||
      view.tags.size() != written.tags || view.streams.size() != written.streams)
    return false;
  for (std::size_t i = 0; i < view.tags.size(); ++i) {
    const tag_row& row = written.tag[i];
    const std::string_view name{row.name.data(), ::strnlen(row.name.data(), row.name.size() - 1)};
    if (view.tags[i].name != name || view.tags[i].blocks != row.blocks ||
        !same(view.tags[i].requested, row.requested))
      return false;
  }
  for (std::size_t i = 0; i < view.streams.size(); ++i) {
    const stream_row& row = written.stream[i];
    if (view.streams[i].stream != stream_id{row.stream} ||
        view.streams[i].live != bytes{row.live} || view.streams[i].bound != bytes{row.bound})
      return false;
  }
  return true;
}

bool is_sound(const content& written) {
  return written.tags <= most_rows && written.streams <= most_rows;
}

void require_refusal(const result<std::vector<live_view>>& read, errc code,
                     const std::string& path) {
  require(!read, "a page that is none was read");
  require(read.code() == code, "refused for another reason: " + read.error().message());
  if (code != errc::not_found)
    require(read.error().detail().starts_with(path), "an error without the file's name");
}

void require_view(const result<std::vector<live_view>>& read, const content& written) {
  require(read.has_value(), read ? "" : read.error().message());
  require(read->size() == 1 && shows(read->front(), written), "another view than was written");
  require(!to_string(read->front()).empty(), "a view without words");
}

// --- The ways in which a page is wrong -----------------------------------------------------------

/// A file of those bytes.
void read_bytes(std::string_view bytes) {
  page copy;
  std::string patched{bytes};
  if (patched.size() >= sizeof(page)) {  // nobody answers: say that it was
    constexpr std::uint64_t most = UINT64_MAX;
    std::memcpy(patched.data() + offsetof(page, text) + offsetof(content, answered), &most, 8);
    std::memcpy(static_cast<void*>(&copy), patched.data(), sizeof(page));
  }
  const page_file file{"1", patched};
  const auto read = read_live_pages(::getpid());
  if (patched.size() < sizeof(page) || copy.magic != page_magic)
    return require_refusal(read, errc::invalid_argument, file.path());
  if (copy.version != page_version || copy.size != sizeof(page))
    return require_refusal(read, errc::bad_version, file.path());
  if (copy.sequence.load() % 2 != 0) return require_refusal(read, errc::not_found, file.path());
  content written;
  require(trace::live::read(copy, written), "a page at rest cannot be read");
  if (!is_sound(written)) return require_refusal(read, errc::invalid_argument, file.path());
  require_view(read, written);
}

/// A page of any content, under any name.
void read_named(fuzz_input& input) {
  const std::string ending = input.chance(2) ? std::to_string(input.next()) : input.text(12);
  const content written = any_content(input);
  if (ending.find_first_of(std::string_view{"/\0", 2}) != ending.npos) return;
  const page_file file{ending, bytes_of(*page_of(written))};
  if (!file) return;
  int number = 0;
  const char* const end = ending.data() + ending.size();
  const auto [last, status] = std::from_chars(ending.data(), end, number);
  const bool is_page = status == std::errc{} && last == end && std::to_string(number) == ending;
  const auto read = read_live_pages(::getpid());
  if (!is_page) return require_refusal(read, errc::not_found, file.path());
  if (!is_sound(written)) return require_refusal(read, errc::invalid_argument, file.path());
  require_view(read, written);
  // The last answer is old: the reader has asked for another, once.
  page after;
  require(::pread(file.file(), static_cast<void*>(&after), sizeof(after), 0) == sizeof(after),
          "the page is gone");
  if (written.time < 0 || written.period <= 0)
    require(after.requests.load() == 1, "the reader did not ask");
}

/// A page that its writer writes again and again meanwhile.
void read_while_written(fuzz_input& input) {
  content written[2] = {any_content(input), any_content(input)};
  for (content& each : written) {
    each.tags %= most_rows + 1;
    each.streams %= most_rows + 1;
  }
  const page_file file{"1", bytes_of(*page_of(written[0]))};
  const mapped_page mapped{file.file(), PROT_READ | PROT_WRITE};
  require(static_cast<bool>(mapped), "no page");
  std::atomic<bool> reading{true};
  std::thread writer{[&] {
    for (unsigned i = 0; i < 2000 && reading.load(); ++i) {
      write(*mapped, written[i % 2]);
      if (i % 16 == 0) std::this_thread::yield();
    }
  }};
  for (int i = 0; i < 4; ++i) {
    const auto read = read_live_pages(::getpid());
    if (!read) {  // changed under every look
      require_refusal(read, errc::not_found, file.path());
      continue;
    }
    require(read->size() == 1, "another number of pages");
    require(shows(read->front(), written[0]) || shows(read->front(), written[1]),
            "a view of two moments");
  }
  reading.store(false);
  writer.join();
}

}  // namespace
}  // namespace weir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weir::fuzz;
  fuzz_input input{{data, size}};
  switch (input.below(4)) {
    case 0:
    case 1:
      read_bytes({reinterpret_cast<const char*>(data) + (size != 0), size - (size != 0)});
      break;
    case 2:
      read_named(input);
      break;
    default:
      read_while_written(input);
  }
  return 0;
}
