// SPDX-License-Identifier: Apache-2.0
// Observers of a bare core.
#include "heap/observer_registry.hpp"

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

class silent_host final : public heap::inspector_host, public heap::heap_limits_host {
 public:
  result<heap::identified_stream> identify(const stream_ref&) override { return errc::bad_stream; }
  void settle_caches() noexcept override { ++settled; }
  result<heap::block_index> find_live(const void*) override { return errc::foreign_pointer; }
  const heap::pool_state* suspendable_pool(tag) const noexcept override { return nullptr; }
  void update_limits() noexcept override {}

  int settled = 0;
};

/// Counts the events, and separately what existed when it was added.
class counter final : public event_sink {
 public:
  explicit counter(bool asks) : asks_{asks} {}
  void on_event(const memory_event&) noexcept override { ++events; }
  void on_existing(const memory_event&) noexcept override { ++existing; }
  bool wants_existing() const noexcept override { return asks_; }

  int events = 0;
  int existing = 0;

 private:
  bool asks_;
};

class observer_registry_test : public heap_test {
 protected:
  void emit() {
    const detail::mutex_lock lock{core.mutex_};
    core.placement_.emit({.kind = memory_event_kind::out_of_memory});
  }

  bare_core core{gpu(), {.limit = 512_MiB}};
  silent_host host;
  heap::heap_limits limits{core, host};
  heap::suspended_peak peak{core};
  heap::heap_backup backup{core};
  heap::inspector inside{core, host, peak, backup, 0};
  heap::observer_registry registry{core, inside, limits};
};

TEST_F(observer_registry_test, observers_hear_from_when_they_are_added_until_they_are_removed) {
  counter first{false};
  counter second{false};
  emit();
  ASSERT_NE(registry.add(first), nullptr);
  EXPECT_EQ(first.events, 1) << "the limit in force";
  EXPECT_EQ(host.settled, 0);
  emit();
  ASSERT_NE(registry.add(second), nullptr);
  emit();
  EXPECT_EQ(first.events, 3);
  EXPECT_EQ(second.events, 2);
  registry.remove(first);
  emit();
  EXPECT_EQ(first.events, 3);
  EXPECT_EQ(second.events, 3);
  registry.remove(second);
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_EQ(core.placement_.observer, nullptr);
}

TEST_F(observer_registry_test, who_wants_to_know_is_told_what_exists) {
  {
    const detail::mutex_lock lock{core.mutex_};
    static_cast<void>(core.add_pool("second"));
  }
  counter told{true};
  ASSERT_NE(registry.add(told), nullptr);
  EXPECT_EQ(told.existing, 1) << "one pool beside the allocator's own";
  EXPECT_EQ(told.events, 1);
  EXPECT_EQ(host.settled, 1);
  registry.remove(told);
}

TEST_F(observer_registry_test, a_closed_heap_takes_none) {
  counter late{true};
  core.closed_ = true;
  EXPECT_EQ(registry.add(late), nullptr);
  EXPECT_EQ(late.events + late.existing, 0);
}

}}  // namespace weir::testing_support
