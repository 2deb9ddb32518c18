// What the torch plug-in says to other processes: handle strings, descriptors, mapped memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "support/small_machine.hpp"
#include "torch/descriptor_desk.hpp"
#include "torch/imported_block.hpp"
#include "torch/ipc_handle.hpp"
#include "weir/caching_allocator.hpp"
#include "weir/stream.hpp"

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

}  // namespace
}  // namespace weir_torch
