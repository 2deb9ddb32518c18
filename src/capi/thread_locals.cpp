// What the C ABI keeps for each thread.
#include "capi/thread_locals.hpp"

#include <pthread.h>

#include <memory>
#include <new>
#include <optional>

namespace weir { inline namespace v0 { namespace capi {
namespace {

constinit thread_local thread_locals* own = nullptr;

// A key instead of a destructor: a thread's last calls may come while it is being taken down. They
// get new ones, and the key another call. Empty where the process has no key left.
std::optional<pthread_key_t> destructor_key() noexcept {
  static const std::optional<pthread_key_t> key = []() -> std::optional<pthread_key_t> {
    pthread_key_t created{};
    const int refused = pthread_key_create(&created, [](void* locals) {
      own = nullptr;
      delete static_cast<thread_locals*>(locals);
    });
    if (refused != 0) return std::nullopt;
    return created;
  }();
  return key;
}

}  // namespace

thread_locals::~thread_locals() {
  while (!entered.empty()) entered.pop_back();
  if (reader != nullptr) table::leave(*reader);
}

thread_locals* own_thread_locals() noexcept {
  if (own != nullptr) return own;
  const std::optional<pthread_key_t> key = destructor_key();
  if (!key) return nullptr;
  std::unique_ptr<thread_locals> created{new (std::nothrow) thread_locals};
  if (created == nullptr || pthread_setspecific(*key, created.get()) != 0) return nullptr;
  return own = created.release();
}

thread_locals* existing_thread_locals() noexcept { return own; }

}}}  // namespace weir::v0::capi
