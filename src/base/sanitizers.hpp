// SPDX-License-Identifier: Apache-2.0
// Which sanitizers the code is built with: gcc and clang say it in ways of their own.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define WEIR_WITH_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEIR_WITH_ADDRESS_SANITIZER 1
#endif
#endif
#ifndef WEIR_WITH_ADDRESS_SANITIZER
#define WEIR_WITH_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__)
#define WEIR_WITH_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEIR_WITH_THREAD_SANITIZER 1
#endif
#endif
#ifndef WEIR_WITH_THREAD_SANITIZER
#define WEIR_WITH_THREAD_SANITIZER 0
#endif
