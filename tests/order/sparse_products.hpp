// SPDX-License-Identifier: Apache-2.0
// Products of sparse matrices on a simulated GPU, as far as memory is concerned: who takes what,
// which kernels use it, and when it is freed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "first_failure.hpp"
#include "rng.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace weir::order_test {

struct stress_counts {
  std::atomic<std::uint64_t> products{0};
  std::atomic<std::uint64_t> shortages{0};
  std::atomic<std::uint64_t> replays{0};
};

/// No memory, after many attempts: the thread at hand gives up.
struct out_of_attempts {};

/// A machine and an allocator, both chosen by the seed, that several threads share. What goes wrong
/// counts as a failure. Any thread.
class stress_fixture {
 public:
  /// With room for what so many threads need at a time, or hardly.
  stress_fixture(std::uint64_t seed, std::size_t threads);

  [[nodiscard]] sim::machine& machine() { return *machine_; }
  [[nodiscard]] const driver::table& cuda() { return machine_->driver(); }
  [[nodiscard]] device gpu() const { return *gpu_; }
  [[nodiscard]] caching_allocator& memory() { return *memory_; }
  [[nodiscard]] const std::shared_ptr<first_failure>& failure() const { return failure_; }
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }

  /// Now, or by the thread that calls free_deferred().
  void free(void* block);
  void free_deferred();

  /// Every thread has ended: all is freed, and everything is released to the device.
  void check_end();

 private:
  std::shared_ptr<first_failure> failure_ = std::make_shared<first_failure>();
  std::uint64_t capacity_;
  std::shared_ptr<sim::machine> machine_;
  std::shared_ptr<runtime> runtime_;
  std::optional<device> gpu_;
  std::optional<caching_allocator> memory_;
  std::atomic<std::uint64_t> frees_{0};
  std::mutex mutex_;
  std::vector<void*> deferred_frees_;
};

/// What kernels know of a tensor, which may be freed before they run: its place, and how to leave
/// or find a token all over it.
struct tensor_view {
  std::uint64_t* data = nullptr;
  std::uint64_t size = 0;

  [[nodiscard]] sim::access read() const;
  [[nodiscard]] sim::access written() const;
  void put(std::uint64_t token) const;
  [[nodiscard]] bool has(std::uint64_t token) const;
};

/// Owns memory. Freed in the name of nobody, as PyTorch frees: it was allocated for one stream,
/// whoever has used it since.
class tensor {
 public:
  tensor() = default;
  tensor(stress_fixture& fixture, tensor_view view) : fixture_{&fixture}, view_{view} {}
  ~tensor() {
    if (fixture_ != nullptr) fixture_->free(view_.data);
  }
  tensor(tensor&& other) noexcept
      : fixture_{std::exchange(other.fixture_, nullptr)}, view_{other.view_} {}
  tensor& operator=(tensor&& other) noexcept {
    std::swap(fixture_, other.fixture_);
    std::swap(view_, other.view_);
    return *this;
  }
  [[nodiscard]] const tensor_view& view() const { return view_; }

 private:
  stress_fixture* fixture_ = nullptr;
  tensor_view view_;
};

/// The work of one thread on one stream. Declares nothing: what it is given may be of any stream.
class multiplier {
 public:
  multiplier(stress_fixture& fixture, stress_counts& counts, stream_ref on, std::uint64_t seed)
      : fixture_{fixture}, counts_{counts}, on_{on}, random_{seed}, token_{seed << 32} {}

  /// Throws out_of_attempts.
  [[nodiscard]] tensor take(std::uint64_t size);
  /// Makes the tensor hold the token.
  void fill(const tensor_view& tensor, std::uint64_t token);
  /// Verifies it.
  void verify(const tensor_view& tensor, std::uint64_t token);
  /// A new matrix that holds `out_token`, by way of all that it takes to coalesce the weight and
  /// multiply it with `in`, which must hold `in_token` when the last kernel runs. Throws
  /// out_of_attempts.
  [[nodiscard]] tensor multiply(const tensor_view& weight, const tensor_view& in,
                                std::uint64_t in_token, std::uint64_t out_token);
  void synchronize();

  static constexpr std::uint64_t weight_token = 77;
  static constexpr std::uint64_t weight_size = std::uint64_t{8} << 20;
  static constexpr std::uint64_t matrix_size = std::uint64_t{4} << 20;

 private:
  struct coalesced {
    tensor values;
    tensor indices;
  };
  struct input {
    tensor_view view;
    std::uint64_t token = 0;
  };

  void launch(const char* name, std::vector<sim::access> touched,
              std::function<bool()> inputs_are_right);
  [[nodiscard]] coalesced coalesce(const tensor_view& weight, std::uint64_t token);
  void run_with_scratch(const char* name, std::uint64_t size, const std::vector<input>& inputs,
                        std::uint64_t token);

  stress_fixture& fixture_;
  stress_counts& counts_;
  stream_ref on_;
  rng random_;
  std::uint64_t token_;
};

}  // namespace weir::order_test
