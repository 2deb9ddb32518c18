// SPDX-License-Identifier: Apache-2.0
// Entries of frames of names: a byte that says what it is, and the value.
#include "trace/names.hpp"

#include "trace/varint.hpp"

namespace weir { inline namespace v0 { namespace trace {

void name_encoder::begin(name_kind kind) {
  content_.push_back(static_cast<char>(kind));
  ++entries_;
}

void name_encoder::text(name_kind kind, std::string_view value) {
  begin(kind);
  put_varint(content_, value.size());
  content_ += value;
}

void name_encoder::number(name_kind kind, std::uint64_t value) {
  begin(kind);
  put_varint(content_, value);
}

void name_encoder::stack(const std::vector<std::uint32_t>& frames) {
  begin(name_kind::stack);
  put_varint(content_, frames.size());
  for (const std::uint32_t frame : frames) put_varint(content_, frame);
}

void name_encoder::peak(const recorded_peak& value) {
  text(name_kind::peak, value.policy);
  put_varint(content_, value.requested.count());
  put_varint(content_, value.reserved.count());
}

void name_encoder::clear() noexcept {
  content_.clear();
  entries_ = 0;
}

namespace {

/// Decodes one frame's entries into a recording.
class name_decoder {
 public:
  name_decoder(std::string_view content, recording& recording) noexcept
      : bytes_{content}, recording_{recording} {}

  [[nodiscard]] const char* entry() {
    constexpr const char* cut = "a frame of names is shorter than its header says";
    const auto kind = bytes_.take(1);
    if (!kind) return cut;
    switch (static_cast<name_kind>(kind->front())) {
      case name_kind::tag:
        return text(recording_.tags, most_small) ? nullptr : cut;
      case name_kind::pool:
        return text(recording_.pools, most_small) ? nullptr : cut;
      case name_kind::text:
        return text(recording_.texts, most_large) ? nullptr : cut;
      case name_kind::frame:
        return text(recording_.frames, most_large) ? nullptr : cut;
      case name_kind::stream:
        return number(recording_.streams, most_large) ? nullptr : cut;
      case name_kind::thread:
        return number(recording_.threads, most_small) ? nullptr : cut;
      case name_kind::stack:
        return stack();
      case name_kind::program:
        return text(recording_.program) ? nullptr : cut;
      case name_kind::device:
        return text(recording_.device) ? nullptr : cut;
      case name_kind::device_capacity:
        return size(recording_.device_capacity) ? nullptr : cut;
      case name_kind::made_up_addresses: {
        std::uint64_t made_up = 0;
        if (!number(made_up)) return cut;
        recording_.real_addresses = made_up == 0;
        return nullptr;
      }
      case name_kind::dropped:
        return number(recording_.dropped) ? nullptr : cut;
      case name_kind::peak: {
        recorded_peak value;
        if (!text(value.policy) || !size(value.requested) || !size(value.reserved)) return cut;
        recording_.peaks.push_back(std::move(value));
        return nullptr;
      }
    }
    return "unknown name";
  }
  [[nodiscard]] bool done() const noexcept { return bytes_.empty(); }

 private:
  static constexpr std::size_t most_small = std::size_t{1} << 16;  // numbers of 16 bits
  static constexpr std::size_t most_large = std::size_t{1} << 31;

  [[nodiscard]] bool text(std::string& out) {
    const auto value = bytes_.sized();
    if (value) out = *value;
    return value.has_value();
  }
  [[nodiscard]] bool text(std::vector<std::string>& table, std::size_t most) {
    return table.size() < most && text(table.emplace_back());
  }
  [[nodiscard]] bool number(std::uint64_t& out) {
    const auto value = bytes_.varint();
    if (value) out = *value;
    return value.has_value();
  }
  [[nodiscard]] bool size(bytes& out) {
    const auto value = bytes_.varint();
    if (value) out = bytes{*value};
    return value.has_value();
  }
  [[nodiscard]] bool number(std::vector<std::uint64_t>& table, std::size_t most) {
    return table.size() < most && number(table.emplace_back());
  }
  [[nodiscard]] const char* stack() {
    const auto depth = bytes_.varint();
    // A frame's number takes a byte at least.
    if (!depth || *depth > bytes_.size()) return "a stack is cut";
    std::vector<std::uint32_t> frames;
    frames.reserve(static_cast<std::size_t>(*depth));
    for (std::uint64_t i = 0; i < *depth; ++i) {
      const auto frame = bytes_.varint();
      if (!frame || *frame >= recording_.frames.size()) return "a stack names an unknown frame";
      frames.push_back(static_cast<std::uint32_t>(*frame));
    }
    recording_.stacks.push_back(std::move(frames));
    return nullptr;
  }

  byte_reader bytes_;
  recording& recording_;
};

}  // namespace

const char* decode_names(std::string_view content, std::uint32_t entries, recording& recording) {
  name_decoder decoder{content, recording};
  for (std::uint32_t i = 0; i < entries; ++i)
    if (const char* const problem = decoder.entry()) return problem;
  return decoder.done() ? nullptr : "a frame of names is longer than its header says";
}

}}}  // namespace weir::v0::trace
