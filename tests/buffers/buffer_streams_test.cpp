// SPDX-License-Identifier: Apache-2.0
// Device buffers and their streams: of other threads, of other devices, in captures.
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "buffers/simulated_test.hpp"
#include "support/captures.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/buffer/device_buffer.hpp"
#include "weir/buffer/device_vector.hpp"
#include "weir/buffer/pinned_buffer.hpp"
#include "weir/buffer/staging.hpp"
#include "weir/pool/bin_pool.hpp"
#include "weir/pool/pinned_pool.hpp"
#include "weir/pool/stream_pool.hpp"
#include "weir/resource/plain_resource.hpp"

namespace weir::testing_support { namespace {

constexpr std::size_t elements_each = 1024;
constexpr bytes size_each{elements_each * sizeof(word)};

class buffer_streams : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(2, device_with_room());
    open(settings);
  }
  [[nodiscard]] stream_ref own() const { return stream_ref::per_thread(gpu()); }
  [[nodiscard]] std::vector<any_resource> resources() const {
    return {bin_pool::create(gpu()).value(), caching_allocator::create(gpu()).value(),
            stream_pool::create(gpu()).value(), plain_resource::create(gpu()).value()};
  }
  void increment(device_buffer& buffer, const stream_ref& on) {
    launch({static_cast<word*>(buffer.data()), elements_each}, on);
  }
  /// A buffer of zeros on the default stream of a thread that is over, with work on it.
  [[nodiscard]] device_buffer make_elsewhere(const any_resource& memory) {
    device_buffer buffer;
    std::thread{[&] {
      buffer = device_buffer::create(memory, size_each, own(), contents::zeroed).value();
      increment(buffer, own());
    }}.join();
    return buffer;
  }
};

// --- Default streams of other threads ------------------------------------------------------------

TEST_F(buffer_streams, ABufferThatEndsOnAnotherThreadIsFreedBehindItsWork) {
  for (const any_resource& memory : resources()) {
    { const auto ended = make_elsewhere(memory); }
    auto closed = make_elsewhere(memory);
    WEIR_DONE(closed.close());
    auto assigned = make_elsewhere(memory);
    assigned = {};
    // Races with the old owner's kernel, were it not waited for.
    auto next = device_buffer::create(memory, size_each, own()).value();
    increment(next, own());
    WEIR_DONE(own().synchronize());
  }
}

TEST_F(buffer_streams, APinnedBufferThatEndsOnAnotherThreadIsFreedBehindItsWork) {
  const auto pool = pinned_pool::create(gpu()).value();
  pinned_buffer<word> buffer;
  std::thread{[&] {
    buffer = pinned_buffer<word>::create(pool, elements_each, own()).value();
    launch({buffer.data(), elements_each}, own());
  }}.join();
  const word* const first = buffer.data();
  *buffer.data() = 6;
  buffer = {};
  EXPECT_EQ(*first, 7U) << "the kernel was waited for";
}

TEST_F(buffer_streams, CallsThatWouldUseAnotherThreadsStreamAreRefused) {
  const auto memory = bin_pool::create(gpu()).value();
  const auto on = make_stream();
  auto buffer = make_elsewhere(memory);
  auto other = device_buffer::create(memory, size_each, on, contents::zeroed).value();
  word first = 0;
  EXPECT_EQ(code_of(buffer.check_stream()), errc::bad_stream);
  EXPECT_EQ(code_of(buffer.resize(2 * size_each)), errc::bad_stream);
  EXPECT_EQ(code_of(buffer.join(on)), errc::bad_stream);
  EXPECT_EQ(code_of(buffer.read(&first, {}, bytes{sizeof(word)})), errc::bad_stream);
  EXPECT_EQ(code_of(copy_between(other, {}, buffer, {}, size_each)), errc::bad_stream);
  EXPECT_EQ(code_of(copy_between(buffer, {}, other, {}, size_each)), errc::bad_stream);
  EXPECT_EQ(buffer.size(), size_each);
  WEIR_DONE(buffer.hand_over(on));
  WEIR_DONE(buffer.check_stream());
  WEIR_DONE(buffer.read(&first, {}, bytes{sizeof(word)}));
  EXPECT_EQ(first, 1U) << "the work of the other thread was waited for";
}

