// SPDX-License-Identifier: Apache-2.0
// The C ABI's buffers of every kind, their pools and copies, each argument told apart from the
// others.
#include "c_fixture.hpp"

namespace weir::testing_support { namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class c_buffers : public c_memory {
 protected:
  [[nodiscard]] static weir_buffer_info info_of(weir_buffer* buffer) {
    return read<weir_buffer_info>([&](auto* into) { return weir_buffer_get_info(buffer, into); });
  }
  [[nodiscard]] weir_buffer* create(std::uint64_t size, weir_stream* on) const {
    weir_buffer* buffer = nullptr;
    EXPECT_OK(weir_buffer_create(memory, size, 0, on, &buffer));
    return buffer;
  }
};

// --- Device buffers ------------------------------------------------------------------------------

TEST_F(c_buffers, of_an_allocator_are_its_blocks) {
  weir_buffer* const buffer = create(3 * mib, other);
  const weir_buffer_info info = info_of(buffer);
  EXPECT_EQ(info.kind, weir_buffer_device);
  EXPECT_EQ(info.size, 3 * mib);
  EXPECT_EQ(info.device_address, reinterpret_cast<std::uintptr_t>(info.data));
  EXPECT_EQ(block_at(info.data).requested, 3 * mib);
  EXPECT_EQ(block_at(info.data).stream, id(other));
  occupy(other);
  EXPECT_OK(weir_buffer_close(buffer));
  EXPECT_EQ(bound_to(info.data), id(other)) << "it is freed on its stream";
  wait_for_all();
  weir_buffer* const legacy = create(1000, nullptr);
  EXPECT_EQ(block_at(info_of(legacy).data).stream, legacy_id());
  EXPECT_OK(weir_buffer_close(legacy));
  weir_buffer* const empty = create(0, stream);
  EXPECT_EQ(info_of(empty).data, nullptr);
  EXPECT_EQ(info_of(empty).size, 0u);
  EXPECT_OK(weir_buffer_close(empty));
  weir_buffer* none = nullptr;
  EXPECT_EQ(weir_buffer_create(memory, 1, 0, elsewhere, &none), weir_error_bad_stream);
}

TEST_F(c_buffers, that_are_plain_are_of_the_device_that_was_named) {
  weir_buffer* buffer = nullptr;
  const std::uint64_t near_before = used(0);
  const std::uint64_t far_before = used(1);
  ASSERT_OK(weir_buffer_create_plain(runtime, 1, 8 * mib, &buffer));
  EXPECT_EQ(used(0), near_before);
  EXPECT_EQ(used(1), far_before + 8 * mib);
  const weir_buffer_info info = info_of(buffer);
  EXPECT_EQ(info.kind, weir_buffer_device);
  EXPECT_EQ(info.size, 8 * mib);
  EXPECT_EQ(info.device_address, reinterpret_cast<std::uintptr_t>(info.data));
  EXPECT_OK(weir_buffer_close(buffer));
  EXPECT_EQ(used(1), far_before);
}

TEST_F(c_buffers, that_are_pinned_are_seen_from_both_sides) {
  weir_buffer* buffer = nullptr;
  const std::uint64_t allocated = calls(driver::call::mem_host_alloc);
  ASSERT_OK(weir_buffer_create_pinned(runtime, 0, 5000, &buffer));
  EXPECT_EQ(calls(driver::call::mem_host_alloc), allocated + 1);
  const weir_buffer_info info = info_of(buffer);
  EXPECT_EQ(info.kind, weir_buffer_pinned);
  EXPECT_EQ(info.size, 5000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(info.data) % 64, 0u);
  const auto* const host = static_cast<const unsigned char*>(info.data);
  EXPECT_EQ(host[0] + host[4999], 0);
  driver::CUdeviceptr mapped = 0;
  {
    const context_scope bound{device()};
    ASSERT_EQ(machine->driver().mem_host_get_device_pointer(&mapped, info.data, 0),
              driver::CUDA_SUCCESS);
  }
  EXPECT_EQ(info.device_address, mapped);
  EXPECT_EQ(said(weir_buffer_record_stream(buffer, stream)),
            "not_supported: pinned buffers are not stream-ordered; wait for the stream before "
            "closing them");
  EXPECT_EQ(
      said(weir_buffer_resize(buffer, 1)),
      "not_supported: only buffers created from an allocator, and plain ones, support this call");
  EXPECT_EQ(
      said(weir_buffer_hand_over(buffer, stream)),
      "not_supported: only buffers created from an allocator, and plain ones, support this call");
  EXPECT_EQ(said(weir_buffer_begin_host(buffer)),
            "not_supported: only managed buffers support this call");
  const std::uint64_t freed = calls(driver::call::mem_free_host);
  EXPECT_OK(weir_buffer_close(buffer));
  EXPECT_EQ(calls(driver::call::mem_free_host), freed + 1);
  weir_buffer* none = nullptr;
  EXPECT_EQ(said(weir_buffer_create_pinned(runtime, 0, 0, &none)),
            "invalid_argument: size must be greater than zero");
}

TEST_F(c_buffers, keep_their_bytes_when_they_are_resized) {
  weir_buffer* const buffer = create(2000, stream);
  EXPECT_OK(weir_fill(info_of(buffer).data, 7, 1000, stream));
  EXPECT_OK(weir_fill(static_cast<char*>(info_of(buffer).data) + 1000, 8, 1000, stream));
  EXPECT_OK(weir_buffer_resize(buffer, 5 * mib));
  const weir_buffer_info info = info_of(buffer);
  EXPECT_EQ(info.size, 5 * mib);
  EXPECT_EQ(block_at(info.data).requested, 5 * mib);
  auto content = bytes_at(info.data, 2000);
  EXPECT_THAT(std::vector(content.begin(), content.begin() + 1000), Each(7));
  EXPECT_THAT(std::vector(content.begin() + 1000, content.end()), Each(8));
  EXPECT_OK(weir_buffer_resize(buffer, 1500));
  EXPECT_EQ(info_of(buffer).size, 1500u);
  EXPECT_OK(weir_buffer_close(buffer));
}

TEST_F(c_buffers, that_are_handed_over_belong_to_the_next_stream) {
  weir_buffer* const buffer = create(3 * mib, stream);
  void* const data = info_of(buffer).data;
  occupy(stream);
  machine->hold(native(stream));
  EXPECT_TRUE(is_idle(other));
  ASSERT_OK(weir_buffer_hand_over(buffer, other));
  EXPECT_FALSE(is_idle(other)) << "it waits for the old one";
  machine->release(native(stream));
  wait_for_all();
  occupy(other);
  EXPECT_OK(weir_buffer_close(buffer));
  EXPECT_EQ(bound_to(data), id(other));
  wait_for_all();
}

// A buffer is freed on its stream, which must be there then.
TEST_F(c_buffers, keep_the_stream_that_they_belong_to) {
  weir_stream* first = nullptr;
  weir_stream* second = nullptr;
  ASSERT_OK(weir_stream_create(runtime, 0, 0, 0, &first));
  ASSERT_OK(weir_stream_create(runtime, 0, 0, 0, &second));
  const std::uint64_t destroyed = calls(driver::call::stream_destroy);
  const auto ended = [&] { return calls(driver::call::stream_destroy) - destroyed; };
  weir_buffer* const buffer = create(3 * mib, first);
  EXPECT_OK(weir_stream_close(first));
  EXPECT_EQ(ended(), 0u) << "it is the buffer's";
  ASSERT_OK(weir_buffer_hand_over(buffer, second));
  EXPECT_EQ(ended(), 1u) << "nobody needs it any more";
  EXPECT_OK(weir_stream_close(second));
  EXPECT_EQ(ended(), 1u) << "it is the buffer's";
  EXPECT_OK(weir_buffer_close(buffer));
  EXPECT_EQ(ended(), 2u);

  weir_stream* third = nullptr;
  ASSERT_OK(weir_stream_create(runtime, 0, 0, 0, &third));
  weir_buffer* const last = create(3 * mib, third);
  ASSERT_OK(weir_buffer_hand_over(last, nullptr));
  EXPECT_OK(weir_stream_close(third));
  EXPECT_EQ(ended(), 3u) << "the legacy stream needs nobody";
  EXPECT_OK(weir_buffer_close(last));
}

TEST_F(c_buffers, wait_for_the_streams_that_use_them) {
  weir_buffer* const buffer = create(3 * mib, stream);
  occupy(other);
  machine->hold(native(other));
  EXPECT_TRUE(is_idle(stream));
  EXPECT_OK(weir_buffer_join(buffer, other));
  EXPECT_FALSE(is_idle(stream));
  machine->release(native(other));
  wait_for_all();
  EXPECT_OK(weir_buffer_close(buffer));
}

// --- Copies --------------------------------------------------------------------------------------

TEST_F(c_buffers, are_copied_and_filled_as_far_as_was_asked_for) {
  void* const from = allocate(4096, stream);
  void* const to = allocate(4096, stream);
  EXPECT_OK(weir_fill(from, 1, 4096, stream));
  EXPECT_OK(weir_fill(to, 2, 4096, stream));
  EXPECT_FALSE(is_idle(stream));
  EXPECT_TRUE(is_idle(other));
  wait_for_all();
  EXPECT_OK(weir_copy(to, from, 100, other));
  EXPECT_FALSE(is_idle(other));
  EXPECT_TRUE(is_idle(stream));
  auto content = bytes_at(to, 4096);
  EXPECT_THAT(std::vector(content.begin(), content.begin() + 100), Each(1));
  EXPECT_THAT(std::vector(content.begin() + 100, content.end()), Each(2));
  EXPECT_OK(weir_fill(to, 3, 50, stream));
  content = bytes_at(to, 4096);
  EXPECT_THAT(std::vector(content.begin(), content.begin() + 50), Each(3));
  EXPECT_EQ(content[50], 1);
  EXPECT_THAT(bytes_at(from, 4096), Each(1));
  EXPECT_EQ(weir_copy(nullptr, from, 1, stream), weir_error_invalid_argument);
  EXPECT_EQ(weir_copy(to, nullptr, 1, stream), weir_error_invalid_argument);
  EXPECT_EQ(weir_fill(nullptr, 0, 1, stream), weir_error_invalid_argument);
  EXPECT_OK(weir_allocator_free(memory, from));
  EXPECT_OK(weir_allocator_free(memory, to));
}

// --- Managed buffers -----------------------------------------------------------------------------

class c_managed_buffers : public c_buffers {
 protected:
  void SetUp() override {
    ASSERT_OK(
        weir_buffer_create_managed(runtime, 0, 3 * page, 0, weir_attach_global, stream, &buffer));
    data = static_cast<unsigned char*>(info_of(buffer).data);
    wait_for_all();
  }
  void TearDown() override {
    EXPECT_OK(weir_buffer_close(buffer));
    c_buffers::TearDown();
  }
  [[nodiscard]] weir_managed_info at(std::uint64_t offset, std::uint64_t size) const {
    return read<weir_managed_info>(
        [&](auto* into) { return weir_buffer_get_managed_info(buffer, offset, size, into); });
  }
  /// What `of` says of each of the three pages.
  [[nodiscard]] std::vector<std::int32_t> by_page(std::int32_t weir_managed_info::*of) const {
    return {at(0, page).*of, at(page, page).*of, at(2 * page, 0).*of};
  }

