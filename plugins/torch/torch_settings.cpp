// torch's settings, as far as weir follows them.
#include "torch_settings.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weir_torch {
namespace {

std::string without_spaces(const std::string& text) {
  std::string dense;
  for (const char each : text)
    if (std::isspace(static_cast<unsigned char>(each)) == 0) dense += each;
  return dense;
}

/// Its parts between commas; a list in brackets is cut, too.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  const std::string dense = without_spaces(text);
  for (std::size_t start = 0; start <= dense.size();) {
    const std::size_t end = std::min(dense.find(',', start), dense.size());
    parts.push_back(dense.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

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
                       "threads serve themselves from caches of their own meanwhile"},
    key_without_effect{"throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom",
                       "a request fails when no memory can be found for it, and not before"},
    key_without_effect{"expandable_segments_reserve", "expandable_segments_reserve",
                       "addresses are reserved for all memory of the device"},
};

void name_keys_without_effect(const std::string& text) {
  static std::atomic<std::uint32_t> named{0};
  for (const std::string& part : parts_of(text)) {
    for (std::size_t i = 0; i < keys_without_effect.size(); ++i) {
      const key_without_effect& known = keys_without_effect[i];
      if (part.rfind(known.setting, 0) != 0) continue;
      if ((named.fetch_or(1U << i) >> i & 1U) != 0) continue;
      TORCH_WARN("weir: the allocator setting ", known.key, " has no effect: ", known.reason);
    }
  }
}

/// weir stands in for the backend that the program began with: to name that one changes nothing.
std::string without_native_backend(const std::string& text) {
  std::string rest;
  for (const std::string& part : parts_of(text)) {
    if (part == "backend:native") continue;
    rest += rest.empty() ? part : "," + part;
  }
  return rest;
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

template <class Accelerator = c10::CachingAllocator::AcceleratorAllocatorConfig>
void hook_into_parser(std::function<void()> on_change) {
  if constexpr (requires { Accelerator::getConfigParserHook(); }) {
    auto parse = Accelerator::getConfigParserHook();  // torch's own
    Accelerator::getConfigParserHook() = [parse = std::move(parse),
                                          on_change = std::move(on_change)](const auto& text) {
      try {
        if (parse) parse(without_native_backend(text));
      } catch (...) {
        on_change();  // what came before the error counts
        throw;
      }
      on_change();
    };
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

void watch_settings(std::function<void()> on_change) {
  static_cast<void>(torch_cuda::CUDAAllocatorConfig::instance());
  hook_into_parser(std::move(on_change));
}

}  // namespace weir_torch
