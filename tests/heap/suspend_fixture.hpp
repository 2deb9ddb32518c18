// SPDX-License-Identifier: Apache-2.0
// A simulated GPU with an allocator whose tags come and go.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "heap/graph_fixture.hpp"
#include "support/this_process.hpp"

namespace weir::testing_support {

/// Another thread that makes a call which may have to wait.
class other_caller {
 public:
  explicit other_caller(std::function<void()> call)
      : thread_{[this, call = std::move(call)] {
          number_ = ::gettid();
          call();
          done_ = true;
        }} {}
  ~other_caller() { join(); }
  other_caller(const other_caller&) = delete;
  other_caller& operator=(const other_caller&) = delete;
  /// Until it waits or has returned: whether it waits.
  [[nodiscard]] bool waits() const {
    while (!done_ && (number_ == 0 || !is_asleep(number_))) std::this_thread::yield();
    return !done_;
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<pid_t> number_{0};
  std::atomic<bool> done_{false};
  std::thread thread_;  // the last: it uses the others
};

/// Memory of tags that are declared suspendable, with contents that tell blocks apart.
class suspend_test : public graph_test {
 protected:
  struct filled {
    void* at = nullptr;
    bytes size{};
    unsigned char value = 0;
    bool whole = false;  // or only what fill() says
  };

  static tag named(std::string_view name) { return tag::named(name).value(); }
  [[nodiscard]] bytes used() const { return machine->used(device_id{0}) - 64_MiB; }
  [[nodiscard]] void* allocate(const caching_allocator& memory, tag with, bytes size) const {
    const tag_scope scope{with};
    return memory.allocate(size, on);
  }
  /// Writes `value` to both sides of every 64 KiB and to both ends, as contents are lost at the
  /// edges of the pieces in which they are moved. To touch each page of every block would take
  /// longer than all else; tests whose pieces have other edges fill the whole.
  void fill(const filled& block, const stream_ref& by) {
    const context_scope bound{gpu()};
    const auto size = block.size.count();
    const auto fill_part = [&](std::size_t begin, std::size_t length) {
      ASSERT_EQ(cuda().memset_d8_async(address(block.at) + begin, block.value, length, by.handle()),
                driver::CUDA_SUCCESS);
    };
    if (block.whole || size <= step) return fill_part(0, size);
    fill_part(0, side);
    fill_part(size - side, side);
    ASSERT_EQ(cuda().memset_d2d8_async(address(block.at) + step - side, step, block.value, 2 * side,
                                       (size - side) / step, by.handle()),
              driver::CUDA_SUCCESS);
  }
  filled make_filled(const caching_allocator& memory, tag with, bytes size, unsigned char value,
                     bool whole = false) {
    const filled block{allocate(memory, with, size), size, value, whole};
    fill(block, on);
    return block;
  }
  void expect_contents(const filled& block) {
    const context_scope bound{gpu()};
    const auto size = block.size.count();
    const auto read_part = [&](std::size_t begin, std::size_t length) {
      seen_.resize(seen_.size() + length);
      ASSERT_EQ(cuda().memcpy_dtoh(seen_.data() + seen_.size() - length, address(block.at) + begin,
                                   length),
                driver::CUDA_SUCCESS);
    };
    seen_.clear();
    ASSERT_TRUE(on.synchronize());
    if (block.whole || size <= step) {
      read_part(0, size);
    } else {
      read_part(0, side);
      for (std::size_t edge = step; edge + side <= size; edge += step)
        read_part(edge - side, 2 * side);
      read_part(size - side, side);
    }
    EXPECT_EQ(first_other(seen_, block.value), seen_.size()) << "first wrong byte of those filled";
  }
  /// Where the first byte is that is not `value`.
  static std::size_t first_other(const std::vector<unsigned char>& seen, unsigned char value) {
    // A row of equal bytes equals itself one further.
    if (!seen.empty() && seen.front() == value &&
        std::memcmp(seen.data(), seen.data() + 1, seen.size() - 1) == 0)
      return seen.size();
    return static_cast<std::size_t>(
        std::find_if(seen.begin(), seen.end(), [&](unsigned char each) { return each != value; }) -
        seen.begin());
  }
  void expect_contents(const std::vector<filled>& blocks) {
    for (const filled& each : blocks) expect_contents(each);
  }
  static driver::CUdeviceptr address(const void* pointer) {
    return reinterpret_cast<driver::CUdeviceptr>(pointer);
  }
  /// No two tests share a tag: tags are the process's.
  stream on = new_stream();
  const tag weights = named("weights");
  const tag cache = named("kv cache");

 private:
  static constexpr std::size_t step = 64 * 1024;
  static constexpr std::size_t side = 4096;
  std::vector<unsigned char> seen_;  // kept: to touch new memory takes longer than to compare it
};

}  // namespace weir::testing_support
