// SPDX-License-Identifier: Apache-2.0
// Examining a program before it is started.
#include "run_program.hpp"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

namespace weir::command {

namespace {

/// "python", "python3", "python3.11"; none of "pythonic".
bool names_python(std::string_view file) {
  constexpr std::string_view name = "python";
  if (!file.starts_with(name)) return false;
  return file.find_first_not_of("0123456789.", name.size()) == file.npos;
}

/// As execvp() finds it; empty: it does not.
std::filesystem::path path_of(const std::string& name) {
  if (name.find('/') != name.npos) return name;
  const char* const variable = std::getenv("PATH");
  std::istringstream folders{variable != nullptr ? variable : "/bin:/usr/bin"};
  for (std::string folder; std::getline(folders, folder, ':');) {
    auto file = std::filesystem::path{folder.empty() ? "." : folder} / name;
    if (::access(file.c_str(), X_OK) == 0 && !std::filesystem::is_directory(file)) return file;
  }
  return {};
}

/// Whether options of Python's, up to the first word that is none, keep it from importing what
/// PYTHONPATH names: -E, -I and -S.
bool is_isolated(std::span<const std::string> words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word.size() < 2 || !word.starts_with('-') || word == "--") return false;
    if (word.starts_with("--")) {
      if (word == "--check-hash-based-pycs") ++i;
      continue;
    }
    const std::size_t end = std::min(word.find_first_of("cmWX"), word.size());
    if (word.substr(0, end).find_first_of("EIS") != word.npos) return true;
    if (end == word.size()) continue;
    if (word[end] == 'c' || word[end] == 'm') return false;
    if (end + 1 == word.size()) ++i;  // the next word is its argument
  }
  return false;
}

/// Python and its options, as a script's first line names them, perhaps by env.
std::vector<std::string> python_of_shebang(const std::string& head) {
  if (!head.starts_with("#!")) return {};
  std::istringstream line{head.substr(2, head.find('\n') - 2)};
  std::vector<std::string> words{std::istream_iterator<std::string>{line}, {}};
  for (auto word = words.begin(); word != words.end(); ++word) {
    const std::string file = std::filesystem::path{*word}.filename().string();
    if (names_python(file)) return {word, words.end()};
    if (file != "env" && !file.starts_with("-")) return {};
  }
  return {};
}

void examine_python(program_file& program, std::span<const std::string> words) {
  program.is_python = true;
  program.is_isolated = is_isolated(words.subspan(1));
}

/// Whether it is an ELF program without an interpreter, which is what loads shared libraries.
bool is_static(std::ifstream& file, const std::string& head) {
  Elf64_Ehdr header{};
  if (head.size() < sizeof header || std::memcmp(head.data(), ELFMAG, SELFMAG) != 0) return false;
  std::memcpy(&header, head.data(), sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return false;
  file.clear();
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    file.seekg(static_cast<std::streamoff>(header.e_phoff + i * sizeof segment));
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) return false;
    if (segment.p_type == PT_INTERP) return false;
  }
  return true;
}

/// Whether the program gets rights that its caller has not: the loader then ignores what it is to
/// preload.
bool gains_rights(const std::filesystem::path& file) {
  struct stat about {};
  if (::stat(file.c_str(), &about) != 0) return false;
  const bool other_user = (about.st_mode & S_ISUID) != 0 && about.st_uid != ::geteuid();
  const bool other_group = (about.st_mode & S_ISGID) != 0 && about.st_gid != ::getegid();
  const bool has_capabilities =
      ::geteuid() != 0 && ::getxattr(file.c_str(), "security.capability", nullptr, 0) > 0;
  return other_user || other_group || has_capabilities;
}

}  // namespace

std::optional<preload_files> find_preload_files() {
  std::error_code code;
  const auto command = std::filesystem::read_symlink("/proc/self/exe", code);
  if (code) return std::nullopt;
  for (const char* const folder : {WEIR_PRELOAD_INSTALLED, WEIR_PRELOAD_BUILT}) {
    const auto library = (command.parent_path() / folder / "libweir_preload.so").lexically_normal();
    if (std::filesystem::exists(library, code))
      return preload_files{library, library.parent_path() / "python"};
  }
  return std::nullopt;
}

program_file examine_program(std::span<const std::string> command) {
  const std::string& name = command.front();
  program_file program;
  if (names_python(std::filesystem::path{name}.filename().string()))
    examine_python(program, command);
  const auto location = path_of(name);
  std::ifstream file{location, std::ios::binary};
  std::array<char, 512> start{};
  file.read(start.data(), start.size());
  const std::string head{start.data(), static_cast<std::size_t>(file.gcount())};
  if (const auto words = python_of_shebang(head); !words.empty()) examine_python(program, words);
  if (is_static(file, head)) {
    program.obstacle = "is linked statically, so nothing can be preloaded; it runs without weir";
  } else if (gains_rights(location)) {
    program.obstacle =
        "is set-uid or has capabilities, so the loader preloads nothing; it runs without weir";
  }
  return program;
}

}  // namespace weir::command
