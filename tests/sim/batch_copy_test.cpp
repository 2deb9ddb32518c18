// SPDX-License-Identifier: Apache-2.0
// Copies in batches: what is copied, what is refused, and which entry it was.
#include <vector>

#include "memory_fixture.hpp"

namespace weir::sim_tests { namespace {

using ::testing::ElementsAre;

constexpr std::size_t none = ~std::size_t{0};

/// Three words to copy and a fourth that is in no batch.
class batches : public memory_fixture {
 protected:
  batches() : memory_fixture{small_machine(64 * mib)}, on{stream()} {
    const std::vector<std::uint32_t> words{1, 2, 3, 4};
    const CUdeviceptr from = plain(16);
    to = plain(16);
    EXPECT_EQ(cuda.memcpy_htod(from, words.data(), 16), CUDA_SUCCESS);
    EXPECT_EQ(cuda.memset_d32(to, 0, 4), CUDA_SUCCESS);
    EXPECT_EQ(cuda.ctx_synchronize(), CUDA_SUCCESS);
    for (std::size_t i = 0; i < 4; ++i) {
      sources.push_back(from + 4 * i);
      destinations.push_back(to + 4 * i);
      sizes.push_back(4);
    }
    attributes.assign(4, {});
    for (auto& each : attributes) each.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  }
  CUresult copy(std::size_t count = 3, std::size_t attribute_count = 1) {
    failed = 99;
    return cuda.memcpy_batch_async(destinations.data(), sources.data(), sizes.data(), count,
                                   attributes.data(), indices.data(), attribute_count, &failed, on);
  }
  std::vector<std::uint32_t> copied() {
    std::vector<std::uint32_t> words(4);
    EXPECT_EQ(cuda.stream_synchronize(on), CUDA_SUCCESS);
    EXPECT_EQ(cuda.memcpy_dtoh(words.data(), to, 16), CUDA_SUCCESS);
    return words;
  }

  CUstream on;
  CUdeviceptr to = 0;
  std::vector<CUdeviceptr> sources;
  std::vector<CUdeviceptr> destinations;
  std::vector<std::size_t> sizes;
  std::vector<CUmemcpyAttributes> attributes;
  std::vector<std::size_t> indices{0, 1, 2, 3};
  std::size_t failed = 99;
};

TEST_F(batches, copy_what_is_in_them_and_nothing_behind) {
  EXPECT_EQ(copy(), CUDA_SUCCESS);
  EXPECT_EQ(failed, none);
  EXPECT_THAT(copied(), ElementsAre(1, 2, 3, 0));
}

TEST_F(batches, do_not_look_at_what_is_behind_them) {
  sizes[3] = 0;
  sources[3] = destinations[3] = 0;
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  EXPECT_EQ(copy(), CUDA_SUCCESS);
  EXPECT_EQ(failed, none);
  EXPECT_THAT(copied(), ElementsAre(1, 2, 3, 0));
}

TEST_F(batches, have_at_most_as_many_attributes_as_copies) {
  EXPECT_EQ(copy(3, 3), CUDA_SUCCESS);
  EXPECT_EQ(copy(3, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, none);
  EXPECT_EQ(copy(1, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(copy(0, 0), CUDA_ERROR_INVALID_VALUE);
  indices[0] = 1;
  EXPECT_EQ(copy(), CUDA_ERROR_INVALID_VALUE) << "the first copy has no attributes";
}

TEST_F(batches, say_which_entry_is_wrong_and_copy_nothing) {
  const auto refused_for = [&](auto& of, std::size_t index, auto wrong) {
    const auto right = std::exchange(of[index], wrong);
    EXPECT_EQ(copy(3, 3), CUDA_ERROR_INVALID_VALUE);
    of[index] = right;
    return failed;
  };
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(refused_for(sizes, i, std::size_t{0}), i);
    EXPECT_EQ(refused_for(sources, i, CUdeviceptr{0}), i);
    EXPECT_EQ(refused_for(destinations, i, CUdeviceptr{0}), i);
    CUmemcpyAttributes wrong{};
    wrong.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    EXPECT_EQ(refused_for(attributes, i, wrong), i);
  }
  EXPECT_THAT(copied(), ElementsAre(0, 0, 0, 0));
}

TEST_F(batches, end_at_a_copy_that_cannot_be_made) {
  destinations[1] = nowhere;
  EXPECT_EQ(copy(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, 1u);
  EXPECT_THAT(copied(), ElementsAre(1, 0, 0, 0));
}

TEST_F(batches, need_a_stream_that_was_created) {
  const CUstream own = on;
  for (const CUstream stream : {CUstream{nullptr}, legacy_stream()}) {
    on = stream;
    EXPECT_EQ(copy(), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(failed, none);
  }
  on = own;
  EXPECT_THAT(copied(), ElementsAre(0, 0, 0, 0));
}

TEST_F(batches, need_every_list_but_not_the_place_for_the_failure) {
  const auto answer = [&](CUdeviceptr* to_list, CUdeviceptr* from_list, std::size_t* size_list,
                          CUmemcpyAttributes* attribute_list, std::size_t* index_list) {
    return cuda.memcpy_batch_async(to_list, from_list, size_list, 3, attribute_list, index_list, 1,
                                   nullptr, on);
  };
  auto* const d = destinations.data();
  auto* const s = sources.data();
  auto* const n = sizes.data();
  auto* const a = attributes.data();
  auto* const i = indices.data();
  EXPECT_EQ(answer(nullptr, s, n, a, i), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(d, nullptr, n, a, i), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(d, s, nullptr, a, i), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(d, s, n, nullptr, i), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(answer(d, s, n, a, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(copied(), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(answer(d, s, n, a, i), CUDA_SUCCESS);
  EXPECT_THAT(copied(), ElementsAre(1, 2, 3, 0));
}

}  // namespace
}  // namespace weir::sim_tests
