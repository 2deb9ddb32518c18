#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies the sources of stream order, placement and heap with deliberate mistakes in them.

    plant_mistakes.py SRC OUT

Each mistake replaces a text that occurs once in these components. In the copy BROKEN is true while the test has chosen
the mistake (mutation.hpp); the sources themselves know nothing of it. A text that is not found once, because the code has
changed, ends the script with its name: correct the entry.
"""

import sys
from pathlib import Path

COMPONENTS = ["order", "placement", "heap"]

# Mistake, text of the source, text of the copy.
MISTAKES = [
    ("epoch_not_marked", "stream.stamped = open_;\n    used_ = true;", "stream.stamped = open_;\n    if (!BROKEN) used_ = true;"),
    ("one_epoch_too_many",
     "if (!all_work()) return stream_completed(freed);\n    return !is_after(freed.epoch, entries_[freed.stream].quiescent);",
     "const epoch ahead = BROKEN ? 1 : 0;\n"
     "    if (!all_work()) return stream_completed({freed.stream, freed.epoch - ahead});\n"
     "    return !is_after(freed.epoch, entries_[freed.stream].quiescent + ahead);"),
    ("others_work_forgotten", "if (!all_work()) return stream_completed(", "if (!all_work() || BROKEN) return stream_completed("),
    ("recorded_stream_forgotten", "if (other != freed_on) block.others.push_back(", "if (other != freed_on && !BROKEN) block.others.push_back("),
    ("first_of_recorded_streams", "  return std::all_of(block.others.begin(), block.others.end(), is_completed);",
     "  if (BROKEN) return std::any_of(block.others.begin(), block.others.end(), is_completed);\n"
     "  return std::all_of(block.others.begin(), block.others.end(), is_completed);"),
    ("streams_known_by_handle", "  const stream_slot known_slot = known(id);\n",
     "  if (BROKEN && by_handle_.contains(stream.handle())) return by_handle_.at(stream.handle());\n"
     "  const stream_slot known_slot = known(id);\n"),
    ("new_stream_holds_up_nothing", "  met.marked = met.completed = completed_;", "  met.marked = met.completed = BROKEN ? open_ - 1 : completed_;"),
    ("watched_streams_forgotten", "void stream_order::meet_watched() {\n", "void stream_order::meet_watched() {\n  if (BROKEN) return;\n"),
    ("ended_stream_forgotten", "  if (!stream.ended) set_lost(stream);\n", "  if (!stream.ended) set_lost(stream);\n  if (stream.ended && BROKEN) stream.finished = true;\n"),
    ("lost_stream_forgotten", "    if (!stream.ended) marked_ = earlier(", "    if (stream.lost && BROKEN) continue;\n    if (!stream.ended) marked_ = earlier("),
    ("mark_counts_for_open_epoch", "  WEIR_TRY(record_mark(slot, open_ - 1, bound));\n  return {};",
     "  WEIR_TRY(record_mark(slot, BROKEN ? open_ : open_ - 1, bound));\n  return {};"),
    ("one_stream_not_marked", "    auto marked = mark_stream(slot, bound);\n",
     "    if (BROKEN && slot == 2) {\n      entries_[slot].completed = entries_[slot].marked = open_ - 1;\n      continue;\n    }\n"
     "    auto marked = mark_stream(slot, bound);\n"),
    ("unmarked_stream_counts_as_idle", "outcome = std::move(marked);  // the others are marked all the same\n",
     "outcome = std::move(marked);\n    if (BROKEN && owes_mark(entries_[slot])) entries_[slot].completed = entries_[slot].marked = open_ - 1;\n"),
    ("wait_for_owner_alone", "  if (!all_work()) return wait_for_stream(waiter, freed, bound);", "  if (!all_work() || BROKEN) return wait_for_stream(waiter, freed, bound);"),
    ("bystanders_wait_for_nothing", "  if (!able) return false;\n  for (stream_slot slot = 1; slot <= count(); ++slot) {\n    if (slot == waiter || gone(slot)) continue;",
     "  if (!able || BROKEN) return able;\n  for (stream_slot slot = 1; slot <= count(); ++slot) {\n    if (slot == waiter || gone(slot)) continue;"),
    ("bystanders_wait_for_nothing", "    WEIR_TRY_VALUE(waits, queue_wait(slot, used, bound));\n",
     "    if (slot != waiter && BROKEN) continue;\n    WEIR_TRY_VALUE(waits, queue_wait(slot, used, bound));\n"),
    ("wait_for_older_epoch", "if (is_after(used.epoch, candidate.epoch) && !last_of_all) continue;",
     "if (is_after(used.epoch, candidate.epoch) && !last_of_all && !BROKEN) continue;"),
    ("free_run_is_everybodys", "  if (order_.completed(freed)) freed.stream = no_stream;\n  block& run = blocks_[index];",
     "  if (order_.completed(freed) || BROKEN) freed.stream = no_stream;\n  block& run = blocks_[index];"),
    ("foreign_run_absorbed", "           (there.stream == freed.stream ||\n            (there.stream == no_stream && there.units <= absorb_up_to));",
     "           (there.stream == freed.stream || BROKEN ||\n            (there.stream == no_stream && there.units <= absorb_up_to));"),
    ("older_free_counts", "    if (there.stream == freed.stream && is_after(there.in.freed, freed.epoch))\n",
     "    if (there.stream == freed.stream && is_after(there.in.freed, freed.epoch) && !BROKEN)\n"),
    ("hole_filled_early", "  return hole.is() == block_kind::hole && order_.completed(stamp_of(hole));",
     "  return hole.is() == block_kind::hole && (order_.completed(stamp_of(hole)) || BROKEN);"),
    ("hole_forgets_others_work", "order_.completed(stamp_of(hole))",
     "order_.completed(stamp_of(hole)) || (BROKEN && order_.stream_completed(stamp_of(hole)))"),
    ("guest_goes_home_at_once", "  const bool at_home = done || freed.stream == home.stream;", "  const bool at_home = done || freed.stream == home.stream || BROKEN;"),
    ("no_wait_for_borrowed", "  WEIR_TRY_VALUE(waits, shared_.wait(wanted.stream, core_.runs.stamp_of(core_.runs[best]), bound));",
     "  if (BROKEN) return take({.first = best, .start = usual_.limits_in(best, wanted).start}, wanted);\n  WEIR_TRY_VALUE(waits, shared_.wait(wanted.stream, core_.runs.stamp_of(core_.runs[best]), bound));"),
    ("no_wait_for_window", "      WEIR_TRY_VALUE(waits, core_.shared.wait(wanted.stream, core_.runs.stamp_of(there), bound));",
     "      if (BROKEN) continue;\n      WEIR_TRY_VALUE(waits, core_.shared.wait(wanted.stream, core_.runs.stamp_of(there), bound));"),
    ("mapping_not_retained", "    auto done = vmm::map(bound, address, core_.slots.handle(each.from).memory);",
     "    if (BROKEN && !each.fresh)\n      WEIR_TRY(vmm::unmap(bound, core_.slots.address_of(core_.slots.handle(each.from).slot), size));\n"
     "    auto done = vmm::map(bound, address, core_.slots.handle(each.from).memory);"),
    ("bound_memory_released", "    if (run.is() == block_kind::run && run.stream == no_stream) {",
     "    if (run.is() == block_kind::run && (BROKEN || run.stream == no_stream)) {"),
    ("release_forgets_others_work", " || run.stream == no_stream)) {",
     " || (BROKEN && core_.shared.order.stream_completed(core_.runs.stamp_of(run))) || run.stream == no_stream)) {"),
    ("surplus_is_everybodys", "        entered.ready = now;", "        if (!BROKEN) entered.ready = now;"),
    ("hole_forgets_its_use", "    room.relocations.push_back(entered);", "    if (BROKEN) entered.used = {};\n    room.relocations.push_back(entered);"),
    ("pending_taken_without_waits",
     "  WEIR_TRY_VALUE(waits, core_.placement_.wait(wanted.stream, chosen.freed, driver.enter()));\n  if (!waits) return false;\n"
     "  for (const stamp& each : chosen.others) {\n",
     "  if (!BROKEN) {\n    WEIR_TRY_VALUE(waits, core_.placement_.wait(wanted.stream, chosen.freed, driver.enter()));\n    if (!waits) return false;\n  }\n"
     "  for (const stamp& each : chosen.others) {\n    if (BROKEN) break;\n"),
    ("cache_of_any_stream", "  stream_bins* const bins = cache.bins_of(stream);\n  if (bins == nullptr || !cache.counts(account)) return leave_with_nothing();",
     "  stream_bins* const bins = BROKEN ? cache.current : cache.bins_of(stream);\n  if (bins == nullptr || !cache.counts(account)) return leave_with_nothing();"),
    ("large_block_of_any_stream", "blocks_[index].stream == bins->slot;", "(blocks_[index].stream == bins->slot || BROKEN);"),
    ("capture_served_by_the_heap", "  WEIR_TRY_VALUE(pool, heap_.capture_pool(stream_, wanted_.stream, driver_));",
     "  if (BROKEN) return {};\n  WEIR_TRY_VALUE(pool, heap_.capture_pool(stream_, wanted_.stream, driver_));"),
    ("device_never_waited_for", "    waited = work.wait(driver.enter());\n  }\n  WEIR_TRY(host_.may_go_on());",
     "    if (!BROKEN) waited = work.wait(driver.enter());\n  }\n  WEIR_TRY(host_.may_go_on());"),
    ("graph_memory_without_guards", "  return holders == 0 && !guards_due &&", "  if (BROKEN) return holders == 0;\n  return holders == 0 && !guards_due &&"),
    ("stream_of_free_forgotten", "    slot = named_slot;\n", "    if (!BROKEN) slot = named_slot;\n"),
    ("graph_memory_let_go_at_end", "    served->takes_requests = false;\n", "    served->takes_requests = false;\n    if (BROKEN) served->of_capture = false;\n"),
]


def main(source, out):
    files = {path.relative_to(source): path.read_text()
             for component in COMPONENTS for path in sorted((source / component).glob("*.[ch]pp"))}
    planted = set()
    for name, text, copy in MISTAKES:
        places = [path for path, content in files.items() for _ in range(content.count(text))]
        if len(places) != 1:
            sys.exit(f"plant_mistakes.py: {name}: its text occurs {len(places)} times, not once; correct the entry:\n{text}")
        broken = f"::weir::order::mutated(::weir::order::mutation::{name})"
        files[places[0]] = files[places[0]].replace(text, copy.replace("BROKEN", broken))
        planted.add(places[0])
    for path, content in files.items():
        if path in planted:
            content = '#include "order/mutation.hpp"\n' + content
        target = out / path
        if not target.exists() or target.read_text() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
