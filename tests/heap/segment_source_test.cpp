// SPDX-License-Identifier: Apache-2.0
// Pools whose memory comes in PyTorch's segments: from the driver, or from somebody else.
#include <cstring>
#include <map>
#include <stdexcept>

#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Plain memory of the driver, counted; fails or throws on demand.
class counting_source : public memory_source {
 public:
  explicit counting_source(device gpu) : gpu_{gpu} {}
  ~counting_source() override { *ended = true; }

  result<void*> allocate(bytes size, const stream_ref& stream) override {
    asked.push_back(size);
    streams.push_back(stream.handle());
    if (throws) throw std::runtime_error{"no such luck"};
    if (throws_bad_alloc) throw std::bad_alloc{};
    if (refusals > 0) {
      --refusals;
      return error{{.code = refusal, .detail = "refused"}};
    }
    if (null_answers > 0) {
      --null_answers;
      return nullptr;
    }
    if (fixed_answer != nullptr) return fixed_answer;
    const context_scope bound{gpu_};
    WEIR_TRY_VALUE(address, allocate_plain(bound, size));
    held.emplace(reinterpret_cast<void*>(address), size);
    return reinterpret_cast<void*>(address);
  }
  result<void> deallocate(void* segment, bytes size) override {
    ++offered;
    if (throws) throw 7;
    if (keeps_refusing) return error{{.code = errc::driver_error, .detail = "not now"}};
    const auto entry = held.find(segment);
    if (entry == held.end() || entry->second != size) return errc::foreign_pointer;
    held.erase(entry);
    const context_scope bound{gpu_};
    return free_plain(bound, reinterpret_cast<device_address>(segment));
  }

  std::vector<bytes> asked;
  std::vector<driver::CUstream> streams;
  std::map<void*, bytes> held;
  int offered = 0;
  int refusals = 0;
  errc refusal = errc::out_of_memory;
  int null_answers = 0;
  void* fixed_answer = nullptr;
  bool throws = false;
  bool throws_bad_alloc = false;
  bool keeps_refusing = false;
  std::shared_ptr<bool> ended = std::make_shared<bool>(false);

 private:
  device gpu_;
};

class segment_sources : public graph_test {
 protected:
  [[nodiscard]] std::shared_ptr<counting_source> make_source() const {
    return std::make_shared<counting_source>(gpu());
  }
  [[nodiscard]] static std::size_t count(const memory_pool& pool, block_state state) {
    const auto blocks = pool.snapshot().blocks;
    return static_cast<std::size_t>(std::count_if(
        blocks.begin(), blocks.end(), [&](const auto& each) { return each.state == state; }));
  }
};

TEST_F(segment_sources, are_asked_for_segments_of_pytorchs_sizes) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  auto source = make_source();
  const auto pool = memory.create_pool("theirs", {.source = source}).value();
  EXPECT_THAT(source->asked, IsEmpty()) << "nothing before the first request";
  std::vector<void*> blocks;
  const auto request = [&](bytes size, const stream& on) {
    blocks.push_back(pool.allocate(size, on));
  };
  request(1_MiB, one);           // small: 2 MiB
  request(1_MiB, one);           // the other half
  request(512_B, one);           // 2 MiB more
  request(1_MiB + 1_B, one);     // large: 20 MiB
  request(10_MiB - 512_B, one);  // of the same segment
  request(10_MiB, one);          // 8.9 MiB are left there: a segment of its own
  request(10_MiB + 1_B, one);    // in whole 2 MiB
  request(3_MiB, two);           // another stream: another segment
  EXPECT_THAT(source->asked, ElementsAre(2_MiB, 2_MiB, 20_MiB, 10_MiB, 12_MiB, 20_MiB));
  EXPECT_THAT(source->streams, ElementsAre(one.handle(), one.handle(), one.handle(), one.handle(),
                                           one.handle(), two.handle()));
  EXPECT_EQ(static_cast<std::byte*>(blocks[0]) + (1_MiB).count(), blocks[1]);
  for (const auto& each : source->held)
    EXPECT_NE(std::find(blocks.begin(), blocks.end(), each.first), blocks.end());

  EXPECT_EQ(pool.stats().reserved.current, 66_MiB);
  EXPECT_EQ(memory.stats().reserved.current, 66_MiB) << "the allocator counts them, too";
  EXPECT_EQ(memory.stats().handles_created, 6u);
  const auto snapshot = pool.snapshot();
  EXPECT_TRUE(snapshot.in_segments);
  ASSERT_EQ(snapshot.physical.size(), 6u);
  for (const auto& each : snapshot.physical)
    EXPECT_EQ(source->held.at(reinterpret_cast<void*>(each.address)), each.size);
  EXPECT_FALSE(memory.snapshot().pools.front().in_segments);

  // Blocks are reused, best fit first, and nothing is asked for.
  void* const freed = blocks[4];
  memory.deallocate(freed);
  EXPECT_EQ(pool.allocate(9_MiB, one), freed);
  EXPECT_EQ(source->asked.size(), 6u);
  for (void* const p : blocks) memory.deallocate(p);
  EXPECT_EQ(check(memory), "");
  EXPECT_EQ(source->offered, 0) << "freed memory is cached";
  EXPECT_EQ(pool.empty_cache().value(), 66_MiB);
  EXPECT_THAT(source->held, IsEmpty());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.stats().handles_released, 6u);
}

