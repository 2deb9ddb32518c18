# SPDX-License-Identifier: Apache-2.0
# Where weir works, and what it is compiled with. README.md says the same.
if(NOT CMAKE_SYSTEM_NAME STREQUAL Linux OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64|aarch64|arm64)$")
  message(FATAL_ERROR "weir works on Linux, on x86-64 and aarch64; this is ${CMAKE_SYSTEM_NAME} "
    "on ${CMAKE_SYSTEM_PROCESSOR}")
endif()
set(weir_oldest_GNU 12)
set(weir_oldest_Clang 14)
if(DEFINED weir_oldest_${CMAKE_CXX_COMPILER_ID}
    AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS weir_oldest_${CMAKE_CXX_COMPILER_ID})
  message(FATAL_ERROR "weir needs g++ 12 or clang 14; this is ${CMAKE_CXX_COMPILER_ID} "
    "${CMAKE_CXX_COMPILER_VERSION}")
endif()
