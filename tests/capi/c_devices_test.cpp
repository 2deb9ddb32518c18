// SPDX-License-Identifier: Apache-2.0
// The C ABI's errors, options, tags, devices, streams and events, each argument told apart from the
// others.
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "c_fixture.hpp"
#include "capi/structures.hpp"
#include "weir/base/options.hpp"
#include "weir/observe/tag.hpp"

namespace weir::testing_support { namespace {

// --- Structures and texts ------------------------------------------------------------------------

TEST(c_texts, are_cut_to_the_place_that_they_have) {
  const auto cut = [](std::uint64_t capacity) {
    char text[8];
    std::memset(text, '#', sizeof(text));
    std::uint64_t length = 99;
    EXPECT_TRUE(capi::hand_out_text("abcde", text, capacity, &length));
    EXPECT_EQ(length, 5u);
    return std::string(text, sizeof(text));
  };
  EXPECT_EQ(cut(0), "########");
  EXPECT_EQ(cut(1), std::string("\0#######", 8));
  EXPECT_EQ(cut(5), std::string("abcd\0###", 8));
  EXPECT_EQ(cut(6), std::string("abcde\0##", 8));
  EXPECT_EQ(cut(8), std::string("abcde\0##", 8));
  EXPECT_TRUE(capi::hand_out_text("abcde", nullptr, 0, nullptr));

  char four[4];
  capi::copy_text(four, "abc");
  EXPECT_STREQ(four, "abc");
  capi::copy_text(four, "defg");
  EXPECT_STREQ(four, "def");
  capi::copy_text(four, "");
  EXPECT_STREQ(four, "");
}

TEST(c_counters, are_those_of_cpp_each_in_its_place) {
  memory_stats from;
  std::uint64_t next = 0;
  const auto byte_pair = [&](byte_gauge& each) {
    each.current = bytes{++next};
    each.peak = bytes{++next};
  };
  const auto pair = [&](gauge& each) {
    each.current = ++next;
    each.peak = ++next;
  };
  byte_pair(from.requested);
  byte_pair(from.allocated);
  byte_pair(from.active);
  byte_pair(from.reserved);
  pair(from.blocks);
  for (bytes* const each : {&from.cached, &from.thread_cached, &from.pending, &from.stream_bound})
    *each = bytes{++next};
  for (std::uint64_t* const each :
       {&from.allocations, &from.frees, &from.hits, &from.failures, &from.handles_created,
        &from.handles_moved, &from.handles_returned, &from.handles_released, &from.waits,
        &from.events})
    *each = ++next;
  from.metadata = bytes{++next};
  from.heap_hits = ++next;
  from.misses = ++next;
  byte_pair(from.active_requested);
  pair(from.active_blocks);

  // In the order of the structure.
  const weir_memory_stats known = capi::to_c(from);
  EXPECT_EQ(known.struct_size, sizeof(known));
  std::vector<std::uint64_t> numbers(sizeof(known) / 8);
  std::memcpy(numbers.data(), &known, sizeof(known));
  for (std::uint64_t i = 1; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], i);
  EXPECT_EQ(numbers.size(), next + 1);
}

// --- Errors --------------------------------------------------------------------------------------

TEST(c_versions, are_those_of_the_header) {
  EXPECT_EQ(weir_version(), WEIR_VERSION);
  EXPECT_EQ(weir_version_text(), std::to_string(WEIR_VERSION_MAJOR) + "." +
                                     std::to_string(WEIR_VERSION_MINOR) + "." +
                                     std::to_string(WEIR_VERSION_PATCH));
}

TEST(c_errors, have_words_for_success_and_for_numbers_that_are_none) {
  EXPECT_STREQ(weir_error_name(weir_ok), "ok");
  EXPECT_STREQ(weir_error_meaning(weir_ok), "no error");
  for (const weir_error none : {-1, 37, 4711}) {
    EXPECT_STREQ(weir_error_name(none), "unknown");
    EXPECT_EQ(weir_error_meaning(none), std::string{meaning(static_cast<errc>(none))});
  }
}

TEST(c_errors, are_told_with_their_facts) {
  EXPECT_EQ(capi::remember(error{{.code = errc::out_of_memory,
                                  .native = 2,
                                  .call = "cuMemCreate",
                                  .requested = bytes{64 * mib},
                                  .detail = "here"}}),
            weir_error_out_of_memory);
  EXPECT_STREQ(weir_last_error_message(),
               "out_of_memory: not enough memory for the request (cuMemCreate = 2, 64 MiB): here");
  EXPECT_EQ(weir_last_error_native(), 2);
  EXPECT_EQ(capi::remember(errc::bad_stream, "there"), weir_error_bad_stream);
  EXPECT_STREQ(weir_last_error_message(), "bad_stream: there");
  EXPECT_EQ(weir_last_error_native(), 0);
}

TEST(c_error_handlers, get_their_context_the_code_and_the_message) {
  struct call {
    void* context;
    weir_error code;
    std::string message;
    bool operator==(const call&) const = default;
  };
  static std::vector<call> calls;
  calls.clear();
  const weir_error_handler handler = [](void* context, weir_error code, const char* message) {
    calls.push_back({context, code, message});
  };
  const error first{{.code = errc::still_live, .detail = "first"}};
  const error second{{.code = errc::device_lost, .native = 719, .detail = "second"}};
  int one = 0;
  int two = 0;
  const std::uint64_t before = weir_reported_errors();
  weir_set_error_handler(handler, &one);
  report_error(first);
  weir_set_error_handler(handler, &two);
  report_error(second);
  weir_set_error_handler(handler, &one);  // the same as at first
  report_error(second);
  weir_set_error_handler(nullptr, &one);
  report_error(first);
  EXPECT_EQ(weir_reported_errors(), before + 4);
  EXPECT_EQ(calls, (std::vector<call>{{&one, weir_error_still_live, first.message()},
                                      {&two, weir_error_device_lost, second.message()},
                                      {&one, weir_error_device_lost, second.message()}}));
}

TEST(c_error_handlers, of_one_context_are_told_apart) {
  struct count {
    int first = 0;
    int second = 0;
  };
  const weir_error_handler first = [](void* to, weir_error, const char*) {
    ++static_cast<count*>(to)->first;
  };
  const weir_error_handler second = [](void* to, weir_error, const char*) {
    ++static_cast<count*>(to)->second;
  };
  count heard;
  weir_set_error_handler(first, &heard);
  report_error(error{{.code = errc::still_live}});
  EXPECT_EQ(heard.first, 1);
  weir_set_error_handler(second, &heard);
  report_error(error{{.code = errc::still_live}});
  weir_set_error_handler(nullptr, nullptr);
  EXPECT_EQ(heard.first, 1);
  EXPECT_EQ(heard.second, 1);
}

// --- Options and tags ----------------------------------------------------------------------------

TEST(c_options, are_those_of_cpp) {
  const auto all = describe_options();
  ASSERT_EQ(weir_option_count(), all.size());
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    const auto info =
        read<weir_option_info>([&](auto* into) { return weir_option_get_info(i, into); });
    EXPECT_EQ(info.name, all[i].name);
    EXPECT_EQ(info.type, all[i].type);
    EXPECT_EQ(info.initial, all[i].initial);
    EXPECT_EQ(info.values, all[i].values);
    EXPECT_EQ(info.unit, all[i].unit);
    EXPECT_EQ(info.environment, all[i].environment);
    EXPECT_EQ(info.meaning, all[i].meaning);
    EXPECT_EQ(info.reserved, 0u);
  }
  auto info = unset<weir_option_info>();
  EXPECT_EQ(said(weir_option_get_info(weir_option_count(), &info)),
            "not_found: index exceeds the number of options");
}

