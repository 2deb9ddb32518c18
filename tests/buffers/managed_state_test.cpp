// SPDX-License-Identifier: Apache-2.0
// Managed memory and its users, step by step: what a view waits for, what a refusal leaves behind,
// and what is told at the end.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "buffers/simulated_test.hpp"
#include "weir/buffer/host_memory.hpp"
#include "weir/buffer/unified_buffer.hpp"

namespace weir::testing_support { namespace {

using driver::call;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr std::size_t managed_words = 1024;

/// Two devices with concurrent managed access.
class managed_users : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(2, device_with_room());
    open(settings);
  }
  /// A buffer of zeros that nothing uses any more.
  [[nodiscard]] unified_buffer<word> make(const stream_ref& on,
                                          attachment mode = attachment::global) {
    auto some = unified_buffer<word>::zeroed(managed_words, on, mode).value();
    EXPECT_TRUE(some.view());
    return some;
  }
};

// --- Streams that use it -------------------------------------------------------------------------

TEST_F(managed_users, every_use_counts_until_its_stream_is_done) {
  const auto on = make_stream();
  auto some = make(on);
  EXPECT_TRUE(some.try_view());
  WEIR_DONE(some.prefetch(gpu(), on));
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready) << "a prefetch is a use";
  EXPECT_TRUE(some.view());
  EXPECT_TRUE(on.is_complete().value());
  WEIR_DONE(some.attach(attachment::host, on));
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready) << "an attachment is one";
  EXPECT_TRUE(some.view());
  EXPECT_TRUE(on.is_complete().value());
  launch(some.use_on(on).value(), on);
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready);
  machine->run_until_idle();
  EXPECT_TRUE(some.try_view());
}

TEST_F(managed_users, a_view_waits_for_every_stream_and_for_closed_ones) {
  auto first = make_stream();
  const auto second = make_stream();
  const auto far = make_stream(1);
  auto some = make(first);
  for (const stream_ref& each : {first.ref(), second.ref(), far.ref()})
    launch({some.use_on(each).value().data() + (each == far      ? 512
                                                : each == second ? 256
                                                                 : 0),
            256},
           each);
  WEIR_DONE(first.close());
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready);
  WEIR_DONE(second.synchronize());
  WEIR_DONE(far.synchronize());
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready) << "the closed one is not done";
  const auto view = some.view().value();
  EXPECT_THAT(view.span().first(768), AllAre(1U));
  EXPECT_THAT(view.span().subspan(768), AllAre(0U));
}

TEST_F(managed_users, a_stream_that_closes_leaves_the_other_users_as_they_are) {
  const auto first = make_stream();
  auto second = make_stream();
  auto third = make_stream();  // uses nothing
  auto some = make(first);
  launch({some.use_on(first).value().data(), 512}, first);
  launch({some.use_on(second).value().data() + 512, 512}, second);
  const auto marks = machine->calls(call::event_record);
  WEIR_DONE(third.close());
  EXPECT_EQ(machine->calls(call::event_record), marks);
  WEIR_DONE(second.close());
  EXPECT_EQ(machine->calls(call::event_record), marks + 1);
  EXPECT_EQ(code_of(some.try_view()), errc::not_ready);
  EXPECT_THAT(some.view().value().span(), AllAre(1U));
  EXPECT_TRUE(first.is_complete().value());
}

TEST_F(managed_users, a_view_behind_an_event_forgets_who_was_recorded) {
  auto passing = make_stream();
  const auto on = make_stream();
  auto some = make(on);
  auto apart = make(on);
  launch(some.use_on(passing).value(), passing);
  auto first = event::create(gpu()).value();
  WEIR_DONE(first.record(passing));
  WEIR_DONE(on.wait(first));
  launch(apart.use_on(passing).value(), passing);  // nothing to do with `some` either
  WEIR_DONE(passing.close());
  launch(some.use_on(on).value(), on);
  auto behind = event::create(gpu()).value();
  WEIR_DONE(behind.record(on));
  auto elsewhere = make(make_stream());
  launch(elsewhere.use_on(on).value(), on);  // nothing to do with `some`
  EXPECT_THAT(some.view(behind).value().span(), AllAre(2U));
  EXPECT_FALSE(on.is_complete().value()) << "only as far as the event";
  EXPECT_EQ(code_of(apart.try_view()), errc::not_ready) << "the closed stream has work left";
  EXPECT_TRUE(some.try_view()) << "nobody is asked again";
}

