// SPDX-License-Identifier: Apache-2.0
// Our declarations of the driver's types and calls are those of cuda.h. Built where it is present;
// everything is proven by compiling it.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <concepts>
#include <type_traits>

#include "weir/driver/table.hpp"

namespace {

namespace ours = weir::driver;

// --- Values and layouts -------------------------------------------------------------------------

#define WEIR_ENUMERATOR(enumeration, name, value) \
  static_assert(static_cast<long long>(ours::name) == static_cast<long long>(::name), #name);
#define WEIR_STRUCT(name, size, alignment) \
  static_assert(sizeof(ours::name) == sizeof(::name) && alignof(ours::name) == alignof(::name));
#define WEIR_FIELD(structure, field, offset, size)                                             \
  static_assert(offsetof(ours::structure, field) == offsetof(::structure, field), #structure); \
  static_assert(sizeof(std::declval<ours::structure&>().field) ==                              \
                sizeof(std::declval<::structure&>().field));
#include "driver/abi.def"

// Flags that are macros there and constants here.
static_assert(ours::host_alloc_portable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(ours::host_alloc_device_map == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(ours::host_alloc_write_combined == CU_MEMHOSTALLOC_WRITECOMBINED);
static_assert(ours::host_register_portable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(ours::host_register_device_map == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(ours::host_register_io_memory == CU_MEMHOSTREGISTER_IOMEMORY);
static_assert(ours::host_register_read_only == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(ours::cpu_device == CU_DEVICE_CPU);

// Handles are the very same types, so that they pass between weir and code that includes cuda.h.
static_assert(std::is_same_v<ours::CUcontext, ::CUcontext>);
static_assert(std::is_same_v<ours::CUmodule, ::CUmodule>);
static_assert(std::is_same_v<ours::CUfunction, ::CUfunction>);
static_assert(std::is_same_v<ours::CUstream, ::CUstream>);
static_assert(std::is_same_v<ours::CUevent, ::CUevent>);
static_assert(std::is_same_v<ours::CUgraph, ::CUgraph>);
static_assert(std::is_same_v<ours::CUgraphNode, ::CUgraphNode>);
static_assert(std::is_same_v<ours::CUgraphExec, ::CUgraphExec>);
static_assert(std::is_same_v<ours::CUmemoryPool, ::CUmemoryPool>);
static_assert(std::is_same_v<ours::CUuserObject, ::CUuserObject>);
static_assert(std::is_same_v<ours::CUarray, ::CUarray>);
static_assert(std::is_same_v<ours::CUhostFn, ::CUhostFn>);
static_assert(std::is_same_v<ours::CUdevice, ::CUdevice>);
static_assert(std::is_same_v<ours::CUdeviceptr, ::CUdeviceptr>);
static_assert(std::is_same_v<ours::CUmemGenericAllocationHandle, ::CUmemGenericAllocationHandle>);

// --- Signatures ---------------------------------------------------------------------------------

// Whether a caller and a callee that disagree about A and B by name still understand each other:
// the same kind of thing, of the same size, through every level of pointers.
template <class A, class B>
constexpr bool same_abi();

template <class A, class B>
struct same_signature : std::false_type {};
template <class A, class... As, class B, class... Bs>
requires(sizeof...(As) == sizeof...(Bs)) struct same_signature<A(As...), B(Bs...)>
    : std::bool_constant<same_abi<A, B>() && (same_abi<As, Bs>() && ...)> {
};

template <class T>
concept complete = requires {
  sizeof(T);
};

template <class A, class B>
constexpr bool same_abi() {
  if constexpr (std::is_same_v<A, B>) {
    return true;
  } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using to_a = std::remove_pointer_t<A>;
    using to_b = std::remove_pointer_t<B>;
    return std::is_const_v<to_a> == std::is_const_v<to_b> &&
           same_abi<std::remove_cv_t<to_a>, std::remove_cv_t<to_b>>();
  } else if constexpr (std::is_function_v<A> && std::is_function_v<B>) {
    return same_signature<A, B>::value;
  } else if constexpr (!complete<A> || !complete<B>) {
    return false;  // opaque structures are the same or they are not
  } else if constexpr (sizeof(A) != sizeof(B) || alignof(A) != alignof(B)) {
    return false;
  } else if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
    return std::is_signed_v<A> == std::is_signed_v<B>;
  } else {
    return (std::is_enum_v<A> && std::is_enum_v<B>) || (std::is_class_v<A> && std::is_class_v<B>);
  }
}

// The proof can fail.
static_assert(!same_abi<int, unsigned>() && !same_abi<int*, long*>());
static_assert(!same_abi<int*, const int*>() && !same_abi<int**, int*>());
static_assert(!same_abi<::CUstream, ::CUevent>());
static_assert(!same_abi<ours::CUmemLocation, ::CUdevice>());
static_assert(!same_abi<int (*)(int), int (*)(int, int)>());

#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  static_assert(same_abi<decltype(ours::table::member), PFN_##symbol##_v##version>(), #member);
#include "weir/driver/calls.def"

}  // namespace
