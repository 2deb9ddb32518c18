// SPDX-License-Identifier: Apache-2.0
// Driver calls: user objects, and the references that graphs hold to them.
#include <algorithm>
#include <climits>

#include "sim/graphs.hpp"
#include "sim/state.hpp"

namespace weir { inline namespace v0 { namespace sim {

namespace {

constexpr unsigned no_destructor_sync = 1;  // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, the only flag
constexpr unsigned move_references = 1;     // CU_GRAPH_USER_OBJECT_MOVE

bool is_count(unsigned count) { return count != 0 && count <= INT_MAX; }

object_counts::iterator entry(graph& owner, const user_object* object) {
  return std::find_if(owner.objects.begin(), owner.objects.end(),
                      [&](const object_count& each) { return each.object.get() == object; });
}

}  // namespace

CUresult state::user_object_create(CUuserObject* handle, void* pointer, CUhostFn destroy,
                                   unsigned references, unsigned flags) {
  if (handle == nullptr || destroy == nullptr || !is_count(references)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags != no_destructor_sync) return CUDA_ERROR_INVALID_VALUE;
  auto object = std::make_shared<user_object>();
  object->pointer = pointer;
  object->destroy = destroy;
  object->references = references;
  object->handle = *handle = graphs->object_handles.insert(object);
  return CUDA_SUCCESS;
}

CUresult state::user_object_retain(CUuserObject handle, unsigned count) {
  user_object* const object = graphs->object_handles.find(handle);
  if (object == nullptr || !is_count(count)) return CUDA_ERROR_INVALID_VALUE;
  object->references += count;
  return CUDA_SUCCESS;
}

CUresult state::user_object_release(CUuserObject handle, unsigned count) {
  const auto object = graphs->object_handles.share(handle);
  if (!object || !is_count(count) || count > object->references) return CUDA_ERROR_INVALID_VALUE;
  graphs->release(object, count);
  graphs->run_destructors(lock());
  return CUDA_SUCCESS;
}

CUresult state::graph_retain_user_object(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                         unsigned flags) {
  graph* const owner = graphs->graph_handles.find(graph_handle);
  const auto object = graphs->object_handles.share(handle);
  if (owner == nullptr || !object || !is_count(count)) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & ~move_references) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != move_references) object->references += count;
  const auto held = entry(*owner, object.get());
  if (held == owner->objects.end()) {
    owner->objects.push_back({object, count});
  } else {
    held->count += count;
  }
  return CUDA_SUCCESS;
}

CUresult state::graph_release_user_object(CUgraph graph_handle, CUuserObject handle,
                                          unsigned count) {
  graph* const owner = graphs->graph_handles.find(graph_handle);
  const auto object = graphs->object_handles.share(handle);
  if (owner == nullptr || !object || !is_count(count)) return CUDA_ERROR_INVALID_VALUE;
  const auto held = entry(*owner, object.get());
  if (held == owner->objects.end() || held->count < count) return CUDA_ERROR_INVALID_VALUE;
  held->count -= count;
  if (held->count == 0) owner->objects.erase(held);
  graphs->release(object, count);
  graphs->run_destructors(lock());
  return CUDA_SUCCESS;
}

}}}  // namespace weir::v0::sim
