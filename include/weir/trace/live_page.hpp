// SPDX-License-Identifier: Apache-2.0
// weir::live_page: an allocator's counters in shared memory, for other processes to read while it
// runs.
//
// `weir top PID` shows it. An unmodified program publishes it if the option `live` or the
// environment variable WEIR_LIVE is on.
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

/// The choices of a live_page.
struct live_page_options {
  /// The page is updated when a reader requests it, at most once in this time; at least 10 ms.
  std::chrono::milliseconds period{500};
};

/// A page of shared memory, /dev/shm/weir.<process>.<number>, with the counters of one allocator.
///
/// When a reader requests it, a background thread takes the allocator's stats and a snapshot and
/// writes them to the page. Requests of the allocator pay what these calls cost, and nothing
/// without a reader. Slow snapshots are taken less often, so that they take at most half a per cent
/// of the time. The page ends with this object or with the allocator, whichever is first; it keeps
/// the allocator alive only during a snapshot. Only processes of the same user can read it. In a
/// forked child it does nothing.
class WEIR_API live_page {
 public:
  /// Publishes a page for the allocator. invalid_argument: the period is too short; system: shared
  /// memory is not available.
  [[nodiscard]] static result<std::unique_ptr<live_page>> publish(
      caching_allocator& allocator, const live_page_options& options = {});
  ~live_page();
  live_page(const live_page&) = delete;
  live_page& operator=(const live_page&) = delete;

  /// The file of the page.
  [[nodiscard]] const std::string& path() const noexcept;

 private:
  class publisher;
  explicit live_page(std::unique_ptr<publisher> state) noexcept;

  std::unique_ptr<publisher> state_;
};

/// The memory of one tag.
struct live_tag {
  std::string name;          ///< empty: no tag
  byte_gauge requested;      ///< requested and not freed
  std::uint64_t blocks = 0;  ///< live blocks
};

/// The memory of one stream.
struct live_stream {
  stream_id stream{};  ///< which stream
  bytes live{};        ///< live memory allocated for it
  bytes bound{};       ///< free memory that only this stream can reuse now
};

/// The content of a page, a consistent snapshot.
struct live_view {
  int process = 0;       ///< the number of the process
  int device = 0;        ///< the number of the device in that process
  std::string card{};    ///< the device's UUID, "GPU-…"; empty if the driver does not report it
  bytes device_total{};  ///< the device's memory
  std::uint64_t updates = 0;         ///< how often the page was written
  memory_stats stats;                ///< of the allocator
  std::vector<live_tag> tags;        ///< most bytes first, at most 32
  std::vector<live_stream> streams;  ///< most bytes first, at most 32
};

/// The pages of a process, in the order of their publication, each at most its period old. If the
/// process does not answer for two periods (at most 2 seconds), the last content is returned.
/// not_found: it has no page; invalid_argument: a file of that name is not a page; bad_version:
/// another version of weir wrote it.
[[nodiscard]] WEIR_API result<std::vector<live_view>> read_live_pages(int process);

/// The pages of all processes of this user.
struct live_listing {
  std::vector<live_view> views{};  ///< by process, in the order of publication
  std::vector<error> refused{};    ///< files with names of pages that are not valid, and why
};

/// The pages of all running processes of this user. If a process does not answer for 100 ms, its
/// last content is returned. Removes pages of crashed processes, as publish() does.
[[nodiscard]] WEIR_API live_listing read_all_live_pages();
/// The text of each view, and the errors of refused files.
[[nodiscard]] WEIR_API std::string to_string(const live_listing& listing);

/// "name weights, requested 3 MiB (peak 4 MiB), blocks 2", "stream 7, live 3 MiB, bound 0 B".
[[nodiscard]] WEIR_API std::string to_string(const live_tag& tag);
[[nodiscard]] WEIR_API std::string to_string(const live_stream& stream);
/// A line for the process and its device, the stats, and a line for each tag and stream.
[[nodiscard]] WEIR_API std::string to_string(const live_view& view);

}}  // namespace weir::v0
