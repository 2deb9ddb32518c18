// SPDX-License-Identifier: Apache-2.0
// Why a request could not be met, in figures and in words.
#include "heap/inspector.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace weir { inline namespace v0 {
namespace heap {
namespace {

void add_line(std::string& to, std::string_view text, bytes size, std::string_view rest = {}) {
  to.append("  ").append(text).append(": ").append(to_string(size)).append(rest).append("\n");
}

/// " (7, 9)".
std::string named(const std::vector<memory_report::stream_share>& shares) {
  std::string text;
  for (const auto& each : shares)
    text += (text.empty() ? " (" : ", ") + std::to_string(each.stream.number());
  return text.empty() ? text : text + ")";
}

/// What is in the way, and what memory the request could have after a wait or from others.
std::string advise(const memory_report& about, const observe::shortage& missing) {
  std::string text = observe::verdict_of(missing);
  if (observe::obstacle_of(missing) == observe::obstacle::none) return text;
  const auto say = [&](const std::string& sentence) { text += " " + sentence; };
  for (const auto& each : about.bound) {
    if (each.stream == about.stream) continue;
    say(to_string(each.size) + " are bound to stream " + std::to_string(each.stream.number()) +
        ": synchronise it, or free on the stream that allocates next.");
  }
  if (about.stats.pending != bytes{}) {
    say(to_string(about.stats.pending) + " wait for recorded streams" + named(about.awaited) +
        ": synchronise them.");
  }
  if (about.other_pools != bytes{}) {
    say(to_string(about.other_pools) +
        " are cached by private pools and graphs: close those that are no longer needed.");
  }
  return text;
}

}  // namespace

observe::shortage inspector::shortage_of(bytes size, tag tag, stream_slot slot) {
  const std::uint64_t units = units_for(size);
  observe::shortage about{.requested = units > most_units ? size.count() : units * unit,
                          .stream = slot == no_stream ? 0 : core_.order_.id(slot).number(),
                          .tag = tag.name(),
                          .tag_limit = core_.accounts_.limit(tag),
                          .live = core_.accounts_.total().allocated.current,
                          .reserved = core_.placement_.reserved,
                          .limit = core_.placement_.reserved_limit,
                          .limit_is_ceiling = core_.placement_.reserved_limit < core_.own_limit_,
                          .device_total = core_.placement_.device.total_memory().count()};
  if (const ledger* const counted = core_.accounts_.of(tag))
    about.tag_live = counted->allocated.current + core_.accounts_.claimed(tag);
  const std::uint64_t active = core_.accounts_.total().active.current;
  about.free = about.reserved - std::min(about.reserved, active);
  for (const auto& each : core_.pools_) {
    if (each->memory == nullptr) continue;
    if (each->id == pool_id{}) about.longest = each->memory->longest_fit(slot);
    const bool is_checked = each->memory->inspects();
    if (each->may_release(core_.order_) && !is_checked) continue;
    const std::uint64_t kept = each->memory->unused();
    if (is_checked) about.checks += kept;
    about.free -= std::min(about.free, kept);
  }
  return about;
}

std::optional<std::uint64_t> inspector::device_free() const {
  const auto asked = core_.placement_.device.memory_info();
  return asked ? std::optional{asked->free.count()} : std::nullopt;
}

error inspector::no_room(refusal by, bytes size, tag tag, stream_slot slot) {
  core_.mutex_.assert_held();
  last_failure_ = {size, slot, core_.accounts_.total().frees, core_.placement_.reserved_limit};
  observe::shortage about = shortage_of(size, tag, slot);
  about.failed = true;
  if (by != refusal::tag_limit) about.device_free = device_free();
  if (about.device_free && core_.neighbours_.list) about.neighbours = core_.neighbours_.list();
  return {{.code = errc::out_of_memory,
           .requested = size,
           .detail = observe::place_of(about) + ": " + observe::verdict_of(about)}};
}

memory_report inspector::report(bytes size, stream_slot slot) {
  core_.mutex_.assert_held();
  memory_report about;
  about.requested = size;
  about.stream = slot == no_stream ? stream_id{} : core_.order_.id(slot);
  about.tag = current_tag();
  about.tag_limit = bytes{core_.accounts_.limit(about.tag)};
  about.limit = bytes{core_.placement_.reserved_limit};
  about.stats = totals();
  about.device_total = core_.placement_.device.total_memory();
  observe::shortage missing = shortage_of(size, about.tag, slot);
  missing.device_free = device_free();
  if (core_.neighbours_.list) missing.neighbours = core_.neighbours_.list();
  missing.failed = last_failure_ == failure_record{size, slot, core_.accounts_.total().frees,
                                                   core_.placement_.reserved_limit};
  if (missing.device_free) {
    about.device_free = bytes{*missing.device_free};
    const std::uint64_t taken = missing.device_total - *missing.device_free;
    if (taken > core_.placement_.reserved)
      about.elsewhere = bytes{taken - core_.placement_.reserved};
  }
  about.tags = tags_in_use();

  std::map<std::uint64_t, std::uint64_t> sizes;
  for (const auto& each : core_.pools_) {
    if (each->memory == nullptr || each->memory->is_suspended()) continue;
    about.fragments += bytes{each->memory->fragments()};
    if (each->id == pool_id{}) {
      about.largest_free = bytes{each->memory->longest_fit(slot)};
    } else {
      about.other_pools += bytes{each->memory->unused()};
    }
    pool_snapshot snapshot;
    each->memory->describe(snapshot);
    for (const block_info& piece : snapshot.blocks)
      if (piece.state == block_state::live) ++sizes[piece.size.count()];
  }
  for (const auto& [rounded, count] : sizes) about.largest.push_back({bytes{rounded}, count});
  std::stable_sort(about.largest.begin(), about.largest.end(), [](const auto& a, const auto& b) {
    return a.size.count() * a.blocks > b.size.count() * b.blocks;
  });
  if (about.largest.size() > 8) about.largest.resize(8);

  for (stream_slot each = 1; each <= core_.order_.count(); ++each) {
    std::uint64_t held = 0;
    for (const auto& from : core_.pools_)
      if (from->memory != nullptr && !from->memory->is_suspended())
        held += from->memory->bound_to(each);
    if (held != 0) about.bound.push_back({core_.order_.id(each), bytes{held}});
  }
  std::stable_sort(about.bound.begin(), about.bound.end(),
                   [](const auto& a, const auto& b) { return a.size > b.size; });
  std::map<stream_id, std::uint64_t> awaited;
  for (const auto& block : core_.pending_.all())
    for (const stamp each : block.others)
      if (!core_.order_.stream_completed(each))
        awaited[core_.order_.id(each.stream)] += core_.blocks_[block.index].size();
  for (const auto& [id, size_waiting] : awaited) about.awaited.push_back({id, bytes{size_waiting}});
  std::stable_sort(about.awaited.begin(), about.awaited.end(),
                   [](const auto& a, const auto& b) { return a.size > b.size; });
  about.advice = advise(about, missing);
  return about;
}

memory_report inspector::explain(bytes size, const stream_ref& stream) {
  memory_report about;
  about.requested = size;
  if (!core_.usable()) return about;
  const auto known = host_.identify(stream);
  const stream_id caller = known ? known->id : stream_id{};
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return about;
  const thread_caches::stop stopped{core_.caches_, core_.own_cache()};
  host_.settle_caches();
  return report(size, core_.order_.known(caller));
}

}  // namespace heap

