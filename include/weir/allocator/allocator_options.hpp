// SPDX-License-Identifier: Apache-2.0
// weir::allocator_options: the settings of a caching_allocator.
#pragma once

#include <cstdint>
#include <string>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/options.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// The settings of one allocator. Each is the option of the same name in docs/options.md, there
/// with heap_ before it; docs/tuning.md explains their costs and benefits.
///
/// A member that the program does not set has the value of the option's environment variable, such
/// as WEIR_HEAP_LIMIT, or the default of docs/options.md. An invalid variable is reported once and
/// counts as unset.
struct allocator_options {
  /// How memory is placed.
  placement_policy policy = detail::environment_default(&options::heap_policy);
  /// The most physical memory that is taken from the driver; 0: no limit.
  bytes limit = detail::environment_default(&options::heap_limit);
  /// The same limit as a percentage of the device's memory, from 1 to 100; 100: no limit. The
  /// smaller of the two applies.
  int limit_percent = detail::environment_default(&options::heap_limit_percent);
  /// The most freed memory that a thread keeps for its own next requests, besides one large block;
  /// 64 MiB by default and at most 1 GiB. 0 switches thread caches off.
  bytes thread_cache = detail::environment_default(&options::heap_thread_cache);
  /// Which work must be complete before freed memory leaves its stream.
  crossing_rule crossing = detail::environment_default(&options::heap_crossing);
  /// Unwatched streams may be destroyed without release_stream().
  bool allow_unreleased_streams =
      detail::environment_default(&options::heap_allow_unreleased_streams);
  /// A stream may be made to wait for other streams, to get their freed memory instead of new
  /// memory.
  bool queued_waits = detail::environment_default(&options::heap_queued_waits);
  /// Every request queries whether its stream is being captured (22 ns).
  bool detect_captures = detail::environment_default(&options::heap_detect_captures);
  /// Moved memory is unmapped at its old address at once, so that a dangling pointer faults.
  bool debug_unmap = detail::environment_default(&options::heap_debug_unmap);
  /// Reports of double frees, foreign pointers and leaks contain the call stacks of the block's
  /// allocation and free. Costs some microseconds for each allocation and free.
  bool debug_stacks = detail::environment_default(&options::heap_debug_stacks);
  /// Memory bugs fault, or are reported where they happen: docs/debugging.md. Every value except
  /// off implies debug_stacks and crossing_rule::declared_uses, disables thread caches, and makes
  /// frees wait. `policy` then applies to memory that cannot be checked: of graphs, in segments,
  /// and suspendable.
  debug_checks debug = detail::environment_default(&options::heap_debug);
  /// How many addresses of freed blocks the checks keep unmapped.
  bytes debug_quarantine = detail::environment_default(&options::heap_debug_quarantine);
  /// Blocks can be shared with other processes.
  bool exportable = detail::environment_default(&options::heap_exportable);
  /// Whether network cards can reach mapped memory (GPUDirect RDMA). They can always reach plain
  /// memory, which the policy classic uses.
  rdma_use rdma = detail::environment_default(&options::heap_rdma);

  /// Where to record the memory events: a file, or "off".
  std::string record = "off";
  /// The recording contains the call stack of every allocation and free.
  bool record_stacks = false;
  /// Publishes the allocator's memory to other processes of the same user, for `weir top`.
  bool live = false;
  /// The share of the card, as parse_budget() reads it, or "off".
  std::string budget = "off";

  /// The settings that `source` contains for an allocator.
  [[nodiscard]] WEIR_API static allocator_options from(const options& source);

  friend bool operator==(const allocator_options&, const allocator_options&) = default;
};

/// "policy=balanced,limit=0,…", with the values as set() reads them.
[[nodiscard]] WEIR_API std::string to_string(const allocator_options& choices);

}}  // namespace weir::v0
