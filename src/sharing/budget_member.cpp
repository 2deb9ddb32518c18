// SPDX-License-Identifier: Apache-2.0
// Members of a card's budget.
#include "sharing/budget_member.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <utility>

#include "base/file.hpp"
#include "base/signals_blocked.hpp"
#include "device/state.hpp"

namespace weir { inline namespace v0 {
namespace {

using budget::locked_page;
using budget::place;

/// What whoever gave way does not take back at once: who asked tries again first.
constexpr std::chrono::milliseconds regrowth_pause{200};
/// How often who asked looks for the answer.
constexpr std::chrono::milliseconds answer_period{1};

std::uint64_t less(std::uint64_t from, std::uint64_t size) { return from - std::min(from, size); }

std::string visible_name(const std::string& wanted) {
  std::string name = wanted.empty() ? detail::name_of_process(::getpid()) : wanted;
  if (!wanted.empty()) return name;
  for (char& each : name)
    if (each < ' ' || each > '~') each = '?';
  return name.empty() ? "?" : name;
}

/// What a request of a member may expect of others.
enum class standing : std::uint8_t { forbidden, ranked, guaranteed };

standing standing_of(const place& own, bytes held, bytes needed, bytes capacity) {
  const std::uint64_t wanted = held > capacity ? capacity.count() : held.count() + needed.count();
  if (wanted > own.ceiling) return standing::forbidden;
  return wanted <= own.floor ? standing::guaranteed : standing::ranked;
}

/// Whether `other` releases what it can spare for such a request.
bool gives_way(const place& other, const place& own, standing of_request) {
  if (other.is_free() || of_request == standing::forbidden) return false;
  return of_request == standing::guaranteed || other.priority < own.priority;
}

result<void> check_options(const budget_options& options) {
  const auto refuse = [](std::string reason) {
    return error{{.code = errc::invalid_argument, .detail = std::move(reason)}};
  };
  if (options.name.size() >= place{}.name.size())
    return refuse("name must have at most 31 letters");
  for (const char each : options.name)
    if (each < ' ' || each > '~') return refuse("name must consist of printable ASCII characters");
  using std::chrono::hours;
  using std::chrono::milliseconds;
  if (options.period < milliseconds{0} || options.period > hours{1})
    return refuse("period must be from 0 ms to 1 h");
  if (options.patience < milliseconds{0} || options.patience > hours{1})
    return refuse("patience must be from 0 ms to 1 h");
  return {};
}

}  // namespace

// --- From joining to leaving ---------------------------------------------------------------------

budget_member::state::state(caching_allocator& allocator, const budget_options& options)
    : process_{::getpid()},
      gpu_{allocator.device()},
      capacity_{gpu_.total_memory()},
      memory_{allocator},
      folder_{detail::absolute_path(options.folder.empty() ? budget::default_folder()
                                                           : options.folder)},
      card_{gpu_.uuid() ? budget::card_name(*gpu_.uuid()) : std::string{}},
      period_{options.period},
      patience_{options.patience} {
  static std::atomic<int> count{0};
  const detail::process_identity self = detail::own_process();
  self_.process = self.number;
  self_.start = self.start;
  self_.number = ++count;
  self_.period = static_cast<std::uint64_t>(std::max<std::int64_t>(period_.count(), 0));
  visible_name(options.name).copy(self_.name.data(), self_.name.size() - 1);
}

budget_member::state::~state() {
  if (is_forked()) {
    // The thread never was in this process, and who waited is not there to stop: the condition's
    // destructor would wait for him.
    if (thread_.joinable()) thread_.detach();
    static_cast<void>(stopped_.release());
  }
  leave();
}

bool budget_member::state::is_among(const std::vector<request>& some,
                                    const budget::place& member) noexcept {
  return std::any_of(some.begin(), some.end(),
                     [&](const request& each) { return each.member.is(member); });
}

bool budget_member::state::is_forked() const noexcept { return ::getpid() != process_; }

result<locked_page> budget_member::state::open(purpose why) const {
  return locked_page::open(folder_, card_, why, capacity_);
}

result<void> budget_member::state::start(caching_allocator& allocator, const budget_share& first) {
  if (card_.empty())
    return error{{.code = errc::not_supported,
                  .detail = "the driver does not identify the card, so it cannot be shared"}};
  if (self_.start == 0)
    return error{{.code = errc::not_supported,
                  .detail = "/proc does not show start times of processes; budgets need it"}};
  const auto memory = memory_.lock();
  if (!memory) return errc::closed;
  WEIR_TRY_VALUE(possible, budget::checked_share(first, capacity_));
  {
    const detail::mutex_lock lock{mutex_};
    share_ = possible;
  }
  WEIR_TRY(open_own());
  is_member_ = true;
  // All hold it weakly: it ends when its user is done with it.
  const auto asks = [weak = weak_from_this()](bytes needed) {
    const auto member = weak.lock();
    return member != nullptr && member->ask(needed);
  };
  heap::neighbourhood known{.member = self_.number,
                            .list = [weak = weak_from_this()]() -> std::vector<observe::neighbour> {
                              const auto member = weak.lock();
                              return member == nullptr ? std::vector<observe::neighbour>{}
                                                       : member->neighbours();
                            },
                            .ask = asks,
                            .closed =
                                [weak = weak_from_this()] {
                                  if (const auto member = weak.lock()) member->allocator_closed();
                                }};
  {
    const detail::mutex_lock lock{mutex_};
    applied_ = possible.ceiling.count();
    WEIR_TRY(memory.add_share(this, possible.ceiling, std::move(known)));
  }
  WEIR_TRY_VALUE(registered, allocator.on_out_of_memory(asks));
  callback_ = std::move(registered);
  if (period_.count() == 0) return {};
  try {
    const detail::signals_blocked quiet;
    thread_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& refusal) {
    return error{
        {.code = errc::system,
         .detail = std::string{"the member's thread could not be started: "} + refusal.what()}};
  }
  return {};
}

void budget_member::state::leave() noexcept {
  if (is_forked()) return;
  {
    const detail::mutex_lock lock{mutex_};
    is_stopping_ = true;
  }
  stopped_->notify_all();
  if (thread_.joinable()) thread_.join();
  if (!std::exchange(is_member_, false)) return;
  callback_ = {};
  if (const auto memory = memory_.lock()) memory.remove_share(this);
  free_place();
}

void budget_member::state::allocator_closed() noexcept {
  if (is_forked()) return;
  is_closed_ = true;
  {
    const detail::mutex_lock lock{mutex_};
    is_stopping_ = true;
  }
  stopped_->notify_all();
  free_place();
}

/// Where the page cannot be had, whoever looks after the end of this process does it. Until then
/// the floor is nobody else's: host memory that is missing for a moment must not cost it.
void budget_member::state::free_place() noexcept {
  constexpr int most_tries = 8;
  for (int tries = 0; tries < most_tries; ++tries) {
    try {
      auto page = open(purpose::change);
      if (!page) return;
      if (const auto index = page->find(self_)) static_cast<void>(page->write(*index, place{}));
      return;
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds{tries});
    }
  }
}

/// The share is looked up before the page is locked: whoever holds mutex_ may wait for the
/// allocator, and who holds that may wait for the page.
result<budget_member::state::own_page> budget_member::state::open_own() {
  budget_share wanted;
  {
    const detail::mutex_lock lock{mutex_};
    wanted = share_;
  }
  WEIR_TRY_VALUE(page, open(purpose::join));
  // Whoever closes the allocator frees the place under the page's lock, after it set this.
  if (is_closed_) return errc::closed;
  if (const auto index = page.find(self_)) return own_page{std::move(page), *index};
  const auto index = page.find_free();
  if (!index) {
    return error{{.code = errc::limit_exceeded,
                  .detail = "a card can have " + std::to_string(budget::most_members) +
                            " members: " +
                            observe::holders_of(budget::neighbours_of(page.content(), self_))}};
  }
  WEIR_TRY(page.write_share(*index, self_, wanted));
  return own_page{std::move(page), *index};
}

/// A page in trouble is told of once, until it is well again.
void budget_member::state::run() {
  bool is_well = true;
  for (;;) {
    {
      detail::mutex_lock lock{mutex_};
      if (!is_stopping_) stopped_->wait_for(mutex_, period_);
      if (is_stopping_) return;
    }
    const auto served = serve();
    if (!served && is_well && served.code() != errc::closed) report_error(served.error());
    is_well = served.has_value();
  }
}

// --- Giving way ----------------------------------------------------------------------------------

void budget_member::state::set_ceiling(const heap::heap_view& memory, std::uint64_t most) {
  if (applied_ == most) return;
  if (memory.set_ceiling(this, bytes{most})) applied_ = most;
}

void budget_member::state::follow(const heap::heap_view& memory, const place& own) {
  const detail::mutex_lock lock{mutex_};
  share_ = budget::row_of(own).share;
  const bool is_paused = clock::now() < paused_until_;
  set_ceiling(memory, is_paused ? std::min(applied_, own.ceiling) : own.ceiling);
}

void budget_member::state::pause(const heap::heap_view& memory, std::uint64_t most) {
  const detail::mutex_lock lock{mutex_};
  paused_until_ = clock::now() + regrowth_pause;
  set_ceiling(memory, most);
}

bool budget_member::state::wait_for_pause(const heap::heap_view& memory) {
  detail::mutex_lock lock{mutex_};
  if (applied_ >= share_.ceiling.count()) return false;
  while (!is_stopping_ && clock::now() < paused_until_) stopped_->wait_until(mutex_, paused_until_);
  set_ceiling(memory, share_.ceiling.count());
  return true;
}

result<bytes> budget_member::state::serve() try {
  if (is_forked()) return detail::fork_error();
  const detail::mutex_lock serving{serve_mutex_};
  const auto memory = memory_.lock();
  if (!memory || is_closed_) return errc::closed;
  const std::uint64_t most = capacity_.count();
  const auto held_now = [&] { return std::min(memory.reserved().count(), most); };
  const std::uint64_t held = held_now();
  place own;
  {
    WEIR_TRY_VALUE(opened, open_own());
    own = opened.place();
    if (own.held != held) {
      own.held = held;
      WEIR_TRY(opened.page.write(opened.index, own));
    }
  }
  follow(memory, own);
  const std::uint64_t keep = std::min(own.ceiling, std::max(own.floor, less(held, own.asked)));
  if (own.answered == own.requests && held <= own.ceiling) return bytes{};
  if (own.asked != 0) pause(memory, keep);
  const auto released = held > keep ? memory.shrink(bytes{keep}) : result<bytes>{bytes{}};
  const std::uint64_t held_after = held_now();
  {
    WEIR_TRY_VALUE(opened, open_own());
    place answer = opened.place();
    answer.held = held_after;
    answer.asked = less(answer.asked, own.asked);
    answer.given += released ? released->count() : 0;
    answer.answered = std::min(own.requests, answer.requests);
    WEIR_TRY(opened.page.write(opened.index, answer));
  }
  return released;
} catch (const std::bad_alloc&) {
  return error{
      {.code = errc::no_host_memory, .detail = "out of host memory while reading a budget"}};
}

// --- Asking --------------------------------------------------------------------------------------

bool budget_member::state::ask(bytes needed) {
  if (is_forked()) return false;
  const auto memory = memory_.lock();
  if (!memory) return false;
  const bool waited = wait_for_pause(memory);
  return ask_others(memory, needed, waited) || waited;
}

bool budget_member::state::ask_others(const heap::heap_view& memory, bytes needed,
                                      bool waited) try {
  const auto deadline = clock::now() + patience_;
  // Physical memory comes in handles.
  const std::uint64_t unit = std::max<std::uint64_t>(gpu_.capabilities().granularity.count(), 1);
  const std::uint64_t whole = (std::min(needed, capacity_).count() + unit - 1) / unit * unit;
  const bytes held = memory.reserved();
  // What the user's own limit, or the ceiling, forbids is of no use to anybody.
  if (held > memory.limit() || bytes{whole} > memory.limit() - held) return false;
  std::vector<request> exhausted;  // those who gave less than they were asked for
  for (const std::int32_t each : memory.members()) {  // our own memory is not asked for
    exhausted.push_back({.member = self_});
    exhausted.back().member.number = each;
  }
  std::uint64_t given = 0;
  bool has_looked = false;
  do {
    // Who else asked may have taken what was given: then there is less than before.
    const auto info = gpu_.memory_info();
    const std::uint64_t free = info ? info->free.count() / unit * unit : 0;
    if ((given != 0 || waited) && (!info || free >= whole)) break;
    const std::uint64_t missing = free < whole ? whole - free : whole;
    auto asked = ask_next(held, bytes{whole}, missing, exhausted, given);
    if (!asked) break;
    if (asked->empty()) {
      if (std::exchange(has_looked, true)) break;
      auto looking = ask_to_look(held, bytes{whole}, exhausted);
      if (!looking || looking->empty()) break;
      static_cast<void>(wait_for(*looking, deadline));
      note_silent(*looking);
      continue;
    }
    given += wait_for(*asked, deadline);
    note_silent(*asked);
    for (const request& each : *asked)
      if (each.given < each.amount) exhausted.push_back(each);
  } while (clock::now() < deadline);
  return given != 0;
} catch (const std::bad_alloc&) {
  return false;
}

/// Those who must give way, the lowest priority first, and among equals who has most to spare.
/// Dead members' memory is `found`.
result<std::vector<budget_member::state::request>> budget_member::state::ask_next(
    bytes held, bytes needed, std::uint64_t missing, const std::vector<request>& exhausted,
    std::uint64_t& found) {
  std::vector<request> asked;
  WEIR_TRY_VALUE(opened, open_own());
  locked_page& page = opened.page;
  const place own = opened.place();
  found += page.taken_back();
  const standing of_request = standing_of(own, held, needed, page.capacity());

  struct candidate {
    std::size_t index;
    std::uint64_t spare;
    std::int64_t priority;
  };
  std::vector<candidate> candidates;
  for (std::size_t i = 0; i < budget::most_members; ++i) {
    const place& each = page.content().places[i];
    if (i == opened.index || !gives_way(each, own, of_request)) continue;
    const std::uint64_t spare = less(less(each.held, each.asked), each.floor);
    if (!is_among(exhausted, each) && spare != 0) candidates.push_back({i, spare, each.priority});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const candidate& a, const candidate& b) {
                     return a.priority != b.priority ? a.priority < b.priority : a.spare > b.spare;
                   });
  asked.reserve(candidates.size());
  for (const candidate& each : candidates) {
    if (missing == 0) break;
    place member = page.content().places[each.index];
    request one{.member = member, .amount = std::min(each.spare, missing)};
    member.asked += one.amount;
    one.number = ++member.requests;
    WEIR_TRY(page.write(each.index, member));
    asked.push_back(one);
    missing -= one.amount;
  }
  return asked;
}

