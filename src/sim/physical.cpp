// SPDX-License-Identifier: Apache-2.0
// Physical memory of a simulated machine: pages of files that have no name.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/memory.hpp"
#include "sim/state.hpp"
#include "weir/base/checked.hpp"

namespace weir { inline namespace v0 { namespace sim {

/// A file without a name that all pages of a machine are parts of. It is as long as a file can be
/// and holds nothing but what was touched; a range of it is used once and never again, so that no
/// list of free ranges is needed.
class page_file {
 public:
  static std::shared_ptr<page_file> create() {
    auto file = std::make_shared<page_file>();
    file->descriptor_ = ::memfd_create("weir simulated memory", MFD_CLOEXEC);
    if (file->descriptor_ < 0 || ::ftruncate(file->descriptor_, length) != 0) return nullptr;
    return file;
  }
  page_file() = default;
  ~page_file() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  page_file(const page_file&) = delete;
  page_file& operator=(const page_file&) = delete;

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

  /// Where `size` bytes may lie; -1 if the file is full.
  std::int64_t take(std::uint64_t size) {
    const std::uint64_t rounded = checked_round_up(size, device_page).value_or(0);
    if (rounded == 0 || rounded > static_cast<std::uint64_t>(length) - end_) return -1;
    return static_cast<std::int64_t>(std::exchange(end_, end_ + rounded));
  }

  void release(std::uint64_t offset, std::uint64_t size) noexcept {
    // In a forked child the file is still the parent's: its pages are not ours to drop.
    if (::getpid() != owner_) return;
    ::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(size));
  }

