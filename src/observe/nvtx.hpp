// SPDX-License-Identifier: Apache-2.0
// What NVTX's extension for memory looks like to a program: NVIDIA's protocol between programs and
// tools such as compute-sanitizer, by which a tool learns of blocks that it cannot see by itself.
//
// The declarations are weir's own, with the layout of nvToolsExtMem.h of version 3, so that no
// toolkit is needed; tests/observe compares them where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir { inline namespace v0 { namespace observe { namespace nvtx {

constexpr std::uint16_t version = 3;
constexpr std::uint16_t memory_module = 1;
constexpr std::uint16_t memory_compatibility = 0x0102;
constexpr std::size_t slot_count = 63;

/// Where a tool puts its functions; which slot is which.
enum slot : std::size_t {
  heap_register = 0,
  heap_unregister = 1,
  regions_register = 3,
  regions_unregister = 5,
  regions_name = 6,
};

struct module_segment {
  std::size_t id;
  std::size_t slot_count;
  std::intptr_t* slots;
};
struct module_info {
  std::uint16_t nvtx_version;
  std::uint16_t struct_size;
  std::uint16_t module;
  std::uint16_t compatibility;
  std::size_t segment_count;
  module_segment* segments;
  std::intptr_t (*get_export)(std::uint32_t);
  const void* extension;
};
/// Exported by the library that NVTX_INJECTION64_PATH names; 0: the tool wants nothing.
using initialize_function = int (*)(module_info*);
inline constexpr const char* initialize_name = "InitializeInjectionNvtxExtension";

constexpr std::uint32_t sub_allocator = 1;
constexpr std::uint32_t virtual_addresses = 1;
constexpr std::uint32_t ascii = 1;
constexpr std::uint32_t by_pointer = 1;

using heap_handle = void*;  // null: the whole process

struct virtual_range {
  std::size_t size;
  const void* pointer;
};
struct heap_description {
  std::uint16_t compatibility;
  std::uint16_t struct_size;
  std::uint32_t reserved;
  std::uint32_t usage;
  std::uint32_t type;
  std::size_t range_size;
  const void* range;
  std::uint32_t category;
  std::uint32_t message_type;
  const char* message;
};
struct register_batch {
  std::uint16_t compatibility;
  std::uint16_t struct_size;
  std::uint32_t type;
  heap_handle heap;
  std::size_t count;
  std::size_t element_size;
  const void* elements;
  void** handles;
};
struct unregister_batch {
  std::uint16_t compatibility;
  std::uint16_t struct_size;
  std::uint32_t reference_type;
  std::size_t count;
  std::size_t element_size;
  const void* const* elements;
};
struct region_name {
  std::uint32_t reference_type;
  std::uint32_t name_type;
  const void* region;
  const char* name;
  std::uint32_t category;
  std::uint32_t reserved;
};
struct name_batch {
  std::uint16_t compatibility;
  std::uint16_t struct_size;
  std::uint32_t reserved;
  std::size_t count;
  std::size_t element_size;
  const region_name* elements;
  std::size_t reserved_too;
};

// The first argument is the domain; null is the default one.
using heap_register_function = heap_handle (*)(void*, const heap_description*);
using heap_unregister_function = void (*)(void*, heap_handle);
using regions_register_function = void (*)(void*, const register_batch*);
using regions_unregister_function = void (*)(void*, const unregister_batch*);
using regions_name_function = void (*)(void*, const name_batch*);

}}}}  // namespace weir::v0::observe::nvtx
