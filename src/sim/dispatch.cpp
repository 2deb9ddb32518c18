// SPDX-License-Identifier: Apache-2.0
// How a call through the table reaches its machine.
#include "sim/dispatch.hpp"

#include <pthread.h>

#include <array>
#include <atomic>
#include <new>
#include <utility>

namespace weir { inline namespace v0 { namespace sim {

namespace {

std::array<std::atomic<state*>, slot_count> slots{};

std::atomic<std::uint64_t> forks{0};
const int fork_hook = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });

thread_local std::unique_lock<std::mutex>* held_lock = nullptr;

/// Set while this thread runs a host function, which must not call the driver.
thread_local int host_function_depth = 0;

/// A call with its arguments bound.
using bound_call = CUresult (*)(state& machine, const void* bound);

/// What every call does around its own work. One function for all of them: 148 copies of it were a
/// tenth of what the library takes to compile.
CUresult enter(state* machine, driver::call call, bound_call work, const void* bound) {
  if (machine == nullptr) return CUDA_ERROR_DEINITIALIZED;
  if (machine->fork_generation != fork_generation()) return CUDA_ERROR_NOT_INITIALIZED;
  if (host_function_depth != 0) return CUDA_ERROR_NOT_PERMITTED;
  const machine_lock guard{*machine};
  CUresult answer = CUDA_SUCCESS;
  try {
    if (machine->before(call, answer)) return answer;
    answer = work(*machine, bound);
  } catch (const std::bad_alloc&) {
    answer = CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    answer = CUDA_ERROR_UNKNOWN;
  }
  try {
    machine->after(call);
  } catch (const std::bad_alloc&) {
    // The call has its answer. Work that needs the host memory happens with a later call.
  }
  return answer;
}

/// One row of the table: `call<Slot>` is the function pointer, the rest does not depend on the
/// slot.
template <driver::call Call, auto Method>
struct row;

template <driver::call Call, class... Arguments, CUresult (state::*Method)(Arguments...)>
struct row<Call, Method> {
  template <int Slot>
  static CUresult call(Arguments... arguments) {
    return bind(slots[Slot].load(std::memory_order_acquire), arguments...);
  }

  static CUresult bind(state* machine, Arguments... arguments) {
    const auto work = [&](state& entered) { return (entered.*Method)(arguments...); };
    const bound_call run = [](state& entered, const void* bound) {
      return (*static_cast<decltype(&work)>(bound))(entered);
    };
    return enter(machine, Call, run, &work);
  }
};

template <int Slot>
constexpr driver::table make_table() {
  driver::table calls{};
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  calls.member = &row<driver::call::member, &state::member>::template call<Slot>;
#include "weir/driver/calls.def"
  return calls;
}

template <int... Slot>
constexpr std::array<driver::table, sizeof...(Slot)> make_tables(
    std::integer_sequence<int, Slot...>) {
  return {make_table<Slot>()...};
}

constexpr auto tables = make_tables(std::make_integer_sequence<int, slot_count>{});

}  // namespace

int take_slot(state* machine) noexcept {
  // Round robin: a stale table should meet an empty slot, not a stranger's machine.
  static std::atomic<unsigned> next{0};
  for (int tries = 0; tries < slot_count; ++tries) {
    const unsigned slot = next.fetch_add(1) % slot_count;
    state* empty = nullptr;
    if (slots[slot].compare_exchange_strong(empty, machine)) return static_cast<int>(slot);
  }
  return -1;
}

void leave_slot(int slot) noexcept {
  if (slot >= 0) slots[static_cast<std::size_t>(slot)].store(nullptr);
}

const driver::table& table_of(int slot) noexcept { return tables[static_cast<std::size_t>(slot)]; }

std::uint64_t fork_generation() noexcept { return forks.load(std::memory_order_relaxed); }

machine_lock::machine_lock(state& machine)
    : lock_{machine.mutex}, outer_{std::exchange(held_lock, &lock_)} {}

machine_lock::~machine_lock() { held_lock = outer_; }

std::unique_lock<std::mutex>& state::lock() const noexcept { return *held_lock; }

bool holds_lock(const state& machine) noexcept {
  return held_lock != nullptr && held_lock->mutex() == &machine.mutex && held_lock->owns_lock();
}

host_function_scope::host_function_scope() noexcept { ++host_function_depth; }
host_function_scope::~host_function_scope() { --host_function_depth; }

}}}  // namespace weir::v0::sim
