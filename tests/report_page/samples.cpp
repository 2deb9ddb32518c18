// SPDX-License-Identifier: Apache-2.0
// Recordings made up for tests of the report.
#include "samples.hpp"

#include <array>
#include <map>
#include <random>
#include <utility>

namespace weir::report_test {

recording_writer::recording_writer() {
  out.streams = {0, 7};
  out.threads = {1};
  out.program = "made up";
}

trace_event& recording_writer::add(trace_kind kind) {
  trace_event event;
  event.kind = kind;
  event.time = time_;
  time_ += 1000;
  out.events.push_back(event);
  return out.events.back();
}

void recording_writer::allocate(std::uint64_t address, std::uint64_t size, std::uint32_t stream,
                                std::uint16_t tag, std::uint32_t stack) {
  trace_event& event = add(trace_kind::allocate);
  event.address = address;
  event.size = size;
  event.extra = (size + 511) / 512 * 512;
  event.stream = stream;
  event.tag = tag;
  event.other = stack;
}

void recording_writer::deallocate(std::uint64_t address) {
  add(trace_kind::deallocate).address = address;
}

void recording_writer::marker(std::string text) {
  add(trace_kind::marker).other = static_cast<std::uint32_t>(out.texts.size());
  out.texts.push_back(std::move(text));
}

namespace {

/// Hands out addresses by size class from segments and never merges: it fragments as real ones do.
class simple_allocator {
 public:
  explicit simple_allocator(recording_writer& writer) : writer_{writer} {}

  std::uint64_t allocate(std::uint64_t size) {
    const std::uint64_t rounded = class_of(size);
    auto& addresses = free_[rounded];
    if (addresses.empty()) grow(rounded, addresses);
    const std::uint64_t address = addresses.back();
    addresses.pop_back();
    return address;
  }

  void free(std::uint64_t address, std::uint64_t size) { free_[class_of(size)].push_back(address); }

 private:
  static std::uint64_t class_of(std::uint64_t size) {
    std::uint64_t unit = 512;
    while (unit * 8 < size) unit *= 2;
    return (size + unit - 1) / unit * unit;
  }

  void grow(std::uint64_t rounded, std::vector<std::uint64_t>& addresses) {
    constexpr std::uint64_t page = 2 << 20;
    const std::uint64_t segment = rounded <= page / 4 ? page : (rounded + page - 1) / page * page;
    trace_event& event = writer_.add(trace_kind::reserve);
    event.address = next_;
    event.size = segment;
    for (std::uint64_t at = segment / rounded; at-- > 0;) addresses.push_back(next_ + at * rounded);
    next_ += segment;
  }

  recording_writer& writer_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> free_;
  std::uint64_t next_ = 0x7f40'0000'0000;
};

class training {
 public:
  explicit training(std::size_t events) : most_{events}, memory_{writer_} {
    writer_.out.events.reserve(events + 64);
  }

  recording run() {
    describe();
    for (int layer = 0; layer < layers; ++layer) {
      get(24 << 20, 0, weights, 1);
      get(48 << 20, 0, optimizer, 2);
    }
    for (int step = 0; has_room(); ++step) one_step(step);
    trace_event& failed = writer_.add(trace_kind::out_of_memory);
    failed.size = std::uint64_t{60} << 30;
    failed.tag = activations;
    return std::move(writer_.out);
  }

 private:
  enum tag : std::uint16_t { none, weights, optimizer, activations, temporaries, caches };
  static constexpr int layers = 24;
  struct block {
    std::uint64_t address;
    std::uint64_t size;
  };

  void describe() {
    recording& out = writer_.out;
    out.program = "train.py --layers 24";
    out.device = "a made-up GPU";
    out.device_capacity = bytes{std::uint64_t{24} << 30};
    out.tags = {"", "weights", "optimizer", "activations", "temporaries", "caches"};
    out.frames = {"weir::caching_allocator::allocate", "Linear.__init__ at model.py:41",
                  "Adam.step at optim.py:88",          "Attention.forward at model.py:120",
                  "Mlp.forward at model.py:173",       "softmax at model.py:131",
                  "KvCache.grow at serve.py:64",       "main at train.py:12"};
    out.stacks = {{0, 1, 7}, {0, 2, 7}, {0, 3, 7}, {0, 4, 7}, {0, 5, 3, 7}, {0, 6, 7}};
  }

