// SPDX-License-Identifier: Apache-2.0
// One source for torch 2.6 to 2.15: what differs between their headers.
//
// Everything here asks the headers what they have and not for the version: nightly and vendors'
// builds have what torch's main branch had on their day. Two rules do the rest:
//
// - A method whose signature changed is declared in every form, without `override`: the form that
//   torch knows overrides, and the others call it. tests/torch_headers checks which do.
// - A field that may be missing is asked for with `requires` in a template on the struct.
#pragma once

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// Names that not all versions have. Where torch has them these are redeclarations; where not, they
// stay incomplete, which a requires-expression can tell.
namespace c10::CachingAllocator {
class AcceleratorAllocatorConfig;
}
namespace c10::cuda {
struct MemPoolContext;
}

namespace weir_torch {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;
using c10::cuda::MempoolId_t;
using context = std::shared_ptr<c10::GatheredContext>;
using trace_entry = torch_cuda::TraceEntry;
using annotation = decltype(torch_cuda::SnapshotInfo::external_annotations)::value_type;
using stat_array = decltype(torch_cuda::DeviceStats::allocation);
using stat_type = c10::CachingDeviceAllocator::StatType;

// --- Calls of torch's own allocator -------------------------------------------------------------

template <class Allocator>
void empty_cache_of(Allocator& allocator) {
  if constexpr (requires { allocator.emptyCache(MempoolId_t{0, 0}); }) {
    allocator.emptyCache(MempoolId_t{0, 0});
  } else {
    allocator.emptyCache();  // 2.6, 2.7
  }
}

/// What getExpandableSegmentSizes() returns (from 2.10 on).
template <class Allocator>
struct segment_sizes_of {
  using type = std::vector<std::size_t>;
};
template <class Allocator>
requires requires(Allocator& allocator) { allocator.getExpandableSegmentSizes(0); }
struct segment_sizes_of<Allocator> {
  using type = decltype(std::declval<Allocator&>().getExpandableSegmentSizes(0));
};
using segment_sizes = segment_sizes_of<torch_cuda::CUDAAllocator>::type;

// --- The pool that calls without a pool mean (2.6, 2.7) -----------------------------------------

struct active_pool {
  MempoolId_t id{0, 0};
  torch_cuda::CUDAAllocator* provider = nullptr;  ///< the allocator that the pool was made with
};

/// Of this thread. Later versions pass the pool with the call: then it is none.
template <class Context = c10::cuda::MemPoolContext>
active_pool find_active_pool() {
  if constexpr (requires { Context::getActiveMemPool(); }) {
    if (auto* const pool = Context::getActiveMemPool()) return {pool->id(), pool->allocator()};
  }
  return {};
}

/// Whether torch says when a capture begins and ends (from 2.13 on). Before, every scope of a pool
/// can be one.
template <class Allocator = torch_cuda::CUDAAllocator>
constexpr bool torch_marks_captures() {
  return requires(Allocator & allocator) { allocator.markCaptureBegin(0); };
}

// --- Counters and snapshots ---------------------------------------------------------------------

/// Whether memory_stats() has counters for each pool (from 2.13 on).
template <class Stats = torch_cuda::DeviceStats>
constexpr bool has_pool_stats() {
  return requires(Stats & stats) { stats.reserved_bytes_by_private_pools; };
}

/// The pool's counters, which must exist (has_pool_stats()).
template <class Stats>
stat_array& pool_stats(Stats& stats, MempoolId_t pool) {
  return stats.reserved_bytes_by_private_pools[pool];
}

/// Where torch sorts the segments of a pool to register them with NCCL (from 2.11 on).
template <class Segment>
void set_registration_order(Segment& segment, std::size_t number) {
  if constexpr (requires { segment.registration_counter; })
    segment.registration_counter = static_cast<std::int32_t>(number);
}

// --- Histories ----------------------------------------------------------------------------------

struct entry_fields {
  trace_entry::Action action{};
  c10::DeviceIndex device = 0;
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  void* stream = nullptr;
  MempoolId_t pool{0, 0};
  c10::approx_time_t time{};
  context stack;
  std::string compile_context;
  std::string metadata;
};

/// The entry, less what this torch has no field for: the pool and the compile context before 2.8,
/// the metadata before 2.10.
template <class Entry = trace_entry>
Entry make_entry(entry_fields&& from) {
  auto* const stream = static_cast<cudaStream_t>(from.stream);
  if constexpr (requires(Entry & entry) { entry.user_metadata_; }) {
    return {from.action,
            from.device,
            from.address,
            from.size,
            stream,
            from.pool,
            from.time,
            std::move(from.stack),
            std::move(from.compile_context),
            std::move(from.metadata)};
  } else if constexpr (requires(Entry & entry) { entry.mempool_; }) {
    return {from.action,
            from.device,
            from.address,
            from.size,
            stream,
            from.pool,
            from.time,
            std::move(from.stack),
            std::move(from.compile_context)};
  } else {
    return {from.action, from.device, from.address,         from.size,
            stream,      from.time,   std::move(from.stack)};
  }
}

/// The action of entries that annotate a block, where torch has it (from 2.14 on).
template <class Entry = trace_entry>
constexpr std::optional<typename Entry::Action> find_annotate_action() {
  if constexpr (requires { Entry::Action::ANNOTATE; }) {
    return Entry::Action::ANNOTATE;
  } else {
    return std::nullopt;
  }
}

/// "segment_map", …, as torch names them where entries are to be skipped; nothing: it is no name of
/// an action, which torch 2.11 ignores and later versions refuse.
template <class Entry = trace_entry>
std::optional<typename Entry::Action> parse_action(std::string_view name) {
  using action = typename Entry::Action;
  constexpr std::pair<std::string_view, action> actions[] = {
      {"alloc", action::ALLOC},
      {"free_requested", action::FREE_REQUESTED},
      {"free_completed", action::FREE_COMPLETED},
      {"segment_alloc", action::SEGMENT_ALLOC},
      {"segment_free", action::SEGMENT_FREE},
      {"segment_map", action::SEGMENT_MAP},
      {"segment_unmap", action::SEGMENT_UNMAP},
      {"snapshot", action::SNAPSHOT},
      {"oom", action::OOM},
  };
  for (const auto& [known, value] : actions)
    if (known == name) return value;
  if (const auto annotate = find_annotate_action<Entry>(); annotate && name == "annotate")
    return annotate;
  return std::nullopt;
}

// --- Settings (PYTORCH_CUDA_ALLOC_CONF) ---------------------------------------------------------

/// Whoever has the settings that torch's devices share: from 2.10 on a class of their own. (2.9 has
/// the class, too, but what programs set does not reach it.)
template <class Own, class Shared>
struct shared_settings_of {
  using type = Own;
};
template <class Own, class Shared>
requires requires { Own::getKeys(); }
struct shared_settings_of<Own, Shared> {
  using type = Shared;
};

template <class Own = torch_cuda::CUDAAllocatorConfig>
double configured_memory_fraction() {
  if constexpr (requires { Own::per_process_memory_fraction(); }) {
    return Own::per_process_memory_fraction();
  } else {
    return 1.0;  // before 2.10 only set_per_process_memory_fraction() sets it
  }
}

/// Never CUDAAllocatorConfig::expandable_segments(): it is compiled into whoever calls it, and says
/// no and warns outside of c10_cuda.
template <class Shared>
bool configured_expandable_segments() {
  if constexpr (requires { Shared::use_expandable_segments(); }) {
    return Shared::use_expandable_segments();
  } else {
    return Shared::last_allocator_settings().find("expandable_segments:True") != std::string::npos;
  }
}

/// What a snapshot says of the settings: all fields that this torch has.
template <class Info, class Own = torch_cuda::CUDAAllocatorConfig,
          class Accelerator = c10::CachingAllocator::AcceleratorAllocatorConfig>
Info describe_settings() {
  using shared = typename shared_settings_of<Own, Accelerator>::type;
  Info info{};  // torch initialises none of them
  info.garbage_collection_threshold = shared::garbage_collection_threshold();
  info.max_split_size = shared::max_split_size();
  info.pinned_num_register_threads = Own::pinned_num_register_threads();
  info.expandable_segments = configured_expandable_segments<shared>();
  info.release_lock_on_malloc = Own::release_lock_on_cudamalloc();
  info.pinned_use_host_register = Own::pinned_use_cuda_host_register();
  info.last_allocator_settings = shared::last_allocator_settings();
  info.roundup_power2_divisions = shared::roundup_power2_divisions();
  if constexpr (requires { info.graph_capture_record_stream_reuse; })
    info.graph_capture_record_stream_reuse = Own::graph_capture_record_stream_reuse();
  if constexpr (requires { info.max_round_threshold; })
    info.max_round_threshold = shared::pinned_max_round_threshold();
  if constexpr (requires { info.max_cached_size; })
    info.max_cached_size = shared::pinned_max_cached_size();
  return info;
}

}  // namespace weir_torch
