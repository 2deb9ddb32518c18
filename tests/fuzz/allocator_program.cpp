// What the bytes of an input mean, and what must hold after each of them.
#include "allocator_program.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "heap/allocator_state.hpp"

namespace weir::fuzz {
namespace {

constexpr std::uint64_t kib = std::uint64_t{1} << 10;
constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t capacity = 128 * mib;
constexpr std::uint64_t overhead = 16 * mib;

constexpr std::uint64_t rounded(std::uint64_t size) { return (size + 511) / 512 * 512; }

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::abort();
}

/// What must succeed because nothing of the allocator is in it.
template <class Result>
void succeed(const Result& outcome, const char* what) {
  if (!outcome) require(false, std::string{what} + ": " + outcome.error().message());
}

void succeed(driver::CUresult outcome, const char* what) {
  require(outcome == driver::CUDA_SUCCESS, std::string{what} + " failed");
}

options read_options(script& text) {
  using enum placement_policy;
  constexpr std::array policies{balanced,   throughput, compact,
                                never_move, classic,    classic_expandable};
  constexpr std::array<std::uint64_t, 4> caches{4 * mib, 0, 64 * kib, mib};
  options chosen;
  chosen.heap_policy = policies[text.below(policies.size())];
  const unsigned more = text.next();
  chosen.heap_thread_cache = bytes{caches[more % caches.size()]};
  chosen.heap_detect_captures = (more & 4) != 0;
  chosen.heap_debug_unmap = (more & 8) != 0;
  return chosen;
}

constexpr std::array tag_names{"fuzz a", "fuzz b"};

}  // namespace

// --- The machine --------------------------------------------------------------------------------

world::world() {
  sim::machine_options settings;
  settings.mode = sim::progress::manual;
  settings.devices.front().capacity = bytes{capacity + overhead};
  settings.devices.front().context_overhead = bytes{overhead};
  machine_ = sim::machine::create(settings).value();
  machine_->on_hazard([this](const sim::hazard& found) {
    ++hazards_;
    std::fprintf(stderr, "%s\n", found.story().c_str());
  });
  runtime_ = runtime::open_simulated(machine_).value();
  gpu_ = runtime_->device(device_id{0}).value();
  static_cast<void>(gpu_->memory_info());  // makes the context
  used_when_empty_ = used();
  set_error_handler(
      [](const error&, void* self) noexcept { ++static_cast<world*>(self)->reports_; }, this);
}

world::~world() { set_error_handler(nullptr); }

// --- The program --------------------------------------------------------------------------------

program::program(world& at, script text)
    : at_{at},
      text_{text},
      memory_{caching_allocator::create(at.gpu(), read_options(text_)).value()} {
  check_mask_ = (text_.next() & 1) != 0 ? 0 : 7;
  for (std::size_t i = 0; i < tag_names.size(); ++i) tags_[i] = tag::named(tag_names[i]).value();
  tag_limits_.fill(bytes::max().count());
  for (std::size_t i = 2; i < lane_count; ++i) owned_[i] = stream::create(at.gpu()).value();
}

program::~program() = default;

bool program::run() {
  const context_scope bound{at_.gpu()};
  while (!text_.over()) {
    step();
    ++steps_;
    check((steps_ & check_mask_) == 0);
  }
  return end();
}

template <class Call>
auto program::call(const Call& made) {
  faulted_ = fault_ != 0;
  ever_faulted_ = ever_faulted_ || faulted_;
  if (faulted_) at_.machine().fail_any(std::exchange(fault_, 0), fault_code_);
  auto outcome = made();
  at_.machine().clear_faults();
  return outcome;
}

stream_ref program::ref(std::size_t which) const {
  if (which == 0) return stream_ref::legacy(at_.gpu());
  if (which == 1) return stream_ref::per_thread(at_.gpu());
  return owned_[which]->ref();
}

