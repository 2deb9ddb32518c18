// The names of policies and devices, as people write them.
#include <algorithm>
#include <charconv>

#include "replay/nearest.hpp"
#include "replay/replay.hpp"

namespace weir::inline v0::replay {

namespace {

struct row {
  policy which;
  std::string_view name;
};

constexpr std::array rows{
    row{policy::torch_default, "torch-default"},
    row{policy::torch_expandable, "torch-expandable"},
    row{policy::balanced, "balanced"},
    row{policy::throughput, "throughput"},
    row{policy::compact, "compact"},
    row{policy::driver_pool, "driver-pool"},
    row{policy::never_move, "never-move"},
};

error bad(std::string why) { return {.code = errc::bad_option, .detail = std::move(why)}; }

result<policy> policy_named(std::string_view text) {
  std::vector<std::string_view> known{"all"};
  for (const row& each : rows) {
    if (each.name == text) return each.which;
    known.push_back(each.name);
  }
  return bad("there is no policy \"" + std::string{text} + "\"; did you mean \"" +
             std::string{nearest(text, known)} + "\"?");
}

}  // namespace

std::string_view name(policy which) noexcept {
  for (const row& each : rows) {
    if (each.which == which) return each.name;
  }
  return {};
}

result<std::vector<policy>> policies_named(std::string_view list) {
  std::vector<policy> found;
  const auto add = [&](policy each) {
    if (std::find(found.begin(), found.end(), each) == found.end()) found.push_back(each);
  };
  while (true) {
    const std::size_t comma = list.find(',');
    const std::string_view one = list.substr(0, comma);
    if (one.empty()) return bad("a policy is missing in the list");
    if (one == "all") {
      std::for_each(all_policies.begin(), all_policies.end(), add);
    } else {
      WEIR_TRY_VALUE(each, policy_named(one));
      add(each);
    }
    if (comma == std::string_view::npos) return found;
    list.remove_prefix(comma + 1);
  }
}

result<target> target_named(std::string_view text) {
  if (text == "sim") return target{};
  target found{.simulated = false};
  if (text == "cuda") return found;
  if (constexpr std::string_view prefix = "cuda:"; text.substr(0, prefix.size()) == prefix) {
    const std::string_view number = text.substr(prefix.size());
    const auto [end, code] =
        std::from_chars(number.data(), number.data() + number.size(), found.device);
    if (code == std::errc{} && end == number.data() + number.size() && found.device >= 0)
      return found;
  }
  return bad("there is no device \"" + std::string{text} +
             "\"; a device is \"sim\", \"cuda\" or \"cuda:N\"");
}

std::string to_string(target where) {
  return where.simulated ? "sim" : "cuda:" + std::to_string(where.device);
}

}  // namespace weir::inline v0::replay
