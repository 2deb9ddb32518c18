// SPDX-License-Identifier: Apache-2.0
// Captures with memory of their own, and the replays of what was captured.
#include <algorithm>
#include <utility>

#include "program.hpp"
#include "support/sizes.hpp"

namespace weir::order_test {
namespace {

using testing_support::mib;
constexpr std::size_t most_graphs = 4;

}  // namespace

void program::begin_capture() {
  if (graphs_.size() >= most_graphs) return drop_graph(random_.below(graphs_.size()));
  const stream_index main = streams_.any_owned();
  if (main == no_stream || streams_.is_blocking(main)) return;
  capture begun;
  begun.main = main;
  // Who may not ask a stream cannot see its capture coming.
  const bool unseen =
      !fixture_.settings().detect_captures || fixture_.settings().allow_unreleased_streams;
  const bool declared = unseen || random_.one_in(2);
  if (declared) {
    auto claimed = fixture_.memory().begin_capture(streams_.ref(main));
    if (!fixture_.expect_ok(claimed, "begin_capture")) return;
    begun.memory = *std::move(claimed);
  } else {
    // The allocator must have met the stream: it cannot look after captures of strangers.
    const auto met = fixture_.memory().try_allocate(bytes{1}, streams_.ref(main));
    if (!met) return;
    fixture_.expect_ok(fixture_.memory().try_deallocate(*met, streams_.ref(main)), "free");
  }
  streams_.begin_capture(main);
  using namespace driver;
  const auto mode =
      mailbox_ != nullptr
          ? random_.any_of({CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED})
          : random_.any_of({CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            CU_STREAM_CAPTURE_MODE_RELAXED});
  begun.relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
  fixture_.expect_ok(fixture_.cuda().stream_begin_capture(streams_.handle(main), mode),
                     "begin capture");
  capturing_ = std::move(begun);
}

/// Work inside a capture uses blocks of the capture, each on its own stream.
void program::capture_step() {
  capture& now = *capturing_;
  auto& blocks = now.blocks;
  const std::uint64_t roll = random_.below(10);
  if (roll == 0 && now.side == no_stream) {
    const stream_index side = streams_.any_owned();
    if (side == no_stream || streams_.is_blocking(side)) return;
    auto fork = event::create(fixture_.gpu());
    if (!fixture_.expect_ok(fork, "event")) return;
    streams_.begin_capture(side);
    fixture_.expect_ok(fork->record(streams_.ref(now.main)), "record in a capture");
    fixture_.expect_ok(streams_.ref(side).wait(*fork), "wait in a capture");
    now.side = side;
    return;
  }
  if (roll < 6 || blocks.empty())
    return capture_allocate(now.side != no_stream && random_.one_in(2) ? now.side : now.main);
  const std::size_t index = random_.below(blocks.size());
  const tracked_block& block = blocks[index];
  run_kernel(block.home, block, false);
  if (roll < 7) return;
  auto* const pointer = reinterpret_cast<void*>(block.address);
  const auto freed = random_.one_in(2)
                         ? fixture_.memory().try_deallocate(pointer)
                         : fixture_.memory().try_deallocate(pointer, streams_.ref(block.home));
  fixture_.expect_ok(freed, "free in a capture");
  extents_.erase(block.address);
  live_bytes_ -= block.size;
  std::swap(blocks[index], blocks.back());
  blocks.pop_back();
}

void program::capture_allocate(stream_index on) {
  const std::uint64_t size = std::min(random_size(), 8 * mib);
  const weir::tag tag = tags_[random_.below(tags_.size())];
  const tag_scope tagged{tag};
  const auto allocation = fixture_.memory().try_allocate(bytes{size}, streams_.ref(on));
  if (!allocation) {
    if (!fixture_.may_fail_with(allocation.code()))
      fixture_.expect_ok(allocation, "allocate in a capture");
    return;
  }
  streams_.set_known(on);
  tracked_block block{.address = reinterpret_cast<device_address>(*allocation),
                      .size = size,
                      .content = next_content_++,
                      .home = on,
                      .home_id = streams_.id(on),
                      .number = next_number_++,
                      .tag = tag};
  run_kernel(on, block, true);
  add_live(block);
  live_.pop_back();  // the capture's until it ends
  capturing_->blocks.push_back(std::move(block));
}

void program::end_capture() {
  capture ended = *std::exchange(capturing_, std::nullopt);
  if (ended.side != no_stream) {
    auto join = event::create(fixture_.gpu());
    if (!fixture_.expect_ok(join, "event")) return;
    fixture_.expect_ok(join->record(streams_.ref(ended.side)), "record in a capture");
    fixture_.expect_ok(streams_.ref(ended.main).wait(*join), "wait in a capture");
  }
  driver::CUgraph captured = nullptr;
  if (!fixture_.expect_ok(
          fixture_.cuda().stream_end_capture(streams_.handle(ended.main), &captured),
          "end capture"))
    return;
  for (const stream_index each : {ended.main, ended.side})
    if (each != no_stream) streams_.end_capture(each);

  graph instantiated;
  const bool declared = static_cast<bool>(ended.memory);
  ended.memory.end_capture();
  const bool tied = declared && random_.one_in(2);
  if (tied) fixture_.expect_ok(ended.memory.tie_to_graph(captured), "tie_to_graph");
  if (!fixture_.expect_ok(fixture_.cuda().graph_instantiate(&instantiated.exec, captured, 0),
                          "instantiate"))
    return;
  fixture_.expect_ok(fixture_.cuda().graph_destroy(captured), "destroying a graph");
  // Tied to its graph the memory needs nobody else.
  if (!tied || random_.one_in(2)) instantiated.memory = std::move(ended.memory);
  for (tracked_block& block : ended.blocks) {
    block.graph = graphs_.size();
    block.accesses.add(block.home, streams_.queue(block.home), true);
    instantiated.accesses.add(block.home, streams_.queue(block.home), true);
    live_.push_back(std::move(block));
  }
  graphs_.push_back(std::move(instantiated));
}

void program::replay() {
  if (graphs_.empty() || capturing_) return;
  const std::size_t index = random_.below(graphs_.size());
  graph& chosen = graphs_[index];
  const stream_index on = streams_.any();
  if (!fixture_.declares_uses() && !streams_.is_known(on)) return;
  if (!streams_.put_after(on, chosen.accesses, true)) return;
  if (!fixture_.expect_ok(fixture_.cuda().graph_launch(chosen.exec, streams_.handle(on)), "replay"))
    return;
  const std::uint64_t operation = streams_.queue(on);
  chosen.replayed = true;
  chosen.accesses.add(on, operation, true);
  for (tracked_block& each : live_)
    if (each.graph == index) each.accesses.add(on, operation, true);
}

void program::drop_graph(std::size_t index) {
  // Blocks that left it alive stay what they are; nobody writes them any more.
  for (tracked_block& each : live_) {
    if (each.graph == index) {
      if (!graphs_[index].replayed) each.content = 0;
      each.graph = no_graph;
    }
    if (each.graph == graphs_.size() - 1 && each.graph != index) each.graph = index;
  }
  std::swap(graphs_[index], graphs_.back());
  graph dropped = std::move(graphs_.back());
  graphs_.pop_back();
  fixture_.expect_ok(fixture_.cuda().graph_exec_destroy(dropped.exec),
                     "destroying an executable graph");
}

}  // namespace weir::order_test
