// SPDX-License-Identifier: Apache-2.0
// Writing rows, and keeping the errors of that away from the requests.
#include "weir/resource/logging_resource.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <system_error>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "pools/guarded.hpp"
#include "resources/adaptor.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir { inline namespace v0 {
namespace {

constexpr std::string_view header = "Thread,Time,Action,Pointer,Size,Stream\n";

error system_error(std::string subject, int number) {
  return {{.code = errc::system,
           .detail = std::move(subject) + ": " + std::generic_category().message(number)}};
}

/// A file that takes rows, each with one call to the system.
class row_file {
 public:
  row_file(descriptor file, std::string path) : file_{std::move(file)}, path_{std::move(path)} {}

  result<void> write(std::string_view row) {
    // A disk that ran full in the middle of a row has left half of one: end it before the next.
    if (torn_) {
      WEIR_TRY(write_all("\n"));
      torn_ = false;
    }
    return write_all(row);
  }

 private:
  result<void> write_all(std::string_view rest) {
    const std::size_t whole = rest.size();
    while (!rest.empty()) {
      const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        torn_ = torn_ || rest.size() != whole;
        return system_error(path_, errno);
      }
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
    return {};
  }

  descriptor file_;
  std::string path_;
  bool torn_ = false;
};

std::string row(const char* action, void* pointer, bytes size, const stream_ref& stream) {
  using namespace std::chrono;
  const auto now = system_clock::now();
  const std::time_t seconds = system_clock::to_time_t(now);
  const auto micros = duration_cast<microseconds>(now.time_since_epoch()).count() % 1'000'000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char text[192];
  const int length = std::snprintf(
      text, sizeof text, "%ld,%02d:%02d:%02d.%06ld,%s,%p,%llu,0x%llx\n",
      static_cast<long>(::gettid()), local.tm_hour, local.tm_min, local.tm_sec,
      static_cast<long>(micros), action, pointer, static_cast<unsigned long long>(size.count()),
      static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(stream.handle())));
  return {text, static_cast<std::size_t>(length)};
}

}  // namespace

struct logging_resource::state {
  state(any_resource under, csv_sink output)
      : upstream{std::move(under)}, sink{std::move(output)} {}

  /// No failure of the log may reach the request, not even an exception.
  void write(std::string_view text) noexcept WEIR_EXCLUDES(mutex) {
    const detail::mutex_lock lock{mutex};
    auto written = pools::contained([&] {
      mutex.assert_held();
      return sink(text);
    });
    if (!written) count_lost(std::move(written));
  }
  void log(const char* action, void* pointer, bytes size, const stream_ref& stream) noexcept
      WEIR_EXCLUDES(mutex) {
    try {
      write(row(action, pointer, size, stream));
    } catch (const std::bad_alloc&) {
      const detail::mutex_lock lock{mutex};
      count_lost(detail::no_host_memory());
    }
  }

  const any_resource upstream;
  mutable detail::mutex mutex;
  csv_sink sink WEIR_GUARDED_BY(mutex);
  std::uint64_t lost WEIR_GUARDED_BY(mutex) = 0;
  result<void> first_failure WEIR_GUARDED_BY(mutex);

 private:
  void count_lost(result<void> reason) noexcept WEIR_REQUIRES(mutex) {
    ++lost;
    if (first_failure) first_failure = std::move(reason);
  }
};

result<logging_resource> logging_resource::create(any_resource upstream, csv_sink sink) {
  WEIR_TRY(resources::check_upstream(upstream));
  if (!sink)
    return error{{.code = errc::invalid_argument,
                  .detail = "the sink is empty; pass a function that writes a line"}};
  return pools::guarded([&]() -> result<logging_resource> {
    auto shared = std::make_shared<state>(std::move(upstream), std::move(sink));
    shared->write(header);
    return logging_resource{std::move(shared)};
  });
}

result<logging_resource> logging_resource::create(any_resource upstream, const std::string& path) {
  WEIR_TRY(resources::check_upstream(upstream));
  return pools::guarded([&]() -> result<logging_resource> {
    descriptor file{
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666)};
    if (!file) return system_error(path, errno);
    auto rows = std::make_shared<row_file>(std::move(file), path);
    return create(std::move(upstream),
                  csv_sink{[rows](std::string_view text) { return rows->write(text); }});
  });
}

result<void*> logging_resource::try_allocate(bytes size, const stream_ref& stream,
                                             bytes alignment) const {
  if (resources::is_forked(state_->upstream)) return detail::fork_error();
  auto pointer = state_->upstream.try_allocate(size, stream, alignment);
  if (!pointer)
    state_->log("allocate failure", nullptr, size, stream);
  else if (*pointer != nullptr)
    state_->log("allocate", *pointer, size, stream);
  return pointer;
}

result<void> logging_resource::try_deallocate(void* pointer, bytes size,
                                              const stream_ref& stream) const {
  if (resources::is_forked(state_->upstream)) return detail::fork_error();
  if (pointer != nullptr) state_->log("free", pointer, size, stream);
  return state_->upstream.try_deallocate(pointer, size, stream);
}

result<void> logging_resource::record_stream(void* pointer, const stream_ref& stream) const {
  return state_->upstream.record_stream(pointer, stream);
}

result<void> logging_resource::log_state() const {
  if (resources::is_forked(state_->upstream)) return detail::fork_error();
  const detail::mutex_lock lock{state_->mutex};
  return state_->first_failure;
}

std::uint64_t logging_resource::lost_rows() const {
  if (resources::is_forked(state_->upstream)) return 0;
  const detail::mutex_lock lock{state_->mutex};
  return state_->lost;
}

void logging_resource::reset_counters() const {
  if (resources::is_forked(state_->upstream)) return;
  const detail::mutex_lock lock{state_->mutex};
  state_->lost = 0;
  state_->first_failure = result<void>{};
}

any_resource logging_resource::upstream() const { return state_->upstream; }
weir::device logging_resource::device() const { return state_->upstream.device(); }
memory_kind logging_resource::kind() const noexcept { return state_->upstream.kind(); }

}}  // namespace weir::v0
