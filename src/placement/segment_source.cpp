// SPDX-License-Identifier: Apache-2.0
// The end of a source of segments.
#include "weir/allocator/segment_source.hpp"

namespace weir { inline namespace v0 {

segment_source::~segment_source() = default;

}}  // namespace weir::v0
