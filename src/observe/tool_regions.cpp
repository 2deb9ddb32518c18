// SPDX-License-Identifier: Apache-2.0
// NVTX's protocol from the program's side.
#include "observe/tool_regions.hpp"

#include <dlfcn.h>
#include <stdlib.h>  // secure_getenv

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "observe/nvtx.hpp"
#include "weir/base/bytes.hpp"
#include "weir/observe/tag.hpp"

namespace weir { inline namespace v0 { namespace observe {
namespace {

/// The tool's functions; a tool may keep the address and fill them later.
struct tool {
  std::array<std::intptr_t, nvtx::slot_count> slots{};
  bool is_attached = false;

  tool() noexcept {
    const char* const path = ::secure_getenv("NVTX_INJECTION64_PATH");
    void* const library =
        path == nullptr || *path == '\0' ? nullptr : ::dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto initialize =
        reinterpret_cast<nvtx::initialize_function>(::dlsym(library, nvtx::initialize_name));
    if (initialize == nullptr) return;  // it stays: it may be there for others
    nvtx::module_segment segment{1, slots.size(), slots.data()};
    nvtx::module_info module{.nvtx_version = nvtx::version,
                             .struct_size = sizeof(nvtx::module_info),
                             .module = nvtx::memory_module,
                             .compatibility = nvtx::memory_compatibility,
                             .segment_count = 1,
                             .segments = &segment,
                             .get_export = nullptr,
                             .extension = nullptr};
    is_attached = initialize(&module) != 0 && slots[nvtx::heap_register] != 0 &&
                  slots[nvtx::regions_register] != 0 && slots[nvtx::regions_unregister] != 0;
  }
};

tool& attached_tool() noexcept {
  static tool only;
  return only;
}

/// Null where the tool has no such function.
template <class Function>
Function function_of(nvtx::slot slot) noexcept {
  return reinterpret_cast<Function>(attached_tool().slots[slot]);
}

const void* pointer_to(std::uint64_t address) noexcept {
  return reinterpret_cast<const void*>(address);
}

/// Its tag and size, as compute-sanitizer takes names: up to 49 printable characters.
std::string name_of(const memory_event& event) {
  constexpr std::size_t longest = 49;
  const std::string size = to_string(bytes{event.size});
  const auto tag = tag::numbered(event.tag);
  if (!tag || event.tag == 0) return size;
  std::string name{tag->name().substr(0, longest - size.size() - 2)};
  std::replace_if(
      name.begin(), name.end(), [](char each) { return each < ' ' || each > '~'; }, '?');
  return name + ", " + size;
}

}  // namespace

std::unique_ptr<tool_regions> tool_regions::create() {
  return attached_tool().is_attached ? std::make_unique<tool_regions>() : nullptr;
}

void tool_regions::on_event(const memory_event& event) noexcept {
  try {
    const std::lock_guard lock{mutex_};
    switch (event.kind) {
      case memory_event_kind::reserve:
        return reserved(event);
      case memory_event_kind::release:
        return released(event);
      case memory_event_kind::allocate:
        return allocated(event);
      case memory_event_kind::deallocate:
        return freed(event);
      default:
        return;
    }
  } catch (...) {  // no host memory: the tool does not learn of it
  }
}

void tool_regions::reserved(const memory_event& event) {
  if (refused_) return;
  const nvtx::virtual_range range{event.size, pointer_to(event.address)};
  const nvtx::heap_description heap{.compatibility = nvtx::memory_compatibility,
                                    .struct_size = sizeof(nvtx::heap_description),
                                    .reserved = 0,
                                    .usage = nvtx::sub_allocator,
                                    .type = nvtx::virtual_addresses,
                                    .range_size = sizeof range,
                                    .range = &range,
                                    .category = 0,
                                    .message_type = nvtx::ascii,
                                    .message = "weir"};
  auto& entered = heaps_[event.address];
  entered.size = event.size;
  entered.handle = function_of<nvtx::heap_register_function>(nvtx::heap_register)(nullptr, &heap);
  refused_ = entered.handle == nullptr;
  if (refused_) heaps_.erase(event.address);
}

/// What overlaps goes whole, with the tool's regions in it.
void tool_regions::released(const memory_event& event) {
  auto each = heaps_.upper_bound(event.address);
  if (each != heaps_.begin() &&
      std::prev(each)->first + std::prev(each)->second.size > event.address)
    --each;
  const auto unregister = function_of<nvtx::heap_unregister_function>(nvtx::heap_unregister);
  while (each != heaps_.end() && each->first < event.address + event.size) {
    if (unregister != nullptr) unregister(nullptr, each->second.handle);
    each = heaps_.erase(each);
  }
}

void* tool_regions::heap_around(const memory_event& event) const noexcept {
  const auto above = heaps_.upper_bound(event.address);
  if (above == heaps_.begin()) return nullptr;
  const auto& [start, heap] = *std::prev(above);
  return event.address + event.size <= start + heap.size ? heap.handle : nullptr;
}

void tool_regions::allocated(const memory_event& event) {
  const nvtx::heap_handle within = heap_around(event);
  if (within == nullptr) return;
  const nvtx::virtual_range range{event.size, pointer_to(event.address)};
  const nvtx::register_batch regions{.compatibility = nvtx::memory_compatibility,
                                     .struct_size = sizeof(nvtx::register_batch),
                                     .type = nvtx::virtual_addresses,
                                     .heap = within,
                                     .count = 1,
                                     .element_size = sizeof range,
                                     .elements = &range,
                                     .handles = nullptr};
  function_of<nvtx::regions_register_function>(nvtx::regions_register)(nullptr, &regions);
  const auto give_names = function_of<nvtx::regions_name_function>(nvtx::regions_name);
  if (give_names == nullptr) return;
  const std::string name = name_of(event);
  const nvtx::region_name named{.reference_type = nvtx::by_pointer,
                                .name_type = nvtx::ascii,
                                .region = range.pointer,
                                .name = name.c_str(),
                                .category = 0,
                                .reserved = 0};
  const nvtx::name_batch names{.compatibility = nvtx::memory_compatibility,
                               .struct_size = sizeof(nvtx::name_batch),
                               .reserved = 0,
                               .count = 1,
                               .element_size = sizeof named,
                               .elements = &named,
                               .reserved_too = 0};
  give_names(nullptr, &names);
}

void tool_regions::freed(const memory_event& event) {
  if (heap_around(event) == nullptr) return;
  const void* const region = pointer_to(event.address);
  const nvtx::unregister_batch regions{.compatibility = nvtx::memory_compatibility,
                                       .struct_size = sizeof(nvtx::unregister_batch),
                                       .reference_type = nvtx::by_pointer,
                                       .count = 1,
                                       .element_size = sizeof region,
                                       .elements = &region};
  function_of<nvtx::regions_unregister_function>(nvtx::regions_unregister)(nullptr, &regions);
}

}}}  // namespace weir::v0::observe
