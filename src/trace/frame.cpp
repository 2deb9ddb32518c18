// SPDX-License-Identifier: Apache-2.0
// Writing and checking frames.
#include "trace/frame.hpp"

#include <array>

namespace weir { inline namespace v0 { namespace trace {
namespace {

constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320U : 0U);
    table[i] = value;
  }
  return table;
}();

void put32(std::string& out, std::uint32_t value) {
  for (unsigned shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

std::uint32_t get32(std::string_view bytes, std::size_t offset) noexcept {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i)
    value |= std::uint32_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  return value;
}

// A frame's header: kind, codec, two zero bytes, then four numbers at these offsets.
constexpr std::size_t records_offset = 4;
constexpr std::size_t stored_offset = 8;
constexpr std::size_t size_offset = 12;
constexpr std::size_t checksum_offset = 16;

}  // namespace

std::uint32_t crc32(std::string_view bytes, std::uint32_t before) noexcept {
  std::uint32_t value = ~before;
  for (const char byte : bytes)
    value = (value >> 8) ^ crc_table[(value ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~value;
}

std::string file_header(std::uint32_t version) {
  std::string header{magic};
  put32(header, version);
  put32(header, crc32(header));
  return header;
}

void put_frame(std::string& out, frame_kind kind, std::uint32_t records, std::string_view content,
               const zstd* library, int level) {
  std::string packed;
  if (library != nullptr && level > 0 && !content.empty()) {
    packed.resize(library->bound(content.size()));
    const std::size_t size =
        library->compress(packed.data(), packed.size(), content.data(), content.size(), level);
    packed.resize(library->is_error(size) != 0 || size >= content.size() ? 0 : size);
  }
  const std::string_view stored = packed.empty() ? content : std::string_view{packed};
  std::string header;
  header.push_back(static_cast<char>(kind));
  header.push_back(static_cast<char>(packed.empty() ? frame_codec::stored : frame_codec::zstd));
  header.append(2, '\0');
  put32(header, records);
  put32(header, static_cast<std::uint32_t>(stored.size()));
  put32(header, static_cast<std::uint32_t>(content.size()));
  put32(header, crc32(stored, crc32(header)));
  out.append(header).append(stored);
}

std::uint32_t frame_reader::next_size() const noexcept {
  if (bytes_.size() - position_ < frame_header_size) return 0;
  return get32(bytes_, position_ + size_offset);
}

result<std::variant<frame, trace_damage>> frame_reader::next() {
  using answer = std::variant<frame, trace_damage>;
  const auto damaged = [&](const char* reason) { return answer{trace_damage{position_, reason}}; };
  const std::string_view rest = bytes_.substr(position_);
  if (rest.size() < frame_header_size) return damaged("the file ends within a frame's header");
  const auto kind = static_cast<std::uint8_t>(rest[0]);
  const auto codec = static_cast<std::uint8_t>(rest[1]);
  const std::uint32_t records = get32(rest, records_offset);
  const std::uint32_t stored = get32(rest, stored_offset);
  const std::uint32_t size = get32(rest, size_offset);
  if (kind < 1 || kind > 3 || codec > 1 || rest[2] != 0 || rest[3] != 0)
    return damaged("not the start of a frame");
  if (records > most_records || stored > most_frame_bytes || size > most_frame_bytes)
    return damaged("a frame's size is invalid");
  if (stored > rest.size() - frame_header_size) return damaged("the file ends within a frame");
  const std::string_view content = rest.substr(frame_header_size, stored);
  if (crc32(content, crc32(rest.substr(0, checksum_offset))) != get32(rest, checksum_offset))
    return damaged("a frame's checksum is wrong");

  frame next_frame{static_cast<frame_kind>(kind), records, content};
  if (static_cast<frame_codec>(codec) == frame_codec::zstd) {
    if (library_ == nullptr) {
      return error{
          {.code = errc::not_supported,
           .detail = "the trace is compressed, and libzstd.so.1 was not found; install libzstd"}};
    }
    content_.resize(size);
    const std::size_t decompressed =
        library_->decompress(content_.data(), content_.size(), content.data(), content.size());
    if (library_->is_error(decompressed) != 0 || decompressed != size)
      return damaged("a frame's compression is damaged");
    next_frame.content = content_;
  } else if (stored != size) {
    return damaged("a frame's sizes are inconsistent");
  }
  position_ += frame_header_size + stored;
  return answer{next_frame};
}

}}}  // namespace weir::v0::trace