void program::step() {
  const unsigned what = text_.next() % 32;
  if (what < 9) return allocate();
  if (what < 14) return free_one();
  if (what < 17) return use();
  switch (what) {
    case 17:
      return record();
    case 18:
    case 19:
      for (std::size_t steps = text_.below(16); steps > 0; --steps)
        static_cast<void>(at_.machine().step());
      return;
    case 20:
      return synchronize(text_.below(lane_count));
    case 21:
    case 22:
      return give_back();
    case 23:
      return change_stream();
    case 24:
      return change_limits();
    case 25:
      return change_pools();
    case 26:
      return capturing_ ? end_capture() : begin_capture(2 + text_.below(lane_count - 2));
    case 27:
      return drop_graph();
    case 28:
      return free_wrongly();
    case 29:
    case 30: {
      using namespace driver;
      constexpr std::array codes{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                 CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE};
      fault_ = 1 + text_.below(24);
      fault_code_ = codes[text_.below(codes.size())];
      return;
    }
    default:
      return look();
  }
}

// --- Memory -------------------------------------------------------------------------------------

std::uint64_t program::read_size() {
  const unsigned kind = text_.next() % 8;
  const std::uint64_t much = text_.next();
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
  const unsigned how = text_.next();
  const std::size_t on = (how >> 3) % lane_count;
  const std::size_t tagged = how % 3;
  std::uint64_t size = read_size();
  std::uint64_t alignment = 512;
  if (how >= 240) alignment = std::uint64_t{1} << text_.below(24);  // 4 MiB and 8 MiB are too much
  if (how == 239) size = bytes::max().count() - text_.below(4);
  const bool bad = alignment > 2 * mib || size > 2 * mib * mib;
  if (!bad) last_size_ = size;
  const tag_scope scope{tags_[tagged]};
  const bool pooled = !pools_.empty() && how % 8 == 7 && !captures(on);
  const memory_pool from = pooled ? pools_[how % pools_.size()] : memory_pool{};
  // A handle as C code has it; inside a capture it cannot be asked for its number.
  stream_ref name = ref(on);
  if (how % 5 == 4 && !captures(on)) name = stream_ref{at_.gpu(), name.handle()};

  const std::uint64_t reserved = memory_.stats().reserved.current;
  const auto made = call([&] {
    if (from && how % 16 == 7) return from.try_allocate(bytes{size}, name, bytes{alignment});
    const auto route = from ? std::make_optional<pool_scope>(from) : std::nullopt;
    return memory_.try_allocate(bytes{size}, name, bytes{alignment});
  });
  if (!made) {
    const errc code = made.code();
    const bool limited = tag_limits_[tagged] != bytes::max().count();
    const bool usual = code == errc::out_of_memory || (code == errc::limit_exceeded && limited);
    require(faulted_ || usual || bad, "allocate: " + made.error().message());
    return;
  }
  require(!bad, "a request that nobody can meet was met");
  require((*made == nullptr) == (size == 0), "null for a size above 0, or the reverse");
  if (*made == nullptr) return;
  released_ &= ~(1U << on);
  require(reinterpret_cast<device_address>(*made) % std::max<std::uint64_t>(alignment, 512) == 0,
          "not aligned");
  const memory_stats after = memory_.stats();
  require(after.reserved.current <= reserved || after.reserved.current <= memory_.limit().count(),
          "more was reserved than the limit allows");
  // Asked for, because a classic segment may hand out more than the request rounds to.
  require(memory_.stats(tags_[tagged]).requested.current <= tag_limits_[tagged],
          "more is allocated than the tag's limit allows");
  adopt(*made, size, on);
}

void program::adopt(void* made, std::uint64_t size, std::size_t on) {
  const auto address = reinterpret_cast<device_address>(made);
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
                   .used = 1U << on,
                   .captured = captures(on)});
}

void program::forget(std::size_t which) {
  const piece& gone = live_[which];
  extents_.erase(gone.address);
  live_bytes_ -= gone.size;
  dead_.push_back(gone.address);
  std::swap(live_[which], live_.back());
  live_.pop_back();
}

