// SPDX-License-Identifier: Apache-2.0
// Allocate and free in a loop, inside a process that has torch: through weir, through torch's own
// allocator, and through the driver's pool. micro.py builds it, calls it and writes the figures.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"

namespace {

using namespace weir;
namespace torch_memory = c10::cuda::CUDACachingAllocator;

/// The device and an allocator of weir's own. Leaks on purpose: nothing may outlive it.
struct gpu {
  std::shared_ptr<runtime> machine;
  weir::device device;
  caching_allocator memory;
};

gpu& the_gpu() {
  static gpu* const instance = [] {
    auto machine = runtime::open_cuda().value();
    const auto device = machine->device(device_id{0}).value();
    auto memory = caching_allocator::create(device).value();
    return new gpu{std::move(machine), device, std::move(memory)};
  }();
  return *instance;
}

void expect(driver::CUresult answer) {
  if (answer != driver::CUDA_SUCCESS) throw std::runtime_error{"the driver refused"};
}

/// Makes the device current for the thread that calls, as it is for every thread that launches
/// kernels. Without that, the runtime takes microseconds to say which device is current, and torch
/// asks it at every request.
void make_device_current() { C10_CUDA_CHECK(c10::cuda::SetDevice(0, /*force=*/true)); }

// --- The ways to memory: a stream of its own each ------------------------------------------------

class through_weir {
 public:
  static constexpr std::string_view name = "weir";
  through_weir() : memory_{the_gpu().memory}, stream_{stream::create(the_gpu().device).value()} {}
  ~through_weir() { (void)memory_.release_stream(stream_); }
  through_weir(const through_weir&) = delete;
  through_weir& operator=(const through_weir&) = delete;

  void* allocate(std::uint64_t size) { return memory_.allocate(bytes{size}, stream_ref{stream_}); }
  void free(void* pointer) { memory_.deallocate(pointer, stream_ref{stream_}); }
  static void empty_cache() { (void)the_gpu().memory.empty_cache(); }

 private:
  caching_allocator& memory_;
  stream stream_;
};

/// Whatever allocator torch has in this process.
class through_torch {
 public:
  static constexpr std::string_view name = "torch";
  through_torch() : stream_{c10::cuda::getStreamFromPool(false, 0).stream()} {}
  explicit through_torch(cudaStream_t stream) : stream_{stream} {}

  void* allocate(std::uint64_t size) { return torch_memory::raw_alloc_with_stream(size, stream_); }
  void free(void* pointer) { torch_memory::raw_delete(pointer); }
  static void empty_cache() { torch_memory::emptyCache(); }

 private:
  cudaStream_t stream_;
};

/// cuMemAllocAsync and cuMemFreeAsync, which are what cudaMallocAsync and cudaFreeAsync call.
class through_driver {
 public:
  static constexpr std::string_view name = "cudaMallocAsync";
  through_driver()
      : cuda_{the_gpu().device.driver()}, stream_{stream::create(the_gpu().device).value()} {
    // The pool keeps what is freed, so that it hits, too.
    driver::CUmemoryPool pool = nullptr;
    std::uint64_t all = ~std::uint64_t{0};
    expect(cuda_.device_get_default_mem_pool(&pool, 0));
    expect(cuda_.mem_pool_set_attribute(pool, driver::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
  }
  ~through_driver() { (void)stream_.synchronize(); }
  through_driver(const through_driver&) = delete;
  through_driver& operator=(const through_driver&) = delete;

  void* allocate(std::uint64_t size) {
    driver::CUdeviceptr block = 0;
    expect(cuda_.mem_alloc_async(&block, size, stream_.handle()));
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(block));
  }
  void free(void* pointer) {
    expect(cuda_.mem_free_async(
        static_cast<driver::CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer)),
        stream_.handle()));
  }
  static void empty_cache() {
    driver::CUmemoryPool pool = nullptr;
    expect(the_gpu().device.driver().device_get_default_mem_pool(&pool, 0));
    expect(the_gpu().device.driver().mem_pool_trim_to(pool, 0));
  }

 private:
  const driver::table& cuda_;
  stream stream_;
};

// --- Timing --------------------------------------------------------------------------------------

using steady = std::chrono::steady_clock;

double ns_since(steady::time_point begun) {
  return std::chrono::duration<double, std::nano>(steady::now() - begun).count();
}

/// What one call of `once` takes: the best of three measurements of about 20 ms each.
template <class Once>
double ns_of(Once once) {
  std::uint64_t count = 16;
  double took = 0;
  for (; count < (std::uint64_t{1} << 32); count *= 2) {
    const auto begun = steady::now();
    for (std::uint64_t i = 0; i < count; ++i) once();
    took = ns_since(begun);
    if (took > 2e7) break;
  }
  double best = took / static_cast<double>(count);
  for (int again = 0; again < 2; ++again) {
    const auto begun = steady::now();
    for (std::uint64_t i = 0; i < count; ++i) once();
    best = std::min(best, ns_since(begun) / static_cast<double>(count));
  }
  return best;
}

