// SPDX-License-Identifier: Apache-2.0
// Python's pickle, as far as it is data: read without ever building a class.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/input.hpp"
#include "weir/base/result.hpp"

namespace weir { inline namespace v0 { namespace formats {

/// A value in a pickle. Small; what it holds belongs to its document.
struct pickle_value {
  enum class value_type : std::uint8_t {
    none,
    boolean,
    natural,
    negative,
    real,
    text,
    list,
    tuple,
    dict
  };

  value_type type = value_type::none;
  std::uint32_t length = 0;  ///< of a text
  std::uint64_t bits = 0;    ///< the number, the offset of the text, or the container's index

  [[nodiscard]] bool is_container() const noexcept { return type >= value_type::list; }
};

/// The content of a pickle, as a tree of values without cycles.
///
/// Texts are views of the bytes it was read from, which must outlive it. A container may be part of
/// several others: who walks the tree must bound the steps, not only the depth. Reading takes no
/// more memory than a small multiple of the bytes, whatever they are.
class pickle {
 public:
  /// Protocols 2 to 5. invalid_argument with the offset: not such a pickle, cut, nested deeper than
  /// data is, a container inside itself, or an instruction that builds objects of classes;
  /// limit_exceeded: more memory than limits.bytes.
  [[nodiscard]] static result<pickle> read(std::string_view bytes, const input_limits& limits = {});

  [[nodiscard]] const pickle_value& root() const noexcept { return root_; }

  /// Empty if the value is of another type, or does not fit.
  [[nodiscard]] std::optional<std::uint64_t> natural(const pickle_value& value) const noexcept;
  [[nodiscard]] std::optional<std::int64_t> integer(const pickle_value& value) const noexcept;
  [[nodiscard]] std::optional<std::string_view> text(const pickle_value& value) const noexcept;
  /// The elements of a list or tuple; none if it is neither.
  [[nodiscard]] const std::vector<pickle_value>& elements(const pickle_value& value) const noexcept;
  /// How many members a dict has, which is what find() may cost; 0 of anything else.
  [[nodiscard]] std::size_t members(const pickle_value& dict) const noexcept;
  /// What a dict has under the key, the last of several; null if it has none or is no dict.
  [[nodiscard]] const pickle_value* find(const pickle_value& dict,
                                         std::string_view key) const noexcept;

 private:
  friend class unpickler;
  struct container {
    std::vector<pickle_value> values;  // of a dict: key, value, key, value, …
    std::uint8_t height = 1;           // levels of containers from here down
    bool closed = false;               // part of another: not changed any more
  };

  explicit pickle(std::string_view bytes) noexcept : bytes_{bytes} {}

  std::string_view bytes_;
  std::vector<container> containers_;
  pickle_value root_;
};

/// Whether these bytes begin as a pickle of protocol 2 to 5 does.
[[nodiscard]] bool is_pickle(std::string_view bytes) noexcept;

/// Writes a pickle of protocol 4, with the opcodes that torch's viewer for browsers knows.
/// Containers are begun and ended; what is written in between is their content: in a dict, keys and
/// values by turns. One thread.
class pickle_writer {
 public:
  pickle_writer();
  void natural(std::uint64_t value);
  void integer(std::int64_t value);
  void real(double value);
  void boolean(bool value);
  /// At most 4 GiB; longer ones are cut. Bytes that are not UTF-8 become U+FFFD.
  void text(std::string_view value);
  /// A text that comes often, such as a key: written once, then referred to. It outlives the
  /// writer.
  void word(std::string_view value);
  void begin_list();
  /// Between two items of a list: now and then in a long one, as readers take its items in one go
  /// from here to the next.
  void next_batch();
  void end_list();
  void begin_dict();
  void end_dict();
  void pair(std::int64_t first, std::int64_t second);  ///< a tuple of two
  /// The whole; nothing may be written afterwards.
  [[nodiscard]] std::string finish() &&;

 private:
  std::string out_;
  std::unordered_map<std::string_view, std::uint32_t> words_;
};

}}}  // namespace weir::v0::formats
