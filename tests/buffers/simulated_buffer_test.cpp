// SPDX-License-Identifier: Apache-2.0
// Device and host buffers, call by call: what they ask of the driver, and what a failure leaves.
#include <sys/mman.h>

#include <array>

#include "buffers/simulated_test.hpp"
#include "weir/buffer/copy.hpp"
#include "weir/buffer/device_vector.hpp"
#include "weir/buffer/host_memory.hpp"
#include "weir/buffer/pinned_buffer.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::SizeIs;

class simulated_buffers : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(2, device_with_room());
    open(settings);
  }
  [[nodiscard]] caching_allocator make_memory(int index = 0) const {
    return caching_allocator::create(gpu(index)).value();
  }
};

// --- Device buffers ------------------------------------------------------------------------------

/// A resource that notes how often it is asked to take memory back.
class counting_resource {
 public:
  explicit counting_resource(caching_allocator memory) : memory_{std::move(memory)} {}
  result<void*> try_allocate(bytes size, const stream_ref& stream, bytes alignment) {
    return memory_.try_allocate(size, stream, alignment);
  }
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) {
    ++*frees_;
    return memory_.try_deallocate(pointer, size, stream);
  }
  [[nodiscard]] weir::device device() const { return memory_.device(); }
  bool operator==(const counting_resource& other) const { return frees_ == other.frees_; }
  [[nodiscard]] int frees() const { return *frees_; }

 private:
  caching_allocator memory_;
  std::shared_ptr<int> frees_ = std::make_shared<int>(0);
};

TEST_F(simulated_buffers, without_memory_give_none_back) {
  const auto on = make_stream();
  const counting_resource memory{make_memory()};
  const auto make = [&](bytes size) { return device_buffer::create(memory, size, on).value(); };
  {
    auto closed = make(0_B);
    WEIR_DONE(closed.close());
    EXPECT_FALSE(closed);
    auto replaced = make(0_B);
    replaced = make(0_B);
    EXPECT_TRUE(replaced);
  }
  EXPECT_EQ(memory.frees(), 0);
  auto some = make(64_B);
  WEIR_DONE(some.close());
  EXPECT_EQ(memory.frees(), 1);
  some = make(64_B);
  some = make(64_B);
  EXPECT_EQ(memory.frees(), 2);
  some = {};
  EXPECT_EQ(memory.frees(), 3);
}

TEST_F(simulated_buffers, growing_copies_what_is_kept_and_nothing_else) {
  const auto on = make_stream();
  auto one = device_buffer::create(make_memory(), 1024_B, on).value();
  const auto copies = [&] { return machine->calls(call::memcpy_async); };
  WEIR_DONE(one.resize_discarding(64_KiB));
  EXPECT_EQ(one.size(), 64_KiB);
  EXPECT_EQ(copies(), 0U) << "nothing is kept";
  void* const address = one.data();
  WEIR_DONE(one.resize_discarding(100_B));
  WEIR_DONE(one.resize(64_KiB));
  WEIR_DONE(one.reserve(64_KiB));
  WEIR_DONE(one.resize_discarding(64_KiB));
  WEIR_DONE(one.shrink_to_fit());
  EXPECT_EQ(one.data(), address) << "it is just as large";
  EXPECT_EQ(copies(), 0U);
  WEIR_DONE(one.reserve(64_KiB + 1_B));
  EXPECT_EQ(copies(), 1U);
  EXPECT_EQ(one.size(), 64_KiB);
  EXPECT_EQ(one.capacity(), 64_KiB + 1_B);
  WEIR_DONE(one.resize(128_KiB));
  EXPECT_EQ(copies(), 2U);
  EXPECT_EQ(machine->calls(call::memset_d8_async) + machine->calls(call::memset_d32_async), 0U)
      << "what is new is undefined";
  WEIR_DONE(one.resize(0_B));
  WEIR_DONE(one.resize(256_KiB));
  EXPECT_EQ(copies(), 2U) << "it held nothing, however large it was";
}

