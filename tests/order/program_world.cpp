// What happens around the blocks: streams come and go, pools, limits, captures, replays, the books.
#include <algorithm>
#include <utility>

#include "heap/allocator_state.hpp"
#include "program.hpp"

namespace weir::order_test {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::size_t most_lanes = 64;  // the allocator remembers every stream it met
constexpr std::size_t most_graphs = 4;

}  // namespace

// --- Streams, pools, limits ---------------------------------------------------------------------

void program::change_streams() {
  if (lanes_.count() >= most_lanes || capturing_) return;
  const lane gone = lanes_.any_owned();
  if (gone != no_lane && !random_.one_in(4)) {
    put_to_work(gone);
    if (gives_notice_ || !random_.one_in(3))
      at_.done(at_.memory().release_stream(name_of(gone)), "release_stream");
    lanes_.destroy(gone);
  }
  const lane added = lanes_.add_owned(random_.one_in(6));
  if (added != no_lane) put_to_work(added);
}

void program::change_pools() {
  if (!pools_.empty() && random_.one_in(2)) {
    std::swap(pools_[random_.below(pools_.size())], pools_.back());
    pools_.pop_back();  // its blocks may live on
    return;
  }
  if (pools_.size() >= 3) return;
  auto made = at_.memory().create_pool("order");
  if (at_.done(made, "create_pool")) pools_.push_back(*std::move(made));
}

void program::change_limits() {
  if (at_.ample()) return;
  caching_allocator& memory = at_.memory();
  if (random_.one_in(2)) {
    const bool none = random_.one_in(2);
    const std::uint64_t some = at_.capacity() / 10 * (4 + random_.below(6));
    at_.done(memory.set_limit(none ? bytes::max() : bytes{some}), "set_limit");
    return;
  }
  const weir::tag of = tags_[random_.below(tags_.size())];
  at_.tags_limited = true;
  const bool none = random_.one_in(2);
  at_.done(memory.set_limit(of, none ? bytes::max() : bytes{random_.below(64) * mib}),
           "set_limit of a tag");
}

void program::give_back() {
  caching_allocator& memory = at_.memory();
  switch (random_.below(5)) {
    case 0:
      if (!in_callback_) at_.done(memory.empty_cache(), "empty_cache");
      return;
    case 1:
      return at_.expect(!memory.explain(bytes{mib}, lanes_.ref(lanes_.any())).text().empty(),
                        "nothing to explain");
    default:
      at_.done(memory.trim(bytes{random_.below(at_.capacity())}), "trim");
  }
}

void program::let_work_happen() {
  for (std::uint64_t steps = random_.below(8); steps > 0; --steps)
    static_cast<void>(at_.machine().step());
}

// --- Graphs --------------------------------------------------------------------------------------

void program::begin_capture() {
  if (graphs_.size() >= most_graphs) return drop_graph(random_.below(graphs_.size()));
  const lane main = lanes_.any_owned();
  if (main == no_lane || lanes_.is_blocking(main)) return;
  capture begun;
  begun.main = main;
  // Who may not ask a stream cannot see its capture coming.
  const bool unseen = !at_.settings().heap_detect_captures || at_.settings().heap_unannounced_ends;
  const bool declared = unseen || random_.one_in(2);
  if (declared) {
    auto claimed = at_.memory().begin_capture(lanes_.ref(main));
    if (!at_.done(claimed, "begin_capture")) return;
    begun.memory = *std::move(claimed);
  } else {
    // The allocator must have met the stream: it cannot look after captures of strangers.
    const auto met = at_.memory().try_allocate(bytes{1}, lanes_.ref(main));
    if (!met) return;
    at_.done(at_.memory().try_deallocate(*met, lanes_.ref(main)), "free");
  }
  lanes_.begin_capture(main);
  using namespace driver;
  const auto mode =
      shared_ != nullptr
          ? random_.any_of({CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED})
          : random_.any_of({CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            CU_STREAM_CAPTURE_MODE_RELAXED});
  begun.relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
  at_.done(at_.cuda().stream_begin_capture(lanes_.handle(main), mode), "begin capture");
  capturing_ = std::move(begun);
}

