// SPDX-License-Identifier: Apache-2.0
// Groups of blocks.
#include "report/groups.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string_view>

#include "formats/frames.hpp"
#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace report {

namespace {

using key_of = std::function<std::uint32_t(const block_lifetime&)>;

/// The totals of each of `keys` keys.
std::vector<tally> tally_by(const recording& recording, const report::history& history,
                            std::size_t keys, const key_of& key) {
  std::vector<tally> out(keys);
  walk(
      history,
      [&](std::uint32_t block) {
        const block_lifetime& allocated = history.blocks[block];
        tally& total = out[key(allocated)];
        ++total.blocks;
        total.bytes += allocated.size;
        total.live += allocated.size;
        total.most = std::max(total.most, total.live);
        if (allocated.at(history.peak)) total.at_peak += allocated.size;
        if (allocated.end == history.events()) total.at_end += allocated.size;
      },
      [&](std::uint32_t block) {
        const block_lifetime& freed = history.blocks[block];
        tally& total = out[key(freed)];
        total.live -= freed.size;
        ++total.freed;
        total.lifetime += recording.events[freed.end].time - recording.events[freed.start].time;
      },
      [](std::uint32_t) {});
  return out;
}

/// Keeps the keys that held most and makes one group of the others.
grouping keep_most(std::string name, const report::history& history,
                   const std::vector<tally>& tallies, const key_of& key,
                   const std::function<std::string(std::uint32_t)>& label) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < tallies.size(); ++i) {
    if (tallies[i].blocks != 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return tallies[a].most > tallies[b].most;
  });
  const bool all_named = order.size() <= most_groups;
  const std::size_t named = all_named ? order.size() : most_groups - 1;
  grouping out{std::move(name), {}, {}};
  std::vector<std::uint8_t> group_of(tallies.size(), static_cast<std::uint8_t>(named));
  for (std::size_t i = 0; i < named; ++i) {
    out.labels.push_back(label(order[i]));
    group_of[order[i]] = static_cast<std::uint8_t>(i);
  }
  if (!all_named) out.labels.push_back(fmt::format("{} others", order.size() - named));
  out.of_block.reserve(history.blocks.size());
  for (const block_lifetime& block : history.blocks) out.of_block.push_back(group_of[key(block)]);
  return out;
}

constexpr std::array size_limits{bytes{1ULL << 10}, bytes{16ULL << 10}, bytes{256ULL << 10},
                                 bytes{2ULL << 20}, bytes{16ULL << 20}, bytes{128ULL << 20},
                                 bytes{1ULL << 30}};

/// By size: the classes keep their order, because that is what a reader expects of sizes.
grouping by_size(const report::history& history) {
  std::array<std::uint8_t, size_limits.size() + 1> group_of{};
  const auto size_class = [](const block_lifetime& block) {
    return static_cast<std::size_t>(
        std::upper_bound(size_limits.begin(), size_limits.end(), bytes{block.size}) -
        size_limits.begin());
  };
  std::array<bool, size_limits.size() + 1> used{};
  for (const block_lifetime& block : history.blocks) used[size_class(block)] = true;
  grouping out{"size", {}, {}};
  for (std::size_t i = used.size(); i-- > 0;) {  // the large ones first
    if (!used[i]) continue;
    group_of[i] = static_cast<std::uint8_t>(out.labels.size());
    out.labels.push_back(
        i == 0 ? fmt::format("below {}", to_string(size_limits[0]))
        : i == size_limits.size()
            ? fmt::format("{} and more", to_string(size_limits[i - 1]))
            : fmt::format("{} to {}", to_string(size_limits[i - 1]), to_string(size_limits[i])));
  }
  out.of_block.reserve(history.blocks.size());
  for (const block_lifetime& block : history.blocks)
    out.of_block.push_back(group_of[size_class(block)]);
  return out;
}

template <class Member>
std::size_t keys_of(const report::history& history, Member member) {
  std::size_t keys = 1;
  for (const block_lifetime& block : history.blocks)
    keys = std::max(keys, std::size_t{block.*member} + 1);
  return keys;
}

}  // namespace

std::vector<tally> tally_sites(const recording& recording, const report::history& history) {
  return tally_by(recording, history, history.sites.size(),
                  [](const block_lifetime& block) { return block.site; });
}

std::string site_label(const recording& recording, const report::site& site) {
  if (site.stack == 0) {
    return recording.stacks.empty() ? to_string(bytes{site.size}) : std::string{"no stack"};
  }
  const std::string_view frame = formats::site_frame(recording, site.stack);
  return frame.empty() ? "an empty stack" : std::string{frame};
}

std::string tag_label(const recording& recording, std::uint16_t tag) {
  if (tag >= recording.tags.size()) return fmt::format("tag {}", tag);
  return recording.tags[tag].empty() ? std::string{"untagged"} : recording.tags[tag];
}

std::string stream_label(const recording& recording, std::uint32_t stream) {
  if (stream >= recording.streams.size()) return fmt::format("stream #{}", stream);
  const std::uint64_t id = recording.streams[stream];
  return id < 65536 ? fmt::format("stream {}", id) : fmt::format("stream {:#x}", id);
}

std::vector<grouping> make_groupings(const recording& recording, const report::history& history,
                                     const std::vector<tally>& sites) {
  std::vector<grouping> groupings;
  const auto add = [&](std::string name, std::size_t keys, const key_of& key,
                       const std::function<std::string(std::uint32_t)>& label) {
    groupings.push_back(
        keep_most(std::move(name), history, tally_by(recording, history, keys, key), key, label));
  };
  add(
      "tag", keys_of(history, &block_lifetime::tag),
      [](const block_lifetime& block) { return block.tag; },
      [&](std::uint32_t tag) { return tag_label(recording, static_cast<std::uint16_t>(tag)); });
  groupings.push_back(by_size(history));
  add(
      "stream", keys_of(history, &block_lifetime::stream),
      [](const block_lifetime& block) { return block.stream; },
      [&](std::uint32_t stream) { return stream_label(recording, stream); });
  groupings.push_back(keep_most(
      "site", history, sites, [](const block_lifetime& block) { return block.site; },
      [&](std::uint32_t site) { return site_label(recording, history.sites[site]); }));
  if (keys_of(history, &block_lifetime::pool) > 1) {
    add(
        "pool", keys_of(history, &block_lifetime::pool),
        [](const block_lifetime& block) { return block.pool; },
        [&](std::uint32_t pool) {
          if (pool >= recording.pools.size()) return fmt::format("pool {}", pool);
          return recording.pools[pool].empty() ? std::string{"the allocator's own"}
                                               : recording.pools[pool];
        });
  }
  if (!history.suspensions.empty()) {
    for (grouping& each : groupings) each.labels.emplace_back("suspended");
  }
  return groupings;
}

}}}  // namespace weir::v0::report
