// SPDX-License-Identifier: Apache-2.0
// What a thread knows of its default streams, until it ends.
#include "device/thread_stream_ends.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "base/thread_end.hpp"

namespace weir { inline namespace v0 { namespace detail {
namespace {

// Set when the thread's list is gone: streams named after that are not announced.
constinit thread_local bool stream_ends_announced = false;
// Set when the thread has a list. Not kept by a key: the driver's part of the thread must be there
// when it ends.
constinit thread_local bool stream_ends_noted = false;

struct thread_default_stream {
  std::weak_ptr<runtime> owner;
  device_state* home = nullptr;
  stream_id number{};
};

/// The default streams of one thread, on every device whose driver was asked about them.
class thread_default_streams {
 public:
  thread_default_streams() = default;
  ~thread_default_streams();
  thread_default_streams(const thread_default_streams&) = delete;
  thread_default_streams& operator=(const thread_default_streams&) = delete;

  void add(device_state& state, stream_id number);

 private:
  std::vector<thread_default_stream> streams_;
};

void thread_default_streams::add(device_state& state, stream_id number) {
  const auto is_it = [&](const thread_default_stream& each) {
    return each.home == &state && each.number == number;
  };
  if (std::any_of(streams_.begin(), streams_.end(), is_it)) return;
  std::erase_if(streams_, [](const auto& each) { return each.owner.expired(); });
  streams_.push_back({state.owner->weak_from_this(), &state, number});
}

void announce_end(device_state& state, stream_id number) noexcept try {
  if (state.forked()) return;
  const context_scope bound{state.handle()};
  if (!bound) return;
  const stream_ref ending = stream_ref::per_thread(state.handle());
  // The handle means a new stream if the driver has destroyed this one already.
  const auto present = ending.id(bound);
  if (present && *present == number) emit_stream_end(state, ending);
} catch (const std::bad_alloc&) {
  // Then it stays a stream of a thread that nobody can ask.
}

thread_default_streams::~thread_default_streams() {
  stream_ends_announced = true;
  for (const thread_default_stream& each : streams_)
    if (const auto alive = each.owner.lock()) announce_end(*each.home, each.number);
}

}  // namespace

void announce_thread_stream_end(device_state& state, stream_id number) noexcept try {
  if (stream_ends_announced) return;
  if (!stream_ends_noted && !can_note_destructor()) return;
  thread_local thread_default_streams own;
  stream_ends_noted = true;
  own.add(state, number);
} catch (const std::bad_alloc&) {
  // As if the thread had never been asked to tell.
}

}}}  // namespace weir::v0::detail