  static constexpr std::uint64_t page = 2 * mib;
  weir_buffer* buffer = nullptr;
  unsigned char* data = nullptr;
};

TEST_F(c_managed_buffers, are_made_as_they_were_asked_for) {
  weir_buffer* made = nullptr;
  EXPECT_EQ(info_of(buffer).kind, weir_buffer_managed);
  EXPECT_EQ(info_of(buffer).size, 3 * page);
  EXPECT_EQ(info_of(buffer).device_address, reinterpret_cast<std::uintptr_t>(data));
  ASSERT_OK(weir_buffer_create_managed(runtime, 0, 5000, weir_buffer_zeroed, weir_attach_single,
                                       other, &made));
  EXPECT_EQ(info_of(made).size, 5000u);
  EXPECT_EQ(read<weir_managed_info>([&](auto* into) {
              return weir_buffer_get_managed_info(made, 0, 0, into);
            }).attachment,
            weir_attach_single);
  EXPECT_FALSE(is_idle(other)) << "zeros by a fill on its stream";
  EXPECT_TRUE(is_idle(stream));
  EXPECT_OK(weir_buffer_begin_host(made));
  const auto* const host = static_cast<const unsigned char*>(info_of(made).data);
  EXPECT_EQ(host[0] + host[4999], 0);
  EXPECT_OK(weir_buffer_end_host(made));
  EXPECT_OK(weir_buffer_close(made));

  const std::uint64_t far_before = used(1);
  ASSERT_OK(weir_buffer_create_managed(runtime, 1, 4 * mib, weir_buffer_zeroed, weir_attach_global,
                                       nullptr, &made));
  EXPECT_TRUE(is_legacy_idle(0));
  EXPECT_FALSE(is_legacy_idle(1)) << "of the device that was named";
  wait_for_all();
  EXPECT_GT(used(1), far_before);
  EXPECT_OK(weir_buffer_close(made));

  const unsigned char text[] = {1, 2, 3, 4, 5};
  ASSERT_OK(weir_buffer_create_managed_copy(runtime, 0, text, 4, weir_attach_host, stream, &made));
  EXPECT_EQ(info_of(made).size, 4u);
  EXPECT_OK(weir_buffer_begin_host(made));
  EXPECT_EQ(std::memcmp(info_of(made).data, text, 4), 0);
  EXPECT_EQ(read<weir_managed_info>([&](auto* into) {
              return weir_buffer_get_managed_info(made, 0, 0, into);
            }).attachment,
            weir_attach_host);
  EXPECT_OK(weir_buffer_close(made)) << "also while the host has it";

  for (const std::int32_t none : {-1, 3})
    EXPECT_EQ(said(weir_buffer_create_managed(runtime, 0, 1, 0, none, stream, &made)),
              "invalid_argument: attachment: unknown value");
  EXPECT_EQ(said(weir_buffer_create_managed(runtime, 0, 0, 0, 0, stream, &made)),
            "invalid_argument: size must be greater than zero");
}

TEST_F(c_managed_buffers, are_the_hosts_when_their_streams_are_done) {
  weir_event* event = nullptr;
  ASSERT_OK(weir_event_create(runtime, 0, 0, &event));
  EXPECT_OK(weir_buffer_use_on(buffer, other));
  EXPECT_OK(weir_fill(data, 5, 3 * page, other));
  EXPECT_OK(weir_event_record(event, other));
  occupy(other);
  EXPECT_EQ(weir_buffer_try_begin_host(buffer), weir_error_not_ready);
  EXPECT_FALSE(is_idle(other));
  EXPECT_OK(weir_buffer_begin_host_after(buffer, event));
  EXPECT_EQ(data[0], 5);
  EXPECT_FALSE(is_idle(other)) << "only what is before the event was waited for";
  EXPECT_OK(weir_buffer_end_host(buffer));
  EXPECT_OK(weir_buffer_use_on(buffer, other));
  EXPECT_OK(weir_buffer_begin_host(buffer));
  EXPECT_TRUE(is_idle(other));
  EXPECT_OK(weir_buffer_try_begin_host(buffer));
  EXPECT_EQ(weir_buffer_use_on(buffer, stream), weir_error_not_ready);
  EXPECT_OK(weir_buffer_end_host(buffer));
  EXPECT_EQ(weir_buffer_use_on(buffer, stream), weir_error_not_ready) << "they nest";
  EXPECT_OK(weir_buffer_end_host(buffer));
  EXPECT_OK(weir_buffer_use_on(buffer, stream));
  EXPECT_EQ(said(weir_buffer_end_host(buffer)),
            "invalid_argument: no host view of this buffer is open");
  EXPECT_OK(weir_event_close(event));
}

TEST_F(c_managed_buffers, are_advised_where_and_what_was_asked_for) {
  EXPECT_OK(weir_buffer_advise_read_mostly(buffer, page, page, 1));
  EXPECT_EQ(by_page(&weir_managed_info::read_mostly), (std::vector<std::int32_t>{0, 1, 0}));
  EXPECT_OK(weir_buffer_advise_read_mostly(buffer, page, 0, 1));
  EXPECT_EQ(by_page(&weir_managed_info::read_mostly), (std::vector<std::int32_t>{0, 1, 1}));
  EXPECT_OK(weir_buffer_advise_read_mostly(buffer, 0, 2 * page, 0));
  EXPECT_EQ(by_page(&weir_managed_info::read_mostly), (std::vector<std::int32_t>{0, 0, 1}));

  EXPECT_OK(weir_buffer_advise_preferred(buffer, 0, page, 1));
  EXPECT_OK(weir_buffer_advise_preferred(buffer, page, page, WEIR_PLACE_HOST));
  EXPECT_OK(weir_buffer_advise_preferred(buffer, 2 * page, page, 0));
  EXPECT_EQ(by_page(&weir_managed_info::preferred),
            (std::vector<std::int32_t>{1, WEIR_PLACE_HOST, 0}));
  EXPECT_OK(weir_buffer_advise_preferred(buffer, page, page, WEIR_PLACE_NONE));
  EXPECT_EQ(by_page(&weir_managed_info::preferred),
            (std::vector<std::int32_t>{1, WEIR_PLACE_NONE, 0}));

  const auto accessors = [&](std::uint64_t offset) {
    const weir_managed_info info = at(offset, page);
    return std::vector(info.accessed_by, info.accessed_by + info.accessed_by_count);
  };
  for (const std::int32_t place : {0, 1, WEIR_PLACE_HOST})
    EXPECT_OK(weir_buffer_advise_accessed_by(buffer, page, page, place, 1));
  EXPECT_THAT(accessors(page), UnorderedElementsAre(0, 1, WEIR_PLACE_HOST));
  EXPECT_OK(weir_buffer_advise_accessed_by(buffer, page, page, 0, 0));
  EXPECT_THAT(accessors(page), UnorderedElementsAre(1, WEIR_PLACE_HOST));
  EXPECT_THAT(accessors(0), UnorderedElementsAre());
  EXPECT_EQ(said(weir_buffer_advise_accessed_by(buffer, 0, 0, WEIR_PLACE_NONE, 1)),
            "invalid_argument: location is missing");
  EXPECT_EQ(weir_buffer_advise_preferred(buffer, 0, 0, 2), weir_error_no_device);
}

TEST_F(c_managed_buffers, are_moved_where_and_when_was_asked_for) {
  EXPECT_OK(weir_buffer_prefetch(buffer, 0, page, 1, other));
  EXPECT_FALSE(is_idle(other));
  EXPECT_TRUE(is_idle(stream));
  EXPECT_OK(weir_buffer_prefetch(buffer, page, page, 0, nullptr));
  EXPECT_FALSE(is_legacy_idle());
  EXPECT_OK(weir_buffer_prefetch(buffer, 2 * page, 0, WEIR_PLACE_HOST, stream));
  wait_for_all();
  EXPECT_EQ(by_page(&weir_managed_info::last_prefetch),
            (std::vector<std::int32_t>{1, 0, WEIR_PLACE_HOST}));
  EXPECT_EQ(at(0, 0).last_prefetch, WEIR_PLACE_NONE) << "its pages differ";
  EXPECT_EQ(said(weir_buffer_prefetch(buffer, 0, 0, WEIR_PLACE_NONE, stream)),
            "invalid_argument: location is missing");
}

/// The place that the driver was last advised of, and answers to every question with.
driver::CUmemLocation& advised_place() {
  static driver::CUmemLocation place;
  return place;
}

// The simulated machine has one node of host memory: another driver must do.
TEST_F(c_managed_buffers, may_be_on_a_node_of_the_host) {
  driver::table table = machine->driver();
  table.mem_advise = [](driver::CUdeviceptr, std::size_t, driver::CUmem_advise,
                        driver::CUmemLocation place) {
    advised_place() = place;
    return driver::CUDA_SUCCESS;
  };
  table.mem_range_get_attribute = [](void* into, std::size_t size,
                                     driver::CUmem_range_attribute attribute, driver::CUdeviceptr,
                                     std::size_t) {
    const bool is_type = attribute == driver::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE ||
                         attribute == driver::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE;
    std::memset(into, 0, size);
    const int answer = is_type ? static_cast<int>(advised_place().type) : advised_place().id;
    std::memcpy(into, &answer, sizeof(answer));
    return driver::CUDA_SUCCESS;
  };
  weir_runtime* const other_driver = runtime_over(table);
  weir_buffer* placed = nullptr;
  ASSERT_OK(weir_buffer_create_managed(other_driver, 0, page, 0, 0, nullptr, &placed));
  EXPECT_OK(weir_buffer_advise_preferred(placed, 0, 0, WEIR_PLACE_HOST_NODE(3)));
  EXPECT_EQ(advised_place().type, driver::CU_MEM_LOCATION_TYPE_HOST_NUMA);
  EXPECT_EQ(advised_place().id, 3);
  const auto info = read<weir_managed_info>(
      [&](auto* into) { return weir_buffer_get_managed_info(placed, 0, 0, into); });
  EXPECT_EQ(info.preferred, WEIR_PLACE_HOST_NODE(3));
  EXPECT_EQ(info.last_prefetch, WEIR_PLACE_HOST_NODE(3));
  EXPECT_OK(weir_buffer_close(placed));
  EXPECT_OK(weir_runtime_close(other_driver));
}

TEST_F(c_managed_buffers, have_no_bytes_outside) {
  const std::string outside = "invalid_argument: the range exceeds the buffer";
  const std::uint64_t end = 3 * page;
  struct {
    std::uint64_t offset;
    std::uint64_t size;
    bool fits;
  } const rows[] = {{0, end, true},         {0, end + 1, false},         {end - 1, 0, true},
                    {end - 1, 1, true},     {end - 1, 2, false},         {end, 0, false},
                    {page, 2 * page, true}, {page, 2 * page + 1, false}, {page, UINT64_MAX, false},
                    {UINT64_MAX, 1, false}};
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.offset) + ", " + std::to_string(row.size));
    const std::string expected = row.fits ? "" : outside;
    auto info = unset<weir_managed_info>();
    EXPECT_EQ(said(weir_buffer_get_managed_info(buffer, row.offset, row.size, &info)), expected);
    EXPECT_EQ(said(weir_buffer_prefetch(buffer, row.offset, row.size, 0, stream)), expected);
    EXPECT_EQ(said(weir_buffer_advise_read_mostly(buffer, row.offset, row.size, 0)), expected);
    EXPECT_EQ(said(weir_buffer_advise_preferred(buffer, row.offset, row.size, 0)), expected);
    EXPECT_EQ(said(weir_buffer_advise_accessed_by(buffer, row.offset, row.size, 0, 1)), expected);
  }
}

