// SPDX-License-Identifier: Apache-2.0
// Reading pickles: a machine with a stack, without recursion and without classes.
#include "formats/pickle.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weir { inline namespace v0 { namespace formats {
namespace {

using value_type = pickle_value::value_type;

/// A snapshot has six levels.
constexpr std::uint8_t most_levels = 32;
constexpr std::size_t most_marks = 64;

/// What an instruction would do that we refuse; null if it is none of those.
const char* builds_objects(unsigned char op) noexcept {
  switch (op) {
    case 'c':
      return "GLOBAL";
    case 0x93:
      return "STACK_GLOBAL";
    case 'R':
      return "REDUCE";
    case 'b':
      return "BUILD";
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x81:
      return "NEWOBJ";
    case 0x92:
      return "NEWOBJ_EX";
    case 0x82:
    case 0x83:
    case 0x84:
      return "EXT";
    case 'P':
    case 'Q':
      return "PERSID";
    default:
      return nullptr;
  }
}

}  // namespace

// --- The machine --------------------------------------------------------------------------------

/// Runs a pickle's instructions. What is wrong is a text; null if nothing.
class unpickler {
 public:
  unpickler(std::string_view bytes, const input_limits& limits) noexcept
      : bytes_{bytes}, limits_{limits}, pickle_{bytes} {}

  result<pickle> run() {
    while (!stopped_) {
      const std::size_t offset = position_;
      const char* problem = step();
      if (spent_ > limits_.bytes) {
        return error{{.code = errc::limit_exceeded,
                      .requested = bytes{limits_.bytes},
                      .detail = "the pickle needs too much memory"}};
      }
      if (problem != nullptr) {
        return error{{.code = errc::invalid_argument,
                      .detail = "offset " + std::to_string(offset) + ": " + problem}};
      }
    }
    return std::move(pickle_);
  }

 private:
  static constexpr const char* cut = "the pickle is incomplete";
  static constexpr const char* underflow = "the pickle reads more values than it pushed";

  // --- Bytes ------------------------------------------------------------------------------------

