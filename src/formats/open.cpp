// SPDX-License-Identifier: Apache-2.0
// Detecting a file's format by its first bytes, and calling its reader.
#include "formats/open.hpp"

#include <filesystem>

#include "formats/csv_trace.hpp"
#include "formats/pickle.hpp"
#include "formats/rmm_log.hpp"
#include "formats/torch_snapshot.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

/// "runs/gpt2.trace.gz" is about gpt2.
std::string title_of(std::string_view path) {
  const auto slash = path.rfind('/');
  if (slash != path.npos) path.remove_prefix(slash + 1);
  for (const std::string_view ending :
       {".gz", ".zst", ".weirtrace", ".trace", ".csv", ".log", ".pickle", ".pkl", ".snapshot"}) {
    if (path.ends_with(ending)) path.remove_suffix(ending.size());
  }
  return std::string{path};
}

error with_name(std::string_view name, error problem) {
  if (!problem.detail().starts_with(name)) {
    problem.set_detail(problem.detail().empty() ? std::string{name}
                                                : std::string{name} + ": " + problem.detail());
  }
  return problem;
}

result<recording> read_decompressed(std::string_view bytes, std::string_view name,
                                    const input_limits& limits, const device_choice& choice) {
  if (bytes.empty()) return error{{.code = errc::invalid_argument, .detail = "the file is empty"}};
  if (choice.device && choice.is_ignored != nullptr) *choice.is_ignored = !is_pickle(bytes);
  if (is_trace(bytes))
    return read_trace_from(bytes, {.events = limits.events, .bytes = limits.bytes});
  if (is_csv_trace(bytes)) return read_csv_trace(bytes, name, limits);
  if (is_pickle(bytes)) return read_torch_snapshot(bytes, name, limits, choice);
  if (is_rmm_log(bytes)) return read_rmm_log(bytes, name, limits);
  return error{
      {.code = errc::invalid_argument,
       .detail =
           "unknown format; expected a .weirtrace, a CSV trace, a PyTorch snapshot or an RMM log"}};
}

/// A peaks.csv that cannot be read is as none: it is no part of the trace, and nobody asked for it.
void add_peaks(recording& recording, const std::string& path) {
  constexpr input_limits limits{.bytes = std::uint64_t{16} << 20};
  const auto beside = (std::filesystem::path{path}.parent_path() / "peaks.csv").string();
  const auto text = read_regular_file(beside, limits);
  if (!text) return;
  if (auto peaks = read_csv_peaks(*text, beside, recording.program))
    recording.peaks = *std::move(peaks);
}

result<recording> read_content(std::string bytes, std::string_view name, const input_limits& limits,
                               const device_choice& choice) {
  const input_limits of_this = limits.of_file(bytes.size());
  auto content = decompress(std::move(bytes), of_this);
  if (!content) return with_name(name, std::move(content).error());
  auto recorded = read_decompressed(*content, name, of_this, choice);
  if (!recorded) return with_name(name, std::move(recorded).error());
  if (recorded->program.empty()) recorded->program = title_of(name);
  return recorded;
}

}  // namespace

result<recording> read_recording_from(std::string_view bytes, std::string_view name,
                                      const input_limits& limits, const device_choice& choice) {
  return read_content(std::string{bytes}, name, limits, choice);
}

result<recording> read_recording(const std::string& path, const input_limits& limits,
                                 const device_choice& choice) {
  WEIR_TRY_VALUE(bytes, read_file(path, limits));
  const bool is_standard = path == "-";
  WEIR_TRY_VALUE(
      read, read_content(std::move(bytes), is_standard ? "standard input" : path, limits, choice));
  if (read.peaks.empty() && !is_standard) add_peaks(read, path);
  return std::move(read);
}

}}}  // namespace weir::v0::formats
