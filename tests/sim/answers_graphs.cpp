// Answers about captures, graphs, their memory, and user objects.
#include "sim/answers.hpp"

namespace weir::sim_tests::answers {
namespace {

class graphs_program final : public program {
 public:
  explicit graphs_program(const setting& chosen) : program{chosen} {
    reaches_beyond = false;
    add(6, [this] { begin(); });
    add(5, [this] { end(any_stream()); });
    add(3, [this] { end_all(); });
    add(8, [this] { fork(); });
    add(4, [this] { record(); });
    add(4, [this] { wait(); });
    add(8, [this] { work(pieces_); });
    add(6, [this] { queue(); });
    add(5, [this] { ask_capture(); });
    add(2, [this] { exchange(); });
    add(8, [this] { build(); });
    add(5, [this] { instantiate(); });
    add(8, [this] { launch(); });
    add(2, [this] { destroy(); });
    add(10, [this] { use_object(); });
    add(4, [this] { ask_memory(); });
    add(2, [this] { free_memory(); });
    add(3, [this] { synchronize(); });
    add(3, [this] { pass_time(); });
    add(2, [this] { ask(); });
    add(1, [this] { make_event(); });
    add(1, [this] { replace_stream(); });
    add(1, [this] { switch_device(); });
    add(2, [this] { contents(any(pieces_).at, 1000); });
  }

 private:
  struct drawing {
    CUgraph handle = nullptr;
    std::vector<CUgraphNode> nodes;
  };

  void prepare() override {
    pieces_.clear();
    graphs_.clear();
    execs_.clear();
    objects_.clear();
    memory_.clear();
    first_id_ = 0;
    for (int each = 0; each < 5; ++each) make_stream();
    for (int each = 0; each < 4; ++each) make_event();
    for (int each = 0; each < 3; ++each) {
      void* made = nullptr;
      said("pinned", cuda->mem_host_alloc(&made, 1000, 0));
      pieces_.push_back({reinterpret_cast<std::uintptr_t>(made), 1000, 0});
      appear(pieces_.back().at, 1000);
    }
  }
  /// Graph memory has no name; where it lies in its block is the same everywhere.
  static std::uint64_t in_block(CUdeviceptr address) {
    return address == untouched ? untouched : address % (32 * mib);
  }

  /// When a graph goes, so may its addresses; whether others get the same is the host's choice.
  void forget_memory() { memory_.clear(); }
  void replace_stream() {
    make_stream();
    forget_memory();  // a capture goes with its stream
  }

  // --- Captures ----------------------------------------------------------------------------------

