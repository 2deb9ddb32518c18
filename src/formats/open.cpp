// Telling files apart by their first bytes, and handing each to its reader.
#include "formats/open.hpp"

#include <filesystem>

#include "formats/csv_trace.hpp"
#include "formats/pickle.hpp"
#include "formats/rmm_log.hpp"
#include "formats/torch_snapshot.hpp"
#include "weir/trace/trace_file.hpp"

namespace weir::inline v0::formats {
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

error in(std::string_view name, error what) {
  if (!what.detail.starts_with(name)) {
    what.detail = what.detail.empty() ? std::string{name} : std::string{name} + ": " + what.detail;
  }
  return what;
}

result<recording> read_as_it_is(std::string_view bytes, std::string_view name,
                                const input_limits& most) {
  if (bytes.empty()) return error{.code = errc::invalid_argument, .detail = "the file is empty"};
  if (is_trace(bytes)) return read_trace_from(bytes, {.events = most.events, .bytes = most.bytes});
  if (is_csv_trace(bytes)) return read_csv_trace(bytes, name, most);
  if (is_pickle(bytes)) return read_torch_snapshot(bytes, name, most);
  if (is_rmm_log(bytes)) return read_rmm_log(bytes, name, most);
  return error{.code = errc::invalid_argument,
               .detail = "neither a .weirtrace, a CSV trace, a PyTorch snapshot nor an RMM log"};
}

/// A peaks.csv that cannot be read is as none: it is no part of the trace.
void add_peaks(recording& to, const std::string& path, const input_limits& most) {
  const auto beside = (std::filesystem::path{path}.parent_path() / "peaks.csv").string();
  const auto text = read_file(beside, most);
  if (!text) return;
  if (auto peaks = read_csv_peaks(*text, beside, to.program)) to.peaks = *std::move(peaks);
}

result<recording> read_content(std::string bytes, std::string_view name, const input_limits& most) {
  auto content = inflated(std::move(bytes), most);
  if (!content) return in(name, std::move(content).error());
  auto read = read_as_it_is(*content, name, most);
  if (!read) return in(name, std::move(read).error());
  if (read->program.empty()) read->program = title_of(name);
  return read;
}

}  // namespace

result<recording> read_recording_from(std::string_view bytes, std::string_view name,
                                      const input_limits& most) {
  return read_content(std::string{bytes}, name, most);
}

result<recording> read_recording(const std::string& path, const input_limits& most) {
  WEIR_TRY_VALUE(bytes, read_file(path, most));
  WEIR_TRY_VALUE(read, read_content(std::move(bytes), path, most));
  if (read.peaks.empty()) add_peaks(read, path, most);
  return std::move(read);
}

}  // namespace weir::inline v0::formats