TEST_F(c_managed_buffers, are_attached_and_resized_on_the_stream_that_is_named) {
  EXPECT_EQ(at(0, 0).attachment, weir_attach_global);
  EXPECT_OK(weir_buffer_attach(buffer, weir_attach_single, other));
  EXPECT_EQ(at(0, 0).attachment, weir_attach_single);
  EXPECT_EQ(weir_buffer_attach(buffer, weir_attach_single, nullptr), weir_error_invalid_argument);
  EXPECT_EQ(said(weir_buffer_attach(buffer, 3, other)),
            "invalid_argument: attachment: unknown value");
  EXPECT_OK(weir_buffer_attach(buffer, weir_attach_global, other));
  EXPECT_EQ(at(0, 0).attachment, weir_attach_global);
  EXPECT_OK(weir_buffer_use_on(buffer, stream));
  EXPECT_OK(weir_fill(data, 9, 3 * page, stream));
  wait_for_all();

  EXPECT_OK(weir_buffer_resize_managed(buffer, 5 * page, other));
  EXPECT_EQ(info_of(buffer).size, 5 * page);
  EXPECT_OK(weir_buffer_begin_host(buffer));
  const auto* const host = static_cast<const unsigned char*>(info_of(buffer).data);
  EXPECT_EQ(host[0], 9);
  EXPECT_EQ(host[3 * page - 1], 9);
  EXPECT_EQ(host[3 * page], 0);
  EXPECT_EQ(host[5 * page - 1], 0);
  EXPECT_OK(weir_buffer_end_host(buffer));
}

