// SPDX-License-Identifier: Apache-2.0
// What happens around the blocks: streams come and go, pools, limits; memory is released; work
// advances.
#include <utility>

#include "program.hpp"
#include "support/sizes.hpp"

namespace weir::order_test {
namespace {

using testing_support::mib;
constexpr std::size_t most_streams = 64;  // the allocator remembers every stream it met

}  // namespace

void program::change_streams() {
  if (streams_.count() >= most_streams || capturing_) return;
  const stream_index destroyed = streams_.any_owned();
  if (destroyed != no_stream && !random_.one_in(4)) {
    queue_some_work(destroyed);
    if (announces_ends_ || !random_.one_in(3))
      fixture_.expect_ok(fixture_.memory().release_stream(name_of(destroyed)), "release_stream");
    streams_.destroy(destroyed);
  }
  const stream_index added = streams_.add_owned(random_.one_in(6));
  if (added != no_stream) queue_some_work(added);
}

void program::change_pools() {
  if (!pools_.empty() && random_.one_in(2)) {
    std::swap(pools_[random_.below(pools_.size())], pools_.back());
    pools_.pop_back();  // its blocks may live on
    return;
  }
  if (pools_.size() >= 3) return;
  auto pool = fixture_.memory().create_pool("order");
  if (fixture_.expect_ok(pool, "create_pool")) pools_.push_back(*std::move(pool));
}

void program::change_limits() {
  if (fixture_.ample()) return;
  caching_allocator& memory = fixture_.memory();
  if (random_.one_in(2)) {
    const bool none = random_.one_in(2);
    const std::uint64_t some = fixture_.capacity() / 10 * (4 + random_.below(6));
    fixture_.expect_ok(memory.set_limit(none ? bytes::max() : bytes{some}), "set_limit");
    return;
  }
  const weir::tag limited = tags_[random_.below(tags_.size())];
  const bool none = random_.one_in(2);
  fixture_.expect_ok(
      memory.set_limit(limited, none ? bytes::max() : bytes{random_.below(64) * mib}),
      "set_limit of a tag");
}

void program::trim() {
  caching_allocator& memory = fixture_.memory();
  switch (random_.below(5)) {
    case 0:
      if (!in_callback_) fixture_.expect_ok(memory.empty_cache(), "empty_cache");
      return;
    case 1:
      return fixture_.expect(
          !memory.explain(bytes{mib}, streams_.ref(streams_.any())).text().empty(),
          "nothing to explain");
    default:
      fixture_.expect_ok(memory.trim(bytes{random_.below(fixture_.capacity())}), "trim");
  }
}

void program::advance_machine() {
  for (std::uint64_t steps = random_.below(8); steps > 0; --steps)
    static_cast<void>(fixture_.machine().step());
}

}  // namespace weir::order_test