  block get(std::uint64_t size, std::uint32_t stream, tag owner, std::uint32_t stack) {
    const block out{memory_.allocate(size), size};
    writer_.allocate(out.address, size, stream, owner, stack);
    return out;
  }

  void drop(const block& dropped) {
    writer_.deallocate(dropped.address);
    memory_.free(dropped.address, dropped.size);
  }

  void one_step(int step) {
    if (step % 64 == 0) writer_.marker("step " + std::to_string(step));
    const std::uint64_t tokens = 64 + random_() % 448;
    std::vector<block> kept;
    for (int layer = 0; layer < layers && has_room(); ++layer) {
      kept.push_back(get(tokens * 8192, 0, activations, 3));
      kept.push_back(get(tokens * 16384, 0, activations, 4));
      const block scratch = get(tokens * 4096 + random_() % 65536, 0, temporaries, 5);
      cache();
      drop(scratch);
    }
    while (!kept.empty()) {
      if (has_room()) {
        const block gradient = get(512 + random_() % 200'000, 1, temporaries, 5);
        drop(gradient);
      }
      drop(kept.back());
      kept.pop_back();
    }
  }

  /// Small blocks of very different lifetimes: what pins pages.
  void cache() {
    caches_.push_back(get(512 + random_() % 40'000, 1, caches, 6));
    if (caches_.size() < 4000) return;
    const std::size_t victim = random_() % 4 == 0 ? random_() % caches_.size() : caches_.size() - 1;
    std::swap(caches_[victim], caches_.back());
    drop(caches_.back());
    caches_.pop_back();
  }

  [[nodiscard]] bool has_room() const { return writer_.out.events.size() + 200 < most_; }

  std::size_t most_;
  recording_writer writer_;
  simple_allocator memory_;
  std::vector<block> caches_;
  std::minstd_rand random_{1};
};

recording hostile() {
  recording_writer writer;
  recording& out = writer.out;
  out.program = hostile_text;
  out.device = hostile_text;
  out.tags = {"", hostile_text};
  out.frames = {hostile_text, "x at " + hostile_text};
  out.stacks = {{0, 1}, {77}, {}};
  out.pools = {"", hostile_text};
  out.peaks = {{hostile_text, bytes{1}, bytes{2}}};
  out.damage = trace_damage{17, hostile_text};
  writer.marker(hostile_text);
  writer.allocate(0x1000, 1000, 0, 1, 1);
  writer.allocate(0x2000, 1000, 99, 44, 2);
  writer.out.events.back().pool = 1;
  writer.allocate(0x3000, 1000, 1, 1, 3);
  writer.allocate(0x2000, 3000, 1, 1, 900);  // again without a free, from a stack that is not there
  writer.deallocate(0xdead);
  writer.allocate(~std::uint64_t{0} - 10, ~std::uint64_t{0}, 0, 1, 1);
  writer.add(trace_kind::marker).other = 12345;
  trace_event& failed = writer.add(trace_kind::out_of_memory);
  failed.size = ~std::uint64_t{0};
  failed.stream = 12345;
  return out;
}

}  // namespace

recording training_run(std::size_t events) { return training{events}.run(); }

recording sample_named(const std::string& name, std::size_t events) {
  if (name == "hostile") return hostile();
  if (name == "empty") return recording_writer{}.out;
  if (name == "one") {
    recording_writer writer;
    writer.allocate(0x200000, 1 << 20);
    return writer.out;
  }
  recording out = training_run(events);
  if (name == "untagged") {
    for (trace_event& event : out.events) event.tag = 0;
    out.tags = {""};
    out.stacks.clear();
    out.frames.clear();
  }
  if (name == "damaged") {
    out.damage = trace_damage{123'456, "a frame's checksum is wrong"};
    out.dropped = 42;
  }
  if (name == "unplaced") {
    out.real_addresses = false;
    out.events.pop_back();
    std::erase_if(out.events, [](const trace_event& e) { return e.kind == trace_kind::reserve; });
  }
  return out;
}

}  // namespace weir::report_test