TEST_F(c_managed_buffers, use_the_stream_that_is_named) {
  using driver::call;
  weir_runtime* const noted = runtime_over(with_noted_streams(machine->driver()));
  weir_stream* const first = wrapped(noted, stream);
  weir_stream* const second = wrapped(noted, other);
  weir_buffer* made = nullptr;
  ASSERT_OK(weir_buffer_create_managed(noted, 0, page, weir_buffer_zeroed, weir_attach_single,
                                       second, &made));
  EXPECT_THAT(take_noted_streams(),
              ElementsAre(std::pair{call::stream_attach_mem_async, native(other)},
                          std::pair{call::memset_d8_async, native(other)}));
  EXPECT_OK(weir_buffer_attach(made, weir_attach_global, first));
  EXPECT_THAT(take_noted_streams(),
              ElementsAre(std::pair{call::stream_attach_mem_async, native(stream)}));
  EXPECT_OK(weir_buffer_prefetch(made, 0, 0, 0, second));
  EXPECT_THAT(take_noted_streams(),
              ElementsAre(std::pair{call::mem_prefetch_async, native(other)}));
  EXPECT_OK(weir_buffer_resize_managed(made, 2 * page, first));
  EXPECT_THAT(take_noted_streams(), ElementsAre(std::pair{call::memset_d8_async, native(stream)}));
  EXPECT_OK(weir_buffer_resize_managed(made, 3 * page, nullptr));
  EXPECT_THAT(take_noted_streams(),
              ElementsAre(std::pair{call::memset_d8_async, driver::legacy_stream()}));
  EXPECT_OK(weir_buffer_close(made));
  EXPECT_OK(weir_stream_close(first));
  EXPECT_OK(weir_stream_close(second));
  EXPECT_OK(weir_runtime_close(noted));
}