/// Everything that uses the block, but what is in `but`, comes before what is queued on the stream
/// next. False: a capture is in the way.
bool program::order(piece& what, std::size_t on, lane_set but) {
  const lane_set others = what.used & ~(1U << on) & ~but;
  if (others == 0) return true;
  if (captures(on) || (capturing_ && (others >> *capturing_ & 1U) != 0)) return false;
  for (std::size_t each = 0; each < lane_count; ++each) {
    if ((others >> each & 1U) == 0) continue;
    auto mark = event::create(at_.gpu()).value();
    succeed(mark.record(ref(each)), "record");
    succeed(ref(on).wait(mark), "wait");
  }
  return true;
}

void program::use() {
  if (live_.empty()) return;
  piece& what = live_[text_.below(live_.size())];
  const unsigned how = text_.next();
  const std::size_t on = (how & 1U) != 0 || what.captured ? what.home : (how >> 1) % lane_count;
  if (captures(on) != what.captured || (released_ >> on & 1U) != 0 || !order(what, on, 0)) return;
  what.used |= 1U << on;
  succeed(at_.machine().launch(ref(on).handle(), "write", {sim::writes(what.address, what.size)}),
          "launch");
}

void program::record() {
  if (live_.empty()) return;
  piece& what = live_[text_.below(live_.size())];
  const std::size_t on = text_.below(lane_count);
  if (what.captured || captures(on)) return;
  const auto done =
      call([&] { return memory_.record_stream(reinterpret_cast<void*>(what.address), ref(on)); });
  require(done || faulted_, "record_stream");
  if (!done) return;
  what.recorded |= 1U << on;
  released_ &= ~(1U << on);
}

void program::free_one() {
  if (live_.empty()) return;
  const std::size_t which = text_.below(live_.size());
  const unsigned how = text_.next();
  const std::size_t on = (how & 1U) != 0 ? live_[which].home : (how >> 4) % lane_count;
  static_cast<void>(free_on(which, on, how >> 1 & 7U));
}