TEST_F(buffer_streams, AVectorOfAnotherThreadsStreamIsRefused) {
  const auto memory = bin_pool::create(gpu()).value();
  device_vector<word> some;
  std::thread{[&] {
    some = device_vector<word>::create(memory, elements_each, own(), contents::zeroed).value();
    ASSERT_TRUE(some.fill(3));
  }}.join();
  word values[elements_each] = {};
  EXPECT_EQ(code_of(some.get(0)), errc::bad_stream);
  EXPECT_EQ(code_of(some.set(0, 1)), errc::bad_stream);
  EXPECT_EQ(code_of(some.fill(1)), errc::bad_stream);
  EXPECT_EQ(code_of(some.copy_from(values)), errc::bad_stream);
  EXPECT_EQ(code_of(some.copy_to(values)), errc::bad_stream);
  const auto on = make_stream();
  WEIR_DONE(some.hand_over(on));
  EXPECT_EQ(some.get(0).value(), 3U);
}

TEST_F(buffer_streams, StagingOfAnotherThreadsStreamIsRefused) {
  const auto pool = pinned_pool::create(gpu()).value();
  auto target = device_buffer::create(bin_pool::create(gpu()).value(), size_each, own()).value();
  std::optional<staging_buffer> staging;
  std::thread{[&] { staging = staging_buffer::create(pool, own()).value(); }}.join();
  std::byte source[64] = {};
  EXPECT_EQ(code_of(staging->upload(target.data(), source)), errc::bad_stream);
  EXPECT_EQ(code_of(staging->download(source, target.data())), errc::bad_stream);
}

// --- Streams of other devices --------------------------------------------------------------------

TEST_F(buffer_streams, ABufferIsNotHandedOverToAnotherDevice) {
  const auto on = make_stream();
  const auto far = make_stream(1);
  for (const any_resource& memory : resources()) {
    auto buffer = device_buffer::create(memory, size_each, on).value();
    EXPECT_EQ(code_of(buffer.hand_over(far)), errc::bad_stream);
    EXPECT_EQ(buffer.stream(), on.ref());
    WEIR_DONE(buffer.resize(2 * size_each));
    WEIR_DONE(buffer.close());
  }
}

// --- Resources that throw ------------------------------------------------------------------------

/// A resource whose frees throw.
struct throwing_resource {
  result<void*> try_allocate(bytes size, const stream_ref& stream, bytes alignment) const {
    return under.try_allocate(size, stream, alignment);
  }
  result<void> try_deallocate(void* pointer, bytes size, const stream_ref& stream) const {
    EXPECT_TRUE(under.try_deallocate(pointer, size, stream));
    if (no_memory) throw std::bad_alloc{};
    throw std::runtime_error{"a free"};
  }
  [[nodiscard]] weir::device device() const { return under.device(); }
  friend bool operator==(const throwing_resource&, const throwing_resource&) = default;

  bin_pool under;
  bool no_memory;
};

TEST_F(buffer_streams, AResourceThatThrowsIsAnErrorOfTheEnd) {
  const auto on = make_stream();
  const auto pool = bin_pool::create(gpu()).value();
  for (const bool no_memory : {false, true}) {
    const errc expected = no_memory ? errc::no_host_memory : errc::system;
    const throwing_resource memory{pool, no_memory};
    auto closed = device_buffer::create(memory, size_each, on).value();
    EXPECT_EQ(code_of(closed.close()), expected);
    { const auto ended = device_buffer::create(memory, size_each, on).value(); }
    const auto told = heard.take();
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].code(), expected);
  }
}

// --- Captures ------------------------------------------------------------------------------------