TEST_F(managed_users, a_stream_that_cannot_be_marked_at_its_end_is_waited_for_by_the_next_view) {
  for (const call failing : {call::event_create, call::event_record}) {
    auto on = make_stream();
    auto some = make(on);
    launch(some.use_on(on).value(), on);
    machine->fail(failing, 1, CUDA_ERROR_UNKNOWN);
    WEIR_DONE(on.close());
    EXPECT_THAT(some.unsafe_span(), AllAre(0U)) << "the end of a stream waits for nothing";
    EXPECT_EQ(code_of(some.try_view()), errc::not_supported) << "only waiting can tell";
    EXPECT_THAT(some.view().value().span(), AllAre(1U));
    EXPECT_TRUE(some.try_view()) << "that is known now";
  }
}

TEST_F(managed_users, streams_of_another_runtime_are_refused) {
  const auto elsewhere = runtime::open_simulated(machine).value();
  const auto foreign = stream::create(elsewhere->device(device_id{0}).value()).value();
  const auto on = make_stream();
  auto some = make(on);
  EXPECT_EQ(code_of(some.use_on(foreign)), errc::bad_stream);
  EXPECT_EQ(code_of(some.prefetch(gpu(), foreign)), errc::bad_stream);
  EXPECT_EQ(code_of(some.attach(attachment::host, foreign)), errc::bad_stream);
  EXPECT_EQ(some.attached(), attachment::global);
}

TEST_F(managed_users, an_attachment_that_fails_changes_nothing) {
  const auto on = make_stream();
  auto some = make(on);
  machine->fail(call::stream_attach_mem_async, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(some.attach(attachment::host, on)), errc::driver_error);
  EXPECT_EQ(some.attached(), attachment::global);
  EXPECT_TRUE(some.try_view());
  WEIR_DONE(some.attach(attachment::global, stream_ref::legacy(gpu())));
  WEIR_DONE(some.attach(attachment::host, stream_ref::per_thread(gpu())));
  EXPECT_EQ(some.attached(), attachment::host);
}

TEST_F(managed_users, constant_buffers_are_viewed_and_recorded_too) {
  const auto on = make_stream();
  const auto some = make(on);
  auto behind = event::create(gpu()).value();
  WEIR_DONE(behind.record(on));
  EXPECT_THAT(some.view(behind).value().span(), AllAre(0U));
  EXPECT_THAT(some.try_view().value().span(), AllAre(0U));
  const auto elements = some.use_on(on).value();
  EXPECT_EQ(elements.data(), some.data());
  EXPECT_EQ(elements.size(), managed_words);
  EXPECT_EQ(some.unsafe_span().data(), some.data());
  EXPECT_EQ(some.device(), gpu());
}

// --- Views ---------------------------------------------------------------------------------------