TEST_F(segment_sources, tell_their_pool_in_events) {
  auto memory = make();
  const auto stream = new_stream();
  listener ear;
  const auto observation = memory.add_observer(ear).value();
  const auto pool = memory.create_pool("theirs", {.source = make_source()}).value();
  void* const p = pool.allocate(30_MiB, stream);
  memory.deallocate(p);
  ASSERT_TRUE(pool.empty_cache());
  int seen = 0;
  for (const auto& event : ear.take()) {
    if (event.kind != memory_event_kind::reserve && event.kind != memory_event_kind::release)
      continue;
    ++seen;
    EXPECT_EQ(event.pool, pool.id());
    EXPECT_EQ(event.address, reinterpret_cast<device_address>(p));
    EXPECT_EQ(event.size, (30_MiB).count());
    EXPECT_EQ(event.stream, stream.id());
  }
  EXPECT_EQ(seen, 2);
}

TEST_F(segment_sources, get_nothing_back_that_a_stream_still_uses) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  auto source = make_source();
  auto pool = memory.create_pool("theirs", {.source = source}).value();
  void* const a = pool.allocate(20_MiB, one);
  void* const b = pool.allocate(20_MiB, one);
  auto held = hold(two);
  write(two, a, 20_MiB);  // undeclared
  memory.deallocate(a);
  ASSERT_TRUE(memory.record_stream(b, two));
  memory.deallocate(b);
  ASSERT_TRUE(memory.trim());
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(source->offered, 0);
  pool = {};  // gone, but for the memory
  ASSERT_TRUE(memory.trim());
  EXPECT_EQ(source->held.size(), 2u);
  const auto ended = source->ended;
  source.reset();
  EXPECT_FALSE(*ended) << "its segments keep it";
  held.release();
  machine->run_until_idle();
  ASSERT_TRUE(memory.trim());
  EXPECT_TRUE(*ended);
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
}

TEST_F(segment_sources, live_as_long_as_their_blocks) {
  for (const bool for_graphs : {false, true}) {
    auto memory = make();
    const auto stream = new_stream();
    auto source = make_source();
    const auto ended = source->ended;
    const counting_source& watched = *source;
    auto pool = memory.create_pool("theirs", {.for_graphs = for_graphs, .source = source}).value();
    source.reset();
    const pool_id id = pool.id();
    void* const p = pool.allocate(4_MiB, stream);
    void* const q = pool.allocate(30_MiB, stream);
    write(stream, p, 4_MiB);
    memory.deallocate(q);
    pool = {};
    machine->run_until_idle();
    EXPECT_EQ(memory.empty_cache(id).value(), 30_MiB);
    EXPECT_EQ(watched.held.size(), 1u) << "the free segment went";
    ASSERT_FALSE(*ended);
    EXPECT_EQ(memory.size_of(p).value(), 4_MiB);
    memory.deallocate(p);
    // By its id, though nobody holds it.
    if (!*ended) {
      EXPECT_EQ(memory.empty_cache(id).value(), 20_MiB);
    }
    EXPECT_TRUE(*ended);
    EXPECT_EQ(code_of(memory.empty_cache(id)), errc::closed);
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
    EXPECT_EQ(check(memory), "");
  }
}

