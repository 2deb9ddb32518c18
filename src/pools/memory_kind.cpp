// Names of the kinds of memory.
#include "weir/pool/memory_kind.hpp"

namespace weir::inline v0 {

std::string_view name(memory_kind kind) noexcept {
  switch (kind) {
    case memory_kind::device:
      return "device";
    case memory_kind::managed:
      return "managed";
    case memory_kind::pinned:
      return "pinned";
  }
  return "unknown";
}

}  // namespace weir::inline v0