// --- Buffer pools --------------------------------------------------------------------------------

class c_buffer_pools : public c_buffers {
 protected:
  void SetUp() override { ASSERT_OK(weir_buffer_pool_create(nullptr, &pool)); }
  void TearDown() override {
    EXPECT_OK(weir_buffer_pool_close(pool));
    c_buffers::TearDown();
  }
  [[nodiscard]] static weir_buffer* take(weir_buffer_pool* from, std::uint64_t size,
                                         weir_stream* on) {
    weir_buffer* buffer = nullptr;
    EXPECT_OK(weir_buffer_pool_take(from, size, 0, on, &buffer));
    return buffer;
  }
  [[nodiscard]] weir_buffer_pool_stats stats(weir_runtime* of, std::int32_t number) const {
    return read<weir_buffer_pool_stats>(
        [&](auto* into) { return weir_buffer_pool_get_stats(pool, of, number, into); });
  }
  /// Two buffers freed and one taken on either device.
  void use_both_devices() {
    const auto use = [&](weir_stream* on, std::uint64_t size) {
      weir_buffer* const first = take(pool, size, on);
      weir_buffer* const second = take(pool, size, on);
      EXPECT_OK(weir_buffer_close(first));
      EXPECT_OK(weir_buffer_close(second));
      taken.push_back(take(pool, size, on));
    };
    use(stream, mib);
    use(elsewhere, 4 * mib);
    wait_for_all();
  }
  weir_buffer_pool* pool = nullptr;
  std::vector<weir_buffer*> taken;
};

