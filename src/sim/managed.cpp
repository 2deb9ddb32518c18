// SPDX-License-Identifier: Apache-2.0
// Managed memory: where its pages are and how they move.
#include "sim/managed.hpp"

#include <algorithm>
#include <utility>

#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

// --- Runs ----------------------------------------------------------------------------------------

managed_pages::managed_pages(std::uint64_t size, unsigned attach_flags)
    : attached{attach_flags},
      queued_attachment{attach_flags},
      initial_flags_{attach_flags},
      size_{(size + page - 1) / page * page} {
  runs_.emplace(0, page_run{});
}

// "If hStream is destroyed while data is associated with it, the association is removed and the
// association reverts to the default visibility of the allocation as specified at
// cuMemAllocManaged. [...] the change to default association won't happen until all work in the
// stream has completed" (cuStreamAttachMemAsync).
void managed_pages::stream_ended(const stream_state& stream) noexcept {
  for (attachment* const each : {&attached, &queued_attachment}) {
    if (each->is_to(stream)) *each = {initial_flags_, {}};
  }
}

void managed_pages::cut(std::uint64_t offset) {
  if (offset >= size_) return;
  const auto next = runs_.upper_bound(offset);
  const auto containing = std::prev(next);
  if (containing->first != offset) runs_.emplace_hint(next, offset, containing->second);
}

void managed_pages::join(std::uint64_t from, std::uint64_t end) {
  auto it = runs_.find(from);
  if (it != runs_.begin()) --it;
  while (it != runs_.end() && it->first <= end) {
    const auto next = std::next(it);
    if (next != runs_.end() && next->first <= end && next->second == it->second) {
      runs_.erase(next);
    } else {
      it = next;
    }
  }
}

// --- Moving --------------------------------------------------------------------------------------

namespace {

std::uint64_t pages_in(std::uint64_t size) { return size / managed_pages::page; }

class mover {
 public:
  explicit mover(state& machine) : machine_{machine} {}

  /// Whether `accessor` can reach pages that are at `residents` without moving them.
  [[nodiscard]] bool reaches(processor accessor, const processor_set& residents) const {
    if (!accessor.is_device()) return false;  // the host cannot map device memory
    if (residents.has(processor::host())) return true;
    bool reachable = false;
    residents.each_device([&](int device) {
      reachable |= device == accessor.number() ||
                   machine_.devices[static_cast<std::size_t>(accessor.number())]
                       .peer_enabled[static_cast<std::size_t>(device)];
    });
    return reachable;
  }

  /// Takes capacity for a copy at `target`; false where a device has none left.
  bool admit(processor target, std::uint64_t size) {
    return target.is_host() || machine_.space.reserve_free_capacity(target.number(), size);
  }

  /// Makes `owner` the only one that has the pages. Room was made.
  void settle(page_run& run, std::uint64_t size, processor owner) {
    run.residents.each_device([&](int device) {
      if (device != owner.number()) machine_.space.release_capacity(device, size);
    });
    run.residents = {};
    run.residents.add(owner);
  }

  /// Counts a copy of `size` bytes going to `to`.
  void count(const processor_set& from, processor to, std::uint64_t size) {
    if (to.is_device()) {
      counts(to.number()).to_device += pages_in(size);
      return;
    }
    bool counted = false;
    from.each_device([&](int device) {
      if (!std::exchange(counted, true)) counts(device).to_host += pages_in(size);
    });
  }

  migration_counts& counts(int device) {
    return machine_.devices[static_cast<std::size_t>(device)].migrations;
  }