TEST_F(simulated_buffers, a_growth_that_fails_loses_nothing) {
  const auto on = make_stream();
  const auto memory = make_memory();
  auto one = device_buffer::create(memory, 1024_B, on).value();
  void* const address = one.data();
  machine->fail(call::memcpy_async, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(one.resize(1_MiB)), errc::driver_error);
  EXPECT_EQ(one.data(), address);
  EXPECT_EQ(one.size(), 1024_B);
  EXPECT_EQ(one.capacity(), 1024_B);
  EXPECT_EQ(memory.stats().requested.current, 1024_B) << "what was allocated for it went back";
  machine->fail(call::memset_d8_async, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(device_buffer::create(memory, 1_MiB, on, contents::zeroed)),
            errc::driver_error);
  EXPECT_EQ(memory.stats().requested.current, 1024_B);
}

TEST_F(simulated_buffers, one_stream_waits_for_the_other_with_one_event) {
  const auto own = make_stream();
  const auto guest = make_stream();
  auto one = device_buffer::create(make_memory(), 1024_B, own).value();
  const auto before = machine->calls();
  WEIR_DONE(one.hand_over(own));
  WEIR_DONE(one.join(own));
  EXPECT_EQ(machine->calls(), before) << "a stream need not wait for itself";
  const auto far = make_stream(1);
  WEIR_DONE(one.join(far));
  launch({static_cast<word*>(one.data()), 256}, own);
  machine->fail(call::event_record, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(one.hand_over(guest)), errc::driver_error);
  EXPECT_TRUE(one.stream() == own) << "it stays where it was";
  machine->fail(call::stream_wait_event, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(one.hand_over(guest)), errc::driver_error);
  EXPECT_TRUE(one.stream() == own);
  machine->fail(call::stream_wait_event, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(one.join(guest)), errc::driver_error);
  WEIR_DONE(one.hand_over(guest));
  EXPECT_TRUE(one.stream() == guest);
}

TEST_F(simulated_buffers, a_copy_between_them_takes_the_calls_that_it_must) {
  const auto near = make_stream();
  const auto other = make_stream();
  const auto far = make_stream(1);
  const any_resource memory = make_memory();
  const any_resource pinned = pinned_pool::create(gpu(1)).value();
  auto first = device_buffer::create(memory, 1024_B, near).value();
  auto second = device_buffer::create(memory, 1024_B, near).value();
  auto third = device_buffer::create(memory, 1024_B, other).value();
  auto there = device_buffer::create(make_memory(1), 1024_B, far).value();
  auto host = device_buffer::create(pinned, 1024_B, far).value();
  struct counts {
    std::uint64_t copies, peers, events;
    bool operator==(const counts&) const = default;
  };
  const auto copied = [&](device_buffer& to, const device_buffer& from) {
    const counts before{machine->calls(call::memcpy_async), machine->calls(call::memcpy_peer_async),
                        machine->calls(call::event_record)};
    EXPECT_TRUE(copy_between(to, 0_B, from, 0_B, 1024_B));
    return counts{machine->calls(call::memcpy_async) - before.copies,
                  machine->calls(call::memcpy_peer_async) - before.peers,
                  machine->calls(call::event_record) - before.events};
  };
  EXPECT_TRUE(copied(first, second) == (counts{1, 0, 0})) << "one stream has its own order";
  EXPECT_TRUE(copied(first, third) == (counts{1, 0, 2})) << "there and back";
  EXPECT_TRUE(copied(first, there) == (counts{0, 1, 2}));
  EXPECT_TRUE(copied(there, first) == (counts{0, 1, 2}));
  EXPECT_TRUE(copied(first, host) == (counts{1, 0, 2})) << "the host is nobody's peer";
  EXPECT_TRUE(copied(host, first) == (counts{1, 0, 2}));
  const auto before = machine->calls();
  WEIR_DONE(copy_between(first, 0_B, third, 0_B, 0_B));
  EXPECT_EQ(machine->calls(), before) << "for nothing nobody waits";
}

