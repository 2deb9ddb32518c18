// SPDX-License-Identifier: Apache-2.0
// Walking stacks and naming what is on them.
#include "base/call_stack.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/function_names.hpp"
#include "base/hexadecimal.hpp"

namespace weir { inline namespace v0 { namespace detail {
namespace {

constexpr int most_frames = 48;

/// The program or library that an address lies in.
struct loaded_file {
  std::uint64_t code = 0;     // in: the address
  std::uint64_t in_file = 0;  // the same as the file has it
  std::uint64_t base = 0;     // what the two differ by; of one file only
  std::string name{};         // the program's is empty
  std::string build{};        // in hexadecimal
};

std::string build_in(const ElfW(Phdr) & notes, std::uint64_t loaded_at) {
  const auto* at = reinterpret_cast<const char*>(loaded_at + notes.p_vaddr);
  const char* const end = at + notes.p_memsz;
  const std::size_t alignment = notes.p_align == 8 ? 8 : 4;
  const auto aligned = [&](std::size_t size) { return (size + alignment - 1) & ~(alignment - 1); };
  while (static_cast<std::size_t>(end - at) >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note{};
    std::memcpy(&note, at, sizeof note);
    const char* const owner = at + sizeof note;
    const std::size_t rest = static_cast<std::size_t>(end - owner);
    const std::size_t content = aligned(note.n_namesz);
    if (content > rest || note.n_descsz > rest - content) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(owner, "GNU", 4) == 0) {
      std::string text;
      for (std::size_t i = 0; i < note.n_descsz; ++i) {
        constexpr std::string_view digits = "0123456789abcdef";
        const auto byte = static_cast<unsigned char>(owner[content + i]);
        text += digits[byte >> 4];
        text += digits[byte & 15];
      }
      return text;
    }
    if (aligned(note.n_descsz) > rest - content) break;
    at = owner + content + aligned(note.n_descsz);
  }
  return {};
}

/// For dl_iterate_phdr, which stops where this says 1.
int find_file(dl_phdr_info* file, std::size_t /*size*/, void* data) {
  loaded_file& wanted = *static_cast<loaded_file*>(data);
  const std::uint64_t in_file = wanted.code - file->dlpi_addr;
  const auto* const headers = file->dlpi_phdr;
  const auto* const end = headers + file->dlpi_phnum;
  const bool found = std::any_of(headers, end, [&](const auto& each) {
    return each.p_type == PT_LOAD && in_file - each.p_vaddr < each.p_memsz;
  });
  if (!found) return 0;
  try {
    for (const auto* each = headers; each != end && wanted.build.empty(); ++each)
      if (each->p_type == PT_NOTE) wanted.build = build_in(*each, file->dlpi_addr);
    wanted.name = file->dlpi_name;
  } catch (const std::bad_alloc&) {  // then the address must do
    wanted.build.clear();
  }
  wanted.in_file = in_file;
  wanted.base = file->dlpi_addr;
  return 1;
}

/// Where the file can be found by others; what is known of it if it cannot.
std::string path_of(const loaded_file& file) {
  std::array<char, PATH_MAX> path{};
  const char* const name = file.name.empty() ? "/proc/self/exe" : file.name.c_str();
  return realpath(name, path.data()) != nullptr ? path.data() : file.name;
}

std::string readable(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name{
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free};
  return name ? name.get() : symbol;
}

loaded_file file_at(std::uint64_t code) {
  loaded_file file{.code = code};
  dl_iterate_phdr(&find_file, &file);
  return file;
}

/// "function+0x1c": of a function that is exported, or that the file has a name for. Empty:
/// neither.
std::string function_at(const loaded_file& file, const std::string& path) {
  // A return address points behind the call, which may be the end of the function.
  auto* const call = reinterpret_cast<void*>(file.code - 1);
  Dl_info symbol{};
  if (dladdr(call, &symbol) != 0 && symbol.dli_sname != nullptr) {
    const auto start = reinterpret_cast<std::uint64_t>(symbol.dli_saddr);
    return readable(symbol.dli_sname) + "+" + hexadecimal(file.code - start);
  }
  const auto named = function_in_file(path.c_str(), file.in_file - 1);
  if (!named) return {};
  return readable(named->symbol.c_str()) + "+" + hexadecimal(named->offset + 1);
}

/// Whether the function is of weir, also if it is linked into the program.
bool is_own_function(const std::string& function) {
  const std::string name = function.substr(0, function.find('('));
  return name.find("weir::v0::") != name.npos || name.starts_with("weir_");
}

/// The library that this code is in; 0 in a program that weir is linked into.
std::uint64_t base_of_own_library() {
  const loaded_file own = file_at(reinterpret_cast<std::uint64_t>(&readable));
  return own.name.empty() ? 0 : own.base;
}

}  // namespace

std::vector<void*> call_stack(const void* caller) {
  std::array<void*, most_frames> frames{};
  void** const end = frames.data() + backtrace(frames.data(), most_frames);
  void** first = std::find(frames.data(), end, caller);
  if (first == end) first = frames.data();
  return std::vector<void*>(first, end);  // in braces these would be two addresses
}

std::string describe_address(void* code) {
  const auto address = reinterpret_cast<std::uint64_t>(code);
  Dl_info symbol{};
  if (dladdr(code, &symbol) == 0 || symbol.dli_fname == nullptr) return hexadecimal(address);
  const auto offset = [&](const void* from) {
    return "+" + hexadecimal(address - reinterpret_cast<std::uint64_t>(from));
  };
  if (symbol.dli_sname == nullptr) return symbol.dli_fname + offset(symbol.dli_fbase);
  return readable(symbol.dli_sname) + offset(symbol.dli_saddr) + " at " + symbol.dli_fname;
}

std::string describe_frame(void* code) {
  const loaded_file file = file_at(reinterpret_cast<std::uint64_t>(code));
  if (file.build.empty()) return describe_address(code);
  std::string text;
  Dl_info symbol{};
  if (dladdr(code, &symbol) != 0 && symbol.dli_sname != nullptr) {
    text = readable(symbol.dli_sname) + "+" +
           hexadecimal(file.code - reinterpret_cast<std::uint64_t>(symbol.dli_saddr)) + " at ";
  }
  return text + path_of(file) + "+" + hexadecimal(file.in_file) + " (build " + file.build + ")";
}

std::vector<std::string> describe_calls(const std::vector<void*>& stack) {
  constexpr std::size_t shown_digits = 12;  // of a build, which has 40
  const std::uint64_t own_library = base_of_own_library();
  std::vector<std::string> texts;
  bool is_inside = true;  // none but weir's own calls so far
  for (void* const each : stack) {
    const loaded_file file = file_at(reinterpret_cast<std::uint64_t>(each));
    if (is_inside && own_library != 0 && file.base == own_library) continue;
    if (file.in_file == 0) {  // no file that is known
      is_inside = false;
      texts.push_back(describe_address(each));
      continue;
    }
    const std::string path = path_of(file);
    const std::string function = function_at(file, path);
    if (is_inside && is_own_function(function)) continue;
    is_inside = false;
    std::string text = function.empty() ? path : function + " at " + path;
    text += "+" + hexadecimal(file.in_file);
    if (!file.build.empty()) text += " (build " + file.build.substr(0, shown_digits) + ")";
    texts.push_back(std::move(text));
  }
  return texts;
}

}}}  // namespace weir::v0::detail
