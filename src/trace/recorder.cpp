// The public face of recordings in progress.
#include "weir/trace/recorder.hpp"

#include <cerrno>
#include <utility>

#include "trace/tape.hpp"
#include "trace/ticks.hpp"

namespace weir::inline v0 {

result<std::unique_ptr<recorder>> recorder::start(const std::string& path,
                                                  const recorder_options& how) {
  if (path.empty())
    return error{.code = errc::invalid_argument, .detail = "a recording needs a path"};
  if (how.ring_events < 16 || how.ring_events > (std::uint32_t{1} << 24))
    return error{.code = errc::invalid_argument, .detail = "ring_events is 16 to 2^24"};
  if (how.level < 0 || how.level > 19)
    return error{.code = errc::invalid_argument, .detail = "a level is 0 to 19"};
  if (how.flush_every.count() < 1)
    return error{.code = errc::invalid_argument, .detail = "flush_every is a millisecond or more"};
  trace::tape::prepare();
  WEIR_TRY_VALUE(file, trace::file_writer::create(path, trace::find_zstd(), how.level));
  recorder_options settings = how;
  if (settings.program.empty()) settings.program = program_invocation_short_name;
  auto inside = std::make_unique<trace::tape>(trace::transcript{std::move(file), trace::ticks()},
                                              std::move(settings));
  WEIR_TRY(inside->begin());
  return std::unique_ptr<recorder>{new recorder{std::move(inside)}};
}

recorder::recorder(std::unique_ptr<trace::tape> inside) noexcept : inside_{std::move(inside)} {}

recorder::~recorder() {
  // What is the parent's stays as it is: its locks may be held by threads that are not here.
  if (inside_->forked()) {
    static_cast<void>(inside_.release());
    return;
  }
  static_cast<void>(inside_->stop());  // the error handler was told
}

void recorder::on_event(const memory_event& what) noexcept { inside_->take(what); }
void recorder::marker(std::string_view text) noexcept { inside_->marker(text); }
result<void> recorder::flush() { return inside_->flush(); }
result<void> recorder::stop() { return inside_->stop(); }
recorder_stats recorder::stats() const { return inside_->stats(); }

}  // namespace weir::inline v0
