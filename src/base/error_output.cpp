// SPDX-License-Identifier: Apache-2.0
// Which errors are written to standard error, and how.
#include "base/error_output.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/environment.hpp"

namespace weir { inline namespace v0 { namespace detail {
namespace {

/// Pieces of text that are written with one call, so that lines of several threads do not mix.
class line {
 public:
  void append(std::string_view piece) noexcept {
    if (piece.empty()) return;
    pieces_[count_++] = {const_cast<char*>(piece.data()), piece.size()};
  }
  void write() const noexcept {
    [[maybe_unused]] const auto written =
        ::writev(STDERR_FILENO, pieces_.data(), static_cast<int>(count_));
  }

 private:
  std::array<iovec, 16> pieces_{};
  std::size_t count_ = 0;
};

}  // namespace

constinit error_output standard_error;

bool error_output::is_wanted(subject subject, bool has_handler) noexcept {
  switch (chosen_.load(std::memory_order_relaxed)) {
    case error_printing::on:
      return true;
    case error_printing::off:
      return false;
    case error_printing::automatic:
      break;
  }
  variable said = variable_.load(std::memory_order_relaxed);
  if (said == variable::unread) {
    said = read_variable();
    variable_.store(said, std::memory_order_relaxed);
  }
  if (said != variable::automatic) return said == variable::on;
  if (has_handler) return false;
  return subject == subject::mistake || is_debug_program_.load(std::memory_order_relaxed);
}

/// Without the table of options, whose values need host memory. What is neither word is reported
/// by check_environment().
error_output::variable error_output::read_variable() noexcept {
  const std::string_view text = environment_value("WEIR_PRINT_ERRORS");
  if (text == "on" || text == "true" || text == "1") return variable::on;
  if (text == "off" || text == "false" || text == "0") return variable::off;
  return variable::automatic;
}

void error_output::write(const error& reason) noexcept {
  const std::uint32_t number = written_.fetch_add(1, std::memory_order_relaxed);
  if (number > most_written) return written_.store(most_written + 1, std::memory_order_relaxed);
  line text;
  if (number == most_written) {
    text.append("weir: 100 errors were written here; further ones are only counted\n");
    return text.write();
  }
  text.append("weir: ");
  text.append(name(reason.code()));
  text.append(": ");
  text.append(meaning(reason.code()));
  std::array<char, 16> digits{};
  const char* begin = " (";
  if (!reason.call().empty()) {
    text.append(begin);
    text.append(reason.call());
    begin = ", ";
  }
  if (reason.native() != 0) {
    text.append(reason.call().empty() ? " (native code " : " = ");
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), reason.native());
    text.append({digits.data(), static_cast<std::size_t>(end.ptr - digits.data())});
    begin = ", ";
  }
  std::string size;  // at most 11 letters, which lie in the string itself
  if (reason.requested() != bytes{}) {
    size = to_string(reason.requested());
    text.append(begin);
    text.append(size);
    begin = ", ";
  }
  if (*begin == ',') text.append(")");
  if (!reason.detail().empty()) text.append(": ");
  text.append(reason.detail());
  text.append("\n");
  text.write();
}

}}}  // namespace weir::v0::detail