TEST_F(segment_sources, are_asked_again_when_memory_was_released_elsewhere) {
  auto memory = make();
  const auto stream = new_stream();
  auto source = make_source();
  const auto pool = memory.create_pool("theirs", {.source = source}).value();
  memory.deallocate(memory.allocate(200_MiB, stream), stream);
  machine->run_until_idle();
  const auto cached = memory.stats().reserved.current;
  ASSERT_GE(cached, 200_MiB);
  source->refusals = 2;  // when growth is preferred, and as the last resort before releases
  void* const p = pool.allocate(30_MiB, stream);
  EXPECT_GE(source->asked.size(), 3u);
  EXPECT_EQ(pool.stats().reserved.current, 30_MiB);
  memory.deallocate(p);

  source->null_answers = 1;  // null is no memory as well
  void* const q = pool.allocate(40_MiB, stream);
  memory.deallocate(q);

  source->refusals = 1'000'000;
  EXPECT_EQ(code_of(pool.try_allocate(60_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(memory.stats().reserved.current - pool.stats().reserved.current, 0_B)
      << "everything else was released for it";
  source->refusal = errc::not_permitted;
  const auto refused = pool.try_allocate(60_MiB, stream);
  ASSERT_EQ(code_of(refused), errc::not_permitted);
  EXPECT_EQ(refused.error().detail(), "refused");
  EXPECT_EQ(check(memory), "");
}

TEST_F(segment_sources, that_throw_fail_the_request_and_no_more) {
  auto memory = make();
  const auto stream = new_stream();
  auto source = make_source();
  const auto pool = memory.create_pool("theirs", {.source = source}).value();
  source->throws = true;
  const auto refused = pool.try_allocate(3_MiB, stream);
  ASSERT_EQ(code_of(refused), errc::internal);
  EXPECT_THAT(refused.error().detail(), HasSubstr("no such luck"));
  source->throws = false;
  source->throws_bad_alloc = true;
  EXPECT_EQ(code_of(pool.try_allocate(3_MiB, stream)), errc::no_host_memory);
  source->throws_bad_alloc = false;
  void* const p = pool.allocate(3_MiB, stream);
  memory.deallocate(p);
  source->throws = true;
  EXPECT_EQ(code_of(pool.empty_cache()), errc::internal);
  EXPECT_EQ(pool.stats().reserved.current, 20_MiB);
  source->throws = false;
  EXPECT_EQ(pool.empty_cache().value(), 20_MiB);
  EXPECT_EQ(check(memory), "");
}

TEST_F(segment_sources, that_do_not_take_a_segment_back_still_have_it) {
  auto memory = make();
  const auto stream = new_stream();
  auto source = make_source();
  auto pool = memory.create_pool("theirs", {.source = source}).value();
  void* const p = pool.allocate(30_MiB, stream);
  memory.deallocate(p);
  void* const own = memory.allocate(50_MiB, stream);
  memory.deallocate(own, stream);
  machine->run_until_idle();
  source->keeps_refusing = true;
  EXPECT_EQ(code_of(pool.empty_cache()), errc::driver_error);
  EXPECT_EQ(pool.stats().reserved.current, 30_MiB);
  EXPECT_EQ(pool.allocate(30_MiB, stream), p) << "it is the pool's as before";
  memory.deallocate(p);
  // The others give back all the same, and learn of it.
  EXPECT_EQ(code_of(memory.empty_cache()), errc::driver_error);
  EXPECT_EQ(memory.stats().reserved.current, 30_MiB);
  // Nor does it harm a request that is short of memory.
  ASSERT_TRUE(memory.set_limit(60_MiB));
  EXPECT_EQ(code_of(memory.try_allocate(50_MiB, stream)), errc::out_of_memory);
  const auto told = heard.take();
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.front().code(), errc::driver_error);
  // The pool ends, and waits for its source.
  pool = {};
  EXPECT_EQ(memory.stats().reserved.current, 30_MiB);
  source->keeps_refusing = false;
  void* const q = memory.allocate(50_MiB, stream);
  EXPECT_EQ(memory.snapshot().pools.size(), 1u);
  EXPECT_THAT(source->held, IsEmpty());
  memory.deallocate(q, stream);
  EXPECT_EQ(check(memory), "");
}

TEST_F(segment_sources, cannot_give_what_is_no_segment) {
  auto memory = make();
  const auto stream = new_stream();
  auto source = make_source();
  const auto pool = memory.create_pool("theirs", {.source = source}).value();
  void* const p = pool.allocate(3_MiB, stream);
  source->fixed_answer = static_cast<std::byte*>(p) + 1000;
  EXPECT_EQ(code_of(pool.try_allocate(30_MiB, stream)), errc::bad_alignment);
  ASSERT_EQ(heard.take().size(), 1u) << "it did not take that back, either";
  for (const std::int64_t offset : {0, 512, -(1 << 20)}) {
    source->fixed_answer = static_cast<std::byte*>(p) + offset;
    EXPECT_EQ(code_of(pool.try_allocate(30_MiB, stream)), errc::invalid_argument);
  }
  source->fixed_answer = nullptr;
  EXPECT_EQ(pool.stats().reserved.current, 20_MiB);
  EXPECT_EQ(check(memory), "");
  memory.deallocate(p);
}

TEST_F(segment_sources, count_towards_the_limit) {
  auto memory = make();
  const auto stream = new_stream();
  auto source = make_source();
  const auto pool = memory.create_pool("theirs", {.source = source}).value();
  ASSERT_TRUE(memory.set_limit(64_MiB));
  void* const p = pool.allocate(40_MiB, stream);
  EXPECT_EQ(code_of(pool.try_allocate(30_MiB, stream)), errc::out_of_memory);
  EXPECT_EQ(code_of(memory.try_allocate(30_MiB, stream)), errc::out_of_memory);
  EXPECT_THAT(source->asked, ElementsAre(40_MiB)) << "not even asked";
  memory.deallocate(p);
  machine->run_until_idle();
  void* const q = memory.allocate(30_MiB, stream);  // the pool's cache goes for it
  EXPECT_THAT(source->held, IsEmpty());
  memory.deallocate(q, stream);
}

TEST_F(segment_sources, of_a_pool_that_retains_keep_its_memory_while_it_is_held) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  auto source = make_source();
  auto pool = memory.create_pool("graphs", {.for_graphs = true, .source = source}).value();
  // A capture takes memory from the source and gives none back.
  const auto notice = memory.guard_captures().value();
  begin(one);
  void* const a = pool.allocate(4_MiB, one);
  write(one, a, 4_MiB);
  memory.deallocate(a);
  EXPECT_EQ(pool.allocate(4_MiB, one), a);
  memory.deallocate(a);
  const auto graph = end(one);
  EXPECT_THAT(source->asked, ElementsAre(20_MiB));
  const auto runnable = instantiate(graph);
  { const auto over = memory.guard_captures().value(); }
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(source->offered, 0);
  void* const b = pool.allocate(4_MiB, two);
  EXPECT_NE(b, a);
  EXPECT_EQ(source->asked.size(), 2u) << "what one stream freed is no other's";
  launch(runnable, one);
  machine->run_until_idle();
  destroy(graph);
  destroy(runnable);
  memory.deallocate(b);
}

TEST_F(segment_sources, are_told_at_the_end_of_the_allocator) {
  auto source = make_source();
  {
    auto memory = make();
    const auto stream = new_stream();
    const auto pool = memory.create_pool("theirs", {.source = source}).value();
    static_cast<void>(pool.allocate(3_MiB, stream));
    static_cast<void>(pool.allocate(30_MiB, stream));
    ASSERT_TRUE(memory.close());
    EXPECT_THAT(source->held, IsEmpty());
    EXPECT_EQ(source->offered, 2);
    EXPECT_EQ(code_of(pool.try_allocate(1_MiB, stream)), errc::closed);
  }
  const auto told = heard.take();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told.front().code(), errc::still_live);
}

