// Writes the report of a made-up recording, for the browser to look at:
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
  const weir::recording made = weir::report_test::sample_named(kind, std::stoul(argv[2]));
  weir::report::page_source source{made, kind + ".weirtrace"};
  std::optional<weir::report::placement> where;
  if (kind == "unplaced" || kind == "training") {
    // The policies of a short piece are enough to look at.
    weir::recording piece = made;
    if (kind == "training" && piece.events.size() > 100'000) piece.events.resize(100'000);
    const auto script = weir::replay::make_script(piece);
    for (const auto policy :
         {weir::replay::policy::torch_default, weir::replay::policy::balanced}) {
      auto came = weir::report::place(script, {.how = policy, .samples = 500});
      if (!came) {
        std::fprintf(stderr, "%s\n", came.error().message().c_str());
        return 1;
      }
      source.policies.push_back(came->second);
      if (kind == "unplaced") where = std::move(came->first);
    }
    if (where) source.where = &*where;
  }
  std::ofstream out{argv[3], std::ios::binary};
  out << weir::report::make_page(source);
  return out.flush() ? 0 : 1;
}
