// SPDX-License-Identifier: Apache-2.0
// A process that ends in the way its argument says, with an allocator in use: it must return 0 and
// say nothing.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/sim/machine.hpp"

namespace {

using namespace weir::literals;

/// A machine and what is made on it.
struct equipment {
  equipment() {
    weir::sim::machine_options settings;
    settings.devices.front().capacity = 512_MiB;
    settings.devices.front().context_overhead = 64_MiB;
    machine = weir::sim::machine::create(settings).value();
    runtime = weir::runtime::open_simulated(machine).value();
    gpu = runtime->device(weir::device_id{0}).value();
    stream = weir::stream::create(*gpu).value();
    memory = weir::caching_allocator::create(*gpu).value();
  }

  std::shared_ptr<weir::sim::machine> machine;
  std::shared_ptr<weir::runtime> runtime;
  std::optional<weir::device> gpu;
  std::optional<weir::stream> stream;
  std::optional<weir::caching_allocator> memory;
};

/// Fills the thread's cache: small sizes, a large one.
void use(weir::caching_allocator& memory, const weir::stream_ref& on) {
  for (const weir::bytes size : {4_KiB, 100_KiB, 1_MiB, 64_MiB})
    memory.deallocate(memory.allocate(size, on), on);
}

/// Lives until static objects are destroyed.
equipment& lasting() {
  static equipment all;
  return all;
}

// --- Scenarios ----------------------------------------------------------------------------------

int static_allocator() {
  use(*lasting().memory, *lasting().stream);
  return 0;
}

/// The allocator is destroyed after the runtime, the machine and the stream were let go of.
int allocator_last() {
  static std::optional<weir::caching_allocator> memory;
  equipment all;
  memory = all.memory;
  use(*memory, *all.stream);
  return 0;
}

/// A handle that nobody destroys.
int never_destroyed() {
  static equipment* const all = new equipment;
  use(*all->memory, *all->stream);
  return 0;
}

/// Goes on hitting, missing and looking while the rest of the process ends.
int detached_thread() {
  // Its own handles, and a stream that nobody destroys: whoever runs to the end keeps what it uses.
  static auto* const stream = new weir::stream{weir::stream::create(*lasting().gpu).value()};
  std::atomic<bool> running{false};
  std::thread{[memory = *lasting().memory, machine = lasting().machine, &running]() mutable {
    use(memory, *stream);
    running = true;
    for (;;) {
      use(memory, *stream);
      static_cast<void>(memory.stats());
    }
  }}.detach();
  while (!running) std::this_thread::yield();
  use(*lasting().memory, *lasting().stream);
  return 0;
}

/// A thread that sleeps with a full cache.
int sleeping_thread() {
  std::atomic<bool> ready{false};
  std::thread{[&ready] {
    use(*lasting().memory, *lasting().stream);
    ready = true;
    for (;;) ::pause();
  }}.detach();
  while (!ready) std::this_thread::yield();
  return 0;
}

int machine_shut_down() {
  equipment& all = lasting();
  static_cast<void>(all.memory->allocate(1_MiB, *all.stream));  // stays live
  use(*all.memory, *all.stream);
  all.machine->shut_down();
  return 0;
}

int exit_in_thread() {
  use(*lasting().memory, *lasting().stream);
  std::thread{[] {
    use(*lasting().memory, *lasting().stream);
    std::exit(0);
  }}.join();
  return 1;
}

int fork_then_exit() {
  use(*lasting().memory, *lasting().stream);
  const pid_t child = ::fork();
  if (child == 0) std::exit(0);  // destroys static objects, with the parent's memory in them
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return 1;
  if (!WIFEXITED(status)) return 2;
  if (WEXITSTATUS(status) != 0) return 3;
  use(*lasting().memory, *lasting().stream);
  return 0;
}

/// A fork while another thread is inside the allocator all the time, lock and all.
int fork_beside_threads() {
  use(*lasting().memory, *lasting().stream);
  std::atomic<bool> over{false};
  std::thread busy{[&over] {
    while (!over) {
      use(*lasting().memory, *lasting().stream);
      static_cast<void>(lasting().memory->trim());
    }
  }};
  int worst = 0;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto refused = lasting().memory->try_allocate(4_KiB, *lasting().stream);
      // Not exit(): `busy` has no end in the child.
      std::_Exit(!refused && refused.code() == weir::errc::driver_gone ? 0 : 1);
    }
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) worst = 1;
  }
  over = true;
  busy.join();
  return worst;
}

/// A handle of the thread's own ends with the thread, beside its cache.
int thread_local_handle() {
  std::thread{[] {
    thread_local std::optional<weir::caching_allocator> mine;
    mine = lasting().memory;
    use(*mine, *lasting().stream);
  }}.join();
  thread_local std::optional<weir::caching_allocator> main_threads;
  main_threads = lasting().memory;
  use(*main_threads, *lasting().stream);
  return 0;
}

/// What runs at exit allocates, once more, after the main thread's cache is gone.
int allocates_at_exit() {
  use(*lasting().memory, *lasting().stream);
  std::atexit([] { use(*lasting().memory, *lasting().stream); });
  return 0;
}

int quick_exit() {
  use(*lasting().memory, *lasting().stream);
  std::quick_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string_view, int (*)()> scenarios{
      {"static_allocator", static_allocator},       {"allocator_last", allocator_last},
      {"never_destroyed", never_destroyed},         {"detached_thread", detached_thread},
      {"sleeping_thread", sleeping_thread},         {"machine_shut_down", machine_shut_down},
      {"exit_in_thread", exit_in_thread},           {"fork_then_exit", fork_then_exit},
      {"fork_beside_threads", fork_beside_threads}, {"thread_local_handle", thread_local_handle},
      {"allocates_at_exit", allocates_at_exit},     {"quick_exit", quick_exit},
  };
  // What the library finds wrong would be said here.
  weir::set_error_handler(
      [](const weir::error& found, void*) noexcept {
        std::fprintf(stderr, "reported: %s\n", found.message().c_str());
      },
      nullptr);
  const auto chosen = scenarios.find(argc == 2 ? argv[1] : "");
  if (chosen == scenarios.end()) {
    std::fprintf(stderr, "which end?\n");
    return 64;
  }
  return chosen->second();
}
