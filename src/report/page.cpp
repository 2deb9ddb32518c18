// The report's page: the steps in their order, and the index that tells the browser what is where.
#include "report/page.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "report/chunks.hpp"
#include "report/groups.hpp"
#include "report/pack.hpp"
#include "report/series.hpp"
#include "report/shelves.hpp"
#include "report/shortage.hpp"
#include "report/story.hpp"
#include "report/template.hpp"
#include "weir/base/version.hpp"

namespace weir::inline v0::report {

namespace {

constexpr std::uint64_t index_version = 1;
constexpr std::size_t most_shortages = 16;
constexpr std::size_t most_markers = 2000;
constexpr std::size_t most_sites = 300;
constexpr std::size_t most_frames = 64;
constexpr std::size_t least_blocks = 1000;

/// Everything that was found out about the recording.
struct findings {
  const page_source& source;
  story told;
  std::vector<tally> sites;
  std::vector<grouping> groupings;
  std::vector<shortage> shortages;
};

/// What went into the store.
struct layout {
  series finest;
  unsigned levels = 0;
  selection blocks;
  std::vector<shelf_level> shelves;
  chunk_store store;
};

void pack_about(const findings& of, packer& out) {
  const recording& what = of.source.what;
  out.number(index_version).text(version_text());
  out.text(of.source.file).text(what.program).text(what.device);
  out.number(what.device_capacity).number(what.dropped).flag(what.real_addresses);
  out.text(of.source.where == nullptr ? std::string_view{} : replay::name(of.source.where->by));
  out.flag(what.damage.has_value());
  if (what.damage) out.number(what.damage->offset).text(what.damage->reason);
  out.number(what.events.size()).number(what.events.empty() ? 0 : what.events.back().time);
  out.number(of.told.blocks.size()).number(of.told.peak);
  std::uint64_t rounded = 0;
  for (const life& block : of.told.blocks) {
    if (block.at(of.told.peak)) rounded += block.rounded;
  }
  const auto& reserved = of.told.reserved;
  out.number(of.told.live.empty() ? 0 : of.told.live[of.told.peak]).number(rounded);
  out.flag(!reserved.empty());
  out.number(reserved.empty() ? 0 : *std::max_element(reserved.begin(), reserved.end()));
  out.number(page_bytes);
}

void pack_groupings(const findings& of, packer& out) {
  out.number(of.groupings.size());
  for (const grouping& by : of.groupings) {
    out.text(by.name).number(by.labels.size());
    for (const std::string& label : by.labels) out.text(label);
  }
}

void pack_layout(const findings& of, const layout& into, packer& out) {
  out.number(into.finest.shift).number(into.finest.bins()).number(into.levels);
  out.number(level_shift).number(tile_bins);
  out.number(into.shelves.size());
  for (const shelf_level& level : into.shelves) out.number(level.width).number(level.shelves);
  out.number(into.store.count()).number(into.store.early());
  for (const std::size_t length : into.store.lengths()) out.number(length);
  out.number(into.blocks.small_below).number(into.blocks.left_out_below);
  out.number(into.blocks.key_moments.size());
  std::uint64_t before = 0;
  for (const std::uint32_t moment : into.blocks.key_moments) {
    out.difference(moment, before);
    before = moment;
  }
  const std::vector<region> regions = used_addresses(of.told);
  out.number(regions.size());
  for (const region& r : regions) out.number(r.address).number(r.size);
}

void pack_names(const recording& what, packer& out) {
  out.number(what.tags.size());
  for (std::size_t i = 0; i < what.tags.size(); ++i) {
    out.text(tag_label(what, static_cast<std::uint16_t>(i)));
  }
  out.number(what.streams.size());
  for (std::uint32_t i = 0; i < what.streams.size(); ++i) out.text(stream_label(what, i));
}

/// The sites that held most; blocks of others are named by their size alone.
void pack_sites(const findings& of, packer& out) {
  const recording& what = of.source.what;
  std::vector<std::uint32_t> order(of.sites.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return of.sites[a].most > of.sites[b].most;
  });
  out.number(order.size());
  order.resize(std::min(order.size(), most_sites));
  out.flag(!what.stacks.empty()).number(order.size());
  for (const std::uint32_t i : order) {
    const tally& came = of.sites[i];
    const site& which = of.told.sites[i];
    out.number(i).text(site_label(what, which));
    out.number(came.blocks).number(came.bytes).number(came.most).number(came.at_peak);
    out.number(came.at_end).number(came.lifetime);
    std::size_t count = 0;
    if (which.stack != 0) {
      for (const std::uint32_t frame : what.stacks[which.stack - 1]) {
        if (frame >= what.frames.size() || count == most_frames) continue;
        out.number(1).text(what.frames[frame]);
        ++count;
      }
    }
    out.number(0);
  }
}

void pack_policies(const findings& of, packer& out) {
  const recording& what = of.source.what;
  out.number(what.peaks.size());
  for (const recorded_peak& peak : what.peaks) {
    out.text(peak.policy).number(peak.requested).number(peak.reserved);
  }
  out.number(of.source.policies.size());
  for (const replay::outcome& came : of.source.policies) {
    out.text(replay::name(came.how)).number(came.requested_peak).number(came.reserved_peak);
    out.number(came.driver_calls);
    out.number(static_cast<std::uint64_t>(std::max<std::int64_t>(0, came.driver_time.count())));
    out.number(came.waits).number(came.ooms);
    out.number(came.samples.size());
    std::uint64_t time = 0;
    for (const replay::sample& at : came.samples) {
      out.difference(at.time, time).number(at.reserved);
      time = at.time;
    }
  }
}

void pack_shortages(const findings& of, packer& out) {
  const recording& what = of.source.what;
  const auto all = std::count_if(what.events.begin(), what.events.end(), [](const trace_event& e) {
    return e.kind == trace_kind::out_of_memory;
  });
  out.number(static_cast<std::uint64_t>(all)).number(of.shortages.size());
  for (const shortage& each : of.shortages) {
    out.number(each.event).number(what.events[each.event].time).number(each.asked);
    out.number(each.stream).number(each.live).number(each.rounded).number(each.reserved);
    out.number(each.limit).number(each.free.bytes).number(each.free.pieces);
    out.number(each.free.longest).text(each.verdict);
    out.number(each.tags.size());
    for (const auto& [tag, size] : each.tags) out.text(tag_label(what, tag)).number(size);
  }
}

void pack_markers(const recording& what, packer& out) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < what.events.size(); ++i) {
    const trace_event& event = what.events[i];
    if (event.kind == trace_kind::marker && event.other < what.texts.size()) found.push_back(i);
  }
  out.number(found.size());
  found.resize(std::min(found.size(), most_markers));
  out.number(found.size());
  for (const std::uint32_t i : found) {
    out.number(i).number(what.events[i].time).text(what.texts[what.events[i].other]);
  }
}