/// Work inside a capture uses blocks of the capture, each on its own stream.
void program::capture_step() {
  capture& now = *capturing_;
  auto& inside = now.inside;
  const std::uint64_t dice = random_.below(10);
  if (dice == 0 && now.side == no_lane) {
    const lane side = lanes_.any_owned();
    if (side == no_lane || lanes_.is_blocking(side)) return;
    auto fork = event::create(at_.gpu());
    if (!at_.done(fork, "event")) return;
    lanes_.begin_capture(side);
    at_.done(fork->record(lanes_.ref(now.main)), "record in a capture");
    at_.done(lanes_.ref(side).wait(*fork), "wait in a capture");
    now.side = side;
    return;
  }
  if (dice < 6 || inside.empty())
    return capture_allocate(now.side != no_lane && random_.one_in(2) ? now.side : now.main);
  const std::size_t which = random_.below(inside.size());
  const piece& block = inside[which];
  run_kernel(block.home, block, false);
  if (dice < 7) return;
  auto* const pointer = reinterpret_cast<void*>(block.address);
  const auto freed = random_.one_in(2)
                         ? at_.memory().try_deallocate(pointer)
                         : at_.memory().try_deallocate(pointer, lanes_.ref(block.home));
  at_.done(freed, "free in a capture");
  extents_.erase(block.address);
  live_bytes_ -= block.size;
  std::swap(inside[which], inside.back());
  inside.pop_back();
}

void program::capture_allocate(lane on) {
  const std::uint64_t size = std::min(random_size(), 8 * mib);
  const weir::tag what = tags_[random_.below(tags_.size())];
  const tag_scope tagged{what};
  const auto made = at_.memory().try_allocate(bytes{size}, lanes_.ref(on));
  if (!made) {
    if (!at_.may_fail(made)) at_.done(made, "allocate in a capture");
    return;
  }
  lanes_.name(on);
  piece block{.address = reinterpret_cast<device_address>(*made),
              .size = size,
              .content = next_content_++,
              .home = on,
              .home_id = lanes_.id(on),
              .number = next_number_++,
              .tag = what};
  run_kernel(on, block, true);
  take_in(block);
  live_.pop_back();  // the capture's until it ends
  capturing_->inside.push_back(std::move(block));
}

void program::end_capture() {
  capture over = *std::exchange(capturing_, std::nullopt);
  if (over.side != no_lane) {
    auto join = event::create(at_.gpu());
    if (!at_.done(join, "event")) return;
    at_.done(join->record(lanes_.ref(over.side)), "record in a capture");
    at_.done(lanes_.ref(over.main).wait(*join), "wait in a capture");
  }
  driver::CUgraph captured = nullptr;
  if (!at_.done(at_.cuda().stream_end_capture(lanes_.handle(over.main), &captured), "end capture"))
    return;
  for (const lane each : {over.main, over.side})
    if (each != no_lane) lanes_.end_capture(each);

  graph made;
  const bool declared = static_cast<bool>(over.memory);
  over.memory.end();
  const bool tie = declared && random_.one_in(2);
  if (tie) at_.done(over.memory.keep_with(captured), "keep_with");
  if (!at_.done(at_.cuda().graph_instantiate(&made.exec, captured, 0), "instantiate")) return;
  at_.done(at_.cuda().graph_destroy(captured), "destroying a graph");
  // Tied to its graph the memory needs nobody else.
  if (!tie || random_.one_in(2)) made.memory = std::move(over.memory);
  for (piece& left : over.inside) {
    left.graph = graphs_.size();
    left.used.note(left.home, lanes_.queue(left.home), true);
    made.used.note(left.home, lanes_.queue(left.home), true);
    live_.push_back(std::move(left));
  }
  graphs_.push_back(std::move(made));
}

