// The torch plug-in between processes: handle strings, descriptors, mapped memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/small_machine.hpp"
#include "torch/imported_block.hpp"
#include "torch/ipc_handle.hpp"
#include "torch/ipc_server.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace weir_torch {
namespace {

using namespace weir::literals;

ipc_handle example() {
  ipc_handle handle;
  for (std::size_t i = 0; i < handle.token.size(); ++i)
    handle.token[i] = static_cast<std::uint8_t>(17 * i);
  handle.socket = "/tmp/somewhere";
  handle.sizes = {2 << 20, 20 << 20};
  return handle;
}

TEST(ipc_handle, parses_its_own_serialization) {
  const auto parsed = ipc_handle::parse(example().serialize());
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(*parsed, example());
}

TEST(ipc_handle, refuses_text_that_is_cut_or_too_long) {
  const std::string whole = example().serialize();
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(ipc_handle::parse(std::string_view{whole}.substr(0, length))) << length;
  EXPECT_FALSE(ipc_handle::parse(whole + "x"));
}

TEST(ipc_handle, refuses_other_versions_and_torchs_own_handles) {
  std::string later = example().serialize();
  later[4] = 2;
  EXPECT_EQ(ipc_handle::parse(later).code(), weir::errc::bad_version);
  EXPECT_EQ(ipc_handle::parse(std::string(64, '\3')).code(), weir::errc::invalid_argument);
}

TEST(ipc_handle, refuses_empty_handles_and_too_many) {
  ipc_handle odd = example();
  odd.sizes = {0};
  EXPECT_FALSE(ipc_handle::parse(odd.serialize()));
  odd.sizes.assign(ipc_handle::max_handles + 1, 1);
  EXPECT_FALSE(ipc_handle::parse(odd.serialize()));
  odd.sizes.clear();
  EXPECT_FALSE(ipc_handle::parse(odd.serialize()));
}

/// One for all tests: a server is never closed.
ipc_server& server() {
  static ipc_server& instance = *ipc_server::open().value();
  return instance;
}

std::vector<weir::descriptor> some_files(std::size_t count) {
  std::vector<weir::descriptor> files;
  for (std::size_t i = 0; i < count; ++i)
    files.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return files;
}

ino_t inode(int number) {
  struct stat status {};
  return ::fstat(number, &status) == 0 ? status.st_ino : 0;
}

TEST(ipc_server, serves_an_offer_until_it_is_withdrawn) {
  auto files = some_files(2);
  const ino_t first = inode(files[0].get());
  const auto handle = server().offer(1, std::move(files), {1, 2}).value();
  const auto fetched = fetch_descriptors(handle);
  ASSERT_TRUE(fetched) << fetched.error().message();
  ASSERT_EQ(fetched->size(), 2U);
  EXPECT_EQ(inode(fetched->at(0).get()), first);
  EXPECT_TRUE(server().withdraw(1));
  EXPECT_FALSE(server().withdraw(1));
  EXPECT_EQ(fetch_descriptors(handle).code(), weir::errc::not_permitted);
}

TEST(ipc_server, returns_the_offer_that_a_name_has_already) {
  const auto handle = server().offer(2, some_files(1), {1}).value();
  EXPECT_EQ(server().offer(2, some_files(1), {1}).value(), handle);
  EXPECT_EQ(server().find(2), handle);
  server().withdraw(2);
  EXPECT_EQ(server().find(2), std::nullopt);
}

TEST(ipc_server, sends_more_than_one_message_can_hold) {
  const auto handle =
      server().offer(3, some_files(300), std::vector<std::uint64_t>(300, 1)).value();
  const auto fetched = fetch_descriptors(handle);
  ASSERT_TRUE(fetched) << fetched.error().message();
  EXPECT_EQ(fetched->size(), 300U);
  server().withdraw(3);
}

TEST(ipc_server, serves_nobody_who_does_not_know_a_token) {
  auto handle = server().offer(4, some_files(1), {1}).value();
  handle.token[0] ^= 1;
  EXPECT_FALSE(fetch_descriptors(handle));
  server().withdraw(4);
}

TEST(ipc_server, that_has_ended_is_an_error) {
  EXPECT_EQ(fetch_descriptors(example()).code(), weir::errc::not_found);
}

TEST(imported_block, shows_the_memory_of_the_block) {
  const auto machine = weir::testing_support::open_small_machine();
  const auto gpu = machine->device(weir::device_id{0}).value();
  auto memory = weir::caching_allocator::create(gpu, {.exportable = true}).value();
  const auto stream = weir::stream::create(gpu).value();
  void* const block = memory.allocate(5_MiB, stream);
  const auto under = memory.handles_under(block).value();

  std::vector<weir::descriptor> exported;
  std::vector<std::uint64_t> sizes;
  const weir::context_scope bound{gpu};
  for (const auto& physical : under.handles) {
    exported.push_back(weir::vmm::export_descriptor(bound, physical).value());
    sizes.push_back(physical.size.count());
  }
  const auto handle = server().offer(5, std::move(exported), std::move(sizes)).value();
  const auto fetched = fetch_descriptors(handle).value();
  auto imported = imported_block::open(gpu, handle, fetched);
  ASSERT_TRUE(imported) << imported.error().message();

  const auto& calls = gpu.driver();
  const std::uint32_t written = 0x5eed'1234;
  std::uint32_t read = 0;
  ASSERT_EQ(
      calls.memcpy_htod(reinterpret_cast<weir::device_address>(block), &written, sizeof written),
      weir::driver::CUDA_SUCCESS);
  const auto mapped =
      reinterpret_cast<weir::device_address>((*imported)->base()) + under.offset.count();
  ASSERT_EQ(calls.memcpy_dtoh(&read, mapped, sizeof read), weir::driver::CUDA_SUCCESS);
  EXPECT_EQ(read, written);
  imported->reset();
  server().withdraw(5);
  memory.deallocate(block, stream);
}

/// A machine on which queued work is done when somebody waits for it, and a block on it that
/// plays another process's.
class unmap_queue_test : public testing::Test {
 protected:
  static std::shared_ptr<weir::sim::machine> make_machine() {
    weir::sim::machine_options settings;
    settings.devices.assign(1,
                            weir::sim::device_spec{.capacity = 1_GiB, .context_overhead = 64_MiB});
    settings.mode = weir::sim::progress::manual;
    return weir::sim::machine::create(settings).value();
  }
  void TearDown() override {
    for (const auto& hazard : machine->hazards()) ADD_FAILURE() << hazard.message();
  }
  [[nodiscard]] std::unique_ptr<imported_block> import_block() const {
    const auto memory = weir::physical_handle::create(gpu, 2_MiB, {.posix_descriptor = true});
    std::vector<weir::descriptor> exported;
    exported.push_back(memory.value().export_descriptor().value());
    ipc_handle handle;
    handle.sizes = {(2_MiB).count()};
    return imported_block::open(gpu, handle, exported).value();
  }
  void read_later(const imported_block& block) {
    const weir::context_scope bound{gpu};
    ASSERT_TRUE(machine->launch(
        stream.handle(), "kernel read",
        {weir::sim::reads(reinterpret_cast<weir::device_address>(block.base()), 4096)}));
  }
  [[nodiscard]] std::uint64_t unmapped() const {
    return machine->calls(weir::driver::call::mem_unmap);
  }

