// SPDX-License-Identifier: Apache-2.0
// What is in the way of a request, and what would help.
#include "observe/shortage.hpp"

#include <algorithm>
#include <utility>

#include "weir/base/bytes.hpp"

namespace weir { inline namespace v0 { namespace observe {
namespace {

std::string text(std::uint64_t size) { return to_string(bytes{size}); }

std::uint64_t less(std::uint64_t from, std::uint64_t size) { return from - std::min(from, size); }

/// The sum, or the largest number there is.
std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  return a > shortage::no_limit - b ? shortage::no_limit : a + b;
}

std::string quoted(std::string_view tag) { return "\"" + std::string{tag} + "\""; }

/// What could not be released whatever happened: live, pending, kept by pools.
std::uint64_t held(const shortage& about) {
  return std::max(less(about.reserved, about.free), about.live);
}

/// What is free of the device, or at most is.
std::uint64_t device_room(const shortage& about) {
  return about.device_free.value_or(less(about.device_total, std::max(about.reserved, about.live)));
}

/// "Free 2 MiB more." if there is as much to free. What others hold adds to it, and is not known
/// without the driver's figure.
std::string free_more(const shortage& about, std::uint64_t missing) {
  if (about.live < missing) return "Request less.";
  return (about.device_free ? "Free " : "Free at least ") + text(missing) + " more.";
}

std::string tag_limit_text(const shortage& about) {
  const std::uint64_t missing = sum(about.tag_live, about.requested) - about.tag_limit;
  std::string out = "The limit of tag " + quoted(about.tag) + ", " + text(about.tag_limit) +
                    ", is in the way: " + text(about.tag_live) + " are live with it. Raise it by " +
                    text(missing);
  if (about.tag_live >= missing) out += ", or free " + text(missing) + " of the tag";
  return out + ".";
}

std::string limit_text(const shortage& about) {
  std::string out = (about.limit_is_ceiling ? "The ceiling of the allocator's budget share, "
                                            : "The allocator's limit of ") +
                    text(about.limit) + (about.limit_is_ceiling ? "," : "") +
                    " is in the way: " + text(about.live) + " are live";
  out += about.reserved != 0 ? ", " + text(about.reserved) + " reserved." : ".";
  const std::uint64_t missing = less(sum(held(about), about.requested), about.limit);
  if (missing == 0) return out + " Raise it, or free memory.";  // memory grows by more at a time
  const std::uint64_t room = sum(about.free, device_room(about));
  if (about.device_total == 0 || room >= about.requested) {
    out += " Raise it by " + text(missing);
    if (about.live >= missing) out += ", or free " + text(missing);
    return out + ".";
  }
  out += " Raising it alone does not help, with " + text(device_room(about)) +
         " free of the device's " + text(about.device_total) + ". ";
  return out + free_more(about, std::max(missing, about.requested - room));
}

std::string device_text(const shortage& about) {
  const std::uint64_t room = sum(about.free, device_room(about));
  const std::uint64_t taken = std::max(about.reserved, about.live);
  const std::uint64_t others = less(about.device_total, sum(taken, device_room(about)));
  std::string out = "The device is full: of its " + text(about.device_total) +
                    " this allocator has " + text(about.live) + " live";
  if (others != 0) out += ", others hold " + text(others);
  return out + ". " + free_more(about, less(about.requested, room));
}

std::string elsewhere_text(const shortage& about) {
  if (!about.device_free) {
    return "Other users of the device hold at least " +
           text(less(about.device_total, sum(about.reserved, about.requested))) +
           " of the device's " + text(about.device_total) + ": " + text(about.live) +
           " are live here, " + text(about.reserved) + " reserved.";
  }
  const std::uint64_t missing = about.requested - sum(about.free, *about.device_free);
  std::string out = "Other users of the device hold " +
                    text(less(about.device_total, sum(about.reserved, *about.device_free))) +
                    " of the device's " + text(about.device_total) + ": have them release " +
                    text(missing);
  if (about.live >= missing) out += ", or free as much here";
  return out + ".";
}

/// " Of these: trainer (…) holds 5 GiB." where they are known.
std::string neighbours_text(const shortage& about) {
  return about.neighbours.empty() ? "" : " Of these: " + holders_of(about.neighbours) + ".";
}

std::string fragments_text(const shortage& about) {
  std::string out = text(about.free) + " are reserved and free, ";
  if (about.longest < about.requested) {
    out += "but in pieces of at most " + text(about.longest) + "; the request needs " +
           text(about.requested) + " in one piece.";
  } else {
    out += text(about.longest) +
           " of it in one piece, but it is kept for other streams, or for work that has not "
           "completed.";
  }
  const std::uint64_t needed = sum(about.reserved, about.requested);
  if (needed > about.limit && (!about.device_free || *about.device_free >= about.requested))
    out += (about.limit_is_ceiling ? " Raise the budget share's ceiling of "
                                   : " Raise the limit of ") +
           text(about.limit) + " by " + text(needed - about.limit) + ".";
  return out;
}

}  // namespace

obstacle obstacle_of(const shortage& about) noexcept {
  const std::uint64_t needed = sum(held(about), about.requested);
  if (about.requested == 0) return obstacle::none;
  if (sum(about.tag_live, about.requested) > about.tag_limit) return obstacle::tag_limit;
  if (about.device_total != 0 && about.requested > about.device_total) return obstacle::too_large;
  if (needed > about.limit) return obstacle::limit;
  if (about.device_total != 0 && needed > about.device_total) return obstacle::device;
  if (about.device_free && sum(about.free, *about.device_free) < about.requested)
    return obstacle::elsewhere;
  if (!about.failed) return obstacle::none;
  if (about.reserved != 0 && about.free >= about.requested) return obstacle::fragments;
  if (sum(about.reserved, about.requested) > about.limit) return obstacle::fragments;
  // Of what it could have grown by, the least was not enough.
  if (less(about.limit, about.reserved) < device_room(about)) return obstacle::limit;
  if (about.device_free) return obstacle::driver;
  return about.reserved != 0 && about.device_total != 0 ? obstacle::elsewhere : obstacle::unknown;
}

std::string place_of(const shortage& about) {
  std::string out = "stream " + std::to_string(about.stream);
  if (!about.tag.empty()) out += ", tag " + quoted(about.tag);
  return out;
}

std::string holders_of(std::vector<neighbour> neighbours) {
  std::stable_sort(neighbours.begin(), neighbours.end(),
                   [](const neighbour& a, const neighbour& b) { return a.held > b.held; });
  std::string out;
  for (const neighbour& each : neighbours) {
    if (!out.empty()) out += ", ";
    out += each.name + " (process " + std::to_string(each.process) + ", floor " + text(each.floor) +
           ", priority " + std::to_string(each.priority) + ") holds " + text(each.held);
  }
  return out;
}

namespace {

std::string obstacle_text(const shortage& about) {
  switch (obstacle_of(about)) {
    case obstacle::none:
      return "The request fits.";
    case obstacle::tag_limit:
      return tag_limit_text(about);
    case obstacle::too_large:
      return "The request is larger than the device, which has " + text(about.device_total) +
             ". Request less.";
    case obstacle::limit:
      return limit_text(about);
    case obstacle::device:
      return device_text(about);
    case obstacle::elsewhere:
      return elsewhere_text(about) + neighbours_text(about);
    case obstacle::fragments:
      return fragments_text(about);
    case obstacle::driver:
      return "The driver refused, though it has " + text(*about.device_free) + " free; " +
             text(about.live) + " are live, " + text(about.reserved) + " reserved.";
    case obstacle::unknown:
      break;
  }
  return text(about.live) +
         " are live. The device's free memory is unknown, so weir cannot say whether it was full "
         "or "
         "fragmented.";
}

}  // namespace

std::string verdict_of(const shortage& about) {
  std::string out = obstacle_text(about);
  if (about.checks == 0 || obstacle_of(about) == obstacle::none) return out;
  return out + " heap_debug uses " + text(about.checks) +
         " of the reserved memory, around blocks and for freed blocks; red_zones uses less than "
         "guard_pages.";
}

}}}  // namespace weir::v0::observe
