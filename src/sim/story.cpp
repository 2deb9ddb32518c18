// A hazard in plain words.
#include <sstream>

#include "weir/sim/machine.hpp"

namespace weir::inline v0::sim {

namespace {

void describe(std::ostream& out, const party& who) {
  out << who.what << ", ";
  if (who.stream.number() == 0) {
    out << "on the host (its " << who.order << ". deed)";
  } else {
    out << "operation " << who.order << " of stream " << who.stream.number();
  }
  out << ", " << (who.writes ? "writes" : "reads") << " [0x" << std::hex << who.where.address
      << ", 0x" << who.where.address + who.where.size << std::dec << "), " << who.where.size
      << " bytes, queued at " << static_cast<double>(who.queued.count()) * 1e-3 << " us";
}

const char* headline(hazard_kind kind) {
  switch (kind) {
    case hazard_kind::race:
      return "race: two accesses that nothing keeps apart";
    case hazard_kind::use_after_free:
      return "use after free";
    case hazard_kind::freed_in_use:
      return "memory taken away that queued work may still use";
    case hazard_kind::bad_access:
      return "access where nothing is mapped or access was not granted";
  }
  return "hazard";
}

}  // namespace

std::string hazard::story() const {
  std::ostringstream out;
  out << headline(kind) << ": " << shared.size << " bytes at 0x" << std::hex << shared.address
      << std::dec;
  if (kind == hazard_kind::bad_access) {
    out << "\n  ";
    describe(out, second);
    return out.str();
  }
  out << "\n  first:  ";
  describe(out, first);
  out << "\n  second: ";
  describe(out, second);
  if (kind != hazard_kind::use_after_free) {
    out << "\n  no stream, event or host order leads from the first to the second";
  }
  return out.str();
}

}  // namespace weir::inline v0::sim