TEST_F(c_buffer_pools, take_what_was_asked_for) {
  weir_buffer* buffer = nullptr;
  EXPECT_EQ(weir_buffer_pool_take_cached(pool, mib, 0, stream, &buffer), weir_error_not_found);
  ASSERT_OK(weir_buffer_pool_take(pool, mib, weir_buffer_zeroed, other, &buffer));
  EXPECT_FALSE(is_idle(other)) << "zeros by a fill on its stream";
  EXPECT_TRUE(is_idle(stream));
  const weir_buffer_info info = info_of(buffer);
  EXPECT_EQ(info.kind, weir_buffer_device);
  EXPECT_EQ(info.size, mib);
  EXPECT_THAT(bytes_at(info.data, 100), Each(0));
  EXPECT_OK(weir_fill(info.data, 3, mib, other));
  EXPECT_OK(weir_buffer_close(buffer));

  EXPECT_EQ(weir_buffer_pool_take_cached(pool, 2 * mib, 0, other, &buffer), weir_error_not_found);
  ASSERT_OK(weir_buffer_pool_take_cached(pool, mib, 0, other, &buffer));
  EXPECT_EQ(info_of(buffer).data, info.data);
  EXPECT_THAT(bytes_at(info.data, 100), Each(3)) << "undefined";
  EXPECT_OK(weir_buffer_close(buffer));
  ASSERT_OK(weir_buffer_pool_take_cached(pool, mib, weir_buffer_zeroed, other, &buffer));
  EXPECT_THAT(bytes_at(info.data, 100), Each(0));
  EXPECT_OK(weir_buffer_close(buffer));
}

