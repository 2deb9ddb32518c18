// SPDX-License-Identifier: Apache-2.0
// Streams, events and waits, with a vector clock for every stream.
#include "lanes.hpp"

#include <algorithm>

#include "weir/device/stream_watch.hpp"

namespace weir::programs_test {

const char* name(lane_kind kind) {
  switch (kind) {
    case lane_kind::weir_stream:
      return "weir";
    case lane_kind::weir_blocking:
      return "weir-blocking";
    case lane_kind::driver_non_blocking:
      return "driver";
    case lane_kind::driver_blocking:
      return "driver-blocking";
    case lane_kind::secret:
      return "secret";
    case lane_kind::legacy:
      return "legacy";
    case lane_kind::per_thread:
      return "per-thread";
  }
  return "";
}

void access_history::add(lane_index lane, std::uint64_t operation, bool writes) {
  auto found = std::find_if(entries_.begin(), entries_.end(),
                            [&](const entry& each) { return each.lane == lane; });
  if (found == entries_.end()) found = entries_.insert(found, {.lane = lane});
  std::uint64_t& last = writes ? found->write : found->read;
  last = std::max(last, operation);
}

void access_history::merge(const access_history& other) {
  for (const entry& each : other.entries_) {
    if (each.read != 0) add(each.lane, each.read, false);
    if (each.write != 0) add(each.lane, each.write, true);
  }
}

// --- Streams -------------------------------------------------------------------------------------

lane_index lanes::add(lane_kind kind, std::size_t device) {
  const weir::device gpu = world_.gpu(device);
  const context_scope bound{gpu};
  entry made{.kind = kind, .device = device, .owner = {}, .ref = stream_ref::legacy(gpu)};
  if (kind == lane_kind::weir_stream || kind == lane_kind::weir_blocking) {
    auto created = stream::create(gpu, {.non_blocking = kind == lane_kind::weir_stream});
    if (!world_.expect_ok(created, "stream::create")) return no_lane;
    made.ref = created->ref();
    made.owner = *std::move(created);
  } else if (kind == lane_kind::per_thread) {
    made.ref = stream_ref::per_thread(gpu);
    made.thread = thread_;
  } else if (kind != lane_kind::legacy) {
    driver::CUstream handle = nullptr;
    const unsigned flags = kind == lane_kind::driver_blocking ? driver::CU_STREAM_DEFAULT
                                                              : driver::CU_STREAM_NON_BLOCKING;
    if (!world_.expect_ok(world_.cuda().stream_create(&handle, flags), "cuStreamCreate"))
      return no_lane;
    const auto identified = stream_ref{gpu, handle}.identified();
    if (!world_.expect_ok(identified, "identified")) return no_lane;
    made.ref = *identified;
  }
  entries_.push_back(std::move(made));
  return entries_.size() - 1;
}

bool lanes::destroy(lane_index lane) {
  entry& gone = entries_[lane];
  const bool of_weir = gone.owner.has_value();
  if (!is_usable(lane) || gone.kind == lane_kind::legacy || gone.kind == lane_kind::per_thread)
    return false;
  record_last(lane);
  gone.alive = false;
  if (of_weir) return world_.expect_ok(gone.owner->close(), "stream::close");
  if (gone.kind != lane_kind::secret &&
      !world_.expect_ok(unwatch_stream(gone.ref), "unwatch_stream"))
    return false;
  return world_.expect_ok(world_.cuda().stream_destroy(gone.ref.handle()), "cuStreamDestroy");
}

void lanes::enter_thread(std::size_t thread) {
  thread_ = thread;
  const bool known = std::any_of(entries_.begin(), entries_.end(),
                                 [&](const entry& each) { return each.thread == thread; });
  if (known) return;
  for (std::size_t i = 0; i < device_count; ++i) static_cast<void>(add(lane_kind::per_thread, i));
}

void lanes::leave_thread() {
  for (lane_index i = 0; i < entries_.size(); ++i)
    if (entries_[i].thread == thread_ && !entries_[i].captured) record_last(i);
}

std::string lanes::text(lane_index lane) const {
  if (lane == no_lane) return "no lane";
  return std::string{name(entries_[lane].kind)} + "#" + std::to_string(lane) + "@" +
         std::to_string(entries_[lane].device);
}

bool lanes::is_blocking(lane_index lane) const {
  const lane_kind kind = entries_[lane].kind;
  return kind == lane_kind::weir_blocking || kind == lane_kind::driver_blocking ||
         kind == lane_kind::per_thread;
}

bool lanes::blocks_legacy(std::size_t device) const {
  for (lane_index i = 0; i < entries_.size(); ++i)
    if (entries_[i].captured && entries_[i].device == device && is_blocking(i)) return true;
  return false;
}

bool lanes::is_nameable(lane_index lane) const {
  const entry& named = entries_[lane];
  return named.alive && named.kind != lane_kind::secret &&
         (!named.thread || *named.thread == thread_);
}

bool lanes::is_usable(lane_index lane) const {
  const entry& used = entries_[lane];
  if (!used.alive || used.captured || (used.thread && *used.thread != thread_)) return false;
  return used.kind != lane_kind::legacy || !blocks_legacy(used.device);
}

lane_index lanes::any(std::size_t device, bool nameable) {
  for (int attempts = 0; attempts < 64; ++attempts) {
    const lane_index lane = world_.random().below(entries_.size());
    if (entries_[lane].device == device && is_usable(lane) && (!nameable || is_nameable(lane)))
      return lane;
  }
  return no_lane;
}

lane_index lanes::any_for_capture() {
  for (int attempts = 0; attempts < 32; ++attempts) {
    const lane_index lane = world_.random().below(entries_.size());
    if (is_usable(lane) && entries_[lane].kind != lane_kind::legacy) return lane;
  }
  return no_lane;
}

void lanes::begin_capture(lane_index lane) {
  record_last(lane);
  for (lane_index i = 0; i < entries_.size(); ++i) {
    const bool legacy =
        entries_[i].kind == lane_kind::legacy && entries_[i].device == entries_[lane].device;
    if (legacy && is_blocking(lane) && is_usable(i)) record_last(i);
  }
  entries_[lane].captured = true;
}

// --- Order ---------------------------------------------------------------------------------------

void lanes::merge(clock& into, const clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void lanes::record_last(lane_index lane) {
  entry& ended = entries_[lane];
  auto created = event::create(ended.ref.device());
  if (!world_.expect_ok(created, "event::create")) return;
  ended.last = *std::move(created);
  world_.expect_ok(ended.last->record(ended.ref), "event::record");
}

std::uint64_t lanes::queue(lane_index lane) {
  clock& seen = entries_[lane].seen;
  if (seen.size() <= lane) seen.resize(lane + 1);
  return ++seen[lane];
}

bool lanes::put_after(lane_index next, lane_index other, std::uint64_t operation) {
  if (next == other || comes_after(next, other, operation)) return true;
  if (!is_usable(next)) return false;
  if (is_usable(other)) record_last(other);
  if (!entries_[other].last || world_.failed()) return false;
  if (!world_.expect_ok(entries_[next].ref.wait(*entries_[other].last), "stream wait"))
    return false;
  merge(entries_[next].seen, entries_[other].seen);
  return true;
}

bool lanes::put_after(lane_index next, const access_history& accesses, bool writes) {
  for (const access_history::entry& each : accesses.entries()) {
    const std::uint64_t last = writes ? std::max(each.read, each.write) : each.write;
    if (last != 0 && !put_after(next, each.lane, last)) return false;
  }
  return true;
}

bool lanes::cover_unknown(std::size_t device) {
  lane_index known = no_lane;
  for (lane_index i = 0; i < entries_.size() && known == no_lane; ++i) {
    const bool counts = entries_[i].kind == lane_kind::weir_stream && entries_[i].device == device;
    if (counts && is_usable(i)) known = i;
  }
  if (known == no_lane) return false;
  for (lane_index i = 0; i < entries_.size(); ++i) {
    const bool unknown =
        entries_[i].kind == lane_kind::secret || entries_[i].kind == lane_kind::driver_non_blocking;
    if (!unknown || entries_[i].device != device) continue;
    const clock& seen = entries_[i].seen;
    if (seen.size() > i && !put_after(known, i, seen[i])) return false;
  }
  return true;
}

void lanes::synchronize(lane_index lane) {
  const thread_capture_mode_guard relaxed{entries_[lane].ref.device()};
  if (!world_.expect_ok(entries_[lane].ref.synchronize(), "synchronize")) return;
  const clock done = entries_[lane].seen;
  for (entry& each : entries_) merge(each.seen, done);
}

void lanes::synchronize_all() {
  clock done;
  for (std::size_t i = 0; i < device_count; ++i) {
    const context_scope bound{world_.gpu(i)};
    if (!world_.expect_ok(world_.cuda().ctx_synchronize(), "cuCtxSynchronize")) return;
  }
  for (const entry& each : entries_) merge(done, each.seen);
  for (entry& each : entries_) each.seen = done;
}

}  // namespace weir::programs_test
