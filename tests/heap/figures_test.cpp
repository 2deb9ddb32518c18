// SPDX-License-Identifier: Apache-2.0
// All figures of programs of one thread, compared with an exact model.
#include "heap/figures_model.hpp"

#include <array>
#include <random>

#include "heap/graph_fixture.hpp"

namespace weir::testing_support { namespace {

/// How a random program is played.
struct program_options {
  std::uint32_t seed = 1;
  /// One of so many steps is followed by a comparison; 1: all are.
  unsigned steps_a_reading = 1;
  bool observed = true;
  placement_policy policy = placement_policy::balanced;
};

constexpr std::array policies{placement_policy::balanced, placement_policy::throughput,
                              placement_policy::compact};

/// Plays seeded random programs on an allocator and on the model of its figures.
class figures_test : public graph_test {
 protected:
  static constexpr int steps = 1500;

  /// Without a watch that observes every allocator, the fast path emits nothing.
  void open_machine(bool watched) {
    sim::machine_options settings;
    settings.devices.assign(1, sim::device_spec{.capacity = 2_GiB, .context_overhead = 64_MiB});
    settings.mode = sim::progress::manual;
    settings.watch_blocks = watched;
    runtime_.reset();
    machine = sim::machine::create(settings).value();
    runtime_ = runtime::open_simulated(machine).value();
  }

  const tag first = tag::named("figures test: first").value();
  const tag second = tag::named("figures test: second").value();
  const tag limited = tag::named("figures test: limited").value();
  const tag suspendable = tag::named("figures test: suspendable").value();
  const std::vector<tag> tags{tag{}, first, second, limited, suspendable};
};

/// The program: what it holds, and its next step.
class random_program {
 public:
  random_program(const caching_allocator& memory, const caching_allocator& other,
                 const std::vector<tag>& tags, std::vector<stream>& streams,
                 const program_options& options)
      : memory_{memory},
        other_{other},
        tags_{tags},
        streams_{streams},
        random_{options.seed},
        steps_a_reading_{options.steps_a_reading} {
    if (options.observed) registration_ = memory_.add_observer(reserved).value();
    EXPECT_TRUE(memory_.declare_suspendable(tags_.back()));
    tag_pool_ = memory_.snapshot().pools.back().id;
    for (const char* name : {"a pool", "another"})
      pools_.push_back(memory_.create_pool(name).value());
  }

  figures_model model;
  reserved_model reserved;
  std::vector<void*> live;

  [[nodiscard]] unsigned below(unsigned most) {
    return std::uniform_int_distribution<unsigned>{0, most - 1}(random_);
  }
  [[nodiscard]] bool one_in(unsigned count) { return below(count) == 0; }

  void allocate() {
    const tag with = tags_[one_in(3) ? below(static_cast<unsigned>(tags_.size())) : tag_now_];
    const tag_scope as{with};
    const bytes size = next_size();
    const stream& on = streams_[below(2)];
    const unsigned place = below(8);
    if (place == 0) {
      memory_pool& from = pools_[below(2)];
      return count(from.try_allocate(size, on), size, from.id(), with);
    }
    if (place == 1) {
      memory_pool& from = pools_[below(2)];
      const pool_scope scope{from};
      return count(memory_.try_allocate(size, on), size, from.id(), with);
    }
    const pool_id where = with == tags_.back() ? tag_pool_ : pool_id{};
    count(memory_.try_allocate(size, on), size, where, with);
  }
  void deallocate() {
    if (live.empty()) return;
    void* const gone = take_one();
    if (one_in(4)) {
      const pool_scope scope{pools_[below(2)]};  // of no meaning to a free
      memory_.deallocate(gone);
    } else if (one_in(2)) {
      memory_.deallocate(gone, streams_[below(2)]);
    } else {
      memory_.deallocate(gone);
    }
    model.freed(gone);
  }
  /// Frees a block that a held stream still reads.
  void deallocate_recorded(const stream& reader) {
    if (live.empty()) return;
    void* const gone = take_one();
    ASSERT_TRUE(memory_.record_stream(gone, reader));
    memory_.deallocate(gone, streams_.front());
    model.freed_pending(gone);
  }
  void change_tag() { tag_now_ = below(static_cast<unsigned>(tags_.size())); }
  void change_tag_limit() {
    const tag with = tags_[3];
    const bytes most = one_in(3) ? bytes::max() : bytes{model.live_with(with) + below(3) * 65536};
    ASSERT_TRUE(memory_.set_limit(with, most));
  }
  void change_residence() {
    const tag with = tags_.back();
    if (memory_.is_suspended(with)) {
      ASSERT_TRUE(memory_.resume(with));
    } else {
      ASSERT_TRUE(memory_.suspend(with));
    }
  }
  void release_memory() {
    if (one_in(2)) {
      ASSERT_TRUE(memory_.trim(one_in(2) ? 0_B : 64_MiB));
    } else {
      ASSERT_TRUE(memory_.release_stream(streams_[1]));
    }
  }
  void fail_a_request() {
    const tag_scope as{tags_[1]};
    ASSERT_TRUE(memory_.set_limit(memory_.stats().reserved.current));
    EXPECT_FALSE(memory_.try_allocate(4_GiB, streams_.front()));
    ASSERT_TRUE(memory_.set_limit(bytes::max()));
    model.failed({}, tags_[1]);
  }
  void reset() {
    if (one_in(2)) {
      memory_.reset_peaks();
      model.reset_peaks();
      reserved.reset_peaks();
    } else {
      memory_.reset_counters();
      model.reset_counters();
    }
  }
  /// The thread turns to another allocator, whose cache is at hand then.
  void use_the_other() {
    void* const p = other_.allocate(next_size(), streams_.front());
    other_.deallocate(p, streams_.front());
  }
  /// Requests and frees on a stream while it is captured; begin and end are the driver's.
  template <class Begin, class End>
  void capture(const Begin& begin, const End& end) {
    const stream& captured = streams_[2];
    graph_memory graph = memory_.begin_capture(captured).value();
    begin(captured);
    for (unsigned i = below(6); i != 0; --i) {
      const tag with = tags_[below(static_cast<unsigned>(tags_.size()))];
      const tag_scope as{with};
      const bytes size = next_size();
      count(memory_.try_allocate(size, captured), size, graph.pool().id(), with);
      read();
      if (one_in(2)) allocate();
      read();
      if (one_in(3)) deallocate();
    }
    end(captured);
    graph.end_capture();
    if (one_in(2)) graphs_.push_back(std::move(graph));
    if (graphs_.size() > 2) graphs_.erase(graphs_.begin());
  }
  void read() {
    if (!one_in(steps_a_reading_)) return;
    model.compare(memory_, tags_);
    if (registration_) reserved.compare(memory_, steps_a_reading_ == 1);
  }

