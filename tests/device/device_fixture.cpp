// SPDX-License-Identifier: Apache-2.0
// Every call of the device layer that needs the driver, for tests that hold for all of them.
#include <sys/wait.h>
#include <unistd.h>

#include "device/device_fixture.hpp"

namespace weir::testing_support {
namespace {

constexpr bytes unit{fake_driver::granularity};

template <class T>
result<void> outcome(result<T> made) {
  if (!made) return std::move(made).error();
  return {};
}

template <class T>
result<void> made_and_closed(result<T> made) {
  if (!made) return std::move(made).error();
  return made->close();
}

result<void> map_two(device where, possessions& own) {
  const context_scope bound{where};
  const auto at = own.range.base() + 2 * unit.count();
  const std::vector<vmm::physical> both(2, own.handle.get());
  WEIR_TRY(vmm::map(bound, at, both));
  return vmm::unmap(bound, at, unit * 2);
}

result<void> map_and_grant(device where, possessions& own) {
  WEIR_TRY_VALUE(mapped, mapping::create(own.range, unit, own.handle));
  WEIR_TRY(mapped.set_access(where));
  return mapped.close();
}

result<void> plain(device where, possessions&) {
  const context_scope bound{where};
  WEIR_TRY_VALUE(address, allocate_plain(bound, unit));
  return free_plain(bound, address);
}

}  // namespace

int in_child(const std::function<int()>& look) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(look());
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

const std::vector<operation>& operations() {
  using d = device;
  using p = possessions;
  static const std::vector<operation> all = {
      {"memory_info", [](d where, p&) { return outcome(where.memory_info()); }},
      {"stream_priorities", [](d where, p&) { return outcome(where.stream_priorities()); }},
      {"device synchronize", [](d where, p&) { return where.synchronize(); }},
      {"stream create", [](d where, p&) { return made_and_closed(stream::create(where)); }},
      {"stream id",
       [](d where, p& own) { return outcome(stream_ref(where, own.stream.handle()).id()); }},
      {"identified",
       [](d where, p& own) {
         return outcome(stream_ref{where, own.stream.handle()}.identified());
       }},
      {"validate", [](d, p& own) { return own.stream.ref().validate(); }},
      {"stream synchronize", [](d, p& own) { return own.stream.synchronize(); }},
      {"stream is_complete", [](d, p& own) { return outcome(own.stream.is_complete()); }},
      {"stream wait", [](d, p& own) { return own.stream.wait(own.event); }},
      {"capture", [](d, p& own) { return outcome(own.stream.ref().capture()); }},
      {"is_capturing", [](d, p& own) { return outcome(own.stream.ref().is_capturing()); }},
      {"event create", [](d where, p&) { return made_and_closed(event::create(where)); }},
      {"event import",
       [](d where, p&) { return made_and_closed(event::import_handle(where, {})); }},
      {"record", [](d, p& own) { return own.event.record(own.stream); }},
      {"event is_complete", [](d, p& own) { return outcome(own.event.is_complete()); }},
      {"event synchronize", [](d, p& own) { return own.event.synchronize(); }},
      {"elapsed", [](d, p& own) { return outcome(event::elapsed(own.early, own.late)); }},
      {"event export", [](d, p& own) { return outcome(own.shared.export_handle()); }},
      {"reserve",
       [](d where, p&) { return made_and_closed(address_range::reserve(where, unit * 4)); }},
      {"handle create",
       [](d where, p&) { return made_and_closed(physical_handle::create(where, unit)); }},
      {"handle import",
       [](d where, p&) {
         return made_and_closed(physical_handle::import_descriptor(where, 3, unit));
       }},
      {"handle export", [](d, p& own) { return outcome(own.handle.export_descriptor()); }},
      {"map and grant", map_and_grant},
      {"map two", map_two},
      {"plain", plain},
  };
  return all;
}

}  // namespace weir::testing_support