TEST_F(buffer_streams, ABufferDoesNotMoveOnACapturedStream) {
  const auto on = make_stream();
  const auto memory = bin_pool::create(gpu()).value();
  auto buffer = device_buffer::create(memory, size_each, on, contents::zeroed).value();
  word first = 7;
  {
    checked_capture capture{on};
    EXPECT_EQ(code_of(buffer.resize(2 * size_each)), errc::capture_forbidden);
    EXPECT_EQ(code_of(buffer.reserve(2 * size_each)), errc::capture_forbidden);
    EXPECT_EQ(code_of(buffer.read(&first, {}, bytes{sizeof(word)})), errc::capture_forbidden);
    WEIR_DONE(buffer.resize(size_each / 2));
    EXPECT_EQ(code_of(buffer.shrink_to_fit()), errc::capture_forbidden);
    EXPECT_EQ(capture.end(), 0u);
  }
  EXPECT_EQ(first, 7U);
  WEIR_DONE(buffer.shrink_to_fit());
  WEIR_DONE(buffer.read(&first, {}, bytes{sizeof(word)}));
  EXPECT_EQ(first, 0U);
}

TEST_F(buffer_streams, AHandOverAcrossTheBorderOfACaptureIsRefused) {
  const auto captured = make_stream();
  const auto other = make_stream();
  const auto memory = bin_pool::create(gpu()).value();
  auto outside = device_buffer::create(memory, size_each, other).value();
  checked_capture capture{captured};
  EXPECT_EQ(code_of(outside.hand_over(captured)), errc::capture_forbidden);
  EXPECT_EQ(outside.stream(), other.ref());
  EXPECT_EQ(capture.end(), 0u);
}

TEST_F(buffer_streams, TheLegacyStreamDoesNotJoinACapture) {
  const auto captured = make_stream();
  const stream_ref legacy = stream_ref::legacy(gpu());
  const any_resource memory = bin_pool::create(gpu()).value();
  auto inside = device_buffer::create(memory, size_each, captured).value();
  auto outside = device_buffer::create(memory, size_each, legacy).value();
  checked_capture capture{captured};
  EXPECT_EQ(code_of(inside.hand_over(legacy)), errc::capture_forbidden);
  EXPECT_EQ(code_of(outside.join(captured)), errc::capture_forbidden);
  EXPECT_EQ(code_of(copy_between(outside, {}, inside, {}, size_each)), errc::capture_forbidden);
  EXPECT_EQ(capture.end(), 0u);
}

TEST_F(buffer_streams, NothingIsQueuedOnTheLegacyStreamBesideACapture) {
  const foreign_stream captured{gpu(), driver::CU_STREAM_DEFAULT};
  const stream_ref legacy = stream_ref::legacy(gpu());
  const auto on = make_stream();
  const auto memory = bin_pool::create(gpu()).value();
  auto buffer = device_buffer::create(memory, size_each, legacy, contents::zeroed).value();
  auto other = device_buffer::create(memory, size_each, on, contents::zeroed).value();
  checked_capture capture{captured};
  EXPECT_EQ(code_of(buffer.resize(2 * size_each)), errc::capture_forbidden);
  EXPECT_EQ(code_of(buffer.join(on)), errc::capture_forbidden);
  EXPECT_EQ(code_of(buffer.hand_over(on)), errc::capture_forbidden);
  EXPECT_EQ(code_of(other.hand_over(legacy)), errc::capture_forbidden);
  EXPECT_EQ(code_of(copy_between(other, {}, buffer, {}, size_each)), errc::capture_forbidden);
  EXPECT_EQ(code_of(copy_bytes(buffer.data(), other.data(), size_each, legacy)),
            errc::capture_forbidden);
  EXPECT_EQ(code_of(fill_bytes(buffer.data(), 0, size_each, legacy)), errc::capture_forbidden);
  WEIR_DONE(buffer.close());
  EXPECT_EQ(capture.end(), 0u);
}

}  // namespace
}  // namespace weir::testing_support