  std::shared_ptr<weir::sim::machine> machine = make_machine();
  std::shared_ptr<weir::runtime> runtime = weir::runtime::open_simulated(machine).value();
  weir::device gpu = runtime->device(weir::device_id{0}).value();
  weir::stream stream = weir::stream::create(gpu).value();
  unmap_queue unmaps{gpu};
};

TEST_F(unmap_queue_test, unmaps_blocks_when_no_work_uses_them) {
  auto block = import_block();
  read_later(*block);
  unmaps.add(std::move(block));
  EXPECT_EQ(unmapped(), 0U);
  unmaps.drain(false);
  EXPECT_EQ(unmapped(), 1U);
  unmaps.drain(false);
  EXPECT_EQ(unmapped(), 1U);
}

TEST_F(unmap_queue_test, keeps_blocks_during_a_capture) {
  auto first = import_block();
  read_later(*first);
  unmaps.add(std::move(first));
  unmaps.drain(true);  // torch says so
  EXPECT_EQ(unmapped(), 0U);
  const weir::stream captured = weir::stream::create(gpu).value();
  const weir::context_scope bound{gpu};
  const auto& cu = bound.driver();
  ASSERT_EQ(
      cu.stream_begin_capture(captured.handle(), weir::driver::CU_STREAM_CAPTURE_MODE_RELAXED),
      weir::driver::CUDA_SUCCESS);
  unmaps.drain(false);  // nobody said so: the driver does
  EXPECT_EQ(unmapped(), 0U);
  weir::driver::CUgraph graph = nullptr;
  static_cast<void>(cu.stream_end_capture(captured.handle(), &graph));  // spoilt by the wait
  unmaps.add(import_block());
  unmaps.drain(false);
  EXPECT_EQ(unmapped(), 2U);
}

}  // namespace
}  // namespace weir_torch
