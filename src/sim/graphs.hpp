// SPDX-License-Identifier: Apache-2.0
// Captures, graphs and their launches.
#pragma once

#include <memory>
#include <vector>

#include "sim/capture.hpp"
#include "sim/graph.hpp"
#include "sim/graph_memory.hpp"
#include "sim/handles.hpp"
#include "sim/timeline.hpp"
#include "weir/driver/table.hpp"

namespace weir { inline namespace v0 { namespace sim {

class state;

/// Everything about captures and graphs. Needs the machine's lock held.
class graph_set {
 public:
  explicit graph_set(state& machine);
  ~graph_set();
  graph_set(const graph_set&) = delete;
  graph_set& operator=(const graph_set&) = delete;

  // --- Asked by other parts ---------------------------------------------------------------------

  /// Whether any capture is under way, invalidated or not; while none is, nothing else here need be
  /// called.
  [[nodiscard]] bool any_active() const noexcept { return !captures_.empty(); }
  /// Whether the calling thread may make this call while captures are under way. If not: the answer
  /// to give (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), and the captures concerned are invalidated.
  driver::CUresult forbid(driver::call call);
  /// Work submitted to a capturing stream becomes a node.
  driver::CUresult add_node(const std::shared_ptr<stream_state>& stream, work task);
  /// An event recorded in a capturing stream.
  driver::CUresult record(event_state& event, const std::shared_ptr<stream_state>& stream);
  /// A wait where the stream is capturing or the event was recorded in a capture: joins the stream
  /// to the capture, or fails.
  driver::CUresult wait(const std::shared_ptr<stream_state>& stream, event_state& event);
  /// The same with CU_EVENT_RECORD_EXTERNAL and CU_EVENT_WAIT_EXTERNAL: the event becomes a node,
  /// recorded or waited for by each launch. Such flags are valid on a capturing stream only.
  driver::CUresult record_external(const std::shared_ptr<event_state>& event,
                                   const std::shared_ptr<stream_state>& stream);
  driver::CUresult wait_external(const std::shared_ptr<stream_state>& stream,
                                 const std::shared_ptr<event_state>& event);
  /// A call that must not be made on a capturing stream (synchronize, query, destroy): invalidates
  /// the stream's capture and says what to answer.
  driver::CUresult misuse(const std::shared_ptr<stream_state>& stream);
  /// The stream's handle is destroyed: its capture, if it is in one, ends without a graph.
  void abandon(const std::shared_ptr<stream_state>& stream);
  /// Work on the legacy stream while a blocking stream of the device captures is refused.
  driver::CUresult check_legacy(int device);
  /// Waiting for a whole device is refused, and spoils the captures on it, in every mode.
  driver::CUresult check_synchronize(int device);
  /// Stream-ordered allocation and free on a capturing stream. A graph has memory of its own: of
  /// the pool only its device matters.
  driver::CUresult capture_alloc(const std::shared_ptr<stream_state>& stream, std::size_t bytes,
                                 driver::CUmemoryPool pool, driver::CUdeviceptr* address);
  driver::CUresult capture_free(const std::shared_ptr<stream_state>& stream,
                                driver::CUdeviceptr address);
  /// Frees an allocation of a graph that is alive outside of it: a launch made it and did not free
  /// it. On a stream, or at once if `stream` is null. False, and nothing is done, for any other
  /// address.
  bool free_graph_allocation(driver::CUdeviceptr address,
                             const std::shared_ptr<stream_state>& stream);
  /// The device's context is reset and its work is gone: captures and executable graphs that use
  /// the device go, and graph memory on it.
  void reset(int device, std::unique_lock<std::mutex>& lock);

  // --- Captures ---------------------------------------------------------------------------------

  driver::CUresult begin(const std::shared_ptr<stream_state>& stream,
                         driver::CUstreamCaptureMode mode);
  driver::CUresult end(const std::shared_ptr<stream_state>& stream, driver::CUgraph* graph);
  /// What a question about the legacy stream's capture must answer.
  [[nodiscard]] driver::CUresult legacy_usable(int device) const noexcept;

  // --- Graphs -----------------------------------------------------------------------------------

  std::shared_ptr<graph> make_graph();
  /// Adds a node behind the nodes at the places `after`.
  driver::CUgraphNode append(graph& to, node_content content, std::vector<std::size_t> after);
  /// The places of nodes in a graph; false where one is not a node of this graph or stands twice.
  [[nodiscard]] bool places(const graph& owner, const driver::CUgraphNode* nodes, std::size_t count,
                            std::vector<std::size_t>& places) const;
  driver::CUresult add_allocation(graph& to, std::vector<std::size_t> after, int device,
                                  std::size_t bytes,
                                  const std::vector<driver::CUmemAccessDesc>& also_for,
                                  driver::CUgraphNode* node, driver::CUdeviceptr* address);
  driver::CUresult add_free(graph& from, std::vector<std::size_t> after,
                            driver::CUdeviceptr address, driver::CUgraphNode* node);
  /// Destroys the nodes and releases the references; the handle itself is the caller's business.
  void dismantle(graph& target);

  driver::CUresult instantiate(const std::shared_ptr<graph>& from, unsigned long long flags,
                               driver::CUgraphExec* exec);
  driver::CUresult launch(const std::shared_ptr<graph_exec>& exec,
                          const std::shared_ptr<stream_state>& stream);
  void destroy(const std::shared_ptr<graph_exec>& exec);

  // --- User objects -----------------------------------------------------------------------------

  void release(const std::shared_ptr<user_object>& object, std::uint64_t count);
  void release(const object_counts& objects);
  /// Runs the destructors of objects that nobody refers to any more. Gives the lock up meanwhile: a
  /// call does this last.
  void run_destructors(std::unique_lock<std::mutex>& lock);

  handle_table<driver::CUgraph, graph, 8> graph_handles;
  handle_table<driver::CUgraphNode, graph_node, 9> node_handles;
  handle_table<driver::CUgraphExec, graph_exec, 10> exec_handles;
  handle_table<driver::CUuserObject, user_object, 11> object_handles;
  graph_memory memory;

 private:
  driver::CUresult add_node(const std::shared_ptr<stream_state>& stream, node_content content);
  void close(capture& ending);
  void check_captured(const stream_state& stream, const work& task);
  [[nodiscard]] std::vector<std::size_t> places_of(
      const std::vector<driver::CUgraphNode>& nodes) const;
  driver::CUresult prepare_memory(const graph_exec& exec);
  void free_leftovers(const graph_exec& exec, const std::shared_ptr<stream_state>& stream);
  void enqueue_steps(graph_exec& exec, const std::shared_ptr<stream_state>& stream);
  void settle_memory(const graph_exec& exec);

  state& machine_;
  std::uint64_t next_graph_id_ = 1;
  std::vector<std::shared_ptr<capture>> captures_;    // under way
  std::vector<std::shared_ptr<user_object>> doomed_;  // without references, destructor not yet run
};

}}}  // namespace weir::v0::sim
