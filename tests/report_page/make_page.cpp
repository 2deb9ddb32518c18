// SPDX-License-Identifier: Apache-2.0
// Writes the report of a made-up recording, for tests in a browser, or the recording itself:
//   report_page_maker KIND EVENTS FILE[.weirtrace|.pickle]
//   report_page_maker read RECORDING FILE
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "formats/open.hpp"
#include "formats/torch_snapshot.hpp"
#include "report/page.hpp"
#include "report/placement.hpp"
#include "samples.hpp"
#include "weir/trace/trace_file.hpp"

namespace {

int fail(const weir::error& reason) {
  std::fprintf(stderr, "%s\n", (reason.message() + " " + reason.detail()).c_str());
  return 1;
}

int write_page(const std::string& file, const weir::report::page_source& source) {
  std::ofstream out{file, std::ios::binary};
  out << weir::report::make_page(source);
  return out.flush() ? 0 : 1;
}

/// As `weir report --policy none` does it.
int read(const std::string& path, const std::string& file) {
  const auto recorded = weir::formats::read_recording(path);
  if (!recorded) return fail(recorded.error());
  return write_page(file, {*recorded, std::filesystem::path{path}.filename().string()});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("report_page_maker KIND EVENTS FILE | read RECORDING FILE\n", stderr);
    return 64;
  }
  const std::string kind = argv[1];
  const std::string file = argv[3];
  if (kind == "read") return read(argv[2], file);
  const weir::recording recorded = weir::report_test::sample_named(kind, std::stoul(argv[2]));
  if (file.ends_with(".weirtrace")) {
    const auto written = weir::write_trace(recorded, file);
    return written ? 0 : fail(written.error());
  }
  if (file.ends_with(".pickle")) {
    const auto written = weir::formats::write_torch_snapshot(recorded, file);
    return written ? 0 : fail(written.error());
  }
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
      if (!placed) return fail(placed.error());
      source.policies.push_back(placed->second);
      if (kind == "unplaced") placement = std::move(placed->first);
    }
    if (placement) source.placement = &*placement;
  }
  return write_page(file, source);
}
