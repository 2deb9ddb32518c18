// SPDX-License-Identifier: Apache-2.0
// Which memory is suspended or resumed, and in which way.
#include "suspension.hpp"

namespace weir::programs_test {

suspend_options suspension::choose() {
  rng& random = world_.random();
  suspend_options chosen;
  if (random.one_in(3)) chosen.contents = suspended_contents::discard;
  if (random.one_in(3)) chosen.to = host_memory_kind::pageable;
  // Requests that wait for resume() would wait for this very thread.
  if (random.one_in(2)) chosen.requests = suspended_requests::resume;
  chosen.chunk = bytes{random.any_of({1, 8, 32}) * std::uint64_t{1} << 20};
  return chosen;
}

void suspension::change(heap_supplier& heap, bool captures_run) {
  if (heap.away || heap.groups().empty() || world_.random().one_in(4))
    return change_all(heap, captures_run);
  change_group(heap, world_.random().below(heap.groups().size()), captures_run);
}

void suspension::change_group(heap_supplier& heap, std::size_t index, bool captures_run) {
  rng& random = world_.random();
  heap_supplier::group& chosen = heap.groups()[index];
  const std::string what = "group " + std::to_string(index) + " of " + heap.name();
  caching_allocator& memory = heap.memory();
  if (chosen.away) {
    const lane_index on = random.one_in(2) ? lanes_.any(heap.device()) : no_lane;
    if (on == no_lane) return static_cast<void>(heap.make_resident(index));
    world_.log("resume_async " + what + " on " + lanes_.text(on));
    const stream_ref stream = lanes_.ref(on);
    const auto resumed = faults_.call("resume_async", [&] {
      return chosen.pool ? chosen.pool.resume_async(stream)
                         : memory.resume_async(chosen.tag, stream);
    });
    if (!faults_.accept(resumed, "resume_async", {errc::out_of_memory})) return;
    chosen.away = false;
    heap.settle(index);
    return blocks_.add_access(heap, index, on, lanes_.queue(on));
  }
  suspend_options options = choose();
  chosen.away = true;  // also after an error: resuming what is not suspended does nothing
  if (options.contents == suspended_contents::discard) blocks_.forget_contents(heap, index);
  if (random.one_in(2)) {
    if (random.one_in(2) && lanes_.cover_unknown(heap.device()))
      options.streams = awaited_streams::known;
    chosen.async = true;
    world_.log("suspend_async " + what);
    const auto begun = faults_.call("suspend_async", [&] {
      return chosen.pool ? chosen.pool.suspend_async(options)
                         : memory.suspend_async(chosen.tag, options);
    });
    if (!begun && begun.code() == errc::capture_forbidden && captures_run) return;
    return static_cast<void>(faults_.accept(begun, "suspend_async", {errc::not_supported}));
  }
  world_.log("suspend " + what);
  const auto done = faults_.call("suspend", [&] {
    return chosen.pool ? chosen.pool.suspend(options) : memory.suspend(chosen.tag, options);
  });
  if (!done && done.code() == errc::capture_forbidden && captures_run) return;
  static_cast<void>(faults_.accept(done, "suspend", {errc::not_supported}));
}

void suspension::change_all(heap_supplier& heap, bool captures_run) {
  rng& random = world_.random();
  caching_allocator& memory = heap.memory();
  if (heap.away) {
    const lane_index on = random.one_in(3) ? lanes_.any(heap.device()) : no_lane;
    if (on == no_lane) return resume_all(heap);
    world_.log("resume_async everything of " + heap.name() + " on " + lanes_.text(on));
    const stream_ref stream = lanes_.ref(on);
    const auto resumed = faults_.call("resume_async", [&] { return memory.resume_async(stream); });
    if (!faults_.accept(resumed, "resume_async", {errc::out_of_memory})) return;
    heap.away = false;
    heap.settle(no_group);
    for (std::size_t i = 0; i < heap.groups().size(); ++i) heap.settle(i);
    blocks_.add_access(heap, no_group, on, lanes_.queue(on));
    return lanes_.synchronize(on);  // for the memory of graphs
  }
  suspend_options options = choose();
  heap.away = true;
  if (options.contents == suspended_contents::discard) blocks_.forget_contents(heap);
  const bool async = random.one_in(2);
  if (async && random.one_in(2) && lanes_.cover_unknown(heap.device()))
    options.streams = awaited_streams::known;
  heap.async = heap.async || async;
  for (heap_supplier::group& each : heap.groups()) each.async = each.async || async;
  world_.log(std::string{async ? "suspend_async" : "suspend"} + " everything of " + heap.name());
  result<void> done;
  if (async) {
    done = faults_.call("suspend_async", [&] { return memory.suspend_async(options); });
  } else {
    const auto outcome = faults_.call("suspend", [&] { return memory.suspend(options); });
    if (!outcome) done = outcome.error();
  }
  const bool refused = !done && (done.code() == errc::not_supported ||
                                 (captures_run && done.code() == errc::capture_forbidden));
  if (refused) heap.away = false;
  if (!refused) static_cast<void>(faults_.accept(done, "suspend"));
}

void suspension::resume_all(heap_supplier& heap) {
  world_.log("resume everything of " + heap.name());
  const auto resumed = faults_.call("resume", [&] { return heap.memory().resume(); });
  if (faults_.accept(resumed, "resume", {errc::out_of_memory, errc::not_supported})) {
    heap.away = false;
    heap.settle(no_group);
    for (std::size_t i = 0; i < heap.groups().size(); ++i) heap.settle(i);
  }
}

}  // namespace weir::programs_test
