// SPDX-License-Identifier: Apache-2.0
// torch's settings, as far as weir follows them.
#include "torch_settings.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "setting_text.hpp"

namespace weir_torch {
namespace {

struct key_without_effect {
  std::string_view setting;  // what the part begins with
  std::string_view key;
  std::string_view reason;
};
constexpr std::array keys_without_effect{
    key_without_effect{"max_split_size_mb:", "max_split_size_mb",
                       "a block of any size is split, and free memory is moved together where room "
                       "is missing"},
    key_without_effect{"max_non_split_rounding_mb:", "max_non_split_rounding_mb",
                       "a request gets a block of its own size"},
    key_without_effect{"large_segment_size_mb:", "large_segment_size_mb",
                       "memory is taken from the driver as the policy says (docs/tuning.md)"},
    key_without_effect{"release_lock_on_cudamalloc:True", "release_lock_on_cudamalloc",
                       "threads use their own caches meanwhile"},
    key_without_effect{"throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom",
                       "a request fails when no memory can be found for it, and not before"},
    key_without_effect{"expandable_segments_reserve", "expandable_segments_reserve",
                       "addresses are reserved for all memory of the device"},
};

void name_keys_without_effect(const std::string& text) {
  static std::atomic<std::uint32_t> named{0};
  for (const std::string& part : setting_parts(text)) {
    for (std::size_t i = 0; i < keys_without_effect.size(); ++i) {
      const key_without_effect& known = keys_without_effect[i];
      if (part.rfind(known.setting, 0) != 0) continue;
      if ((named.fetch_or(1U << i) >> i & 1U) != 0) continue;
      TORCH_WARN("weir: the allocator setting ", known.key, " has no effect: ", known.reason);
    }
  }
}

struct values {
  std::vector<std::size_t> divisions;
  double collection_threshold = 0;
  bool reuses_in_captures = false;
  std::string text;
};

template <class Own = torch_cuda::CUDAAllocatorConfig,
          class Accelerator = c10::CachingAllocator::AcceleratorAllocatorConfig>
values read_settings() {
  using shared = typename shared_settings_of<Own, Accelerator>::type;
  values now;
  now.divisions = shared::roundup_power2_divisions();
  now.collection_threshold = shared::garbage_collection_threshold();
  now.text = shared::last_allocator_settings();
  if constexpr (requires { Own::graph_capture_record_stream_reuse(); })
    now.reuses_in_captures = Own::graph_capture_record_stream_reuse();
  return now;
}

/// Makes torch's setting say that memory is mapped piece by piece, whatever the program set: torch
/// registers memory of the driver's own with NCCL by the segment, and mapped memory not at all.
template <class Accelerator = c10::CachingAllocator::AcceleratorAllocatorConfig>
void tell_that_segments_expand() {
  if constexpr (requires {
                  Accelerator::getConfigParserHook();
                  Accelerator::instance().parseArgs(std::string{});
                  Accelerator::use_expandable_segments();
                }) {
    if (!Accelerator::use_expandable_segments())
      Accelerator::instance().parseArgs(
          with_expandable_segments(Accelerator::last_allocator_settings()));
  }
}

template <class Accelerator = c10::CachingAllocator::AcceleratorAllocatorConfig>
void hook_into_parser(bool memory_is_mapped, std::function<void()> on_change) {
  if constexpr (requires { Accelerator::getConfigParserHook(); }) {
    auto parse = Accelerator::getConfigParserHook();  // torch's own
    Accelerator::getConfigParserHook() = [parse = std::move(parse), memory_is_mapped,
                                          on_change = std::move(on_change)](const auto& text) {
      try {
        if (parse) parse(without_native_backend(text));
      } catch (...) {
        on_change();  // what came before the error counts
        throw;
      }
      if (memory_is_mapped) tell_that_segments_expand();
      on_change();
    };
    if (memory_is_mapped) tell_that_segments_expand();
  }
}

}  // namespace

void torch_settings::refresh() {
  const values now = read_settings();
  rounding_.set(now.divisions);
  collection_threshold_.store(now.collection_threshold, std::memory_order_relaxed);
  reuses_in_captures_.store(now.reuses_in_captures, std::memory_order_relaxed);
  name_keys_without_effect(now.text);
}

void watch_settings(bool memory_is_mapped, std::function<void()> on_change) {
  static_cast<void>(torch_cuda::CUDAAllocatorConfig::instance());
  hook_into_parser(memory_is_mapped, std::move(on_change));
}

}  // namespace weir_torch
