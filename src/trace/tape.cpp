// Taking events from threads, and the thread that writes them down.
#include "trace/tape.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "heap/asymmetric_barrier.hpp"
#include "trace/ticks.hpp"

namespace weir::inline v0::trace {

constinit thread_local local_ring here{};

namespace {

using namespace std::chrono_literals;

std::atomic<std::uint64_t> next_serial{1};
std::atomic<std::uint32_t> forks{0};

/// How wrong the order of two threads' clocks can be; see ticks().
constexpr double slack_nanoseconds = 10'000;

/// The rings that the calling thread has opened, told when it ends.
struct thread_rings {
  struct entry {
    std::uint64_t tape;
    std::shared_ptr<ring> where;
  };
  std::vector<entry> all;
  ~thread_rings();
};

constinit thread_local bool thread_is_over = false;

thread_rings::~thread_rings() {
  here = {};
  thread_is_over = true;
  for (const entry& each : all) each.where->end_thread();
}

thread_rings& opened_here() {
  thread_local thread_rings rings;
  return rings;
}

/// By memory_event_kind.
constexpr std::array kinds = {
    trace_kind::allocate,    trace_kind::deallocate,    trace_kind::record_stream,
    trace_kind::wait,        trace_kind::reserve,       trace_kind::move,
    trace_kind::release,     trace_kind::out_of_memory, trace_kind::capture_begin,
    trace_kind::capture_end, trace_kind::pool_created,  trace_kind::pool_released,
    trace_kind::limit,
};
static_assert(kinds.size() == static_cast<std::size_t>(memory_event_kind::limit) + 1);

}  // namespace

tape::tape(transcript into, recorder_options how)
    : how_{std::move(how)},
      serial_{next_serial.fetch_add(1)},
      born_under_{forks.load()},
      transcript_{std::move(into)},
      merger_{static_cast<std::uint64_t>(slack_nanoseconds / nanoseconds_per_tick())} {}

tape::~tape() { static_cast<void>(stop()); }

void tape::prepare() noexcept {
  heap::asymmetric_barrier::prepare();
  static const int refused =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(refused);
}

bool tape::forked() const noexcept { return forks.load(std::memory_order_relaxed) != born_under_; }

result<void> tape::begin() {
  transcript_.begin(how_.program, how_.device, how_.device_capacity.count());
  if (how_.stacks) stacks_.prepare();
  try {
    worker_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& refused) {
    transcript_.abandon();
    return error{.code = errc::system,
                 .detail = std::string{"a recorder needs a thread: "} + refused.what()};
  }
  return {};
}

// --- The threads that have something to tell ----------------------------------------------------

inline ring* tape::own_ring() noexcept {
  if (here.tape == serial_) [[likely]]
    return here.where;
  return open_ring();
}

/// Null: the thread is past its end, or there is no host memory for a ring.
[[gnu::noinline]] ring* tape::open_ring() noexcept {
  if (thread_is_over) return nullptr;
  try {
    auto& opened = opened_here().all;
    const auto known = std::find_if(opened.begin(), opened.end(),
                                    [&](const auto& each) { return each.tape == serial_; });
    if (known != opened.end()) {
      here = {serial_, known->where.get()};
      return here.where;
    }
    const std::lock_guard lock{mutex_};
    // Rings of recordings that are over are of no use to anybody.
    std::erase_if(opened, [](const auto& each) { return each.where.use_count() == 1; });
    opened.reserve(opened.size() + 1);
    opened.push_back({serial_, add_ring()});
    here = {serial_, opened.back().where.get()};
    return here.where;
  } catch (...) {
    return nullptr;
  }
}

/// With the mutex held.
std::shared_ptr<ring> tape::add_ring() {
  auto made = std::make_shared<ring>(how_.ring_events, ring_count_,
                                     static_cast<std::uint64_t>(syscall(SYS_gettid)));
  rings_.push_back(made);
  if (ring_count_ < UINT16_MAX) ++ring_count_;
  return made;
}

// Inlined by force: out of line it costs as much again, for what `fill` has at hand.
template <class Fill>
[[gnu::always_inline]] inline void tape::put(ring& into, const Fill& fill) noexcept {
  if (into.full() && !wait_for_room(into)) [[unlikely]]
    return;
  into.begin();
  if (!recording_.load(heap::asymmetric_barrier::load_order)) [[unlikely]] {
    into.give_up();
    return;
  }
  record& what = into.next();
  what.time = ticks();
  fill(what);
  into.publish();
  if (into.half_way()) [[unlikely]]
    wake();
}

[[gnu::noinline]] bool tape::wait_for_room(ring& into) noexcept {
  if (how_.drop_when_full) {
    into.drop();
    wake();
    return false;
  }
  while (into.full()) {
    if (!recording_.load(std::memory_order_relaxed)) return false;
    wake();
    std::this_thread::sleep_for(20us);
  }
  return true;
}

void tape::wake() noexcept {
  const std::lock_guard lock{mutex_};
  if (std::exchange(woken_, true)) return;
  wakes_.notify_one();
}

void tape::take(const memory_event& what) noexcept {
  if (forked()) [[unlikely]]
    return;
  std::uint64_t other = what.other.number();
  if (how_.stacks && (what.kind == memory_event_kind::allocate ||
                      what.kind == memory_event_kind::deallocate)) [[unlikely]] {
    other = stacks_.here(3);
  }
  const auto fill = [&](record& into) {
    into.address = what.address;
    into.size = what.size;
    into.extra = what.kind == memory_event_kind::move ? what.other_address : what.rounded;
    into.stream = what.stream.number();
    into.other = other;
    into.pool = what.pool.number();
    into.tag = what.tag;
    into.kind = kinds[static_cast<std::size_t>(what.kind)];
  };
  if (ring* const own = own_ring()) [[likely]] {
    put(*own, fill);
    return;
  }
  put_late(fill);
}

/// A thread that is past its end can own nothing; such threads share a ring.
template <class Fill>
[[gnu::noinline]] void tape::put_late(const Fill& fill) noexcept {
  const std::lock_guard late{late_mutex_};
  try {
    if (late_ == nullptr) {
      const std::lock_guard lock{mutex_};
      late_ = add_ring();
    }
  } catch (...) {
    const std::lock_guard lock{mutex_};
    ++dropped_before_;
    return;
  }
  put(*late_, fill);
}

void tape::marker(std::string_view text) noexcept {
  if (forked() || !recording_.load(std::memory_order_relaxed)) return;
  try {
    std::string copy{text};
    std::uint32_t number = 0;
    {
      const std::lock_guard lock{mutex_};
      texts_.push_back(std::move(copy));
      number = text_count_++;
    }
    const auto fill = [&](record& into) {
      into = {.time = into.time, .other = number, .kind = trace_kind::marker};
    };
    if (ring* const own = own_ring()) return put(*own, fill);
    put_late(fill);
  } catch (...) {
    const std::lock_guard lock{mutex_};
    ++dropped_before_;
  }
}

// --- Waiting for the worker ---------------------------------------------------------------------

result<void> tape::flush() {
  if (forked()) return error{.code = errc::driver_gone, .detail = "the process was forked"};
  std::unique_lock lock{mutex_};
  const std::uint64_t mine = ++flushes_asked_;
  woken_ = true;
  wakes_.notify_one();
  done_.wait(lock, [&] { return flushes_done_ >= mine || ended_; });
  return state_;
}

result<void> tape::stop() {
  if (forked()) {
    // The thread is the parent's; so is the file.
    if (worker_.joinable()) new std::thread{std::move(worker_)};
    return {};
  }
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
    woken_ = true;
    wakes_.notify_one();
  }
  const std::lock_guard joining{joining_};
  if (worker_.joinable()) worker_.join();
  const std::lock_guard lock{mutex_};
  return state_;
}

