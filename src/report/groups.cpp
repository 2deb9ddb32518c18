// Groups of blocks.
#include "report/groups.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string_view>

#include "weir/base/bytes.hpp"

namespace weir::inline v0::report {

namespace {

using key_of = std::function<std::uint32_t(const life&)>;

/// What each of `keys` keys came to.
std::vector<tally> tally_by(const recording& from, const story& what, std::size_t keys,
                            const key_of& key) {
  std::vector<tally> out(keys);
  walk(
      what,
      [&](std::uint32_t block) {
        const life& born = what.blocks[block];
        tally& of = out[key(born)];
        ++of.blocks;
        of.bytes += born.size;
        of.live += born.size;
        of.most = std::max(of.most, of.live);
        if (born.at(what.peak)) of.at_peak += born.size;
        if (born.end == what.events()) of.at_end += born.size;
      },
      [&](std::uint32_t block) {
        const life& gone = what.blocks[block];
        tally& of = out[key(gone)];
        of.live -= gone.size;
        of.lifetime += from.events[gone.end].time - from.events[gone.start].time;
      },
      [](std::uint32_t) {});
  return out;
}

/// Keeps the keys that held most and makes one group of the others.
grouping keep_most(std::string name, const story& what, const std::vector<tally>& tallies,
                   const key_of& key, const std::function<std::string(std::uint32_t)>& label) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < tallies.size(); ++i) {
    if (tallies[i].blocks != 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return tallies[a].most > tallies[b].most;
  });
  const bool all = order.size() <= most_groups;
  const std::size_t named = all ? order.size() : most_groups - 1;
  grouping out{std::move(name), {}, {}};
  std::vector<std::uint8_t> group_of(tallies.size(), static_cast<std::uint8_t>(named));
  for (std::size_t i = 0; i < named; ++i) {
    out.labels.push_back(label(order[i]));
    group_of[order[i]] = static_cast<std::uint8_t>(i);
  }
  if (!all) out.labels.push_back(fmt::format("{} others", order.size() - named));
  out.of_block.reserve(what.blocks.size());
  for (const life& block : what.blocks) out.of_block.push_back(group_of[key(block)]);
  return out;
}

constexpr std::array size_limits{bytes{1ULL << 10}, bytes{16ULL << 10}, bytes{256ULL << 10},
                                 bytes{2ULL << 20}, bytes{16ULL << 20}, bytes{128ULL << 20},
                                 bytes{1ULL << 30}};

/// By size: the classes keep their order, because that is what a reader expects of sizes.
grouping by_size(const story& what) {
  std::array<std::uint8_t, size_limits.size() + 1> group_of{};
  const auto size_class = [](const life& block) {
    return static_cast<std::size_t>(
        std::upper_bound(size_limits.begin(), size_limits.end(), bytes{block.size}) -
        size_limits.begin());
  };
  std::array<bool, size_limits.size() + 1> used{};
  for (const life& block : what.blocks) used[size_class(block)] = true;
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
  out.of_block.reserve(what.blocks.size());
  for (const life& block : what.blocks) out.of_block.push_back(group_of[size_class(block)]);
  return out;
}

template <class Member>
std::size_t keys_of(const story& what, Member member) {
  std::size_t keys = 1;
  for (const life& block : what.blocks) keys = std::max(keys, std::size_t{block.*member} + 1);
  return keys;
}

/// Frames of allocators and frameworks say how memory was had, not what for.
bool is_plumbing(std::string_view frame) {
  constexpr std::array<std::string_view, 7> marks{
      "/torch/", "site-packages", "dist-packages", "c10::", "at::", "weir::", "<frozen "};
  return std::any_of(marks.begin(), marks.end(), [&](std::string_view mark) {
    return frame.find(mark) != std::string_view::npos;
  });
}

}  // namespace

std::vector<tally> tally_sites(const recording& from, const story& what) {
  return tally_by(from, what, what.sites.size(), [](const life& block) { return block.site; });
}

std::string site_label(const recording& from, const site& which) {
  if (which.stack == 0) {
    return from.stacks.empty() ? to_string(bytes{which.size}) : std::string{"no stack"};
  }
  std::string_view innermost = "an empty stack";
  bool first = true;
  for (const std::uint32_t number : from.stacks[which.stack - 1]) {
    if (number >= from.frames.size()) continue;
    const std::string& frame = from.frames[number];
    if (!is_plumbing(frame)) return frame;
    if (first) innermost = frame;
    first = false;
  }
  return std::string{innermost};
}

std::string tag_label(const recording& from, std::uint16_t tag) {
  if (tag >= from.tags.size()) return fmt::format("tag {}", tag);
  return from.tags[tag].empty() ? std::string{"untagged"} : from.tags[tag];
}

std::string stream_label(const recording& from, std::uint32_t stream) {
  if (stream >= from.streams.size()) return fmt::format("stream #{}", stream);
  const std::uint64_t id = from.streams[stream];
  return id < 65536 ? fmt::format("stream {}", id) : fmt::format("stream {:#x}", id);
}

std::vector<grouping> make_groupings(const recording& from, const story& what,
                                     const std::vector<tally>& sites) {
  std::vector<grouping> out;
  const auto add = [&](std::string name, std::size_t keys, const key_of& key,
                       const std::function<std::string(std::uint32_t)>& label) {
    out.push_back(keep_most(std::move(name), what, tally_by(from, what, keys, key), key, label));
  };
  add(
      "tag", keys_of(what, &life::tag), [](const life& block) { return block.tag; },
      [&](std::uint32_t tag) { return tag_label(from, static_cast<std::uint16_t>(tag)); });
  out.push_back(by_size(what));
  add(
      "stream", keys_of(what, &life::stream), [](const life& block) { return block.stream; },
      [&](std::uint32_t stream) { return stream_label(from, stream); });
  out.push_back(keep_most(
      "site", what, sites, [](const life& block) { return block.site; },
      [&](std::uint32_t site) { return site_label(from, what.sites[site]); }));
  if (keys_of(what, &life::pool) > 1) {
    add(
        "pool", keys_of(what, &life::pool), [](const life& block) { return block.pool; },
        [&](std::uint32_t pool) {
          if (pool >= from.pools.size()) return fmt::format("pool {}", pool);
          return from.pools[pool].empty() ? std::string{"the allocator's own"} : from.pools[pool];
        });
  }
  return out;
}

}  // namespace weir::inline v0::report
