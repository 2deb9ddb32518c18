// SPDX-License-Identifier: Apache-2.0
// What prelude.hpp declares, defined on a simulated machine that watches for races: a program that
// runs one example.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>

#include "prelude.hpp"

namespace snippets {

/// The machines that the example works on; the first is that of the prelude.
inline std::vector<std::shared_ptr<weir::sim::machine>>& machines() {
  static std::vector<std::shared_ptr<weir::sim::machine>> all;
  return all;
}

/// In place of weir::runtime::open(), so that the machine's hazards can be asked for.
inline weir::result<std::shared_ptr<weir::runtime>> open() {
  WEIR_TRY_VALUE(created, weir::sim::machine::create({}));
  machines().push_back(created);
  return weir::runtime::open_simulated(created);
}

inline std::shared_ptr<weir::sim::machine> machine_of(const weir::stream_ref& on) {
  return on.device() == gpu ? machines().front() : machines().back();
}

// --- Kernels: each touches all memory that it is given
// ----------------------------------------------

inline void add_access(std::vector<weir::sim::access>& accesses, const void* memory,
                       std::size_t size) {
  if (memory != nullptr)
    accesses.push_back(weir::sim::writes(reinterpret_cast<weir::device_address>(memory), size));
}
template <class Argument>
void collect(std::vector<weir::sim::access>& accesses, std::optional<weir::stream_ref>& on,
             const Argument& argument) {
  if constexpr (std::is_pointer_v<Argument>) {
    add_access(accesses, argument, 64);
  } else if constexpr (requires {
                         argument.size_bytes();
                         argument.data();
                       }) {
    add_access(accesses, argument.data(), argument.size_bytes().count());
  } else if constexpr (std::is_convertible_v<const Argument&, weir::stream_ref>) {
    on.emplace(argument);
  }
}

template <class... Arguments>
void launch(const Arguments&... arguments) {
  std::vector<weir::sim::access> accesses;
  std::optional<weir::stream_ref> on;
  (collect(accesses, on, arguments), ...);
  if (!on) {
    std::fprintf(stderr, "launch() without a stream\n");
    std::exit(2);
  }
  machine_of(*on)->launch(on->handle(), "kernel", accesses).value();
}

// --- What the prelude declares
// ------------------------------------------------------------------------

inline constexpr std::uint64_t plenty = std::uint64_t{64} << 20;

std::shared_ptr<weir::runtime> machine = open().value();
weir::device gpu = machine->device(weir::device_id{0}).value();
weir::stream stream = weir::stream::create(gpu).value();
weir::stream other = weir::stream::create(gpu).value();
weir::stream own_of_cuda = weir::stream::create(gpu).value();
::CUstream_st* cuda_stream = own_of_cuda.handle();
weir::caching_allocator memory = weir::caching_allocator::create(gpu).value();
weir::share_channel channel = std::move(weir::share_channel::pair().value().first);

class plain_source final : public weir::memory_source {
  weir::result<void*> allocate(weir::bytes size, const weir::stream_ref&) override {
    const weir::context_scope bound{gpu};
    WEIR_TRY_VALUE(address, weir::allocate_plain(bound, size));
    return reinterpret_cast<void*>(address);
  }
  weir::result<void> deallocate(void* memory, weir::bytes) override {
    const weir::context_scope bound{gpu};
    return weir::free_plain(bound, reinterpret_cast<weir::device_address>(memory));
  }
};
std::shared_ptr<weir::memory_source> registered = std::make_shared<plain_source>();

std::vector<float> host(plenty / sizeof(float));
weir::device_vector<float> on_device =
    weir::device_vector<float>::create(memory, host.size(), stream).value();
weir::device_vector<float> target =
    weir::device_vector<float>::create(memory, host.size(), stream).value();
weir::device_vector<float> origin =
    weir::device_vector<float>::create(memory, host.size(), stream).value();
void* to = target.data();
const void* from = origin.data();
std::size_t rows = 4;

/// Waits for everything and says what was wrong.
inline int finish() {
  int wrong = 0;
  for (const auto& each : machines()) each->run_until_idle();
  for (const auto& each : machines()) {
    for (const auto& hazard : each->hazards()) {
      std::fprintf(stderr, "%s\n", hazard.message().c_str());
      ++wrong;
    }
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace snippets

inline ncclResult_t ncclMemAlloc(void** memory, std::size_t size) {
  const weir::context_scope bound{snippets::gpu};
  *memory = reinterpret_cast<void*>(weir::allocate_plain(bound, weir::bytes{size}).value());
  return ncclSuccess;
}
inline ncclResult_t ncclMemFree(void* memory) {
  const weir::context_scope bound{snippets::gpu};
  weir::free_plain(bound, reinterpret_cast<weir::device_address>(memory)).value();
  return ncclSuccess;
}

namespace thrust {
namespace cuda {
inline policy policy::on(::CUstream_st*) const { return {}; }
template <class Allocator>
policy par(Allocator& temporaries) {
  temporaries.deallocate(temporaries.allocate(1024), 1024);
  return {};
}
}  // namespace cuda
template <class Iterator>
void sort(const cuda::policy&, Iterator, Iterator) {}
}  // namespace thrust