  void begin() {
    const auto mode = static_cast<CUstreamCaptureMode>(wrong() ? 3 : dice.below(3));
    said("begin", cuda->stream_begin_capture(any_stream(), mode));
  }
  void end(CUstream on) {
    auto made = reinterpret_cast<CUgraph>(untouched);
    const CUresult answer = cuda->stream_end_capture(on, &made);
    const bool done = said("end", answer);
    values(known(made));
    if (answer == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
        answer == CUDA_ERROR_STREAM_CAPTURE_UNJOINED) {
      forget_memory();
    }
    if (!done) return;
    graphs_.push_back({made, {}});
    describe(graphs_.back());
  }
  void end_all() {
    for (const CUstream each : std::vector<CUstream>{streams}) end(each);
    for (const CUstream each : streams) {
      auto status = static_cast<CUstreamCaptureStatus>(9);
      said("is capturing", cuda->stream_is_capturing(each, &status));
      values(status);
    }
  }
  /// Another stream joins a capture, and as a rule the first waits for it again.
  void fork() {
    if (streams.size() < 2 || events.size() < 2) return;
    const CUstream first = any(streams);
    const CUstream second = any(streams);
    const CUevent mark = any(events);
    if (dice.one_in(2))
      said("begin", cuda->stream_begin_capture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (dice.one_in(2)) queue_on(first);
    said("record", cuda->event_record(mark, first));
    said("wait", cuda->stream_wait_event(second, mark, 0));
    queue_on(second);
    if (dice.one_in(2)) queue_on(first);
    said("record", cuda->event_record(mark, second));
    if (!wrong()) said("wait", cuda->stream_wait_event(first, mark, 0));
    if (dice.one_in(2)) queue_on(first);
    if (dice.one_in(2)) end(first);
  }
  void ask_capture() {
    const CUstream of = any_stream();
    auto status = static_cast<CUstreamCaptureStatus>(9);
    std::uint64_t id = 0;
    auto graph = reinterpret_cast<CUgraph>(untouched);
    const CUgraphNode* next = nullptr;
    std::size_t count = 0;
    said("capture info", cuda->stream_get_capture_info(of, &status, &id, &graph, &next, &count));
    if (first_id_ == 0) first_id_ = id;
    values(status, id == 0 ? 0 : id - first_id_ + 1, count, known(graph));
    std::vector<CUgraphNode> dependencies(next, next + count);
    for (const CUgraphNode each : dependencies) values(known(each));
    if (dice.one_in(3)) {
      if (wrong()) dependencies.push_back(nullptr);
      if (dependencies.size() > 1 && dice.one_in(2)) dependencies.pop_back();
      const auto flags = static_cast<unsigned>(dice.below(wrong() ? 3 : 2));
      said("update", cuda->stream_update_capture_dependencies(of, dependencies.data(),
                                                              dependencies.size(), flags));
    }
  }
  void exchange() {
    auto mode = static_cast<CUstreamCaptureMode>(wrong() ? 3 : dice.below(3));
    said("exchange", cuda->thread_exchange_stream_capture_mode(&mode));
    values(mode);
  }

  // --- Work on a stream, captured or not ---------------------------------------------------------

  void queue() { queue_on(any_stream()); }
  void queue_on(CUstream on) {
    const piece part = any_part(any(pieces_));
    const piece other = any_part(any(pieces_));
    switch (dice.below(10)) {
      case 0:
        return void(
            said("fill", cuda->memset_d8_async(part.at, static_cast<unsigned char>(dice.below(256)),
                                               part.size, on)));
      case 1:
        return void(said(
            "copy", cuda->memcpy_async(part.at, other.at, std::min(part.size, other.size), on)));
      case 2:
        said("host function",
             cuda->launch_host_func(
                 on, [](void* data) { *static_cast<std::uint64_t*>(data) += 5; }, &called));
        return values(called);
      case 3: {
        CUdeviceptr made = untouched;
        const std::uint64_t size = wrong() ? 0 : dice.magnitude(20 * mib);
        if (said("alloc", cuda->mem_alloc_async(&made, size, on)) && size != 0)
          memory_.push_back(made);
        return values(made % unit);  // a pool's, unless captured: its begin has no name either
      }
      case 4:
        if (memory_.empty()) return;
        said("free", cuda->mem_free_async(dice.one_in(2) ? take(memory_) : any(memory_), on));
        return;
      case 5:
        if (events.empty()) return;
        said("external record",
             cuda->event_record_with_flags(any(events), on, CU_EVENT_RECORD_EXTERNAL));
        return;
      case 6:
      case 7:
        if (execs_.empty()) return;
        said("launch", cuda->graph_launch(any(execs_), on));
        return;
      default: {
        const auto queued = machine->launch(
            on, "work", {sim::writes(part.at, part.size), sim::reads(other.at, other.size)});
        said("work", queued ? CUDA_SUCCESS : static_cast<CUresult>(queued.error().native));
      }
    }
  }

  // --- Graphs ------------------------------------------------------------------------------------

  void describe(drawing& of) {
    std::size_t count = 0;
    said("nodes", cuda->graph_get_nodes(of.handle, nullptr, &count));
    of.nodes.assign(count + 1, nullptr);
    said("nodes", cuda->graph_get_nodes(of.handle, of.nodes.data(), &count));
    of.nodes.resize(count);
    for (const CUgraphNode each : of.nodes) {
      auto type = static_cast<CUgraphNodeType>(99);
      said("type", cuda->graph_node_get_type(each, &type));
      values(known(each), type);
    }
    std::size_t edges = 0;
    said("edges", cuda->graph_get_edges(of.handle, nullptr, nullptr, &edges));
    edges += dice.below(2);
    std::vector<CUgraphNode> from(edges + 1);
    std::vector<CUgraphNode> to(edges + 1);
    said("edges", cuda->graph_get_edges(of.handle, from.data(), to.data(), &edges));
    values(edges);
    for (std::size_t i = 0; i < edges; ++i) {
      values(known(from[i]));
      values(known(to[i]));
    }
  }
  std::vector<CUgraphNode> dependencies(const drawing& of) {
    std::vector<CUgraphNode> chosen;
    for (const CUgraphNode each : of.nodes) {
      if (dice.one_in(3)) chosen.push_back(each);
    }
    if (dice.one_in(20)) chosen.push_back(chosen.empty() ? nullptr : chosen.front());
    if (dice.one_in(20) && !graphs_[0].nodes.empty()) chosen.push_back(graphs_[0].nodes[0]);
    return chosen;
  }
  void build() {
    if (graphs_.empty() || (graphs_.size() < 4 && dice.one_in(4))) {
      auto made = reinterpret_cast<CUgraph>(untouched);
      if (said("create", cuda->graph_create(&made, dice.one_in(20) ? 1 : 0)))
        graphs_.push_back({made, {}});
      return values(known(made));
    }
    drawing& to = any(graphs_);
    const std::vector<CUgraphNode> after = dependencies(to);
    auto made = reinterpret_cast<CUgraphNode>(untouched);
    bool done = false;
    switch (dice.below(3)) {
      case 0:
        done = said("empty node",
                    cuda->graph_add_empty_node(&made, to.handle, after.data(), after.size()));
        break;
      case 1: {
        CUDA_MEM_ALLOC_NODE_PARAMS wanted{};
        wanted.poolProps.allocType =
            dice.one_in(30) ? CU_MEM_ALLOCATION_TYPE_INVALID : CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE,
                                     static_cast<int>(dice.below(wrong() ? 3 : 2))};
        wanted.bytesize = dice.one_in(20) ? 0 : dice.magnitude(40 * mib);
        wanted.dptr = untouched;
        const CUmemAccessDesc other{
            {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(dice.below(wrong() ? 3 : 2))},
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        wanted.accessDescs = dice.one_in(20) ? nullptr : &other;
        wanted.accessDescCount = dice.below(2);
        done = said("alloc node", cuda->graph_add_mem_alloc_node(&made, to.handle, after.data(),
                                                                 after.size(), &wanted));
        if (done) memory_.push_back(wanted.dptr);
        values(in_block(wanted.dptr));
        break;
      }
      default: {
        const CUdeviceptr gone = memory_.empty() || wrong() ? nowhere : any(memory_);
        done = said("free node", cuda->graph_add_mem_free_node(&made, to.handle, after.data(),
                                                               after.size(), gone));
      }
    }
    values(known(made));
    if (done) to.nodes.push_back(made);
    if (dice.one_in(3)) describe(to);
  }
  void instantiate() {
    if (graphs_.empty()) return;
    auto made = reinterpret_cast<CUgraphExec>(untouched);
    const unsigned long long flags = wrong() ? dice.below(20) : dice.below(2) + 8 * dice.below(2);
    const CUgraph of = dice.one_in(30) ? nullptr : any(graphs_).handle;
    if (said("instantiate", cuda->graph_instantiate(&made, of, flags))) execs_.push_back(made);
    values(known(made));
  }
  void launch() {
    const CUgraphExec started = execs_.empty() || dice.one_in(30) ? nullptr : any(execs_);
    if (dice.one_in(6)) said("upload", cuda->graph_upload(started, any_stream()));
    said("launch", cuda->graph_launch(started, any_stream()));
    values(called);
  }
  void destroy() {
    if (!graphs_.empty() && (dice.one_in(2) || graphs_.size() > 6)) {
      const drawing gone = take(graphs_);
      said("graph_destroy", cuda->graph_destroy(gone.handle));
      forget_memory();
      if (wrong()) said("again", cuda->graph_destroy(gone.handle));
    } else if (!execs_.empty()) {
      const CUgraphExec gone = take(execs_);
      said("exec_destroy", cuda->graph_exec_destroy(gone));
      forget_memory();
      if (wrong()) said("again", cuda->graph_exec_destroy(gone));
    }
    values(called);
  }
  void use_object() {
    const auto count = static_cast<unsigned>(wrong() ? dice.below(9) : 1 + dice.below(2));
    if (objects_.size() < 2) {
      auto made = reinterpret_cast<CUuserObject>(untouched);
      const auto gone = [](void* data) { *static_cast<std::uint64_t*>(data) += 1000; };
      const unsigned flags = wrong() ? 0 : 1;
      if (said("object", cuda->user_object_create(&made, &called, gone, count, flags)))
        objects_.push_back(made);
      return values(known(made));
    }
    const CUuserObject object = any(objects_);
    const CUgraph graph = graphs_.empty() || dice.one_in(20) ? nullptr : any(graphs_).handle;
    switch (dice.below(4)) {
      case 0:
        said("object retain", cuda->user_object_retain(object, count));
        break;
      case 1:
        if (!said("object release", cuda->user_object_release(object, count))) take(objects_);
        break;
      case 2:
        said("graph retain",
             cuda->graph_retain_user_object(graph, object, count,
                                            static_cast<unsigned>(dice.below(wrong() ? 3 : 2))));
        break;
      default:
        said("graph release", cuda->graph_release_user_object(graph, object, count));
    }
    values(called);
  }

  // --- Memory ------------------------------------------------------------------------------------

  void ask_memory() {
    const int of = static_cast<int>(dice.below(wrong() ? 3 : 2));
    if (dice.one_in(4)) said("trim", cuda->device_graph_mem_trim(of));
    if (dice.one_in(4)) {
      std::uint64_t value = wrong() ? 1 : 0;
      const auto which = static_cast<CUgraphMem_attribute>(dice.below(5));
      said("set", cuda->device_set_graph_mem_attribute(of, which, &value));
    }
    for (int each = 0; each < 5; ++each) {
      std::uint64_t value = untouched;
      said("figure", cuda->device_get_graph_mem_attribute(
                         of, static_cast<CUgraphMem_attribute>(each), &value));
      values(value);
    }
  }
  void free_memory() {
    if (memory_.empty()) return;
    const CUdeviceptr gone = take(memory_);
    if (dice.one_in(2)) {
      said("mem_free", cuda->mem_free(gone));
    } else {
      said("mem_free_async", cuda->mem_free_async(gone, any_stream()));
    }
  }

  std::vector<piece> pieces_;
  std::vector<drawing> graphs_;
  std::vector<CUgraphExec> execs_;
  std::vector<CUuserObject> objects_;
  std::vector<CUdeviceptr> memory_;
  std::uint64_t first_id_ = 0;
};

}  // namespace

std::unique_ptr<program> play_graphs(const setting& chosen) {
  return std::make_unique<graphs_program>(chosen);
}

}  // namespace weir::sim_tests::answers
