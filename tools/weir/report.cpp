// weir report: a recording as one HTML file that opens anywhere.
#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "replay/replay.hpp"
#include "report/page.hpp"
#include "traces.hpp"

namespace weir::command {

namespace {

constexpr std::string_view who = "report";

constexpr const char* explanation =
    "The page shows memory over time, the arena at any moment and what pins its pages,\n"
    "why memory ran out, and the policies side by side. docs/report.md tells how to read it.\n"
    "\n"
    "Exit codes:\n"
    "  0   the report was written\n"
    "  1   the report was written, but the trace is damaged\n"
    "  2   the trace could not be read or played, or the report not be written\n"
    "  64  the command line could not be understood";

struct arguments {
  std::string trace;
  std::string output;
  std::string policies = "torch-default,torch-expandable,balanced";
  std::string place = "balanced";
  bool overwrite = false;
};

/// The whole file or none: it gets its name when it is complete.
result<void> write_whole(const std::string& path, const std::string& text) {
  const std::string draft = path + ".part";
  const auto gone_wrong = [&](const char* what) {
    error out{.code = errc::system, .native = errno};
    out.detail = fmt::format("{}: {}: {}", path, what, std::strerror(errno));
    std::error_code ignored;
    std::filesystem::remove(draft, ignored);
    return out;
  };
  std::ofstream file{draft, std::ios::binary | std::ios::trunc};
  if (!file) return gone_wrong("cannot be created");
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) return gone_wrong("cannot be written");
  if (std::rename(draft.c_str(), path.c_str()) != 0) return gone_wrong("cannot be named");
  return {};
}

/// Plays the policies; the one that places the blocks is played once for both.
result<void> play(const recording& what, const std::vector<replay::policy>& policies,
                  std::optional<replay::policy> placing, report::page_source& into,
                  std::optional<report::placement>& where) {
  if (policies.empty() && !placing) return {};
  const replay::script script = replay::make_script(what);
  progress_line bar{"playing", script.steps.size() * (policies.size() + (placing ? 1 : 0))};
  const auto settings = [&](replay::policy how) {
    replay::settings out{.how = how, .capacity = bytes{what.device_capacity}, .samples = 1000};
    out.progress = [&bar, before = std::size_t{0}](std::size_t done) mutable {
      bar.add(done - before);
      before = done;
    };
    return out;
  };
  for (const replay::policy how : policies) {
    if (placing == how) {
      WEIR_TRY_VALUE(came, report::place(script, settings(how)));
      where = std::move(came.first);
      into.policies.push_back(std::move(came.second));
    } else {
      WEIR_TRY_VALUE(came, replay::play(script, settings(how)));
      into.policies.push_back(std::move(came));
    }
  }
  if (placing && !where) {
    WEIR_TRY_VALUE(came, report::place(script, settings(*placing)));
    where = std::move(came.first);
  }
  return {};
}

/// The policies that the arguments name, and the one that places blocks.
struct chosen {
  std::vector<replay::policy> compared;
  replay::policy placing{};
};

std::optional<chosen> choose(const arguments& wanted) {
  chosen out;
  if (wanted.policies != "none") {
    auto named = replay::policies_named(wanted.policies);
    if (!named) {
      complain(who, named.error());
      return std::nullopt;
    }
    out.compared = std::move(*named);
  }
  const auto placing = replay::policies_named(wanted.place);
  if (!placing) {
    complain(who, placing.error());
    return std::nullopt;
  }
  out.placing = placing->front();
  if (placing->size() != 1 || out.placing == replay::policy::driver_pool) {
    complain(who, "--place wants one policy; driver-pool does not say where its memory is");
    return std::nullopt;
  }
  return out;
}

int run(const arguments& wanted) {
  const auto policies = choose(wanted);
  if (!policies) return bad_usage;
  if (!wanted.overwrite && std::filesystem::exists(wanted.output)) {
    complain(who, wanted.output + " exists; --force replaces it");
    return failed;
  }
  const auto what = read_trace(who, wanted.trace);
  if (!what) return failed;
  say_if_damaged(who, wanted.trace, *what);
  report::page_source source{*what, std::filesystem::path{wanted.trace}.filename().string()};
  std::optional<report::placement> where;
  std::optional<replay::policy> placing;
  if (!what->real_addresses && !what->events.empty()) placing = policies->placing;
  if (const auto played = play(*what, policies->compared, placing, source, where); !played) {
    complain(who, played.error());
    return failed;
  }
  if (where) source.where = &*where;
  const std::string page = report::make_page(source);
  if (const auto written = write_whole(wanted.output, page); !written) {
    complain(who, written.error());
    return failed;
  }
  fmt::print("{}: {} events, {}\n", wanted.output, what->events.size(),
             to_string(bytes{page.size()}));
  return what->damage ? not_whole : 0;
}

}  // namespace

void add_report(CLI::App& application, int& exit_code) {
  auto* const report = application.add_subcommand(
      "report", "Write a recording as one HTML file: where the memory went, and why");
  const auto wanted = std::make_shared<arguments>();
  report->add_option("trace", wanted->trace, "The recording")->required()->type_name("TRACE");
  report->add_option("-o,--output", wanted->output, "The file to write")
      ->required()
      ->type_name("FILE");
  report
      ->add_option("--policy", wanted->policies,
                   "Policies to replay for comparison: a list, all, or none")
      ->type_name("LIST")
      ->capture_default_str();
  report
      ->add_option("--place", wanted->place,
                   "The policy that places the blocks of a recording without addresses")
      ->type_name("POLICY")
      ->capture_default_str();
  report->add_flag("-f,--force", wanted->overwrite, "Replace the file if it exists");
  report->footer(explanation);
  report->callback([wanted, &exit_code] { exit_code = run(*wanted); });
}

}  // namespace weir::command
