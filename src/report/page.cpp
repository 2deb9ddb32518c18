// SPDX-License-Identifier: Apache-2.0
// The report's page: the steps in their order, and the index of its data for the browser.
#include "report/page.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "report/block_index.hpp"
#include "report/card_report.hpp"
#include "report/chunks.hpp"
#include "report/differences.hpp"
#include "report/groups.hpp"
#include "report/history.hpp"
#include "report/leaks.hpp"
#include "report/oom_report.hpp"
#include "report/pack.hpp"
#include "report/series.hpp"
#include "report/template.hpp"
#include "weir/base/version.hpp"

namespace weir { inline namespace v0 { namespace report {

namespace {

constexpr std::uint64_t index_version = 2;
constexpr std::size_t most_ooms = 16;
constexpr std::size_t most_markers = 2000;
constexpr std::size_t most_sites = 300;
constexpr std::size_t most_suspensions = 2000;
constexpr std::size_t most_frames = 64;
constexpr std::size_t least_blocks = 1000;

/// Everything that is derived from the recording.
struct analysis {
  const page_source& source;
  report::history history;
  std::vector<tally> sites;
  std::vector<grouping> groupings;
  std::vector<oom_report> ooms;
};

/// The page's data, packed.
struct layout {
  series finest;
  unsigned levels = 0;
  selection blocks;
  std::vector<index_level> index_levels;
  chunk_store store;
};

/// A snapshot, for one, says what was asked for, not what blocks took.
bool knows_rounding(const analysis& data) {
  const auto& events = data.source.recording.events;
  return data.source.placement != nullptr ||
         std::any_of(events.begin(), events.end(), [](const trace_event& each) {
           return each.kind == trace_kind::allocate && each.extra != 0;
         });
}

void pack_about(const analysis& data, packer& out) {
  const recording& recorded = data.source.recording;
  out.number(index_version).text(version_text());
  out.text(data.source.file).text(recorded.program).text(recorded.device);
  out.number(recorded.device_capacity.count())
      .number(recorded.dropped)
      .flag(recorded.real_addresses);
  out.text(data.source.placement == nullptr ? std::string_view{}
                                            : replay::name(data.source.placement->policy));
  out.flag(recorded.damage.has_value());
  if (recorded.damage) out.number(recorded.damage->offset).text(recorded.damage->reason);
  out.number(recorded.events.size())
      .number(recorded.events.empty() ? 0 : recorded.events.back().time);
  out.number(data.history.blocks.size()).number(data.history.peak);
  std::uint64_t rounded = 0;  // of a recording that does not say
  if (knows_rounding(data)) {
    for (const block_lifetime& block : data.history.blocks)
      if (block.at(data.history.peak)) rounded += block.rounded;
  }
  const auto& reserved = data.history.reserved;
  out.number(data.history.live.empty() ? 0 : data.history.live[data.history.peak]);
  out.number(most_in_use(recorded, data.history)).number(rounded);
  out.flag(!reserved.empty());
  out.number(reserved.empty() ? 0 : *std::max_element(reserved.begin(), reserved.end()));
  out.number(page_bytes);
}

void pack_groupings(const analysis& data, packer& out) {
  out.number(data.groupings.size());
  for (const grouping& groups : data.groupings) {
    out.text(groups.name).number(groups.labels.size());
    for (const std::string& label : groups.labels) out.text(label);
  }
}

void pack_layout(const analysis& data, const layout& packed, packer& out) {
  out.number(packed.finest.shift).number(packed.finest.bins()).number(packed.levels);
  out.number(level_shift).number(tile_bins);
  out.number(packed.index_levels.size());
  for (const index_level& level : packed.index_levels)
    out.number(level.width).number(level.buckets);
  out.number(packed.store.count()).number(packed.store.early());
  for (const std::size_t length : packed.store.lengths()) out.number(length);
  out.number(packed.blocks.small_below).number(packed.blocks.left_out_below);
  out.number(packed.blocks.key_moments.size());
  std::uint64_t previous = 0;
  for (const std::uint32_t moment : packed.blocks.key_moments) {
    out.difference(moment, previous);
    previous = moment;
  }
  const std::vector<region> regions = used_addresses(data.history);
  out.number(regions.size());
  for (const region& r : regions) out.number(r.address).number(r.size);
}

void pack_names(const recording& recording, packer& out) {
  out.number(recording.tags.size());
  for (std::size_t i = 0; i < recording.tags.size(); ++i) {
    out.text(tag_label(recording, static_cast<std::uint16_t>(i)));
  }
  out.number(recording.streams.size());
  for (std::uint32_t i = 0; i < recording.streams.size(); ++i) out.text(stream_label(recording, i));
}

/// The sites that held most; blocks of others are named by their size alone.
void pack_sites(const analysis& data, packer& out) {
  const recording& recorded = data.source.recording;
  std::vector<std::uint32_t> order(data.sites.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return data.sites[a].most > data.sites[b].most;
  });
  out.number(order.size());
  order.resize(std::min(order.size(), most_sites));
  out.flag(!recorded.stacks.empty()).number(order.size());
  for (const std::uint32_t i : order) {
    const tally& total = data.sites[i];
    const site& origin = data.history.sites[i];
    out.number(i).text(site_label(recorded, origin));
    out.number(total.blocks).number(total.bytes).number(total.most).number(total.at_peak);
    out.number(total.at_end);
    out.number(total.freed == 0 ? 0 : total.lifetime / total.freed);
    std::size_t count = 0;
    if (origin.stack != 0) {
      for (const std::uint32_t frame : recorded.stacks[origin.stack - 1]) {
        if (frame >= recorded.frames.size() || count == most_frames) continue;
        out.number(1).text(recorded.frames[frame]);
        ++count;
      }
    }
    out.number(0);
  }
}

void pack_leaks(const analysis& data, packer& out) {
  const recording& recorded = data.source.recording;
  std::vector<leak> leaks = find_leaks(data.history);
  out.number(leaks.size());
  leaks.resize(std::min(leaks.size(), most_sites));
  out.number(leaks.size());
  for (const leak& each : leaks) {
    out.number(each.site).text(site_label(recorded, data.history.sites[each.site]));
    out.number(each.tag).number(each.blocks).number(each.bytes);
    out.number(recorded.events[each.first].time).number(recorded.events[each.last].time);
  }
}

void pack_policies(const analysis& data, packer& out) {
  const recording& recorded = data.source.recording;
  out.number(recorded.peaks.size());
  for (const recorded_peak& peak : recorded.peaks) {
    out.text(peak.policy).number(peak.requested.count()).number(peak.reserved.count());
  }
  out.number(data.source.policies.size());
  const std::vector<bytes>& fits = data.source.fits;
  for (std::size_t i = 0; i < data.source.policies.size(); ++i) {
    const replay::outcome& outcome = data.source.policies[i];
    out.text(replay::name(outcome.policy))
        .number(outcome.requested_peak)
        .number(outcome.reserved_peak);
    out.number(outcome.driver_calls);
    out.number(static_cast<std::uint64_t>(std::max<std::int64_t>(0, outcome.driver_time.count())));
    out.number(outcome.waits).number(outcome.ooms);
    out.number(i < fits.size() ? fits[i].count() : 0);
    out.number(outcome.samples.size());
    std::uint64_t time = 0;
    for (const replay::sample& point : outcome.samples) {
      out.difference(point.time, time).number(point.reserved);
      time = point.time;
    }
  }
}

void pack_suspensions(const analysis& data, packer& out) {
  const std::vector<trace_event>& events = data.source.recording.events;
  const std::vector<suspension>& all = data.history.suspensions;
  const std::size_t count = std::min(all.size(), most_suspensions);
  out.number(all.size()).number(count);
  for (std::size_t i = 0; i < count; ++i) {
    out.number(all[i].pool).number(all[i].start).number(all[i].end);
    out.number(events[all[i].start].time);
    out.number(all[i].end < events.size() ? events[all[i].end].time : events.back().time);
    out.number(all[i].size).number(all[i].kept);
  }
}

void pack_holders(const std::vector<holder>& holders, packer& out) {
  out.number(holders.size());
  for (const holder& each : holders) out.text(each.label).number(each.bytes).number(each.blocks);
}

void pack_card(const analysis& data, packer& out) {
  const std::vector<replay::card_trial>& trials = data.source.card;
  out.number(trials.empty() ? 0 : trials.front().card.count());
  out.number(trials.empty() ? 0 : trials.front().left.count());
  out.number(trials.size());
  for (const replay::card_trial& trial : trials) {
    out.text(replay::name(trial.policy)).flag(trial.fits());
    if (trial.fits()) continue;
    const replay::shortfall& first = *trial.first_oom;
    const card_shortage found = explain_shortage(data.source.recording, data.history, first);
    out.number(found.event).number(first.time).number(first.size);
    out.number(found.live).number(found.waiting);
    pack_holders(found.tags, out);
    pack_holders(found.sites, out);
    pack_holders(found.sizes, out);
  }
}

void pack_ooms(const analysis& data, packer& out) {
  const recording& recorded = data.source.recording;
  const auto count =
      std::count_if(recorded.events.begin(), recorded.events.end(),
                    [](const trace_event& e) { return e.kind == trace_kind::out_of_memory; });
  out.number(static_cast<std::uint64_t>(count)).number(data.ooms.size());
  for (const oom_report& each : data.ooms) {
    out.number(each.event).number(recorded.events[each.event].time).number(each.requested);
    out.number(each.stream).number(each.live).number(each.rounded).number(each.reserved);
    out.number(each.limit).number(each.free.bytes).number(each.free.pieces);
    out.number(each.free.longest).text(each.verdict);
    out.number(each.tags.size());
    for (const auto& [tag, size] : each.tags) out.text(tag_label(recorded, tag)).number(size);
  }
}

void pack_markers(const recording& recording, packer& out) {
  std::vector<std::uint32_t> markers;
  for (std::uint32_t i = 0; i < recording.events.size(); ++i) {
    const trace_event& event = recording.events[i];
    if (event.kind == trace_kind::marker && event.other < recording.texts.size())
      markers.push_back(i);
  }
  out.number(markers.size());
  markers.resize(std::min(markers.size(), most_markers));
  out.number(markers.size());
  for (const std::uint32_t i : markers) {
    out.number(i).number(recording.events[i].time).text(recording.texts[recording.events[i].other]);
  }
}

layout lay_out(const analysis& data, const page_limits& limits) {
  layout out;
  out.finest = make_series(data.source.recording, data.history, data.groupings, limits.bins);
  out.levels = store_series(out.finest, data.history, data.groupings, out.store);
  // A moment that must be exact has to be one that can be shown.
  std::vector<std::uint32_t> exact;
  const auto add_exact = [&](std::uint32_t event) {
    if (!data.history.live.empty()) exact.push_back(out.finest.moment[event >> out.finest.shift]);
  };
  add_exact(data.history.peak);
  for (const oom_report& each : data.ooms) exact.push_back(each.event);
  for (const replay::card_trial& each : data.source.card) {
    if (!each.fits() && each.first_oom->block < data.history.blocks.size())
      exact.push_back(data.history.blocks[each.first_oom->block].start);
  }
  out.blocks = select_blocks(data.history, out.finest, std::move(exact), limits.blocks);
  out.index_levels = store_block_index(data.history, data.groupings, out.blocks, out.store);
  return out;
}

std::string make_index(const analysis& data, const layout& packed) {
  packer out;
  pack_about(data, out);
  pack_groupings(data, out);
  pack_layout(data, packed, out);
  pack_names(data.source.recording, out);
  pack_sites(data, out);
  pack_leaks(data, out);
  pack_policies(data, out);
  pack_ooms(data, out);
  pack_markers(data.source.recording, out);
  pack_card(data, out);
  pack_suspensions(data, out);
  return base64(deflated(out.packed()));
}

/// The template with its places filled.
std::string fill(const std::vector<std::pair<std::string_view, std::string_view>>& places) {
  std::string out;
  std::string_view rest = page_template;
  for (const auto& [mark, text] : places) {  // in the order in which they stand in the template
    const std::size_t at = rest.find(mark);
    out += rest.substr(0, at);
    out += text;
    rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + mark.size());
  }
  out += rest;
  return out;
}

/// A run as its page carries it.
struct packed_run {
  std::string index;
  std::string early;
  std::string store;

