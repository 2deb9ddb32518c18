// Reading pickles: a machine with a stack, without recursion and without classes.
#include "formats/pickle.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weir::inline v0::formats {
namespace {

using type = pickle_value::type;

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
  unpickler(std::string_view bytes, const input_limits& most) noexcept
      : bytes_{bytes}, most_{most}, out_{bytes} {}

  result<pickle> run() {
    while (!stopped_) {
      const std::size_t offset = at_;
      const char* wrong = step();
      if (spent_ > most_.bytes) {
        return error{.code = errc::limit_exceeded,
                     .requested = bytes{most_.bytes},
                     .detail = "the pickle takes more memory than a reader has"};
      }
      if (wrong != nullptr) {
        return error{.code = errc::invalid_argument,
                     .detail = "offset " + std::to_string(offset) + ": " + wrong};
      }
    }
    return std::move(out_);
  }

 private:
  static constexpr const char* cut = "the pickle ends too early";
  static constexpr const char* underflow = "the pickle takes what it did not put there";

  // --- Bytes ------------------------------------------------------------------------------------

  [[nodiscard]] std::size_t left() const noexcept { return bytes_.size() - at_; }
  /// A number of `count` bytes, the lowest first; the caller looked whether they are there.
  [[nodiscard]] std::uint64_t little(std::size_t count) noexcept {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < count; ++i)
      value |= std::uint64_t{static_cast<unsigned char>(bytes_[at_ + i])} << (8 * i);
    at_ += count;
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
    return push({.is = value < 0 ? type::negative : type::natural,
                 .bits = static_cast<std::uint64_t>(value)});
  }

  // --- Instructions -----------------------------------------------------------------------------

  const char* step() {
    if (left() == 0) return cut;
    const auto op = static_cast<unsigned char>(bytes_[at_++]);
    switch (op) {
      case 0x80:  // PROTO
        if (left() < 1) return cut;
        if (const auto protocol = little(1); protocol < 2 || protocol > 5)
          return "the pickle's protocol is none of 2 to 5";
        return nullptr;
      case 0x95:  // FRAME; its length is for readers that read ahead
        if (left() < 8) return cut;
        at_ += 8;
        return nullptr;
      case '.':  // STOP
        if (!marks_.empty() || stack_.size() != 1) return "the pickle stops in the middle";
        out_.root_ = stack_.back();
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
        return push({.is = type::boolean, .bits = 1});
      case 0x89:  // NEWFALSE
        return push({.is = type::boolean});
      case 'K':  // BININT1
        return number(1);
      case 'M':  // BININT2
        return number(2);
      case 'J':  // BININT
        if (left() < 4) return cut;
        return push_number(static_cast<std::int32_t>(little(4)));
      case 0x8a:  // LONG1
        if (left() < 1) return cut;
        return long_number(little(1));
      case 0x8b:  // LONG4
        if (left() < 4) return cut;
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
        return make(type::list, 0);
      case '}':
        return make(type::dict, 0);
      case ')':
        return make(type::tuple, 0);
      case 0x85:
      case 0x86:
      case 0x87:
        return make(type::tuple, op - 0x84U);
      case 't':
        return make_marked(type::tuple);
      case 'l':
        return make_marked(type::list);
      case 'd':
        return make_marked(type::dict);
      case 'a':  // APPEND
        return extend(type::list, 1);
      case 's':  // SETITEM
        return extend(type::dict, 2);
      case 'e':  // APPENDS
        return extend_marked(type::list);
      case 'u':  // SETITEMS
        return extend_marked(type::dict);
      case 0x94:  // MEMOIZE
        return memoize(memo_.size());
      case 'q':  // BINPUT
        return left() < 1 ? cut : memoize(little(1));
      case 'r':  // LONG_BINPUT
        return left() < 4 ? cut : memoize(little(4));
      case 'h':  // BINGET
        return left() < 1 ? cut : recall(little(1));
      case 'j':  // LONG_BINGET
        return left() < 4 ? cut : recall(little(4));
      default:
        break;
    }
    if (const char* const refused = builds_objects(op)) {
      refusal_ =
          std::string{"the pickle builds objects of classes ("} + refused + "), which is refused";
      return refusal_.c_str();
    }
    return "an instruction that data does not need";
  }

  const char* number(std::size_t size) {
    if (left() < size) return cut;
    return push({.is = type::natural, .bits = little(size)});
  }

  /// Two's complement of any length; what needs more than 64 bits is no address and no size.
  const char* long_number(std::uint64_t size) {
    if (size > left()) return cut;
    const std::string_view digits = bytes_.substr(at_, size);
    at_ += size;
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
    return push({.is = below_zero ? type::negative : type::natural, .bits = value});
  }

  const char* real() {
    if (left() < 8) return cut;
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | static_cast<unsigned char>(bytes_[at_++]);
    return push({.is = type::real, .bits = value});
  }

  const char* text(std::size_t size) {
    if (left() < size) return cut;
    const std::uint64_t length = little(size);
    if (length > left()) return cut;
    if (length > UINT32_MAX) return "a text is too long";
    const std::uint64_t offset = at_;
    at_ += length;
    return push({.is = type::text, .length = static_cast<std::uint32_t>(length), .bits = offset});
  }

  /// A container of the uppermost `count` values.
  const char* make(type is, std::size_t count) {
    if (available() < count) return underflow;
    const std::uint64_t number = out_.containers_.size();
    pickle::container& fresh = out_.containers_.emplace_back();
    spent_ += sizeof(pickle::container);
    if (const char* const wrong = move_in(fresh, number, count)) return wrong;
    // What is made whole is never changed.
    fresh.closed = is == type::tuple;
    return push({.is = is, .bits = number});
  }

  const char* make_marked(type is) {
    if (marks_.empty()) return underflow;
    const std::size_t count = available();
    if (is == type::dict && count % 2 != 0) return "a dict has a key without a value";
    if (const char* const wrong = make(is, count)) return wrong;
    marks_.pop_back();
    return nullptr;
  }

  /// Adds the uppermost `count` values to the container below them.
  const char* extend(type is, std::size_t count) {
    if (available() < count + 1) return underflow;
    const pickle_value target = stack_[stack_.size() - count - 1];
    if (target.is != is) return "something is added to what is no list or dict";
    pickle::container& to = out_.containers_[target.bits];
    if (to.closed) return "a container is changed that is part of another";
    return move_in(to, target.bits, count);
  }

  const char* extend_marked(type is) {
    if (marks_.empty()) return underflow;
    const std::size_t count = available();
    if (is == type::dict && count % 2 != 0) return "a dict has a key without a value";
    marks_.pop_back();
    return extend(is, count);
  }

  /// A container that was put into another is closed, and a closed one is not changed: so nothing
  /// can come to be inside itself, whatever the memo hands out.
  const char* move_in(pickle::container& to, std::uint64_t number, std::size_t count) {
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    for (auto each = first; each != stack_.end(); ++each) {
      if (!each->contains()) continue;
      if (each->bits == number) return "a container is put into itself";
      pickle::container& part = out_.containers_[each->bits];
      part.closed = true;
      to.height = std::max<std::uint8_t>(to.height, static_cast<std::uint8_t>(part.height + 1));
      if (to.height > most_levels) return "the pickle is nested too deep";
    }
    to.values.insert(to.values.end(), first, stack_.end());
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
    if (number >= memo_.size()) return "the memo has no such entry";
    return push(memo_[number]);
  }

  std::string_view bytes_;
  input_limits most_;
  pickle out_;
  std::size_t at_ = 0;
  std::vector<pickle_value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<pickle_value> memo_;
  std::uint64_t spent_ = 0;  // memory, about; never given back
  std::string refusal_;
  bool stopped_ = false;
};

