// SPDX-License-Identifier: Apache-2.0
// The public face of recordings in progress.
#include "weir/trace/recorder.hpp"

#include <cerrno>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "base/member_list.hpp"
#include "base/signals_blocked.hpp"
#include "trace/event_collector.hpp"
#include "trace/ticks.hpp"

namespace weir { inline namespace v0 {

result<std::unique_ptr<recorder>> recorder::start(const std::string& path,
                                                  const recorder_options& options) try {
  if (path.empty())
    return error{{.code = errc::invalid_argument, .detail = "path must not be empty"}};
  if (options.ring_events < 16 || options.ring_events > (std::uint32_t{1} << 24))
    return error{{.code = errc::invalid_argument, .detail = "ring_events must be from 16 to 2^24"}};
  if (options.level < 0 || options.level > 19)
    return error{{.code = errc::invalid_argument, .detail = "level must be from 0 to 19"}};
  if (options.flush_every.count() < 1)
    return error{{.code = errc::invalid_argument, .detail = "flush_every must be at least 1 ms"}};
  const detail::signals_blocked quiet;
  trace::event_collector::prepare();
  WEIR_TRY_VALUE(file, trace::file_writer::create(path, trace::find_zstd(), options.level));
  recorder_options settings = options;
  if (settings.program.empty()) settings.program = program_invocation_short_name;
  auto collector = std::make_unique<trace::event_collector>(
      trace::trace_writer{std::move(file), trace::ticks()}, std::move(settings));
  // Made before the recording begins: what fails later leaves no file behind.
  std::unique_ptr<recorder> made{new recorder{std::move(collector)}};
  WEIR_TRY(made->state_->begin());
  return made;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

recorder::recorder(std::unique_ptr<trace::event_collector> state) noexcept
    : state_{std::move(state)} {}

recorder::~recorder() {
  // The parent's state stays as it is: its locks may be held by threads that are not here.
  if (state_->is_forked()) {
    static_cast<void>(state_.release());
    return;
  }
  static_cast<void>(state_->stop());  // reported to the error handler
}

void recorder::on_event(const memory_event& event) noexcept {
  state_->add(event, __builtin_return_address(0));
}
void recorder::on_existing(const memory_event& event) noexcept { state_->add(event, nullptr); }
void recorder::marker(std::string_view text) noexcept { state_->marker(text); }
result<void> recorder::flush() { return state_->flush(); }
result<void> recorder::close() { return state_->stop(); }
recorder_stats recorder::stats() const { return state_->stats(); }

std::string to_string(const recorder_stats& stats) {
  detail::member_list members;
  members.add("written", stats.written)
      .add("dropped", stats.dropped)
      .add("threads", stats.threads)
      .add("file_size", stats.file_size);
  return std::move(members).text();
}

}}  // namespace weir::v0