/// What a member holds is known as of its last look, and it may have grown since. Those of whom
/// there is nothing to ask look again, which is a request for nothing. Not who has no thread for
/// it, or left a request of ours unanswered. A request of another member that is not answered yet
/// says nothing: it may be as new as this one.
result<std::vector<budget_member::state::request>> budget_member::state::ask_to_look(
    bytes held, bytes needed, const std::vector<request>& exhausted) {
  std::vector<request> looking;
  WEIR_TRY_VALUE(opened, open_own());
  locked_page& page = opened.page;
  const place own = opened.place();
  const standing of_request = standing_of(own, held, needed, page.capacity());
  looking.reserve(budget::most_members);
  const detail::mutex_lock lock{silent_mutex_};
  std::erase_if(silent_, [&](const request& each) {
    const auto index = page.find(each.member);
    return !index || page.content().places[*index].answered >= each.number;
  });
  for (std::size_t i = 0; i < budget::most_members; ++i) {
    place member = page.content().places[i];
    if (i == opened.index || !gives_way(member, own, of_request)) continue;
    if (member.period == 0 || is_among(silent_, member) || is_among(exhausted, member)) continue;
    request one{.member = member};
    one.number = ++member.requests;
    WEIR_TRY(page.write(i, member));
    looking.push_back(one);
  }
  return looking;
}

