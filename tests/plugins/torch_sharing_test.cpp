// What the torch plug-in says to other processes: handle strings, descriptors, mapped memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/small_machine.hpp"
#include "torch/descriptor_desk.hpp"
#include "torch/imported_block.hpp"
#include "torch/ipc_handle.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace weir_torch {
namespace {

using namespace weir::literals;

ipc_handle example() {
  ipc_handle out;
  for (std::size_t i = 0; i < out.ticket.size(); ++i)
    out.ticket[i] = static_cast<std::uint8_t>(17 * i);
  out.socket = "/tmp/somewhere";
  out.pieces = {2 << 20, 20 << 20};
  return out;
}

TEST(ipc_handle, reads_what_it_wrote) {
  const auto read = ipc_handle::read(example().write());
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, example());
}

TEST(ipc_handle, refuses_what_is_cut_or_has_more_at_any_place) {
  const std::string whole = example().write();
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(ipc_handle::read(std::string_view{whole}.substr(0, length))) << length;
  EXPECT_FALSE(ipc_handle::read(whole + "x"));
}

TEST(ipc_handle, refuses_other_versions_and_torchs_own_handles) {
  std::string later = example().write();
  later[4] = 2;
  EXPECT_EQ(ipc_handle::read(later).code(), weir::errc::bad_version);
  EXPECT_EQ(ipc_handle::read(std::string(64, '\3')).code(), weir::errc::invalid_argument);
}

TEST(ipc_handle, refuses_pieces_of_nothing_and_too_many) {
  ipc_handle odd = example();
  odd.pieces = {0};
  EXPECT_FALSE(ipc_handle::read(odd.write()));
  odd.pieces.assign(ipc_handle::most_pieces + 1, 1);
  EXPECT_FALSE(ipc_handle::read(odd.write()));
  odd.pieces.clear();
  EXPECT_FALSE(ipc_handle::read(odd.write()));
}

/// One for all tests: a desk is never closed.
descriptor_desk& desk() {
  static descriptor_desk& only = *descriptor_desk::open().value();
  return only;
}

std::vector<weir::descriptor> some_files(std::size_t count) {
  std::vector<weir::descriptor> out;
  for (std::size_t i = 0; i < count; ++i)
    out.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return out;
}

ino_t inode(int number) {
  struct stat found {};
  return ::fstat(number, &found) == 0 ? found.st_ino : 0;
}

TEST(descriptor_desk, hands_out_what_was_offered_and_nothing_after_it_was_withdrawn) {
  auto files = some_files(2);
  const ino_t first = inode(files[0].get());
  const auto handle = desk().offer(1, std::move(files), {1, 2}).value();
  const auto fetched = descriptor_desk::fetch(handle);
  ASSERT_TRUE(fetched) << fetched.error().message();
  ASSERT_EQ(fetched->size(), 2U);
  EXPECT_EQ(inode(fetched->at(0).get()), first);
  EXPECT_TRUE(desk().withdraw(1));
  EXPECT_FALSE(desk().withdraw(1));
  EXPECT_EQ(descriptor_desk::fetch(handle).code(), weir::errc::not_permitted);
}

TEST(descriptor_desk, says_the_same_of_a_name_that_is_offered_already) {
  const auto handle = desk().offer(2, some_files(1), {1}).value();
  EXPECT_EQ(desk().offer(2, some_files(1), {1}).value(), handle);
  ipc_handle seen;
  EXPECT_TRUE(desk().offered(2, seen));
  EXPECT_EQ(seen, handle);
  desk().withdraw(2);
  EXPECT_FALSE(desk().offered(2, seen));
}

TEST(descriptor_desk, sends_more_than_one_message_can_hold) {
  const auto handle = desk().offer(3, some_files(300), std::vector<std::uint64_t>(300, 1)).value();
  const auto fetched = descriptor_desk::fetch(handle);
  ASSERT_TRUE(fetched) << fetched.error().message();
  EXPECT_EQ(fetched->size(), 300U);
  desk().withdraw(3);
}

TEST(descriptor_desk, serves_nobody_who_does_not_know_a_ticket) {
  auto handle = desk().offer(4, some_files(1), {1}).value();
  handle.ticket[0] ^= 1;
  EXPECT_FALSE(descriptor_desk::fetch(handle));
  desk().withdraw(4);
}

TEST(descriptor_desk, that_is_gone_is_an_error) {
  EXPECT_EQ(descriptor_desk::fetch(example()).code(), weir::errc::not_found);
}

