// SPDX-License-Identifier: Apache-2.0
// Beginning, filling and ending captures.
#include "captures.hpp"

#include <algorithm>
#include <utility>

#include "support/sizes.hpp"

namespace weir::programs_test {
namespace {

using testing_support::mib;
constexpr std::size_t most_captures = 3;
constexpr std::size_t most_graphs = 5;

const char* name(capture_notice_kind kind) {
  switch (kind) {
    case capture_notice_kind::declared:
      return "declared";
    case capture_notice_kind::noticed:
      return "noticed";
    case capture_notice_kind::undeclared:
      return "undeclared";
  }
  return "";
}

}  // namespace

bool captures::uses(const heap_supplier& heap) const {
  return std::any_of(captures_.begin(), captures_.end(), [&](const capture& each) {
    if (each.heap == &heap) return true;
    return std::any_of(each.others.begin(), each.others.end(),
                       [&](const auto& use) { return blocks_.at(use.first).from == &heap; });
  });
}

bool captures::may_end_here(const capture& each) const {
  // A per-thread stream has another meaning on another thread.
  return each.thread == lanes_.thread() ||
         (each.mode == driver::CU_STREAM_CAPTURE_MODE_RELAXED &&
          lanes_.kind(each.main) != lane_kind::per_thread &&
          (each.side == no_lane || lanes_.kind(each.side) != lane_kind::per_thread));
}

/// Tells the allocator of the capture that is about to begin, in the way that was chosen.
bool captures::prepare(capture& begun) {
  caching_allocator& memory = begun.heap->memory();
  const stream_ref stream = lanes_.ref(begun.main);
  if (begun.kind == capture_notice_kind::declared) {
    auto claim = faults_.call("begin_capture", [&] { return memory.begin_capture(stream); });
    if (!faults_.accept(claim, "begin_capture")) return false;
    begun.claim = *std::move(claim);
    return true;
  }
  if (lanes_.kind(begun.main) == lane_kind::secret) return true;
  // The stream's id must be known before the capture begins.
  const auto met = faults_.call("allocate", [&] { return memory.try_allocate(bytes{1}, stream); });
  if (!met) return false;
  const auto freed = memory.try_deallocate(*met, stream);
  if (!world_.expect_ok(freed, "free")) return false;
  if (begun.kind == capture_notice_kind::undeclared) return true;
  auto pool = faults_.call("create_pool",
                           [&] { return memory.create_pool("captured", {.for_graphs = true}); });
  if (!faults_.accept(pool, "create_pool", {errc::not_supported})) return false;
  begun.pool = *std::move(pool);
  begun.notice = memory.guard_captures().value();
  return true;
}

void captures::begin(heap_supplier& heap) {
  rng& random = world_.random();
  if (captures_.size() == most_captures || graphs_.count() + captures_.size() >= most_graphs)
    return;
  capture begun;
  begun.main = lanes_.any_for_capture();
  if (begun.main == no_lane || lanes_.device(begun.main) != heap.device() || heap.away) return;
  begun.heap = &heap;
  begun.thread = lanes_.thread();
  using enum capture_notice_kind;
  begun.kind = lanes_.kind(begun.main) == lane_kind::secret
                   ? undeclared
                   : random.any_of({declared, declared, noticed, undeclared});
  begun.mode = random.any_of({driver::CU_STREAM_CAPTURE_MODE_GLOBAL,
                              driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                              driver::CU_STREAM_CAPTURE_MODE_RELAXED});
  world_.log("begin a capture of " + lanes_.text(begun.main) + " with " + heap.name() + ", " +
             name(begun.kind) + ", mode " + std::to_string(begun.mode));
  if (!prepare(begun)) return;
  lanes_.begin_capture(begun.main);
  const stream_ref stream = lanes_.ref(begun.main);
  const context_scope bound{stream.device()};
  if (!world_.expect_ok(world_.cuda().stream_begin_capture(stream.handle(), begun.mode),
                        "cuStreamBeginCapture"))
    return;
  captures_.push_back(std::move(begun));
}

// --- Inside ----------------------------------------------------------------------------------

void captures::fill_any() {
  if (captures_.empty()) return;
  capture& now = captures_[world_.random().below(captures_.size())];
  const bool here = now.thread == lanes_.thread() ||
                    (lanes_.kind(now.main) != lane_kind::per_thread &&
                     (now.side == no_lane || lanes_.kind(now.side) != lane_kind::per_thread));
  if (here) fill(now);
}

void captures::fill(capture& now) {
  rng& random = world_.random();
  const std::uint64_t roll = random.below(12);
  if (roll == 0) return join(now);
  const lane_index on = now.side != no_lane && random.one_in(2) ? now.side : now.main;
  if (roll < 6) return allocate(now, on);
  if (roll < 9) return use_other(now, on);
  if (!now.inner.empty()) free_inner(now, random.below(now.inner.size()));
}

/// Takes another stream into the capture by an event.
void captures::join(capture& now) {
  if (now.side != no_lane) return;
  const lane_index side = lanes_.any_for_capture();
  const bool fits = side != no_lane && lanes_.device(side) == lanes_.device(now.main) &&
                    lanes_.kind(side) != lane_kind::secret &&
                    (lanes_.kind(side) != lane_kind::per_thread || now.thread == lanes_.thread());
  if (!fits || now.kind != capture_notice_kind::declared) return;
  // The allocator must know the stream's id, which it cannot ask for any more later.
  const auto met = now.heap->memory().try_allocate(bytes{1}, lanes_.ref(side));
  if (!met) return;
  if (!world_.expect_ok(now.heap->memory().try_deallocate(*met, lanes_.ref(side)), "free")) return;
  auto fork = event::create(world_.gpu(lanes_.device(side)));
  if (!world_.expect_ok(fork, "event::create")) return;
  world_.log("take " + lanes_.text(side) + " into the capture of " + lanes_.text(now.main));
  lanes_.begin_capture(side);
  world_.expect_ok(fork->record(lanes_.ref(now.main)), "record in a capture");
  world_.expect_ok(lanes_.ref(side).wait(*fork), "wait in a capture");
  now.side = side;
}

void captures::allocate(capture& now, lane_index on) {
  const bool serves =
      now.kind != capture_notice_kind::undeclared ||
      (now.heap->settings().detect_captures && lanes_.kind(now.main) != lane_kind::secret);
  if (!serves || now.heap->away) return;
  const std::uint64_t size = std::min(blocks_.random_size(), 6 * mib);
  const stream_ref stream = lanes_.ref(on);
  world_.log("allocate " + std::to_string(size) + " on " + lanes_.text(on) + " in the capture of " +
             lanes_.text(now.main));
  const auto taken = faults_.call("allocate in a capture", [&] {
    return now.pool ? now.pool.try_allocate(bytes{size}, stream)
                    : now.heap->memory().try_allocate(bytes{size}, stream);
  });
  if (!faults_.accept(taken, "allocate in a capture", {errc::out_of_memory})) return;
  live_block block{.from = now.heap,
                   .memory = *taken,
                   .size = size,
                   .content = blocks_.next_content(),
                   .home = on};
  blocks_.launch(on, block, true, block.content);
  now.inner.push_back(std::move(block));
}

void captures::free_inner(capture& now, std::size_t index) {
  if (now.heap->away) return;
  const live_block block = now.inner[index];
  blocks_.launch(block.home, block, false, block.content);
  if (world_.random().one_in(2)) return;
  world_.log("free a block in the capture of " + lanes_.text(now.main));
  const std::optional<stream_ref> stream =
      world_.random().one_in(2) ? std::nullopt : std::optional{lanes_.ref(block.home)};
  const auto freed =
      faults_.call("free in a capture", [&] { return now.heap->free(block.memory, stream); });
  if (!faults_.accept(freed, "free in a capture") && now.heap->holds(block.memory)) return;
  now.inner.erase(now.inner.begin() + static_cast<std::ptrdiff_t>(index));
}

/// The graph writes and verifies a block that exists already; it must stay for the graph.
void captures::use_other(capture& now, lane_index on) {
  if (blocks_.count() == 0) return;
  const block_number number = blocks_.any();
  live_block& block = blocks_.at(number);
  if (block.from->device() != lanes_.device(on) && !block.from->has_peer()) return;
  if (!block.from->make_resident(block.group)) return;
  const auto [user, added] = now.users.emplace(number, on);
  if (added) ++block.graphs;
  const std::uint64_t content = blocks_.next_content();
  now.others[number] = content;
  blocks_.launch(user->second, block, true, content);
  blocks_.launch(user->second, block, false, content);
}

// --- The end ---------------------------------------------------------------------------------

void captures::check() {
  for (const capture& each : captures_) {
    if (lanes_.kind(each.main) == lane_kind::per_thread && each.thread != lanes_.thread()) continue;
    const auto status = lanes_.ref(each.main).capture();
    if (!world_.expect_ok(status, "asking for a capture")) return;
    if (status->status != capture_status::active)
      world_.fail("the capture of " + lanes_.text(each.main) + " is " + to_string(*status));
  }
}

void captures::end_any() {
  if (captures_.empty()) return;
  const std::size_t index = world_.random().below(captures_.size());
  if (may_end_here(captures_[index])) end(index);
}

void captures::end_all_of_thread() {
  for (std::size_t i = captures_.size(); i-- > 0 && !world_.failed();)
    if (may_end_here(captures_[i])) end(i);
}

void captures::end(std::size_t index) {
  capture ended = std::move(captures_[index]);
  captures_.erase(captures_.begin() + static_cast<std::ptrdiff_t>(index));
  world_.log("end the capture of " + lanes_.text(ended.main));
  const stream_ref stream = lanes_.ref(ended.main);
  const context_scope bound{stream.device()};
  if (ended.side != no_lane) {
    auto joined = event::create(stream.device());
    if (!world_.expect_ok(joined, "event::create")) return;
    world_.expect_ok(joined->record(lanes_.ref(ended.side)), "record in a capture");
    world_.expect_ok(stream.wait(*joined), "wait in a capture");
  }
  driver::CUgraph graph = nullptr;
  const auto answer = world_.cuda().stream_end_capture(stream.handle(), &graph);
  if (!world_.expect_ok(answer, "cuStreamEndCapture")) return;
  ++ended_;
  lanes_.end_capture(ended.main);
  if (ended.side != no_lane) lanes_.end_capture(ended.side);
  ended.claim.end_capture();
  ended.notice = {};
  instantiate(ended, graph);
}

void captures::instantiate(capture& ended, driver::CUgraph graph) {
  captured_graph made;
  made.heap = ended.heap;
  const bool tied = ended.claim && world_.random().one_in(2) && [&] {
    const auto kept = faults_.call("tie_to_graph", [&] { return ended.claim.tie_to_graph(graph); });
    return faults_.accept(kept, "tie_to_graph");
  }();
  {
    const thread_capture_mode_guard relaxed{ended.heap->memory().device()};
    if (!world_.expect_ok(world_.cuda().graph_instantiate(&made.exec, graph, 0),
                          "cuGraphInstantiate"))
      return;
  }
  world_.expect_ok(world_.cuda().graph_destroy(graph), "cuGraphDestroy");
  if (!tied || world_.random().one_in(2)) made.claim = std::move(ended.claim);
  made.pool = std::move(ended.pool);
  made.others = std::move(ended.others);
  for (live_block& each : ended.inner) {
    const std::uint64_t content = std::exchange(each.content, 0);
    each.accesses.add(each.home, lanes_.queue(each.home), true);
    made.accesses.add(each.home, lanes_.queue(each.home), true);
    made.own.emplace(blocks_.add(std::move(each)), content);
  }
  graphs_.add(std::move(made));
}

}  // namespace weir::programs_test
