// Handle strings of shared memory.
//
//   "weir" version:u8 ticket:16 socket_length:u8 socket pieces:u32 (size:u64)*     little endian
#include "ipc_handle.hpp"

#include <cstring>

namespace weir_torch {
namespace {

constexpr std::string_view mark = "weir";

template <class Number>
void put(std::string& to, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    to.push_back(static_cast<char>(static_cast<std::uint8_t>(value >> (8 * i))));
}

template <class Number>
Number take(std::string_view& from) noexcept {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    value = static_cast<Number>(value | static_cast<Number>(static_cast<std::uint8_t>(from[i]))
                                            << (8 * i));
  from.remove_prefix(sizeof(Number));
  return value;
}

weir::error refused(weir::errc code, const char* why) { return {.code = code, .detail = why}; }

}  // namespace

std::string ipc_handle::write() const {
  std::string out{mark};
  out.push_back(static_cast<char>(version));
  out.append(reinterpret_cast<const char*>(ticket.data()), ticket.size());
  out.push_back(static_cast<char>(socket.size()));
  out.append(socket);
  put(out, static_cast<std::uint32_t>(pieces.size()));
  for (const std::uint64_t size : pieces) put(out, size);
  return out;
}

weir::result<ipc_handle> ipc_handle::read(std::string_view text) {
  const auto foreign = [] {
    return refused(weir::errc::invalid_argument,
                   "not a handle of weir: both processes must use weir.torch.enable()");
  };
  if (text.size() < mark.size() + 1 || !text.starts_with(mark)) return foreign();
  text.remove_prefix(mark.size());
  if (take<std::uint8_t>(text) != version) {
    return refused(weir::errc::bad_version, "the handle was made by another version of weir");
  }
  ipc_handle out;
  if (text.size() < out.ticket.size() + 1) return foreign();
  std::memcpy(out.ticket.data(), text.data(), out.ticket.size());
  text.remove_prefix(out.ticket.size());
  const std::size_t length = take<std::uint8_t>(text);
  if (length == 0 || text.size() < length + 4) return foreign();
  out.socket = text.substr(0, length);
  text.remove_prefix(length);
  const std::uint32_t count = take<std::uint32_t>(text);
  if (count == 0 || count > most_pieces || text.size() != count * sizeof(std::uint64_t))
    return foreign();
  out.pieces.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    out.pieces.push_back(take<std::uint64_t>(text));
    if (out.pieces.back() == 0) return foreign();
  }
  return out;
}

}  // namespace weir_torch
