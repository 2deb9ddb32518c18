// SPDX-License-Identifier: Apache-2.0
// Access of other devices to a bare core.
#include "heap/peer_access.hpp"

#include <utility>
#include <vector>

#include "heap/bare_core.hpp"
#include "heap/heap_fixture.hpp"
#include "heap/reclaimer.hpp"

namespace weir::testing_support { namespace {

using heap::block_index;
using heap::pool_state;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Knows one live block; has nothing in caches and nothing to reclaim.
class one_block_host final : public heap::peer_access_host, public heap::residency_host {
 public:
  result<block_index> find_live(const void* pointer) override {
    if (pointer == this) return block_index{7};
    return errc::foreign_pointer;
  }
  void record_use(block_index index, heap::stream_slot slot, stream_id stream) override {
    EXPECT_EQ(index, 7u);
    slots.push_back(slot);
    streams.push_back(stream);
  }

  void settle_caches() noexcept override {}
  bool flush_all() noexcept override { return false; }
  void flush_caches() noexcept override {}
  void update_limits() noexcept override {}
  result<bool> any_capturing(order::driver_access&) override { return false; }
  result<bool> reclaim_cached(pool_state&, bytes, order::driver_access&) override { return false; }
  result<bool> wait_for_oldest(pool_state&, heap::wait_bound&, order::driver_access&) override {
    return false;
  }
  heap::store_traits traits_of(const pool_state&) const override { return {}; }
  std::string shortage_text(bytes) override { return {}; }

  std::vector<heap::stream_slot> slots;
  std::vector<stream_id> streams;
};

class noting_listener final : public detail::stream_listener {
 public:
  void stream_closing(const stream_ref& stream) noexcept override {
    closing.push_back(stream.known_id());
  }
  std::vector<stream_id> closing;
};

class peer_access_test : public heap_test {
 protected:
  [[nodiscard]] std::vector<int> reaching() {
    const detail::mutex_lock lock{core.mutex_};
    std::vector<int> all;
    for (const vmm::access& each : core.placement_.rights) all.push_back(each.location.id);
    return all;
  }

  bare_core core{gpu(), {}};
  one_block_host host;
  noting_listener listener;
  heap::heap_backup backup{core};
  heap::suspended_peak peak{core};
  heap::residency residency{core, host, backup, peak};
  heap::peer_access peers{core, residency, host, listener};
};

TEST_F(peer_access_test, a_peer_has_rights_once) {
  EXPECT_THAT(reaching(), ElementsAre(0));
  ASSERT_TRUE(peers.enable(gpu(1)));
  ASSERT_TRUE(peers.enable(gpu(1)));
  EXPECT_THAT(reaching(), ElementsAre(0, 1));
  EXPECT_EQ(code_of(peers.enable(gpu())), errc::invalid_argument);
  core.closed_ = true;
  EXPECT_EQ(code_of(peers.enable(gpu(1))), errc::closed);
}

TEST_F(peer_access_test, a_use_elsewhere_is_recorded_for_the_joint_stream) {
  const stream there = stream::create(gpu(1)).value();
  const stream also = stream::create(gpu(1)).value();
  ASSERT_TRUE(peers.record_stream(&host, there));
  ASSERT_TRUE(peers.record_stream(&host, also));
  EXPECT_THAT(host.streams, ElementsAre(there.id(), also.id()));
  ASSERT_EQ(host.slots.size(), 2u);
  EXPECT_EQ(host.slots[0], host.slots[1]) << "one stream stands for all of them";
  const detail::mutex_lock lock{core.mutex_};
  EXPECT_TRUE(core.foreign_uses_.has_joint_stream());
  EXPECT_EQ(core.order_.ref(host.slots[0]).device(), gpu());
}

// The end of a stream takes the lock that the caller holds.
TEST_F(peer_access_test, a_second_joint_stream_stays_with_the_caller) {
  const stream there = stream::create(gpu(1)).value();
  const auto use = heap::foreign_uses::describe(there, gpu()).value();
  auto first = heap::foreign_uses::make_joint_stream(gpu(), false).value();
  auto second = heap::foreign_uses::make_joint_stream(gpu(), false).value();
  ASSERT_TRUE(second.has_value());
  const stream_id kept = second->id();
  const detail::mutex_lock lock{core.mutex_};
  const heap::stream_slot slot = core.foreign_uses_.add(1, use, first, core.order_);
  EXPECT_EQ(core.foreign_uses_.add(2, use, second, core.order_), slot);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->id(), kept);
  EXPECT_NE(core.order_.id(slot), kept);
  core.foreign_uses_.clear();
}

TEST_F(peer_access_test, what_is_no_live_block_is_not_recorded) {
  const stream there = stream::create(gpu(1)).value();
  int elsewhere = 0;
  EXPECT_EQ(code_of(peers.record_stream(&elsewhere, there)), errc::foreign_pointer);
  EXPECT_THAT(host.slots, IsEmpty());
  core.closed_ = true;
  EXPECT_EQ(code_of(peers.record_stream(&host, there)), errc::closed);
  EXPECT_THAT(host.slots, IsEmpty());
}

TEST_F(peer_access_test, the_ends_of_recorded_streams_are_told_until_nobody_listens) {
  { const stream unknown = stream::create(gpu(1)).value(); }
  EXPECT_THAT(listener.closing, IsEmpty());
  stream_id last{};
  {
    const stream there = stream::create(gpu(1)).value();
    ASSERT_TRUE(peers.record_stream(&host, there));
    last = there.id();
  }
  EXPECT_THAT(listener.closing, ElementsAre(last));
  peers.stop_listening();
  {
    const stream late = stream::create(gpu(1)).value();
    ASSERT_TRUE(peers.record_stream(&host, late));
  }
  EXPECT_THAT(listener.closing, ElementsAre(last));
  const detail::mutex_lock lock{core.mutex_};
  core.foreign_uses_.clear();
}

}}  // namespace weir::testing_support
