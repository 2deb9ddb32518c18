// SPDX-License-Identifier: Apache-2.0
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
#include <new>

#include "base/host_memory.hpp"
#include "pools/guarded.hpp"
#include "resources/adaptor.hpp"
#include "resources/live_table.hpp"

namespace weir { inline namespace v0 {
namespace {

constexpr std::size_t deepest = 64;

/// The frames of the caller's caller upwards. Addresses only. no_host_memory: for these.
[[gnu::noinline]] result<std::vector<void*>> stack_here(std::size_t depth) {
  constexpr std::size_t own = 2;  // this function and try_allocate
  std::array<void*, deepest + own> frames;
  const int captured = ::backtrace(frames.data(), static_cast<int>(depth + own));
  const auto count = static_cast<std::size_t>(std::max(captured, 0));
  if (count <= own) return std::vector<void*>{};
  try {
    return std::vector<void*>(frames.data() + own, frames.data() + count);
  } catch (const std::bad_alloc&) {
    return detail::no_host_memory();
  }
}

std::string address_text(const void* address) {
  char text[64];
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

std::string symbol_of(void* address) {
  const std::string text = address_text(address);
  // A return address points behind the call, which may be the end of the function.
  const auto call = static_cast<const char*>(address) - 1;
  Dl_info symbol{};
  if (::dladdr(call, &symbol) == 0) return text;
  std::string name = "?";
  if (symbol.dli_sname != nullptr) {
    char* const readable = abi::__cxa_demangle(symbol.dli_sname, nullptr, nullptr, nullptr);
    name = readable != nullptr ? readable : symbol.dli_sname;
    std::free(readable);  // NOLINT: that is how it was allocated
  }
  const std::string file = symbol.dli_fname != nullptr ? symbol.dli_fname : "?";
  return text + " " + name + " in " + file;
}

}  // namespace

struct tracking_resource::state {
  struct record {
    bytes size{};
    live_allocation allocation;
  };

  state(any_resource under, tracking_options options)
      : upstream{std::move(under)}, settings{options} {}
  ~state() {
    if (resources::is_forked(upstream)) return;
    if (live.total().count != 0) report_error(live.leak("a tracking resource was destroyed"));
  }
  state(const state&) = delete;
  state& operator=(const state&) = delete;

  const any_resource upstream;
  const tracking_options settings;
  std::atomic<std::uint64_t> last_number{0};
  resources::live_table<record> live;
};

result<tracking_resource> tracking_resource::create(any_resource upstream,
                                                    tracking_options settings) {
  WEIR_TRY(resources::check_upstream(upstream));
  if (settings.depth == 0 || settings.depth > deepest)
    return error{{.code = errc::invalid_argument, .detail = "frames must be from 1 to 64"}};
  return pools::guarded([&]() -> result<tracking_resource> {
    return tracking_resource{std::make_shared<state>(std::move(upstream), settings)};
  });
}

result<void*> tracking_resource::try_allocate(bytes size, const stream_ref& stream,
                                              bytes alignment) const {
  state& self = *state_;
  if (resources::is_forked(self.upstream)) return detail::fork_error();
  std::vector<void*> stack;
  if (self.settings.stacks) {  // what may fail comes first
    WEIR_TRY_VALUE(captured, stack_here(self.settings.depth));
    stack = std::move(captured);
  }
  auto pointer = self.upstream.try_allocate(size, stream, alignment);
  if (!pointer || *pointer == nullptr) return pointer;
  live_allocation allocation{.pointer = *pointer,
                             .size = size,
                             .stream = stream.handle(),
                             .number = self.last_number.fetch_add(1, std::memory_order_relaxed) + 1,
                             .thread = static_cast<std::uint64_t>(::gettid()),
                             .time = std::chrono::system_clock::now(),
                             .stack = std::move(stack)};
  if (auto entered = self.live.put(*pointer, {size, std::move(allocation)}, stream); !entered) {
    self.upstream.deallocate(*pointer, size, stream);
    return std::move(entered).error();
  }
  return pointer;
}

result<void> tracking_resource::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) const {
  if (resources::is_forked(state_->upstream)) return detail::fork_error();
  return resources::deallocate(state_->live, pointer, size, [&](const state::record& record) {
    return state_->upstream.try_deallocate(pointer, record.size, stream);
  });
}

result<void> tracking_resource::record_stream(void* pointer, const stream_ref& stream) const {
  return state_->upstream.record_stream(pointer, stream);
}

live_report tracking_resource::live() const {
  live_report report;
  if (resources::is_forked(state_->upstream)) return report;
  state_->live.for_each([&](void*, const state::record& record) {
    report.allocations.push_back(record.allocation);
    report.size += record.size;
  });
  std::sort(report.allocations.begin(), report.allocations.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  return report;
}

any_resource tracking_resource::upstream() const { return state_->upstream; }
weir::device tracking_resource::device() const { return state_->upstream.device(); }
memory_kind tracking_resource::kind() const noexcept { return state_->upstream.kind(); }

// --- The report ---------------------------------------------------------------------------------

std::vector<std::string> live_allocation::symbols() const {
  std::vector<std::string> lines;
  lines.reserve(stack.size());
  for (void* const frame : stack) lines.push_back(symbol_of(frame));
  return lines;
}

std::string to_string(const live_allocation& allocation) {
  return "#" + std::to_string(allocation.number) + " " + to_string(allocation.size) + " at " +
         address_text(allocation.pointer) + " by thread " + std::to_string(allocation.thread);
}

std::string to_string(const live_report& report) {
  struct call_site {
    const live_allocation* first = nullptr;
    std::uint64_t count = 0;
    bytes size{};
  };
  std::map<std::vector<void*>, call_site> by_stack;
  for (const live_allocation& allocation : report.allocations) {
    call_site& site = by_stack[allocation.stack];
    if (site.first == nullptr) site.first = &allocation;
    ++site.count;
    site.size += allocation.size;
  }
  std::vector<call_site> sites;
  for (const auto& [stack, site] : by_stack) sites.push_back(site);
  std::stable_sort(sites.begin(), sites.end(),
                   [](const call_site& a, const call_site& b) { return a.size > b.size; });

  std::string out =
      std::to_string(report.allocations.size()) + " live allocations, " + to_string(report.size);
  for (const call_site& site : sites) {
    out += "\n" + std::to_string(site.count) + " of them, " + to_string(site.size) + ", first #" +
           std::to_string(site.first->number) + " by thread " + std::to_string(site.first->thread);
    for (const std::string& line : site.first->symbols()) out += "\n    " + line;
  }
  return out + "\n";
}

}}  // namespace weir::v0