  [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - position_; }
  /// A number of `count` bytes, the lowest first; the caller checked that they are there.
  [[nodiscard]] std::uint64_t little(std::size_t count) noexcept {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i)
      value |= std::uint64_t{static_cast<unsigned char>(bytes_[position_ + i])} << (8 * i);
    position_ += count;
    return value;
  }

  // --- The stack --------------------------------------------------------------------------------

  /// What may be taken: nothing from below the last mark.
  [[nodiscard]] std::size_t available() const noexcept {
    return stack_.size() - (marks_.empty() ? 0 : marks_.back());
  }
  const char* push(pickle_value value) {
    stack_.push_back(value);
    spent_ += sizeof(pickle_value);
    return nullptr;
  }
  const char* push_number(std::int64_t value) {
    return push({.type = value < 0 ? value_type::negative : value_type::natural,
                 .bits = static_cast<std::uint64_t>(value)});
  }

  // --- Instructions -----------------------------------------------------------------------------

  const char* step() {
    if (remaining() == 0) return cut;
    const auto op = static_cast<unsigned char>(bytes_[position_++]);
    switch (op) {
      case 0x80:  // PROTO
        if (remaining() < 1) return cut;
        if (const auto protocol = little(1); protocol < 2 || protocol > 5)
          return "unsupported pickle protocol; expected 2 to 5";
        return nullptr;
      case 0x95:  // FRAME; its length is for readers that read ahead
        if (remaining() < 8) return cut;
        position_ += 8;
        return nullptr;
      case '.':  // STOP
        if (!marks_.empty() || stack_.size() != 1) return "the pickle is incomplete";
        pickle_.root_ = stack_.back();
        stopped_ = true;
        return nullptr;
      case '(':  // MARK
        if (marks_.size() >= most_marks) return "the pickle is nested too deep";
        marks_.push_back(stack_.size());
        return nullptr;
      case '0':  // POP
        if (available() == 0) return underflow;
        stack_.pop_back();
        return nullptr;
      case 'N':
        return push({});
      case 0x88:  // NEWTRUE
        return push({.type = value_type::boolean, .bits = 1});
      case 0x89:  // NEWFALSE
        return push({.type = value_type::boolean});
      case 'K':  // BININT1
        return number(1);
      case 'M':  // BININT2
        return number(2);
      case 'J':  // BININT
        if (remaining() < 4) return cut;
        return push_number(static_cast<std::int32_t>(little(4)));
      case 0x8a:  // LONG1
        if (remaining() < 1) return cut;
        return long_number(little(1));
      case 0x8b:  // LONG4
        if (remaining() < 4) return cut;
        return long_number(little(4));
      case 'G':  // BINFLOAT
        return real();
      case 0x8c:  // SHORT_BINUNICODE
        return text(1);
      case 'X':  // BINUNICODE
        return text(4);
      case 0x8d:  // BINUNICODE8
        return text(8);
      default:
        return build(op);
    }
  }

  const char* build(unsigned char op) {
    switch (op) {
      case ']':
        return make(value_type::list, 0);
      case '}':
        return make(value_type::dict, 0);
      case ')':
        return make(value_type::tuple, 0);
      case 0x85:
      case 0x86:
      case 0x87:
        return make(value_type::tuple, op - 0x84U);
      case 't':
        return make_marked(value_type::tuple);
      case 'l':
        return make_marked(value_type::list);
      case 'd':
        return make_marked(value_type::dict);
      case 'a':  // APPEND
        return extend(value_type::list, 1);
      case 's':  // SETITEM
        return extend(value_type::dict, 2);
      case 'e':  // APPENDS
        return extend_marked(value_type::list);
      case 'u':  // SETITEMS
        return extend_marked(value_type::dict);
      case 0x94:  // MEMOIZE
        return memoize(memo_.size());
      case 'q':  // BINPUT
        return remaining() < 1 ? cut : memoize(little(1));
      case 'r':  // LONG_BINPUT
        return remaining() < 4 ? cut : memoize(little(4));
      case 'h':  // BINGET
        return remaining() < 1 ? cut : recall(little(1));
      case 'j':  // LONG_BINGET
        return remaining() < 4 ? cut : recall(little(4));
      default:
        break;
    }
    if (const char* const instruction = builds_objects(op)) {
      refusal_ = std::string{"the pickle creates objects of classes ("} + instruction +
                 "), which is refused";
      return refusal_.c_str();
    }
    return "an instruction that snapshots do not use";
  }

  const char* number(std::size_t size) {
    if (remaining() < size) return cut;
    return push({.type = value_type::natural, .bits = little(size)});
  }

  /// Two's complement of any length; what needs more than 64 bits is no address and no size.
  const char* long_number(std::uint64_t size) {
    if (size > remaining()) return cut;
    const std::string_view digits = bytes_.substr(position_, size);
    position_ += size;
    const bool below_zero = !digits.empty() && static_cast<signed char>(digits.back()) < 0;
    const char filling = below_zero ? '\xff' : '\0';
    std::uint64_t value = below_zero ? ~std::uint64_t{0} : 0;
    for (std::size_t i = 0; i < digits.size(); ++i) {
      if (i >= 8) {
        if (digits[i] != filling) return "a number is out of range";
        continue;
      }
      value &= ~(std::uint64_t{0xff} << (8 * i));
      value |= std::uint64_t{static_cast<unsigned char>(digits[i])} << (8 * i);
    }
    if (below_zero && static_cast<std::int64_t>(value) >= 0) return "a number is out of range";
    return push({.type = below_zero ? value_type::negative : value_type::natural, .bits = value});
  }

  const char* real() {
    if (remaining() < 8) return cut;
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i)
      value = value << 8 | static_cast<unsigned char>(bytes_[position_++]);
    return push({.type = value_type::real, .bits = value});
  }

  const char* text(std::size_t size) {
    if (remaining() < size) return cut;
    const std::uint64_t length = little(size);
    if (length > remaining()) return cut;
    if (length > UINT32_MAX) return "a text is too long";
    const std::uint64_t offset = position_;
    position_ += length;
    return push(
        {.type = value_type::text, .length = static_cast<std::uint32_t>(length), .bits = offset});
  }

  /// A container of the uppermost `count` values.
  const char* make(value_type type, std::size_t count) {
    if (available() < count) return underflow;
    const std::uint64_t number = pickle_.containers_.size();
    pickle::container& added = pickle_.containers_.emplace_back();
    spent_ += sizeof(pickle::container);
    if (const char* const problem = move_in(added, number, count)) return problem;
    // What is made whole is never changed.
    added.closed = type == value_type::tuple;
    return push({.type = type, .bits = number});
  }

  const char* make_marked(value_type type) {
    if (marks_.empty()) return underflow;
    const std::size_t count = available();
    if (type == value_type::dict && count % 2 != 0) return "a dict has a key without a value";
    if (const char* const problem = make(type, count)) return problem;
    marks_.pop_back();
    return nullptr;
  }

  /// Adds the uppermost `count` values to the container below them.
  const char* extend(value_type type, std::size_t count) {
    if (available() < count + 1) return underflow;
    const pickle_value target = stack_[stack_.size() - count - 1];
    if (target.type != type) return "an item is added to a value that is not a list or dict";
    pickle::container& container = pickle_.containers_[target.bits];
    if (container.closed) return "a nested container is changed";
    return move_in(container, target.bits, count);
  }

  const char* extend_marked(value_type type) {
    if (marks_.empty()) return underflow;
    const std::size_t count = available();
    if (type == value_type::dict && count % 2 != 0) return "a dict has a key without a value";
    marks_.pop_back();
    return extend(type, count);
  }

  /// A container that was put into another is closed, and a closed one is not changed: so nothing
  /// can come to be inside itself, whatever the memo hands out.
  const char* move_in(pickle::container& target, std::uint64_t number, std::size_t count) {
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    for (auto value = first; value != stack_.end(); ++value) {
      if (!value->is_container()) continue;
      if (value->bits == number) return "a container contains itself";
      pickle::container& part = pickle_.containers_[value->bits];
      part.closed = true;
      target.height =
          std::max<std::uint8_t>(target.height, static_cast<std::uint8_t>(part.height + 1));
      if (target.height > most_levels) return "the pickle is nested too deep";
    }
    target.values.insert(target.values.end(), first, stack_.end());
    stack_.erase(first, stack_.end());
    return nullptr;
  }

  /// Writers number what they remember from 0 on; any other number would be a way to ask for
  /// memory.
  const char* memoize(std::uint64_t number) {
    if (available() == 0) return underflow;
    if (number > memo_.size()) return "the memo has a gap";
    if (number == memo_.size()) {
      memo_.push_back(stack_.back());
      spent_ += sizeof(pickle_value);
    } else {
      memo_[number] = stack_.back();
    }
    return nullptr;
  }
  const char* recall(std::uint64_t number) {
    if (number >= memo_.size()) return "an unknown memo entry is used";
    return push(memo_[number]);
  }

  std::string_view bytes_;
  input_limits limits_;
  pickle pickle_;
  std::size_t position_ = 0;
  std::vector<pickle_value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<pickle_value> memo_;
  std::uint64_t spent_ = 0;  // memory, about; only grows
  std::string refusal_;
  bool stopped_ = false;
};

