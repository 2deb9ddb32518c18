// SPDX-License-Identifier: Apache-2.0
// What can be asked about a block: what it is, and the physical memory under it.
#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

class block_questions : public heap_test {
 protected:
  [[nodiscard]] static allocator_options exportable() {
    allocator_options settings;
    settings.exportable = true;
    return settings;
  }
  [[nodiscard]] static void* inside(void* block, bytes offset) {
    return static_cast<std::byte*>(block) + offset.count();
  }
  /// Full of 2 MiB blocks under a limit, every other one freed: larger requests need moves.
  [[nodiscard]] std::vector<void*> fragment(caching_allocator& memory, const stream& on) {
    EXPECT_TRUE(memory.set_limit(80_MiB));
    std::vector<void*> kept, freed;
    for (int i = 0; i < 40; ++i) {
      (i % 2 == 0 ? kept : freed).push_back(memory.allocate(2_MiB, on));
      write(on, (i % 2 == 0 ? kept : freed).back(), 2_MiB);
    }
    for (void* const p : freed) memory.deallocate(p, on);
    return kept;
  }
};

TEST_F(block_questions, know_a_block_from_any_address_inside) {
  for (const auto policy : {placement_policy::balanced, placement_policy::classic,
                            placement_policy::classic_expandable}) {
    allocator_options settings;
    settings.policy = policy;
    auto memory = make(settings);
    const auto one = new_stream();
    const auto two = new_stream();
    const auto pool = memory.create_pool("apart").value();
    const tag weights = tag::named("weights").value();
    void* const small = memory.allocate(1000_B, one);
    void* large = nullptr;
    {
      const tag_scope as{weights};
      large = memory.allocate(30_MiB, two);
    }
    void* const apart = pool.allocate(3_MiB, two);
    for (const bytes at : {0_B, 1_B, 512_B, 7_MiB, 30_MiB - 1_B}) {
      const auto found = memory.block_at(inside(large, at));
      ASSERT_TRUE(found) << to_string(at);
      EXPECT_EQ(found->address, reinterpret_cast<std::uint64_t>(large));
      EXPECT_EQ(found->requested, 30_MiB);
      EXPECT_GE(found->size, 30_MiB);
      EXPECT_EQ(found->state, block_state::live);
      EXPECT_EQ(found->stream, two.id());
      EXPECT_EQ(found->tag, weights);
      EXPECT_EQ(found->pool, pool_id{});
    }
    const auto found = memory.block_at(inside(small, 999_B)).value();
    EXPECT_EQ(found.requested, 1000_B);
    EXPECT_EQ(found.size, 1024_B);
    EXPECT_EQ(found.stream, one.id());
    EXPECT_EQ(found.tag, tag{});
    EXPECT_EQ(memory.block_at(inside(apart, 1_MiB)).value().pool, pool.id());
    EXPECT_EQ(pool.snapshot().blocks.front().pool, pool.id());

    int local = 0;
    EXPECT_EQ(code_of(memory.block_at(&local)), errc::foreign_pointer);
    EXPECT_EQ(code_of(memory.block_at(nullptr)), errc::foreign_pointer);
    memory.deallocate(small, one);  // where there are caches: kept by this thread
    EXPECT_EQ(code_of(memory.block_at(small)), errc::foreign_pointer);
    EXPECT_EQ(code_of(memory.block_at(inside(small, 10_B))), errc::foreign_pointer);
    ASSERT_TRUE(memory.record_stream(large, one));
    memory.deallocate(large, two);  // pending
    EXPECT_EQ(code_of(memory.block_at(inside(large, 10_B))), errc::foreign_pointer);
    memory.deallocate(apart, two);
    ASSERT_TRUE(memory.empty_cache());  // holes, or nothing at all
    EXPECT_EQ(code_of(memory.block_at(inside(large, 10_B))), errc::foreign_pointer);
    ASSERT_TRUE(memory.close());
    EXPECT_EQ(code_of(memory.block_at(large)), errc::closed);
  }
}

TEST_F(block_questions, what_lies_under_a_live_block_stays_whatever_moves) {
  auto memory = make(exportable());
  const auto one = new_stream();
  const auto two = new_stream();
  auto kept = fragment(memory, one);
  std::vector<block_handles> before;
  for (void* const p : kept) before.push_back(memory.handles_under(p).value());
  for (int round = 0; round < 6; ++round) {
    const auto& on = round % 2 == 0 ? one : two;
    void* const large = memory.allocate(24_MiB, on);
    write(on, large, 24_MiB);
    const auto under = memory.handles_under(large).value();
    bytes sum{};
    for (const auto& each : under.handles) sum += each.size;
    EXPECT_GE(sum, under.offset + 24_MiB);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const auto now = memory.handles_under(kept[i]).value();
      ASSERT_EQ(now.handles, before[i].handles) << "round " << round << ", block " << i;
      ASSERT_EQ(now.offset, before[i].offset);
      for (const auto& mine : now.handles)
        for (const auto& other : under.handles) ASSERT_NE(mine, other);
    }
    memory.deallocate(large, on);
    std::vector<void*> small;
    for (int i = 0; i < 14; ++i) small.push_back(memory.allocate(2_MiB, two));
    for (void* const p : small) memory.deallocate(p, two);
  }
  EXPECT_GT(memory.stats().handles_moved, 10u);
  for (void* const p : kept) memory.deallocate(p, one);
  EXPECT_EQ(check(memory), "");
}

