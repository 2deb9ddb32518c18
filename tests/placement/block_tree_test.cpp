// SPDX-License-Identifier: Apache-2.0
// The tree of blocks, against a sorted set.
#include "placement/block_tree.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace weir::placement { namespace {

using key = std::tuple<stream_slot, std::uint32_t, std::uint32_t, std::uint64_t>;

class block_trees : public ::testing::TestWithParam<block_tree::order> {};

TEST_P(block_trees, agree_with_a_sorted_set) {
  const bool by_size = GetParam() == block_tree::order::size;
  block_store blocks;
  block_tree tree{blocks, GetParam()};
  std::set<std::pair<key, block_index>> model;
  std::vector<block_index> outside;
  ASSERT_TRUE(blocks.prepare(300));
  std::mt19937 random{7};
  const auto below = [&](std::uint32_t limit) {
    return static_cast<std::uint32_t>(random() % limit);
  };
  for (std::uint64_t i = 0; i < 300; ++i) outside.push_back(blocks.make());
  const auto key_of = [&](block_index which) {
    const block& of = blocks[which];
    return by_size ? key{of.stream, of.units, of.in.older, of.address}
                   : key{of.stream, 0, 0, of.address};
  };
  const auto expect_next = [&](auto found, stream_slot stream, block_index answer) {
    const bool there = found != model.end() && std::get<0>(found->first) == stream;
    EXPECT_EQ(answer, there ? found->second : no_block);
  };

  for (int step = 0; step < 20'000; ++step) {
    if (!outside.empty() && (model.empty() || below(2) == 0)) {
      const block_index which = outside.back();
      outside.pop_back();
      block& of = blocks[which];
      of.stream = 1 + below(3);
      of.units = 1 + below(8);
      of.in.older = below(3);
      of.address = which * unit;
      tree.insert(which);
      model.emplace(key_of(which), which);
    } else {
      auto gone = model.begin();
      std::advance(gone, below(static_cast<std::uint32_t>(model.size())));
      EXPECT_TRUE(tree.contains(gone->second));
      tree.remove(gone->second);
      EXPECT_FALSE(tree.contains(gone->second));
      outside.push_back(gone->second);
      model.erase(gone);
    }
    ASSERT_EQ(tree.size(), model.size());
    const stream_slot stream = 1 + below(3);
    const std::uint32_t units = by_size ? below(10) : 0;
    expect_next(model.lower_bound({key{stream, units, 0, 0}, 0}), stream,
                tree.first(stream, units));
    auto behind = model.lower_bound({key{stream + 1, 0, 0, 0}, 0});
    expect_next(behind == model.begin() ? model.end() : std::prev(behind), stream,
                tree.last(stream));
    if (!model.empty()) {
      const auto any = model.begin();
      expect_next(std::next(any), std::get<0>(any->first), tree.next(any->second));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(orders, block_trees,
                         ::testing::Values(block_tree::order::size, block_tree::order::address),
                         [](const auto& each) {
                           return each.param == block_tree::order::size ? "size" : "address";
                         });

}  // namespace
}  // namespace weir::placement
