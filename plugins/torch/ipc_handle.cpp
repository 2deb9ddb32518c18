// SPDX-License-Identifier: Apache-2.0
// The strings by which processes open each other's memory, little endian.
//
//   handle       plain:64
//              | version:u8 'c' plain:64
//              | version:u8 'e' process:i32 0:u32 size:u64 count:u64 [kind:i32 0:u32] (number:i32)*
//              [offer] | 0x7f 'e' 0:24 offer                                  handles of several
//              sizes
//   offer        "weir" version:u8 flags:u8 token:16 socket_length:u8 socket count:u32 (size:u64)*
//
// The first three are torch's (CUDACachingAllocator.cpp). From version 3 on, which torch 2.13
// writes, `kind` is there: 0 or 1 is a list of descriptors, 2 memory of the fabric. A string of 64
// bytes is always a plain handle; no other one has that length.
#include "ipc_handle.hpp"

#include <cstring>

namespace weir_torch {
namespace {

constexpr std::string_view magic = "weir";
constexpr std::uint8_t offer_version = 2;
constexpr std::uint8_t opens_without_weir_flag = 1;

constexpr auto first_with_kind = static_cast<std::uint8_t>(torch_format::with_kind);
constexpr std::uint32_t kind_descriptors = 1;
constexpr std::uint32_t kind_fabric = 2;
constexpr std::uint8_t refused_by_torch = 0x7f;
constexpr char plain_type = 'c';
constexpr char descriptors_type = 'e';
constexpr std::size_t header_size = 24;
constexpr std::size_t kind_size = 8;
constexpr std::size_t fabric_handle_size = 64;

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
  return {{.code = code, .detail = reason}};
}

weir::error not_a_handle() {
  return refusal(weir::errc::invalid_argument, "not a handle of shared memory");
}

void append(std::string& text, const memory_offer& offer) {
  text.append(magic);
  put(text, offer_version);
  put(text, offer.opens_without_weir ? opens_without_weir_flag : std::uint8_t{0});
  text.append(reinterpret_cast<const char*>(offer.token.data()), offer.token.size());
  put(text, static_cast<std::uint8_t>(offer.socket.size()));
  text.append(offer.socket);
  put(text, static_cast<std::uint32_t>(offer.sizes.size()));
  for (const std::uint64_t size : offer.sizes) put(text, size);
}

weir::result<memory_offer> parse_offer(std::string_view text) {
  if (text.size() < magic.size() + 2 || !text.starts_with(magic)) return not_a_handle();
  text.remove_prefix(magic.size());
  if (take<std::uint8_t>(text) != offer_version)
    return refusal(weir::errc::bad_version, "the handle was created by another version of weir");
  memory_offer offer;
  offer.opens_without_weir = (take<std::uint8_t>(text) & opens_without_weir_flag) != 0;
  if (text.size() < offer.token.size() + 1) return not_a_handle();
  std::memcpy(offer.token.data(), text.data(), offer.token.size());
  text.remove_prefix(offer.token.size());
  const std::size_t length = take<std::uint8_t>(text);
  if (length == 0 || text.size() < length + 4) return not_a_handle();
  offer.socket = text.substr(0, length);
  text.remove_prefix(length);
  const std::uint32_t count = take<std::uint32_t>(text);
  if (count == 0 || count > ipc_handle::max_handles || text.size() != count * sizeof(std::uint64_t))
    return not_a_handle();
  offer.sizes.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    offer.sizes.push_back(take<std::uint64_t>(text));
    if (offer.sizes.back() == 0) return not_a_handle();
  }
  return offer;
}

plain_handle take_plain(std::string_view text) noexcept {
  plain_handle handle{};
  std::memcpy(handle.data(), text.data(), handle.size());
  return handle;
}

weir::error of_the_fabric() {
  return refusal(weir::errc::not_supported,
                 "the memory is shared by a fabric handle, which weir cannot open");
}

/// What follows version and type.
weir::result<ipc_handle> parse_descriptors(std::string_view text, std::uint8_t version) {
  const bool with_numbers = version != refused_by_torch;
  const bool with_kind = with_numbers && version >= first_with_kind;
  if (text.size() < header_size + (with_kind ? kind_size : 0)) return not_a_handle();
  process_descriptors descriptors;
  descriptors.process = static_cast<std::int32_t>(take<std::uint32_t>(text));
  static_cast<void>(take<std::uint32_t>(text));  // padding, which old versions of torch left unset
  descriptors.size = take<std::uint64_t>(text);
  const std::uint64_t count = take<std::uint64_t>(text);
  if (with_kind) {
    const auto kind = take<std::uint32_t>(text);
    static_cast<void>(take<std::uint32_t>(text));  // padding
    if (kind == kind_fabric) return of_the_fabric();
    if (kind > kind_fabric)
      return refusal(weir::errc::bad_version, "the handle was created by a later version of torch");
  }
  ipc_handle handle;
  if (with_numbers) {
    if (count == 0 || count > ipc_handle::max_handles || descriptors.size == 0 ||
        descriptors.process <= 0 || text.size() < count * sizeof(std::int32_t))
      return not_a_handle();
    for (std::string_view rest = text; descriptors.numbers.size() < count;)
      descriptors.numbers.push_back(static_cast<std::int32_t>(take<std::uint32_t>(rest)));
    const std::string_view rest = text.substr(count * sizeof(std::int32_t));
    if (!with_kind && text.size() == count * fabric_handle_size && !rest.starts_with(magic))
      return of_the_fabric();
    text = rest;
    handle.descriptors = std::move(descriptors);
    if (text.empty()) return handle;
  }
  WEIR_TRY_VALUE(offer, parse_offer(text));
  handle.offer = std::move(offer);
  return handle;
}

}  // namespace

std::string ipc_handle::serialize(torch_format format) const {
  std::string text;
  put(text, plain || descriptors ? static_cast<std::uint8_t>(format) : refused_by_torch);
  text.push_back(plain ? plain_type : descriptors_type);
  if (plain) return text.append(plain->data(), plain->size());
  const process_descriptors none;
  const process_descriptors& by_number = descriptors ? *descriptors : none;
  put(text, static_cast<std::uint32_t>(by_number.process));
  put(text, std::uint32_t{0});
  put(text, by_number.size);
  put(text, static_cast<std::uint64_t>(by_number.numbers.size()));
  if (descriptors && format == torch_format::with_kind) {
    put(text, kind_descriptors);
    put(text, std::uint32_t{0});
  }
  for (const std::int32_t number : by_number.numbers) put(text, static_cast<std::uint32_t>(number));
  if (offer) append(text, *offer);
  return text;
}

weir::result<ipc_handle> ipc_handle::parse(std::string_view text) {
  ipc_handle handle;
  if (text.size() == sizeof(plain_handle)) {
    handle.plain = take_plain(text);
    return handle;
  }
  if (text.size() < 2) return not_a_handle();
  const auto version = take<std::uint8_t>(text);
  const char type = text.front();
  text.remove_prefix(1);
  if (version > first_with_kind && version != refused_by_torch)
    return refusal(weir::errc::bad_version, "the handle was created by a later version of torch");
  if (type == descriptors_type) return parse_descriptors(text, version);
  if (type != plain_type || version == refused_by_torch || text.size() != sizeof(plain_handle))
    return not_a_handle();
  handle.plain = take_plain(text);
  return handle;
}

}  // namespace weir_torch