TEST_F(simulated_buffers, a_copy_that_cannot_be_marked_is_waited_for) {
  const auto first = make_stream();
  const auto second = make_stream();
  const any_resource memory = make_memory();
  auto to = device_buffer::create(memory, 1024_B, second, contents::zeroed).value();
  auto from = device_buffer::create(memory, 1024_B, first, contents::zeroed).value();
  const device_span<word> target{static_cast<word*>(to.data()), 256};
  const device_span<word> source{static_cast<word*>(from.data()), 256};
  word expected = 0;
  for (const call failing : {call::event_record, call::stream_wait_event}) {
    launch(source, first);
    machine->fail(failing, 2, CUDA_ERROR_UNKNOWN);  // the first is for the wait before the copy
    WEIR_DONE(copy_between(to, 0_B, from, 0_B, 1024_B));
    EXPECT_TRUE(second.is_complete().value());
    EXPECT_EQ(target.data()[255], ++expected) << "it is over";
  }
  launch(source, first);
  WEIR_DONE(copy_between(to, 0_B, from, 0_B, 1024_B));
  EXPECT_FALSE(second.is_complete().value()) << "else nobody waits";
  WEIR_DONE(second.synchronize());
  EXPECT_EQ(target.data()[255], ++expected);
}

TEST_F(simulated_buffers, a_copy_that_cannot_begin_queues_nothing) {
  const auto first = make_stream();
  const auto second = make_stream();
  const any_resource memory = make_memory();
  auto to = device_buffer::create(memory, 1024_B, second).value();
  auto from = device_buffer::create(memory, 1024_B, first).value();
  for (const call failing : {call::event_create, call::event_record, call::stream_wait_event}) {
    machine->fail(failing, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(code_of(copy_between(to, 0_B, from, 0_B, 1024_B)), errc::driver_error);
  }
  EXPECT_EQ(machine->calls(call::memcpy_async), 0U);
  machine->fail(call::memcpy_async, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(copy_between(to, 0_B, from, 0_B, 1024_B)), errc::driver_error);
}

// --- Pinned --------------------------------------------------------------------------------------

TEST_F(simulated_buffers, pinned_memory_belongs_to_one_stream_at_a_time) {
  const auto own = make_stream();
  const auto guest = make_stream();
  const auto pool = pinned_pool::create(gpu()).value();
  auto some = pinned_buffer<word>::zeroed(pool, 256, own).value();
  const device_span<word> words{some.data(), some.size()};
  launch(words, own);
  WEIR_DONE(some.hand_over(guest));
  EXPECT_TRUE(some.stream() == guest);
  launch(words, guest);  // behind the first, or they race
  WEIR_DONE(some.record_stream(own));
  WEIR_DONE(some.close());
  EXPECT_FALSE(some);
  EXPECT_EQ(pool.stats().blocks.current, 0U);
  auto next = pinned_buffer<word>::create(pool, 256, guest).value();
  EXPECT_NE(next.data(), words.data()) << "its work is not done";
  machine->run_until_idle();
  EXPECT_EQ(words.data()[255], 2U);
}

// --- Mapped --------------------------------------------------------------------------------------

struct alignas(8192) wide_mapped {
  word value[2048];
};
struct alignas(4096) page {
  word value[1024];
};

/// What the driver was asked for, and by which flags.
struct host_allocation {
  std::size_t size = 0;
  unsigned flags = 0;
  friend bool operator==(const host_allocation&, const host_allocation&) = default;
};
host_allocation last_allocation;
CUresult (*allocate_for_real)(void**, std::size_t, unsigned) = nullptr;

TEST_F(simulated_buffers, mapped_memory_is_asked_for_as_it_must_be) {
  driver::table calls = machine->driver();
  allocate_for_real = calls.mem_host_alloc;
  calls.mem_host_alloc = [](void** pointer, std::size_t size, unsigned flags) {
    last_allocation = {size, flags};
    return allocate_for_real(pointer, size, flags);
  };
  const auto opened = runtime::open_table(calls, "remembers", machine).value();
  const auto home = opened->device(device_id{0}).value();
  constexpr unsigned usual = host_alloc_portable | host_alloc_device_map;
  WEIR_DONE(mapped_buffer<word>::create(home, 100));
  EXPECT_EQ(last_allocation, (host_allocation{400, usual}));
  WEIR_DONE(mapped_buffer<word>::create(home, 100, {.write_combined = true}));
  EXPECT_EQ(last_allocation, (host_allocation{400, usual | host_alloc_write_combined}));
  WEIR_DONE(mapped_buffer<page>::create(home, 1));
  EXPECT_EQ(last_allocation, (host_allocation{4096, usual})) << "the driver aligns to pages";
  WEIR_DONE(mapped_buffer<wide_mapped>::create(home, 1));
  EXPECT_EQ(last_allocation, (host_allocation{2 * 8192, usual})) << "room to align";
}

/// How far behind a page the driver's memory begins.
std::size_t host_shift = 0;
CUresult (*free_for_real)(void*) = nullptr;

TEST_F(simulated_buffers, mapped_memory_is_aligned_where_the_drivers_is_not) {
  driver::table calls = machine->driver();
  allocate_for_real = calls.mem_host_alloc;
  free_for_real = calls.mem_free_host;
  calls.mem_host_alloc = [](void** pointer, std::size_t size, unsigned flags) {
    // Large enough to begin with a page.
    const CUresult answer = allocate_for_real(pointer, size + (std::size_t{4} << 20), flags);
    *pointer = static_cast<std::byte*>(*pointer) + host_shift;
    return answer;
  };
  calls.mem_free_host = [](void* pointer) {
    return free_for_real(static_cast<std::byte*>(pointer) - host_shift);
  };
  const auto opened = runtime::open_table(calls, "aligns to pages", machine).value();
  const auto home = opened->device(device_id{0}).value();
  host_shift = 4096;
  {
    auto some = mapped_buffer<wide_mapped>::create(home, 2).value();
    EXPECT_EQ(address_of(some.data()) % 8192, 0U);
    EXPECT_EQ(address_of(some.on_device().data()), address_of(some.data()));
    EXPECT_EQ(some.size(), 2U);
  }
  EXPECT_EQ(machine->calls(call::mem_free_host), 1U);
  host_shift = 256;
  EXPECT_EQ(code_of(mapped_buffer<page>::create(home, 2)), errc::bad_alignment);
  EXPECT_EQ(machine->calls(call::mem_free_host), 2U) << "it went back";
  WEIR_DONE(mapped_buffer<word>::create(home, 2));
}

TEST_F(simulated_buffers, mapped_memory_begins_as_zeros_whatever_it_held) {
  const void* address = nullptr;
  for (int round = 0; round < 2; ++round) {
    auto some = mapped_buffer<word>::create(gpu(), 100).value();
    EXPECT_THAT(some.span(), AllAre(0U));
    std::fill_n(some.data(), 100, word{0xdead});
    if (round == 0) address = some.data();
    EXPECT_EQ(some.data(), address) << "the same memory";
  }
}

TEST_F(simulated_buffers, mapped_memory_is_freed_once) {
  const auto frees = [&] { return machine->calls(call::mem_free_host); };
  auto one = mapped_buffer<word>::create(gpu(), 100).value();
  auto two = mapped_buffer<word>::create(gpu(), 200).value();
  word* const address = two.data();
  one = std::move(two);
  EXPECT_EQ(frees(), 1U) << "the old one";
  EXPECT_EQ(one.data(), address);
  EXPECT_EQ(one.size(), 200U);
  EXPECT_EQ(address_of(one.on_device().data()), address_of(address));
  EXPECT_FALSE(two);  // NOLINT: what moving leaves is promised
  EXPECT_TRUE(two.empty());
  EXPECT_EQ(two.on_device().data(), nullptr);
  auto& same = one;
  one = std::move(same);
  EXPECT_EQ(one.data(), address);
  WEIR_DONE(one.close());
  EXPECT_EQ(frees(), 2U);
  EXPECT_EQ(one.data(), nullptr);
  EXPECT_EQ(one.on_device().data(), nullptr);
  WEIR_DONE(one.close());
  EXPECT_EQ(frees(), 2U);
}

TEST_F(simulated_buffers, mapped_memory_that_fails_is_told) {
  machine->fail(call::mem_host_alloc, 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto refused = mapped_buffer<word>::create(gpu(), 100);
  ASSERT_EQ(code_of(refused), errc::out_of_memory);
  EXPECT_EQ(refused.error().requested(), 400_B);
  machine->fail(call::mem_host_get_device_pointer, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(mapped_buffer<word>::create(gpu(), 100)), errc::driver_error);
  EXPECT_EQ(machine->calls(call::mem_free_host), 1U) << "it went back";
  auto some = mapped_buffer<word>::create(gpu(), 100).value();
  machine->fail(call::mem_free_host, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(some.close()), errc::driver_error);
  EXPECT_FALSE(some);
  for (const bool by_assignment : {true, false}) {
    some = mapped_buffer<word>::create(gpu(), 100).value();
    machine->fail(call::mem_free_host, 1, CUDA_ERROR_UNKNOWN);
    if (by_assignment)
      some = {};
    else
      const auto passing = std::move(some);
    const auto reports = heard.take();
    ASSERT_THAT(reports, SizeIs(1));
    EXPECT_EQ(reports[0].call(), "cuMemFreeHost");
  }
}

TEST_F(simulated_buffers, host_memory_keeps_its_runtime_and_breaks_no_capture) {
  std::vector<word> values(1024);
  auto on = std::make_optional(make_stream());
  const auto& cu = machine->driver();
  {
    const context_scope bound{gpu()};
    ASSERT_EQ(CUDA_SUCCESS, cu.stream_begin_capture(on->handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
    WEIR_DONE(mapped_buffer<word>::create(gpu(), 100));
    WEIR_DONE(registered_memory::create(gpu(), std::as_writable_bytes(std::span{values})));
    CUgraph graph = nullptr;
    ASSERT_EQ(CUDA_SUCCESS, cu.stream_end_capture(on->handle(), &graph));
    EXPECT_EQ(CUDA_SUCCESS, cu.graph_destroy(graph));
  }
  auto mapped = mapped_buffer<word>::create(gpu(), 100).value();
  auto pinned = registered_memory::create(gpu(), std::as_writable_bytes(std::span{values})).value();
  on.reset();
  runtime_.reset();
  WEIR_DONE(mapped.close());
  WEIR_DONE(pinned.close());
}

// --- Registered ----------------------------------------------------------------------------------

TEST_F(simulated_buffers, registered_memory_is_registered_as_it_is_asked_for) {
  const auto flags_of = [&](const void* pointer) {
    unsigned flags = 0;
    EXPECT_EQ(CUDA_SUCCESS,
              machine->driver().mem_host_get_flags(&flags, const_cast<void*>(pointer)));
    return flags;
  };
  constexpr unsigned usual = host_register_portable | host_register_device_map;
  std::vector<word> values(1024);
  const auto raw = std::as_writable_bytes(std::span{values});
  EXPECT_EQ(flags_of(registered_memory::create(gpu(), raw).value().data()), usual);
  EXPECT_EQ(flags_of(registered_memory::create(gpu(), raw, {.read_only = true}).value().data()),
            usual | host_register_read_only);
  EXPECT_EQ(flags_of(registered_memory::create(gpu(), raw, {.io_memory = true}).value().data()),
            usual | host_register_io_memory);
  EXPECT_EQ(
      flags_of(registered_memory::create(gpu(), std::as_bytes(std::span{values})).value().data()),
      usual | host_register_read_only);
}

TEST_F(simulated_buffers, memory_that_may_only_be_read_is_registered_so) {
  constexpr std::size_t size = 8192;
  void* const constant = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(constant, MAP_FAILED);
  const std::span<std::byte> writable{static_cast<std::byte*>(constant), size};
  EXPECT_EQ(code_of(registered_memory::create(gpu(), writable)), errc::invalid_argument);
  WEIR_DONE(registered_memory::create(gpu(), writable, {.read_only = true}));
  const auto pinned = registered_memory::create(gpu(), std::span<const std::byte>{writable});
  WEIR_DONE(pinned);
  EXPECT_EQ(pinned->data(), constant);
  EXPECT_EQ(pinned->size(), bytes{size});
  EXPECT_EQ(pinned->on_device(), address_of(constant));
  EXPECT_EQ(code_of(registered_memory::create(gpu(), std::span<const std::byte>{})),
            errc::invalid_argument);
  ::munmap(constant, size);
}

TEST_F(simulated_buffers, registered_memory_begins_as_none) {
  registered_memory none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(none.size(), 0_B);
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.span().empty());
  EXPECT_EQ(none.on_device(), 0U);
  WEIR_DONE(none.close());
  EXPECT_EQ(machine->calls(call::mem_host_unregister), 0U);
}

TEST_F(simulated_buffers, registered_memory_is_unregistered_once) {
  std::vector<word> first(1024), second(2048);
  const auto raw = [](std::vector<word>& values) {
    return std::as_writable_bytes(std::span{values});
  };
  auto one = registered_memory::create(gpu(), raw(first)).value();
  auto two = registered_memory::create(gpu(), raw(second)).value();
  one = std::move(two);
  EXPECT_EQ(machine->calls(call::mem_host_unregister), 1U);
  EXPECT_EQ(one.data(), second.data());
  EXPECT_EQ(one.size(), 8192_B);
  EXPECT_EQ(one.on_device(), address_of(second.data()));
  EXPECT_FALSE(two);  // NOLINT: what moving leaves is promised
  EXPECT_EQ(two.data(), nullptr);
  EXPECT_EQ(two.on_device(), 0U);
  EXPECT_TRUE(two.empty());
  auto& same = one;
  one = std::move(same);
  EXPECT_EQ(one.data(), second.data());
  auto moved = std::move(one);
  EXPECT_FALSE(one);  // NOLINT
  EXPECT_TRUE(one.empty());
  EXPECT_EQ(moved.size(), 8192_B);
  EXPECT_EQ(moved.on_device(), address_of(second.data()));
  WEIR_DONE(moved.close());
  WEIR_DONE(moved.close());
  EXPECT_EQ(moved.on_device(), 0U);
  EXPECT_EQ(moved.data(), nullptr);
  EXPECT_EQ(machine->calls(call::mem_host_unregister), 2U);
}

TEST_F(simulated_buffers, a_registration_that_fails_is_told) {
  std::vector<word> values(1024);
  const auto raw = std::as_writable_bytes(std::span{values});
  auto pinned = registered_memory::create(gpu(), raw).value();
  const auto twice = registered_memory::create(gpu(), raw);
  EXPECT_EQ(twice.error(), (error{{.code = errc::already_mapped,
                                   .native = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                                   .call = "cuMemHostRegister",
                                   .requested = 4096_B}}));
  machine->fail(call::mem_host_unregister, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(pinned.close()), errc::driver_error);
  EXPECT_FALSE(pinned);
  EXPECT_EQ(CUDA_SUCCESS, machine->driver().mem_host_unregister(values.data()));
  machine->fail(call::mem_host_register, 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto refused = registered_memory::create(gpu(), raw);
  EXPECT_EQ(refused.error(), (error{{.code = errc::out_of_memory,
                                     .native = CUDA_ERROR_OUT_OF_MEMORY,
                                     .call = "cuMemHostRegister",
                                     .requested = 4096_B}}));
  {
    const auto passing = registered_memory::create(gpu(), raw).value();
    machine->fail(call::mem_host_unregister, 1, CUDA_ERROR_UNKNOWN);
  }
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].call(), "cuMemHostUnregister");
  EXPECT_EQ(CUDA_SUCCESS, machine->driver().mem_host_unregister(values.data()));
}

CUresult (*attribute_for_real)(int*, CUdevice_attribute, CUdevice) = nullptr;

TEST_F(simulated_buffers, a_device_that_cannot_register_says_so) {
  driver::table calls = machine->driver();
  attribute_for_real = calls.device_get_attribute;
  calls.device_get_attribute = [](int* value, CUdevice_attribute attribute, CUdevice device) {
    const CUresult answer = attribute_for_real(value, attribute, device);
    if (attribute == CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) *value = 0;
    return answer;
  };
  const auto opened = runtime::open_table(calls, "cannot register", machine).value();
  std::vector<word> values(1024);
  EXPECT_EQ(code_of(registered_memory::create(opened->device(device_id{0}).value(),
                                              std::as_writable_bytes(std::span{values}))),
            errc::not_supported);
  EXPECT_EQ(machine->calls(call::mem_host_register), 0U);
}

}  // namespace
}  // namespace weir::testing_support