result<pickle> pickle::read(std::string_view bytes, const input_limits& most) {
  if (!is_pickle(bytes))
    return error{.code = errc::invalid_argument, .detail = "not a pickle of protocol 2 to 5"};
  return unpickler{bytes, most}.run();
}

bool is_pickle(std::string_view bytes) noexcept {
  return bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
}

// --- Looking ------------------------------------------------------------------------------------

std::optional<std::uint64_t> pickle::natural(const pickle_value& of) const noexcept {
  if (of.is != type::natural) return std::nullopt;
  return of.bits;
}

std::optional<std::int64_t> pickle::integer(const pickle_value& of) const noexcept {
  if (of.is == type::negative) return static_cast<std::int64_t>(of.bits);
  if (of.is != type::natural || of.bits > INT64_MAX) return std::nullopt;
  return static_cast<std::int64_t>(of.bits);
}

std::optional<std::string_view> pickle::text(const pickle_value& of) const noexcept {
  if (of.is != type::text) return std::nullopt;
  return bytes_.substr(of.bits, of.length);
}

const std::vector<pickle_value>& pickle::elements(const pickle_value& of) const noexcept {
  static const std::vector<pickle_value> none;
  if (of.is != type::list && of.is != type::tuple) return none;
  return containers_[of.bits].values;
}

const pickle_value* pickle::find(const pickle_value& dict, std::string_view key) const noexcept {
  if (dict.is != type::dict) return nullptr;
  const auto& values = containers_[dict.bits].values;
  for (std::size_t i = values.size(); i >= 2; i -= 2)
    if (text(values[i - 2]) == key) return &values[i - 1];
  return nullptr;
}

}  // namespace weir::inline v0::formats
