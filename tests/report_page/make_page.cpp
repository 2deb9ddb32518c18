// Writes the report of a made-up recording, for tests in a browser:
//   report_page_maker KIND EVENTS FILE
#include <cstdio>
#include <fstream>
#include <string>

#include "report/page.hpp"
#include "report/placement.hpp"
#include "samples.hpp"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("report_page_maker KIND EVENTS FILE\n", stderr);
    return 64;
  }
  const std::string kind = argv[1];
  const weir::recording recorded = weir::report_test::sample_named(kind, std::stoul(argv[2]));
  weir::report::page_source source{recorded, kind + ".weirtrace"};
  std::optional<weir::report::placement> placement;
  if (kind == "unplaced" || kind == "training") {
    // The policies of a short piece are enough to show.
    weir::recording piece = recorded;
    if (kind == "training" && piece.events.size() > 100'000) piece.events.resize(100'000);
    const auto script = weir::replay::make_script(piece);
    for (const auto policy :
         {weir::replay::policy::torch_default, weir::replay::policy::balanced}) {
      auto placed = weir::report::place(script, {.policy = policy, .samples = 500});
      if (!placed) {
        std::fprintf(stderr, "%s\n", placed.error().message().c_str());
        return 1;
      }
      source.policies.push_back(placed->second);
      if (kind == "unplaced") placement = std::move(placed->first);
    }
    if (placement) source.placement = &*placement;
  }
  std::ofstream out{argv[3], std::ios::binary};
  out << weir::report::make_page(source);
  return out.flush() ? 0 : 1;
}
