// SPDX-License-Identifier: Apache-2.0
// Random programs from a generator that knows whether it put a race in: it must agree with the
// oracle on every one of them.
//
// The generator keeps its own model of order, made of nothing the oracle uses: an explicit graph of
// operations with the set of all predecessors of each. Before an access it adds what keeps it apart
// from earlier ones (an event, a host wait); in a racy program it omits that, once.
#include <bitset>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "program.hpp"
#include "support/environment.hpp"

namespace weir::hazards { namespace {

constexpr std::size_t most_nodes = 768;
using node = std::size_t;

/// The graph: who comes before whom.
class order_model {
 public:
  node add(std::initializer_list<std::optional<node>> before) {
    std::bitset<most_nodes> all;
    for (const auto& each : before) {
      if (!each) continue;
      all |= before_[*each];
      all.set(*each);
    }
    before_.push_back(all);
    return before_.size() - 1;
  }
  void also_after(node later, node earlier) {
    before_[later] |= before_[earlier];
    before_[later].set(earlier);
  }
  [[nodiscard]] bool ordered(node earlier, node later) const {
    return before_[later].test(earlier);
  }
  [[nodiscard]] bool full() const { return before_.size() + 64 > most_nodes; }

 private:
  std::vector<std::bitset<most_nodes>> before_;
};

class rng {
 public:
  explicit rng(std::uint64_t seed) : state_{seed * 2 + 1} {}
  std::size_t below(std::size_t n) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::size_t>((state_ >> 33) % n);
  }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

/// Things that many programs share, so that 100,000 programs do not create 100,000 machines.
struct shared_objects {
  static constexpr std::size_t stream_count = 5;
  static constexpr std::size_t buffer_size = 4096;

