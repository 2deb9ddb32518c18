// SPDX-License-Identifier: Apache-2.0
// Collecting events from threads, and the thread that writes them.
#include "trace/event_collector.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/condition.hpp"
#include "base/thread_end.hpp"
#include "heap/asymmetric_barrier.hpp"
#include "trace/ticks.hpp"

namespace weir { inline namespace v0 { namespace trace {

constinit thread_local local_ring last_ring{};

namespace {

using namespace std::chrono_literals;

std::atomic<std::uint64_t> next_serial{1};
std::atomic<std::uint32_t> forks{0};

/// How wrong the order of two threads' clocks can be; see ticks().
constexpr double slack_nanoseconds = 10'000;

/// The rings that the calling thread has opened, marked as ended when it ends.
struct thread_rings {
  struct entry {
    std::uint64_t collector;
    std::shared_ptr<trace::ring> ring;
  };
  std::vector<entry> all;
  ~thread_rings();
};

constinit thread_local bool thread_ended = false;

thread_rings::~thread_rings() {
  last_ring = {};
  thread_ended = true;
  for (const entry& each : all) each.ring->end_thread();
}

/// By memory_event_kind.
constexpr std::array kinds = {
    trace_kind::allocate,    trace_kind::deallocate,    trace_kind::record_stream,
    trace_kind::wait,        trace_kind::reserve,       trace_kind::move,
    trace_kind::release,     trace_kind::out_of_memory, trace_kind::capture_begin,
    trace_kind::capture_end, trace_kind::pool_created,  trace_kind::pool_released,
    trace_kind::limit,       trace_kind::suspended,     trace_kind::resumed,
};
static_assert(kinds.size() == static_cast<std::size_t>(memory_event_kind::resumed) + 1);

}  // namespace

event_collector::event_collector(trace_writer writer, recorder_options options)
    : options_{std::move(options)},
      serial_{next_serial.fetch_add(1)},
      forks_at_start_{forks.load()},
      writer_{std::move(writer)},
      merger_{static_cast<std::uint64_t>(slack_nanoseconds / nanoseconds_per_tick())} {}

event_collector::~event_collector() { static_cast<void>(stop()); }

void event_collector::prepare() noexcept {
  heap::asymmetric_barrier::prepare();
  static const int status =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(status);
}

bool event_collector::is_forked() const noexcept {
  return forks.load(std::memory_order_relaxed) != forks_at_start_;
}

result<void> event_collector::begin() {
  writer_.begin(options_.program, options_.device, options_.device_capacity.count());
  if (options_.stacks) stacks_.prepare();
  try {
    worker_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& refusal) {
    writer_.abandon();
    return error{{.code = errc::system,
                  .detail = std::string{"a recorder needs a thread: "} + refusal.what()}};
  }
  return {};
}

// --- The threads whose events are recorded ------------------------------------------------------

inline ring* event_collector::own_ring() noexcept {
  if (last_ring.collector == serial_) [[likely]]
    return last_ring.ring;
  return open_ring();
}

/// Null: the thread is past its end, or there is no host memory for a ring.
[[gnu::noinline]] ring* event_collector::open_ring() noexcept {
  if (thread_ended) return nullptr;
  auto* const rings = detail::until_thread_end<thread_rings>::own();
  if (rings == nullptr) return nullptr;
  try {
    auto& opened = rings->all;
    const auto known = std::find_if(opened.begin(), opened.end(),
                                    [&](const auto& each) { return each.collector == serial_; });
    if (known != opened.end()) {
      last_ring = {serial_, known->ring.get()};
      return last_ring.ring;
    }
    const std::lock_guard lock{mutex_};
    // Rings of recordings that are over are of no use to anybody.
    std::erase_if(opened, [](const auto& each) { return each.ring.use_count() == 1; });
    opened.reserve(opened.size() + 1);
    opened.push_back({serial_, add_ring()});
    last_ring = {serial_, opened.back().ring.get()};
    return last_ring.ring;
  } catch (...) {
    return nullptr;
  }
}

/// With the mutex held.
std::shared_ptr<ring> event_collector::add_ring() {
  auto added = std::make_shared<ring>(options_.ring_events, ring_count_,
                                      static_cast<std::uint64_t>(syscall(SYS_gettid)));
  rings_.push_back(added);
  if (ring_count_ < UINT16_MAX) ++ring_count_;
  return added;
}

// Inlined by force: out of line it costs as much again, for what `fill` has at hand.
template <class Fill>
[[gnu::always_inline]] inline void event_collector::put(ring& target, const Fill& fill) noexcept {
  if (target.is_full() && !wait_for_room(target)) [[unlikely]]
    return;
  target.begin();
  if (!recording_.load(heap::asymmetric_barrier::load_order)) [[unlikely]] {
    target.cancel();
    return;
  }
  record& next = target.next();
  next.time = ticks();
  fill(next);
  target.publish();
  if (target.is_half_way()) [[unlikely]]
    wake();
}

[[gnu::noinline]] bool event_collector::wait_for_room(ring& target) noexcept {
  if (options_.drop_when_full) {
    target.drop();
    wake();
    return false;
  }
  while (target.is_full()) {
    if (!recording_.load(std::memory_order_relaxed)) return false;
    wake();
    std::this_thread::sleep_for(20us);
  }
  return true;
}

void event_collector::wake() noexcept {
  const std::lock_guard lock{mutex_};
  if (std::exchange(woken_, true)) return;
  wake_up_.notify_one();
}

void event_collector::add(const memory_event& event, const void* caller) noexcept {
  if (is_forked()) [[unlikely]]
    return;
  std::uint64_t other = event.other.number();
  if (options_.stacks && caller != nullptr &&
      (event.kind == memory_event_kind::allocate || event.kind == memory_event_kind::deallocate))
      [[unlikely]] {
    other = stacks_.capture(caller);
  }
  const auto fill = [&](record& out) {
    out.address = event.address;
    out.size = event.size;
    out.extra = event.kind == memory_event_kind::move ? event.other_address : event.rounded;
    out.stream = event.stream.number();
    out.other = other;
    out.pool = event.pool.number();
    out.tag = event.tag;
    out.kind = kinds[static_cast<std::size_t>(event.kind)];
  };
  if (ring* const own = own_ring()) [[likely]] {
    put(*own, fill);
    return;
  }
  put_shared(fill);
}

/// A thread that is past its end can own nothing; such threads share a ring.
template <class Fill>
[[gnu::noinline]] void event_collector::put_shared(const Fill& fill) noexcept {
  const std::lock_guard ring_lock{shared_ring_mutex_};
  try {
    if (shared_ring_ == nullptr) {
      const std::lock_guard lock{mutex_};
      shared_ring_ = add_ring();
    }
  } catch (...) {
    const std::lock_guard lock{mutex_};
    ++dropped_before_;
    return;
  }
  put(*shared_ring_, fill);
}

void event_collector::marker(std::string_view text) noexcept {
  if (is_forked() || !recording_.load(std::memory_order_relaxed)) return;
  try {
    std::string copy{text};
    std::uint32_t number = 0;
    {
      const std::lock_guard lock{mutex_};
      texts_.push_back(std::move(copy));
      number = text_count_++;
    }
    const auto fill = [&](record& out) {
      out = {.time = out.time, .other = number, .kind = trace_kind::marker};
    };
    if (ring* const own = own_ring()) return put(*own, fill);
    put_shared(fill);
  } catch (...) {
    const std::lock_guard lock{mutex_};
    ++dropped_before_;
  }
}

// --- Waiting for the worker ---------------------------------------------------------------------

result<void> event_collector::flush() {
  if (is_forked()) return error{{.code = errc::driver_gone, .detail = "the process was forked"}};
  std::unique_lock lock{mutex_};
  const std::uint64_t request = ++flushes_requested_;
  woken_ = true;
  wake_up_.notify_one();
  while (flushes_done_ < request && !ended_) detail::wait_on(done_, lock);
  return status_;
}

result<void> event_collector::stop() {
  if (is_forked()) {
    // The thread is the parent's; so is the file.
    if (worker_.joinable()) new std::thread{std::move(worker_)};
    return {};
  }
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
    woken_ = true;
    wake_up_.notify_one();
  }
  const std::lock_guard join_lock{join_mutex_};
  if (worker_.joinable()) worker_.join();
  const std::lock_guard lock{mutex_};
  return status_;
}

recorder_stats event_collector::stats() const {
  const std::lock_guard lock{mutex_};
  recorder_stats totals = stats_;
  totals.threads = ring_count_;
  totals.dropped = dropped_before_;
  for (const auto& each : rings_) totals.dropped += each->dropped();
  return totals;
}

// --- The worker ---------------------------------------------------------------------------------

void event_collector::run() {
  for (bool last = false; !last;) {
    std::uint64_t flushes = 0;
    {
      std::unique_lock lock{mutex_};
      wake_up_.wait_for(lock, options_.flush_every, [&] { return woken_; });
      woken_ = false;
      flushes = flushes_requested_;
      last = stopping_;
    }
    result<void> written;
    try {
      written = drain_rings(last || flushes != flushes_done_);
      if (written && last) {
        const std::uint64_t dropped = stats().dropped;
        written = writer_.finish(dropped);
      }
    } catch (const std::bad_alloc&) {
      written =
          error{{.code = errc::no_host_memory, .detail = "the recorder ran out of host memory"}};
    }
    if (!written) fail(written.error());
    const std::lock_guard lock{mutex_};
    stats_.written = writer_.events();
    stats_.file_size = bytes{writer_.file_size()};
    if (!written && status_) status_ = std::move(written);
    if (!status_) last = true;
    ended_ = last;
    flushes_done_ = flushes;
    done_.notify_all();
  }
  recording_.store(false);
}

/// `all`: also the latest events, though it takes a moment until their order is certain.
result<void> event_collector::drain_rings(bool all) {
  if (all)
    std::this_thread::sleep_for(
        std::chrono::nanoseconds{static_cast<std::int64_t>(slack_nanoseconds)});
  std::vector<std::shared_ptr<ring>> rings;
  {
    const std::lock_guard lock{mutex_};
    if (stopping_) recording_.store(false, std::memory_order_relaxed);
    rings = rings_;
  }
  // A writer that took its time before this is busy still, or has published; see ring.
  const std::uint64_t now = ticks();
  heap::asymmetric_barrier::heavy();
  for (const auto& each : rings) {
    auto until = each->settled();
    for (; !until; until = each->settled()) std::this_thread::yield();
    each->drain(*until, merger_.incoming());
    writer_.add_thread(each->number(), each->thread());
  }
  if (stats().dropped != 0) merger_.expect_gaps();
  const bool is_over = !recording_.load(std::memory_order_relaxed);
  merged_.clear();
  merger_.merge_until(is_over ? UINT64_MAX : now, merged_);

  // Texts and stacks were added before the records that name them.
  std::vector<std::string> texts;
  {
    const std::lock_guard lock{mutex_};
    texts.swap(texts_);
    std::erase_if(rings_, [&](const auto& each) {
      if (!each->is_done()) return false;
      dropped_before_ += each->dropped();
      return true;
    });
  }
  for (const std::string& each : texts) writer_.add_text(each);
  for (const auto& each : stacks_.since(stacks_written_)) {
    writer_.add_stack(each);
    ++stacks_written_;
  }
  return writer_.write(merged_);
}

/// No thread waits for a worker that cannot go on.
void event_collector::fail(const error& reason) noexcept {
  recording_.store(false);
  report_error(reason);
}

}}}  // namespace weir::v0::trace
