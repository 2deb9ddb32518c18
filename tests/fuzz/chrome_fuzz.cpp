// SPDX-License-Identifier: Apache-2.0
// Any events as a Chrome trace: JSON, whatever names and numbers they have, that says how much
// memory was live and which blocks were.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/chrome_trace.hpp"
#include "formats/utf8.hpp"
#include "fuzz_input.hpp"

namespace weir::fuzz { namespace {

using nlohmann::json;

/// A recording of anything: kinds that there are not, numbers outside the tables, times that go
/// back, names of any bytes.
recording any_recording(fuzz_input& input) {
  recording made;
  made.program = input.text(8);
  for (std::size_t count = input.below(4); count > 0; --count) made.tags.push_back(input.text(6));
  for (std::size_t count = input.below(3); count > 0; --count) made.texts.push_back(input.text(6));
  for (std::size_t count = input.below(3); count > 0; --count)
    made.streams.push_back(input.number());
  for (std::size_t count = input.below(3); count > 0; --count)
    made.threads.push_back(input.number());
  std::uint64_t time = 0;
  while (!input.at_end()) {
    const unsigned form = input.next();
    time = form >= 250 ? input.number() : time + form * 100;
    made.events.push_back({.time = time,
                           .address = input.below(6) * 512,
                           .size = input.number(),
                           .stream = static_cast<std::uint32_t>(input.below(4)),
                           .other = static_cast<std::uint32_t>(input.below(4)),
                           .thread = static_cast<std::uint16_t>(input.below(4)),
                           .tag = static_cast<std::uint16_t>(input.below(6)),
                           .kind = static_cast<trace_kind>(input.below(18))});
  }
  return made;
}

/// Follows the events as the reader of a trace would.
class trace_check {
 public:
  trace_check(const recording& source, bool blocks) : source_{source}, blocks_{blocks} {}

  void check(const json& document) {
    require(document.at("displayTimeUnit") == "ns", "another unit of time");
    for (const json& item : document.at("traceEvents")) items_.push_back(item);
    metadata();
    for (const trace_event& each : source_.events) {
      take_counters();
      follow(each);
    }
    take_counters();
    require(next_ == items_.size(), "items that no event has");
    if (!source_.events.empty() && counted_) {
      require(live_in_trace_ == live_, "the last counter is not what is live");
    }
  }

 private:
  struct block {
    std::uint64_t number = 0;
    std::uint64_t size = 0;
  };

  const json& take(const char* phase) {
    require(next_ < items_.size(), "items are missing");
    const json& item = items_[next_++];
    require(item.at("ph") == phase, "an item of another kind");
    require(item.at("pid") == 1, "another process");
    return item;
  }

  void metadata() {
    const json& process = take("M");
    require(process.at("name") == "process_name", "the process has no name");
    require(process.at("args").at("name").is_string(), "the process has no name");
    for (std::size_t i = 0; i < source_.threads.size(); ++i) {
      const json& thread = take("M");
      require(thread.at("tid") == i, "threads in another order");
      require(thread.at("args").at("name") == "thread " + std::to_string(source_.threads[i]),
              "a thread of another name");
    }
  }

  void take_counters() {
    while (next_ < items_.size() && items_[next_].at("ph") == "C") {
      const json& counter = take("C");
      require(counter.at("ts").is_number(), "a counter without a time");
      const json& values = counter.at("args");
      for (const json& value : values)
        require(value.is_number_unsigned(), "a counter of no number");
      if (counter.at("name") != "memory") {
        require(counter.at("name") == "live by tag", "a counter of another name");
        continue;
      }
      live_in_trace_ = values.at("live").get<std::uint64_t>();
      counted_ = true;
    }
  }

  void require_time(const json& item, const trace_event& event) {
    if (event.time >> 50 == 0)  // as exact as a double is
      require(
          std::llround(item.at("ts").get<double>() * 1000) == static_cast<long long>(event.time),
          "another time");
    require(item.at("tid") == event.thread, "another thread");
  }

  void follow(const trace_event& event) {
    switch (event.kind) {
      case trace_kind::allocate: {
        const block made{++blocks_seen_, event.size};
        known_[event.address] = made;
        live_ += event.size;
        return slice("b", event, made);
      }
      case trace_kind::deallocate: {
        const auto entry = known_.find(event.address);
        if (entry == known_.end()) return;
        live_ -= entry->second.size;
        slice("e", event, entry->second);
        known_.erase(entry);
        return;
      }
      case trace_kind::reserve:
      case trace_kind::release:
      case trace_kind::reusable:
        return;
      default: {
        const json& item = take("i");
        require_time(item, event);
        const bool told = event.kind == trace_kind::marker && event.other < source_.texts.size();
        if (told) require(item.at("name") == letters(source_.texts[event.other]), "another text");
      }
    }
  }

  void slice(const char* phase, const trace_event& event, const block& made) {
    if (!blocks_) return;
    const json& item = take(phase);
    require_time(item, event);
    require(item.at("id") == made.number, "another block");
    require(item.at("name").get<std::string>().starts_with(std::to_string(made.size) + " bytes"),
            "a block of another size");
    const std::uint64_t stream =
        event.stream < source_.streams.size() ? source_.streams[event.stream] : 0;
    require(item.at("args").at("stream") == stream, "another stream");
  }

  /// What JSON says of bytes: letters of UTF-8 as they are, other bytes as U+FFFD.
  static std::string letters(std::string_view bytes) {
    std::string out;
    while (!bytes.empty()) {
      const std::size_t length = formats::utf8_length(bytes);
      out += length == 0 ? "\xef\xbf\xbd" : bytes.substr(0, length);
      bytes.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return out;
  }

  const recording& source_;
  bool blocks_;
  std::vector<json> items_;
  std::size_t next_ = 0;
  std::map<std::uint64_t, block> known_;
  std::uint64_t blocks_seen_ = 0;
  std::uint64_t live_ = 0;
  std::uint64_t live_in_trace_ = 0;
  bool counted_ = false;
};

}  // namespace
}  // namespace weir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weir;
  fuzz::fuzz_input input{{data, size}};
  const bool blocks = input.next() % 2 == 0;
  const recording made = fuzz::any_recording(input);
  const std::string text = formats::chrome_trace_of(made, {.blocks = blocks});
  const auto document = nlohmann::json::parse(text, nullptr, false);
  fuzz::require(!document.is_discarded(), "no JSON:\n" + text);
  fuzz::trace_check{made, blocks}.check(document);
  return 0;
}