/// The figures, as lines of JSON.
class figures {
 public:
  void add(std::string_view name, std::string_view way, std::uint64_t parameter, double ns) {
    char line[256];
    std::snprintf(line, sizeof line,
                  "{\"what\": \"%.*s\", \"way\": \"%.*s\", \"parameter\": %llu, \"ns\": %.3f}\n",
                  static_cast<int>(name.size()), name.data(), static_cast<int>(way.size()),
                  way.data(), static_cast<unsigned long long>(parameter), ns);
    text_ += line;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

constexpr std::uint64_t kib = 1 << 10, mib = 1 << 20;

/// The same size again and again.
template <class Way>
void pairs_by_size(figures& out) {
  for (const std::uint64_t size : {std::uint64_t{512}, 4 * kib, 64 * kib, 512 * kib, mib, 2 * mib,
                                   16 * mib, 128 * mib, 1024 * mib}) {
    Way way;
    out.add("pair", Way::name, size, ns_of([&] { way.free(way.allocate(size)); }));
  }
}

/// Threads with a stream each; a figure is what a pair takes a thread.
template <class Way>
void pairs_by_threads(figures& out) {
  for (const unsigned count : {1U, 2U, 4U, 8U, 16U}) {
    std::atomic<unsigned> ready{0};
    std::atomic<bool> go{false}, over{false};
    std::atomic<std::uint64_t> pairs{0};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < count; ++i)
      threads.emplace_back([&] {
        make_device_current();
        Way way;
        for (int warm = 0; warm < 100; ++warm) way.free(way.allocate(64 * kib));
        ++ready;
        while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
        std::uint64_t own_pairs = 0;
        for (; !over.load(std::memory_order_relaxed); ++own_pairs) way.free(way.allocate(64 * kib));
        pairs += own_pairs;
      });
    while (ready < count) std::this_thread::yield();
    const auto begun = steady::now();
    go.store(true, std::memory_order_release);
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
    over = true;
    for (auto& thread : threads) thread.join();
    // A thread's last pairs are done after `over`; the clock is read after them.
    out.add("threads", Way::name, count,
            ns_since(begun) * count / static_cast<double>(pairs.load()));
  }
}

/// One thread allocates, another frees, through a ring between them.
template <class Way>
void freed_elsewhere(figures& out) {
  constexpr std::size_t capacity = 1024;
  Way way;
  const auto play = [&](std::uint64_t count) {
    std::vector<void*> ring(capacity);
    std::atomic<std::uint64_t> allocated{0}, freed{0};
    std::atomic<bool> ready{false};
    std::thread other{[&] {
      make_device_current();
      ready.store(true, std::memory_order_release);
      for (std::uint64_t i = 0; i < count; ++i) {
        while (allocated.load(std::memory_order_acquire) == i) {
        }
        way.free(ring[i % capacity]);
        freed.store(i + 1, std::memory_order_release);
      }
    }};
    while (!ready.load(std::memory_order_acquire)) std::this_thread::yield();
    const auto begun = steady::now();
    for (std::uint64_t i = 0; i < count; ++i) {
      while (i - freed.load(std::memory_order_acquire) == capacity) {
      }
      ring[i % capacity] = way.allocate(64 * kib);
      allocated.store(i + 1, std::memory_order_release);
    }
    other.join();
    return ns_since(begun) / static_cast<double>(count);
  };
  play(4 * capacity);
  out.add("freed by another thread", Way::name, 64 * kib, std::min(play(60'000), play(60'000)));
}

/// Random sizes, every power of two as likely as the others: a random block of many is freed and
/// another allocated.
template <class Way>
void random_live(figures& out, std::size_t count, double largest_exponent) {
  std::mt19937_64 random{1};
  std::uniform_real_distribution<double> exponent{9, largest_exponent};
  std::vector<std::uint64_t> sizes(1 << 16);
  std::vector<std::size_t> places(sizes.size());
  for (auto& each : sizes) each = static_cast<std::uint64_t>(std::exp2(exponent(random)));
  for (auto& each : places) each = random() % count;
  Way way;
  std::vector<void*> live(count);
  std::size_t next = 0;
  const auto once = [&] {
    void*& place = live[places[next]];
    way.free(place);
    place = way.allocate(sizes[next]);
    next = (next + 1) % sizes.size();
  };
  for (std::size_t i = 0; i < count; ++i) live[i] = way.allocate(sizes[i % sizes.size()]);
  for (std::size_t i = 0; i < 2 * count; ++i) once();
  out.add("random live set", Way::name, count, ns_of(once));
  for (void* const each : live) way.free(each);
}

template <class Way>
void everything(figures& out) {
  pairs_by_size<Way>(out);
  Way::empty_cache();
  pairs_by_threads<Way>(out);
  Way::empty_cache();
  freed_elsewhere<Way>(out);
  random_live<Way>(out, 1'000, 23);
  Way::empty_cache();
  random_live<Way>(out, 100'000, 16);
  Way::empty_cache();
}

// --- Playing back a workload's requests ----------------------------------------------------------

/// An allocation (size > 0; `other` is the number of its stream) or a free (`other` is the
/// allocation's index).
struct operation {
  std::uint64_t size;
  std::uint64_t other;
  /// What comes before is allocated once and stays; what comes after is the round.
  [[nodiscard]] bool begins_the_round() const { return size == 0 && other == ~std::uint64_t{0}; }
};

std::vector<operation> read_record(const char* path) {
  std::ifstream file{path, std::ios::binary};
  std::vector<operation> record;
  for (operation each{}; file.read(reinterpret_cast<char*>(&each), sizeof each);)
    record.push_back(each);
  if (record.empty()) throw std::runtime_error{"no record there"};
  return record;
}

struct played {
  double ns = 0;
  int passes = 0;
};

/// Through torch's allocator of this process, again and again: allocators still grow in the first
/// passes, so the median of the second half counts. Twelve, or as many as begin within two seconds.
played play_back(const std::vector<operation>& record) {
  const auto round = std::find_if(record.begin(), record.end(),
                                  [](const operation& each) { return each.begins_the_round(); });
  if (round == record.end()) throw std::runtime_error{"the record does not say where it begins"};
  std::vector<through_torch> streams;
  std::uint64_t most = 0, allocations = 0;
  for (const auto& each : record)
    if (each.size > 0) {
      most = std::max(most, each.other);
      ++allocations;
    }
  for (std::uint64_t i = 0; i <= most; ++i)
    streams.push_back(i == 0 ? through_torch{c10::cuda::getDefaultCUDAStream(0).stream()}
                             : through_torch{});
  std::vector<void*> blocks(allocations);
  const auto free = [&](std::size_t number) {
    if (blocks[number] != nullptr) torch_memory::raw_delete(std::exchange(blocks[number], nullptr));
  };
  const auto kept = static_cast<std::size_t>(round - record.begin());
  for (std::size_t i = 0; i < kept; ++i)
    blocks[i] = streams[record[i].other].allocate(record[i].size);

  std::vector<double> passes;
  const auto first = steady::now();
  while (passes.size() < 12 && (passes.size() < 2 || ns_since(first) < 2e9)) {
    std::size_t next = kept;
    const auto begun = steady::now();
    for (auto each = round + 1; each != record.end(); ++each)
      if (each->size > 0) {
        blocks[next++] = streams[each->other].allocate(each->size);
      } else {
        torch_memory::raw_delete(blocks[each->other]);
        blocks[each->other] = nullptr;
      }
    passes.push_back(ns_since(begun));
    for (std::size_t i = kept; i < blocks.size(); ++i) free(i);
  }
  for (std::size_t i = 0; i < kept; ++i) free(i);
  const auto settled = passes.begin() + static_cast<std::ptrdiff_t>(passes.size() / 2);
  const auto median = settled + (passes.end() - settled) / 2;
  std::nth_element(settled, median, passes.end());
  return {*median, static_cast<int>(passes.size())};
}

std::string answer;

/// `work`'s answer, or its error, as JSON that lives until the next call.
template <class Work>
const char* answer_of(Work work) noexcept {
  try {
    answer = work();
  } catch (const std::exception& error) {
    std::string message = error.what();
    message = message.substr(0, message.find('\n'));
    std::erase_if(message, [](char each) { return each == '"' || each == '\\'; });
    answer = "{\"error\": \"" + message + "\"}\n";
  }
  return answer.c_str();
}

}  // namespace

extern "C" {

/// All figures of one way: "weir", "torch" or "cudaMallocAsync"; a line of JSON a figure.
__attribute__((visibility("default"))) const char* weir_micro_run(const char* way) {
  return answer_of([&] {
    make_device_current();
    figures out;
    const std::string_view name = way;
    if (name == through_weir::name) everything<through_weir>(out);
    if (name == through_torch::name) everything<through_torch>(out);
    if (name == through_driver::name) everything<through_driver>(out);
    return out.text();
  });
}

/// What the record at `path` takes in this process's allocator.
__attribute__((visibility("default"))) const char* weir_micro_play(const char* path) {
  return answer_of([&] {
    const auto record = read_record(path);
    const played pass = play_back(record);
    return "{\"ns\": " + std::to_string(pass.ns) + ", \"passes\": " + std::to_string(pass.passes) +
           ", \"operations\": " + std::to_string(record.size()) + "}\n";
  });
}
}
