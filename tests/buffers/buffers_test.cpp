// Opening a runtime on the machine under test and judging it afterwards.
#include "buffers/buffers_test.hpp"

#include <utility>

#include "weir/buffer/copy.hpp"

namespace weir::testing_support {

error_reports::error_reports() {
  set_error_handler(
      [](const error& found, void* self) noexcept {
        static_cast<error_reports*>(self)->errors_.push_back(found);
      },
      this);
}

error_reports::~error_reports() { set_error_handler(nullptr); }

std::vector<error> error_reports::take() { return std::exchange(errors_, {}); }

std::vector<word> counting(std::size_t count, word first) {
  std::vector<word> made(count);
  std::iota(made.begin(), made.end(), first);
  return made;
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
  settle();
  for (const auto& story : machine->complaints()) ADD_FAILURE() << story;
}

weir::device buffers_test::gpu(int index) const {
  return runtime_->device(device_id{index}).value();
}

any_resource buffers_test::memory(int index) {
  any_resource& of = memories_.at(static_cast<std::size_t>(index));
  if (!of) of = caching_allocator::create(gpu(index)).value();
  return of;
}

std::vector<word> buffers_test::words_of(const void* from, std::size_t count,
                                         const stream_ref& on) const {
  std::vector<word> found(count);
  EXPECT_TRUE(copy_bytes(found.data(), from, bytes{count * sizeof(word)}, on));
  EXPECT_TRUE(on.synchronize());
  return found;
}

}  // namespace weir::testing_support