/// Frees the block on that stream, or on none, with its size, a wrong one or without; false if a
/// capture is in the way.
bool program::free_on(std::size_t which, std::size_t on, unsigned form) {
  piece& what = live_[which];
  // Without a stream it is that of the allocation. Where that is gone, or said to be used no more,
  // nothing can be put before the free any more.
  const bool at_rest = !what.orphan && (released_ >> what.home & 1U) == 0;
  const lane_set to_order = what.used & ~what.recorded & ~(what.orphan ? 0 : 1U << what.home);
  const bool unnamed = form == 0 && (at_rest || to_order == 0);
  if (unnamed || what.captured) on = what.home;
  if (!order(what, on, what.recorded)) return false;
  auto* const pointer = reinterpret_cast<void*>(what.address);
  const bool wrong_size = form == 1;
  const auto done = call([&] {
    if (unnamed) return memory_.try_deallocate(pointer);
    if (wrong_size) return memory_.try_deallocate(pointer, bytes{what.size + 1}, ref(on));
    if (form < 4) return memory_.try_deallocate(pointer, bytes{what.size}, ref(on));
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
    require(still->count() == what.size, "a block that was not freed has another size");
    return true;
  }
  forget(which);
  return true;
}

void program::free_wrongly() {
  const unsigned how = text_.next();
  const std::size_t on = (how >> 2) % lane_count;
  device_address address = 0;
  if (how % 4 == 0 && !dead_.empty()) {
    address = dead_[text_.below(dead_.size())];
  } else if (how % 4 == 1 && !live_.empty()) {
    const piece& what = live_[text_.below(live_.size())];
    address = what.address + std::min<std::uint64_t>(512, what.size);
  } else {
    address = std::uint64_t{text_.next()} << (how >> 2) | text_.next();
  }
  if (address == 0 || extents_.contains(address)) return;
  auto* const pointer = reinterpret_cast<void*>(address);
  const auto done = call([&] {
    return how < 128 ? memory_.try_deallocate(pointer) : memory_.try_deallocate(pointer, ref(on));
  });
  require(!done, "a free of nothing succeeded");
  const bool typed = done.code() == errc::foreign_pointer || done.code() == errc::double_free;
  require(typed || faulted_, "a wrong free: " + done.error().message());
  require(!memory_.size_of(pointer), "a stranger has a size");
  if (on != 0 && !captures(on))
    require(!memory_.record_stream(pointer, ref(on)), "a stranger was recorded");
}

// --- Around it ----------------------------------------------------------------------------------

void program::synchronize(std::size_t which) {
  if (captures(which)) return;
  succeed(ref(which).synchronize(), "synchronize");
  for (piece& each : live_) each.used &= ~(1U << which);
}

/// Another stream takes the place of one that ends, with notice or without.
void program::change_stream() {
  const unsigned how = text_.next();
  const std::size_t which = (how >> 2) % lane_count;
  if (captures(which)) return;
  if ((how & 1U) != 0) {
    const auto done = call([&] { return memory_.release_stream(ref(which)); });
    require(done || faulted_, "release_stream");
    released_ |= 1U << which;
  }
  if ((how & 2U) == 0 || which < 2) return;
  if ((how & 128U) != 0) {
    synchronize(which);
  } else if (std::any_of(live_.begin(), live_.end(),
                         [&](const piece& each) { return (each.used >> which & 1U) != 0; })) {
    return;  // its work could not be waited for any more
  }
  for (piece& each : live_) {
    each.recorded &= ~(1U << which);
    each.orphan = each.orphan || each.home == which;
  }
  succeed(owned_[which]->close(), "close");
  owned_[which] = stream::create(at_.gpu()).value();
  released_ &= ~(1U << which);
}

void program::change_limits() {
  const unsigned how = text_.next();
  const std::uint64_t much = (how & 1U) != 0 ? bytes::max().count() : text_.next() * mib / 2;
  const std::size_t which = (how >> 1) % 4;
  if (which == tags_.size()) {
    const auto done = call([&] { return memory_.set_limit(bytes{much}); });
    require(done || faulted_, "set_limit");
    return;
  }
  const auto done = call([&] { return memory_.set_limit(tags_[which], bytes{much}); });
  require(done || faulted_, "set_limit of a tag");
  if (done) tag_limits_[which] = std::max(much, memory_.stats(tags_[which]).allocated.current);
}

void program::change_pools() {
  const unsigned how = text_.next();
  if (pools_.size() >= 3 || (!pools_.empty() && how % 2 == 0)) {
    std::swap(pools_[how % pools_.size()], pools_.back());
    static_cast<void>(call([&] { return pools_.pop_back(), 0; }));
    return;
  }
  auto made = call([&] { return memory_.create_pool("fuzz"); });
  require(made || faulted_, "create_pool");
  if (made) pools_.push_back(*std::move(made));
}

void program::give_back() {
  const unsigned how = text_.next();
  if (how % 4 == 0) {
    const auto done = call([&] { return memory_.empty_cache(); });
    require(done || faulted_, "empty_cache");
    return;
  }
  const auto done = call([&] { return memory_.trim(bytes{how * mib / 2}); });
  require(done || faulted_, "trim");
}

void program::begin_capture(std::size_t on) {
  auto claimed = call([&] { return memory_.begin_capture(ref(on)); });
  require(claimed || faulted_, "begin_capture");
  if (!claimed) return;
  claim_ = *std::move(claimed);
  succeed(at_.machine().driver().stream_begin_capture(ref(on).handle(),
                                                      driver::CU_STREAM_CAPTURE_MODE_RELAXED),
          "begin capture");
  capturing_ = on;
}

void program::end_capture() {
  const driver::table& cuda = at_.machine().driver();
  const std::size_t on = *std::exchange(capturing_, std::nullopt);
  driver::CUgraph captured = nullptr;
  succeed(cuda.stream_end_capture(ref(on).handle(), &captured), "end capture");
  call([&] { return claim_.end(), 0; });
  const unsigned how = text_.next();
  graph made;
  bool tied = false;
  if ((how & 1U) != 0) {
    const auto done = call([&] { return claim_.keep_with(captured); });
    require(done || faulted_, "keep_with");
    tied = done.has_value();
  }
  succeed(cuda.graph_instantiate(&made.exec, captured, 0), "instantiate");
  succeed(cuda.graph_destroy(captured), "destroying a graph");
  if (!tied || (how & 2U) != 0) made.memory = std::move(claim_);
  claim_ = {};
  succeed(cuda.graph_launch(made.exec, ref(on).handle()), "replay");
  for (piece& each : live_) {
    if (std::exchange(each.captured, false)) each.used |= 1U << on;
  }
  graphs_.push_back(std::move(made));
}

void program::drop_graph() {
  if (graphs_.empty()) return;
  std::swap(graphs_[text_.below(graphs_.size())], graphs_.back());
  graph gone = std::move(graphs_.back());
  graphs_.pop_back();
  succeed(at_.machine().driver().graph_exec_destroy(gone.exec), "destroying an executable graph");
  call([&] { return gone.memory = graph_memory{}, 0; });
}

void program::look() {
  switch (text_.below(4)) {
    case 0:
      memory_.reset_peaks();
      return;
    case 1:
      require(!memory_.explain(bytes{mib}, ref(capturing_ ? 0 : 2)).text().empty(),
              "nothing to explain");
      return;
    default:
      return check_books();
  }
}

// --- Checks -------------------------------------------------------------------------------------

void program::check(bool everything) {
  require(at_.hazards() == 0, "streams met in memory");
  require(at_.take_reports() == 0 || ever_faulted_, "an error was reported");
  if (!everything) return;
  const memory_stats now = memory_.stats();
  require(now.requested.current <= now.allocated.current, "requested > allocated");
  require(now.allocated.current <= now.active.current, "allocated > active");
  require(now.active.current <= now.reserved.current, "active > reserved");
  require(now.cached == now.reserved.current - now.active.current, "cached is not what is left");
  require(now.blocks.current == live_.size(), "blocks is not what is live");
  require(now.requested.current == live_bytes_, "requested is not what is live");
  const std::string wrong = heap::allocator_state::of(memory_).check();
  require(wrong.empty(), wrong);
  check_books();
}

void program::check_books() {
  std::map<weir::tag, std::uint64_t> by_tag;
  for (const piece& each : live_) by_tag[each.tag] += each.size;
  for (const tag_stats& each : memory_.stats_by_tag())
    require(each.stats.requested.current == by_tag[each.tag], "a tag's requested is wrong");
  const allocator_snapshot all = memory_.snapshot();
  std::uint64_t requested = 0;
  std::uint64_t reserved = 0;
  std::size_t blocks = 0;
  for (const pool_snapshot& pool : all.pools) {
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
  require(requested == all.stats.requested.current, "pools do not add up to requested");
  require(reserved == all.stats.reserved.current, "pools do not add up to reserved");
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
  // a graph is noticed by the next look.
  at_.machine().run_until_idle();
  for (int i = 0; i < 2; ++i) succeed(memory_.empty_cache(), "empty_cache at rest");
  check(true);
  const memory_stats left = memory_.stats();
  require(left.reserved.current == 0 || ever_faulted_, "all is freed, but memory stays reserved");
  const auto closed = memory_.close();
  require(closed || ever_faulted_, "close");
  at_.machine().run_until_idle();
  for (auto& each : owned_) each.reset();
  const bool clean = at_.used() == at_.used_when_empty();
  require(clean || ever_faulted_, "the device has not got everything back");
  require(at_.hazards() == 0, "streams met in memory at the end");
  static_cast<void>(at_.take_reports());
  return clean;
}

}  // namespace weir::fuzz