TEST(c_options, have_the_value_of_a_list_or_their_initial_one) {
  char text[16] = {};
  std::uint64_t length = 0;
  ASSERT_OK(weir_option_get_value("sim_devices=3,sim_seed=77", "sim_seed", text, 16, &length));
  EXPECT_STREQ(text, "77");
  EXPECT_EQ(length, 2u);
  ASSERT_OK(weir_option_get_value(nullptr, "heap_policy", text, 9, &length));
  EXPECT_STREQ(text, "balanced");
  ASSERT_OK(weir_option_get_value("", "heap_policy", text, 8, nullptr));
  EXPECT_STREQ(text, "balance");
  ASSERT_OK(weir_option_get_value("", "heap_policy", nullptr, 0, &length));
  EXPECT_EQ(length, 8u);
  EXPECT_EQ(weir_option_get_value("", "heap_police", text, 4, nullptr), weir_error_bad_option);
  EXPECT_EQ(weir_option_get_value("x=1", "heap_policy", text, 4, nullptr), weir_error_bad_option);
}

TEST(c_tags, are_those_of_cpp) {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
  ASSERT_OK(weir_tag_named("c devices first", &first));
  ASSERT_OK(weir_tag_named("c devices second", &second));
  EXPECT_EQ(first, tag::named("c devices first").value().number());
  EXPECT_EQ(second, tag::named("c devices second").value().number());
  EXPECT_NE(first, second);
  EXPECT_STREQ(weir_tag_name(first), "c devices first");
  EXPECT_STREQ(weir_tag_name(second), "c devices second");
  EXPECT_STREQ(weir_tag_name(0), "");
  EXPECT_EQ(weir_tag_name(tag::most), nullptr);
  EXPECT_EQ(weir_tag_name(65536 + first), nullptr) << "no number is cut to one that there is";
  EXPECT_EQ(said(weir_tag_set_current(65536 + first, nullptr)),
            "not_found: tag: no tag has this number");

  std::uint32_t previous = 99;
  ASSERT_OK(weir_tag_set_current(first, &previous));
  EXPECT_EQ(previous, 0u);
  ASSERT_OK(weir_tag_set_current(second, &previous));
  EXPECT_EQ(previous, first);
  std::thread{[] {
    std::uint32_t of_thread = 99;
    EXPECT_OK(weir_tag_set_current(0, &of_thread));
    EXPECT_EQ(of_thread, 0u) << "another thread has its own";
  }}.join();
  EXPECT_EQ(weir_tag_set_current(tag::most + 1, &previous), weir_error_not_found);
  EXPECT_EQ(previous, first);
  ASSERT_OK(weir_tag_set_current(0, &previous));
  EXPECT_EQ(previous, second);
}

