// SPDX-License-Identifier: Apache-2.0
// Names and texts of what a user may print.
#include <string>
#include <string_view>
#include <utility>

#include "base/hexadecimal.hpp"
#include "base/member_list.hpp"
#include "weir/pool/block_pool.hpp"
#include "weir/pool/buffer_pool.hpp"
#include "weir/pool/contents.hpp"
#include "weir/pool/memory_kind.hpp"
#include "weir/pool/stream_pool.hpp"

namespace weir { inline namespace v0 {

// --- Enumerations -------------------------------------------------------------------------------

std::string_view name(memory_kind kind) noexcept {
  switch (kind) {
    case memory_kind::device:
      return "device";
    case memory_kind::managed:
      return "managed";
    case memory_kind::pinned:
      return "pinned";
  }
  return "unknown";
}

std::string_view name(contents value) noexcept {
  switch (value) {
    case contents::undefined:
      return "undefined";
    case contents::zeroed:
      return "zeroed";
  }
  return "unknown";
}

std::string_view name(stream_pool_handles handles) noexcept {
  switch (handles) {
    case stream_pool_handles::none:
      return "none";
    case stream_pool_handles::posix_descriptor:
      return "posix_descriptor";
  }
  return "unknown";
}

std::string_view name(stream_pool_attribute attribute) noexcept {
  switch (attribute) {
    case stream_pool_attribute::reuse_follow_event_dependencies:
      return "reuse_follow_event_dependencies";
    case stream_pool_attribute::reuse_opportunistic:
      return "reuse_opportunistic";
    case stream_pool_attribute::reuse_internal_dependencies:
      return "reuse_internal_dependencies";
    case stream_pool_attribute::release_threshold:
      return "release_threshold";
    case stream_pool_attribute::reserved:
      return "reserved";
    case stream_pool_attribute::reserved_peak:
      return "reserved_peak";
    case stream_pool_attribute::used:
      return "used";
    case stream_pool_attribute::used_peak:
      return "used_peak";
  }
  return {};
}

// --- Structures ---------------------------------------------------------------------------------

using detail::member_list;

namespace {

[[nodiscard]] std::string_view on_or_off(bool flag) noexcept { return flag ? "on" : "off"; }

}  // namespace

std::string to_string(const block_pool_stats& stats) {
  member_list members;
  members.add("requested", stats.requested)
      .add("allocated", stats.allocated)
      .add("reserved", stats.reserved)
      .add("blocks", stats.blocks)
      .add("cached", stats.cached)
      .add("pending", stats.pending)
      .add("allocations", stats.allocations)
      .add("frees", stats.frees)
      .add("hits", stats.hits)
      .add("misses", stats.misses)
      .add("failures", stats.failures)
      .add("waits", stats.waits)
      .add("events", stats.events);
  return std::move(members).text();
}

std::string to_string(const buffer_pool_stats& stats) {
  member_list members;
  members.add("hits", stats.hits)
      .add("misses", stats.misses)
      .add("returns", stats.returns)
      .add("cached", stats.cached)
      .add("taken", byte_gauge{stats.taken, stats.taken_peak});
  return std::move(members).text();
}

std::string to_string(const stream_pool_stats& stats) {
  member_list members;
  members.add("reserved", byte_gauge{stats.reserved, stats.reserved_peak})
      .add("used", byte_gauge{stats.used, stats.used_peak})
      .add("active_allocations", gauge{stats.active_allocations, stats.active_allocations_peak})
      .add("active_bytes", stats.active_bytes);
  return std::move(members).text();
}

std::string to_string(const stream_pool_config& config) {
  member_list members;
  members.add("initial", config.initial)
      .add("max", config.max == bytes{} ? "unlimited" : to_string(config.max))
      .add("threshold",
           config.threshold == bytes::max() ? "unlimited" : to_string(config.threshold))
      .add("handles", to_string(config.handles))
      .add("reuse_follow_event_dependencies", on_or_off(config.reuse_follow_event_dependencies))
      .add("reuse_opportunistic", on_or_off(config.reuse_opportunistic))
      .add("reuse_internal_dependencies", on_or_off(config.reuse_internal_dependencies));
  return std::move(members).text();
}

// --- Pools and owners ---------------------------------------------------------------------------

std::string to_string(const block_pool& pool) {
  if (!pool) return "pool, moved from";
  const block_pool_stats now = pool.stats();
  return "pool of device " + std::to_string(pool.device().id().number()) + ": requested " +
         to_string(now.requested) + ", reserved " + to_string(now.reserved) + ", cached " +
         to_string(now.cached);
}

std::string to_string(const buffer_pool& pool) { return "buffer_pool: " + to_string(pool.stats()); }

std::string to_string(const stream_pool& pool) {
  if (!pool) return "stream_pool, closed or moved from";
  const auto now = pool.stats();
  return "stream_pool of device " + std::to_string(pool.device().id().number()) + ": " +
         (now ? to_string(*now) : now.error().message());
}

std::string to_string(const memory_owner& memory) {
  if (!memory) return "no memory";
  return to_string(memory.size()) + " at " +
         detail::hexadecimal(reinterpret_cast<std::uintptr_t>(memory.data()));
}

}}  // namespace weir::v0
