// SPDX-License-Identifier: Apache-2.0
// Suspended memory as text.
#include "weir/allocator/suspend.hpp"

#include "base/member_list.hpp"

namespace weir { inline namespace v0 {

std::string to_string(suspended_contents contents) {
  switch (contents) {
    case suspended_contents::keep:
      return "keep";
    case suspended_contents::discard:
      return "discard";
  }
  return "unknown";
}

std::string to_string(host_memory_kind kind) {
  switch (kind) {
    case host_memory_kind::pinned:
      return "pinned";
    case host_memory_kind::pageable:
      return "pageable";
  }
  return "unknown";
}

std::string to_string(suspended_requests requests) {
  switch (requests) {
    case suspended_requests::fail:
      return "fail";
    case suspended_requests::wait:
      return "wait";
    case suspended_requests::resume:
      return "resume";
  }
  return "unknown";
}

std::string to_string(const suspend_outcome& outcome) {
  detail::member_list members;
  members.add("released", outcome.released)
      .add("saved", outcome.saved)
      .add("not_suspended", outcome.not_suspended);
  return std::move(members).text();
}

std::string to_string(const resume_outcome& outcome) {
  detail::member_list members;
  members.add("reserved", outcome.reserved).add("restored", outcome.restored);
  return std::move(members).text();
}

std::string to_string(awaited_streams streams) {
  switch (streams) {
    case awaited_streams::all:
      return "all";
    case awaited_streams::known:
      return "known";
  }
  return "unknown";
}

}}  // namespace weir::v0
