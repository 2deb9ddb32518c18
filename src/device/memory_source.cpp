// SPDX-License-Identifier: Apache-2.0
// The end of a memory_source.
#include "weir/device/memory_source.hpp"

namespace weir { inline namespace v0 {

memory_source::~memory_source() = default;

}}  // namespace weir::v0