TEST_F(segment_sources, are_left_alone_when_the_driver_is_gone) {
  auto source = make_source();
  {
    // Whoever remembers blocks is told of the end of segments, and must be there still.
    auto memory = make({.debug_stacks = true});
    const auto stream = new_stream();
    const auto pool = memory.create_pool("theirs", {.source = source}).value();
    static_cast<void>(pool.allocate(3_MiB, stream));
    machine->shut_down();
  }
  EXPECT_EQ(source->offered, 0);
  static_cast<void>(heard.take());
}

/// Memory that can be taken away and put back under the same addresses, with what it held.
class suspendable_source final : public memory_source {
 public:
  suspendable_source(device gpu, const driver::table& cuda) : gpu_{gpu}, cuda_{cuda} {}
  ~suspendable_source() override { EXPECT_THAT(segments_, IsEmpty()); }

  result<void*> allocate(bytes size, const stream_ref& /*stream*/) override {
    const context_scope bound{gpu_};
    WEIR_TRY_VALUE(base, vmm::reserve(bound, size));
    segments_[base] = {size, {}, {}};
    map(base);
    return reinterpret_cast<void*>(base);
  }
  result<void> deallocate(void* base, bytes size) override {
    const auto entry = segments_.find(reinterpret_cast<device_address>(base));
    if (entry == segments_.end()) return errc::foreign_pointer;
    const context_scope bound{gpu_};
    if (entry->second.memory.handle != 0) unmap(entry->first);
    WEIR_TRY(vmm::free(bound, entry->first, size));
    segments_.erase(entry);
    return {};
  }
  void suspend() {
    const context_scope bound{gpu_};
    const sim::segment_owner_scope owner;  // what the allocator has free comes along
    for (auto& [base, each] : segments_) {
      each.saved.resize(each.size.count());
      ASSERT_EQ(cuda_.memcpy_dtoh(each.saved.data(), base, each.saved.size()),
                driver::CUDA_SUCCESS);
      unmap(base);
    }
  }
  void resume() {
    const context_scope bound{gpu_};
    const sim::segment_owner_scope owner;  // what the allocator has free comes along
    for (auto& [base, each] : segments_) {
      map(base);
      ASSERT_EQ(cuda_.memcpy_htod(base, each.saved.data(), each.saved.size()),
                driver::CUDA_SUCCESS);
    }
  }