TEST_F(c_buffer_pools, free_behind_the_stream_that_is_named) {
  weir_buffer* buffer = take(pool, mib, stream);
  void* const data = info_of(buffer).data;
  occupy(stream);
  machine->hold(native(stream));
  occupy(other);
  machine->hold(native(other));
  EXPECT_OK(weir_buffer_pool_free(pool, buffer, other));
  EXPECT_EQ(weir_buffer_close(buffer), weir_error_closed);
  weir_buffer* again = nullptr;
  EXPECT_EQ(weir_buffer_pool_take_cached(pool, mib, 0, stream, &again), weir_error_not_found);
  ASSERT_OK(weir_buffer_pool_take_cached(pool, mib, 0, other, &again));
  EXPECT_EQ(info_of(again).data, data);
  machine->release(native(stream));
  machine->release(native(other));
  wait_for_all();
  EXPECT_OK(weir_buffer_close(again));

  weir_buffer_pool* second = nullptr;
  ASSERT_OK(weir_buffer_pool_create(nullptr, &second));
  weir_buffer* const foreign = take(second, mib, stream);
  EXPECT_EQ(weir_buffer_pool_free(pool, foreign, stream), weir_error_foreign_pointer);
  EXPECT_EQ(info_of(foreign).size, mib) << "its handle is open still";
  weir_buffer* const of_none = create(1000, stream);
  EXPECT_EQ(said(weir_buffer_pool_free(pool, of_none, stream)),
            "foreign_pointer: the buffer was not taken from a buffer pool");
  EXPECT_OK(weir_buffer_close(of_none));
  EXPECT_OK(weir_buffer_close(foreign));
  EXPECT_OK(weir_buffer_pool_close(second));
}

TEST_F(c_buffer_pools, keep_buffers_for_the_streams_that_were_recorded) {
  weir_buffer_pool_options declared = WEIR_BUFFER_POOL_OPTIONS_INIT;
  declared.flags = weir_buffer_pool_declared_uses;
  weir_buffer_pool* pools[2] = {};
  ASSERT_OK(weir_buffer_pool_create(nullptr, &pools[0]));
  ASSERT_OK(weir_buffer_pool_create(&declared, &pools[1]));
  weir_stream* third = nullptr;
  ASSERT_OK(weir_stream_create(runtime, 0, 0, 0, &third));
  /// Whether a buffer goes from the first stream to the third while the second is busy.
  const auto crosses = [&](weir_buffer_pool* from, bool is_recorded) {
    weir_buffer* const buffer = take(from, mib, stream);
    if (is_recorded) {
      EXPECT_OK(weir_buffer_record_stream(buffer, other));
    }
    occupy(other);
    machine->hold(native(other));
    EXPECT_OK(weir_buffer_close(buffer));
    weir_buffer* next = nullptr;
    EXPECT_OK(weir_buffer_pool_take(from, mib, 0, third, &next));
    const bool is_hit = read<weir_buffer_pool_stats>([&](auto* into) {
                          return weir_buffer_pool_get_stats(from, nullptr, 0, into);
                        }).hits != 0;
    machine->release(native(other));
    wait_for_all();
    EXPECT_OK(weir_buffer_close(next));
    EXPECT_OK(weir_buffer_pool_empty_cache(from, nullptr, 0, nullptr));
    EXPECT_OK(weir_buffer_pool_reset_counters(from, nullptr, 0));
    return is_hit;
  };
  EXPECT_FALSE(crosses(pools[0], false)) << "the work of all streams counts";
  EXPECT_TRUE(crosses(pools[1], false)) << "only declared uses do";
  EXPECT_FALSE(crosses(pools[1], true));
  EXPECT_OK(weir_stream_close(third));
  for (weir_buffer_pool* const each : pools) EXPECT_OK(weir_buffer_pool_close(each));
}

