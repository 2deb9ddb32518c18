// Walking stacks and naming what is on them.
#include "trace/stacks.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "base/hexadecimal.hpp"

namespace weir::inline v0::trace {
namespace {

constexpr int most_frames = 48;

using detail::hexadecimal;

}  // namespace

void stack_table::prepare() const noexcept {
  std::array<void*, 2> frames{};
  static_cast<void>(backtrace(frames.data(), static_cast<int>(frames.size())));
}

std::uint32_t stack_table::capture(const void* caller) noexcept {
  std::array<void*, most_frames> frames{};
  void** const end = frames.data() + backtrace(frames.data(), most_frames);
  void** first = std::find(frames.data(), end, caller);
  if (first == end) first = frames.data();
  try {
    addresses stack(first, end);  // in braces these would be two addresses
    const std::lock_guard lock{mutex_};
    const auto [entry, inserted] =
        numbers_.try_emplace(std::move(stack), static_cast<std::uint32_t>(all_.size()));
    if (inserted) all_.push_back(&entry->first);
    return entry->second + 1;
  } catch (...) {
    return 0;
  }
}

std::vector<stack_table::addresses> stack_table::since(std::size_t first) const {
  const std::lock_guard lock{mutex_};
  std::vector<addresses> stacks;
  for (std::size_t i = first; i < all_.size(); ++i) stacks.push_back(*all_[i]);
  return stacks;
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

}  // namespace weir::inline v0::trace
