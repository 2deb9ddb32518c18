// SPDX-License-Identifier: Apache-2.0
// Unified buffers beside captures: every capture stays valid, and work from before it is waited
// for.
#include <functional>
#include <optional>

#include "buffers/simulated_test.hpp"
#include "support/captures.hpp"
#include "weir/buffer/unified_buffer.hpp"

namespace weir::testing_support { namespace {

constexpr std::size_t captured_words = 1024;

class managed_captures : public simulated {
 protected:
  void SetUp() override {
    sim::machine_options settings;
    settings.devices.assign(2, device_with_room());
    open(settings);
  }
  [[nodiscard]] unified_buffer<word> make(const stream_ref& on) {
    auto some = unified_buffer<word>::zeroed(captured_words, on).value();
    EXPECT_TRUE(some.view());
    return some;
  }
  /// Does `act` with a buffer that the legacy stream works on, or has worked on, beside the capture
  /// of a stream that synchronises with it.
  void beside_captures(const std::function<void(std::optional<unified_buffer<word>>&, bool)>& act) {
    for (const auto mode : capture_modes) {
      for (const bool done : {false, true}) {
        SCOPED_TRACE(std::to_string(mode) + (done ? ", done" : ", at work"));
        const foreign_stream captured{gpu(), driver::CU_STREAM_DEFAULT};
        const stream_ref legacy = stream_ref::legacy(gpu());
        std::optional some = make(legacy);
        launch(some->use_on(legacy).value(), legacy);
        if (done) machine->run_until_idle();
        checked_capture capture{captured, mode};
        act(some, done);
        EXPECT_EQ(capture.end(), 0u);
      }
    }
  }
};

TEST_F(managed_captures, AViewWaitsForTheLegacyStreamAndLeavesThemValid) {
  beside_captures([](auto& some, bool) { EXPECT_THAT(some->view().value().span(), AllAre(1U)); });
}

TEST_F(managed_captures, TryingToViewLeavesThemValid) {
  beside_captures([](auto& some, bool) {
    EXPECT_EQ(code_of(some->try_view()), errc::not_ready) << "the legacy stream cannot be asked";
  });
}

TEST_F(managed_captures, TheEndOfABufferLeavesThemValid) {
  beside_captures([](auto& some, bool) { some.reset(); });
}

TEST_F(managed_captures, NothingIsQueuedOnTheLegacyStream) {
  beside_captures([&](auto& some, bool) {
    const stream_ref legacy = stream_ref::legacy(gpu());
    EXPECT_EQ(code_of(some->prefetch(gpu(), legacy)), errc::capture_forbidden);
    EXPECT_EQ(code_of(some->attach(attachment::host, legacy)), errc::capture_forbidden);
    EXPECT_EQ(code_of(some->resize(2 * captured_words, legacy)), errc::capture_forbidden);
    EXPECT_EQ(code_of(unified_buffer<word>::zeroed(captured_words, legacy)),
              errc::capture_forbidden);
    EXPECT_EQ(some->size(), captured_words);
  });
}

TEST_F(managed_captures, ResizingOnACapturedStreamIsRefusedAndKeepsTheElements) {
  const auto on = make_stream();
  const auto other = make_stream();
  auto some = make(on);
  launch(some.use_on(on).value(), on);
  ASSERT_TRUE(some.view());
  checked_capture capture{other};
  EXPECT_EQ(code_of(some.resize(2 * captured_words, other)), errc::capture_forbidden);
  EXPECT_EQ(capture.end(), 0u);
  EXPECT_EQ(some.size(), captured_words);
  EXPECT_THAT(some.view().value().span(), AllAre(1U));
}

TEST_F(managed_captures, APrefetchThatIsRefusedRecordsNoStream) {
  const auto on = make_stream();
  const auto other = make_stream();
  auto some = make(on);
  checked_capture capture{other};
  EXPECT_EQ(code_of(some.prefetch(gpu(), other)), errc::capture_forbidden);
  EXPECT_TRUE(some.view());
  EXPECT_TRUE(some.try_view());
  EXPECT_EQ(capture.end(), 0u);
}

TEST_F(managed_captures, TheEndOfABufferWaitsForWorkFromBeforeTheCapture) {
  const auto near = make_stream();
  const auto far = make_stream(1);  // to free the memory waits for device 0 alone
  for (const stream_ref& each : {near.ref(), far.ref()}) {
    auto some = std::make_optional(make(near));
    launch(some->use_on(each).value(), each);
    checked_capture capture{each, driver::CU_STREAM_CAPTURE_MODE_RELAXED};
    some.reset();
    EXPECT_EQ(capture.end(), 0u);
    EXPECT_TRUE(each.is_complete().value());
  }
}

TEST_F(managed_captures, AViewWaitsForAStreamThatWasClosedInItsCapture) {
  const auto on = make_stream();
  auto some = make(on);
  auto closing = std::make_optional(make_stream());
  launch(some.use_on(*closing).value(), *closing);
  {
    const context_scope bound{gpu()};
    ASSERT_EQ(bound.driver().stream_begin_capture(closing->handle(),
                                                  driver::CU_STREAM_CAPTURE_MODE_RELAXED),
              driver::CUDA_SUCCESS);
    WEIR_DONE(closing->close());
  }
  EXPECT_EQ(code_of(some.try_view()), errc::not_supported) << "only waiting can tell";
  const auto view = some.view().value();
  machine->host_read(view.data(), captured_words * sizeof(word));
  EXPECT_THAT(view.span(), AllAre(1U));
}

TEST_F(managed_captures, AViewOfWhatACapturedStreamUsesIsRefused) {
  const auto on = make_stream();
  auto some = make(on);
  ASSERT_TRUE(some.use_on(on));
  checked_capture capture{on};
  EXPECT_EQ(code_of(some.view()), errc::capture_forbidden);
  EXPECT_EQ(code_of(some.try_view()), errc::capture_forbidden);
  EXPECT_EQ(capture.end(), 0u);
  EXPECT_TRUE(some.view());
}

TEST_F(managed_captures, AViewBehindAnEventOfACaptureIsRefusedAndLeavesItValid) {
  for (const auto mode : capture_modes) {
    SCOPED_TRACE(mode);
    const auto on = make_stream();
    auto some = make(on);
    ASSERT_TRUE(some.use_on(on));
    auto mark = event::create(gpu()).value();
    {
      checked_capture capture{on, mode};
      ASSERT_TRUE(mark.record(on));
      EXPECT_EQ(code_of(some.view(mark)), errc::capture_forbidden);
      EXPECT_EQ(capture.end(), 0u);
    }
    ASSERT_TRUE(mark.record(on));
    EXPECT_TRUE(some.view(mark));
  }
}

}  // namespace
}  // namespace weir::testing_support