  [[nodiscard]] std::size_t size() const noexcept {
    return index.size() + early.size() + store.size();
  }
};

std::size_t frame_size() { return page_template.size() + page_style.size() + page_script.size(); }

/// At most `limits.bytes`, the page around it not counted, if leaving out details can do that.
packed_run pack_run(const page_source& source, const page_limits& limits) {
  analysis data{source, make_history(source.recording, source.placement), {}, {}, {}};
  data.sites = tally_sites(source.recording, data.history);
  data.groupings = make_groupings(source.recording, data.history, data.sites);
  data.ooms = explain_ooms(source.recording, data.history, most_ooms);
  page_limits current = limits;
  for (int round = 0;; ++round) {
    const layout packed = lay_out(data, current);
    packed_run run{make_index(data, packed), packed.store.early_text(), packed.store.text()};
    const auto kept = static_cast<std::size_t>(
        std::count(packed.blocks.kept.begin(), packed.blocks.kept.end(), true));
    const bool can_shrink = kept > least_blocks || packed.finest.bins() > first_bins;
    if (run.size() <= current.bytes || !can_shrink) return run;
    current.blocks = std::max(least_blocks, kept / 2);
    if (round > 0) current.bins = std::max(first_bins, packed.finest.bins() / 2);
  }
}

page_limits share_of(const page_limits& limits, std::size_t runs) {
  page_limits share = limits;
  share.bytes = (limits.bytes - std::min(limits.bytes, frame_size())) / runs;
  return share;
}

std::string fill_page(const packed_run& run, const packed_run& other,
                      const std::string& differences) {
  return fill({{"@style@", page_style},
               {"@index@", run.index},
               {"@early@", run.early},
               {"@differences@", differences},
               {"@other_index@", other.index},
               {"@other_early@", other.early},
               {"@script@", page_script},
               {"@store@", run.store},
               {"@other_store@", other.store}});
}

}  // namespace

std::string make_page(const page_source& source, const page_limits& limits) {
  return fill_page(pack_run(source, share_of(limits, 1)), {}, {});
}

std::string make_page(const page_source& before, const page_source& after,
                      const page_limits& limits) {
  const page_limits share = share_of(limits, 2);
  return fill_page(pack_run(before, share), pack_run(after, share),
                   base64(deflated(pack_differences(before.recording, after.recording))));
}

}}}  // namespace weir::v0::report
