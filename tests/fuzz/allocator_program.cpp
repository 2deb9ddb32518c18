// SPDX-License-Identifier: Apache-2.0
// What the bytes of an input mean, and what must hold after each of them.
#include "allocator_program.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "heap/central_heap.hpp"

namespace weir::fuzz {
namespace {

constexpr std::uint64_t kib = std::uint64_t{1} << 10;
constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t capacity = 128 * mib;
constexpr std::uint64_t overhead = 16 * mib;

constexpr std::uint64_t rounded(std::uint64_t size) { return (size + 511) / 512 * 512; }

/// What must succeed because nothing of the allocator is in it.
template <class Result>
void succeed(const Result& outcome, const char* operation) {
  if (!outcome) require(false, std::string{operation} + ": " + outcome.error().message());
}

void succeed(driver::CUresult outcome, const char* operation) {
  require(outcome == driver::CUDA_SUCCESS, std::string{operation} + " failed");
}

allocator_options read_options(fuzz_input& input) {
  using enum placement_policy;
  constexpr std::array policies{balanced,   throughput, compact,
                                never_move, classic,    classic_expandable};
  constexpr std::array<std::uint64_t, 4> caches{4 * mib, 0, 64 * kib, mib};
  allocator_options chosen;
  chosen.policy = policies[input.below(policies.size())];
  const unsigned more = input.next();
  chosen.thread_cache = bytes{caches[more % caches.size()]};
  chosen.detect_captures = (more & 4) != 0;
  chosen.debug_unmap = (more & 8) != 0;
  return chosen;
}

constexpr std::array tag_names{"fuzz a", "fuzz b"};

}  // namespace

// --- The machine --------------------------------------------------------------------------------

fuzz_fixture::fuzz_fixture() {
  sim::machine_options settings;
  settings.mode = sim::progress::manual;
  settings.devices.front().capacity = bytes{capacity + overhead};
  settings.devices.front().context_overhead = bytes{overhead};
  machine_ = sim::machine::create(settings).value();
  machine_->on_hazard([this](const sim::hazard& hazard) {
    ++hazards_;
    std::fprintf(stderr, "%s\n", hazard.message().c_str());
  });
  runtime_ = runtime::open_simulated(machine_).value();
  gpu_ = runtime_->device(device_id{0}).value();
  static_cast<void>(gpu_->memory_info());  // makes the context
  used_when_empty_ = used();
  set_error_handler(
      [](const error&, void* self) noexcept { ++static_cast<fuzz_fixture*>(self)->reports_; },
      this);
}

fuzz_fixture::~fuzz_fixture() { set_error_handler(nullptr); }

// --- The program --------------------------------------------------------------------------------

program::program(fuzz_fixture& fixture, fuzz_input input)
    : fixture_{fixture},
      input_{input},
      memory_{caching_allocator::create(fixture.gpu(), read_options(input_)).value()} {
  check_mask_ = (input_.next() & 1) != 0 ? 0 : 7;
  for (std::size_t i = 0; i < tag_names.size(); ++i) tags_[i] = tag::named(tag_names[i]).value();
  tag_limits_.fill(bytes::max().count());
  for (std::size_t i = 2; i < stream_count; ++i) owned_[i] = stream::create(fixture.gpu()).value();
}

program::~program() = default;

bool program::run() {
  const context_scope bound{fixture_.gpu()};
  while (!input_.at_end()) {
    step();
    ++steps_;
    check((steps_ & check_mask_) == 0);
  }
  return end();
}

template <class Call>
auto program::call(const Call& function) {
  faulted_ = fault_ != 0;
  ever_faulted_ = ever_faulted_ || faulted_;
  if (faulted_) fixture_.machine().fail_any(std::exchange(fault_, 0), fault_code_);
  auto outcome = function();
  fixture_.machine().clear_faults();
  return outcome;
}

stream_ref program::ref(std::size_t stream) const {
  if (stream == 0) return stream_ref::legacy(fixture_.gpu());
  if (stream == 1) return stream_ref::per_thread(fixture_.gpu());
  return owned_[stream]->ref();
}

void program::step() {
  const unsigned operation = input_.next() % 32;
  if (operation < 9) return allocate();
  if (operation < 14) return free_one();
  if (operation < 17) return use();
  switch (operation) {
    case 17:
      return record();
    case 18:
    case 19:
      for (std::size_t steps = input_.below(16); steps > 0; --steps)
        static_cast<void>(fixture_.machine().step());
      return;
    case 20:
      return synchronize(input_.below(stream_count));
    case 21:
    case 22:
      return trim();
    case 23:
      return change_stream();
    case 24:
      return change_limits();
    case 25:
      return change_pools();
    case 26:
      return capturing_ ? end_capture() : begin_capture(2 + input_.below(stream_count - 2));
    case 27:
      return drop_graph();
    case 28:
      return free_wrongly();
    case 29:
    case 30: {
      using namespace driver;
      constexpr std::array codes{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE};
      fault_ = 1 + input_.below(24);
      fault_code_ = codes[input_.below(codes.size())];
      return;
    }
    default:
      return inspect();
  }
}

// --- Memory -------------------------------------------------------------------------------------

std::uint64_t program::read_size() {
  const unsigned kind = input_.next() % 8;
  const std::uint64_t much = input_.next();
  switch (kind) {
    case 0:
      return much;
    case 1:
      return (much + 1) * 512;
    case 2:
      return (much + 1) * 4 * kib - much;
    case 3:
      return (much + 1) * 16 * kib;
    case 4:
      return mib + much * 32 * kib;
    case 5:
      return 2 * mib * (1 + much % 8);
    case 6:
      return (1 + much % 96) * mib;
    default:
      return last_size_;
  }
}

void program::allocate() {
  if (live_.size() == most_live) return;
  const unsigned choice = input_.next();
  const std::size_t on = (choice >> 3) % stream_count;
  const std::size_t tagged = choice % 3;
  std::uint64_t size = read_size();
  std::uint64_t alignment = 512;
  if (choice >= 240)
    alignment = std::uint64_t{1} << input_.below(24);  // 4 MiB and 8 MiB are too much
  if (choice == 239) size = bytes::max().count() - input_.below(4);
  const bool bad = alignment > 2 * mib || size > 2 * mib * mib;
  if (!bad) last_size_ = size;
  const tag_scope scope{tags_[tagged]};
  const bool pooled = !pools_.empty() && choice % 8 == 7 && !captures(on);
  const memory_pool pool = pooled ? pools_[choice % pools_.size()] : memory_pool{};
  // A handle as C code has it; inside a capture it cannot be asked for its number.
  stream_ref name = ref(on);
  if (choice % 5 == 4 && !captures(on)) name = stream_ref{fixture_.gpu(), name.handle()};

  const bytes reserved = memory_.stats().reserved.current;
  const auto allocation = call([&] {
    if (pool && choice % 16 == 7) return pool.try_allocate(bytes{size}, name, bytes{alignment});
    const auto route = pool ? std::make_optional<pool_scope>(pool) : std::nullopt;
    return memory_.try_allocate(bytes{size}, name, bytes{alignment});
  });
  if (!allocation) {
    const errc code = allocation.code();
    const bool usual = code == errc::out_of_memory;
    require(faulted_ || usual || bad, "allocate: " + allocation.error().message());
    return;
  }
  require(!bad, "a request that nobody can meet was met");
  require((*allocation == nullptr) == (size == 0), "null for a size above 0, or the reverse");
  if (*allocation == nullptr) return;
  released_ &= ~(1U << on);
  require(
      reinterpret_cast<device_address>(*allocation) % std::max<std::uint64_t>(alignment, 512) == 0,
      "not aligned");
  const memory_stats after = memory_.stats();
  require(after.reserved.current <= reserved || after.reserved.current <= memory_.limit(),
          "more was reserved than the limit allows");
  // Asked for, because a classic segment may hand out more than the request rounds to.
  require(memory_.stats(tags_[tagged]).requested.current <= bytes{tag_limits_[tagged]},
          "more is allocated than the tag's limit allows");
  add_live(*allocation, size, on);
}

void program::add_live(void* pointer, std::uint64_t size, std::size_t on) {
  const auto address = reinterpret_cast<device_address>(pointer);
  const device_address end = address + rounded(size);
  const auto above = extents_.lower_bound(address);
  require(above == extents_.end() || above->first >= end, "two live blocks overlap");
  require(above == extents_.begin() || std::prev(above)->second <= address,
          "two live blocks overlap");
  extents_.emplace(address, end);
  std::erase(dead_, address);
  live_bytes_ += size;
  live_.push_back({.address = address,
                   .size = size,
                   .tag = current_tag(),
                   .home = on,
                   .users = 1U << on,
                   .captured = captures(on)});
}

void program::remove_live(std::size_t index) {
  const tracked_block& freed = live_[index];
  extents_.erase(freed.address);
  live_bytes_ -= freed.size;
  dead_.push_back(freed.address);
  std::swap(live_[index], live_.back());
  live_.pop_back();
}

/// Everything that uses the block, except on streams in `excluded`, comes before what is queued on
/// the stream next. False: a capture is in the way.
bool program::order(tracked_block& block, std::size_t on, stream_set excluded) {
  const stream_set others = block.users & ~(1U << on) & ~excluded;
  if (others == 0) return true;
  if (captures(on) || (capturing_ && (others >> *capturing_ & 1U) != 0)) return false;
  for (std::size_t each = 0; each < stream_count; ++each) {
    if ((others >> each & 1U) == 0) continue;
    auto completion = event::create(fixture_.gpu()).value();
    succeed(completion.record(ref(each)), "record");
    succeed(ref(on).wait(completion), "wait");
  }
  return true;
}

void program::use() {
  if (live_.empty()) return;
  tracked_block& block = live_[input_.below(live_.size())];
  const unsigned choice = input_.next();
  const std::size_t on =
      (choice & 1U) != 0 || block.captured ? block.home : (choice >> 1) % stream_count;
  if (captures(on) != block.captured || (released_ >> on & 1U) != 0 || !order(block, on, 0)) return;
  block.users |= 1U << on;
  succeed(fixture_.machine().launch(ref(on).handle(), "write",
                                    {sim::writes(block.address, block.size)}),
          "launch");
}

void program::record() {
  if (live_.empty()) return;
  tracked_block& block = live_[input_.below(live_.size())];
  const std::size_t on = input_.below(stream_count);
  if (block.captured || captures(on)) return;
  const auto done =
      call([&] { return memory_.record_stream(reinterpret_cast<void*>(block.address), ref(on)); });
  require(done || faulted_, "record_stream");
  if (!done) return;
  block.recorded |= 1U << on;
  released_ &= ~(1U << on);
}

void program::free_one() {
  if (live_.empty()) return;
  const std::size_t index = input_.below(live_.size());
  const unsigned choice = input_.next();
  const std::size_t on = (choice & 1U) != 0 ? live_[index].home : (choice >> 4) % stream_count;
  static_cast<void>(free_on(index, on, choice >> 1 & 7U));
}

/// Frees the block on that stream, or on none, with its size, a wrong one or without; false if a
/// capture is in the way.
bool program::free_on(std::size_t index, std::size_t on, unsigned form) {
  tracked_block& block = live_[index];
  // Without a stream it is that of the allocation. Where that is gone, or said to be used no more,
  // nothing can be put before the free any more.
  const bool at_rest = !block.orphan && (released_ >> block.home & 1U) == 0;
  const stream_set to_order =
      block.users & ~block.recorded & ~(block.orphan ? 0 : 1U << block.home);
  const bool unnamed = form == 0 && (at_rest || to_order == 0);
  if (unnamed || block.captured) on = block.home;
  if (!order(block, on, block.recorded)) return false;
  auto* const pointer = reinterpret_cast<void*>(block.address);
  const bool wrong_size = form == 1;
  const auto done = call([&] {
    if (unnamed) return memory_.try_deallocate(pointer);
    if (wrong_size) return memory_.try_deallocate(pointer, bytes{block.size + 1}, ref(on));
    if (form < 4) return memory_.try_deallocate(pointer, bytes{block.size}, ref(on));
    return memory_.try_deallocate(pointer, ref(on));
  });
  if (wrong_size) {
    require(faulted_ || (!done && done.code() == errc::invalid_argument), "a wrong size was taken");
  } else {
    require(done || faulted_, "a free failed");
  }
  if (!unnamed && done) released_ &= ~(1U << on);
  // A driver that fails may keep a free from being done; then the block is what it was.
  const auto still = memory_.size_of(pointer);
  require(!still || faulted_, "a freed block is live");
  if (still) {
    require(still->count() == block.size, "a block that was not freed has another size");
    return true;
  }
  remove_live(index);
  return true;
}

void program::free_wrongly() {
  const unsigned choice = input_.next();
  const std::size_t on = (choice >> 2) % stream_count;
  device_address address = 0;
  if (choice % 4 == 0 && !dead_.empty()) {
    address = dead_[input_.below(dead_.size())];
  } else if (choice % 4 == 1 && !live_.empty()) {
    const tracked_block& block = live_[input_.below(live_.size())];
    address = block.address + std::min<std::uint64_t>(512, block.size);
  } else {
    address = std::uint64_t{input_.next()} << (choice >> 2) | input_.next();
  }
  if (address == 0 || extents_.contains(address)) return;
  auto* const pointer = reinterpret_cast<void*>(address);
  const auto done = call([&] {
    return choice < 128 ? memory_.try_deallocate(pointer)
                        : memory_.try_deallocate(pointer, ref(on));
  });
  require(!done, "a free of nothing succeeded");
  const bool typed = done.code() == errc::foreign_pointer || done.code() == errc::double_free;
  require(typed || faulted_, "a wrong free: " + done.error().message());
  require(!memory_.size_of(pointer), "a foreign pointer has a size");
  if (on != 0 && !captures(on))
    require(!memory_.record_stream(pointer, ref(on)),
            "a stream was recorded for a foreign pointer");
}

// --- Around it ----------------------------------------------------------------------------------

void program::synchronize(std::size_t stream) {
  if (captures(stream)) return;
  succeed(ref(stream).synchronize(), "synchronize");
  for (tracked_block& each : live_) each.users &= ~(1U << stream);
}

/// Another stream takes the place of one that ends, with notice or without.
void program::change_stream() {
  const unsigned choice = input_.next();
  const std::size_t stream = (choice >> 2) % stream_count;
  if (captures(stream)) return;
  if ((choice & 1U) != 0) {
    const auto done = call([&] { return memory_.release_stream(ref(stream)); });
    require(done || faulted_, "release_stream");
    released_ |= 1U << stream;
  }
  if ((choice & 2U) == 0 || stream < 2) return;
  if ((choice & 128U) != 0) {
    synchronize(stream);
  } else if (std::any_of(live_.begin(), live_.end(), [&](const tracked_block& each) {
               return (each.users >> stream & 1U) != 0;
             })) {
    return;  // its work could not be waited for any more
  }
  for (tracked_block& each : live_) {
    each.recorded &= ~(1U << stream);
    each.orphan = each.orphan || each.home == stream;
  }
  succeed(owned_[stream]->close(), "close");
  owned_[stream] = weir::stream::create(fixture_.gpu()).value();
  released_ &= ~(1U << stream);
}

void program::change_limits() {
  const unsigned choice = input_.next();
  const std::uint64_t limit = (choice & 1U) != 0 ? bytes::max().count() : input_.next() * mib / 2;
  const std::size_t tag_index = (choice >> 1) % 4;
  if (tag_index == tags_.size()) {
    const auto done = call([&] { return memory_.set_limit(bytes{limit}); });
    require(done || faulted_, "set_limit");
    return;
  }
  const auto done = call([&] { return memory_.set_limit(tags_[tag_index], bytes{limit}); });
  require(done || faulted_, "set_limit of a tag");
  if (done)
    tag_limits_[tag_index] =
        std::max(limit, memory_.stats(tags_[tag_index]).allocated.current.count());
}

void program::change_pools() {
  const unsigned choice = input_.next();
  if (pools_.size() >= 3 || (!pools_.empty() && choice % 2 == 0)) {
    std::swap(pools_[choice % pools_.size()], pools_.back());
    static_cast<void>(call([&] { return pools_.pop_back(), 0; }));
    return;
  }
  auto pool = call([&] { return memory_.create_pool("fuzz"); });
  require(pool || faulted_, "create_pool");
  if (pool) pools_.push_back(*std::move(pool));
}

void program::trim() {
  const unsigned choice = input_.next();
  if (choice % 4 == 0) {
    const auto done = call([&] { return memory_.empty_cache(); });
    require(done || faulted_, "empty_cache");
    return;
  }
  const auto done = call([&] { return memory_.trim(bytes{choice * mib / 2}); });
  require(done || faulted_, "trim");
}

void program::begin_capture(std::size_t on) {
  auto claimed = call([&] { return memory_.begin_capture(ref(on)); });
  require(claimed || faulted_, "begin_capture");
  if (!claimed) return;
  claim_ = *std::move(claimed);
  succeed(fixture_.machine().driver().stream_begin_capture(ref(on).handle(),
                                                           driver::CU_STREAM_CAPTURE_MODE_RELAXED),
          "begin capture");
  capturing_ = on;
}

void program::end_capture() {
  const driver::table& cuda = fixture_.machine().driver();
  const std::size_t on = *std::exchange(capturing_, std::nullopt);
  driver::CUgraph captured = nullptr;
  succeed(cuda.stream_end_capture(ref(on).handle(), &captured), "end capture");
  call([&] { return claim_.end_capture(), 0; });
  const unsigned choice = input_.next();
  graph instantiated;
  bool tied = false;
  if ((choice & 1U) != 0) {
    const auto done = call([&] { return claim_.tie_to_graph(captured); });
    require(done || faulted_, "tie_to_graph");
    tied = done.has_value();
  }
  succeed(cuda.graph_instantiate(&instantiated.exec, captured, 0), "instantiate");
  succeed(cuda.graph_destroy(captured), "destroying a graph");
  if (!tied || (choice & 2U) != 0) instantiated.memory = std::move(claim_);
  claim_ = {};
  succeed(cuda.graph_launch(instantiated.exec, ref(on).handle()), "replay");
  for (tracked_block& each : live_) {
    if (std::exchange(each.captured, false)) each.users |= 1U << on;
  }
  graphs_.push_back(std::move(instantiated));
}

void program::drop_graph() {
  if (graphs_.empty()) return;
  std::swap(graphs_[input_.below(graphs_.size())], graphs_.back());
  graph dropped = std::move(graphs_.back());
  graphs_.pop_back();
  succeed(fixture_.machine().driver().graph_exec_destroy(dropped.exec),
          "destroying an executable graph");
  call([&] { return dropped.memory = graph_memory{}, 0; });
}

void program::inspect() {
  switch (input_.below(4)) {
    case 0:
      memory_.reset_peaks();
      return;
    case 1:
      require(!memory_.explain(bytes{mib}, ref(capturing_ ? 0 : 2)).text().empty(),
              "nothing to explain");
      return;
    default:
      return check_metadata();
  }
}

// --- Checks -------------------------------------------------------------------------------------

void program::check(bool everything) {
  require(fixture_.hazards() == 0, "streams met in memory");
  require(fixture_.take_reports() == 0 || ever_faulted_, "an error was reported");
  if (!everything) return;
  const memory_stats now = memory_.stats();
  require(now.requested.current <= now.allocated.current, "requested > allocated");
  require(now.allocated.current <= now.active.current, "allocated > active");
  require(now.active.current <= now.reserved.current, "active > reserved");
  require(now.cached == now.reserved.current - now.active.current, "cached is not what is left");
  require(now.blocks.current == live_.size(), "blocks is not what is live");
  require(now.requested.current == bytes{live_bytes_}, "requested is not what is live");
  const std::string violation = heap::central_heap::of(memory_).inspection().check();
  require(violation.empty(), violation);
  check_metadata();
}

void program::check_metadata() {
  std::map<weir::tag, bytes> by_tag;
  for (const tracked_block& each : live_) by_tag[each.tag] += bytes{each.size};
  for (const tag_stats& each : memory_.stats_by_tag())
    require(each.stats.requested.current == by_tag[each.tag], "a tag's requested is wrong");
  const allocator_snapshot snapshot = memory_.snapshot();
  bytes requested;
  bytes reserved;
  std::size_t blocks = 0;
  for (const pool_snapshot& pool : snapshot.pools) {
    requested += pool.stats.requested.current;
    reserved += pool.stats.reserved.current;
    device_address end = 0;
    for (const block_info& each : pool.blocks) {
      require(each.address >= end, "pieces of a snapshot overlap");
      end = each.address + each.size.count();
      if (each.state != block_state::live) continue;
      ++blocks;
      const auto known = extents_.find(each.address);
      require(known != extents_.end() && known->second <= end,
              "the snapshot shows a block that is not live");
    }
  }
  require(requested == snapshot.stats.requested.current, "pools do not add up to requested");
  require(reserved == snapshot.stats.reserved.current, "pools do not add up to reserved");
  require(blocks == live_.size(), "the snapshot misses a live block");
}

bool program::end() {
  fault_ = 0;
  if (capturing_) end_capture();
  check(true);
  while (!live_.empty()) require(free_on(live_.size() - 1, 0, 2), "the last free");
  while (!graphs_.empty()) drop_graph();
  pools_.clear();
  succeed(memory_.set_limit(bytes::max()), "no limit");
  succeed(memory_.empty_cache(), "empty_cache at the end");
  // A replay that is under way keeps its graph, and the graph its memory; twice, because the end of
  // a graph is noticed by the next call.
  fixture_.machine().run_until_idle();
  for (int i = 0; i < 2; ++i) succeed(memory_.empty_cache(), "empty_cache at rest");
  check(true);
  const memory_stats remaining = memory_.stats();
  require(remaining.reserved.current == bytes{} || ever_faulted_,
          "all is freed, but memory stays reserved");
  const auto closed = memory_.close();
  require(closed || ever_faulted_, "close");
  fixture_.machine().run_until_idle();
  for (auto& each : owned_) each.reset();
  const bool clean = fixture_.used() == fixture_.used_when_empty();
  require(clean || ever_faulted_, "the device has not got everything back");
  require(fixture_.hazards() == 0, "streams met in memory at the end");
  static_cast<void>(fixture_.take_reports());
  return clean;
}

}  // namespace weir::fuzz
