// SPDX-License-Identifier: Apache-2.0
// Properties of managed memory as text.
#include "weir/buffer/managed_memory.hpp"

namespace weir { inline namespace v0 {
namespace {

std::string text_of(const std::optional<managed_place>& place) {
  return place ? to_string(*place) : "none";
}

std::string text_of(const std::vector<managed_place>& places) {
  if (places.empty()) return "none";
  std::string text;
  for (const managed_place place : places) text += (text.empty() ? "" : " and ") + to_string(place);
  return text;
}

}  // namespace

std::string to_string(managed_place place) {
  if (place.is_host()) return "host";
  return (place.is_device() ? "device " : "host node ") + std::to_string(place.number());
}

std::string to_string(attachment mode) {
  switch (mode) {
    case attachment::global:
      return "global";
    case attachment::host:
      return "host";
    case attachment::single:
      return "single";
  }
  return "unknown";
}

std::string to_string(const managed_range_info& info) {
  return std::string{"read_mostly: "} + (info.read_mostly ? "yes" : "no") +
         ", preferred: " + text_of(info.preferred) + ", accessed_by: " + text_of(info.accessed_by) +
         ", last_prefetch: " + text_of(info.last_prefetch);
}

}}  // namespace weir::v0
