/* SPDX-License-Identifier: Apache-2.0 */
/* What the C examples of documents use without showing where it comes from. */
#ifndef WEIR_TESTS_SNIPPETS_PRELUDE_H
#define WEIR_TESTS_SNIPPETS_PRELUDE_H

#include <stdio.h>

#include "weir.h"

void launch(void* memory, weir_stream* stream);

#endif