void budget_member::state::note_silent(const std::vector<request>& waited) {
  const detail::mutex_lock lock{silent_mutex_};
  for (const request& each : waited) {
    if (each.is_over) continue;
    std::erase_if(silent_, [&](const request& known) { return known.member.is(each.member); });
    silent_.push_back(each);
  }
}

/// Until all have answered or ended, or it takes too long: then the rest is not wanted any more.
std::uint64_t budget_member::state::wait_for(std::vector<request>& asked,
                                             clock::time_point deadline) {
  std::uint64_t given = 0;
  for (;;) {
    const bool is_late = clock::now() >= deadline;
    if (collect(asked, is_late, given) || is_late) return given;
    std::this_thread::sleep_for(answer_period);  // without the page, which others need to answer
  }
}

/// Adds what was given since the last look; true: all have answered.
bool budget_member::state::collect(std::vector<request>& asked, bool is_late,
                                   std::uint64_t& given) {
  auto page = open(is_late ? purpose::change : purpose::look);
  if (!page) return false;
  bool is_waiting = false;
  for (request& each : asked) {
    if (each.is_over) continue;
    const auto index = page->find(each.member);
    if (!index) {  // it left, or ended
      each.is_over = true;
      each.given = each.amount;
      given += each.given;
      continue;
    }
    place now = page->content().places[*index];
    if (now.answered >= each.number) {
      each.is_over = true;
      each.given = less(now.given, each.member.given);
      given += each.given;
    } else if (is_late) {
      now.asked = less(now.asked, each.amount);
      static_cast<void>(page->write(*index, now));
    } else {
      is_waiting = true;
    }
  }
  return !is_waiting;
}

