// SPDX-License-Identifier: Apache-2.0
// weir::allocator_options: what can be chosen when a caching_allocator is created.
#pragma once

#include <cstdint>
#include <string>

#include "weir/base/bytes.hpp"
#include "weir/base/export.hpp"
#include "weir/base/options.hpp"
#include "weir/base/print.hpp"

namespace weir { inline namespace v0 {

/// The choices of one allocator. Each is the option of the same name in docs/options.md, there with
/// heap_ before it; docs/tuning.md tells what they cost and gain.
///
/// A member that the program does not set has the value of the option's environment variable, such
/// as WEIR_HEAP_LIMIT, or the default that docs/options.md names. A variable that cannot be read is
/// reported once and counts as unset.
struct allocator_options {
  /// How memory is placed.
  placement_policy policy = detail::environment_default(&options::heap_policy);
  /// The most physical memory that is taken from the driver; 0: no limit.
  bytes limit = detail::environment_default(&options::heap_limit);
  /// The same as a share of the device's memory, from 1 to 100; 100: no limit. The smaller of the
  /// two counts.
  int limit_percent = detail::environment_default(&options::heap_limit_percent);
  /// The most freed memory that a thread keeps for its own next requests, besides one large block;
  /// 64 MiB by default and at most 1 GiB. 0 switches thread caches off.
  bytes thread_cache = detail::environment_default(&options::heap_thread_cache);
  /// What must be done before freed memory leaves its stream.
  crossing_rule crossing = detail::environment_default(&options::heap_crossing);
  /// Streams that nobody watches may be destroyed without release_stream().
  bool allow_unreleased_streams =
      detail::environment_default(&options::heap_allow_unreleased_streams);
  /// A stream may be made to wait for others to get their freed memory instead of new memory.
  bool queued_waits = detail::environment_default(&options::heap_queued_waits);
  /// Every request asks the driver whether its stream is being captured (22 ns).
  bool detect_captures = detail::environment_default(&options::heap_detect_captures);
  /// Memory that was moved is unmapped at its old address at once: a dangling pointer faults.
  bool debug_unmap = detail::environment_default(&options::heap_debug_unmap);
  /// A double free, a foreign pointer and a leak are told with the calls in which the block was
  /// allocated and freed; some microseconds for each allocation and free.
  bool debug_stacks = detail::environment_default(&options::heap_debug_stacks);
  /// Memory bugs are made to fault or are reported where they happen: docs/debugging.md. Other than
  /// off it means debug_stacks and crossing_rule::declared_uses, no thread caches, and that frees
  /// wait. `policy` is then that of memory which cannot be checked: of graphs, segments, and what
  /// is suspendable.
  debug_checks debug = detail::environment_default(&options::heap_debug);
  /// How many addresses that keeps unmapped after their blocks were freed.
  bytes debug_quarantine = detail::environment_default(&options::heap_debug_quarantine);
  /// Blocks can be shared with other processes.
  bool exportable = detail::environment_default(&options::heap_exportable);
  /// Whether network cards can reach what is mapped (GPUDirect RDMA). Plain memory, which the
  /// policy classic uses, can be reached by them anyway.
  rdma_use rdma = detail::environment_default(&options::heap_rdma);

  /// Where to record what happens to the memory: a file, or "off".
  std::string record = "off";
  bool record_stacks = false;
  /// Tells other processes of the same user what is held, for `weir top`.
  bool live = false;
  /// The share of the card, as parse_budget() reads it, or "off".
  std::string budget = "off";

  /// Those of the process's options that concern an allocator.
  [[nodiscard]] WEIR_API static allocator_options from(const options& source);

  friend bool operator==(const allocator_options&, const allocator_options&) = default;
};

/// "policy=balanced,limit=0,…", with the values as set() reads them.
[[nodiscard]] WEIR_API std::string to_string(const allocator_options& choices);

}}  // namespace weir::v0