 private:
  static constexpr off_t length = off_t{1} << 62;
  int descriptor_ = -1;
  pid_t owner_ = ::getpid();
  std::uint64_t end_ = 0;
};

namespace {

/// What stands behind the memory of a shareable object.
struct note_block {
  static constexpr std::array<char, 8> right_magic = {'w', 'e', 'i', 'r', 'p', 'a', 'g', 'e'};
  static constexpr std::uint32_t right_version = 1;
  static constexpr std::uint64_t trailer_size = 4096;  // added to the file

  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t length = 0;
  std::uint64_t size = 0;
  std::array<char, physical::note_size> text{};
};
static_assert(sizeof(note_block) <= note_block::trailer_size);

/// Copies what `from` really holds of [offset, offset + size) to the start of `to`; holes stay
/// holes.
bool copy_contents(int from, std::uint64_t offset, std::uint64_t size, int to) {
  std::vector<char> buffer(std::size_t{1} << 20);
  const auto end = static_cast<off_t>(offset + size);
  auto at = static_cast<off_t>(offset);
  while (at < end) {
    at = ::lseek(from, at, SEEK_DATA);
    if (at < 0 || at >= end) return at >= 0 || errno == ENXIO;  // ENXIO: only holes are left
    const off_t hole = std::min(::lseek(from, at, SEEK_HOLE), end);
    while (at < hole) {
      const auto length = std::min(buffer.size(), static_cast<std::size_t>(hole - at));
      const ssize_t read = ::pread(from, buffer.data(), length, at);
      if (read <= 0) return false;
      const ssize_t written = ::pwrite(to, buffer.data(), static_cast<std::size_t>(read),
                                       at - static_cast<off_t>(offset));
      if (written != read) return false;
      at += read;
    }
  }
  return true;
}

}  // namespace

int make_sealed_file(const char* name, std::uint64_t size) noexcept {
  if (size > std::uint64_t{1} << 62) return -1;
  const int descriptor = ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return -1;
  if (::ftruncate(descriptor, static_cast<off_t>(size)) != 0 ||
      ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    ::close(descriptor);
    return -1;
  }
  return descriptor;
}

std::shared_ptr<physical> physical::create(state& machine, std::uint64_t size, bool shareable) {
  auto pages = std::make_shared<physical>();
  pages->size_ = size;
  if (shareable) return pages->make_shareable() ? pages : nullptr;
  auto& common = machine.space.file_;
  if (!common) common = page_file::create();
  if (!common) return nullptr;
  const std::int64_t offset = common->take(size);
  if (offset < 0) return nullptr;
  pages->descriptor_ = common->descriptor();
  pages->file_offset_ = static_cast<std::uint64_t>(offset);
  pages->file_ = common;
  return pages;
}

std::shared_ptr<physical> physical::create_unbacked(std::uint64_t size) {
  auto pages = std::make_shared<physical>();
  pages->size_ = size;
  pages->unbacked_ = true;
  return pages;
}

std::shared_ptr<physical> physical::adopt(int descriptor, std::uint64_t size) {
  auto pages = std::make_shared<physical>();
  pages->descriptor_ = descriptor;
  pages->owns_descriptor_ = descriptor >= 0;
  pages->size_ = size;
  return pages;
}

physical::~physical() {
  if (file_) file_->release(file_offset_, size_);
  if (owns_descriptor_ && descriptor_ >= 0) ::close(descriptor_);
}

std::pair<std::uint64_t, std::uint64_t> physical::written(std::uint64_t begin,
                                                          std::uint64_t end) const noexcept {
  const off_t data = ::lseek(descriptor_, static_cast<off_t>(file_offset_ + begin), SEEK_DATA);
  if (data < 0 && errno == ENXIO) return {end, end};  // only holes are left
  if (data < 0) return {begin, end};                  // the system does not tell
  const std::uint64_t first = static_cast<std::uint64_t>(data) - file_offset_;
  if (first >= end) return {end, end};
  const off_t hole = ::lseek(descriptor_, data, SEEK_HOLE);
  if (hole < 0) return {first, end};
  return {first, std::min(static_cast<std::uint64_t>(hole) - file_offset_, end)};
}

bool physical::make_shareable() {
  if (owns_descriptor_) return true;
  if (unbacked_) return false;
  const auto length = checked_add(size_, note_block::trailer_size);
  const int descriptor = length ? make_sealed_file("weir simulated handle", *length) : -1;
  if (descriptor < 0) return false;
  if (file_ && !copy_contents(descriptor_, file_offset_, size_, descriptor)) {
    ::close(descriptor);
    return false;
  }
  if (file_) file_->release(file_offset_, size_);
  file_ = nullptr;
  descriptor_ = descriptor;
  owns_descriptor_ = true;
  file_offset_ = 0;
  return write_note({});
}

int physical::map_at(std::uint64_t address, std::uint64_t offset, std::uint64_t size,
                     bool accessible) {
  if (unbacked_) return 0;
  const int protection = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* const to = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  void* const at = ::mmap(to, size, protection, MAP_SHARED | MAP_FIXED, descriptor_,
                          static_cast<off_t>(file_offset_ + offset));
  return at == MAP_FAILED ? -1 : 0;
}

bool physical::write_note(std::string_view note) {
  if (!owns_descriptor_ || note.size() > note_size) return false;
  note_block block{.magic = note_block::right_magic,
                   .version = note_block::right_version,
                   .length = static_cast<std::uint32_t>(note.size()),
                   .size = size_};
  std::copy(note.begin(), note.end(), block.text.begin());
  return ::pwrite(descriptor_, &block, sizeof(block), static_cast<off_t>(size_)) ==
         static_cast<ssize_t>(sizeof(block));
}

bool physical::read_note(int descriptor, std::string& note, std::uint64_t& size) {
  struct stat facts {};
  if (::fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode)) return false;
  // Only memory files have seals; one that could be shortened would be a trap.
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  const auto length = static_cast<std::uint64_t>(facts.st_size);
  if (length <= note_block::trailer_size) return false;
  note_block block;
  if (::pread(descriptor, &block, sizeof(block),
              static_cast<off_t>(length - note_block::trailer_size)) !=
      static_cast<ssize_t>(sizeof(block))) {
    return false;
  }
  if (block.magic != note_block::right_magic || block.version != note_block::right_version ||
      block.length > note_size || block.size != length - note_block::trailer_size) {
    return false;
  }
  note.assign(block.text.data(), block.length);
  size = block.size;
  return true;
}

}}}  // namespace weir::v0::sim
