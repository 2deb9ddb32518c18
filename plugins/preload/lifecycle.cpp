// SPDX-License-Identifier: Apache-2.0
// Hooks for the life of contexts, streams and captures, and for peer access.
#include <cstdlib>
#include <new>

#include "hooks.hpp"
#include "process.hpp"

namespace weir_preload {

namespace {

/// Does something that is not the driver's to answer for.
template <class Work>
void quietly(const Work& work) noexcept {
  process* const here = process::get();
  if (here == nullptr) return;
  try {
    work(*here);
  } catch (...) {
    // No host memory: as if weir had not been told.
  }
}

CUstream legacy(CUstream stream) noexcept { return stream != nullptr ? stream : legacy_stream(); }
CUstream of_thread(CUstream stream) noexcept {
  return stream != nullptr ? stream : per_thread_stream();
}

template <hook Row>
CUresult release_context(CUdevice device) noexcept {
  CUcontext context = nullptr;
  bool is_held = true;
  quietly([&](process& here) { is_held = !here.holds_context_alone(device); });
  if (!is_held) return CUDA_ERROR_INVALID_CONTEXT;  // as without weir: it was released before
  // The heap holds the context, too, and lets it go before the program's last hold goes. Holds that
  // were taken in ways that nobody sees are possible, so memory that is live is never taken away.
  quietly([&](process& here) {
    context = here.primary_context(device);
    if (here.count_context(device, -1) != 0) return;
    const auto heap = here.existing_heap(device);
    if (heap != nullptr && !here.blocks().has_any(*heap)) here.drop_heap(device);
  });
  const CUresult answer = pass<Row>(device);
  if (answer == CUDA_SUCCESS && context != nullptr)
    quietly([&](process& here) {
      if (here.primary_context(device) == nullptr) here.forget_context(context);
    });
  return answer;
}

template <hook Row>
CUresult reset_context(CUdevice device) noexcept {
  CUcontext context = nullptr;
  quietly([&](process& here) {
    here.drop_heap(device);
    context = here.primary_context(device);
  });
  const CUresult answer = pass<Row>(device);
  if (answer == CUDA_SUCCESS) quietly([&](process& here) { here.forget_context(context); });
  return answer;
}

template <hook Row>
CUresult destroy_context(CUcontext context) noexcept {
  const CUresult answer = pass<Row>(context);
  if (answer == CUDA_SUCCESS) quietly([&](process& here) { here.forget_context(context); });
  return answer;
}

/// Whether a capture of the stream is over: it may be refused to whoever ends it.
bool is_over(const process& here, CUstream stream) noexcept {
  auto status = CU_STREAM_CAPTURE_STATUS_NONE;
  return here.calls().stream_is_capturing == nullptr ||
         here.calls().stream_is_capturing(stream, &status) != CUDA_SUCCESS ||
         status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/// Ends the captures of the thread's own default streams with the thread.
struct end_of_thread {
  ~end_of_thread() {
    quietly([](process& here) { here.known_captures().end_thread(); });
  }
};

void end_with_thread() {
  // Where it has no memory to note a destructor, the C library ends the process.
  void* volatile const ample = std::malloc(4096);
  std::free(ample);
  if (ample == nullptr) throw std::bad_alloc{};
  thread_local const end_of_thread at_end;
}

template <class Begin>
CUresult begin_capture(CUstream stream, const Begin& begin) noexcept {
  CUcontext context = nullptr;
  quietly([&](process& here) {
    const CUcontext home = here.context_of(stream);
    if (home == nullptr) return;
    here.known_captures().begins(home);
    context = home;
  });
  const CUresult answer = begin();
  if (context == nullptr) return answer;
  quietly([&](process& here) {
    bool is_known = false;
    try {
      if (answer == CUDA_SUCCESS) is_known = here.known_captures().add(context, stream);
      if (stream == per_thread_stream()) end_with_thread();
    } catch (const std::bad_alloc&) {
      is_known = true;  // its end will not be noticed: everything stays careful
    }
    if (!is_known) here.known_captures().did_not_begin(context);
  });
  return answer;
}

CUresult end_capture(CUstream stream, CUresult answer) noexcept {
  quietly([&](process& here) {
    if (is_over(here, stream)) here.known_captures().end(stream);
  });
  return answer;
}

template <hook Row>
CUresult destroy_stream(CUstream stream) noexcept {
  if (stream != nullptr) quietly([&](process& here) { here.forget_stream(stream); });
  return pass<Row>(stream);
}

}  // namespace

namespace abi {

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const CUresult answer = pass<hook::cuDevicePrimaryCtxRetain>(context, device);
  if (answer == CUDA_SUCCESS) quietly([&](process& here) { here.count_context(device, 1); });
  return answer;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return release_context<hook::cuDevicePrimaryCtxRelease>(device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release_context<hook::cuDevicePrimaryCtxRelease_v2>(device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return reset_context<hook::cuDevicePrimaryCtxReset>(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return reset_context<hook::cuDevicePrimaryCtxReset_v2>(device);
}

CUresult cuCtxDestroy(CUcontext context) { return destroy_context<hook::cuCtxDestroy>(context); }

CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroy_context<hook::cuCtxDestroy_v2>(context);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const CUresult answer = pass<hook::cuCtxEnablePeerAccess>(peer, flags);
  if (answer == CUDA_SUCCESS)
    quietly([&](process& here) {
      const auto reader = here.current_device();
      const auto owner = here.device_of(peer);
      if (reader && owner) here.add_peer(*owner, *reader);
    });
  return answer;
}

CUresult cuStreamDestroy(CUstream stream) { return destroy_stream<hook::cuStreamDestroy>(stream); }

CUresult cuStreamDestroy_v2(CUstream stream) {
  return destroy_stream<hook::cuStreamDestroy_v2>(stream);
}

CUresult cuStreamBeginCapture(CUstream stream) {
  return begin_capture(legacy(stream), [&] { return pass<hook::cuStreamBeginCapture>(stream); });
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin_capture(of_thread(stream),
                       [&] { return pass<hook::cuStreamBeginCapture_ptsz>(stream); });
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(legacy(stream),
                       [&] { return pass<hook::cuStreamBeginCapture_v2>(stream, mode); });
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(of_thread(stream),
                       [&] { return pass<hook::cuStreamBeginCapture_v2_ptsz>(stream, mode); });
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode* dependencies, const void* edges,
                                     std::size_t count, CUstreamCaptureMode mode) {
  return begin_capture(legacy(stream), [&] {
    return pass<hook::cuStreamBeginCaptureToGraph>(stream, graph, dependencies, edges, count, mode);
  });
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                          const CUgraphNode* dependencies, const void* edges,
                                          std::size_t count, CUstreamCaptureMode mode) {
  return begin_capture(of_thread(stream), [&] {
    return pass<hook::cuStreamBeginCaptureToGraph_ptsz>(stream, graph, dependencies, edges, count,
                                                        mode);
  });
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end_capture(legacy(stream), pass<hook::cuStreamEndCapture>(stream, graph));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture(of_thread(stream), pass<hook::cuStreamEndCapture_ptsz>(stream, graph));
}

}  // namespace abi
}  // namespace weir_preload
