// SPDX-License-Identifier: Apache-2.0
// The way of a request, rung by rung, over a heap and a store that only say what they are asked.
#include <map>

#include "heap/graph_fixture.hpp"
#include "heap/room_search.hpp"

namespace weir::testing_support { namespace {

using heap::block_index;
using heap::no_block;
using heap::pool_state;
using placement::backing_store;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

using names = std::vector<std::string>;

/// What was asked, and what is to be answered: nothing, but for what a test says.
struct script {
  names asked;
  std::map<std::string, int> succeeds;  // which time, by name
  std::map<std::string, errc> fails;

  bool answer(const std::string& name) {
    asked.push_back(name);
    const auto time = std::count(asked.begin(), asked.end(), name);
    const auto entry = succeeds.find(name);
    return entry != succeeds.end() && entry->second == time;
  }
  template <class Value>
  result<Value> answer(const std::string& name, Value success, Value otherwise) {
    const bool succeeded = answer(name);
    if (const auto entry = fails.find(name); entry != fails.end()) return entry->second;
    return succeeded ? success : otherwise;
  }
};

constexpr block_index room = 5;

class scripted_store final : public backing_store {
 public:
  scripted_store(placement::placement_context& shared, pool_id pool, script& with)
      : backing_store{shared, pool}, script_{with} {}

  block_index fit(const placement::request& wanted) override {
    EXPECT_EQ(wanted.units, 3u);
    return script_.answer("fit") ? room : no_block;
  }
  result<block_index> fit_at(std::uint64_t address, const placement::request&) override {
    return script_.answer("fit at " + std::to_string(address), room, no_block);
  }
  bool prefers_growth(const placement::request&) const override {
    return script_.answer("prefers growth");
  }
  result<block_index> rearrange(const placement::request&, reach whose,
                                const context_scope&) override {
    return script_.answer(whose == reach::usable ? "rearrange" : "rearrange behind waits", room,
                          no_block);
  }
  result<block_index> grow(const placement::request&, const context_scope&) override {
    return script_.answer("grow", room, no_block);
  }
  result<bytes> release(bytes most, const context_scope&) override {
    EXPECT_EQ(most, bytes::max());
    return script_.answer("release own", 2_MiB, 0_B);
  }
  void free(block_index, heap::stamp) noexcept override {}
  void retire(heap::stream_slot) noexcept override {}
  result<void> grant(const vmm::access& /*peer*/, const context_scope& /*bound*/) override {
    return {};
  }
  result<void> close(const context_scope&) override { return {}; }
  std::uint64_t bound_to(heap::stream_slot) const noexcept override { return 0; }
  std::uint64_t longest_fit(heap::stream_slot) const noexcept override { return 0; }
  std::uint64_t fragments() const noexcept override { return 0; }
  void describe(pool_snapshot&) const override {}
  block_index block_over(std::uint64_t) const noexcept override { return no_block; }
  std::size_t footprint() const noexcept override { return 0; }
  std::string check() const override { return {}; }

 private:
  script& script_;
};

class scripted_heap final : public heap::reclaimer {
 public:
  scripted_heap(script& with, heap::thread_cache* own) : script_{with}, own_{own} {}