TEST(imported_block, shows_the_memory_of_the_block) {
  const auto machine = weir::testing_support::open_small_machine();
  const auto gpu = machine->device(weir::device_id{0}).value();
  weir::options settings;
  settings.heap_exportable = true;
  auto memory = weir::caching_allocator::create(gpu, settings).value();
  const auto stream = weir::stream::create(gpu).value();
  void* const block = memory.allocate(5_MiB, stream);
  const auto under = memory.handles_under(block).value();

  std::vector<weir::descriptor> exported;
  std::vector<std::uint64_t> sizes;
  const weir::context_scope bound{gpu};
  for (const auto& piece : under.handles) {
    exported.push_back(weir::vmm::export_descriptor(bound, piece).value());
    sizes.push_back(piece.size.count());
  }
  const auto handle = desk().offer(5, std::move(exported), std::move(sizes)).value();
  const auto fetched = descriptor_desk::fetch(handle).value();
  auto imported = imported_block::open(gpu, handle, fetched);
  ASSERT_TRUE(imported) << imported.error().message();

  const auto& calls = gpu.driver();
  const std::uint32_t written = 0x5eed'1234;
  std::uint32_t read = 0;
  ASSERT_EQ(
      calls.memcpy_htod(reinterpret_cast<weir::device_address>(block), &written, sizeof written),
      weir::driver::CUDA_SUCCESS);
  const auto there =
      reinterpret_cast<weir::device_address>((*imported)->base()) + under.offset.count();
  ASSERT_EQ(calls.memcpy_dtoh(&read, there, sizeof read), weir::driver::CUDA_SUCCESS);
  EXPECT_EQ(read, written);
  imported->reset();
  desk().withdraw(5);
  memory.deallocate(block, stream);
}

/// A machine on which queued work is done when somebody waits for it, and a block on it that plays
/// another process's.
class leaving_blocks_test : public testing::Test {
 protected:
  static std::shared_ptr<weir::sim::machine> make_machine() {
    weir::sim::machine_options settings;
    settings.devices.assign(1,
                            weir::sim::device_spec{.capacity = 1_GiB, .context_overhead = 64_MiB});
    settings.mode = weir::sim::progress::manual;
    return weir::sim::machine::create(settings).value();
  }
  void TearDown() override {
    for (const auto& found : machine->hazards()) ADD_FAILURE() << found.story();
  }
  [[nodiscard]] std::unique_ptr<imported_block> import_block() const {
    const auto memory = weir::physical_handle::create(gpu, 2_MiB, {.posix_descriptor = true});
    std::vector<weir::descriptor> exported;
    exported.push_back(memory.value().export_descriptor().value());
    ipc_handle named;
    named.pieces = {(2_MiB).count()};
    return imported_block::open(gpu, named, exported).value();
  }
  void read_later(const imported_block& what) {
    const weir::context_scope bound{gpu};
    ASSERT_TRUE(machine->launch(
        stream.handle(), "kernel read",
        {weir::sim::reads(reinterpret_cast<weir::device_address>(what.base()), 4096)}));
  }
  [[nodiscard]] std::uint64_t unmapped() const {
    return machine->calls(weir::driver::call::mem_unmap);
  }

  std::shared_ptr<weir::sim::machine> machine = make_machine();
  std::shared_ptr<weir::runtime> runtime = weir::runtime::open_simulated(machine).value();
  weir::device gpu = runtime->device(weir::device_id{0}).value();
  weir::stream stream = weir::stream::create(gpu).value();
  leaving_blocks leaving{gpu};
};

TEST_F(leaving_blocks_test, go_when_no_work_uses_them) {
  auto block = import_block();
  read_later(*block);
  leaving.add(std::move(block));
  EXPECT_EQ(unmapped(), 0U);
  leaving.unmap(false);
  EXPECT_EQ(unmapped(), 1U);
  leaving.unmap(false);
  EXPECT_EQ(unmapped(), 1U);
}

TEST_F(leaving_blocks_test, stay_during_a_capture) {
  auto first = import_block();
  read_later(*first);
  leaving.add(std::move(first));
  leaving.unmap(true);  // torch says so
  EXPECT_EQ(unmapped(), 0U);
  const weir::stream captured = weir::stream::create(gpu).value();
  const weir::context_scope bound{gpu};
  const auto& cu = bound.driver();
  ASSERT_EQ(
      cu.stream_begin_capture(captured.handle(), weir::driver::CU_STREAM_CAPTURE_MODE_RELAXED),
      weir::driver::CUDA_SUCCESS);
  leaving.unmap(false);  // nobody said so: the driver does
  EXPECT_EQ(unmapped(), 0U);
  weir::driver::CUgraph graph = nullptr;
  static_cast<void>(cu.stream_end_capture(captured.handle(), &graph));  // spoilt by the wait
  leaving.add(import_block());
  leaving.unmap(false);
  EXPECT_EQ(unmapped(), 2U);
}

}  // namespace
}  // namespace weir_torch