std::string memory_report::text() const {
  std::string text = "not enough memory for " + to_string(requested) + " on " +
                     observe::place_of({.stream = stream.number(), .tag = tag.name()}) + "\n";
  heap::add_line(text, "live", stats.allocated.current,
                 " in " + std::to_string(stats.blocks.current) + " blocks, " +
                     to_string(stats.requested.current) + " requested");
  for (const tag_stats& each : tags) {
    if (each.stats.allocated.current == bytes{}) continue;
    const std::string title =
        each.tag == weir::tag{} ? "  untagged" : "  tag \"" + std::string{each.tag.name()} + "\"";
    heap::add_line(text, title, each.stats.allocated.current,
                   " in " + std::to_string(each.stats.blocks.current) + " blocks");
  }
  for (const size_group& each : largest) {
    heap::add_line(text, "  " + std::to_string(each.blocks) + " blocks of", each.size);
  }
  heap::add_line(text, "waiting for recorded streams", stats.pending);
  for (const stream_share& each : awaited)
    heap::add_line(text, "  waiting for stream " + std::to_string(each.stream.number()), each.size);
  heap::add_line(text, "cached", stats.cached,
                 ", " + to_string(stats.thread_cached) + " of it by threads, longest piece " +
                     to_string(largest_free) + ", in fragments " + to_string(fragments));
  for (const stream_share& each : bound)
    heap::add_line(text, "  bound to stream " + std::to_string(each.stream.number()), each.size);
  if (other_pools != bytes{}) heap::add_line(text, "cached by other pools", other_pools);
  if (stats.suspended != bytes{}) heap::add_line(text, "suspended", stats.suspended);
  heap::add_line(text, "reserved", stats.reserved.current,
                 limit == bytes::max() ? ", no limit" : ", limit " + to_string(limit));
  heap::add_line(
      text, "device", device_total,
      ", free " + to_string(device_free) + ", used outside this allocator " + to_string(elsewhere));
  text.append("  ").append(advice).append("\n");
  return text;
}

}}  // namespace weir::v0
