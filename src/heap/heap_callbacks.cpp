// SPDX-License-Identifier: Apache-2.0
// Adding, removing and running the user's callbacks.
#include "heap/heap_callbacks.hpp"

#include <exception>
#include <utility>
#include <vector>

#include "heap/reclaimer.hpp"

namespace weir { inline namespace v0 { namespace heap {
namespace {

/// Set while this thread runs callbacks: requests from inside do not call them again.
constinit thread_local bool in_callbacks = false;

}  // namespace

std::uint64_t heap_callbacks::add(out_of_memory_callback callback) {
  if (!core_.usable()) return 0;
  auto shared = std::make_shared<out_of_memory_callback>(std::move(callback));
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return 0;
  before_failure_.emplace(next_key_, std::move(shared));
  return next_key_++;
}

std::uint64_t heap_callbacks::add_before_growth(out_of_memory_callback callback) {
  if (!core_.usable()) return 0;
  auto shared = std::make_shared<out_of_memory_callback>(std::move(callback));
  const detail::mutex_lock lock{core_.mutex_};
  if (!core_.usable()) return 0;
  before_growth_.emplace(next_key_, std::move(shared));
  return next_key_++;
}

void heap_callbacks::remove(std::uint64_t key) noexcept {
  if (core_.home_->forked()) return;
  std::shared_ptr<out_of_memory_callback> last;  // what it holds goes without the lock
  const detail::mutex_lock lock{core_.mutex_};
  callback_map& all = before_failure_.count(key) != 0 ? before_failure_ : before_growth_;
  const auto entry = all.find(key);
  if (entry == all.end()) return;
  last = std::move(entry->second);
  all.erase(entry);
}

bool heap_callbacks::any() const noexcept {
  core_.mutex_.assert_held();
  return !in_callbacks && !before_failure_.empty();
}

result<bool> heap_callbacks::run(pool_state& pool, bytes needed) {
  core_.mutex_.assert_held();
  return run_all(before_failure_, pool, needed);
}

result<bool> heap_callbacks::run_before_growth(pool_state& pool, bytes needed) {
  core_.mutex_.assert_held();
  if (in_callbacks || before_growth_.empty()) return false;
  WEIR_TRY(run_all(before_growth_, pool, needed));
  return true;
}

heap_callbacks::taken heap_callbacks::take_all() noexcept {
  core_.mutex_.assert_held();
  taken all;
  all.before_failure.swap(before_failure_);
  all.before_growth.swap(before_growth_);
  return all;
}

result<bool> heap_callbacks::run_all(const callback_map& chosen, pool_state& pool, bytes needed) {
  std::vector<std::shared_ptr<out_of_memory_callback>> all;
  all.reserve(chosen.size());
  for (const auto& [key, each] : chosen) all.push_back(each);
  const pool_hold held{core_, pool};
  bool claimed = false;
  std::exception_ptr thrown;
  const auto still_open = core_.without_lock([&] {
    in_callbacks = true;
    try {
      for (const auto& each : all) claimed = (*each)(needed) || claimed;
    } catch (...) {
      thrown = std::current_exception();
    }
    all.clear();  // with what those hold that were removed meanwhile
    in_callbacks = false;
  });
  if (thrown) throw callback_exception{thrown};
  WEIR_TRY(still_open);
  return claimed;
}

}}}  // namespace weir::v0::heap