 private:
  state& machine_;
};

/// Puts pages that nobody has yet where they belong.
void populate(mover& moves, page_run& run, std::uint64_t size, processor accessor) {
  processor home = accessor;
  if (run.preferred != processor{}) {
    processor_set preferred_home;
    preferred_home.add(run.preferred);
    if (moves.reaches(accessor, preferred_home)) home = run.preferred;
  }
  if (!moves.admit(home, size)) home = processor::host();
  run.residents.add(home);
}

void touch_run(mover& moves, page_run& run, std::uint64_t size, processor accessor, bool write) {
  if (run.residents.empty()) {
    populate(moves, run, size, accessor);
    return;
  }
  if (run.residents.has(accessor)) {
    if (write) moves.settle(run, size, accessor);  // other copies are out of date now
    return;
  }
  if (run.read_mostly && !write) {
    if (!moves.admit(accessor, size)) return;
    moves.count(run.residents, accessor, size);
    run.residents.add(accessor);
    return;
  }
  const bool at_home = run.preferred != processor{} && run.residents.has(run.preferred);
  if ((at_home || run.accessed_by.has(accessor)) && moves.reaches(accessor, run.residents)) return;
  if (!moves.admit(accessor, size)) return;  // accessed from afar, for want of room
  moves.count(run.residents, accessor, size);
  moves.settle(run, size, accessor);
}

/// Devices on which the host must leave memory alone while they work: reports if it does not.
void check_exclusive(state& machine, const region& area, std::uint64_t address, std::uint64_t size,
                     bool write) {
  const attachment& attached = area.managed->attached;
  if (attached.flags == CU_MEM_ATTACH_HOST) return;
  for (int device = 0; machine.valid_device(device); ++device) {
    if (machine.devices[static_cast<std::size_t>(device)].spec.concurrent_managed_access) continue;
    bool busy = !machine.flow.idle(device);
    if (attached.flags == CU_MEM_ATTACH_SINGLE) {
      const auto stream = attached.stream.lock();
      busy = stream && stream->device == device && !stream->queue.empty();
    }
    if (!busy) continue;
    const range extent{address, size};
    const party device_side{"work of a device without concurrent managed access",
                            stream_id{0},
                            0,
                            extent,
                            true,
                            machine.clock};
    const party host_side{write ? "host write" : "host read",
                          stream_id{0},
                          machine.flow.host.now().at.tick,
                          extent,
                          write,
                          machine.clock};
    machine.hazards.report({hazard_kind::bad_access, device_side, host_side, extent});
    return;
  }
}

/// Lets `move` have [from, end) in pieces of one device page, each after room for it was made at
/// `target`. Piece by piece, so that more than a device holds pushes out its own beginning; room
/// first, because making room changes runs.
template <class Move>
void in_pieces(state& machine, managed_pages& pages, std::uint64_t from, std::uint64_t end,
               processor target, Move&& move) {
  const std::uint64_t now = ++machine.space.touches;
  for (std::uint64_t at = from; at < end; at += device_page) {
    const std::uint64_t piece = std::min(device_page, end - at);
    pages.change(at, piece, [&](page_run& run, std::uint64_t) { run.touched = now; });
    if (target.is_device()) {
      const std::uint64_t free = machine.space.free(target.number());
      if (free < piece) evict_managed(machine, target.number(), piece - free);
    }
    pages.change(at, piece, move);
  }
}

}  // namespace

void managed_touch(state& machine, region& area, std::uint64_t address, std::uint64_t size,
                   int device_or_host, bool write) {
  const processor accessor =
      device_or_host < 0 ? processor::host() : processor::device(device_or_host);
  if (accessor.is_host() && machine.options.check_hazards) {
    check_exclusive(machine, area, address, size, write);
  }
  constexpr std::uint64_t unit = managed_pages::fault_size;
  const std::uint64_t offset = address - area.base;
  const std::uint64_t from = offset / unit * unit;
  const std::uint64_t end =
      std::min(area.managed->size(), (offset + size + unit - 1) / unit * unit);
  mover moves{machine};
  in_pieces(machine, *area.managed, from, end, accessor, [&](page_run& run, std::uint64_t length) {
    touch_run(moves, run, length, accessor, write);
  });
}

void managed_prefetch(state& machine, region& area, std::uint64_t offset, std::uint64_t size,
                      processor target) {
  mover moves{machine};
  const std::uint64_t from = offset / managed_pages::page * managed_pages::page;
  in_pieces(machine, *area.managed, from, offset + size, target,
            [&](page_run& run, std::uint64_t length) {
              if (run.residents.has(target) || !moves.admit(target, length)) return;
              if (run.residents.empty()) {
                run.residents.add(target);
                return;
              }
              moves.count(run.residents, target, length);
              if (run.read_mostly) {
                run.residents.add(target);
              } else {
                moves.settle(run, length, target);
              }
            });
}