TEST_F(block_questions, memory_of_an_exportable_allocator_can_be_exported) {
  auto memory = make(exportable());
  const auto stream = new_stream();
  const auto plain = memory.create_pool("plain").value();
  const auto own = memory.create_pool("own", {.exportable = true}).value();
  const context_scope bound{gpu()};
  void* const a = memory.allocate(5_MiB, stream);
  void* const b = plain.allocate(200_MiB, stream);
  void* const c = own.allocate(5_MiB, stream);
  for (void* const p : {a, b, c}) {
    for (const auto& each : memory.handles_under(p).value().handles) {
      const auto sent = vmm::export_descriptor(bound, each);
      ASSERT_TRUE(sent) << sent.error().message();
    }
  }
  // A pool promises handles of one granularity only if that was asked for.
  EXPECT_GT(memory.handles_under(b).value().handles.front().size, 2_MiB);
  EXPECT_EQ(memory.handles_under(c).value().handles.size(), 3u);
  EXPECT_EQ(code_of(plain.handles_under(b)), errc::not_supported);
  EXPECT_EQ(own.handles_under(c).value().handles, memory.handles_under(c).value().handles);
  EXPECT_EQ(code_of(own.handles_under(a)), errc::foreign_pointer);
  EXPECT_EQ(code_of(memory.handles_under(inside(a, 512_B))), errc::foreign_pointer);
  for (void* const p : {a, b, c}) memory.deallocate(p, stream);
  EXPECT_EQ(code_of(memory.handles_under(a)), errc::double_free);
  EXPECT_EQ(check(memory), "");
}

TEST_F(block_questions, no_export_where_nothing_was_said) {
  auto memory = make();
  const auto stream = new_stream();
  const auto own = memory.create_pool("own", {.exportable = true}).value();
  void* const a = memory.allocate(5_MiB, stream);
  void* const b = own.allocate(5_MiB, stream);
  EXPECT_EQ(code_of(memory.handles_under(a)), errc::not_supported);
  EXPECT_TRUE(memory.handles_under(b));
  memory.deallocate(a, stream);
  memory.deallocate(b, stream);
}

TEST_F(block_questions, no_exportable_allocator_where_it_cannot_be) {
  for (const auto policy : {placement_policy::classic, placement_policy::classic_expandable}) {
    allocator_options settings = exportable();
    settings.policy = policy;
    const auto refused = caching_allocator::create(gpu(), settings);
    EXPECT_EQ(code_of(refused), errc::not_supported);
    EXPECT_EQ(refused.error().detail(),
              "classic policies cannot create exportable memory; choose another heap_policy or "
              "heap_exportable=off");
  }
  sim::machine_options other;
  other.devices = {sim::device_spec{.capacity = 2_GiB, .posix_handles = false}};
  const auto poor = sim::machine::create(other).value();
  const auto there = runtime::open_simulated(poor).value();
  const auto device = there->device(device_id{0}).value();
  const auto refused = caching_allocator::create(device, exportable());
  EXPECT_EQ(code_of(refused), errc::not_supported);
  EXPECT_EQ(refused.error().detail(), "the device cannot export memory; use heap_exportable=off");
  auto memory = caching_allocator::create(device).value();
  EXPECT_EQ(code_of(memory.create_pool("own", {.exportable = true})), errc::not_supported);
  EXPECT_TRUE(memory.create_pool("own", {.for_graphs = true}));
}

TEST_F(block_questions, without_virtual_memory_there_is_the_classic_policy_alone) {
  sim::machine_options other;
  other.devices = {sim::device_spec{.capacity = 2_GiB, .virtual_memory = false}};
  const auto poor = sim::machine::create(other).value();
  const auto there = runtime::open_simulated(poor).value();
  const auto device = there->device(device_id{0}).value();
  for (const auto policy :
       {placement_policy::balanced, placement_policy::throughput, placement_policy::compact,
        placement_policy::never_move, placement_policy::classic_expandable})
    EXPECT_EQ(code_of(caching_allocator::create(device, {.policy = policy})), errc::not_supported);
  auto memory = caching_allocator::create(device, {.policy = placement_policy::classic}).value();
  const auto refused = caching_allocator::create(device, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().detail(),
            "the device does not support virtual memory management; use heap_policy=classic");
  const auto unchecked = caching_allocator::create(
      device, {.policy = placement_policy::classic, .debug = debug_checks::red_zones});
  ASSERT_EQ(code_of(unchecked), errc::not_supported);
  EXPECT_EQ(unchecked.error().detail(),
            "heap_debug needs a device with virtual memory management; use heap_debug=off");
  EXPECT_EQ(code_of(memory.create_pool("own", {.exportable = true})), errc::not_supported);
  const auto stream = stream::create(device).value();
  const auto pool = memory.create_pool("graphs", {.for_graphs = true}).value();
  memory.deallocate(pool.allocate(1_MiB, stream), stream);
}

}  // namespace
}  // namespace weir::testing_support