 private:
  struct segment {
    bytes size;
    vmm::physical memory;
    std::vector<std::byte> saved;
  };

  void map(device_address base) {
    const context_scope bound{gpu_};
    segment& each = segments_.at(base);
    each.memory = vmm::create(bound, each.size).value();
    ASSERT_TRUE(vmm::map(bound, base, each.memory));
    const vmm::access rights = vmm::access_for(gpu_);
    ASSERT_TRUE(vmm::set_access(bound, base, each.size, {&rights, 1}));
  }
  void unmap(device_address base) {
    const context_scope bound{gpu_};
    segment& each = segments_.at(base);
    ASSERT_TRUE(vmm::unmap(bound, base, each.size));
    ASSERT_TRUE(vmm::release(bound, each.memory));
    each.memory = {};
  }

  device gpu_;
  const driver::table& cuda_;
  std::map<device_address, segment> segments_;
};

TEST_F(segment_sources, may_take_memory_away_and_put_it_back) {
  auto memory = make();
  const auto stream = new_stream();
  auto source = std::make_shared<suspendable_source>(gpu(), cuda());
  auto pool = memory.create_pool("weights", {.source = source}).value();
  const context_scope bound{gpu()};
  const auto fill = [&](void* block, std::byte value, std::size_t size) {
    const std::vector<std::byte> text(size, value);
    ASSERT_EQ(cuda().memcpy_htod(reinterpret_cast<device_address>(block), text.data(), size),
              driver::CUDA_SUCCESS);
  };
  const auto holds = [&](void* block, std::byte value, std::size_t size) {
    std::vector<std::byte> text(size);
    EXPECT_EQ(cuda().memcpy_dtoh(text.data(), reinterpret_cast<device_address>(block), size),
              driver::CUDA_SUCCESS);
    return text == std::vector<std::byte>(size, value);
  };
  void* const kept = pool.allocate(3_MiB, stream);
  void* const freed = pool.allocate(3_MiB, stream);
  void* const small = pool.allocate(700_B, stream);
  fill(kept, std::byte{11}, (3_MiB).count());
  fill(small, std::byte{12}, 700);
  memory.deallocate(freed);
  machine->run_until_idle();
  const bytes before = machine->used(device_id{0});
  source->suspend();
  EXPECT_EQ(before - machine->used(device_id{0}), 22_MiB);
  EXPECT_EQ(pool.stats().reserved.current, 22_MiB) << "nobody told the pool";
  void* const other = memory.allocate(100_MiB, stream);  // others go on meanwhile
  ASSERT_TRUE(memory.trim());
  memory.deallocate(other, stream);
  source->resume();
  EXPECT_TRUE(holds(kept, std::byte{11}, (3_MiB).count()));
  EXPECT_TRUE(holds(small, std::byte{12}, 700));
  void* const again = pool.allocate(3_MiB, stream);
  EXPECT_EQ(again, freed);
  fill(again, std::byte{13}, (3_MiB).count());
  EXPECT_TRUE(holds(again, std::byte{13}, (3_MiB).count()));
  EXPECT_TRUE(holds(kept, std::byte{11}, (3_MiB).count()));
  for (void* const p : {kept, small, again}) memory.deallocate(p);
  source->suspend();
  pool = {};  // ends while it is suspended
  ASSERT_TRUE(memory.empty_cache());
  EXPECT_EQ(memory.stats().reserved.current, 0_B);
}