// --- Attachments ---------------------------------------------------------------------------------

void managed_detach(state& machine, const stream_state& ended) {
  if (machine.space.managed_regions == 0) return;
  machine.space.for_each([&](region& area) {
    if (area.managed) area.managed->stream_ended(ended);
  });
}

bool attached_elsewhere(const state& machine, const region& area, const stream_state& stream) {
  const attachment& queued = area.managed->queued_attachment;
  if (queued.flags != CU_MEM_ATTACH_SINGLE) return false;
  const auto owner = queued.stream.lock();
  if (!owner || owner->device != stream.device) return false;
  if (machine.devices[static_cast<std::size_t>(stream.device)].spec.concurrent_managed_access) {
    return false;
  }
  return owner->id != (stream.lane ? stream.launched_on : stream.id);
}

void check_attach_to_host(state& machine, const region& area, const stream_state& stream,
                          const moment& when) {
  if (!machine.options.check_hazards) return;
  for (int device = 0; machine.valid_device(device); ++device) {
    if (machine.devices[static_cast<std::size_t>(device)].spec.concurrent_managed_access) continue;
    const access_record* const use = area.uses.not_before(when, device);
    if (use == nullptr) continue;
    const range extent{area.base, area.size};
    machine.hazards.report({hazard_kind::freed_in_use,
                            *use->accessor,
                            {.label = "attach memory",
                             .stream = stream_id{stream.id},
                             .order = stream.tail(),
                             .extent = extent,
                             .writes = true,
                             .queued = machine.clock,
                             .action = party_action::lifetime,
                             .step = ++machine.steps,
                             .stream_name = stream.name},
                            extent});
    return;
  }
}

// --- Residency -----------------------------------------------------------------------------------

void unset_read_mostly(state& machine, page_run& run, std::uint64_t size) {
  run.read_mostly = false;
  if (run.residents.empty()) return;
  // Pages go where they would rather be if they are there, else to the host, else to any device.
  processor keeper = run.residents.has(processor::host()) ? processor::host() : processor{};
  if (keeper == processor{}) {
    run.residents.each_device([&](int device) { keeper = processor::device(device); });
  }
  if (run.residents.has(run.preferred)) keeper = run.preferred;
  mover{machine}.settle(run, size, keeper);
}

void managed_forget(state& machine, region& area) {
  area.managed->change(0, area.managed->size(), [&](page_run& run, std::uint64_t length) {
    run.residents.each_device([&](int device) { machine.space.release_capacity(device, length); });
    run.residents = {};
  });
}

void evict_managed(state& machine, int device, std::uint64_t needed) {
  if (machine.space.managed_regions == 0) return;
  struct resident {
    std::uint64_t touched;
    region* area;
    std::uint64_t from;
    std::uint64_t end;
  };
  std::vector<resident> oldest_first;
  const processor evicting = processor::device(device);
  machine.space.for_each([&](region& area) {
    if (!area.managed) return;
    area.managed->inspect(0, area.managed->size(),
                          [&](const page_run& run, std::uint64_t from, std::uint64_t end) {
                            if (run.residents.has(evicting))
                              oldest_first.push_back({run.touched, &area, from, end});
                          });
  });
  std::stable_sort(oldest_first.begin(), oldest_first.end(),
                   [](const resident& a, const resident& b) { return a.touched < b.touched; });
  migration_counts& counts = machine.devices[static_cast<std::size_t>(device)].migrations;
  for (const resident& each : oldest_first) {
    if (needed == 0) return;
    // Whole device pages leave, as far as the run goes.
    const std::uint64_t rounded = (needed + device_page - 1) / device_page * device_page;
    const std::uint64_t leaving = std::min(each.end - each.from, rounded);
    each.area->managed->change(each.from, leaving, [&](page_run& run, std::uint64_t length) {
      run.residents.remove(evicting);
      machine.space.release_capacity(device, length);
      if (!run.residents.empty()) return;  // another copy is left
      run.residents.add(processor::host());
      counts.to_host += pages_in(length);
      counts.evicted += pages_in(length);
    });
    needed -= std::min(needed, leaving);
  }
}

}}}  // namespace weir::v0::sim