result<pickle> pickle::read(std::string_view bytes, const input_limits& limits) {
  if (!is_pickle(bytes))
    return error{{.code = errc::invalid_argument, .detail = "not a pickle of protocol 2 to 5"}};
  return unpickler{bytes, limits}.run();
}

bool is_pickle(std::string_view bytes) noexcept {
  return bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
}

// --- Reading values -----------------------------------------------------------------------------

std::optional<std::uint64_t> pickle::natural(const pickle_value& value) const noexcept {
  if (value.type != value_type::natural) return std::nullopt;
  return value.bits;
}

std::optional<std::int64_t> pickle::integer(const pickle_value& value) const noexcept {
  if (value.type == value_type::negative) return static_cast<std::int64_t>(value.bits);
  if (value.type != value_type::natural || value.bits > INT64_MAX) return std::nullopt;
  return static_cast<std::int64_t>(value.bits);
}

std::optional<std::string_view> pickle::text(const pickle_value& value) const noexcept {
  if (value.type != value_type::text) return std::nullopt;
  return bytes_.substr(value.bits, value.length);
}

const std::vector<pickle_value>& pickle::elements(const pickle_value& value) const noexcept {
  static const std::vector<pickle_value> none;
  if (value.type != value_type::list && value.type != value_type::tuple) return none;
  return containers_[value.bits].values;
}

std::size_t pickle::members(const pickle_value& dict) const noexcept {
  return dict.type == value_type::dict ? containers_[dict.bits].values.size() / 2 : 0;
}

const pickle_value* pickle::find(const pickle_value& dict, std::string_view key) const noexcept {
  if (dict.type != value_type::dict) return nullptr;
  const auto& values = containers_[dict.bits].values;
  for (std::size_t i = values.size(); i >= 2; i -= 2)
    if (text(values[i - 2]) == key) return &values[i - 1];
  return nullptr;
}

}}}  // namespace weir::v0::formats
