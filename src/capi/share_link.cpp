// SPDX-License-Identifier: Apache-2.0
// The C ABI's sharing over a link: memory, events and pools, offered and opened.
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "capi/guard.hpp"
#include "capi/sharing.hpp"
#include "capi/structures.hpp"
#include "weir.h"
#include "weir/share/channel.hpp"

namespace weir { inline namespace v0 { namespace capi {

struct link_object {
  std::shared_ptr<runtime> machine;
  share_link link;
};
WEIR_HANDLE_KIND(link)

struct offer_object {
  std::shared_ptr<runtime> machine;
  std::mutex mutex;  // an offer is one thread's at a time
  share_offer offer;
  bool opened = false;

  [[nodiscard]] result<void> check_unopened() const {
    if (opened) return error{{.code = errc::moved_from, .detail = "the offer was already opened"}};
    return {};
  }
};
WEIR_HANDLE_KIND(offer)

namespace {

static_assert(static_cast<int>(share_kind::memory) == weir_offer_memory &&
              static_cast<int>(share_kind::legacy_memory) == weir_offer_legacy_memory &&
              static_cast<int>(share_kind::pool) == weir_offer_stream_pool &&
              static_cast<int>(share_kind::pool_pointer) == weir_offer_pool_pointer &&
              static_cast<int>(share_kind::event) == weir_offer_event);

share_link::timeout milliseconds(std::uint32_t count) { return share_link::timeout{count}; }

result<void> write_grant(const result<share_grant>& grant, std::uint64_t* number) {
  if (!grant) return grant.error();
  if (number != nullptr) *number = grant->number();
  return {};
}

result<void> hand_out_shared(shared_memory memory, weir_shared** into) {
  WEIR_TRY_VALUE(handle, hand_out_handle<weir_shared>(
                             std::make_shared<shared_object>(shared_object{std::move(memory)})));
  *into = handle;
  return {};
}

}  // namespace
}}}  // namespace weir::v0::capi

using namespace weir;
using namespace weir::capi;

extern "C" {

// --- Memory to share ----------------------------------------------------------------------------

weir_error weir_shared_create(weir_runtime* runtime, int32_t device, uint64_t size, uint64_t unit,
                              weir_shared** shared) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(shared);
    WEIR_TRY_VALUE(home, find_device(runtime, device));
    WEIR_TRY_VALUE(memory, shared_memory::create(home.device, bytes{size}, {.unit = bytes{unit}}));
    return hand_out_shared(std::move(memory), shared);
  });
}

weir_error weir_shared_allocate(weir_allocator* allocator, weir_pool* pool, uint64_t size,
                                weir_stream* stream, weir_shared** shared) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(owner, find(allocator));
    WEIR_TRY_VALUE(part, find(pool));
    WEIR_NEEDS(shared);
    WEIR_TRY_VALUE(target, find_stream(stream, *owner));
    WEIR_TRY_VALUE(memory,
                   shared_memory::allocate(owner->memory, part->pool, bytes{size}, target.ref));
    return hand_out_shared(std::move(memory), shared);
  });
}

weir_error weir_shared_get_info(weir_shared* shared, weir_shared_info* info) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(shared));
    weir_shared_info known{};
    known.device = object->memory.device().id().number();
    known.address = object->memory.address();
    known.size = object->memory.size().count();
    known.unit = object->memory.unit().count();
    return hand_out(known, info);
  });
}

weir_error weir_shared_close(weir_shared* shared) {
  return guarded([&]() -> result<void> {
    if (shared == nullptr) return {};
    WEIR_TRY(take(shared));
    return {};
  });
}

// --- The link -----------------------------------------------------------------------------------

weir_error weir_link_create_sockets(int32_t sockets[2]) {
  return guarded([&]() -> result<void> {
    WEIR_NEEDS(sockets);
    WEIR_TRY_VALUE(ends, share_channel::pair());
    sockets[0] = ends.first.release().release();
    sockets[1] = ends.second.release().release();
    return {};
  });
}

weir_error weir_link_open(weir_runtime* runtime, int32_t socket, uint32_t timeout,
                          weir_link** link) {
  return guarded([&]() -> result<void> {
    descriptor end{socket};
    WEIR_TRY_VALUE(object, find(runtime));
    WEIR_NEEDS(link);
    WEIR_TRY_VALUE(channel, share_channel::adopt(std::move(end)));
    WEIR_TRY_VALUE(opened, share_link::open(object->machine, std::move(channel),
                                            {.limit = milliseconds(timeout)}));
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_link>(std::make_shared<link_object>(
                               link_object{object->machine, std::move(opened)})));
    *link = handle;
    return {};
  });
}

weir_error weir_link_close(weir_link* link) {
  return guarded([&]() -> result<void> {
    if (link == nullptr) return {};
    WEIR_TRY(take(link));
    return {};
  });
}

weir_error weir_link_check(weir_link* link) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(link));
    return object->link.check();
  });
}

