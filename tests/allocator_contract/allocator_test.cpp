// SPDX-License-Identifier: Apache-2.0
// Opening an allocator on the machine under test, writing and verifying, judging.
#include "allocator_contract/allocator_test.hpp"

#include <cstdlib>
#include <utility>

#include "allocator_contract/pieces.hpp"
#include "weir/device/event.hpp"

namespace weir::testing_support {
// --- What is reported --------------------------------------------------------------------------

error_log::error_log() {
  set_error_handler(
      [](const error& found, void* self) noexcept {
        auto* const log = static_cast<error_log*>(self);
        const std::lock_guard lock{log->mutex_};
        log->errors_.push_back(found);
      },
      this);
}

error_log::~error_log() { set_error_handler(nullptr); }

std::vector<error> error_log::take() {
  const std::lock_guard lock{mutex_};
  return std::exchange(errors_, {});
}

// --- Lanes --------------------------------------------------------------------------------------

lane::lane(driver_fixture& bench, weir::device where)
    : bench_{bench},
      stream_{weir::stream::create(where).value()},
      counter_{bench.new_memory(sizeof(word))} {
  EXPECT_EQ(CUDA_SUCCESS, bench_.cu->memset_d32_async(counter_, 0, 1, handle()));
}

void lane::fill(void* memory, bytes size, word value) const {
  for_each_piece(memory, size, whole_up_to_, [&](CUdeviceptr at, std::uint64_t count) {
    EXPECT_EQ(CUDA_SUCCESS, bench_.fill(at, value, count, handle()));
  });
}

void lane::check(void* memory, bytes size, word value) const {
  for_each_piece(memory, size, whole_up_to_, [&](CUdeviceptr at, std::uint64_t count) {
    EXPECT_EQ(CUDA_SUCCESS, bench_.check(at, value, count, counter_, handle()));
  });
}

void lane::wait_for(const lane& other) const {
  auto mark = event::create(stream_.device()).value();
  EXPECT_TRUE(mark.record(other));
  EXPECT_TRUE(stream_.wait(mark));
}

word lane::mismatches() const {
  if (stream_) {
    EXPECT_TRUE(stream_.synchronize());
  }
  word found = 0;
  EXPECT_EQ(CUDA_SUCCESS, bench_.cu->memcpy_dtoh(&found, counter_, sizeof found));
  return found;
}

// --- The fixture --------------------------------------------------------------------------------

std::string policy_name(placement_policy policy) {
  options settings;
  settings.heap_policy = policy;
  return get(settings, "heap_policy").value();
}

void allocator_test::SetUp() {
  auto opened = open_machine(std::get<1>(GetParam()));
  if (!opened) {
    if (machine_may_be_absent())
      GTEST_SKIP() << "no machine: " << opened.error().message();
    else
      FAIL() << "no machine: " << opened.error().message();
  }
  open(std::move(*opened));
  runtime_ = runtime::open_table(*cu, "machine under test", machine).value();
  where_ = runtime_->device(device_id{device}).value();
  reopen();
}

void allocator_test::TearDown() {
  if (machine == nullptr) return;
  cu->ctx_set_current(context);
  EXPECT_EQ(CUDA_SUCCESS, cu->ctx_synchronize());
  for (const auto& each : lanes_) EXPECT_EQ(each->mismatches(), 0U) << "a pattern was overwritten";
  if (memory_) {
    EXPECT_TRUE(memory_->close());
    memory_.reset();
  }
  lanes_.clear();
  for (const error& each : heard.take()) ADD_FAILURE() << "reported: " << each.message();
  runtime_.reset();
  clean_up();
  for (const auto& story : machine->take_hazards()) ADD_FAILURE() << story;
}

debug_checks checks_under_test() {
  options chosen;
  const char* const variable = std::getenv("WEIR_CONTRACT_DEBUG");
  if (variable != nullptr) set(chosen, "heap_debug", variable).value();
  return chosen.heap_debug;
}

void allocator_test::reopen(allocator_options settings) {
  settings.policy = policy();
  settings.debug = checks_under_test();
  if (memory_) {
    EXPECT_TRUE(memory_->close());
  }
  memory_ = caching_allocator::create(where(), settings).value();
}

bool allocator_test::moves() const {
  return policy() == placement_policy::balanced || policy() == placement_policy::throughput ||
         policy() == placement_policy::compact;
}

bool allocator_test::is_classic() const {
  return policy() == placement_policy::classic || policy() == placement_policy::classic_expandable;
}

lane& allocator_test::new_lane() {
  lanes_.push_back(std::make_unique<lane>(*this, where()));
  return *lanes_.back();
}

filled_block allocator_test::make(bytes size, const lane& on) {
  const filled_block made{memory().allocate(size, on), size, new_value()};
  on.fill(made.memory, made.size, made.value);
  return made;
}

void allocator_test::finish(const filled_block& block, const lane& on) {
  on.check(block.memory, block.size, block.value);
  const auto freed = memory().try_deallocate(block.memory, on);
  EXPECT_TRUE(freed) << freed.error().message();
}

void allocator_test::expect_books() {
  const memory_stats now = memory().stats();
  EXPECT_LE(now.requested.current, now.allocated.current);
  EXPECT_LE(now.allocated.current, now.active.current);
  EXPECT_LE(now.active.current, now.reserved.current);
  EXPECT_EQ(now.cached, now.reserved.current - now.active.current);
  EXPECT_EQ(now.pending, now.active.current - now.allocated.current);
  EXPECT_LE(now.thread_cached + now.stream_bound, now.cached);
  EXPECT_EQ(now.allocations - now.frees, now.blocks.current);
  EXPECT_LE(now.hits, now.allocations);
  for (const byte_gauge& each : {now.requested, now.allocated, now.active, now.reserved})
    EXPECT_LE(each.current, each.peak);
  EXPECT_LE(now.blocks.current, now.blocks.peak);
}

void allocator_test::expect_snapshot() {
  const allocator_snapshot seen = memory().snapshot();
  EXPECT_EQ(seen.device, where().id());
  memory_stats sum;
  for (const pool_snapshot& pool : seen.pools) {
    bytes by_state[6] = {};
    bytes requested, physical;
    std::uint64_t live = 0;
    device_address end = 0;
    for (const block_info& block : pool.blocks) {
      EXPECT_LE(end, block.address) << "blocks overlap or are out of order";
      end = block.address + block.size.count();
      by_state[static_cast<std::size_t>(block.state)] += block.size;
      if (block.state == block_state::live) {
        ++live;
        requested += block.requested;
      }
    }
    end = 0;
    for (const physical_info& piece : pool.physical) {
      EXPECT_LE(end, piece.address);
      end = piece.address + piece.size.count();
      physical += piece.size;
    }
    const auto of = [&](block_state state) { return by_state[static_cast<std::size_t>(state)]; };
    EXPECT_EQ(requested, pool.stats.requested.current);
    EXPECT_EQ(live, pool.stats.blocks.current);
    EXPECT_EQ(of(block_state::live), pool.stats.allocated.current);
    EXPECT_EQ(of(block_state::pending), pool.stats.pending);
    EXPECT_EQ(of(block_state::thread_cached), pool.stats.thread_cached);
    EXPECT_EQ(of(block_state::stream_bound), pool.stats.stream_bound);
    EXPECT_EQ(physical, pool.stats.reserved.current);
    EXPECT_EQ(of(block_state::live) + of(block_state::pending) + of(block_state::thread_cached) +
                  of(block_state::stream_bound) + of(block_state::free),
              pool.stats.reserved.current);
    sum.requested.current += pool.stats.requested.current;
    sum.allocated.current += pool.stats.allocated.current;
    sum.active.current += pool.stats.active.current;
    sum.reserved.current += pool.stats.reserved.current;
    sum.blocks.current += pool.stats.blocks.current;
  }
  EXPECT_EQ(sum.requested.current, seen.stats.requested.current);
  EXPECT_EQ(sum.allocated.current, seen.stats.allocated.current);
  EXPECT_EQ(sum.active.current, seen.stats.active.current);
  EXPECT_EQ(sum.reserved.current, seen.stats.reserved.current);
  EXPECT_EQ(sum.blocks.current, seen.stats.blocks.current);
}

}  // namespace weir::testing_support