TEST_F(c_buffer_pools, count_by_device) {
  use_both_devices();
  weir_buffer_pool_stats now = stats(runtime, 0);
  EXPECT_EQ(now.hits, 1u);
  EXPECT_EQ(now.misses, 2u);
  EXPECT_EQ(now.returns, 2u);
  EXPECT_EQ(now.cached, mib);
  EXPECT_EQ(now.taken.current, mib);
  EXPECT_EQ(now.taken.peak, 2 * mib);
  now = stats(runtime, 1);
  EXPECT_EQ(now.cached, 4 * mib);
  EXPECT_EQ(now.taken.peak, 8 * mib);
  now = stats(nullptr, 99);
  EXPECT_EQ(now.hits, 2u);
  EXPECT_EQ(now.misses, 4u);
  EXPECT_EQ(now.returns, 4u);
  EXPECT_EQ(now.cached, 5 * mib);
  EXPECT_EQ(now.taken.current, 5 * mib);
  EXPECT_EQ(now.taken.peak, 10 * mib);

  EXPECT_OK(weir_buffer_pool_reset_peaks(pool, runtime, 1));
  EXPECT_EQ(stats(runtime, 0).taken.peak, 2 * mib);
  EXPECT_EQ(stats(runtime, 1).taken.peak, 4 * mib);
  EXPECT_OK(weir_buffer_pool_reset_peaks(pool, nullptr, 99));
  EXPECT_EQ(stats(runtime, 0).taken.peak, mib);
  EXPECT_OK(weir_buffer_pool_reset_counters(pool, runtime, 0));
  EXPECT_EQ(stats(runtime, 0).misses, 0u);
  EXPECT_EQ(stats(runtime, 1).misses, 2u);
  EXPECT_OK(weir_buffer_pool_reset_counters(pool, nullptr, 99));
  EXPECT_EQ(stats(nullptr, 0).misses, 0u);
  for (weir_buffer* const each : taken) EXPECT_OK(weir_buffer_close(each));
}

TEST_F(c_buffer_pools, release_by_device) {
  use_both_devices();
  for (weir_buffer* const each : taken) EXPECT_OK(weir_buffer_close(each));
  wait_for_all();
  std::uint64_t released = 99;
  EXPECT_OK(weir_buffer_pool_trim(pool, runtime, 1, 4 * mib, &released));
  EXPECT_EQ(released, 4 * mib);
  EXPECT_EQ(stats(runtime, 0).cached, 2 * mib);
  EXPECT_EQ(stats(runtime, 1).cached, 4 * mib);
  EXPECT_OK(weir_buffer_pool_trim(pool, nullptr, 99, mib, &released));
  EXPECT_EQ(released, 5 * mib);
  EXPECT_EQ(stats(runtime, 0).cached, mib);
  EXPECT_OK(weir_buffer_pool_empty_cache(pool, runtime, 1, &released));
  EXPECT_EQ(released, 0u);
  EXPECT_OK(weir_buffer_pool_empty_cache(pool, runtime, 0, &released));
  EXPECT_EQ(released, mib);
  EXPECT_OK(weir_buffer_close(take(pool, mib, stream)));
  EXPECT_OK(weir_buffer_close(take(pool, 4 * mib, elsewhere)));
  EXPECT_OK(weir_buffer_pool_empty_cache(pool, nullptr, 99, &released));
  EXPECT_EQ(released, 5 * mib);
}

TEST_F(c_buffer_pools, cache_within_their_bounds) {
  weir_buffer_pool_options bounds = WEIR_BUFFER_POOL_OPTIONS_INIT;
  const auto cached_of_three = [&] {
    weir_buffer_pool* bounded = nullptr;
    EXPECT_OK(weir_buffer_pool_create(&bounds, &bounded));
    weir_buffer* buffers[3];
    for (weir_buffer*& each : buffers) each = take(bounded, mib, stream);
    for (weir_buffer* const each : buffers) EXPECT_OK(weir_buffer_close(each));
    wait_for_all();
    EXPECT_OK(weir_buffer_pool_trim(bounded, nullptr, 0, WEIR_NO_LIMIT, nullptr));
    const std::uint64_t cached = read<weir_buffer_pool_stats>([&](auto* into) {
                                   return weir_buffer_pool_get_stats(bounded, nullptr, 0, into);
                                 }).cached;
    EXPECT_OK(weir_buffer_pool_close(bounded));
    return cached;
  };
  EXPECT_EQ(cached_of_three(), 3 * mib);
  bounds.max_cached = 2 * mib;
  EXPECT_EQ(cached_of_three(), 2 * mib);
  bounds.max_cached = WEIR_NO_LIMIT;
  bounds.max_idle_time = 1;
  EXPECT_EQ(cached_of_three(), 0u);
  bounds.max_idle_time = std::uint64_t{INT64_MAX} + 1;  // cut to what can be counted
  EXPECT_EQ(cached_of_three(), 3 * mib);
}

TEST_F(c_buffer_pools, may_be_closed_before_their_buffers) {
  weir_buffer_pool* brief = nullptr;
  ASSERT_OK(weir_buffer_pool_create(nullptr, &brief));
  weir_buffer* const buffer = take(brief, 8 * mib, stream);
  EXPECT_OK(weir_buffer_pool_close(brief));
  const std::uint64_t before = used();
  EXPECT_OK(weir_fill(info_of(buffer).data, 1, 8 * mib, stream));
  EXPECT_OK(weir_buffer_close(buffer));
  EXPECT_EQ(used(), before - 8 * mib);
  EXPECT_TRUE(is_idle(stream)) << "its stream was waited for";
}

}  // namespace
}  // namespace weir::testing_support
