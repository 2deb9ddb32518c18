// SPDX-License-Identifier: Apache-2.0
// What is in the way on a card.
#include "report/card_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "report/groups.hpp"
#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace report {

namespace {

/// Adds up by label; equal ones keep the order in which they came.
class holder_tally {
 public:
  void add(std::string label, std::uint64_t bytes) {
    const auto [entry, is_new] = places_.try_emplace(label, holders_.size());
    if (is_new) holders_.push_back({std::move(label)});
    holders_[entry->second].bytes += bytes;
    ++holders_[entry->second].blocks;
  }

  [[nodiscard]] std::vector<holder> most() && {
    std::stable_sort(holders_.begin(), holders_.end(),
                     [](const holder& a, const holder& b) { return a.bytes > b.bytes; });
    if (holders_.size() > most_holders) holders_.resize(most_holders);
    return std::move(holders_);
  }

 private:
  std::vector<holder> holders_;
  std::unordered_map<std::string, std::size_t> places_;
};

void append_holders(std::string& text, std::string_view title, const std::vector<holder>& holders) {
  if (holders.empty()) return;
  fmt::format_to(std::back_inserter(text), "  by {}: ", title);
  for (std::size_t i = 0; i < holders.size(); ++i) {
    const holder& each = holders[i];
    fmt::format_to(std::back_inserter(text), "{}{}: {} in {} {}", i == 0 ? "" : "; ", each.label,
                   to_string(bytes{each.bytes}), each.blocks,
                   each.blocks == 1 ? "block" : "blocks");
  }
  text += '\n';
}

}  // namespace

card_shortage explain_shortage(const recording& recording, const history& history,
                               const replay::shortfall& found) {
  card_shortage out;
  if (found.block >= history.blocks.size()) return out;
  out.event = history.blocks[found.block].start;
  holder_tally tags;
  holder_tally sites;
  holder_tally sizes;
  for (std::size_t i = 0; i < found.block; ++i) {  // blocks are numbered by their requests
    const block_lifetime& block = history.blocks[i];
    if (!block.at(out.event)) continue;
    out.live += block.size;
    tags.add(tag_label(recording, block.tag), block.size);
    sites.add(site_label(recording, history.sites[block.site]), block.size);
    sizes.add(to_string(bytes{block.size}), block.size);
  }
  out.waiting = found.in_use - std::min(found.in_use, out.live);
  out.tags = std::move(tags).most();
  out.sites = std::move(sites).most();
  out.sizes = std::move(sizes).most();
  return out;
}

std::string card_text(const recording& recording, const history& history,
                      const replay::card_trial& trial) {
  const std::string_view policy = replay::name(trial.policy);
  const std::string card = to_string(trial.card);
  if (trial.fits()) return fmt::format("{} fits on a card of {}\n", policy, card);
  const replay::shortfall& first = *trial.first_oom;
  const card_shortage found = explain_shortage(recording, history, first);
  std::string text = fmt::format(
      "{} does not fit on a card of {}, of which {} are left after the context: at {}.{:09} s, "
      "event "
      "{}, {} could not be allocated with {} in use\n",
      policy, card, to_string(trial.left), first.time / 1'000'000'000, first.time % 1'000'000'000,
      found.event, to_string(bytes{first.size}), to_string(bytes{first.in_use}));
  if (found.live != 0)
    fmt::format_to(std::back_inserter(text), "  in the way: {} live\n",
                   to_string(bytes{found.live}));
  append_holders(text, "tag", found.tags);
  // Without stacks a site is a size.
  if (!recording.stacks.empty()) append_holders(text, "site", found.sites);
  append_holders(text, "size", found.sizes);
  if (found.waiting != 0)
    fmt::format_to(std::back_inserter(text), "  and {} that was freed but is not reusable yet\n",
                   to_string(bytes{found.waiting}));
  return text;
}

}}}  // namespace weir::v0::report
