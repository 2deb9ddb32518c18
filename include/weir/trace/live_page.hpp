// SPDX-License-Identifier: Apache-2.0
// weir::live_page: an allocator's counters in shared memory, for other processes to read while it
// runs.
//
// `weir top PID` shows it. A program that does not publish it by itself does so where the option
// `live` is on, or the environment variable WEIR_LIVE.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/error.hpp"
#include "weir/base/export.hpp"
#include "weir/base/print.hpp"
#include "weir/base/result.hpp"
#include "weir/observe/stats.hpp"

namespace weir { inline namespace v0 {

struct live_page_options {
  /// The page is written anew when a reader asks, once in this time at most; at least 10 ms.
  std::chrono::milliseconds period{500};
};

/// A page of shared memory, /dev/shm/weir.<process>.<number>, with the counters of one allocator.
///
/// A thread of its own takes the allocator's stats and a snapshot and writes them there when a
/// reader asks; what the allocator's users pay is what these calls cost them, and nothing while
/// nobody reads. Where a snapshot takes long it is taken less often, so that snapshots take half a
/// per cent of the time at most. The page goes with this object, or with the allocator, whichever
/// is first; it does not keep the allocator alive, but for the moment of a snapshot. For the same
/// user alone. In a forked child it does nothing.
class WEIR_API live_page {
 public:
  /// invalid_argument: the period is too short; system: no shared memory to be had.
  [[nodiscard]] static result<std::unique_ptr<live_page>> publish(
      caching_allocator& allocator, const live_page_options& options = {});
  ~live_page();
  live_page(const live_page&) = delete;
  live_page& operator=(const live_page&) = delete;

  [[nodiscard]] const std::string& path() const noexcept;

 private:
  class publisher;
  explicit live_page(std::unique_ptr<publisher> state) noexcept;

  std::unique_ptr<publisher> state_;
};

struct live_tag {
  std::string name;  ///< empty: no tag
  byte_gauge requested;
  std::uint64_t blocks = 0;
};

struct live_stream {
  stream_id stream{};
  bytes live{};   ///< allocated for it
  bytes bound{};  ///< freed by it, and its own until it has completed what was queued then
};

/// The content of a page, of one moment.
struct live_view {
  int process = 0;
  int device = 0;
  std::string card{};  ///< the device's UUID, "GPU-…"; empty where the driver does not say
  bytes device_total{};
  std::uint64_t updates = 0;  ///< how often the page was written
  memory_stats stats;
  std::vector<live_tag> tags;        ///< most bytes first, 32 at most
  std::vector<live_stream> streams;  ///< most bytes first, 32 at most
};

/// The pages of a process, in the order in which they were published, each at most its period old.
/// A process that does not answer for two periods (2 seconds at most) is shown as it was last.
/// not_found: it has none; invalid_argument: a file of that name is no such page; bad_version:
/// another weir wrote it.
[[nodiscard]] WEIR_API result<std::vector<live_view>> read_live_pages(int process);

struct live_listing {
  std::vector<live_view> views{};  ///< by process, and in the order in which it published them
  std::vector<error> refused{};    ///< files that look like live pages and are none, and why
};

/// The pages of all running processes of this user. One that does not answer for 100 ms is shown as
/// it was last. Pages that processes left behind when they crashed are removed; so they are where
/// another is published.
[[nodiscard]] WEIR_API live_listing read_all_live_pages();
/// The views by their words, and the errors of files that were refused.
[[nodiscard]] WEIR_API std::string to_string(const live_listing& listing);

/// "name weights, requested 3 MiB (peak 4 MiB), blocks 2", "stream 7, live 3 MiB, bound 0 B".
[[nodiscard]] WEIR_API std::string to_string(const live_tag& tag);
[[nodiscard]] WEIR_API std::string to_string(const live_stream& stream);
/// A line for the process and its device, the stats, and a line for each tag and stream.
[[nodiscard]] WEIR_API std::string to_string(const live_view& view);

}}  // namespace weir::v0