recorder_stats tape::stats() const {
  const std::lock_guard lock{mutex_};
  recorder_stats now = stats_;
  now.threads = ring_count_;
  now.dropped = dropped_before_;
  for (const auto& each : rings_) now.dropped += each->dropped();
  return now;
}

// --- The worker ---------------------------------------------------------------------------------

void tape::run() {
  for (bool last = false; !last;) {
    std::uint64_t flushes = 0;
    {
      std::unique_lock lock{mutex_};
      wakes_.wait_for(lock, how_.flush_every, [&] { return woken_; });
      woken_ = false;
      flushes = flushes_asked_;
      last = stopping_;
    }
    result<void> done;
    try {
      done = empty_rings(last || flushes != flushes_done_);
      if (done && last) {
        const std::uint64_t dropped = stats().dropped;
        done = transcript_.finish(dropped);
      }
    } catch (const std::bad_alloc&) {
      done = error{.code = errc::system, .detail = "the recorder ran out of host memory"};
    }
    if (!done) fail(done.error());
    const std::lock_guard lock{mutex_};
    stats_.written = transcript_.events();
    stats_.file_bytes = transcript_.file_bytes();
    if (!done && state_) state_ = std::move(done);
    if (!state_) last = true;
    ended_ = last;
    flushes_done_ = flushes;
    done_.notify_all();
  }
  recording_.store(false);
}

/// All: also what happened last, though it takes a moment until its order is certain.
result<void> tape::empty_rings(bool all) {
  if (all)
    std::this_thread::sleep_for(
        std::chrono::nanoseconds{static_cast<std::int64_t>(slack_nanoseconds)});
  std::vector<std::shared_ptr<ring>> rings;
  {
    const std::lock_guard lock{mutex_};
    if (stopping_) recording_.store(false, std::memory_order_relaxed);
    rings = rings_;
  }
  // Who took the time before this is busy still, or has published; see ring.
  const std::uint64_t now = ticks();
  heap::asymmetric_barrier::heavy();
  for (const auto& each : rings) {
    auto until = each->settled();
    for (; !until; until = each->settled()) std::this_thread::yield();
    each->empty(*until, merger_.incoming());
    transcript_.add_thread(each->number(), each->thread());
  }
  const bool over = !recording_.load(std::memory_order_relaxed);
  merged_.clear();
  merger_.take_until(over ? UINT64_MAX : now, merged_);

  // Texts and stacks were noted before the records that name them.
  std::vector<std::string> texts;
  {
    const std::lock_guard lock{mutex_};
    texts.swap(texts_);
    std::erase_if(rings_, [&](const auto& each) {
      if (!each->done()) return false;
      dropped_before_ += each->dropped();
      return true;
    });
  }
  for (const std::string& each : texts) transcript_.add_text(each);
  for (const auto& each : stacks_.since(stacks_told_)) {
    transcript_.add_stack(each);
    ++stacks_told_;
  }
  return transcript_.write(merged_);
}

/// Nobody waits for a worker that cannot go on.
void tape::fail(const error& why) noexcept {
  recording_.store(false);
  report_error(why);
}

}  // namespace weir::inline v0::trace
