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
  };

  static tag named(std::string_view name) { return tag::named(name).value(); }
  [[nodiscard]] bytes used() const { return machine->used(device_id{0}) - 64_MiB; }
  [[nodiscard]] void* allocate(const caching_allocator& memory, tag with, bytes size) const {
    const tag_scope scope{with};
    return memory.allocate(size, on);
  }
  void fill(const filled& block, const stream_ref& by) {
    const context_scope bound{gpu()};
    ASSERT_EQ(
        cuda().memset_d8_async(address(block.at), block.value, block.size.count(), by.handle()),
        driver::CUDA_SUCCESS);
  }
  filled make_filled(const caching_allocator& memory, tag with, bytes size, unsigned char value) {
    const filled block{allocate(memory, with, size), size, value};
    fill(block, on);
    return block;
  }
  void expect_contents(const filled& block) {
    const context_scope bound{gpu()};
    seen_.resize(block.size.count());
    ASSERT_TRUE(on.synchronize());
    ASSERT_EQ(cuda().memcpy_dtoh(seen_.data(), address(block.at), seen_.size()),
              driver::CUDA_SUCCESS);
    EXPECT_EQ(first_other(seen_, block.value), seen_.size()) << "first wrong byte";
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
  std::vector<unsigned char> seen_;  // kept: to touch new memory takes longer than to compare it
};

}  // namespace weir::testing_support
