// What the C ABI keeps for each thread.
#include "capi/thread_locals.hpp"

#include <pthread.h>

#include <new>

namespace weir { inline namespace v0 { namespace capi {
namespace {

constinit thread_local thread_locals* own = nullptr;

// A key instead of a destructor: a thread's last calls may come while it is being taken down. They
// get new ones, and the key another call.
pthread_key_t destructor_key() noexcept {
  static const pthread_key_t key = [] {
    pthread_key_t created{};
    pthread_key_create(&created, [](void* locals) {
      own = nullptr;
      delete static_cast<thread_locals*>(locals);
    });
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
  if (own == nullptr) {
    own = new (std::nothrow) thread_locals;
    pthread_setspecific(destructor_key(), own);
  }
  return own;
}

thread_locals* existing_thread_locals() noexcept { return own; }

}}}  // namespace weir::v0::capi
