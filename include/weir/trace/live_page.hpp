// weir::live_page: what an allocator holds, for other processes to look at while it runs.
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
#include "weir/base/export.hpp"
#include "weir/base/result.hpp"
#include "weir/observe/stats.hpp"

namespace weir::inline v0 {

struct live_page_options {
  /// The page is written anew when somebody looks, once in this time at most; at least 10 ms.
  std::chrono::milliseconds period{500};
};

/// A page of shared memory, /dev/shm/weir.<process>.<number>, that tells what one allocator holds.
///
/// A thread of its own takes the allocator's stats and a snapshot and writes them there when a
/// reader asks; what the allocator's users pay is what these calls cost them, and nothing while
/// nobody looks. Where a look takes long it is done less often, so that looking takes half a per
/// cent of the time at most. The page goes with this object, or with the allocator, whichever is
/// first; it does not keep the allocator alive, but for the moment of a look. For the same user
/// alone. In a forked child it does nothing.
class WEIR_API live_page {
 public:
  /// invalid_argument: the period is too short; system: no shared memory to be had.
  [[nodiscard]] static result<std::unique_ptr<live_page>> publish(
      caching_allocator& of, const live_page_options& how = {});
  ~live_page();
  live_page(const live_page&) = delete;
  live_page& operator=(const live_page&) = delete;

  [[nodiscard]] const std::string& path() const noexcept;

 private:
  class publisher;
  explicit live_page(std::unique_ptr<publisher> inside) noexcept;

  std::unique_ptr<publisher> inside_;
};

struct live_tag {
  std::string name;  ///< empty: no tag
  gauge requested;
  std::uint64_t blocks = 0;
};

struct live_stream {
  stream_id stream{};
  std::uint64_t live = 0;   ///< allocated for it
  std::uint64_t bound = 0;  ///< freed by it, and its own until it has got past that
};

/// What a page said, of one moment.
struct live_view {
  int process = 0;
  int device = 0;
  std::uint64_t device_total = 0;
  std::uint64_t updates = 0;  ///< how often the page was written
  memory_stats stats;
  std::vector<live_tag> tags;        ///< most bytes first, 32 at most
  std::vector<live_stream> streams;  ///< most bytes first, 32 at most
};

/// The pages of a process, in the order in which they were published, each at most its period old.
/// A process that does not answer for two periods (2 seconds at most) is shown as it was last.
/// not_found: it has none; invalid_argument: what is there is no such page; bad_version: another
/// weir wrote it.
[[nodiscard]] WEIR_API result<std::vector<live_view>> read_live_pages(int process);

}  // namespace weir::inline v0