// Names last as long as their process: a child of its own is filled with them.
TEST(c_tags, are_known_up_to_the_last_that_there_can_be) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::uint32_t number = 0;
    std::string name;
    for (int i = 0; number != tag::most; ++i) {
      name = "c devices last " + std::to_string(i);
      if (weir_tag_named(name.c_str(), &number) != weir_ok) ::_exit(1);
    }
    const char* const found = weir_tag_name(tag::most);
    if (found == nullptr || found != name) ::_exit(2);
    if (weir_tag_set_current(tag::most, nullptr) != weir_ok) ::_exit(3);
    ::_exit(weir_tag_name(tag::most + 1) == nullptr ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// --- Runtimes and devices ------------------------------------------------------------------------

class c_devices : public c_machine {};

TEST_F(c_devices, tell_what_they_are) {
  const auto about =
      read<weir_runtime_info>([&](auto* info) { return weir_runtime_get_info(runtime, info); });
  EXPECT_EQ(about.driver_version, 13000);
  EXPECT_EQ(about.device_count, 2);
  EXPECT_STREQ(about.driver, "a table");

  struct {
    const char* name;
    std::uint64_t memory;
    std::uint64_t granularity;
    int major;
    int minor;
    int processors;
  } const expected[] = {{"first device", 1024 * mib, 2 * mib, 8, 6, 11},
                        {"second device", 512 * mib, 4 * mib, 9, 1, 22}};
  for (int number : {0, 1}) {
    const auto info = read<weir_device_info>(
        [&](auto* into) { return weir_device_get_info(runtime, number, into); });
    EXPECT_STREQ(info.name, expected[number].name);
    EXPECT_EQ(info.total_memory, expected[number].memory);
    EXPECT_EQ(info.granularity, expected[number].granularity);
    EXPECT_EQ(info.compute_major, expected[number].major);
    EXPECT_EQ(info.compute_minor, expected[number].minor);
    EXPECT_EQ(info.multiprocessors, expected[number].processors);
    EXPECT_EQ(info.pci_bus_id, device(number).pci_bus_id());
    EXPECT_EQ(std::memcmp(info.uuid, device(number).uuid().value().data(), 16), 0);
  }
}

/// A driver whose attributes are what the test says.
std::map<driver::CUdevice_attribute, int>& attributes() {
  static std::map<driver::CUdevice_attribute, int> answers;
  return answers;
}

TEST_F(c_devices, tell_each_feature_by_its_bit) {
  attributes().clear();
  driver::table calls = machine->driver();
  calls.device_get_attribute = [](int* value, driver::CUdevice_attribute row, driver::CUdevice) {
    const auto found = attributes().find(row);
    *value = found == attributes().end() ? 0 : found->second;
    return driver::CUDA_SUCCESS;
  };
  const auto features = [&] {
    weir_runtime* const opened = runtime_over(calls);
    const auto info =
        read<weir_device_info>([&](auto* into) { return weir_device_get_info(opened, 0, into); });
    EXPECT_OK(weir_runtime_close(opened));
    return info.features;
  };
  calls.device_get_uuid = nullptr;
  EXPECT_EQ(features(), 0u);
  calls.device_get_uuid = machine->driver().device_get_uuid;
  const std::uint32_t uuid = weir_device_has_uuid;
  EXPECT_EQ(features(), uuid);
  const std::pair<driver::CUdevice_attribute, std::uint32_t> rows[] = {
      {driver::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, weir_device_unified_addressing},
      {driver::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
       weir_device_virtual_memory},
      {driver::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, weir_device_memory_pools},
      {driver::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, weir_device_managed_memory},
      {driver::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
       weir_device_concurrent_managed_access},
      {driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
       weir_device_posix_descriptors},
      {driver::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, weir_device_fabric_handles},
      {driver::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, weir_device_rdma},
  };
  for (const auto& [attribute, bit] : rows) {
    attributes() = {{attribute, 1}};
    EXPECT_EQ(features(), uuid | bit) << bit;
  }
}

TEST_F(c_devices, tell_how_much_memory_is_free) {
  void* held = nullptr;
  weir_block_pool* pool = nullptr;
  ASSERT_OK(weir_bin_pool_create(runtime, 1, nullptr, &pool));
  ASSERT_OK(weir_block_pool_allocate(pool, 40 * mib, 0, elsewhere, &held));
  std::uint64_t free = 0;
  std::uint64_t total = 0;
  ASSERT_OK(weir_device_get_memory(runtime, 0, &free, &total));
  EXPECT_EQ(total, 1024 * mib);
  EXPECT_EQ(free, 1024 * mib - used(0));
  ASSERT_OK(weir_device_get_memory(runtime, 1, &free, nullptr));
  EXPECT_EQ(free, 512 * mib - used(1));
  EXPECT_NE(used(0), used(1));
  ASSERT_OK(weir_device_get_memory(runtime, 1, nullptr, &total));
  EXPECT_EQ(total, 512 * mib);
  EXPECT_OK(weir_block_pool_deallocate(pool, held, elsewhere));
  EXPECT_OK(weir_block_pool_close(pool));
}

TEST_F(c_devices, are_waited_for_one_by_one) {
  occupy(stream);
  occupy(other);
  occupy(elsewhere);
  ASSERT_OK(weir_device_synchronize(runtime, 1));
  EXPECT_TRUE(is_idle(elsewhere));
  EXPECT_FALSE(is_idle(stream));
  ASSERT_OK(weir_device_synchronize(runtime, 0));
  EXPECT_TRUE(is_idle(stream));
  EXPECT_TRUE(is_idle(other));
}

TEST_F(c_devices, tell_priorities_and_reach_each_other) {
  const auto expected = device().stream_priorities().value();
  std::int32_t least = 99;
  std::int32_t greatest = 99;
  ASSERT_OK(weir_device_get_stream_priorities(runtime, 0, &least, &greatest));
  EXPECT_EQ(least, expected.least);
  EXPECT_EQ(greatest, expected.greatest);
  EXPECT_LT(greatest, least);
  ASSERT_OK(weir_device_get_stream_priorities(runtime, 0, nullptr, nullptr));

  std::int32_t reaches = 99;
  ASSERT_OK(weir_device_can_access_peer(runtime, 0, 0, &reaches));
  EXPECT_EQ(reaches, 1);
  ASSERT_OK(weir_device_can_access_peer(runtime, 0, 1, &reaches));
  const auto second = capi::find(runtime).value()->machine->device(device_id{1}).value();
  EXPECT_EQ(reaches, device().can_access_peer(second).value() ? 1 : 0);
  EXPECT_EQ(weir_device_can_access_peer(runtime, 0, 7, &reaches), weir_error_no_device);
  EXPECT_EQ(weir_device_set_peer_access(runtime, 7, 0, 1), weir_error_no_device);
  for (const std::int32_t enabled : {1, 1, 0, 0})  // what is as it should be stays
    EXPECT_EQ(weir_device_set_peer_access(runtime, 0, 1, enabled),
              reaches != 0 ? weir_ok : weir_error_not_supported);
}

// --- Streams -------------------------------------------------------------------------------------

class c_streams : public c_machine {};

TEST_F(c_streams, are_made_as_they_were_asked_for) {
  const auto& calls = machine->driver();
  const auto flags_of = [&](weir_stream* of) {
    unsigned flags = 99;
    EXPECT_EQ(calls.stream_get_flags(native(of), &flags), driver::CUDA_SUCCESS);
    return flags;
  };
  const auto priority_of = [&](weir_stream* of) {
    int priority = 99;
    EXPECT_EQ(calls.stream_get_priority(native(of), &priority), driver::CUDA_SUCCESS);
    return priority;
  };
  weir_stream* blocking = nullptr;
  weir_stream* urgent = nullptr;
  {
    const context_scope bound{device()};
    ASSERT_OK(weir_stream_create(runtime, 0, weir_stream_blocking, 0, &blocking));
    ASSERT_OK(weir_stream_create(runtime, 0, 0, -2, &urgent));
    EXPECT_EQ(flags_of(blocking), unsigned{driver::CU_STREAM_DEFAULT});
    EXPECT_EQ(flags_of(urgent), unsigned{driver::CU_STREAM_NON_BLOCKING});
    EXPECT_EQ(priority_of(blocking), 0);
    EXPECT_EQ(priority_of(urgent), -2);
    EXPECT_OK(weir_stream_close(blocking));
    EXPECT_OK(weir_stream_close(urgent));
  }
  EXPECT_EQ(capi::find(stream).value()->ref.device(), device(0));
  EXPECT_EQ(capi::find(elsewhere).value()->ref.device(), device(1));
  EXPECT_NE(id(stream), id(other));
  EXPECT_EQ(id(stream), stream_ref(device(), native(stream)).id().value().number());
}

TEST_F(c_streams, are_waited_for_one_by_one) {
  occupy(stream);
  occupy(other);
  machine->hold(native(other));
  std::int32_t complete = -1;
  EXPECT_OK(weir_stream_is_complete(stream, &complete));
  EXPECT_EQ(complete, 0);
  EXPECT_OK(weir_stream_synchronize(stream));
  EXPECT_OK(weir_stream_is_complete(stream, &complete));
  EXPECT_EQ(complete, 1);
  EXPECT_FALSE(is_idle(other));
  machine->release(native(other));
  wait_for_all();
}

TEST_F(c_streams, of_weir_are_destroyed_and_wrapped_ones_are_not) {
  weir_stream* own = nullptr;
  weir_stream* wrapped = nullptr;
  ASSERT_OK(weir_stream_create(runtime, 0, 0, 0, &own));
  const std::uint64_t destroyed = calls(driver::call::stream_destroy);
  ASSERT_OK(weir_stream_wrap(runtime, 0, native(own), &wrapped));
  EXPECT_EQ(native(wrapped), native(own));
  EXPECT_EQ(id(wrapped), id(own));
  EXPECT_OK(weir_stream_close(wrapped));
  EXPECT_EQ(calls(driver::call::stream_destroy), destroyed);
  EXPECT_OK(weir_stream_close(own));
  EXPECT_EQ(calls(driver::call::stream_destroy), destroyed + 1);
  EXPECT_EQ(weir_stream_wrap(runtime, 1, native(stream), &wrapped), weir_error_bad_stream);

  ASSERT_OK(weir_stream_wrap(runtime, 1, nullptr, &wrapped));
  EXPECT_EQ(id(wrapped), legacy_id(1));
  EXPECT_EQ(native(wrapped), driver::legacy_stream());
  EXPECT_OK(weir_stream_close(wrapped));
}

TEST_F(c_streams, live_until_the_last_of_their_handles_is_closed) {
  weir_stream* own = nullptr;
  weir_stream* duplicate = nullptr;
  ASSERT_OK(weir_stream_create(runtime, 0, 0, 0, &own));
  const std::uint64_t destroyed = calls(driver::call::stream_destroy);
  ASSERT_OK(weir_stream_duplicate(own, &duplicate));
  EXPECT_NE(duplicate, own);
  EXPECT_EQ(native(duplicate), native(own));
  EXPECT_EQ(id(duplicate), id(own));
  const std::uint64_t number = id(own);
  EXPECT_OK(weir_stream_close(own));
  EXPECT_EQ(calls(driver::call::stream_destroy), destroyed);
  EXPECT_EQ(weir_stream_synchronize(own), weir_error_closed);
  EXPECT_EQ(id(duplicate), number);
  EXPECT_EQ(said(weir_stream_duplicate(own, &own)), "closed: the stream is closed");
  EXPECT_OK(weir_stream_close(duplicate));
  EXPECT_EQ(calls(driver::call::stream_destroy), destroyed + 1);
}

TEST_F(c_streams, return_what_their_end_came_to) {
  weir_stream* own = nullptr;
  ASSERT_OK(weir_stream_create(runtime, 0, 0, 0, &own));
  machine->fail(driver::call::stream_destroy, 1, driver::CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_NE(weir_stream_close(own), weir_ok);
  EXPECT_EQ(weir_last_error_native(), driver::CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(weir_stream_close(own), weir_error_closed);
}

TEST_F(c_streams, tell_of_their_capture) {
  const auto& calls = machine->driver();
  weir_stream* blocking = nullptr;
  weir_stream* legacy = nullptr;
  ASSERT_OK(weir_stream_create(runtime, 0, weir_stream_blocking, 0, &blocking));
  ASSERT_OK(weir_stream_wrap(runtime, 0, nullptr, &legacy));
  const context_scope bound{device()};
  ASSERT_EQ(calls.stream_begin_capture(native(blocking), driver::CU_STREAM_CAPTURE_MODE_GLOBAL),
            driver::CUDA_SUCCESS);
  std::int32_t status = -1;
  std::uint64_t number = 99;
  EXPECT_OK(weir_stream_get_capture(blocking, &status, &number));
  EXPECT_EQ(status, weir_capture_active);
  EXPECT_EQ(number, stream_ref(device(), native(blocking)).capture().value().id.number());
  EXPECT_NE(number, 0u);
  EXPECT_OK(weir_stream_get_capture(legacy, &status, nullptr));
  EXPECT_EQ(status, weir_capture_implicit);
  EXPECT_OK(weir_stream_get_capture(stream, &status, &number));
  EXPECT_EQ(status, weir_capture_none);
  EXPECT_EQ(number, 0u);
  driver::CUgraph graph = nullptr;
  ASSERT_EQ(calls.stream_end_capture(native(blocking), &graph), driver::CUDA_SUCCESS);
  ASSERT_EQ(calls.graph_destroy(graph), driver::CUDA_SUCCESS);
  EXPECT_OK(weir_stream_close(legacy));
  EXPECT_OK(weir_stream_close(blocking));
}

// --- Events --------------------------------------------------------------------------------------

class c_events : public c_machine {
 protected:
  void SetUp() override {
    ASSERT_OK(weir_event_create(runtime, 0, weir_event_timing, &first));
    ASSERT_OK(weir_event_create(runtime, 0, weir_event_timing, &second));
  }
  void TearDown() override {
    EXPECT_OK(weir_event_close(first));
    EXPECT_OK(weir_event_close(second));
    c_machine::TearDown();
  }
  static bool is_complete(weir_event* event) {
    std::int32_t complete = -1;
    EXPECT_OK(weir_event_is_complete(event, &complete));
    EXPECT_TRUE(complete == 0 || complete == 1);
    return complete == 1;
  }
  weir_event* first = nullptr;
  weir_event* second = nullptr;
};

/// The flags that the driver was asked for.
unsigned& asked_flags() {
  static unsigned flags = 0;
  return flags;
}
driver::CUresult (*&real_event_create())(driver::CUevent*, unsigned) {
  static driver::CUresult (*real)(driver::CUevent*, unsigned) = nullptr;
  return real;
}

TEST_F(c_events, are_made_as_they_were_asked_for) {
  driver::table table = machine->driver();
  real_event_create() = table.event_create;
  table.event_create = [](driver::CUevent* event, unsigned flags) {
    asked_flags() = flags;
    return real_event_create()(event, flags);
  };
  weir_runtime* const observed = runtime_over(table);
  const auto flags_for = [&](std::uint32_t flags) {
    weir_event* event = nullptr;
    EXPECT_OK(weir_event_create(observed, 0, flags, &event));
    EXPECT_OK(weir_event_close(event));
    return asked_flags();
  };
  const unsigned untimed = driver::CU_EVENT_DISABLE_TIMING;
  EXPECT_EQ(flags_for(0), untimed);
  EXPECT_EQ(flags_for(weir_event_timing), 0u);
  EXPECT_EQ(flags_for(weir_event_interprocess), untimed | driver::CU_EVENT_INTERPROCESS);
  EXPECT_EQ(flags_for(weir_event_blocking_sync), untimed | driver::CU_EVENT_BLOCKING_SYNC);
  EXPECT_OK(weir_runtime_close(observed));
  void* handle = nullptr;
  ASSERT_OK(weir_event_get_native(first, &handle));
  EXPECT_EQ(handle, capi::find(first).value()->mark.handle());
  EXPECT_EQ(capi::find(first).value()->mark.device(), device());
}

TEST_F(c_events, mark_the_stream_that_they_are_recorded_on) {
  machine->hold(native(stream));
  ASSERT_OK(weir_event_record(first, stream));
  ASSERT_OK(weir_event_record(second, other));
  while (machine->step()) {
  }
  EXPECT_FALSE(is_complete(first));
  EXPECT_TRUE(is_complete(second));
  machine->release(native(stream));
  ASSERT_OK(weir_event_synchronize(first));
  EXPECT_TRUE(is_complete(first));
  EXPECT_TRUE(is_idle(stream));

  weir_stream* legacy = nullptr;
  ASSERT_OK(weir_stream_wrap(runtime, 0, nullptr, &legacy));
  occupy(legacy);
  ASSERT_OK(weir_event_record(first, nullptr));
  EXPECT_FALSE(is_complete(first));
  wait_for_all();
  EXPECT_TRUE(is_complete(first));
  EXPECT_OK(weir_stream_close(legacy));
  EXPECT_EQ(weir_event_record(first, elsewhere), weir_error_bad_stream);
}

TEST_F(c_events, mark_all_work_of_the_device) {
  occupy(stream);
  occupy(other);
  ASSERT_OK(weir_event_record_all(first));
  EXPECT_FALSE(is_complete(first));
  ASSERT_OK(weir_event_synchronize(first));
  EXPECT_TRUE(is_idle(stream));
  EXPECT_TRUE(is_idle(other));
}

TEST_F(c_events, are_waited_for_by_the_stream_that_is_named) {
  occupy(stream);
  ASSERT_OK(weir_event_record(first, stream));
  machine->hold(native(stream));
  ASSERT_OK(weir_stream_wait(other, first));
  occupy(other);
  while (machine->step()) {
  }
  EXPECT_FALSE(is_idle(other));
  EXPECT_TRUE(is_idle(elsewhere));
  ASSERT_OK(weir_stream_wait(elsewhere, first));
  ASSERT_OK(weir_stream_wait(nullptr, first));
  EXPECT_FALSE(is_idle(elsewhere));
  EXPECT_FALSE(is_legacy_idle());
  machine->release(native(stream));
  wait_for_all();
  EXPECT_TRUE(is_idle(other));
}

TEST_F(c_events, measure_the_time_between_them) {
  float time = -1;
  ASSERT_OK(weir_event_record(first, stream));
  ASSERT_OK(weir_stream_synchronize(stream));
  machine->advance(std::chrono::milliseconds{50});
  ASSERT_OK(weir_event_record(second, stream));
  EXPECT_OK(weir_stream_synchronize(stream));
  ASSERT_OK(weir_event_get_elapsed(first, second, &time));
  EXPECT_GE(time, 50.0F);
  EXPECT_LT(time, 60.0F);
  const float forwards = time;
  ASSERT_OK(weir_event_get_elapsed(second, first, &time));
  EXPECT_EQ(time, -forwards);
}

TEST_F(c_events, return_what_their_end_came_to) {
  weir_event* own = nullptr;
  ASSERT_OK(weir_event_create(runtime, 0, 0, &own));
  machine->fail(driver::call::event_destroy, 1, driver::CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_NE(weir_event_close(own), weir_ok);
  EXPECT_EQ(weir_last_error_native(), driver::CUDA_ERROR_ILLEGAL_STATE);
}

}  // namespace
}  // namespace weir::testing_support
