// Walking stacks and naming what is on them.
#include "base/call_stack.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "base/hexadecimal.hpp"

namespace weir::inline v0::detail {
namespace {

constexpr int most_frames = 48;

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
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable{
      abi::__cxa_demangle(symbol.dli_sname, nullptr, nullptr, &status), std::free};
  return std::string{readable ? readable.get() : symbol.dli_sname} + offset(symbol.dli_saddr) +
         " at " + symbol.dli_fname;
}

}  // namespace weir::inline v0::detail
