// Hazards as text.
#include <sstream>

#include "base/member_list.hpp"
#include "weir/sim/machine.hpp"

namespace weir::inline v0::sim {

namespace {

void describe(std::ostream& out, const party& side) {
  out << side.label << ", ";
  if (side.stream.number() == 0) {
    out << "operation " << side.order << " of the host";
  } else {
    out << "operation " << side.order << " of stream " << side.stream.number();
  }
  out << ", " << (side.writes ? "writes" : "reads") << " [0x" << std::hex << side.extent.address
      << ", 0x" << side.extent.address + side.extent.size << std::dec << "), " << side.extent.size
      << " bytes, queued at " << static_cast<double>(side.queued.count()) * 1e-3 << " us";
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

std::string to_string(hazard_kind kind) {
  switch (kind) {
    case hazard_kind::race:
      return "race";
    case hazard_kind::use_after_free:
      return "use_after_free";
    case hazard_kind::freed_in_use:
      return "freed_in_use";
    case hazard_kind::bad_access:
      return "bad_access";
  }
  return "unknown";
}

std::string to_string(const hazard& reported) { return reported.message(); }

std::string to_string(const migration_counts& counts) {
  detail::member_list members;
  members.add("to_device", counts.to_device)
      .add("to_host", counts.to_host)
      .add("evicted", counts.evicted);
  return std::move(members).text();
}

std::string hazard::message() const {
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
