// SPDX-License-Identifier: Apache-2.0
// Shadow memory: the checks themselves.
#include "sim/shadow.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/block_book.hpp"

namespace weir { inline namespace v0 { namespace sim {

void hazard_log::report(hazard entry) {
  entry.blocks = blocks_.lives(entry.shared);
  if (entry.blocks.empty()) entry.nearest = blocks_.nearest(entry.shared);
  if (listener_) listener_(entry);
  if (all_.size() < most) all_.push_back(std::move(entry));
}

shadow::cell_map::iterator shadow::cut(std::uint64_t offset) {
  auto next = cells_.lower_bound(offset);
  if (next != cells_.begin()) {
    auto before = std::prev(next);
    if (before->second.end > offset) {
      cell right = before->second;
      before->second.end = offset;
      next = cells_.emplace_hint(next, offset, std::move(right));
    }
  }
  return next;
}

void shadow::forget(std::uint64_t offset, std::uint64_t size) {
  const auto first = cut(offset);
  const auto last = cut(offset + size);
  cells_.erase(first, last);
}

namespace {

hazard_kind classify(access_kind kind, bool freed, bool ordered) {
  if (ordered) return hazard_kind::use_after_free;
  if (kind == access_kind::free) return hazard_kind::freed_in_use;
  return freed ? hazard_kind::freed_in_use : hazard_kind::race;
}

}  // namespace

void shadow::touch(std::uint64_t offset, std::uint64_t size, access_kind kind, const moment& when,
                   const std::shared_ptr<const party>& accessor, std::uint64_t address,
                   hazard_log& log) {
  if (size == 0) return;
  const std::uint64_t end = offset + size;
  bool reported = false;  // one report an access: its other bytes add nothing
  const auto report = [&](hazard_kind verdict, const access_record& other, std::uint64_t from,
                          std::uint64_t to) {
    if (std::exchange(reported, true)) return;
    log.report({verdict,
                other.accessor ? *other.accessor : party{},
                *accessor,
                {static_cast<driver::CUdeviceptr>(address + (std::max(from, offset) - offset)),
                 static_cast<std::size_t>(std::min(to, end) - std::max(from, offset))}});
  };

  const auto check = [&](std::uint64_t from, const cell& old) {
    const bool before_write = old.last_write.comes_after(when);
    const bool after_write =
        !old.last_write.accessor || before_write || when.includes(old.last_write.when.at);
    if (!after_write) {
      report(classify(kind, old.freed, false), old.last_write, from, old.end);
    } else if (old.freed && !before_write && kind != access_kind::allocate) {
      report(classify(kind, true, true), old.last_write, from, old.end);
    }
    if (kind == access_kind::read) return;
    for (const access_record& reader : old.readers) {
      if (!when.includes(reader.when.at) && !reader.comes_after(when))
        report(classify(kind, false, false), reader, from, old.end);
    }
  };

  const auto has_later_access = [&](const cell& old) {
    const auto is_later = [&](const access_record& each) { return each.comes_after(when); };
    return is_later(old.last_write) ||
           std::any_of(old.readers.begin(), old.readers.end(), is_later);
  };
  if (kind != access_kind::read) {
    // The common case of the same range written again needs no new cell.
    auto exact = cells_.find(offset);
    if (exact == cells_.end() || exact->second.end != end) {
      const auto first = cut(offset);
      const auto last = cut(end);
      bool any_later = false;
      for (auto it = first; it != last; ++it) {
        check(it->first, it->second);
        any_later |= has_later_access(it->second);
      }
      if (any_later)  // the cells stay apart
        return each_cell(offset, end, [&](std::uint64_t, cell& each) {
          note_write(each, kind, when, accessor);
        });
      exact = cells_.emplace_hint(cells_.erase(first, last), offset, cell{.end = end});
    } else {
      check(offset, exact->second);
    }
    note_write(exact->second, kind, when, accessor);
    return;
  }

  each_cell(offset, end, [&](std::uint64_t from, cell& each) {
    check(from, each);
    // A later writer that comes after this read also comes after the reads this one knows of.
    std::erase_if(each.readers, [&](const access_record& r) { return when.includes(r.when.at); });
    each.readers.push_back({when, accessor});
  });
}

template <class Visitor>
void shadow::each_cell(std::uint64_t offset, std::uint64_t end, Visitor&& visit) {
  auto it = cut(offset);
  cut(end);
  for (std::uint64_t reached = offset; reached < end; ++it) {
    if (it == cells_.end() || it->first > reached) {
      const std::uint64_t gap_end = it == cells_.end() ? end : std::min(end, it->first);
      it = cells_.emplace_hint(it, reached, cell{.end = gap_end});
    }
    visit(it->first, it->second);
    reached = it->second.end;
  }
}

void shadow::note_write(cell& written, access_kind kind, const moment& when,
                        const std::shared_ptr<const party>& accessor) {
  if (written.last_write.comes_after(when)) return;
  std::erase_if(written.readers, [&](const access_record& r) { return !r.comes_after(when); });
  written.last_write = {when, accessor};
  written.freed = kind == access_kind::free;
}

void use_log::add(const moment& when, const std::shared_ptr<const party>& accessor, int device) {
  for (use& each : uses_) {
    const bool same_kind =
        each.device == device && each.record.accessor->writes == accessor->writes;
    if (same_kind && when.includes(each.record.when.at)) {
      each.record = {when, accessor};
      return;
    }
  }
  uses_.push_back({{when, accessor}, device});
}

const access_record* use_log::not_before(const moment& when) const noexcept {
  return latest(when, [](const use&) { return true; });
}

const access_record* use_log::not_before(const moment& when, int device,
                                         bool only_writes) const noexcept {
  return latest(when, [&](const use& each) {
    return each.device == device && (each.record.accessor->writes || !only_writes);
  });
}

template <class Matches>
const access_record* use_log::latest(const moment& when, Matches&& matches) const noexcept {
  const access_record* found = nullptr;
  for (const use& each : uses_) {
    if (!matches(each) || when.includes(each.record.when.at)) continue;
    if (found == nullptr || found->accessor->step < each.record.accessor->step) {
      found = &each.record;
    }
  }
  return found;
}

}}}  // namespace weir::v0::sim
