// The records of live allocations, and their report.
#include "weir/resource/tracking_resource.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"

namespace weir::inline v0 {
namespace {

constexpr std::size_t deepest = 64;

/// The frames of the caller's caller upwards. Addresses only.
[[gnu::noinline]] std::vector<void*> stack_here(std::size_t depth) {
  constexpr std::size_t own = 2;  // this function and try_allocate
  std::array<void*, deepest + own> frames;
  const int found = ::backtrace(frames.data(), static_cast<int>(depth + own));
  const auto count = static_cast<std::size_t>(std::max(found, 0));
  if (count <= own) return {};
  return std::vector<void*>(frames.data() + own, frames.data() + count);
}

std::string symbol_of(void* address) {
  char text[64];
  std::snprintf(text, sizeof text, "%p", address);
  // A return address points behind the call, which may be the end of the function.
  const auto call = static_cast<const char*>(address) - 1;
  Dl_info found{};
  if (::dladdr(call, &found) == 0) return text;
  std::string name = "?";
  if (found.dli_sname != nullptr) {
    int status = 0;
    char* const readable = abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status);
    name = readable != nullptr ? readable : found.dli_sname;
    std::free(readable);  // NOLINT: that is how it was allocated
  }
  const std::string file = found.dli_fname != nullptr ? found.dli_fname : "?";
  return std::string{text} + " " + name + " in " + file;
}

}  // namespace

struct tracking_resource::state {
  struct record {
    bytes size{};
    live_allocation what;
  };

  state(any_resource under, tracking_options how) : upstream{std::move(under)}, settings{how} {}
  ~state() {
    const auto left = live.total();
    if (left.count == 0) return;
    report_error({.code = errc::already_freed,
                  .requested = left.size,
                  .detail = "tracking ended with " + std::to_string(left.count) +
                            " live allocations of " + to_string(left.size)});
  }
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  const any_resource upstream;
  const tracking_options settings;
  std::atomic<std::uint64_t> made{0};
  resources::live_table<record> live;
};

result<tracking_resource> tracking_resource::create(any_resource upstream,
                                                    tracking_options settings) {
  WEIR_TRY(resources::check_upstream(upstream));
  if (settings.depth == 0 || settings.depth > deepest)
    return error{.code = errc::invalid_argument, .detail = "a stack has 1 to 64 frames"};
  return tracking_resource{std::make_shared<state>(std::move(upstream), settings)};
}

result<void*> tracking_resource::try_allocate(bytes size, const stream_ref& stream,
                                              bytes alignment) {
  state& my = *inside_;
  auto made = my.upstream.try_allocate(size, stream, alignment);
  if (!made || *made == nullptr) return made;
  live_allocation what{.pointer = *made,
                       .size = size,
                       .stream = stream.handle(),
                       .number = my.made.fetch_add(1, std::memory_order_relaxed) + 1,
                       .thread = static_cast<std::uint64_t>(::gettid()),
                       .when = std::chrono::system_clock::now(),
                       .stack = {}};
  if (my.settings.stacks) what.stack = stack_here(my.settings.depth);
  if (auto entered = my.live.put(*made, {size, std::move(what)}); !entered) {
    my.upstream.deallocate(*made, size, stream);
    return std::move(entered).error();
  }
  return made;
}

result<void> tracking_resource::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) {
  return resources::give_back(inside_->live, pointer, size, [&](const state::record& what) {
    return inside_->upstream.try_deallocate(pointer, what.size, stream);
  });
}

live_report tracking_resource::live() const {
  live_report found;
  inside_->live.for_each([&](void*, const state::record& each) {
    found.allocations.push_back(each.what);
    found.size += each.size;
  });
  std::sort(found.allocations.begin(), found.allocations.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return found;
}

any_resource tracking_resource::upstream() const { return inside_->upstream; }
weir::device tracking_resource::device() const { return inside_->upstream.device(); }
memory_kind tracking_resource::kind() const noexcept { return inside_->upstream.kind(); }

// --- The report ---------------------------------------------------------------------------------

std::vector<std::string> live_allocation::symbols() const {
  std::vector<std::string> lines;
  lines.reserve(stack.size());
  for (void* const each : stack) lines.push_back(symbol_of(each));
  return lines;
}

std::string live_report::text() const {
  struct place {
    const live_allocation* first = nullptr;
    std::uint64_t count = 0;
    bytes size{};
  };
  std::map<std::vector<void*>, place> by_stack;
  for (const live_allocation& each : allocations) {
    place& here = by_stack[each.stack];
    if (here.first == nullptr) here.first = &each;
    ++here.count;
    here.size += each.size;
  }
  std::vector<place> places;
  for (const auto& [stack, here] : by_stack) places.push_back(here);
  std::stable_sort(places.begin(), places.end(),
                   [](const place& a, const place& b) { return a.size > b.size; });

  std::string out = std::to_string(allocations.size()) + " live allocations, " + to_string(size);
  for (const place& each : places) {
    out += "\n" + std::to_string(each.count) + " of them, " + to_string(each.size) + ", first #" +
           std::to_string(each.first->number) + " by thread " + std::to_string(each.first->thread);
    for (const std::string& line : each.first->symbols()) out += "\n    " + line;
  }
  return out + "\n";
}

}  // namespace weir::inline v0
