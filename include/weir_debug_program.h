/* SPDX-License-Identifier: Apache-2.0 */
/* Part of weir.h: a C program that is compiled without NDEBUG marks itself before main(). */
#ifndef WEIR_DEBUG_PROGRAM_H
#define WEIR_DEBUG_PROGRAM_H

#if !defined(NDEBUG) && !defined(__cplusplus) && defined(__GNUC__)
/* Weak, for programs that include weir.h and load the library themselves. */
#pragma weak weir_mark_debug_program
__attribute__((constructor)) static void weir_mark_debug_program_at_start(void) {
  if (weir_mark_debug_program) weir_mark_debug_program();
}
#endif

#endif