// --- Segments of the driver
// -----------------------------------------------------------------------

TEST_F(segment_sources, without_one_segments_are_the_drivers) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic,
                            placement_policy::classic_expandable}) {
    allocator_options settings;
    settings.policy = policy;
    auto memory = make(settings);
    const auto stream = new_stream();
    const auto pool =
        memory.create_pool("segments", {.for_graphs = true, .segments = true}).value();
    void* const a = pool.allocate(4_MiB, stream);
    void* const b = pool.allocate(4_MiB, stream);
    void* const c = pool.allocate(512_B, stream);
    const auto snapshot = pool.snapshot();
    EXPECT_TRUE(snapshot.in_segments);
    ASSERT_EQ(snapshot.physical.size(), 2u);
    EXPECT_EQ(snapshot.blocks.size(), 5u) << "4, 4, 12 MiB; 512 B and the rest";
    EXPECT_EQ(pool.stats().reserved.current, 22_MiB);
    for (void* const p : {a, b, c}) memory.deallocate(p);
    machine->run_until_idle();
    EXPECT_EQ(pool.empty_cache().value(), 22_MiB);
    EXPECT_EQ(memory.stats().reserved.current, 0_B);
    EXPECT_EQ(check(memory), "");
  }
  EXPECT_EQ(machine->used(device_id{0}), 64_MiB) << "the context's";
}

