// SPDX-License-Identifier: Apache-2.0
// Which stream a call names.
#include "heap/identified_stream.hpp"

#include <optional>
#include <utility>

namespace weir { inline namespace v0 { namespace heap {

result<identified_stream> identify(const heap_core& core, const stream_ref& stream,
                                   thread_cache* cache) {
  if (stream.device() != core.device_) {
    return error{{.code = errc::bad_stream,
                  .detail = "the stream belongs to another device than the allocator"}};
  }
  if (stream.known_id() != stream_id{}) return identified_stream{stream, stream.known_id()};
  if (stream.is_legacy()) return identified_stream{stream, core.legacy_stream_};
  if (stream.is_per_thread() && cache != nullptr && cache->per_thread_stream != stream_id{}) {
    return identified_stream{stream, cache->per_thread_stream};
  }
  const bool per_thread = stream.is_per_thread();  // its reference never knows its id
  stream_id id{};
  const auto identified = stream.identified();
  std::optional<error> refused;
  if (!identified) {
    refused = identified.error();
  } else if (per_thread) {
    auto number = stream.id();
    if (number) {
      id = *number;
    } else {
      refused = std::move(number).error();
    }
  } else {
    id = identified->known_id();
  }
  if (refused) {
    if (refused->code() == errc::capture_forbidden) return identified_stream{stream, {}};
    if (order::says_gone(*refused)) refused->set_code(errc::bad_stream);
    return *std::move(refused);
  }
  if (per_thread && cache != nullptr) cache->per_thread_stream = id;
  return identified_stream{*identified, id};
}

result<stream_slot> slot_of(heap_core& core, const identified_stream& stream,
                            order::driver_access& driver) {
  core.mutex_.assert_held();
  if (stream.id != stream_id{}) return core.order_.meet(stream.ref, stream.id);
  WEIR_TRY(driver.entered());
  return core.order_.slot_of(stream.ref, driver.enter());
}

}}}  // namespace weir::v0::heap