std::vector<observe::neighbour> budget_member::state::neighbours() const {
  if (is_forked()) return {};
  const auto page = open(purpose::look);
  return page ? budget::neighbours_of(page->content(), self_) : std::vector<observe::neighbour>{};
}

// --- The share -----------------------------------------------------------------------------------

result<budget_share> budget_member::state::share() try {
  if (is_forked()) return detail::fork_error();
  if (is_closed_) return errc::closed;
  WEIR_TRY_VALUE(page, open(purpose::look));
  const auto index = page.find(self_);
  if (!index)
    return error{
        {.code = errc::not_found, .detail = "the member was removed from the budget file"}};
  return budget::row_of(page.content().places[*index]).share;
} catch (const std::bad_alloc&) {
  return error{
      {.code = errc::no_host_memory, .detail = "out of host memory while reading a budget"}};
}

result<void> budget_member::state::set_share(const budget_share& share) try {
  if (is_forked()) return detail::fork_error();
  const auto memory = memory_.lock();
  if (!memory || is_closed_) return errc::closed;
  place own;
  {
    WEIR_TRY_VALUE(opened, open_own());
    WEIR_TRY(opened.page.write_share(opened.index, opened.place(), share));
    own = opened.place();
  }
  follow(memory, own);
  return {};
} catch (const std::bad_alloc&) {
  return error{
      {.code = errc::no_host_memory, .detail = "out of host memory while reading a budget"}};
}

// --- What the user sees --------------------------------------------------------------------------

budget_member::budget_member(std::shared_ptr<state> shared) noexcept : state_{std::move(shared)} {}

budget_member::~budget_member() { state_->leave(); }

result<std::unique_ptr<budget_member>> budget_member::join(caching_allocator& allocator,
                                                           const budget_options& options) try {
  WEIR_TRY(check_options(options));
  // Of a handle that was moved from there is nothing to ask.
  if (const auto known = allocator.size_of(nullptr);
      !known && (known.code() == errc::moved_from || known.code() == errc::closed))
    return known.error();
  auto shared = std::make_shared<state>(allocator, options);
  WEIR_TRY(shared->start(allocator, options.share));
  return std::unique_ptr<budget_member>{new budget_member{std::move(shared)}};
} catch (const std::bad_alloc&) {
  return error{
      {.code = errc::no_host_memory, .detail = "out of host memory for a member of a budget"}};
}

result<budget_share> budget_member::share() const { return state_->share(); }
result<void> budget_member::set_share(const budget_share& share) const {
  return state_->set_share(share);
}
result<bytes> budget_member::serve() const { return state_->serve(); }

}}  // namespace weir::v0
