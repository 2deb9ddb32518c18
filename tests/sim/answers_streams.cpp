// Answers about streams, events, host functions, values in memory, and time.
#include "sim/answers.hpp"

namespace weir::sim_tests::answers {
namespace {

class streams_program final : public program {
 public:
  explicit streams_program(const setting& chosen) : program{chosen} {
    add(3, [this] { make_stream(); });
    add(2, [this] { make_event(); });
    add(8, [this] { record(); });
    add(8, [this] { wait(); });
    add(8, [this] { ask(); });
    add(3, [this] { synchronize(); });
    add(10, [this] { work(pieces_); });
    add(6, [this] { pass_time(); });
    add(2, [this] { switch_device(); });
    add(4, [this] { ask_stream(); });
    add(4, [this] { call_host(); });
    add(4, [this] { hold(); });
    add(4, [this] { use_value(); });
    add(3, [this] { meet_fault(); });
    add(3, [this] { launch_kernel(); });
  }

 private:
  static constexpr const char* image = R"(.version 7.0
.target sm_50
.address_size 64
.visible .entry answers(.param .u64 at, .param .u32 size, .param .u8 value) { ret; }
.visible .entry unknown(.param .u64 at) { ret; }
)";

  void prepare() override {
    pieces_.clear();
    for (int each = 0; each < 3; ++each) {
      void* made = nullptr;
      said("pinned", cuda->mem_host_alloc(&made, 4096, 0));
      pieces_.push_back({reinterpret_cast<std::uintptr_t>(made), 4096, 0});
      appear(pieces_.back().at, 4096);
      make_stream();
      make_event();
    }
    void* made = nullptr;
    said("flag", cuda->mem_host_alloc(&made, 8, 0));
    flag_ = reinterpret_cast<std::uintptr_t>(made);
    appear(flag_, 8);
    sim::kernel definition{.name = "answers", .parameters = {8, 4, 1}, .accesses = {}, .run = {}};
    definition.accesses = [](const sim::kernel_arguments& given, std::vector<sim::access>& out) {
      out.push_back(sim::writes(given.get<CUdeviceptr>(0), given.get<std::uint32_t>(1)));
    };
    definition.run = [](const sim::kernel_arguments& given) {
      auto* const to = reinterpret_cast<unsigned char*>(given.get<CUdeviceptr>(0));
      for (std::uint32_t i = 0; i < given.get<std::uint32_t>(1); ++i) {
        to[i] = static_cast<unsigned char>(given.get<unsigned char>(2) + given.threads());
      }
    };
    definition.takes = sim::duration{7'000};
    machine->add_kernel(definition);
    said("module", cuda->module_load_data(&module_, image));
    said("function", cuda->module_get_function(&function_, module_, "answers"));
  }

  void ask_stream() {
    const CUstream of = any_stream();
    int priority = 99;
    unsigned flags = 99;
    unsigned long long id = untouched;
    auto context = reinterpret_cast<CUcontext>(untouched);
    said("priority", cuda->stream_get_priority(of, &priority));
    said("flags", cuda->stream_get_flags(of, wrong() ? nullptr : &flags));
    said("id", cuda->stream_get_id(of, &id));
    said("context", cuda->stream_get_ctx(of, &context));
    values(priority, flags, id, known(context));
  }

  void call_host() {
    const CUhostFn count = [](void* data) { *static_cast<std::uint64_t*>(data) += 3; };
    const CUhostFn function = wrong() ? nullptr : count;
    said("host function", cuda->launch_host_func(any_stream(), function, &called));
    values(called);
  }

  /// A stream stands still while others go on; nothing here may wait for it.
  void hold() {
    if (streams.empty() || events.empty()) return;
    const CUstream still = any(streams);
    machine->hold(still);
    const CUevent event = any(events);
    for (std::uint64_t left = 1 + dice.below(6); left > 0; --left) {
      switch (dice.below(6)) {
        case 0:
          work(pieces_);
          break;
        case 1:
          said("record", cuda->event_record(event, still));
          break;
        case 2:
          said("wait", cuda->stream_wait_event(any_stream(), event, 0));
          break;
        case 3:
          ask();
          break;
        case 4:
          said("event_query", cuda->event_query(event));
          break;
        default:
          pass_time();
      }
    }
    said("stream_query", cuda->stream_query(still));
    machine->release(still);
    said("stream_query", cuda->stream_query(still));
  }

  /// A stream waits for a value that another one writes.
  void use_value() {
    machine->clear_faults();  // one that is never written would be waited for in vain
    const auto value = static_cast<std::uint32_t>(dice.below(16) + 1);
    const auto comparison = static_cast<unsigned>(dice.below(4));
    const CUdeviceptr at = wrong() ? dice.any_of({flag_ + 2, nowhere, CUdeviceptr{0}}) : flag_;
    const unsigned flags = wrong() ? 8 : comparison;
    CUstream waits = any_stream();
    CUstream writes = any_stream();
    if (streams.size() > 1) {
      waits = streams[0];
      writes = streams[1];
    }
    // A blocking stream would stand behind the legacy one, and so perhaps behind who waits for it.
    unsigned kind = 0;
    if (cuda->stream_get_flags(writes, &kind) != CUDA_SUCCESS || kind == 0) writes = waits;
    const bool self = writes == waits;
    if (self) said("write", cuda->stream_write_value32(writes, flag_, value, 0));
    said("wait for value", cuda->stream_wait_value32(waits, at, value, flags));
    said("stream_query", cuda->stream_query(waits));
    if (!self) said("write", cuda->stream_write_value32(writes, flag_, value, wrong() ? 1 : 0));
    said("synchronize", cuda->stream_synchronize(waits));
    std::uint32_t present = 0;
    said("read", cuda->memcpy_dtoh(&present, flag_, sizeof present));
    values(present);
    said("wrong write", cuda->stream_write_value32(waits, at, value, 2));
  }

  void meet_fault() {
    switch (dice.below(4)) {
      case 0:
        machine->fail(driver::call::event_record_with_flags, 1 + dice.below(3), CUDA_ERROR_UNKNOWN);
        return;
      case 1:
        machine->fail_any(1 + dice.below(9), CUDA_ERROR_NOT_PERMITTED);
        return;
      case 2:
        machine->delay(driver::call::stream_query, 1 + dice.below(3), sim::duration{12'345});
        return;
      default:
        machine->clear_faults();
    }
  }

  void launch_kernel() {
    const piece part = any_part(any(pieces_));
    CUdeviceptr at = part.at;
    auto size = static_cast<std::uint32_t>(part.size);
    auto value = static_cast<unsigned char>(dice.below(256));
    std::array<void*, 3> parameters{&at, &size, &value};
    const unsigned grid = wrong() ? 0 : 1 + static_cast<unsigned>(dice.below(4));
    const unsigned block = wrong() ? 1025 : 1 + static_cast<unsigned>(dice.below(1024));
    auto chosen = function_;
    if (wrong()) said("unknown", cuda->module_get_function(&chosen, module_, "unknown"));
    if (wrong()) said("none", cuda->module_get_function(&chosen, module_, "none"));
    said("kernel", cuda->launch_kernel(chosen, grid, 1, 1, block, 1, 1, wrong() ? 50'000 : 0,
                                       streams.empty() ? nullptr : streams.back(),
                                       parameters.data(), nullptr));
    contents(any(pieces_).at, 4096);
  }

  std::vector<piece> pieces_;
  CUdeviceptr flag_ = 0;
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

/// Reads, writes and frees on several streams, with order between them and without.
class hazards_program final : public program {
 public:
  explicit hazards_program(const setting& chosen) : program{chosen} {
    add(20, [this] { work(pieces_); });
    add(4, [this] { make_event(); });
    add(8, [this] { record(); });
    add(8, [this] { wait(); });
    add(2, [this] { ask(); });
    add(2, [this] { synchronize(); });
    add(2, [this] { make_stream(); });
    add(3, [this] { pass_time(); });
    add(6, [this] { touch(); });
    add(4, [this] { allocate(); });
    add(4, [this] { free(); });
    add(3, [this] { use_freed(); });
    add(1, [this] { switch_device(); });
  }

 private:
  void prepare() override {
    pieces_.clear();
    pinned_.clear();
    freed_ = {};
    for (int each = 0; each < 4; ++each) make_stream();
    for (const CUcontext each : contexts) {  // a chunk that stays where it is
      CUdeviceptr anchor = 0;
      said("ctx_set_current", cuda->ctx_set_current(each));
      said("anchor", cuda->mem_alloc(&anchor, 1));
      appear(anchor, 1);
    }
    said("ctx_set_current", cuda->ctx_set_current(contexts[0]));
    for (int each = 0; each < 3; ++each) allocate();
    for (const std::uint64_t size : {4096, 100}) {
      void* made = nullptr;
      said("pinned", cuda->mem_host_alloc(&made, size, 0));
      pinned_.push_back({reinterpret_cast<std::uintptr_t>(made), size, 0});
      pieces_.push_back(pinned_.back());
      appear(pinned_.back().at, size);
    }
    said("enable", cuda->ctx_enable_peer_access(contexts[1], 0));
  }
  void touch() {
    const piece part = any_part(any(pinned_));
    void* const at = reinterpret_cast<void*>(static_cast<std::uintptr_t>(part.at));
    dice.one_in(2) ? machine->host_read(at, part.size) : machine->host_write(at, part.size);
  }
  /// Plain memory or a pool's.
  void allocate() {
    if (pieces_.size() > 7) return;
    CUdeviceptr made = untouched;
    const std::uint64_t size = dice.magnitude(20'000);
    const bool ordered = dice.one_in(2);
    const CUstream on = streams.empty() ? nullptr : streams.front();
    const bool done = ordered ? said("mem_alloc_async", cuda->mem_alloc_async(&made, size, on))
                              : said("mem_alloc", cuda->mem_alloc(&made, size));
    if (!done) return;
    pieces_.push_back({made, size, device});
    appear(made, size);
    values(place(made));
  }
  void free() {
    if (pieces_.size() <= pinned_.size()) return;
    const piece gone = take(pieces_);
    if (gone.at == pinned_[0].at || gone.at == pinned_[1].at) {
      pieces_.push_back(gone);
      return;
    }
    if (said("mem_free_async", cuda->mem_free_async(gone.at, any_stream()))) {
      freed_ = gone;
      if (dice.one_in(2)) return use_freed();
    } else {
      pieces_.push_back(gone);
    }
  }
  /// What was freed last, while it is still there.
  void use_freed() {
    if (freed_.size == 0) return;
    std::vector<piece> former{freed_};
    freed_ = {};
    work(former);
  }

  std::vector<piece> pieces_;
  std::vector<piece> pinned_;
  piece freed_;
};

}  // namespace

std::unique_ptr<program> play_streams(const setting& chosen) {
  return std::make_unique<streams_program>(chosen);
}
std::unique_ptr<program> play_hazards(const setting& chosen) {
  return std::make_unique<hazards_program>(chosen);
}

}  // namespace weir::sim_tests::answers