  explicit shared_objects(std::uint64_t seed) : p{seed} {
    for (std::size_t i = 0; i < stream_count; ++i) {
      const bool blocking = i < 2;
      streams.push_back(p.stream(blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    }
    streams.push_back(legacy_stream());
    for (int i = 0; i < 4; ++i) events.push_back(p.event());
    // A pool that makes one stream wait for another puts an order in that the model does not know.
    CUmemoryPool pool{};
    p.check(p.cuda().device_get_default_mem_pool(&pool, 0));
    for (const auto rule : {CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES}) {
      int off = 0;
      p.check(p.cuda().mem_pool_set_attribute(pool, rule, &off));
    }
    for (int i = 0; i < 2; ++i) buffers.push_back({p.buffer(buffer_size)});
    const auto twice = p.alias();
    buffers.push_back({twice.first, twice.second});
    auto* const pinned = p.pinned(buffer_size);
    buffers.push_back({reinterpret_cast<CUdeviceptr>(pinned)});
    pinned_buffer = buffers.size() - 1;
  }

  program p;
  std::vector<CUstream> streams;  // the first two and the last (legacy) block each other
  std::vector<CUevent> events;
  std::set<std::size_t> ever_recorded;
  std::vector<std::vector<CUdeviceptr>> buffers;  // each by all its addresses
  std::size_t pinned_buffer = 0;
};

/// One random program: queues operations on the shared objects and mirrors them in the model.
class generator {
 public:
  generator(shared_objects& shared, std::uint64_t seed, bool racy)
      : shared_{shared}, random_{seed}, racy_{racy}, buffers_{shared.buffers} {
    host_ = model_.add({});
    last_of_.assign(shared_.streams.size(), host_);
    history_.resize(buffers_.size());
    omit_at_ = 1 + random_.below(4);
  }

  /// Returns whether the program contains a race.
  bool run() {
    const std::size_t steps = 8 + random_.below(24);
    for (std::size_t i = 0; i < steps && !model_.full(); ++i) step();
    release_pool_memory();
    return raced_;
  }

 private:
  struct earlier_access {
    node operation;
    std::size_t stream;  // host_side for the host
    std::size_t from;
    std::size_t to;
    bool writes;
  };
  static constexpr std::size_t host_side = ~std::size_t{0};

  void step() {
    switch (random_.below(12)) {
      // Drawn one after the other: the order of a call's arguments is the compiler's choice, and a
      // seed must make the same program in every build.
      case 0: {
        const std::size_t event = random_.below(shared_.events.size());
        return record(event, random_stream());
      }
      case 1: {
        const std::size_t stream = random_stream();
        return wait(stream, random_.below(shared_.events.size()));
      }
      case 2:
        return random_.one_in(3) ? synchronize_stream(random_stream()) : copy();
      case 3:
        return random_.one_in(6) ? synchronize_device() : fill();
      case 4:
        return poll(random_.below(shared_.events.size()));
      case 5:
        return host_touch();
      case 6:
        return random_.one_in(2) ? allocate() : release();
      default:
        return touch();
    }
  }

  // --- Operations and their order ---------------------------------------------------------------

  [[nodiscard]] bool blocking(std::size_t stream) const { return stream < 2 || stream == legacy(); }
  [[nodiscard]] std::size_t legacy() const { return shared_.streams.size() - 1; }
  std::size_t random_stream() { return random_.below(shared_.streams.size()); }

  /// A new operation at the end of a stream.
  node append(std::size_t stream) {
    const node added = model_.add({last_of_[stream], host_});
    if (stream == legacy()) {
      for (std::size_t other = 0; other < legacy(); ++other) {
        if (blocking(other)) model_.also_after(added, last_of_[other]);
      }
    } else if (blocking(stream)) {
      model_.also_after(added, last_of_[legacy()]);
    }
    return last_of_[stream] = added;
  }
  void host_after(node done) { host_ = model_.add({host_, done}); }

  void record(std::size_t event, std::size_t stream) {
    shared_.p.record(shared_.events[event], shared_.streams[stream]);
    recorded_[event] = append(stream);
    shared_.ever_recorded.insert(event);
  }
  void wait(std::size_t stream, std::size_t event) {
    shared_.p.wait(shared_.streams[stream], shared_.events[event]);
    if (!shared_.ever_recorded.contains(event)) return;
    // What an earlier program recorded is over, but the wait is an operation of the stream still.
    const node added = append(stream);
    if (const auto known = recorded_.find(event); known != recorded_.end()) {
      model_.also_after(added, known->second);
    }
  }
  void poll(std::size_t event) {
    shared_.p.poll(shared_.events[event]);
    if (const auto known = recorded_.find(event); known != recorded_.end()) {
      host_after(known->second);
    }
  }
  void synchronize_stream(std::size_t stream) {
    shared_.p.synchronize(shared_.streams[stream]);
    host_after(last_of_[stream]);
    if (stream != legacy()) return;
    // The legacy stream waits for all blocking streams, so the host has waited for them as well.
    for (std::size_t other = 0; other < legacy(); ++other) {
      if (blocking(other)) host_after(last_of_[other]);
    }
  }
  void synchronize_device() {
    shared_.p.synchronize();
    for (const node last : last_of_) host_after(last);
  }

  // --- Accesses ----------------------------------------------------------------------------------

  /// What `later` would conflict with, that does not come before it.
  [[nodiscard]] std::vector<earlier_access> conflicts(std::size_t buffer, std::size_t from,
                                                      std::size_t to, bool writes,
                                                      node before) const {
    std::vector<earlier_access> unordered;
    for (const earlier_access& old : history_[buffer]) {
      if (old.from >= to || from >= old.to || (!old.writes && !writes)) continue;
      if (old.operation != before && !model_.ordered(old.operation, before))
        unordered.push_back(old);
    }
    return unordered;
  }

  /// Makes the next operation of `stream` come after `old`, in one of the ways a program can.
  void order_after(std::size_t stream, const earlier_access& old) {
    if (old.stream == host_side) return;  // whatever is queued now comes after the host's deeds
    switch (stream == host_side ? 1 + random_.below(3) : random_.below(4)) {
      case 0: {
        const std::size_t event = random_.below(shared_.events.size());
        record(event, old.stream);
        return wait(stream, event);
      }
      case 1:
        return synchronize_stream(old.stream);
      case 2: {
        const std::size_t event = random_.below(shared_.events.size());
        record(event, old.stream);
        return poll(event);
      }
      default:
        return synchronize_device();
    }
  }

  /// Puts everything before the coming access that must be; in a racy program not always.
  void prepare(std::size_t stream, std::size_t buffer, std::size_t from, std::size_t to,
               bool writes) {
    // What the access would know if it were queued now: its stream, the host, the default streams.
    const auto now = [&] { return stream == host_side ? host_ : probe(stream); };
    std::vector<earlier_access> missing = conflicts(buffer, from, to, writes, now());
    if (missing.empty()) return;
    if (racy_ && !omitted_ && ++omittable_ >= omit_at_) {
      omitted_ = true;
      return;
    }
    while (!missing.empty()) {
      order_after(stream, missing.front());
      missing = conflicts(buffer, from, to, writes, now());
    }
  }
  /// A node with the order an operation queued on `stream` would have. It stands for nothing.
  node probe(std::size_t stream) {
    const node last = last_of_[stream];
    const node probed = append(stream);
    last_of_[stream] = last;
    return probed;
  }

  struct byte_range {
    std::size_t buffer;
    std::size_t from;
    std::size_t to;
    CUdeviceptr address;
  };
  byte_range random_range() {
    byte_range range{};
    range.buffer = random_.below(buffers_.size());
    range.from = random_.below(8) * 512;
    range.to = range.from + (1 + random_.below(2)) * 512;
    range.to = std::min(range.to, shared_objects::buffer_size);
    const auto& addresses = buffers_[range.buffer];
    range.address = addresses[random_.below(addresses.size())] + range.from;
    return range;
  }
  void add_access(const byte_range& range, std::size_t stream, node operation, bool writes) {
    check_race(range.buffer, range.from, range.to, writes, operation);
    history_[range.buffer].push_back({operation, stream, range.from, range.to, writes});
  }

  /// The omitted wait may have been made up for by something queued since, for another reason.
  void check_race(std::size_t buffer, std::size_t from, std::size_t to, bool writes,
                  node operation) {
    if (raced_ || conflicts(buffer, from, to, writes, operation).empty()) return;
    raced_ = true;
    // A race can cost the device: what was freed goes when the host has waited for the free, also
    // from under an access that nothing puts before it. The oracle has judged what is queued; let
    // it all happen before anything goes, so that the programs to come have a device.
    synchronize_device();
  }

  void touch() {
    const byte_range range = random_range();
    const std::size_t stream = random_stream();
    const bool writes = random_.one_in(2);
    prepare(stream, range.buffer, range.from, range.to, writes);
    if (writes) {
      shared_.p.write(shared_.streams[stream], range.address, range.to - range.from);
    } else {
      shared_.p.read(shared_.streams[stream], range.address, range.to - range.from);
    }
    add_access(range, stream, append(stream), writes);
  }
  void fill() {
    const byte_range range = random_range();
    const std::size_t stream = random_stream();
    prepare(stream, range.buffer, range.from, range.to, true);
    shared_.p.fill(shared_.streams[stream], range.address, range.to - range.from);
    add_access(range, stream, append(stream), true);
  }
  void copy() {
    byte_range to = random_range();
    byte_range from = random_range();
    if (to.buffer == from.buffer) return touch();
    const std::size_t length = std::min(to.to - to.from, from.to - from.from);
    to.to = to.from + length;
    from.to = from.from + length;
    const std::size_t stream = random_stream();
    prepare(stream, to.buffer, to.from, to.to, true);
    prepare(stream, from.buffer, from.from, from.to, false);
    shared_.p.copy(shared_.streams[stream], to.address, from.address, length);
    const node copied = append(stream);
    add_access(to, stream, copied, true);
    add_access(from, stream, copied, false);
  }
  void host_touch() {
    byte_range range = random_range();
    range.buffer = shared_.pinned_buffer;
    range.address = buffers_[range.buffer].front() + range.from;
    const bool writes = random_.one_in(2);
    prepare(host_side, range.buffer, range.from, range.to, writes);
    auto* const address = reinterpret_cast<void*>(range.address);
    if (writes) {
      shared_.p.host_write(address, range.to - range.from);
    } else {
      shared_.p.host_read(address, range.to - range.from);
    }
    host_ = model_.add({host_});
    add_access(range, host_side, host_, writes);
  }

  // --- Stream-ordered memory --------------------------------------------------------------------

  void allocate() {
    const std::size_t stream = random_stream();
    const CUdeviceptr address =
        shared_.p.allocate(shared_.streams[stream], shared_objects::buffer_size);
    buffers_.push_back({address});
    history_.push_back({{append(stream), stream, 0, shared_objects::buffer_size, true}});
  }
  void release() {
    if (buffers_.size() == shared_.buffers.size()) return;
    const std::size_t stream = random_stream();
    const std::size_t buffer = buffers_.size() - 1;
    prepare(stream, buffer, 0, shared_objects::buffer_size, true);
    shared_.p.free(shared_.streams[stream], buffers_[buffer].front());
    check_race(buffer, 0, shared_objects::buffer_size, true, append(stream));
    buffers_.pop_back();
    history_.pop_back();
  }
  void release_pool_memory() {
    while (buffers_.size() > shared_.buffers.size()) release();
  }

  shared_objects& shared_;
  rng random_;
  bool racy_;
  bool omitted_ = false;
  bool raced_ = false;
  std::size_t omittable_ = 0;
  std::size_t omit_at_ = 0;
  order_model model_;
  node host_ = 0;
  std::vector<node> last_of_;
  std::map<std::size_t, node> recorded_;
  std::vector<std::vector<CUdeviceptr>> buffers_;
  std::vector<std::vector<earlier_access>> history_;
};

using testing_support::number_from;

TEST(RandomPrograms, TheOracleAgreesWithTheGenerator) {
  constexpr std::uint64_t programs_a_machine = 500;
  const std::uint64_t count = number_from("WEIR_HAZARD_PROGRAMS", 100'000);
  const std::uint64_t first = number_from("WEIR_HAZARD_FIRST_SEED", 1);
  std::uint64_t races = 0;
  std::unique_ptr<shared_objects> shared;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    if ((seed - first) % programs_a_machine == 0) {
      shared.reset();
      shared = std::make_unique<shared_objects>(seed);
    }
    const bool expected = generator{*shared, seed, seed % 2 == 0}.run();
    const auto hazards = shared->p.machine().hazards();
    ASSERT_EQ(!hazards.empty(), expected) << "program " << seed << "\n"
                                          << shared->p.describe_hazards();
    races += expected ? 1 : 0;
    shared->p.synchronize();
    // A device that was lost refuses whatever comes later: name the program that lost it.
    ASSERT_FALSE(HasFailure()) << "program " << seed;
    shared->p.machine().clear_hazards();
  }
  // A generator that never races, or always does, would prove nothing.
  EXPECT_GT(races, count / 5);
  EXPECT_LT(races, count / 2 + 1);
  RecordProperty("programs", std::to_string(count));
  RecordProperty("races", std::to_string(races));
}

TEST(RandomPrograms, ARaceDoesNotCostTheDevice) {
  // Each frees memory that a queued access on another stream is yet to use, and then waits for the
  // free alone: the pool releases the page, and the access would fault.
  for (const std::uint64_t seed : {364'360, 553'718, 746'034, 1'045'177}) {
    shared_objects shared{seed};
    EXPECT_TRUE(generator(shared, seed, true).run()) << "program " << seed;
    EXPECT_FALSE(shared.p.machine().hazards().empty()) << "program " << seed;
    EXPECT_EQ(shared.p.cuda().ctx_synchronize(), CUDA_SUCCESS) << "program " << seed;
  }
}

}  // namespace
}  // namespace weir::hazards