 private:
  [[nodiscard]] bytes next_size() {
    static constexpr std::array<std::uint64_t, 10> sizes{
        1, 1000, 4096, 5000, 65'536, 100'001, 262'144, 1 << 20, (2 << 20) + 5, 6 << 20};
    return bytes{sizes[below(one_in(4) ? 10 : 6)]};
  }
  void count(const result<void*>& block, bytes size, pool_id where, tag with) {
    if (block) {
      model.allocated(*block, size, where, with);
      live.push_back(*block);
    } else if (block.code() == errc::out_of_memory) {
      model.failed(where, with);
    } else {
      EXPECT_EQ(block.code(), errc::suspended);
    }
  }
  void* take_one() {
    std::swap(live[below(static_cast<unsigned>(live.size()))], live.back());
    void* const taken = live.back();
    live.pop_back();
    return taken;
  }

  caching_allocator memory_;
  caching_allocator other_;
  const std::vector<tag>& tags_;
  std::vector<stream>& streams_;
  std::mt19937 random_;
  unsigned steps_a_reading_;
  pool_id tag_pool_{};
  std::vector<memory_pool> pools_;
  std::vector<graph_memory> graphs_;
  std::size_t tag_now_ = 0;
  observer_registration registration_;
};

class random_figures_test : public figures_test {
 protected:
  void play(const program_options& options) {
    SCOPED_TRACE("seed " + std::to_string(options.seed));
    open_machine(options.observed);
    // Without queued waits a pending block stays pending until its reader is done.
    auto memory = make({.policy = options.policy, .queued_waits = false});
    auto other = make();
    std::vector<stream> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(new_stream());
    random_program program{memory, other, tags, streams, options};
    const stream& reader = streams[3];
    std::optional<held_stream> held;
    for (int step = 0; step < steps && !HasFailure(); ++step) {
      const unsigned what = program.below(64);
      if (what < 28) {
        program.allocate();
      } else if (what < 52) {
        program.deallocate();
      } else if (what < 54) {
        program.change_tag();
      } else if (what == 54) {
        program.change_tag_limit();
      } else if (what == 55) {
        program.use_the_other();
      } else if (what < 58) {
        if (!held) {
          held.emplace(*machine, reader.handle());
          write_anywhere(reader);
        }
        program.deallocate_recorded(reader);
      } else if (what < 60 && held) {
        held.reset();
        machine->run_until_idle();
        ASSERT_TRUE(memory.trim(bytes::max()));
        program.model.pending_ended();
      } else if (what == 60 && !held) {
        program.change_residence();
      } else if (what == 61 && !held) {
        program.one_in(2) ? program.release_memory() : program.fail_a_request();
      } else if (what == 62 && !held) {
        program.capture([&](const stream& on) { begin(on); },
                        [&](const stream& on) { destroy(end(on)); });
      } else if (what == 63) {
        program.reset();
      }
      program.read();
      if (HasFailure()) ADD_FAILURE() << "first wrong after step " << step << ", " << what;
    }
    held.reset();
    machine->run_until_idle();
    ASSERT_TRUE(memory.trim(bytes::max()));
    program.model.pending_ended();
    program.model.compare(memory, tags);
    for (void* const p : program.live) memory.deallocate(p);
    EXPECT_EQ(check(memory), "");
  }

 private:
  /// Work that keeps the stream busy while it is held.
  void write_anywhere(const stream& on) {
    const context_scope bound{gpu()};
    ASSERT_TRUE(machine->launch(on.handle(), "kernel", {}));
  }
};

TEST_F(random_figures_test, equal_the_model_after_every_step) {
  for (std::uint32_t seed = 1; seed <= (is_sanitized ? 1 : 4); ++seed) play({.seed = seed});
}

TEST_F(random_figures_test, equal_the_model_when_they_are_read_seldom) {
  for (std::uint32_t seed = 1; seed <= (is_sanitized ? 6 : 12); ++seed)
    play({.seed = seed, .steps_a_reading = 60, .policy = policies[seed % 3]});
}

TEST_F(random_figures_test, equal_the_model_when_nobody_observes) {
  for (std::uint32_t seed = 1; seed <= (is_sanitized ? 6 : 12); ++seed)
    play({.seed = seed, .steps_a_reading = 60, .observed = false, .policy = policies[seed % 3]});
}

}  // namespace
}  // namespace weir::testing_support
