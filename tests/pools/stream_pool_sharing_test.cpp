// SPDX-License-Identifier: Apache-2.0
// Stream pools between processes: the pool as a descriptor, its pointers as opaque bytes.
#include <fcntl.h>
#include <unistd.h>

#include "pools/stream_pool_fixture.hpp"
#include "support/child_process.hpp"

namespace weir::testing_support::stream_pools { namespace {

constexpr bytes shared_size = 1_MiB;

class stream_pool_sharing_test : public stream_pool_contract {
 protected:
  void SetUp() override {
    stream_pool_contract::SetUp();
    if (machine == nullptr || IsSkipped()) return;
    const auto types = gpu().capabilities().pool_handle_types;
    if ((types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) {
      GTEST_SKIP() << "pools cannot be sent as descriptors";
    }
  }
  [[nodiscard]] stream_pool make_shared_pool() const {
    return make({.handles = stream_pool_handles::posix_descriptor});
  }
};
WEIR_CONTRACT(stream_pool_sharing_test);

struct letter {
  stream_pool_pointer pointer;
  word expected;
  word answer;
};

/// Imports the parent's pool and one pointer of it, checks the bytes, writes its own, and learns
/// what an imported pool does not do.
WEIR_CHILD(import_stream_pool) {
  const auto opened = runtime::open_table(machine.driver(), "child", nullptr).value();
  const auto home = opened->device(device_id{0}).value();
  const auto stream = weir::stream::create(home).value();
  const descriptor received{parent.receive_descriptor()};
  letter message{};
  WEIR_CHILD_EXPECT(true, parent.receive(message));
  auto pool = stream_pool::import_descriptor(home, received.get()).value();
  WEIR_CHILD_EXPECT(true, pool.is_imported());
  const auto not_supported = [](const auto& outcome) {
    return !outcome && outcome.code() == errc::not_supported;
  };
  WEIR_CHILD_EXPECT(true, not_supported(pool.try_allocate(shared_size, stream)));
  WEIR_CHILD_EXPECT(true, not_supported(pool.allocate_owned(shared_size, stream)));
  WEIR_CHILD_EXPECT(true, not_supported(pool.stats()));
  WEIR_CHILD_EXPECT(true, not_supported(pool.set_threshold(shared_size)));
  WEIR_CHILD_EXPECT(true, not_supported(pool.trim()));
  WEIR_CHILD_EXPECT(true, not_supported(pool.export_descriptor()));
  WEIR_CHILD_EXPECT(true, not_supported(pool.export_pointer(&message)));  // whosever it is

  auto bad = message.pointer;
  bad.data.fill(std::byte{0x5a});
  const auto foreign = pool.import_pointer(bad, stream);
  WEIR_CHILD_EXPECT(true, !foreign && foreign.code() == errc::foreign_pointer);
  const auto another = runtime::open_table(machine.driver(), "another", nullptr).value();
  const auto elsewhere = weir::stream::create(another->device(device_id{0}).value()).value();
  const auto not_ours = pool.import_pointer(message.pointer, elsewhere);
  WEIR_CHILD_EXPECT(true, !not_ours && not_ours.code() == errc::bad_stream);
  auto memory = pool.import_pointer(message.pointer, stream).value();
  std::size_t whole = 0;
  if (machine.driver().mem_get_address_range(nullptr, &whole, address_of(memory.data())) !=
      CUDA_SUCCESS)
    whole = 0;
  WEIR_CHILD_EXPECT(whole, memory.size().count());  // if the driver tells
  WEIR_CHILD_EXPECT(true, whole == 0 || whole >= shared_size.count());
  WEIR_CHILD_EXPECT(true, not_supported(pool.export_pointer(memory.data())));
  const auto again = pool.import_pointer(message.pointer, stream);
  WEIR_CHILD_EXPECT(true, !again && again.code() == errc::already_mapped);
  const auto refused = pool.close();
  WEIR_CHILD_EXPECT(true, !refused && refused.code() == errc::invalid_argument);

  const table& cu = machine.driver();
  word seen[64] = {};
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memcpy_dtoh(seen, address_of(memory.data()), sizeof(seen)));
  WEIR_CHILD_EXPECT(message.expected, seen[0]);
  WEIR_CHILD_EXPECT(message.expected, seen[63]);
  WEIR_CHILD_EXPECT(CUDA_SUCCESS, cu.memset_d32_async(address_of(memory.data()), message.answer, 64,
                                                      stream.handle()));
  WEIR_CHILD_EXPECT(true, memory.free().has_value());  // before the exporter does
  WEIR_CHILD_EXPECT(true, stream.synchronize().has_value());
  WEIR_CHILD_EXPECT(true, pool.close().has_value());
  WEIR_CHILD_EXPECT(0u, reported_errors());
  WEIR_CHILD_EXPECT(true, parent.meet());
  return 0;
}

TEST_P(stream_pool_sharing_test, two_processes_share_an_allocation) {
  auto pool = make_shared_pool();
  const auto stream = make_stream();
  auto memory = pool.allocate_owned(shared_size, stream).value();
  write(stream, memory.data(), shared_size, 61);
  ASSERT_TRUE(stream.synchronize());
  const letter message{pool.export_pointer(memory.data()).value(), 61, 62};
  const auto sent = pool.export_descriptor().value();
  child_process child{"import_stream_pool", GetParam()};
  EXPECT_TRUE(child.link().send_descriptor(sent.get()));
  EXPECT_TRUE(child.link().send(message));
  EXPECT_TRUE(child.link().meet());
  EXPECT_EQ(0, child.wait());
  EXPECT_EQ(wrong(memory.data(), 256_B, 62), 0u);
  const auto rest = static_cast<char*>(memory.data()) + 256;
  EXPECT_EQ(wrong(rest, shared_size - 256_B, 61), 0u);
}

TEST_P(stream_pool_sharing_test, only_what_was_made_for_it_can_be_sent) {
  auto pool = make();
  const auto stream = make_stream();
  auto memory = pool.allocate_owned(shared_size, stream).value();
  EXPECT_EQ(code_of(pool.export_descriptor()), errc::not_supported);
  EXPECT_EQ(code_of(pool.export_pointer(memory.data())), errc::not_supported);
  auto shared = make_shared_pool();
  EXPECT_EQ(code_of(shared.export_pointer(memory.data())), errc::foreign_pointer);
  EXPECT_EQ(code_of(shared.export_pointer(nullptr)), errc::foreign_pointer);
  auto aligned = shared.allocate_owned(shared_size, stream, 2_MiB).value();
  auto shifted = shared.allocate_owned(shared_size, stream, 2_MiB).value();
  const auto sent_aligned = shared.export_pointer(aligned.data());
  const auto sent_shifted = shared.export_pointer(shifted.data());
  EXPECT_TRUE(!sent_aligned || !sent_shifted) << "one of the two lies behind what the driver gave";
  EXPECT_EQ(code_of(shared.import_pointer({}, stream)), errc::not_supported);
  ASSERT_TRUE(shared.close());
  EXPECT_EQ(code_of(shared.export_descriptor()), errc::closed);
}

TEST_P(stream_pool_sharing_test, a_pool_that_can_be_sent_serves_no_graph) {
  auto shared = make_shared_pool();
  const auto stream = make_stream();
  begin_capture(stream);
  EXPECT_EQ(code_of(shared.try_allocate(shared_size, stream)), errc::not_supported);
  static_cast<void>(end_capture(stream.handle()));
}

TEST_P(stream_pool_sharing_test, descriptors_of_other_things_are_refused) {
  EXPECT_EQ(code_of(stream_pool::import_descriptor(gpu(), -1)), errc::invalid_argument);
  const descriptor other{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  ASSERT_TRUE(other);
  const auto refused = stream_pool::import_descriptor(gpu(), other.get());
  ASSERT_EQ(code_of(refused), errc::invalid_handle);
  EXPECT_EQ(refused.error().call(), "cuMemPoolImportFromShareableHandle");
}

}  // namespace
}  // namespace weir::testing_support::stream_pools