TEST_F(managed_users, a_view_that_fails_leaves_the_buffer_usable) {
  const auto on = make_stream();
  auto some = make(on);
  launch(some.use_on(on).value(), on);
  machine->fail(call::event_synchronize, 1, CUDA_ERROR_UNKNOWN);
  machine->fail(call::mem_free, 1, CUDA_ERROR_UNKNOWN);  // the wait for all work fails, too
  EXPECT_EQ(code_of(some.view()), errc::driver_error);
  launch(some.use_on(on).value(), on);
  machine->fail(call::event_synchronize, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THAT(some.view().value().span(), AllAre(2U)) << "the wait for all work will do";
}

TEST_F(managed_users, resizing_waits_for_those_who_use_the_old_memory) {
  const auto on = make_stream();
  auto some = make(on, attachment::host);
  launch(some.use_on(on).value(), on);            // a device with concurrent access may
  WEIR_DONE(some.resize(2 * managed_words, on));  // by the host itself
  const auto view = some.view().value();
  EXPECT_THAT(view.span().first(managed_words), AllAre(1U));
  EXPECT_THAT(view.span().subspan(managed_words), AllAre(0U));
}

TEST_F(managed_users, a_resize_that_fails_keeps_the_old_memory) {
  const auto on = make_stream();
  auto some = make(on);
  const word* const before = some.data();
  for (const call failing : {call::mem_alloc_managed, call::memcpy_async, call::memset_d8_async}) {
    machine->fail(failing, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(code_of(some.resize(2 * managed_words, on)), errc::driver_error);
    EXPECT_EQ(some.data(), before);
    EXPECT_EQ(some.size(), managed_words);
  }
  WEIR_DONE(some.attach(attachment::single, on));
  machine->fail(call::stream_attach_mem_async, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(some.resize(2 * managed_words, on)), errc::driver_error);
  EXPECT_EQ(some.data(), before);
}

// --- The end -------------------------------------------------------------------------------------

TEST_F(managed_users, closing_waits_and_returns_what_went_wrong) {
  const auto on = make_stream();
  auto some = make(on);
  launch(some.use_on(on).value(), on);
  WEIR_DONE(some.close());
  EXPECT_TRUE(on.is_complete().value());
  EXPECT_EQ(machine->calls(call::mem_free), 1U);

  some = make(on);
  launch(some.use_on(on).value(), on);
  machine->fail(call::event_synchronize, 1, CUDA_ERROR_UNKNOWN);
  WEIR_DONE(some.close());
  EXPECT_TRUE(on.is_complete().value()) << "by a wait for all work";
  EXPECT_EQ(machine->calls(call::mem_free), 3U);

  some = make(on);
  launch(some.use_on(on).value(), on);
  machine->fail(call::event_synchronize, 1, CUDA_ERROR_UNKNOWN);
  machine->fail(call::mem_free, 1, CUDA_ERROR_UNKNOWN);
  const auto kept = some.close();
  ASSERT_EQ(code_of(kept), errc::driver_error);
  EXPECT_EQ(kept.error().call(), "cuMemFree");
  EXPECT_EQ(kept.error().requested(), bytes{managed_words * sizeof(word)});
  EXPECT_EQ(kept.error().detail(),
            "4 KiB stay allocated, because work that may use them could not be waited for");
  EXPECT_EQ(machine->calls(call::mem_free), 5U) << "those of the wait alone";

  some = make(on);
  machine->fail(call::mem_free, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(some.close()), errc::driver_error);
  EXPECT_FALSE(some);
}

TEST_F(managed_users, a_stream_that_closes_meanwhile_does_not_wait_for_the_free) {
  auto closing = make_stream();
  const auto busy = make_stream();
  auto some = make(busy);
  launch({some.use_on(closing).value().data(), 1}, closing);
  machine->hold(busy.handle());
  launch({some.use_on(busy).value().data() + 1, 1}, busy);
  const auto waits = machine->calls(call::event_synchronize);
  std::thread freeing{[&] { WEIR_DONE(some.close()); }};
  while (machine->calls(call::event_synchronize) == waits) std::this_thread::yield();
  WEIR_DONE(closing.close());
  EXPECT_EQ(machine->calls(call::mem_free), 0U) << "the free still waits";
  machine->release(busy.handle());
  freeing.join();
  EXPECT_EQ(machine->calls(call::mem_free), 1U);
}

TEST_F(managed_users, what_a_destructor_cannot_free_is_reported) {
  const auto on = make_stream();
  {
    const auto some = make(on);
    machine->fail(call::mem_free, 1, CUDA_ERROR_UNKNOWN);
  }
  const auto reports = heard.take();
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_EQ(reports[0].code(), errc::driver_error);
  EXPECT_EQ(reports[0].call(), "cuMemFree");
}

TEST_F(managed_users, a_captured_user_is_waited_for_with_all_work_at_the_end) {
  const auto on = make_stream();
  const auto other = make_stream();
  const context_scope bound{gpu()};
  const auto& cu = machine->driver();
  {
    auto some = make(on);
    ASSERT_TRUE(some.use_on(on));
    launch(some.use_on(other).value(), other);
    ASSERT_EQ(CUDA_SUCCESS, cu.stream_begin_capture(on.handle(), CU_STREAM_CAPTURE_MODE_GLOBAL));
    WEIR_DONE(some.close());
    EXPECT_EQ(machine->calls(call::mem_free), 2U) << "of the wait, and of the memory";
  }
  CUgraph graph = nullptr;
  ASSERT_EQ(CUDA_SUCCESS, cu.stream_end_capture(on.handle(), &graph)) << "the capture is whole";
  EXPECT_EQ(CUDA_SUCCESS, cu.graph_destroy(graph));
  EXPECT_TRUE(other.is_complete().value());
}

TEST_F(managed_users, a_view_frees_the_memory_of_a_buffer_that_went) {
  const auto on = make_stream();
  auto some = make(on);
  {
    const auto view = some.view().value();
    WEIR_DONE(some.close());
    EXPECT_EQ(machine->calls(call::mem_free), 0U);
  }
  EXPECT_EQ(machine->calls(call::mem_free), 1U);
}

TEST_F(managed_users, a_buffer_keeps_its_runtime) {
  auto on = std::make_optional(make_stream());
  auto some = make(*on);
  on.reset();
  runtime_.reset();
  EXPECT_THAT(some.view().value().span(), AllAre(0U));
  WEIR_DONE(some.close());
}

TEST_F(managed_users, a_forked_child_is_told_and_touches_nothing) {
  const auto on = make_stream();
  auto some = make(on);
  auto viewed = make(on);
  auto view = std::make_optional(viewed.view().value());
  auto mapped = mapped_buffer<word>::create(gpu(), 10).value();
  std::vector<word> values(1024);
  auto pinned = registered_memory::create(gpu(), std::as_writable_bytes(std::span{values})).value();
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    const auto expect_gone = [&](const auto& outcome, int number) {
      if (wrong == 0 && code_of(outcome) != errc::driver_gone) wrong = number;
    };
    expect_gone(some.view(), 1);
    expect_gone(some.try_view(), 2);
    expect_gone(some.resize(2 * managed_words, on), 3);
    expect_gone(unified_buffer<word>::zeroed(managed_words, on), 4);
    expect_gone(mapped_buffer<word>::create(gpu(), 10), 5);
    expect_gone(some.close(), 6);
    expect_gone(mapped.close(), 7);
    expect_gone(pinned.close(), 8);
    view.reset();
    viewed = {};
    if (!heard.take().empty()) wrong = 9;
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  EXPECT_THAT(some.view().value().span(), AllAre(0U)) << "the parent goes on";
  EXPECT_EQ(code_of(viewed.use_on(on)), errc::not_ready) << "its view lives";
}

// --- Placement -----------------------------------------------------------------------------------

TEST(managed_place, is_of_one_kind) {
  const managed_place places[] = {managed_place{device_id{2}}, managed_place::host(),
                                  managed_place::host_node(3)};
  const char* const texts[] = {"device 2", "host", "host node 3"};
  const int numbers[] = {2, 0, 3};
  for (std::size_t i = 0; i < std::size(places); ++i) {
    EXPECT_EQ(places[i].is_device(), i == 0);
    EXPECT_EQ(places[i].is_host(), i == 1);
    EXPECT_EQ(places[i].is_host_node(), i == 2);
    EXPECT_EQ(places[i].number(), numbers[i]);
    EXPECT_EQ(to_string(places[i]), texts[i]);
  }
}

TEST_F(managed_users, advice_is_for_the_named_part_alone) {
  constexpr std::size_t page = 4096 / sizeof(word);
  const auto on = make_stream();
  auto some = unified_buffer<word>::zeroed(3 * page, on).value();
  const element_range middle{page, page};
  WEIR_DONE(some.advise_read_mostly(true, middle));
  WEIR_DONE(some.advise_preferred(managed_place{device_id{1}}, middle));
  WEIR_DONE(some.advise_accessed_by(gpu(1), true, middle));
  WEIR_DONE(some.advise_accessed_by(managed_place::host(), true, middle));
  WEIR_DONE(some.prefetch(managed_place::host_node(0), on, middle));
  const managed_range_info told{.read_mostly = true,
                                .preferred = managed_place{device_id{1}},
                                .accessed_by = {managed_place{device_id{1}}, managed_place::host()},
                                .last_prefetch = managed_place::host()};
  EXPECT_EQ(some.info(middle).value(), told);
  EXPECT_EQ(some.info({0, page}).value(), managed_range_info{});
  EXPECT_EQ(some.info({2 * page}).value(), managed_range_info{}) << "to the end";
  WEIR_DONE(some.advise_accessed_by(managed_place::host(), false, middle));
  EXPECT_THAT(some.info(middle).value().accessed_by, ElementsAre(managed_place{device_id{1}}));
  EXPECT_EQ(code_of(some.info({3 * page})), errc::invalid_argument);
  EXPECT_EQ(code_of(some.info({page, 2 * page + 1})), errc::invalid_argument);
  WEIR_DONE(some.info({page, 2 * page}));
  EXPECT_EQ(code_of(some.info({page, 0})), errc::invalid_argument);
  EXPECT_EQ(some.info({page, 1}).value().last_prefetch, managed_place::host()) << "one element";
  EXPECT_EQ(some.info({3 * page - 1, 1}).value(), managed_range_info{}) << "the last one";
  EXPECT_EQ(some.info({3 * page - 1}).value(), managed_range_info{});
  EXPECT_EQ(code_of(some.info({3 * page - 1, 2})), errc::invalid_argument);
}

TEST_F(managed_users, what_the_driver_refuses_is_told) {
  const auto on = make_stream();
  auto some = make(on);
  machine->fail(call::mem_prefetch_async, 1, CUDA_ERROR_UNKNOWN);
  const auto refused = some.prefetch(gpu(), on);
  ASSERT_EQ(code_of(refused), errc::driver_error);
  EXPECT_EQ(refused.error().requested(), some.size_bytes());
  machine->fail(call::mem_advise, 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(code_of(some.advise_read_mostly()), errc::driver_error);
  for (std::uint64_t nth = 1; nth <= 6; ++nth) {
    machine->fail(call::mem_range_get_attribute, nth, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(code_of(some.info()), errc::driver_error) << nth;
    machine->clear_faults();
  }
}

// --- Other drivers -------------------------------------------------------------------------------

/// The machine's driver but for a few calls, which answer as drivers may that the machine is none
/// of.
class other_drivers : public managed_users {
 protected:
  void SetUp() override {
    managed_users::SetUp();
    calls = machine->driver();
    real = calls;
  }
  void reopen() { runtime_ = runtime::open_table(calls, "another driver", machine).value(); }

  driver::table calls{};
  inline static driver::table real{};
  inline static std::size_t asked_for = 0;
  inline static std::vector<std::pair<int, int>> places;  // type and number
  inline static std::vector<unsigned> attachments;
};

TEST_F(other_drivers, zeros_are_zeros_whatever_the_memory_held) {
  calls.mem_alloc_managed = [](CUdeviceptr* address, std::size_t size, unsigned flags) {
    const CUresult answer = real.mem_alloc_managed(address, size, flags);
    if (answer == CUDA_SUCCESS) std::memset(reinterpret_cast<void*>(*address), 0xee, size);
    return answer;
  };
  reopen();
  const auto on = make_stream();
  for (const attachment mode : {attachment::global, attachment::host, attachment::single}) {
    auto some = unified_buffer<word>::zeroed(managed_words, on, mode).value();
    EXPECT_THAT(some.unsafe_span(), AllAre(mode == attachment::host ? 0U : 0xeeeeeeeeU))
        << "the host writes what is its own, the stream all else in its turn";
    EXPECT_THAT(some.view().value().span(), AllAre(0U)) << to_string(mode);
    WEIR_DONE(some.resize(2 * managed_words, on));
    EXPECT_THAT(some.view().value().span(), AllAre(0U)) << to_string(mode);
    const auto undefined =
        unified_buffer<word>::create(managed_words, on, contents::undefined, mode).value();
    EXPECT_THAT(undefined.view().value().span(), AllAre(0xeeeeeeeeU)) << to_string(mode);
  }
}

struct alignas(256) exact {
  word value[64];
};
struct alignas(512) twice {
  word value[128];
};
struct alignas(4096) wide_managed {
  word value[1024];
};

TEST_F(other_drivers, memory_is_aligned_where_the_drivers_is_not) {
  calls.mem_alloc_managed = [](CUdeviceptr* address, std::size_t size, unsigned flags) {
    asked_for = size;
    const CUresult answer = real.mem_alloc_managed(address, size + 256, flags);
    *address += 256;
    return answer;
  };
  calls.mem_free = [](CUdeviceptr address) { return real.mem_free(address - 256); };
  reopen();
  const auto on = make_stream();
  {
    const auto narrow = unified_buffer<word>::create(managed_words, on).value();
    EXPECT_EQ(asked_for, 4096U) << "that is aligned enough";
    const auto as_much = unified_buffer<exact>::create(3, on).value();
    EXPECT_EQ(asked_for, 3 * 256U) << "so is that";
    EXPECT_EQ(address_of(as_much.data()) % 256, 0U);
    const auto more = unified_buffer<twice>::create(3, on).value();
    EXPECT_EQ(asked_for, 4 * 512U) << "with room to align";
    EXPECT_EQ(address_of(more.data()) % 512, 0U);
    const auto some = unified_buffer<wide_managed>::create(3, on).value();
    EXPECT_EQ(asked_for, 4 * 4096U) << "with room to align";
    EXPECT_EQ(address_of(some.data()) % 4096, 0U);
    EXPECT_EQ(some.size(), 3U);
  }
  EXPECT_EQ(machine->calls(call::mem_free), 4U);
}

TEST_F(other_drivers, each_attachment_has_its_flag) {
  calls.stream_attach_mem_async = [](CUstream stream, CUdeviceptr address, std::size_t size,
                                     unsigned flags) {
    attachments.push_back(flags);
    return real.stream_attach_mem_async(stream, address, size, flags);
  };
  reopen();
  attachments.clear();
  const auto on = make_stream();
  auto some = make(on);
  for (const attachment mode : {attachment::host, attachment::single, attachment::global})
    WEIR_DONE(some.attach(mode, on));
  EXPECT_THAT(attachments,
              ElementsAre(CU_MEM_ATTACH_HOST, CU_MEM_ATTACH_SINGLE, CU_MEM_ATTACH_GLOBAL));
}

TEST_F(other_drivers, nodes_of_the_host_have_numbers) {
  calls.mem_prefetch_async = [](CUdeviceptr, std::size_t, CUmemLocation location, unsigned,
                                CUstream) {
    places.emplace_back(location.type, location.id);
    return CUDA_SUCCESS;
  };
  calls.mem_advise = [](CUdeviceptr, std::size_t, CUmem_advise, CUmemLocation location) {
    places.emplace_back(location.type, location.id);
    return CUDA_SUCCESS;
  };
  calls.mem_range_get_attribute = [](void* data, std::size_t size, CUmem_range_attribute attribute,
                                     CUdeviceptr address, std::size_t range) {
    auto& value = *static_cast<int*>(data);
    switch (attribute) {
      case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        value = CU_MEM_LOCATION_TYPE_HOST_NUMA;
        return CUDA_SUCCESS;
      case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        value = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
        return CUDA_SUCCESS;
      case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        value = 3;
        return CUDA_SUCCESS;
      case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        value = 4;
        return CUDA_SUCCESS;
      default:
        return real.mem_range_get_attribute(data, size, attribute, address, range);
    }
  };
  reopen();
  places.clear();
  const auto on = make_stream();
  auto some = make(on);
  for (const managed_place each :
       {managed_place{gpu(1)}, managed_place::host(), managed_place::host_node(3)}) {
    WEIR_DONE(some.prefetch(each, on));
    WEIR_DONE(some.advise_preferred(each));
  }
  const std::pair<int, int> device{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  const std::pair<int, int> host{CU_MEM_LOCATION_TYPE_HOST, 0};
  const std::pair<int, int> node{CU_MEM_LOCATION_TYPE_HOST_NUMA, 3};
  EXPECT_THAT(places, ElementsAre(device, device, host, host, node, node));
  EXPECT_EQ(some.info().value(),
            (managed_range_info{.read_mostly = false,
                                .preferred = managed_place::host_node(3),
                                .accessed_by = {},
                                .last_prefetch = managed_place::host_node(4)}));
}

// --- Devices without concurrent managed access ---------------------------------------------------

class exclusive_device : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(1, sim::device_spec{.concurrent_managed_access = false});
    open(settings);
  }
};

TEST_F(exclusive_device, a_refused_view_leaves_all_buffers_usable) {
  const auto on = make_stream();
  auto one = unified_buffer<word>::zeroed(managed_words, on).value();
  auto two = unified_buffer<word>::zeroed(managed_words, on).value();
  EXPECT_EQ(code_of(one.try_view()), errc::not_supported);
  launch(one.use_on(on).value(), on);
  launch(two.use_on(on).value(), on);
  for (int i = 0; i < 2; ++i) {
    machine->fail(call::mem_free, 1, CUDA_ERROR_UNKNOWN);  // of the wait for the device
    EXPECT_EQ(code_of(one.view()), errc::driver_error);
    launch(one.use_on(on).value(), on);
    launch(two.use_on(on).value(), on);
  }
  EXPECT_THAT(one.view().value().span(), AllAre(3U));
  EXPECT_THAT(two.view().value().span(), AllAre(3U));
}

TEST_F(exclusive_device, the_last_view_lets_devices_in_again) {
  const auto on = make_stream();
  auto one = unified_buffer<word>::zeroed(managed_words, on).value();
  auto two = unified_buffer<word>::zeroed(managed_words, on).value();
  auto first = std::make_optional(one.view().value());
  auto second = std::make_optional(two.view().value());
  first.reset();
  EXPECT_EQ(code_of(one.use_on(on)), errc::not_ready) << "of the other buffer";
  EXPECT_EQ(code_of(two.use_on(on)), errc::not_ready);
  second.reset();
  EXPECT_TRUE(one.use_on(on));
  EXPECT_TRUE(two.use_on(on));
}

TEST_F(exclusive_device, the_last_view_of_all_devices_lets_them_in_again) {
  sim::machine_options settings;
  settings.devices.assign(2, sim::device_spec{.concurrent_managed_access = false});
  open(settings);
  const auto on = make_stream();
  const auto elsewhere = make_stream(1);
  auto one = unified_buffer<word>::zeroed(managed_words, on).value();
  auto two = unified_buffer<word>::zeroed(managed_words, elsewhere).value();
  auto first_view = std::make_optional(one.view().value());
  auto second_view = std::make_optional(two.view().value());
  EXPECT_EQ(code_of(one.use_on(on)), errc::not_ready);
  EXPECT_EQ(code_of(two.use_on(elsewhere)), errc::not_ready);
  second_view.reset();
  EXPECT_EQ(code_of(one.use_on(on)), errc::not_ready);
  EXPECT_EQ(code_of(two.use_on(elsewhere)), errc::not_ready) << "the host uses the other";
  first_view.reset();
  EXPECT_TRUE(one.use_on(on));
  EXPECT_TRUE(two.use_on(elsewhere));
}

TEST_F(exclusive_device, a_view_of_host_memory_refuses_nobody_else) {
  const auto on = make_stream();
  auto shared = unified_buffer<word>::zeroed(managed_words, on).value();
  const auto mine = unified_buffer<word>::zeroed(managed_words, on, attachment::host).value();
  const auto view = mine.view().value();
  EXPECT_TRUE(shared.use_on(on));
}

TEST_F(exclusive_device, an_event_is_not_enough_for_the_memory_of_a_stream) {
  const auto own = make_stream();
  auto some = unified_buffer<word>::zeroed(managed_words, own, attachment::single).value();
  launch(some.use_on(own).value(), own);
  auto behind = event::create(gpu()).value();
  WEIR_DONE(behind.record(own));
  auto elsewhere = unified_buffer<word>::zeroed(managed_words, own).value();
  launch(elsewhere.use_on(own).value(), own);
  EXPECT_THAT(some.view(behind).value().span(), AllAre(1U));
  EXPECT_TRUE(own.is_complete().value()) << "all work of its stream matters";
}

TEST_F(exclusive_device, the_memory_of_a_stream_is_not_resized_on_another) {
  const auto own = make_stream();
  const auto other = make_stream();
  auto some = unified_buffer<word>::zeroed(managed_words, own, attachment::single).value();
  const word* const before = some.data();
  EXPECT_EQ(code_of(some.resize(2 * managed_words, other)), errc::bad_stream);
  EXPECT_EQ(some.data(), before);
  EXPECT_EQ(some.size(), managed_words);
  WEIR_DONE(some.resize(2 * managed_words, own));
  EXPECT_THAT(some.view().value().span(), AllAre(0U));
}

TEST_F(exclusive_device, a_device_may_use_what_is_the_hosts_no_more) {
  const auto on = make_stream();
  auto some = unified_buffer<word>::copy_of(counting(managed_words), on, attachment::host).value();
  EXPECT_EQ(code_of(some.use_on(on)), errc::not_permitted);
  WEIR_DONE(some.attach(attachment::single, on));
  EXPECT_EQ(code_of(some.use_on(make_stream())), errc::bad_stream);
  launch(some.use_on(on).value(), on);
  EXPECT_EQ(some.view().value()[managed_words - 1], managed_words);
}

}  // namespace
}  // namespace weir::testing_support
