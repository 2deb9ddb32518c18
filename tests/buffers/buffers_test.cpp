// SPDX-License-Identifier: Apache-2.0
// Opening a runtime on the machine under test and judging it afterwards.
#include "buffers/buffers_test.hpp"

#include <utility>

#include "weir/buffer/copy.hpp"

namespace weir::testing_support {

error_reports::error_reports() {
  set_error_handler(
      [](const error& failure, void* self) noexcept {
        static_cast<error_reports*>(self)->errors_.push_back(failure);
      },
      this);
}

error_reports::~error_reports() { set_error_handler(nullptr); }

std::vector<error> error_reports::take() { return std::exchange(errors_, {}); }

std::vector<word> counting(std::size_t count, word first) {
  std::vector<word> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

void buffers_test::SetUp() {
  auto opened = open_machine(GetParam());
  if (!opened) {
    if (machine_may_be_absent())
      GTEST_SKIP() << "no machine: " << opened.error().message();
    else
      FAIL() << "no machine: " << opened.error().message();
  }
  open(std::move(*opened));
  runtime_ = runtime::open_table(*cu, "machine under test", machine).value();
  memories_.resize(static_cast<std::size_t>(runtime_->device_count()));
}

void buffers_test::TearDown() {
  if (machine == nullptr) return;
  memories_.clear();
  for (const error& each : heard.take()) ADD_FAILURE() << "reported: " << each.message();
  runtime_.reset();
  clean_up();
  for (const auto& story : machine->take_hazards()) ADD_FAILURE() << story;
}

weir::device buffers_test::gpu(int index) const {
  return runtime_->device(device_id{index}).value();
}

any_resource buffers_test::memory(int index) {
  any_resource& allocator = memories_.at(static_cast<std::size_t>(index));
  if (!allocator) allocator = caching_allocator::create(gpu(index)).value();
  return allocator;
}

std::vector<word> buffers_test::words_of(const void* from, std::size_t count,
                                         const stream_ref& on) const {
  std::vector<word> values(count);
  EXPECT_TRUE(copy_bytes(values.data(), from, bytes{count * sizeof(word)}, on));
  EXPECT_TRUE(on.synchronize());
  return values;
}

}  // namespace weir::testing_support
