// SPDX-License-Identifier: Apache-2.0
// The live allocations of a stream pool, by address.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/mutex.hpp"
#include "weir/base/bytes.hpp"
#include "weir/base/ids.hpp"
#include "weir/base/result.hpp"
#include "weir/device/stream.hpp"
#include "weir/device/virtual_memory.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace pools {

/// One allocation, as long as it is live.
struct stream_block {
  device_address base = 0;  ///< the driver's; the user's may lie behind it, for alignment
  bytes size{};             ///< as asked for; 0: not known
  stream_ref stream;
  /// The capture it is a node of. Then it is the graph's: each launch allocates it anew.
  std::optional<capture_id> capture{};
  weir::tag tag{};           ///< of the thread that asked for it
  std::uint64_t thread = 0;  ///< of a per-thread default stream: detail::thread_of()
  bool stream_gone = false;  ///< its stream was destroyed
};

/// What is live, how much of it there is, and how much there was at most.
///
/// An address is in the table from the moment the driver hands it out until just before the driver
/// gets it back, so that a thread which gets the same address next finds its place free. Freed
/// addresses stay, as dead ones, until there are too many of them: that tells a second free from a
/// foreign pointer, and spares a heap call when the driver hands the address out again.
///
/// Owned by the state of its pool. Any thread. One lock, held for a look-up; only stream_closing()
/// and the rare sweep of dead addresses go through the whole table. About 90 bytes an address.
class allocation_table {
 public:
  struct counts {
    std::uint64_t active = 0;
    std::uint64_t peak = 0;
    bytes size{};
  };
  struct taken_block {
    stream_block block;
    bool still_listed = false;  ///< a graph's memory, freed outside the graph's capture
  };

  /// A live block already there was freed behind our back: it makes room.
  void add(device_address address, const stream_block& block);
  /// False: the address is live, and nothing was changed.
  [[nodiscard]] bool add_unless_live(device_address address, const stream_block& block);
  /// The block, if it may be freed on `stream`; to be asked before the driver is asked about the
  /// stream. bad_stream: it is known to be gone.
  [[nodiscard]] result<stream_block> check(device_address address, const stream_ref& stream) const;
  /// The block that is now to be freed, on a stream that takes part in `capture` if there is one.
  /// foreign_pointer; double_free; capture_forbidden: memory from outside the capture.
  [[nodiscard]] result<taken_block> take(device_address address,
                                         const std::optional<capture_id>& capture);
  /// foreign_pointer, double_free.
  [[nodiscard]] result<stream_block> find(device_address address) const;
  [[nodiscard]] bool contains(device_address address) const;
  void stream_closing(const stream_ref& stream) noexcept;

  [[nodiscard]] counts count() const;
  /// Of a pool that ends with live allocations: what they are.
  [[nodiscard]] error leak() const;
  void reset_peak();

 private:
  struct entry {
    stream_block block;
    bool live = true;
  };
  using table = std::unordered_map<device_address, entry>;

  [[nodiscard]] result<table::const_iterator> live_entry(device_address address) const
      WEIR_REQUIRES(mutex_);
  [[nodiscard]] error why_not_live(device_address address) const WEIR_REQUIRES(mutex_);
  void enter(device_address address, const stream_block& block) WEIR_REQUIRES(mutex_);
  [[nodiscard]] bool is_live(device_address address) const WEIR_REQUIRES(mutex_);
  void count_in(const stream_block& block) noexcept WEIR_REQUIRES(mutex_);
  void count_out(const stream_block& block) noexcept WEIR_REQUIRES(mutex_);

  mutable detail::mutex mutex_;
  table entries_ WEIR_GUARDED_BY(mutex_);
  std::size_t dead_ WEIR_GUARDED_BY(mutex_) = 0;
  counts counts_ WEIR_GUARDED_BY(mutex_);
};

}}}  // namespace weir::v0::pools