void program::replay() {
  if (graphs_.empty() || capturing_) return;
  const std::size_t which = random_.below(graphs_.size());
  graph& chosen = graphs_[which];
  const lane on = lanes_.any();
  if (!at_.declares_uses() && !lanes_.is_known(on)) return;
  if (!lanes_.put_after(on, chosen.used, true)) return;
  if (!at_.done(at_.cuda().graph_launch(chosen.exec, lanes_.handle(on)), "replay")) return;
  const std::uint64_t operation = lanes_.queue(on);
  chosen.replayed = true;
  chosen.used.note(on, operation, true);
  for (piece& each : live_)
    if (each.graph == which) each.used.note(on, operation, true);
}

void program::drop_graph(std::size_t which) {
  // Blocks that left it alive stay what they are; nobody writes them any more.
  for (piece& each : live_) {
    if (each.graph == which) {
      if (!graphs_[which].replayed) each.content = 0;
      each.graph = no_graph;
    }
    if (each.graph == graphs_.size() - 1 && each.graph != which) each.graph = which;
  }
  std::swap(graphs_[which], graphs_.back());
  graph gone = std::move(graphs_.back());
  graphs_.pop_back();
  at_.done(at_.cuda().graph_exec_destroy(gone.exec), "destroying an executable graph");
}

// --- Checks --------------------------------------------------------------------------------------

void program::check() {
  if (at_.faults()->found()) return;
  if (shared_ != nullptr) {
    if (steps_ % 64 == 0) at_.check_invariants();
    return;
  }
  const std::size_t captured = capturing_ ? capturing_->inside.size() : 0;
  const memory_stats now = at_.memory().stats();
  at_.expect(now.requested.current <= now.allocated.current, "requested > allocated");
  at_.expect(now.allocated.current <= now.active.current, "allocated > active");
  at_.expect(now.active.current <= now.reserved.current, "active > reserved");
  at_.expect(now.blocks.current == live_.size() + captured, "blocks is not what is live");
  at_.expect(now.requested.current == live_bytes_, "requested is not what is live");
  if (steps_ % 16 == 0) check_books();
}

void program::check_books() {
  caching_allocator& memory = at_.memory();
  std::map<weir::tag, std::uint64_t> by_tag;
  for (const piece& each : live_) by_tag[each.tag] += each.size;
  if (capturing_)
    for (const piece& each : capturing_->inside) by_tag[each.tag] += each.size;
  for (const tag_stats& each : memory.stats_by_tag())
    at_.expect(each.stats.requested.current == by_tag[each.tag], "a tag's requested is wrong");
  if (steps_ % 64 != 0) return;

  const std::string wrong = at_.inside().check();
  at_.expect(wrong.empty(), wrong.c_str());
  const allocator_snapshot all = memory.snapshot();
  std::uint64_t requested = 0;
  std::uint64_t reserved = 0;
  std::size_t blocks = 0;
  for (const pool_snapshot& pool : all.pools) {
    requested += pool.stats.requested.current;
    reserved += pool.stats.reserved.current;
    for (const block_info& each : pool.blocks) {
      if (each.state != block_state::live) continue;
      ++blocks;
      at_.expect(extents_.contains(each.address), "the snapshot shows a block that is not live");
    }
  }
  at_.expect(requested == all.stats.requested.current, "pools do not add up to requested");
  at_.expect(reserved == all.stats.reserved.current, "pools do not add up to reserved");
  at_.expect(blocks == extents_.size(), "the snapshot misses a live block");
}

void program::finish(std::size_t thread) {
  const context_scope bound{at_.gpu()};
  lanes_.enter_thread(thread);
  callback_.reset();
  if (at_.faults()->found()) {
    // Nothing can be believed any more; what the driver holds goes with its machine.
    for (graph& each : graphs_) static_cast<void>(at_.cuda().graph_exec_destroy(each.exec));
    graphs_.clear();
    pools_.clear();
    capturing_.reset();
    return;
  }
  if (capturing_) end_capture();
  for (int attempts = 0; !live_.empty() && attempts < 10'000; ++attempts) {
    if (at_.faults()->found()) return;
    free_some(live_.size());
  }
  at_.expect(live_.empty(), "a block could not be freed");
  while (!graphs_.empty()) drop_graph(graphs_.size() - 1);
  pools_.clear();
}

}  // namespace weir::order_test
