// SPDX-License-Identifier: Apache-2.0
// Recorders, and the entries of the driver's own memory in their traces.
#include "recordings.hpp"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "remarks.hpp"
#include "settings.hpp"

namespace weir_preload {

namespace {

constexpr std::uint64_t unit = 512;  // as a caching allocator rounds

/// The process that `weir run` became.
long started_process() noexcept {
  const char* const number = secure_getenv("WEIR_RUN_PROCESS");
  return number != nullptr ? std::atol(number) : ::getpid();
}

std::uint16_t driver_tag() noexcept {
  static const std::uint16_t number = [] {
    const auto tag = weir::tag::named("driver");
    return tag ? tag->number() : std::uint16_t{0};
  }();
  return number;
}

/// Whether this process has tried to record; forked children inherit it.
std::atomic<bool> has_begun{false};

/// Whether a file has the name of a trace, of this process or of a child.
bool has_traces(const std::filesystem::path& record) {
  const std::string name = record.stem().string();
  const std::string begin = name.substr(0, name.find("%p"));
  const auto folder = record.has_parent_path() ? record.parent_path() : ".";
  std::error_code code;
  for (const auto& each : std::filesystem::directory_iterator{folder, code})
    if (each.path().filename().string().starts_with(begin)) return true;
  return false;
}

/// At the end of the program, not of its children: it may use weir itself, which this library does
/// not see.
[[gnu::destructor]] void report_empty_recording() noexcept try {
  const std::string& record = settings::get().record;
  if (record.empty() || has_begun || ::getpid() != started_process() || has_traces(record)) return;
  say_once(remark::empty_recording);
} catch (...) {
  // No host memory for the check.
}

/// Memory of the driver's is reserved for one block and released with it.
void emit(weir::recorder& recorder, const served_block& block, bool begins) noexcept {
  using weir::memory_event_kind;
  const std::uint64_t rounded = (block.bytes + unit - 1) / unit * unit;
  const weir::memory_event of_block{
      .kind = begins ? memory_event_kind::allocate : memory_event_kind::deallocate,
      .tag = driver_tag(),
      .device = weir::device_id{block.device},
      .stream = weir::stream_id{block.stream},
      .address = block.address,
      .size = block.bytes,
      .rounded = rounded};
  const weir::memory_event of_memory{
      .kind = begins ? memory_event_kind::reserve : memory_event_kind::release,
      .device = weir::device_id{block.device},
      .address = block.address,
      .size = rounded};
  recorder.on_event(begins ? of_memory : of_block);
  recorder.on_event(begins ? of_block : of_memory);
}

void tell_of(const weir::error& reason) noexcept {
  try {
    say_once(remark::recording_ended, reason.message());
  } catch (const std::bad_alloc&) {
    say_once(remark::recording_ended);
  }
}

}  // namespace

signals_blocked::signals_blocked() noexcept {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

signals_blocked::~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

weir::recorder* recordings::of(int device, const real_driver& driver) noexcept try {
  if (settings::get().record.empty()) return nullptr;
  const std::lock_guard lock{mutex_};
  if (const auto known = recorders_.find(device); known != recorders_.end())
    return known->second.get();
  return start(device, driver);
} catch (...) {
  return nullptr;
}

/// Where the next trace of this process goes: what is there stays.
std::string recordings::next_path() {
  for (;;) {
    std::string path =
        trace_path(settings::get().record, ++started_, ::getpid(), started_process());
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) return path;
  }
}

weir::recorder* recordings::start(int device, const real_driver& driver) {
  has_begun = true;
  auto& entry = recorders_[device];
  std::array<char, 256> name{};
  std::size_t capacity = 0;
  static_cast<void>(driver.calls.device_get_name(name.data(), name.size() - 1, device));
  static_cast<void>(driver.calls.device_total_mem(&capacity, device));
  const signals_blocked quiet;
  auto started = weir::recorder::start(next_path(), {.stacks = settings::get().heap.record_stacks,
                                                     .device = name.data(),
                                                     .device_capacity = weir::bytes{capacity}});
  if (started) {
    entry = *std::move(started);
  } else {
    say_once(remark::no_recording, started.error().message());
  }
  return entry.get();
}

void recordings::allocated(const served_block& block, const real_driver& driver) noexcept {
  if (weir::recorder* const recorder = of(block.device, driver)) emit(*recorder, block, true);
}

void recordings::freed(const served_block& block, const real_driver& driver) noexcept {
  if (weir::recorder* const recorder = of(block.device, driver)) emit(*recorder, block, false);
}

void recordings::stop() noexcept {
  const std::lock_guard lock{mutex_};
  for (const auto& [device, recorder] : recorders_)
    if (recorder != nullptr) {
      if (const auto stopped = recorder->close(); !stopped) tell_of(stopped.error());
    }
}

}  // namespace weir_preload
