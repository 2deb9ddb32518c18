// SPDX-License-Identifier: Apache-2.0
// Reading debug information with elfutils' libdw, where that is installed.
#include "formats/debug_information.hpp"

#include "base/hexadecimal.hpp"

#ifdef WEIR_HAS_LIBDW

#include <cxxabi.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

namespace weir { inline namespace v0 { namespace formats {
namespace {

template <class T>
using c_memory = std::unique_ptr<T, void (*)(void*)>;

std::string readable(const char* symbol) {
  int status = 0;
  const c_memory<char> name{abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free};
  return name ? name.get() : symbol;
}

std::string text_of(const unsigned char* bits, int count) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += digits[bits[i] >> 4];
    text += digits[bits[i] & 15];
  }
  return text;
}

/// The path is what a trace says, which may be anybody's: a device, or a pipe without a writer, is
/// not waited for. Negative: it cannot be opened, or is something else.
int open_regular_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  struct stat found {};
  if (descriptor < 0 || (::fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode)))
    return descriptor;
  ::close(descriptor);
  return -1;
}

bool is_function(Dwarf_Die* die) {
  const int tag = dwarf_tag(die);
  return tag == DW_TAG_subprogram || tag == DW_TAG_inlined_subroutine;
}

std::string name_of(Dwarf_Die* function) {
  Dwarf_Attribute attribute;
  for (const unsigned kind : {DW_AT_linkage_name, DW_AT_MIPS_linkage_name}) {
    const char* const linked = dwarf_formstring(dwarf_attr_integrate(function, kind, &attribute));
    if (linked != nullptr) return readable(linked);
  }
  const char* const plain = dwarf_diename(function);
  return plain != nullptr ? plain : "?";
}

struct source_line {
  std::string file;
  std::uint64_t line = 0;
};

std::string text_of(const std::string& function, const source_line& where) {
  return function + " at " + where.file + ":" + std::to_string(where.line);
}

/// Where an inlined function was called.
source_line call_of(Dwarf_Die* inlined, Dwarf_Die* unit) {
  source_line called{"?", 0};
  Dwarf_Attribute attribute;
  Dwarf_Word value = 0;
  if (dwarf_formudata(dwarf_attr(inlined, DW_AT_call_line, &attribute), &value) == 0)
    called.line = value;
  Dwarf_Files* files = nullptr;
  std::size_t count = 0;
  if (dwarf_formudata(dwarf_attr(inlined, DW_AT_call_file, &attribute), &value) == 0 &&
      dwarf_getsrcfiles(unit, &files, &count) == 0 && value < count) {
    if (const char* const name = dwarf_filesrc(files, value, nullptr, nullptr)) called.file = name;
  }
  return called;
}

}  // namespace

/// One program or library, or nothing.
class debug_information::file {
 public:
  /// Its debug file may be here although it is not.
  file(const std::string& path, const std::string& build) {
    if (open(path, build) || build.size() < 3) return;
    open("/usr/lib/debug/.build-id/" + build.substr(0, 2) + "/" + build.substr(2) + ".debug",
         build);
  }
  ~file() { close(); }
  file(const file&) = delete;
  file& operator=(const file&) = delete;

  [[nodiscard]] std::vector<std::string> lines_at(const coded_frame& frame) const {
    if (module_ == nullptr || frame.address == 0) return {};
    GElf_Addr bias = 0;
    if (dwfl_module_getelf(module_, &bias) == nullptr) return {};
    // A return address points behind the call, which may be the end of the function.
    const Dwarf_Addr call = frame.address - 1 + bias;
    std::vector<std::string> lines = source_lines(call);
    if (!lines.empty()) return lines;
    GElf_Off offset = 0;
    GElf_Sym symbol{};
    const char* const name =
        dwfl_module_addrinfo(module_, call, &offset, &symbol, nullptr, nullptr, nullptr);
    if (name == nullptr) return {};
    return {readable(name) + "+" + detail::hexadecimal(offset + 1) + " at " + frame.file};
  }

