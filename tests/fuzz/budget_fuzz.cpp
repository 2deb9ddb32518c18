// SPDX-License-Identifier: Apache-2.0
// Any bytes where the page of a card's budget is: refused with the file's name, or shown as they
// are; and whoever joins such a page leaves one that is sound.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "fuzz_input.hpp"
#include "sharing/budget_page.hpp"
#include "weir/share/budget.hpp"

namespace weir::fuzz { namespace {

using budget::locked_page;
using budget::page;
using budget::place;

constexpr std::string_view card = "GPU-00000000-0000-0000-0000-000000000000";

/// A folder of the process's own, gone at its end.
const std::string& folder() {
  static const std::string path = [] {
    std::string form = "/tmp/weir_budget_fuzz_XXXXXX";
    require(::mkdtemp(form.data()) != nullptr, "no folder");
    return form;
  }();
  static const int registered = std::atexit([] {
    ::unlink((path + "/" + std::string{card} + "." + std::to_string(detail::process_namespace()))
                 .c_str());
    ::rmdir(path.c_str());
  });
  static_cast<void>(registered);
  return path;
}

std::string path_of_page() {
  return folder() + "/" + std::string{card} + "." + std::to_string(detail::process_namespace());
}

void put(std::string_view content) {
  const int file =
      ::open(path_of_page().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
  require(file >= 0 &&
              ::write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
          "no room for a page");
  ::close(file);
}

std::string_view bytes_of(const page& from) {
  return {reinterpret_cast<const char*>(&from), sizeof(from)};
}

/// A page that is nearly right: some members, some of this process, and any few bytes.
page any_page(fuzz_input& input) {
  page made;
  made.header = {.magic = budget::page_magic,
                 .version = budget::page_version,
                 .places = budget::most_members,
                 .capacity = input.number()};
  for (std::size_t count = input.below(6); count > 0; --count) {
    place& one = made.places[input.below(budget::most_members)];
    const auto self = detail::own_process();
    one.process = input.chance(3) ? static_cast<std::int32_t>(input.number()) : self.number;
    one.start = input.chance(3) ? input.number() : self.start;
    one.number = static_cast<std::int32_t>(input.number());
    input.text(31).copy(one.name.data(), one.name.size());
    one.ceiling = input.number();
    one.floor = input.number();
    one.priority = static_cast<std::int64_t>(input.number());
    one.held = input.number();
    one.asked = input.number();
    one.requests = input.number();
    one.answered = input.number();
  }
  auto* const raw = reinterpret_cast<std::uint8_t*>(&made);
  for (std::size_t count = input.below(4); count > 0; --count)
    raw[input.word() % sizeof(made)] = input.next();
  return made;
}

std::size_t running_in(const page& from) {
  std::size_t count = 0;
  for (const place& each : from.places)
    count += !each.is_free() && detail::is_running(each.owner()) ? 1 : 0;
  return count;
}

/// What every reader says of these bytes.
void read(std::string_view content) {
  put(content);
  page copy;
  const bool is_page = content.size() == sizeof(page);
  if (is_page) std::memcpy(static_cast<void*>(&copy), content.data(), sizeof(page));
  const bool is_sound = content.empty() || (is_page && budget::check(copy).has_value());
  const auto listing = read_budgets(folder());
  require(listing.has_value(), "the folder was refused");
  require(listing->cards.size() == (is_sound ? 1u : 0u), "another number of cards");
  require(listing->refused.size() == (is_sound ? 0u : 1u), "another number of refusals");
  require(!to_string(*listing).empty(), "a listing without words");
  if (!is_sound) {
    const error& why = listing->refused.front();
    require(why.code() == errc::invalid_argument || why.code() == errc::bad_version,
            "refused for another reason: " + why.message());
    require(why.detail().starts_with(path_of_page()), "an error without the file's name");
    require(!clear_budgets(folder()), "a page that is none was changed");
    return;
  }
  const card_budget& shown = listing->cards.front();
  require(shown.members.size() == running_in(copy), "another number of members");
  std::uint64_t floors = 0;
  for (const budget_row& each : shown.members) {
    require(each.share.floor <= each.share.ceiling && each.share.ceiling <= shown.capacity &&
                each.held <= shown.capacity && each.asked <= shown.capacity,
            "figures that cannot be");
    floors += each.share.floor.count();
  }
  require(floors <= shown.capacity.count(), "floors that pass the card");
}

/// Somebody joins, and what he leaves is sound.
void join(fuzz_input& input) {
  const bytes capacity{input.number()};
  const budget_share share{bytes{input.number()}, bytes{input.number()},
                           static_cast<int>(input.below(9)) - 4};
  auto opened = locked_page::open(folder(), card, locked_page::purpose::join, capacity);
  if (!opened) return;
  const auto index = opened->find_free();
  if (!index) return;
  place self;
  const auto process = detail::own_process();
  self.process = process.number;
  self.start = process.start;
  self.number = 77777;
  self.name[0] = 'x';
  if (opened->find(self)) return;
  static_cast<void>(opened->write_share(*index, self, share));
  require(capacity == bytes{} || budget::check(opened->content()).has_value(),
          "the page is not sound any more");
}

}  // namespace
}  // namespace weir::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weir::fuzz;
  fuzz_input input{{data, size}};
  if (input.chance(4)) {
    read({reinterpret_cast<const char*>(data) + (size != 0), size - (size != 0)});
  } else {
    const auto made = any_page(input);
    read(bytes_of(made));
  }
  join(input);
  return 0;
}
