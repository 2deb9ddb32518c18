// SPDX-License-Identifier: Apache-2.0
// Reading files whole, and inflating gzip and zstd.
#include "formats/input.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "weir/trace/trace_file.hpp"

namespace weir { inline namespace v0 { namespace formats {
namespace {

constexpr std::size_t piece = std::size_t{1} << 18;

error damaged(std::string_view format, std::string_view reason) {
  return {{.code = errc::system, .detail = std::string{format} + ": " + std::string{reason}}};
}

error too_large(const input_limits& limits) {
  return {{.code = errc::limit_exceeded,
           .requested = bytes{limits.bytes},
           .detail = "the file is too large"}};
}

/// Makes room for another piece at the end of `text`; false once there is more than allowed.
bool extend(std::string& text, std::size_t used, const input_limits& limits) {
  if (used > limits.bytes) return false;
  text.resize(std::max(used + piece, text.size()));
  return true;
}

struct gzip_end {
  void operator()(z_stream* stream) const noexcept { inflateEnd(stream); }
};

result<std::string> gunzip(std::string_view compressed, const input_limits& limits) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK)
    return error{{.code = errc::no_host_memory, .detail = "out of host memory for gzip"}};
  const std::unique_ptr<z_stream, gzip_end> guard{&stream};
  std::string text;
  std::size_t used = 0;
  for (bool ended = false; !ended;) {
    if (!extend(text, used, limits)) return too_large(limits);
    // Chunks keep zlib's 32-bit counters right for files of any size.
    const std::size_t in_size = std::min<std::size_t>(compressed.size(), std::size_t{1} << 30);
    const std::size_t out_size = std::min<std::size_t>(text.size() - used, std::size_t{1} << 30);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
    stream.avail_in = static_cast<uInt>(in_size);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + used);
    stream.avail_out = static_cast<uInt>(out_size);
    const int status = inflate(&stream, Z_NO_FLUSH);
    compressed.remove_prefix(in_size - stream.avail_in);
    used += out_size - stream.avail_out;
    if (status == Z_STREAM_END) {
      ended = compressed.empty();
      if (!ended) inflateReset(&stream);  // files may be joined end to end
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      return damaged("gzip", stream.msg != nullptr ? stream.msg : "damaged");
    } else if (compressed.empty() && stream.avail_out != 0) {
      return damaged("gzip", "the file is incomplete");
    }
  }
  if (used > limits.bytes) return too_large(limits);
  text.resize(used);
  return text;
}

struct zstd_end {
  void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
};

result<std::string> unzstd(std::string_view compressed, const input_limits& limits) {
  const std::unique_ptr<ZSTD_DCtx, zstd_end> context{ZSTD_createDCtx()};
  if (context == nullptr)
    return error{{.code = errc::no_host_memory, .detail = "out of host memory for zstd"}};
  ZSTD_inBuffer in{compressed.data(), compressed.size(), 0};
  std::string text;
  std::size_t used = 0;
  for (std::size_t hint = 1; in.pos < in.size || hint != 0;) {
    if (!extend(text, used, limits)) return too_large(limits);
    ZSTD_outBuffer out{text.data() + used, text.size() - used, 0};
    const std::size_t before = in.pos;
    hint = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(hint) != 0) return damaged("zstd", ZSTD_getErrorName(hint));
    used += out.pos;
    if (in.pos == before && out.pos == 0 && hint != 0)
      return damaged("zstd", "the file is incomplete");
  }
  if (used > limits.bytes) return too_large(limits);
  text.resize(used);
  return text;
}

}  // namespace

namespace {

/// Of errno.
error not_read(const std::string& path) {
  const int reason = errno;
  return {{.code = reason == ENOENT ? errc::not_found : errc::system,
           .detail = path + ": " + std::strerror(reason)}};
}

result<std::string> read_stream(std::FILE* file, const std::string& path,
                                const input_limits& limits) {
  std::string text;
  std::size_t used = 0;
  for (;;) {
    if (!extend(text, used, limits)) {
      error large = too_large(limits);
      large.set_detail(path + ": " + large.detail());
      return large;
    }
    const std::size_t count = std::fread(text.data() + used, 1, text.size() - used, file);
    used += count;
    if (count == 0) break;
  }
  if (std::ferror(file) != 0) return not_read(path);
  text.resize(used);
  return text;
}

using open_file = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

}  // namespace

input_limits input_limits::of_file(std::uint64_t size) const noexcept {
  constexpr std::uint64_t always = std::uint64_t{256} << 20;
  constexpr std::uint64_t growth = 1024;  // as much as gzip can at most
  const std::uint64_t records = trace_limits{}.most_records(size);
  const bool is_small = bytes >= always && size < (bytes - always) / growth;
  return {.bytes = is_small ? always + size * growth : bytes, .events = std::min(events, records)};
}

result<std::string> read_file(const std::string& path, const input_limits& limits) {
  if (path == "-") return read_stream(stdin, path, limits);
  const open_file file{std::fopen(path.c_str(), "rb"), std::fclose};
  if (!file) return not_read(path);
  return read_stream(file.get(), path, limits);
}

result<std::string> read_regular_file(const std::string& path, const input_limits& limits) {
  // Opening a pipe would wait for its writer, and a device may do anything when it is read.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return not_read(path);
  struct stat about {};
  const bool is_known = ::fstat(descriptor, &about) == 0;
  const open_file file{is_known && S_ISREG(about.st_mode) ? ::fdopen(descriptor, "rb") : nullptr,
                       std::fclose};
  if (file) return read_stream(file.get(), path, limits);
  error reason = is_known && !S_ISREG(about.st_mode)
                     ? error{{.code = errc::system, .detail = path + ": expected a regular file"}}
                     : not_read(path);
  ::close(descriptor);
  return reason;
}

result<std::string> decompress(std::string bytes, const input_limits& limits) {
  if (bytes.starts_with("\x1f\x8b")) return gunzip(bytes, limits);
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) return unzstd(bytes, limits);
  return bytes;
}

}}}  // namespace weir::v0::formats
