// SPDX-License-Identifier: Apache-2.0
// The C ABI's table of options.
#include "weir/base/options.hpp"

#include <vector>

#include "capi/guard.hpp"
#include "capi/objects.hpp"
#include "capi/structures.hpp"
#include "weir.h"

namespace weir { inline namespace v0 { namespace capi { namespace {

// Never destroyed: its texts are handed out.
const std::vector<option_info>& table_of_options() {
  static const auto* const all = new std::vector<option_info>{describe_options()};
  return *all;
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

uint32_t weir_option_count(void) {
  uint32_t count = 0;
  // Without host memory there is no table.
  static_cast<void>(guarded([&]() -> result<void> {
    count = static_cast<uint32_t>(table_of_options().size());
    return {};
  }));
  return count;
}

weir_error weir_option_get_info(uint32_t index, weir_option_info* info) {
  return guarded([&]() -> result<void> {
    const auto& all = table_of_options();
    if (index >= all.size())
      return error{{.code = errc::not_found, .detail = "index exceeds the number of options"}};
    const option_info& row = all[index];
    weir_option_info known{};
    known.name = row.name.c_str();
    known.type = row.type.c_str();
    known.initial = row.initial.c_str();
    known.values = row.values.c_str();
    known.unit = row.unit.c_str();
    known.environment = row.environment.c_str();
    known.meaning = row.meaning.c_str();
    return hand_out(known, info);
  });
}

weir_error weir_option_get_value(const char* list, const char* name, char* text, uint64_t capacity,
                                 uint64_t* length) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(name);
    WEIR_TRY_VALUE(settings, read_options({}, list));
    WEIR_TRY_VALUE(value, get(settings, name));
    return hand_out_text(value, text, capacity, length);
  });
}
}