layout lay_out(const findings& of, const page_limits& most) {
  layout out;
  out.finest = make_series(of.source.what, of.told, of.groupings, most.bins);
  out.levels = store_series(out.finest, of.told, of.groupings, out.store);
  // A moment that must be exact has to be one that can be looked at.
  std::vector<std::uint32_t> wanted;
  const auto want = [&](std::uint32_t event) {
    if (!of.told.live.empty()) wanted.push_back(out.finest.moment[event >> out.finest.shift]);
  };
  want(of.told.peak);
  for (const shortage& each : of.shortages) wanted.push_back(each.event);
  out.blocks = select_blocks(of.told, out.finest, std::move(wanted), most.blocks);
  out.shelves = store_shelves(of.told, of.groupings, out.blocks, out.store);
  return out;
}

std::string make_index(const findings& of, const layout& into) {
  packer out;
  pack_about(of, out);
  pack_groupings(of, out);
  pack_layout(of, into, out);
  pack_names(of.source.what, out);
  pack_sites(of, out);
  pack_policies(of, out);
  pack_shortages(of, out);
  pack_markers(of.source.what, out);
  return base64(deflated(out.packed()));
}

/// The template with its places filled.
std::string fill(const std::vector<std::pair<std::string_view, std::string_view>>& places) {
  std::string out;
  std::string_view left = page_template;
  for (const auto& [mark, text] : places) {  // in the order in which they stand in the template
    const std::size_t at = left.find(mark);
    out += left.substr(0, at);
    out += text;
    left.remove_prefix(at == std::string_view::npos ? left.size() : at + mark.size());
  }
  out += left;
  return out;
}

}  // namespace

std::string make_page(const page_source& from, const page_limits& most) {
  findings of{from, tell(from.what, from.where), {}, {}, {}};
  of.sites = tally_sites(from.what, of.told);
  of.groupings = make_groupings(from.what, of.told, of.sites);
  of.shortages = explain_shortages(from.what, of.told, most_shortages);
  page_limits now = most;
  for (int round = 0;; ++round) {
    const layout into = lay_out(of, now);
    const std::string index = make_index(of, into);
    const std::size_t size = page_template.size() + page_style.size() + page_script.size() +
                             index.size() + into.store.early_text().size() +
                             into.store.text().size();
    const auto kept = static_cast<std::size_t>(
        std::count(into.blocks.kept.begin(), into.blocks.kept.end(), true));
    const bool can_shrink = kept > least_blocks || into.finest.bins() > first_bins;
    if (size <= now.bytes || !can_shrink) {
      return fill({{"@style@", page_style},
                   {"@index@", index},
                   {"@early@", into.store.early_text()},
                   {"@script@", page_script},
                   {"@store@", into.store.text()}});
    }
    now.blocks = std::max(least_blocks, kept / 2);
    if (round > 0) now.bins = std::max(first_bins, into.finest.bins() / 2);
  }
}

}  // namespace weir::inline v0::report