TEST_F(segment_sources, segments_are_made_in_any_capture) {
  for (const auto mode :
       {driver::CU_STREAM_CAPTURE_MODE_GLOBAL, driver::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    auto memory = make();
    const auto stream = new_stream();
    const auto pool =
        memory.create_pool("segments", {.for_graphs = true, .segments = true}).value();
    {
      const auto notice = memory.guard_captures().value();
      begin(stream, mode);
      void* const p = pool.allocate(30_MiB, stream);
      write(stream, p, 30_MiB);
      EXPECT_EQ(stream.ref().capture().value().status, capture_status::active);
      destroy(end(stream));
      memory.deallocate(p);
    }
  }
}

TEST_F(segment_sources, a_failed_call_leaves_nothing_of_a_segment) {
  fail_each_call({}, 1_GiB, [](caching_allocator& memory, const stream& one, const stream&) {
    const auto created = memory.create_pool("segments", {.segments = true});
    if (!created) return;
    for (const bytes size : {512_B, 3_MiB, 30_MiB, 50_MiB}) {
      const auto block = created->try_allocate(size, one);
      if (block) memory.deallocate(*block);
    }
    static_cast<void>(created->empty_cache());
    const auto block = created->try_allocate(30_MiB, one);
    if (block) memory.deallocate(*block);
  });
}

TEST_F(segment_sources, segments_of_an_exportable_allocator_can_be_sent) {
  allocator_options settings;
  settings.exportable = true;
  auto memory = make(settings);
  const auto stream = new_stream();
  const auto pool = memory.create_pool("segments", {.segments = true}).value();
  void* const a = pool.allocate(3_MiB, stream);
  void* const b = pool.allocate(3_MiB, stream);
  const auto under = memory.handles_under(b).value();
  ASSERT_EQ(under.handles.size(), 1u);
  EXPECT_EQ(under.handles.front().size, 20_MiB);
  EXPECT_EQ(under.offset, 3_MiB);
  EXPECT_EQ(memory.handles_under(a).value().handles, under.handles);
  const context_scope bound{gpu()};
  EXPECT_TRUE(vmm::export_descriptor(bound, under.handles.front()));
  // Somebody else's memory cannot, and parts of segments cannot.
  const auto theirs = memory.create_pool("theirs", {.source = make_source()}).value();
  void* const c = theirs.allocate(3_MiB, stream);
  EXPECT_EQ(code_of(memory.handles_under(c)), errc::not_supported);
  EXPECT_EQ(code_of(memory.create_pool("no", {.exportable = true, .segments = true})),
            errc::not_supported);
  EXPECT_EQ(code_of(memory.create_pool("no", {.exportable = true, .source = make_source()})),
            errc::not_supported);
  EXPECT_EQ(code_of(memory.create_pool("no", {.exportable = true, .one_block_per_segment = true})),
            errc::not_supported);
  for (void* const p : {a, b, c}) memory.deallocate(p);
}

TEST_F(segment_sources, give_room_at_an_address) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto pool = memory.create_pool("graphs", {.for_graphs = true, .segments = true}).value();
  std::vector<void*> blocks;
  for (const bytes size : {3_MiB, 2_MiB + 512_B, 4_MiB, 700_B, 512_B})
    blocks.push_back(pool.allocate(size, one));
  const auto before = pool.snapshot().blocks;
  for (void* const p : blocks) memory.deallocate(p);
  EXPECT_EQ(code_of(pool.allocate_at(blocks[1], 2_MiB, two)), errc::not_ready)
      << "another stream's";
  EXPECT_EQ(code_of(pool.allocate_at(blocks[1], 30_MiB, one)), errc::not_ready);
  EXPECT_EQ(code_of(pool.allocate_at(&memory, 1_KiB, one)).has_value(), true);
  // From the last to the first, into one run each.
  EXPECT_EQ(pool.allocate_at(blocks[4], 512_B, one).value(), blocks[4]);
  EXPECT_EQ(pool.allocate_at(blocks[3], 700_B, one).value(), blocks[3]);
  EXPECT_EQ(pool.allocate_at(blocks[2], 4_MiB, one).value(), blocks[2]);
  EXPECT_EQ(code_of(pool.allocate_at(blocks[2], 4_MiB, one)), errc::not_ready) << "taken";
  EXPECT_EQ(pool.allocate_at(blocks[0], 3_MiB, one).value(), blocks[0]);
  EXPECT_EQ(pool.allocate_at(blocks[1], 2_MiB + 512_B, one).value(), blocks[1]);
  const auto after = pool.snapshot().blocks;
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i].address, before[i].address);
    EXPECT_EQ(after[i].size, before[i].size);
    EXPECT_EQ(after[i].state, before[i].state);
  }
  EXPECT_EQ(check(memory), "");
  for (void* const p : blocks) memory.deallocate(p);
  EXPECT_EQ(check(memory), "");
}

// --- Without splits
// -------------------------------------------------------------------------------

TEST_F(segment_sources, segments_that_are_not_split_serve_whole) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  auto source = make_source();
  const auto pool =
      memory
          .create_pool("whole",
                       {.for_graphs = true, .one_block_per_segment = true, .source = source})
          .value();
  void* const a = pool.allocate(4_MiB, one);
  void* const b = pool.allocate(4_MiB, one);
  void* const c = pool.allocate(512_B, one);
  EXPECT_THAT(source->asked, ElementsAre(20_MiB, 20_MiB, 2_MiB));
  EXPECT_EQ(pool.snapshot().blocks.size(), 3u) << "a segment is a block";
  EXPECT_EQ(count(pool, block_state::live), 3u);
  EXPECT_EQ(memory.size_of(a).value(), 4_MiB);
  EXPECT_EQ(pool.stats().allocated.current, 42_MiB) << "rounded to what they take";
  EXPECT_EQ(pool.stats().requested.current, 8_MiB + 512_B);
  memory.deallocate(a);
  void* const d = pool.allocate(2_MiB, two);
  EXPECT_NE(d, a) << "another stream's";
  EXPECT_EQ(pool.allocate(19_MiB, one), a);
  memory.deallocate(a);
  EXPECT_EQ(pool.allocate_at(a, 2_MiB, one).value(), a);
  EXPECT_EQ(memory.block_at(a).value().size, 20_MiB);
  memory.deallocate(a);
  EXPECT_EQ(code_of(pool.allocate_at(static_cast<std::byte*>(a) + 512, 2_MiB, one)),
            errc::not_ready);
  void* const large = pool.allocate(50_MiB, one);
  EXPECT_EQ(source->asked.back(), 50_MiB);
  memory.deallocate(large);
  EXPECT_EQ(pool.allocate(3_MiB, one), a) << "the smallest that fits";
  EXPECT_EQ(code_of(pool.try_allocate(3_MiB, one, 1_MiB)), errc::not_supported);
  for (void* const p : {a, b, c, d}) memory.deallocate(p);
  EXPECT_EQ(check(memory), "");
}

