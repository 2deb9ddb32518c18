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
    const bool after_write = !old.last_write.accessor || when.includes(old.last_write.at);
    if (!after_write) {
      report(classify(kind, old.freed, false), old.last_write, from, old.end);
    } else if (old.freed && kind != access_kind::allocate) {
      report(classify(kind, true, true), old.last_write, from, old.end);
    }
    if (kind == access_kind::read) return;
    for (const access_record& reader : old.readers) {
      if (!when.includes(reader.at)) report(classify(kind, false, false), reader, from, old.end);
    }
  };

  if (kind != access_kind::read) {
    // The common case of the same range written again needs no new cell.
    auto exact = cells_.find(offset);
    if (exact == cells_.end() || exact->second.end != end) {
      const auto first = cut(offset);
      const auto last = cut(end);
      for (auto it = first; it != last; ++it) check(it->first, it->second);
      exact = cells_.emplace_hint(cells_.erase(first, last), offset, cell{.end = end});
    } else {
      check(offset, exact->second);
      exact->second.readers.clear();
    }
    exact->second.last_write = {when.at, accessor};
    exact->second.freed = kind == access_kind::free;
    return;
  }

  auto it = cut(offset);
  cut(end);
  std::uint64_t reached = offset;
  const auto note_reader = [&](cell& read_cell) {
    // A later writer that comes after this read also comes after the reads this one knows of.
    std::erase_if(read_cell.readers, [&](const access_record& r) { return when.includes(r.at); });
    read_cell.readers.push_back({when.at, accessor});
  };
  while (reached < end) {
    if (it == cells_.end() || it->first > reached) {
      const std::uint64_t gap_end = it == cells_.end() ? end : std::min(end, it->first);
      it = cells_.emplace_hint(it, reached, cell{.end = gap_end});
    } else {
      check(it->first, it->second);
    }
    note_reader(it->second);
    reached = it->second.end;
    ++it;
  }
}

void use_log::add(const moment& when, const std::shared_ptr<const party>& accessor, int device) {
  for (use& each : uses_) {
    const bool same_kind =
        each.device == device && each.record.accessor->writes == accessor->writes;
    if (same_kind && when.includes(each.record.at)) {
      each.record = {when.at, accessor};
      return;
    }
  }
  uses_.push_back({{when.at, accessor}, device});
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
    if (!matches(each) || when.includes(each.record.at)) continue;
    if (found == nullptr || found->accessor->step < each.record.accessor->step) {
      found = &each.record;
    }
  }
  return found;
}

}}}  // namespace weir::v0::sim
