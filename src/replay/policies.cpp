// SPDX-License-Identifier: Apache-2.0
// The names of policies and devices, as people write them.
#include <algorithm>
#include <charconv>

#include "replay/nearest.hpp"
#include "replay/replay.hpp"

namespace weir { inline namespace v0 { namespace replay {

namespace {

struct row {
  replay::policy policy;
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

error bad_option(std::string reason) {
  return {{.code = errc::bad_option, .detail = std::move(reason)}};
}

result<policy> parse_policy(std::string_view text) {
  std::vector<std::string_view> known{"all"};
  for (const row& each : rows) {
    if (each.name == text) return each.policy;
    known.push_back(each.name);
  }
  return bad_option("unknown policy \"" + std::string{text} + "\"; did you mean \"" +
                    std::string{nearest(text, known)} + "\"?");
}

}  // namespace

std::string_view name(replay::policy policy) noexcept {
  for (const row& each : rows) {
    if (each.policy == policy) return each.name;
  }
  return {};
}

result<std::vector<policy>> parse_policies(std::string_view list) {
  std::vector<policy> policies;
  const auto add = [&](policy each) {
    if (std::find(policies.begin(), policies.end(), each) == policies.end())
      policies.push_back(each);
  };
  while (true) {
    const std::size_t comma = list.find(',');
    const std::string_view word = list.substr(0, comma);
    if (word.empty()) return bad_option("expected a policy between two commas");
    if (word == "all") {
      std::for_each(all_policies.begin(), all_policies.end(), add);
    } else {
      WEIR_TRY_VALUE(each, parse_policy(word));
      add(each);
    }
    if (comma == std::string_view::npos) return policies;
    list.remove_prefix(comma + 1);
  }
}

result<target> parse_target(std::string_view text) {
  if (text == "sim") return target{};
  target parsed{.simulated = false};
  if (text == "cuda") return parsed;
  if (constexpr std::string_view prefix = "cuda:"; text.substr(0, prefix.size()) == prefix) {
    const std::string_view number = text.substr(prefix.size());
    const auto [end, status] =
        std::from_chars(number.data(), number.data() + number.size(), parsed.device);
    if (status == std::errc{} && end == number.data() + number.size() && parsed.device >= 0)
      return parsed;
  }
  return bad_option("unknown device \"" + std::string{text} + "\"; expected sim, cuda or cuda:N");
}

std::string to_string(target target) {
  return target.simulated ? "sim" : "cuda:" + std::to_string(target.device);
}

}}}  // namespace weir::v0::replay