weir_error weir_link_offer_memory(weir_link* link, weir_shared* shared, uint64_t offset,
                                  uint64_t size, int32_t rights, uint64_t* grant) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(link));
    WEIR_TRY_VALUE(source, find(shared));
    WEIR_TRY_VALUE(allowed, rights_from(rights));
    return write_grant(
        object->link.offer(source->memory,
                           {.offset = bytes{offset}, .size = bytes{size}, .rights = allowed}),
        grant);
  });
}

weir_error weir_link_offer_event(weir_link* link, weir_event* event, uint64_t* grant) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(link));
    WEIR_TRY_VALUE(source, find(event));
    return write_grant(object->link.offer(source->mark), grant);
  });
}

weir_error weir_link_offer_stream_pool(weir_link* link, weir_stream_pool* pool, uint64_t* grant) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(link));
    WEIR_TRY_VALUE(source, find(pool));
    return write_grant(object->link.offer(source->pool), grant);
  });
}

weir_error weir_link_send_note(weir_link* link, const void* note, uint64_t size) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(link));
    if (note == nullptr && size != 0) return missing("note");
    return object->link.send_note({static_cast<const std::byte*>(note), size});
  });
}

weir_error weir_link_revoke(weir_link* link, uint64_t grant, uint32_t timeout) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(link));
    return object->link.revoke(share_grant{grant}, milliseconds(timeout));
  });
}

weir_error weir_link_get_outstanding(weir_link* link, uint64_t* count) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(link));
    WEIR_NEEDS(count);
    *count = object->link.outstanding();
    return {};
  });
}

weir_error weir_link_receive(weir_link* link, uint32_t timeout, weir_offer** offer) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(source, find(link));
    WEIR_NEEDS(offer);
    WEIR_TRY_VALUE(received, source->link.receive(milliseconds(timeout)));
    std::shared_ptr<offer_object> object{
        new offer_object{source->machine, {}, std::move(received)}};
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_offer>(std::move(object)));
    *offer = handle;
    return {};
  });
}

// --- Received offers ----------------------------------------------------------------------------

weir_error weir_offer_get_info(weir_offer* offer, weir_offer_info* info) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(offer));
    const std::lock_guard lock{object->mutex};
    WEIR_TRY(object->check_unopened());
    weir_offer_info known{};
    if (object->offer.is_note()) {
      known.kind = weir_offer_note;
      known.size = object->offer.note().size();
    } else {
      const share_ticket& ticket = object->offer.ticket();
      known.kind = static_cast<std::int32_t>(ticket.kind);
      known.rights = static_cast<std::int32_t>(ticket.rights);
      known.size = ticket.size.count();
    }
    return hand_out(known, info);
  });
}

weir_error weir_offer_get_note(weir_offer* offer, void* note, uint64_t capacity) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(offer));
    if (note == nullptr && capacity != 0) return missing("note");
    const std::lock_guard lock{object->mutex};
    WEIR_TRY(object->check_unopened());
    if (!object->offer.is_note())
      return error{{.code = errc::invalid_argument, .detail = "the offer is not a note"}};
    const auto text = object->offer.note();
    const std::size_t length = std::min<std::size_t>(text.size(), capacity);
    if (length != 0) std::memcpy(note, text.data(), length);
    return {};
  });
}

weir_error weir_offer_open_memory(weir_offer* offer, weir_imported** imported) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(offer));
    WEIR_NEEDS(imported);
    const std::lock_guard lock{object->mutex};
    WEIR_TRY(object->check_unopened());
    WEIR_TRY_VALUE(memory, object->offer.open_memory());
    object->opened = true;
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_imported>(std::make_shared<imported_object>(
                               imported_object{std::move(memory)})));
    *imported = handle;
    return {};
  });
}

weir_error weir_offer_open_event(weir_offer* offer, weir_event** event) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(offer));
    WEIR_NEEDS(event);
    const std::lock_guard lock{object->mutex};
    WEIR_TRY(object->check_unopened());
    WEIR_TRY_VALUE(opened, object->offer.open_event());
    object->opened = true;
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_event>(
                               std::make_shared<event_object>(event_object{std::move(opened)})));
    *event = handle;
    return {};
  });
}

weir_error weir_offer_open_stream_pool(weir_offer* offer, weir_stream_pool** pool) {
  return guarded([&]() -> result<void> {
    WEIR_TRY_VALUE(object, find(offer));
    WEIR_NEEDS(pool);
    const std::lock_guard lock{object->mutex};
    WEIR_TRY(object->check_unopened());
    WEIR_TRY_VALUE(opened, object->offer.open_pool());
    object->opened = true;
    WEIR_TRY_VALUE(handle, hand_out_handle<weir_stream_pool>(std::make_shared<stream_pool_object>(
                               stream_pool_object{object->machine, std::move(opened)})));
    *pool = handle;
    return {};
  });
}

weir_error weir_offer_close(weir_offer* offer) {
  return guarded([&]() -> result<void> {
    if (offer == nullptr) return {};
    WEIR_TRY(take(offer));
    return {};
  });
}
}
