// SPDX-License-Identifier: Apache-2.0
// What differs between two runs.
#include "report/differences.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "replay/diff.hpp"
#include "report/pack.hpp"

namespace weir { inline namespace v0 { namespace report {

namespace {

constexpr std::size_t most_groups_shown = 100;

void pack_groups(std::string_view title, const std::map<std::string, replay::holding>& before,
                 const std::map<std::string, replay::holding>& after, packer& out) {
  std::vector<replay::changed_group> changed = replay::changes(before, after);
  out.text(title).number(changed.size());
  changed.resize(std::min(changed.size(), most_groups_shown));
  out.number(changed.size());
  for (const replay::changed_group& each : changed) {
    out.text(each.name).number(each.before.bytes).number(each.after.bytes);
    out.number(each.before.blocks).number(each.after.blocks);
  }
}

}  // namespace

std::string pack_differences(const recording& before, const recording& after) {
  const replay::peak_summary a = replay::summarize(before);
  const replay::peak_summary b = replay::summarize(after);
  packer out;
  const std::vector<replay::compared_figure> figures = replay::compare(a, b);
  out.number(figures.size());
  for (const replay::compared_figure& each : figures)
    out.text(each.title).flag(each.is_size).number(each.before).number(each.after);
  out.number(3);
  pack_groups("tag", a.by_tag, b.by_tag, out);
  pack_groups("size", a.by_size, b.by_size, out);
  pack_groups("site", a.by_site, b.by_site, out);
  return out.packed();
}

}}}  // namespace weir::v0::report
