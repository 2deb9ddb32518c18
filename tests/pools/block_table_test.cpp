// SPDX-License-Identifier: Apache-2.0
// block_table: which block an address is, and what is said where it is none.
#include "pools/block_table.hpp"

#include <cstdint>
#include <string>

#include "heap/heap_fixture.hpp"

namespace weir::testing_support { namespace {

using pools::block;
using pools::block_state;
using pools::block_table;

class block_table_test : public heap_test {
 protected:
  /// A live block of 1000 bytes.
  block& live_at(std::uint64_t address) {
    block& made = table.add();
    made.size = 1024;
    made.requested = 1000;
    made.stream = made.freed_on = slot;
    made.base = address;
    table.place(made, address);
    made.state = block_state::live;
    return made;
  }
  [[nodiscard]] result<block*> find(std::uint64_t address) {
    return table.find_live(reinterpret_cast<const void*>(address));
  }
  [[nodiscard]] error trouble_at(std::uint64_t address) { return find(address).error(); }

  const stream on = new_stream();
  order::stream_order streams{gpu()};
  const order::stream_slot slot = streams.meet(on, on.id());
  block_table table{streams};
};

TEST_F(block_table_test, a_block_is_found_where_it_was_placed) {
  block& first = live_at(0x10000);
  block& second = live_at(0x20000);
  EXPECT_EQ(find(0x10000).value(), &first);
  EXPECT_EQ(find(0x20000).value(), &second);
  table.place(first, 0x10200);
  EXPECT_EQ(find(0x10200).value(), &first) << "it lies where it lay";
  EXPECT_EQ(first.address, 0x10200u);
  EXPECT_FALSE(table.has(0x10000));
  table.erase(first);
  EXPECT_FALSE(table.has(0x10200));
  EXPECT_EQ(trouble_at(0x10200).code(), errc::foreign_pointer);
}

TEST_F(block_table_test, a_hidden_block_leaves_its_address_to_others) {
  const block& fresh = table.add();
  EXPECT_EQ(fresh.state, block_state::releasing);
  EXPECT_EQ(fresh.key % 2, 1u) << "no address";
  block& hidden = live_at(0x10000);
  hidden.state = block_state::releasing;
  table.hide(hidden);
  EXPECT_NE(hidden.key, fresh.key);
  EXPECT_EQ(hidden.address, 0x10000u);
  EXPECT_FALSE(table.has(0x10000));
  EXPECT_EQ(trouble_at(0x10000).code(), errc::foreign_pointer);
  block& another = live_at(0x10000);
  EXPECT_EQ(find(0x10000).value(), &another);
}

TEST_F(block_table_test, the_error_says_what_is_there_instead) {
  block& live = live_at(0x10000);
  const error inside = trouble_at(0x10010);
  EXPECT_EQ(inside.code(), errc::foreign_pointer);
  EXPECT_NE(inside.detail().find("inside a block"), std::string::npos) << inside.detail();
  EXPECT_EQ(trouble_at(0x10400).code(), errc::foreign_pointer) << "behind it";
  live.state = block_state::cached;
  EXPECT_EQ(trouble_at(0x10000).code(), errc::double_free);
  EXPECT_EQ(trouble_at(0x10010).code(), errc::double_free);
  const error freed = trouble_at(0x10000);
  EXPECT_NE(freed.detail().find("stream " + std::to_string(on.id().number())), std::string::npos)
      << freed.detail();
}

TEST_F(block_table_test, a_free_is_found_while_streams_may_use_the_block) {
  block& freed = live_at(0x10000);
  live_at(0x20000);
  freed.order = 5;
  EXPECT_EQ(table.find_stream_bound(5), nullptr) << "it is live";
  freed.state = block_state::cached;
  freed.freed = streams.now(slot);
  EXPECT_EQ(table.find_stream_bound(5), &freed);
  EXPECT_EQ(table.find_stream_bound(4), nullptr);
  freed.freed = {};
  EXPECT_EQ(table.find_stream_bound(5), nullptr) << "any stream may use it";
  freed.state = block_state::pending;
  EXPECT_EQ(table.find_stream_bound(5), &freed);
}

TEST_F(block_table_test, live_blocks_are_named) {
  live_at(0x10000);
  live_at(0x20000).state = block_state::cached;
  const auto live = table.live_blocks();
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].address, 0x10000u);
  EXPECT_EQ(live[0].size, 1000_B);
  EXPECT_EQ(live[0].stream, on.id());
  int all = 0;
  table.for_each([&](const block&) { ++all; });
  EXPECT_EQ(all, 2);
}

}}  // namespace weir::testing_support