 private:
  bool open(const std::string& path, const std::string& build) {
    // Debug files are looked for beside the file, in .debug and in /usr/lib/debug.
    static char* const places = nullptr;
    static const Dwfl_Callbacks callbacks{.find_elf = dwfl_build_id_find_elf,
                                          .find_debuginfo = dwfl_standard_find_debuginfo,
                                          .section_address = dwfl_offline_section_address,
                                          .debuginfo_path = const_cast<char**>(&places)};
    session_ = dwfl_begin(&callbacks);
    if (session_ == nullptr) return false;
    const int descriptor = open_regular_file(path);
    if (descriptor >= 0) {
      module_ = dwfl_report_offline(session_, path.c_str(), path.c_str(), descriptor);
      if (module_ == nullptr) ::close(descriptor);  // else it is the module's
    }
    dwfl_report_end(session_, nullptr, nullptr);
    const unsigned char* bits = nullptr;
    GElf_Addr at = 0;
    const int count = module_ == nullptr ? 0 : dwfl_module_build_id(module_, &bits, &at);
    // Reports have the first twelve digits of a build.
    const std::string found = count > 0 ? text_of(bits, count) : "";
    if (found == build || (build.size() >= 12 && found.starts_with(build))) return true;
    close();
    return false;
  }
  void close() noexcept {
    if (session_ != nullptr) dwfl_end(session_);
    session_ = nullptr;
    module_ = nullptr;
  }

  [[nodiscard]] std::vector<std::string> source_lines(Dwarf_Addr call) const {
    Dwarf_Addr bias = 0;
    Dwarf_Die* const unit = unit_at(call, bias);
    if (unit == nullptr) return {};
    Dwarf_Line* const line = dwarf_getsrc_die(unit, call - bias);
    const char* const source = line == nullptr ? nullptr : dwarf_linesrc(line, nullptr, nullptr);
    int number = 0;
    if (source == nullptr || dwarf_lineno(line, &number) != 0) return {};
    // The innermost scope, and then what it lies in as it was compiled, not as it was written.
    Dwarf_Die* found = nullptr;
    const int depth = dwarf_getscopes(unit, call - bias, &found);
    const c_memory<Dwarf_Die> innermost{found, std::free};
    Dwarf_Die* enclosing = nullptr;
    const int count = depth <= 0 ? 0 : dwarf_getscopes_die(innermost.get(), &enclosing);
    const c_memory<Dwarf_Die> scopes{enclosing, std::free};
    std::vector<std::string> lines;
    source_line where{source, static_cast<std::uint64_t>(number)};
    for (int i = 0; i < count; ++i) {
      Dwarf_Die* const scope = scopes.get() + i;
      if (!is_function(scope)) continue;
      lines.push_back(text_of(name_of(scope), where));
      if (dwarf_tag(scope) == DW_TAG_subprogram) break;
      where = call_of(scope, unit);
    }
    if (!lines.empty()) return lines;
    // Line tables alone name no functions; the symbols do.
    const char* const symbol = dwfl_module_addrname(module_, call);
    if (symbol != nullptr) lines.push_back(text_of(readable(symbol), where));
    return lines;
  }

  /// The compiled source that the address is in. gcc lists them by address; clang does not, and
  /// they are looked through.
  [[nodiscard]] Dwarf_Die* unit_at(Dwarf_Addr address, Dwarf_Addr& bias) const {
    if (Dwarf_Die* const listed = dwfl_module_addrdie(module_, address, &bias)) return listed;
    Dwarf_Die* unit = nullptr;
    while ((unit = dwfl_module_nextcu(module_, unit, &bias)) != nullptr)
      if (dwarf_haspc(unit, address - bias) > 0) return unit;
    return nullptr;
  }

  Dwfl* session_ = nullptr;
  Dwfl_Module* module_ = nullptr;
};

bool reads_debug_information() noexcept { return true; }

std::vector<std::string> debug_information::lines_at(const coded_frame& frame) {
  auto& read = files_[{frame.file, frame.build}];
  if (!read) read = std::make_unique<file>(frame.file, frame.build);
  return read->lines_at(frame);
}

}}}  // namespace weir::v0::formats

#else

namespace weir { inline namespace v0 { namespace formats {

class debug_information::file {};

bool reads_debug_information() noexcept { return false; }

std::vector<std::string> debug_information::lines_at(const coded_frame&) { return {}; }

}}}  // namespace weir::v0::formats

#endif

namespace weir { inline namespace v0 { namespace formats {

debug_information::debug_information() = default;
debug_information::~debug_information() = default;

}}}  // namespace weir::v0::formats