  result<heap::account_number> prepare(pool_state& pool, bytes, order::driver_access&) override {
    script_.asked.push_back(pool.id == pool_id{} ? "prepare" : "prepare " + pool.name);
    return static_cast<heap::account_number>(40 + pool.id.number());
  }
  result<pool_state*> capture_pool(const stream_ref&, heap::stream_slot slot,
                                   order::driver_access&) override {
    EXPECT_EQ(slot, 4u);
    script_.asked.push_back("capture's pool");
    return captured;
  }
  void flush_unbinned(heap::thread_cache& own) noexcept override {
    EXPECT_EQ(&own, own_);
    script_.asked.push_back("unbinned");
  }
  bool flush(heap::thread_cache& cache) noexcept override {
    EXPECT_EQ(&cache, own_);
    return script_.answer("flush own");
  }
  bool flush_others(heap::thread_cache* own) noexcept override {
    return script_.answer(own == nullptr ? "flush all" : "flush others");
  }
  result<bool> retire_completed(heap::stream_slot spared, pool_state&,
                                order::driver_access&) override {
    EXPECT_EQ(spared, 4u);
    let_go("retire");
    return script_.answer("retire", true, false);
  }
  bool any_pending_like(const placement::request& wanted,
                        const pool_state& pool) const noexcept override {
    EXPECT_EQ(wanted.units, 3u);
    return pool.id == pool_id{} && pending_like;
  }
  void retire_pending(order::driver_access&) noexcept override {
    script_.asked.push_back("retire pending");
  }
  bool queues_waits() const noexcept override { return waits; }
  result<bool> take_pending_behind_waits(const placement::request&, const pool_state&,
                                         order::driver_access&) override {
    return script_.answer("pending", true, false);
  }
  result<heap::fallback_room> fit_in_fallback(const placement::request& wanted) override {
    EXPECT_EQ(wanted.units, 3u);
    return script_.answer("fallback", heap::fallback_room{fallback, 77, 9}, heap::fallback_room{});
  }
  result<void> sweep_pools(pool_state&, order::driver_access&) override {
    let_go("sweep");
    script_.asked.push_back("sweep");
    return {};
  }
  bool may_release(const pool_state&) const noexcept override { return releases; }
  result<bool> release_can_help(const placement::request&, const pool_state&,
                                order::driver_access&) override {
    return release_helps;
  }
  result<bool> wait_can_help(const placement::request&, const pool_state&,
                             order::driver_access&) override {
    return wait_helps;
  }
  result<bytes> release_from_others(pool_state&, bytes most, order::driver_access&) override {
    EXPECT_EQ(most, 1536_B);
    let_go("release others");
    return script_.answer("release others", 2_MiB, 0_B);
  }
  result<bytes> release_own(pool_state& asking, order::driver_access& driver) override {
    let_go("release own");
    return asking.memory->release(bytes::max(), driver.enter());
  }
  result<bool> await_releases(pool_state&) override {
    const bool waited = script_.answer("await releases");
    return waited || always_releasing;
  }
  std::uint64_t releases_ended() const noexcept override { return ended_; }
  result<bool> evict(pool_state&, bytes, order::driver_access&) override {
    return script_.answer("evict", true, false);
  }
  result<heap::callback_answer> ask_callbacks(pool_state&, heap::thread_cache*,
                                              bytes needed) override {
    EXPECT_EQ(needed, 1536_B);
    script_.asked.push_back("callbacks");
    return callbacks;
  }
  result<bool> ask_before_growth(pool_state&, bytes needed) override {
    EXPECT_EQ(needed, 1536_B);
    if (growth_callbacks) script_.asked.push_back("growth callbacks");
    return growth_callbacks;
  }
  result<bool> wait_for_oldest(pool_state&, heap::wait_bound&, order::driver_access&) override {
    return script_.answer("wait", true, false);
  }

  pool_state* captured = nullptr;
  bool pending_like = false;
  std::string lets_go_at;  // the rung that lets go of the lock
  bool always_releasing = false;
  pool_state* fallback = nullptr;
  bool waits = true;
  bool releases = true;
  bool release_helps = true;
  bool wait_helps = true;
  heap::callback_answer callbacks;
  bool growth_callbacks = false;

 private:
  void let_go(const std::string& rung) { ended_ += rung == lets_go_at ? 1 : 0; }

  script& script_;
  heap::thread_cache* own_;
  std::uint64_t ended_ = 0;
};

class rungs_test : public graph_test {
 protected:
  rungs_test() {
    pool.memory = std::make_unique<scripted_store>(shared, pool.id, plan);
    apart.id = pool_id{1};
    apart.name = "apart";
    apart.memory = std::make_unique<scripted_store>(shared, apart.id, plan);
    heap.captured = &apart;
  }

  /// Looks for 3 units on stream 4 in the pool.
  result<block_index> search(pool_state& in, std::optional<capture_status> known = {},
                             heap::thread_cache* with = nullptr, bool fixed = false) {
    plan.asked.clear();
    order::driver_access driver{gpu()};
    heap::room_search looking{heap, driver, {.units = 3, .alignment = 1, .stream = 4}, in, on,
                              with, fixed};
    if (known) {
      const auto told = looking.know_capture(*known);
      EXPECT_TRUE(told);
    }
    auto found = looking.find_room();
    missed = looking.missed();
    last = looking.last_rung();
    account = looking.account();
    searched = &looking.pool();
    return found;
  }
  result<block_index> search() { return search(pool, {}, &cache); }

