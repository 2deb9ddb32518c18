// SPDX-License-Identifier: Apache-2.0
// Reading symbol tables of ELF files. What a file says is checked before it is used.
#include "base/function_names.hpp"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string_view>

namespace weir { inline namespace v0 { namespace detail {
namespace {

/// A regular file in memory, or nothing.
class mapped_file {
 public:
  explicit mapped_file(const char* path) noexcept {
    const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) return;
    struct stat found {};
    if (::fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) && found.st_size > 0) {
      const auto size = static_cast<std::size_t>(found.st_size);
      void* const begin = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (begin != MAP_FAILED) content_ = {static_cast<const char*>(begin), size};
    }
    ::close(descriptor);
  }
  ~mapped_file() {
    if (!content_.empty()) ::munmap(const_cast<char*>(content_.data()), content_.size());
  }
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;

  /// Empty: it does not lie in the file.
  [[nodiscard]] std::string_view part(std::uint64_t offset, std::uint64_t size) const noexcept {
    if (offset > content_.size() || size > content_.size() - offset) return {};
    return content_.substr(offset, size);
  }

 private:
  std::string_view content_;
};

/// The `index`th of a table of T; zeros: it lies outside.
template <class T>
T entry_of(std::string_view table, std::uint64_t index) noexcept {
  T entry{};
  if (index < table.size() / sizeof(T))
    std::memcpy(&entry, table.data() + index * sizeof(T), sizeof entry);
  return entry;
}

std::optional<named_function> find_in(std::string_view symbols, std::string_view names,
                                      std::uint64_t address) {
  for (std::uint64_t i = 0; i < symbols.size() / sizeof(ElfW(Sym)); ++i) {
    const auto symbol = entry_of<ElfW(Sym)>(symbols, i);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
    if (address < symbol.st_value || address - symbol.st_value >= symbol.st_size) continue;
    if (symbol.st_name >= names.size()) continue;
    const std::string_view name = names.substr(symbol.st_name);
    return named_function{std::string{name.substr(0, name.find('\0'))}, address - symbol.st_value};
  }
  return {};
}

}  // namespace

std::optional<named_function> function_in_file(const char* path, std::uint64_t address) {
  const mapped_file file{path};
  const auto header = entry_of<ElfW(Ehdr)>(file.part(0, sizeof(ElfW(Ehdr))), 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_shentsize != sizeof(ElfW(Shdr)))
    return {};
  const std::string_view sections =
      file.part(header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(ElfW(Shdr)));
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    const auto section = entry_of<ElfW(Shdr)>(sections, i);
    if (section.sh_type != SHT_SYMTAB) continue;
    const auto strings = entry_of<ElfW(Shdr)>(sections, section.sh_link);
    return find_in(file.part(section.sh_offset, section.sh_size),
                   file.part(strings.sh_offset, strings.sh_size), address);
  }
  return {};
}

}}}  // namespace weir::v0::detail