// --- Pools that help out
// --------------------------------------------------------------------------

TEST_F(segment_sources, a_fallback_serves_before_anything_is_released) {
  auto memory = make();
  const auto one = new_stream();
  const auto two = new_stream();
  const auto reserve =
      memory.create_pool("reserve", {.for_graphs = true, .segments = true}).value();
  const auto other = memory.create_pool("other", {.for_graphs = true, .segments = true}).value();
  void* const a = reserve.allocate(40_MiB, one);
  void* const b = other.allocate(40_MiB, one);
  memory.deallocate(a);
  memory.deallocate(b);
  memory.deallocate(memory.allocate(20_MiB, one), one);
  machine->run_until_idle();
  const auto held = memory.stats().reserved.current;
  ASSERT_TRUE(memory.set_limit(held));
  EXPECT_EQ(code_of(memory.try_allocate(30_MiB, one)), errc::out_of_memory);
  memory.deallocate(memory.allocate(20_MiB, one), one);
  machine->run_until_idle();
  const auto released = memory.stats().handles_released;

  ASSERT_TRUE(reserve.set_fallback(true));
  EXPECT_EQ(memory.allocate(30_MiB, one), a);
  EXPECT_EQ(memory.stats().handles_released, released) << "what was cached stayed";
  EXPECT_EQ(reserve.stats().blocks.current, 1u);
  EXPECT_EQ(memory.block_at(a).value().pool, reserve.id());
  EXPECT_EQ(code_of(memory.try_allocate(30_MiB, one)), errc::out_of_memory) << "the rest is 10";
  memory.deallocate(a);
  EXPECT_EQ(code_of(memory.try_allocate(30_MiB, two)), errc::out_of_memory) << "another stream's";
  EXPECT_EQ(code_of(other.try_allocate(60_MiB, one)), errc::out_of_memory);
  EXPECT_EQ(reserve.allocate(20_MiB, one), a);
  memory.deallocate(a);
  ASSERT_TRUE(reserve.set_fallback(false));
  EXPECT_EQ(code_of(memory.try_allocate(30_MiB, one)), errc::out_of_memory);
  EXPECT_EQ(code_of(memory_pool{}.set_fallback(true)), errc::moved_from);
  EXPECT_EQ(check(memory), "");
}

TEST_F(segment_sources, a_fallback_that_ended_serves_nobody) {
  auto memory = make();
  const auto stream = new_stream();
  auto pool = memory.create_pool("reserve", {.for_graphs = true, .segments = true}).value();
  void* const kept = pool.allocate(2_MiB, stream);
  void* const a = pool.allocate(40_MiB, stream);
  memory.deallocate(a);
  machine->run_until_idle();
  ASSERT_TRUE(pool.set_fallback(true));
  ASSERT_TRUE(memory.set_limit(memory.stats().reserved.current));
  pool = {};
  EXPECT_EQ(code_of(memory.try_allocate(30_MiB, stream)), errc::out_of_memory);
  memory.deallocate(kept);
  machine->run_until_idle();
  void* const b = memory.allocate(30_MiB, stream);
  EXPECT_EQ(memory.block_at(b).value().pool, pool_id{});
  memory.deallocate(b, stream);
}

}  // namespace
}  // namespace weir::testing_support
