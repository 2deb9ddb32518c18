// SPDX-License-Identifier: Apache-2.0
// The streams of a device that weir may query at any time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "weir/base/ids.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/stream_watch.hpp"

namespace weir { inline namespace v0 { namespace detail {

/// Streams that last until weir learns of their end: those it created itself, and those that are
/// watched (weir/device/stream_watch.hpp). Whoever keeps memory in stream order queries all of
/// them, whether or not they were ever named in a request.
///
/// Owned by its device's state. Any thread; a source is called without the lock, by added_since().
class stream_registry {
 public:
  /// A stream, and a number that no other registration of it has.
  struct entry {
    stream_ref stream;
    std::uint64_t registration;
  };

  /// A stream with a known id. Adding it twice is adding it once.
  void add(const stream_ref& stream);
  void remove(stream_id id) noexcept;
  /// 0: the stream is not here.
  [[nodiscard]] std::uint64_t registration_of(stream_id id) noexcept;

  [[nodiscard]] std::uint64_t add_source(stream_source source);
  /// Waits until no other thread is inside the source, which is then not called any more.
  void remove_source(std::uint64_t key) noexcept;

  /// Queries the sources; then returns all streams, if any was added since `seen`, which becomes
  /// now.
  [[nodiscard]] std::vector<entry> added_since(std::uint64_t& seen);

 private:
  struct source {
    source(std::uint64_t number, stream_source asked) : key{number}, ask{std::move(asked)} {}

    const std::uint64_t key;
    const stream_source ask;
    int threads = 0;  ///< that are inside it now; with the mutex
  };
  /// Keeps the sources that there are from being removed.
  class asked_sources;

  void query_sources();
  [[nodiscard]] std::vector<entry>::iterator find(stream_id id) noexcept;

  std::mutex mutex_;
  std::vector<entry> streams_;
  std::vector<std::shared_ptr<source>> sources_;
  std::condition_variable answered_;  // notified when a source has no thread inside any more
  std::uint64_t next_key_ = 1;
  std::atomic<std::uint64_t> additions_{0};
  std::atomic<bool> has_sources_{false};
};

}}}  // namespace weir::v0::detail
