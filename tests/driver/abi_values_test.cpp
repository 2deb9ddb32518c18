// SPDX-License-Identifier: Apache-2.0
// Our declarations of the driver's types have the values of CUDA 13.0, with or without its headers.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "weir/driver/table.hpp"

namespace {

using namespace weir::driver;

// All of this is proven by compiling.
#define WEIR_ENUMERATOR(enumeration, name, value)                    \
  static_assert(std::is_same_v<decltype(name), enumeration>, #name); \
  static_assert(static_cast<long long>(name) == value, #name);       \
  static_assert(sizeof(enumeration) == 4 && alignof(enumeration) == 4);
#define WEIR_STRUCT(name, size, alignment) \
  static_assert(sizeof(name) == size && alignof(name) == alignment, #name);
#define WEIR_FIELD(structure, field, offset, size)                        \
  static_assert(offsetof(structure, field) == offset, #structure #field); \
  static_assert(sizeof(std::declval<structure&>().field) == size, #structure #field);
#include "driver/abi.def"

static_assert(sizeof(CUdevice) == 4 && sizeof(CUdeviceptr) == 8);
static_assert(sizeof(CUmemGenericAllocationHandle) == 8);
static_assert(sizeof(CUcontext) == 8 && sizeof(CUmodule) == 8 && sizeof(CUfunction) == 8);
static_assert(sizeof(CUstream) == 8 && sizeof(CUevent) == 8 && sizeof(CUgraph) == 8);
static_assert(sizeof(CUgraphNode) == 8 && sizeof(CUgraphExec) == 8 && sizeof(CUmemoryPool) == 8);
static_assert(sizeof(CUuserObject) == 8 && sizeof(CUarray) == 8 && sizeof(CUhostFn) == 8);

// Macros in cuda.h.
static_assert(host_alloc_portable == 1 && host_alloc_device_map == 2);
static_assert(host_alloc_write_combined == 4);
static_assert(host_register_portable == 1 && host_register_device_map == 2);
static_assert(host_register_io_memory == 4 && host_register_read_only == 8);
static_assert(cpu_device == -1);

TEST(abi_values, the_two_default_streams_are_1_and_2) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(legacy_stream()), 1u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(per_thread_stream()), 2u);
}

// What the list proves is only worth as much as it is complete: read the header itself.
std::string text_of_header() {
  std::ifstream file{WEIR_SOURCE_DIR "/include/weir/driver/types.hpp"};
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(abi_list, has_every_enumerator_of_the_header) {
  std::set<std::string> listed;
#define WEIR_ENUMERATOR(enumeration, name, value) listed.insert(#name);
#define WEIR_STRUCT(name, size, alignment)
#define WEIR_FIELD(structure, field, offset, size)
#include "driver/abi.def"

  const std::string header = text_of_header();
  const std::regex enumerator{R"(\n\s+(CU\w+) = [-\w]+,)"};
  std::set<std::string> declared;
  for (std::sregex_iterator at{header.begin(), header.end(), enumerator}, end; at != end; ++at)
    declared.insert((*at)[1]);
  EXPECT_GT(declared.size(), 300u);
  EXPECT_EQ(declared, listed);
}

TEST(abi_list, has_every_field_of_the_header) {
  std::set<std::string> listed;
#define WEIR_ENUMERATOR(enumeration, name, value)
#define WEIR_STRUCT(name, size, alignment) listed.insert(#name);
#define WEIR_FIELD(structure, field, offset, size) \
  listed.insert(#structure "." + std::string{#field}.substr(std::string{#field}.find('.') + 1));
#include "driver/abi.def"

  // A structure's fields, those of a structure within it included, by the structure's name.
  const std::string header = text_of_header();
  const std::regex structure{R"(\nstruct (\w+) \{([^]*?)\n\};)"};
  const std::regex field{R"((\w+)(\[\d+\])?;)"};
  std::set<std::string> declared;
  for (std::sregex_iterator at{header.begin(), header.end(), structure}, end; at != end; ++at) {
    const std::string name = (*at)[1];
    const std::string body = (*at)[2];
    declared.insert(name);
    for (std::sregex_iterator member{body.begin(), body.end(), field}; member != end; ++member)
      declared.insert(name + "." + (*member)[1].str());
  }
  EXPECT_GT(declared.size(), 80u);
  EXPECT_EQ(declared, listed);
}

}  // namespace
