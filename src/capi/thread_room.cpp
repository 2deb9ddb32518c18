// What the C ABI keeps for each thread.
#include "capi/thread_room.hpp"

#include <pthread.h>

#include <new>

namespace weir::inline v0::capi {
namespace {

constinit thread_local thread_room* own = nullptr;

// A key instead of a destructor: a thread's last calls may come while it is being taken down. They
// get a new room, and the key another call.
pthread_key_t key_of_rooms() noexcept {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    pthread_key_create(&made, [](void* room) {
      own = nullptr;
      delete static_cast<thread_room*>(room);
    });
    return made;
  }();
  return key;
}

}  // namespace

thread_room::~thread_room() {
  while (!entered.empty()) entered.pop_back();
  if (reader != nullptr) table::leave(*reader);
}

thread_room* own_room() noexcept {
  if (own == nullptr) {
    own = new (std::nothrow) thread_room;
    pthread_setspecific(key_of_rooms(), own);
  }
  return own;
}

thread_room* own_room_if_any() noexcept { return own; }

}  // namespace weir::inline v0::capi
