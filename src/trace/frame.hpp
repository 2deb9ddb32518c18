// SPDX-License-Identifier: Apache-2.0
// The frames of a .weirtrace: what stands around the contents, and how it is checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "trace/zstd.hpp"
#include "weir/base/result.hpp"
#include "weir/trace/trace.hpp"

namespace weir { inline namespace v0 { namespace trace {

inline constexpr std::string_view magic = "\x89WEIR\r\n\x1a";
inline constexpr std::uint32_t format_version = 2;
/// The same without the events of suspended memory.
inline constexpr std::uint32_t first_version = 1;
/// Magic, version, checksum.
inline constexpr std::size_t file_header_size = 16;
inline constexpr std::size_t frame_header_size = 20;
/// What a frame may hold; bounds what reading one costs.
inline constexpr std::uint32_t most_records = std::uint32_t{1} << 20;
inline constexpr std::uint32_t most_frame_bytes = std::uint32_t{1} << 26;

enum class frame_kind : std::uint8_t { names = 1, events = 2, end = 3 };
enum class frame_codec : std::uint8_t { stored = 0, zstd = 1 };

/// The CRC-32 of zlib, gzip and PNG.
[[nodiscard]] std::uint32_t crc32(std::string_view bytes, std::uint32_t before = 0) noexcept;

[[nodiscard]] std::string file_header(std::uint32_t version = format_version);

/// Appends a frame to `out`; compressed if there is a library, a level, and something to gain.
void put_frame(std::string& out, frame_kind kind, std::uint32_t records, std::string_view content,
               const zstd* library, int level);

struct frame {
  frame_kind kind{};
  std::uint32_t records = 0;
  std::string_view content;
};

/// Takes frames off a file's bytes. Lengths are trusted only after they were compared with the
/// bytes that are there and with the limits. One thread.
class frame_reader {
 public:
  /// `bytes` begins with a file header that was checked; both outlive the reader.
  frame_reader(std::string_view bytes, const zstd* library) noexcept
      : bytes_{bytes}, library_{library} {}

  [[nodiscard]] bool at_end() const noexcept { return position_ == bytes_.size(); }
  /// Of the frame that comes next.
  [[nodiscard]] std::uint64_t offset() const noexcept { return position_; }
  /// The uncompressed size that the next frame names; 0 if there is no whole header.
  [[nodiscard]] std::uint32_t next_size() const noexcept;
  /// The next frame, good until the next call, or what is wrong with it. not_supported: it is
  /// compressed and there is no library.
  [[nodiscard]] result<std::variant<frame, trace_damage>> next();

 private:
  std::string_view bytes_;
  const zstd* library_;
  std::size_t position_ = file_header_size;
  std::string content_;
};

}}}  // namespace weir::v0::trace
