// Walking stacks and naming what is on them.
#include "trace/stacks.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <memory>

namespace weir::inline v0::trace {
namespace {

constexpr int deepest = 48;

std::string hexadecimal(std::uint64_t value) {
  std::array<char, 18> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, 16).ptr;
  return "0x" + std::string{text.data(), end};
}

}  // namespace

void stack_table::prepare() const noexcept {
  std::array<void*, 2> frames{};
  static_cast<void>(backtrace(frames.data(), static_cast<int>(frames.size())));
}

std::uint32_t stack_table::here(int skip) noexcept {
  std::array<void*, deepest> frames{};
  const int depth = backtrace(frames.data(), deepest);
  if (depth <= skip) return 0;
  try {
    addresses found{frames.data() + skip, frames.data() + depth};
    const std::lock_guard lock{mutex_};
    const auto [at, fresh] =
        numbers_.try_emplace(std::move(found), static_cast<std::uint32_t>(all_.size()));
    if (fresh) all_.push_back(&at->first);
    return at->second + 1;
  } catch (...) {
    return 0;
  }
}

std::vector<stack_table::addresses> stack_table::since(std::size_t first) const {
  const std::lock_guard lock{mutex_};
  std::vector<addresses> found;
  for (std::size_t i = first; i < all_.size(); ++i) found.push_back(*all_[i]);
  return found;
}

std::string describe_address(void* where) {
  const auto address = reinterpret_cast<std::uint64_t>(where);
  Dl_info found{};
  if (dladdr(where, &found) == 0 || found.dli_fname == nullptr) return hexadecimal(address);
  const auto offset = [&](const void* from) {
    return "+" + hexadecimal(address - reinterpret_cast<std::uint64_t>(from));
  };
  if (found.dli_sname == nullptr) return found.dli_fname + offset(found.dli_fbase);
  int state = 0;
  const std::unique_ptr<char, void (*)(void*)> readable{
      abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &state), std::free};
  return std::string{readable ? readable.get() : found.dli_sname} + offset(found.dli_saddr) +
         " at " + found.dli_fname;
}

}  // namespace weir::inline v0::trace