  /// All rungs of the allocator's own pool, none of which helps.
  static inline const names all = {"prepare",
                                   "unbinned",
                                   "fit",
                                   "retire",
                                   "flush own",
                                   "flush others",
                                   "prefers growth",
                                   "rearrange",
                                   "rearrange behind waits",
                                   "pending",
                                   "grow",
                                   "fallback",
                                   "sweep",
                                   "grow",
                                   "release others",
                                   "release own",
                                   "await releases",
                                   "evict",
                                   "callbacks",
                                   "wait"};
  /// The rungs up to one, and what follows.
  static names up_to(const std::string& rung, const names& rest = {}) {
    names some{all.begin(), std::find(all.begin(), all.end(), rung) + 1};
    some.insert(some.end(), rest.begin(), rest.end());
    return some;
  }

  const stream on = new_stream();
  script plan;
  heap::block_store blocks;
  order::stream_order order_{gpu()};
  placement::placement_context shared{.device = gpu(), .blocks = blocks, .order = order_};
  heap::thread_cache cache{1};
  scripted_heap heap{plan, &cache};
  pool_state pool, apart;
  bool missed = false;
  heap::rung last{};
  heap::account_number account = 0;
  const pool_state* searched = nullptr;
};

TEST_F(rungs_test, come_one_after_the_other_until_nothing_is_left) {
  EXPECT_EQ(search().value(), no_block);
  EXPECT_THAT(plan.asked, ElementsAreArray(all));
  EXPECT_TRUE(missed);
  EXPECT_EQ(account, 40u);
  EXPECT_EQ(searched, &pool);
}

TEST_F(rungs_test, what_is_free_as_it_lies_is_no_miss) {
  plan.succeeds = {{"fit", 1}};
  EXPECT_EQ(search().value(), room);
  EXPECT_THAT(plan.asked, ElementsAreArray(up_to("fit")));
  EXPECT_FALSE(missed);
}

TEST_F(rungs_test, a_pending_block_of_that_size_is_looked_at_first) {
  heap.pending_like = true;
  plan.succeeds = {{"fit", 1}};
  EXPECT_EQ(search().value(), room);
  EXPECT_THAT(plan.asked, ElementsAre("prepare", "unbinned", "retire pending", "fit"));
  EXPECT_FALSE(missed);
  EXPECT_EQ(search(pool, capture_status::active).value(), room);
  EXPECT_THAT(plan.asked, ElementsAre("capture's pool", "prepare apart", "fit"))
      << "what waits in one pool is nothing to another";
  pool.for_graphs = true;  // for graphs of the user's: no event may be asked for while one is made
  EXPECT_EQ(search(pool, capture_status::active, nullptr, true).value(), room);
  EXPECT_THAT(plan.asked, ElementsAre("prepare", "fit"));
}

TEST_F(rungs_test, a_capture_that_is_noticed_early_gets_its_pool_ready_first) {
  heap.pending_like = true;
  plan.succeeds = {{"fit", 1}};
  begin(on);
  EXPECT_EQ(search().value(), room);
  EXPECT_THAT(plan.asked,
              ElementsAre("prepare", "unbinned", "capture's pool", "prepare apart", "fit"));
  EXPECT_EQ(searched, &apart);
  EXPECT_EQ(account, 41u);
  destroy(end(on));
}

TEST_F(rungs_test, memory_on_its_way_to_the_driver_is_waited_for_and_asked_for_again) {
  plan.succeeds = {{"await releases", 1}, {"grow", 3}};
  EXPECT_EQ(search().value(), room);
  EXPECT_EQ(last, heap::rung::release);
  names expected = up_to("await releases");
  const names second = up_to("grow");
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_THAT(plan.asked, ElementsAreArray(expected));
}

TEST_F(rungs_test, callbacks_before_growth_are_asked_once_and_the_search_starts_over) {
  heap.growth_callbacks = true;
  EXPECT_EQ(search().value(), no_block);
  names expected = up_to("pending", {"growth callbacks"});
  expected.insert(expected.end(), all.begin(), all.end());
  EXPECT_THAT(plan.asked, ElementsAreArray(expected));
  plan.succeeds = {{"prefers growth", 1}, {"grow", 1}};
  EXPECT_EQ(search().value(), room);
  expected = up_to("prefers growth", {"growth callbacks"});
  const names second = up_to("grow");
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_THAT(plan.asked, ElementsAreArray(expected));
}

TEST_F(rungs_test, others_that_release_without_end_are_waited_for_eight_times) {
  heap.always_releasing = true;
  EXPECT_EQ(search().value(), no_block);
  EXPECT_EQ(std::count(plan.asked.begin(), plan.asked.end(), "await releases"), 8);
}

/// Others may have used what was prepared.
TEST_F(rungs_test, what_let_go_of_the_lock_is_prepared_again) {
  for (const char* const rung : {"retire", "sweep", "release others", "release own"}) {
    heap.lets_go_at = rung;
    EXPECT_EQ(search().value(), no_block);
    names expected = all;
    expected.insert(std::find(expected.begin(), expected.end(), rung) + 1, "prepare");
    EXPECT_THAT(plan.asked, ElementsAreArray(expected));
  }
}

TEST_F(rungs_test, the_furthest_is_told) {
  using heap::rung;
  const auto furthest = [&](std::map<std::string, int> succeeds,
                            const heap::callback_answer& callbacks = {}) {
    plan.succeeds = std::move(succeeds);
    heap.callbacks = callbacks;
    EXPECT_TRUE(search());
    return last;
  };
  heap.fallback = &apart;
  EXPECT_EQ(furthest({{"fit", 1}}), rung::free_range);
  EXPECT_EQ(furthest({{"retire", 1}, {"fit", 2}}), rung::completed);
  EXPECT_EQ(furthest({{"flush own", 1}, {"fit", 2}}), rung::flushed);
  EXPECT_EQ(furthest({{"flush others", 1}, {"fit", 2}}), rung::flushed);
  EXPECT_EQ(furthest({{"prefers growth", 1}, {"grow", 1}}), rung::growth);
  EXPECT_EQ(furthest({{"rearrange", 1}}), rung::move);
  EXPECT_EQ(furthest({{"rearrange behind waits", 1}}), rung::move_behind_wait);
  EXPECT_EQ(furthest({{"pending", 1}, {"fit", 2}}), rung::pending_behind_wait);
  EXPECT_EQ(furthest({{"grow", 1}}), rung::growth);
  EXPECT_EQ(furthest({{"fallback", 1}}), rung::fallback);
  EXPECT_EQ(furthest({{"grow", 2}}), rung::release);
  EXPECT_EQ(furthest({{"release own", 1}, {"grow", 3}}), rung::release);
  EXPECT_EQ(furthest({{"evict", 1}, {"grow", 3}}), rung::eviction);
  EXPECT_EQ(furthest({{"fit", 2}}, {.asked = true, .claimed = true}), rung::callback);
  EXPECT_EQ(furthest({{"fit", 2}}, {.asked = true, .freed = true}), rung::callback);
  EXPECT_EQ(furthest({{"wait", 1}, {"fit", 2}}), rung::wait);
  EXPECT_EQ(furthest({{"wait", 1}}), rung::none);
}

TEST_F(rungs_test, what_becomes_free_is_looked_at_again) {
  for (const char* const rung : {"retire", "flush own", "flush others", "pending"}) {
    plan.succeeds = {{rung, 1}, {"fit", 2}};
    EXPECT_EQ(search().value(), room) << rung;
    EXPECT_THAT(plan.asked, ElementsAreArray(up_to(rung, {"fit"})));
    EXPECT_EQ(missed, rung == std::string{"pending"});
    plan.succeeds = {{rung, 1}};  // and is not enough
    EXPECT_EQ(search().value(), no_block);
    names expected = all;
    expected.insert(std::find(expected.begin(), expected.end(), rung) + 1, "fit");
    EXPECT_THAT(plan.asked, ElementsAreArray(expected));
  }
}

TEST_F(rungs_test, the_first_that_makes_room_is_the_last) {
  for (const char* const rung : {"rearrange", "rearrange behind waits", "grow"}) {
    plan.succeeds = {{rung, 1}};
    EXPECT_EQ(search().value(), room);
    EXPECT_THAT(plan.asked, ElementsAreArray(up_to(rung)));
    EXPECT_TRUE(missed);
  }
  plan.succeeds = {{"prefers growth", 1}, {"grow", 1}};
  EXPECT_EQ(search().value(), room);
  EXPECT_THAT(plan.asked, ElementsAreArray(up_to("prefers growth", {"grow"})));
  plan.succeeds = {{"prefers growth", 1}};  // but cannot be had
  EXPECT_EQ(search().value(), no_block);
  names expected = all;
  expected.insert(std::find(expected.begin(), expected.end(), "rearrange"), "grow");
  EXPECT_THAT(plan.asked, ElementsAreArray(expected));
}

TEST_F(rungs_test, a_pool_that_helps_out_comes_before_releases) {
  heap.fallback = &apart;
  plan.succeeds = {{"fallback", 1}};
  EXPECT_EQ(search().value(), 9u);
  EXPECT_THAT(plan.asked, ElementsAreArray(up_to("fallback")));
  EXPECT_EQ(searched, &apart);
  EXPECT_EQ(account, 77u);
  EXPECT_TRUE(missed);
  plan.fails = {{"fallback", errc::no_host_memory}};
  EXPECT_EQ(code_of(search()), errc::no_host_memory);
}

TEST_F(rungs_test, others_release_until_that_is_enough) {
  plan.succeeds = {{"grow", 2}};
  EXPECT_EQ(search().value(), room);
  EXPECT_THAT(plan.asked, ElementsAreArray(up_to("sweep", {"grow"})));
  plan.succeeds = {{"release others", 1}, {"grow", 3}};
  EXPECT_EQ(search().value(), room);
  EXPECT_THAT(plan.asked, ElementsAreArray(up_to("release others", {"grow"})));
  plan.succeeds = {{"release own", 1}, {"grow", 3}};
  EXPECT_EQ(search().value(), room);
  EXPECT_THAT(plan.asked, ElementsAreArray(up_to("release own", {"grow"})));
  plan.succeeds = {{"release own", 1}};
  EXPECT_EQ(search().value(), no_block);
  EXPECT_THAT(plan.asked, ElementsAreArray(up_to("release own", {"grow", "await releases", "evict",
                                                                 "callbacks", "wait"})));
  plan.succeeds = {};
  heap.releases = false;  // what a graph may use
  EXPECT_EQ(search().value(), no_block);
  EXPECT_THAT(plan.asked, ElementsAreArray(up_to(
                              "release others", {"await releases", "evict", "callbacks", "wait"})));
}

TEST_F(rungs_test, what_may_have_helped_starts_the_search_anew) {
  plan.succeeds = {{"wait", 1}, {"fit", 2}};
  EXPECT_EQ(search().value(), room);
  EXPECT_THAT(plan.asked, ElementsAreArray(up_to("wait", {"prepare", "unbinned", "fit"})));
  EXPECT_TRUE(missed);
  plan.succeeds = {{"fit", 2}};
  for (const heap::callback_answer& answer :
       {heap::callback_answer{true, true, false}, heap::callback_answer{true, false, true}}) {
    heap.callbacks = answer;
    EXPECT_EQ(search().value(), room);
    EXPECT_THAT(plan.asked, ElementsAreArray(up_to("callbacks", {"prepare", "unbinned", "fit"})));
  }
}

TEST_F(rungs_test, what_is_evicted_makes_room_before_callbacks_are_asked) {
  plan.succeeds = {{"evict", 1}, {"grow", 3}};
  EXPECT_EQ(search().value(), room);
  names expected = up_to("evict");
  const names again = up_to("grow");
  expected.insert(expected.end(), again.begin(), again.end());
  EXPECT_THAT(plan.asked, ElementsAreArray(expected));
  EXPECT_TRUE(missed);
}

TEST_F(rungs_test, callbacks_are_asked_again_while_that_frees_something) {
  const auto times_asked = [&] {
    return std::count(plan.asked.begin(), plan.asked.end(), "callbacks");
  };
  heap.callbacks = {.asked = true, .claimed = true};  // which it says in vain
  EXPECT_EQ(search().value(), no_block);
  EXPECT_EQ(times_asked(), 1);
  heap.callbacks = {.asked = true, .freed = true};
  plan.succeeds = {{"fit", 4}};
  EXPECT_EQ(search().value(), room);
  EXPECT_EQ(times_asked(), 3);
  heap.callbacks = {};  // inside of one they are not asked
  plan.succeeds = {{"wait", 1}};
  EXPECT_EQ(search().value(), no_block);
  EXPECT_EQ(times_asked(), 2);
}

TEST(callback_bound, allows_any_number_of_gains_and_a_few_rounds_without) {
  using heap::callback_answer;
  heap::callback_bound bound;
  EXPECT_FALSE(bound.allows({.asked = true, .claimed = true})) << "nothing was freed";
  for (std::uint64_t live = 100; live > 50; --live)
    EXPECT_TRUE(bound.allows({.freed = true, .live = live, .device_free = 7}));
  for (std::uint64_t free = 8; free < 50; ++free)
    EXPECT_TRUE(bound.allows({.freed = true, .live = 90, .device_free = free}));
  for (int i = 1; i < heap::callback_bound::most_fruitless; ++i) {
    EXPECT_TRUE(bound.allows({.freed = true, .live = 51, .device_free = 49}));
    EXPECT_TRUE(bound.allows({.freed = true, .live = 51 - static_cast<std::uint64_t>(i)}));
  }
  EXPECT_FALSE(bound.allows({.freed = true, .live = 44, .device_free = 49}));
  EXPECT_TRUE(bound.allows({.freed = true, .live = 43}));
}

TEST_F(rungs_test, callbacks_that_free_and_gain_nothing_are_asked_a_few_times) {
  heap.callbacks = {.asked = true, .freed = true, .live = (5_MiB).count()};
  EXPECT_EQ(search().value(), no_block);
  EXPECT_EQ(std::count(plan.asked.begin(), plan.asked.end(), "callbacks"), 9);
}

TEST_F(rungs_test, a_driver_without_memory_is_no_room_and_any_other_failure_an_end) {
  for (const char* const rung : {"rearrange", "rearrange behind waits", "grow"}) {
    plan.succeeds = {};
    plan.fails = {{rung, errc::out_of_memory}};
    EXPECT_EQ(search().value(), no_block);
    EXPECT_THAT(plan.asked, ElementsAreArray(all));
    plan.fails = {{rung, errc::no_host_memory}};
    EXPECT_EQ(code_of(search()), errc::no_host_memory);
    EXPECT_THAT(plan.asked, ElementsAreArray(up_to(rung)));
  }
  for (const char* const rung :
       {"retire", "pending", "release others", "release own", "evict", "wait"}) {
    plan.fails = {{rung, errc::out_of_memory}};
    EXPECT_EQ(code_of(search()), errc::out_of_memory);
    EXPECT_THAT(plan.asked, ElementsAreArray(up_to(rung)));
  }
}

TEST_F(rungs_test, a_thread_without_a_cache_has_none_to_flush) {
  EXPECT_EQ(search(pool).value(), no_block);
  names expected = all;
  std::erase(expected, "unbinned");
  std::erase(expected, "flush own");
  std::replace(expected.begin(), expected.end(), std::string{"flush others"},
               std::string{"flush all"});
  EXPECT_THAT(plan.asked, ElementsAreArray(expected));
}

TEST_F(rungs_test, caches_are_flushed_for_a_private_pool_only_when_others_release) {
  EXPECT_EQ(search(apart).value(), no_block);
  EXPECT_THAT(plan.asked, ElementsAre("prepare apart", "fit", "retire", "prefers growth",
                                      "rearrange", "rearrange behind waits", "pending", "grow",
                                      "flush all", "sweep", "grow", "release others", "release own",
                                      "await releases", "evict", "callbacks", "wait"));
  EXPECT_EQ(account, 41u);
}

TEST_F(rungs_test, where_streams_wait_for_nobody_nothing_is_taken_behind_waits) {
  heap.waits = false;
  EXPECT_EQ(search().value(), no_block);
  names expected = all;
  std::erase(expected, "rearrange behind waits");
  std::erase(expected, "pending");
  EXPECT_THAT(plan.asked, ElementsAreArray(expected));
}

TEST_F(rungs_test, a_captured_stream_gets_the_captures_pool_and_queues_no_wait) {
  apart.of_capture = true;
  const names expected = {
      "prepare apart",  "fit",         "retire",         "grow",      "flush all", "sweep", "grow",
      "release others", "release own", "await releases", "callbacks", "wait"};
  EXPECT_EQ(search(pool, capture_status::active, &cache).value(), no_block);
  names told{"capture's pool"};
  told.insert(told.end(), expected.begin(), expected.end());
  EXPECT_THAT(plan.asked, ElementsAreArray(told));
  EXPECT_EQ(searched, &apart);
  EXPECT_EQ(account, 41u);
  // The same where the search finds out by itself, before the first driver call.
  begin(on);
  EXPECT_EQ(search().value(), no_block);
  names noticed{"prepare", "unbinned", "fit", "capture's pool"};
  noticed.insert(noticed.end(), expected.begin(), expected.end());
  EXPECT_THAT(plan.asked, ElementsAreArray(noticed));
  plan.succeeds = {{"fit", 1}};  // what lies there is given without a question
  EXPECT_EQ(search().value(), room);
  EXPECT_EQ(searched, &pool);
  destroy(end(on));
}

TEST_F(rungs_test, a_pool_that_was_chosen_serves_captures_too) {
  EXPECT_EQ(search(pool, capture_status::active, &cache, true).value(), no_block);
  names expected = all;
  for (const char* const left_out : {"rearrange behind waits", "pending", "evict"})
    std::erase(expected, left_out);
  EXPECT_THAT(plan.asked, ElementsAreArray(expected));
  EXPECT_EQ(searched, &pool);
}

TEST_F(rungs_test, a_broken_capture_changes_no_pool_and_queues_no_wait) {
  EXPECT_EQ(search(pool, capture_status::invalidated, &cache).value(), no_block);
  names expected = all;
  for (const char* const left_out : {"rearrange behind waits", "pending", "evict"})
    std::erase(expected, left_out);
  EXPECT_THAT(plan.asked, ElementsAreArray(expected));
  EXPECT_EQ(search(pool, capture_status::none, &cache).value(), no_block);
  EXPECT_THAT(plan.asked, ElementsAreArray(all));
}

TEST_F(rungs_test, a_pool_that_retains_asks_no_stream_in_a_capture) {
  apart.for_graphs = true;
  const names outside = {"prepare apart",  "fit",         "retire",         "rearrange",
                         "grow",           "flush all",   "sweep",          "grow",
                         "release others", "release own", "await releases", "evict",
                         "callbacks",      "wait"};
  EXPECT_EQ(search(apart, capture_status::none, nullptr, true).value(), no_block);
  EXPECT_THAT(plan.asked, ElementsAreArray(outside));
  names inside = outside;
  for (const char* const left_out : {"retire", "sweep", "evict", "wait"})
    std::erase(inside, left_out);
  EXPECT_EQ(search(apart, capture_status::active, nullptr, true).value(), no_block);
  EXPECT_THAT(plan.asked, ElementsAreArray(inside));
}

TEST_F(rungs_test, a_pool_that_takes_no_requests_says_so) {
  apart.takes_requests = false;
  const auto refused = search(apart);
  EXPECT_EQ(code_of(refused), errc::invalid_argument);
  EXPECT_EQ(refused.error().detail(), "a graph's pool serves requests during its capture only");
  EXPECT_THAT(plan.asked, ElementsAre());
}

TEST_F(rungs_test, at_an_address_there_is_room_or_not) {
  order::driver_access driver{gpu()};
  heap::room_search looking{heap,    driver, {.units = 3, .alignment = 1, .stream = 4}, apart, on,
                            nullptr, true};
  plan.succeeds = {{"fit at 4096", 1}};
  EXPECT_EQ(looking.find_room_at(4096).value(), room);
  EXPECT_THAT(plan.asked, ElementsAre("prepare apart", "fit at 4096"));
  EXPECT_FALSE(looking.missed());
  EXPECT_EQ(looking.account(), 41u);
  plan.fails = {{"fit at 512", errc::not_ready}};
  EXPECT_EQ(code_of(looking.find_room_at(512)), errc::not_ready);
}

}  // namespace
}  // namespace weir::testing_support
