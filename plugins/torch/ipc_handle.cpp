// Handle strings of shared memory.
//
//   "weir" version:u8 token:16 socket_length:u8 socket handles:u32 (size:u64)*     little endian
#include "ipc_handle.hpp"

#include <cstring>

namespace weir_torch {
namespace {

constexpr std::string_view magic = "weir";

template <class Number>
void put(std::string& text, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    text.push_back(static_cast<char>(static_cast<std::uint8_t>(value >> (8 * i))));
}

template <class Number>
Number take(std::string_view& text) noexcept {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i)
    value = static_cast<Number>(value | static_cast<Number>(static_cast<std::uint8_t>(text[i]))
                                            << (8 * i));
  text.remove_prefix(sizeof(Number));
  return value;
}

weir::error refusal(weir::errc code, const char* reason) {
  return {.code = code, .detail = reason};
}

}  // namespace

std::string ipc_handle::serialize() const {
  std::string text{magic};
  text.push_back(static_cast<char>(version));
  text.append(reinterpret_cast<const char*>(token.data()), token.size());
  text.push_back(static_cast<char>(socket.size()));
  text.append(socket);
  put(text, static_cast<std::uint32_t>(sizes.size()));
  for (const std::uint64_t size : sizes) put(text, size);
  return text;
}

weir::result<ipc_handle> ipc_handle::parse(std::string_view text) {
  const auto not_ours = [] {
    return refusal(weir::errc::invalid_argument,
                   "not a handle of weir: both processes must use weir.torch.enable()");
  };
  if (text.size() < magic.size() + 1 || !text.starts_with(magic)) return not_ours();
  text.remove_prefix(magic.size());
  if (take<std::uint8_t>(text) != version) {
    return refusal(weir::errc::bad_version, "the handle was made by another version of weir");
  }
  ipc_handle handle;
  if (text.size() < handle.token.size() + 1) return not_ours();
  std::memcpy(handle.token.data(), text.data(), handle.token.size());
  text.remove_prefix(handle.token.size());
  const std::size_t length = take<std::uint8_t>(text);
  if (length == 0 || text.size() < length + 4) return not_ours();
  handle.socket = text.substr(0, length);
  text.remove_prefix(length);
  const std::uint32_t count = take<std::uint32_t>(text);
  if (count == 0 || count > max_handles || text.size() != count * sizeof(std::uint64_t))
    return not_ours();
  handle.sizes.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    handle.sizes.push_back(take<std::uint64_t>(text));
    if (handle.sizes.back() == 0) return not_ours();
  }
  return handle;
}

}  // namespace weir_torch
