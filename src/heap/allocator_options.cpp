// SPDX-License-Identifier: Apache-2.0
// The choices of one allocator, and the process's options that they come from.
#include "weir/allocator/allocator_options.hpp"

#include <array>
#include <string_view>

#include "heap/check_options.hpp"

namespace weir { inline namespace v0 {

result<void> heap::check_options(const allocator_options& options) {
  const auto refuse = [](std::string detail) {
    return error{{.code = errc::invalid_argument, .detail = std::move(detail)}};
  };
  if (options.limit_percent < 1 || options.limit_percent > 100)
    return refuse("limit_percent must be from 1 to 100, got " +
                  std::to_string(options.limit_percent));
  constexpr bytes most_cached{std::uint64_t{1} << 30};
  if (options.thread_cache > most_cached)
    return refuse("thread_cache must be at most " + to_string(most_cached) + ", got " +
                  std::to_string(options.thread_cache.count()) + " bytes");
  return {};
}

allocator_options allocator_options::from(const options& source) {
  return {.policy = source.heap_policy,
          .limit = source.heap_limit,
          .limit_percent = source.heap_limit_percent,
          .thread_cache = source.heap_thread_cache,
          .crossing = source.heap_crossing,
          .allow_unreleased_streams = source.heap_allow_unreleased_streams,
          .queued_waits = source.heap_queued_waits,
          .detect_captures = source.heap_detect_captures,
          .debug_unmap = source.heap_debug_unmap,
          .debug_stacks = source.heap_debug_stacks,
          .debug = source.heap_debug,
          .debug_quarantine = source.heap_debug_quarantine,
          .exportable = source.heap_exportable,
          .rdma = source.heap_rdma,
          .record = source.record,
          .record_stacks = source.record_stacks,
          .live = source.live,
          .budget = source.budget};
}

std::string to_string(const allocator_options& choices) {
  const options source{.heap_policy = choices.policy,
                       .heap_limit = choices.limit,
                       .heap_limit_percent = choices.limit_percent,
                       .heap_thread_cache = choices.thread_cache,
                       .heap_crossing = choices.crossing,
                       .heap_allow_unreleased_streams = choices.allow_unreleased_streams,
                       .heap_queued_waits = choices.queued_waits,
                       .heap_detect_captures = choices.detect_captures,
                       .heap_debug_unmap = choices.debug_unmap,
                       .heap_debug_stacks = choices.debug_stacks,
                       .heap_debug = choices.debug,
                       .heap_debug_quarantine = choices.debug_quarantine,
                       .heap_exportable = choices.exportable,
                       .heap_rdma = choices.rdma,
                       .record = choices.record,
                       .record_stacks = choices.record_stacks,
                       .live = choices.live,
                       .budget = choices.budget};
  constexpr std::array<std::string_view, 18> names{"heap_policy",
                                                   "heap_limit",
                                                   "heap_limit_percent",
                                                   "heap_thread_cache",
                                                   "heap_crossing",
                                                   "heap_allow_unreleased_streams",
                                                   "heap_queued_waits",
                                                   "heap_detect_captures",
                                                   "heap_debug_unmap",
                                                   "heap_debug_stacks",
                                                   "heap_debug",
                                                   "heap_debug_quarantine",
                                                   "heap_exportable",
                                                   "heap_rdma",
                                                   "record",
                                                   "record_stacks",
                                                   "live",
                                                   "budget"};
  constexpr std::string_view prefix = "heap_";
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ",";
    text += name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    text += "=" + get(source, name).value();
  }
  return text;
}

}}  // namespace weir::v0
