// SPDX-License-Identifier: Apache-2.0
// Several processes on one card: they give way to each other, and who is killed leaves nothing.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <vector>

#include "sharing/budget_fixture.hpp"
#include "support/child_process.hpp"

namespace weir::testing_support { namespace {

using driver::CUdeviceptr;
using driver::CUresult;

// --- A card that simulated processes share -------------------------------------------------------

/// Every process has a simulated machine of its own. To make them one card, memory that others
/// hold, as the page of the budget says, is missing here.
struct card_state {
  driver::table real{};
  std::string folder{};
};
card_state& shared_state() {
  static card_state state;
  return state;
}

std::uint64_t held_by_others() {
  std::uint64_t held = 0;
  const auto listing = read_budgets(shared_state().folder);
  if (!listing) return 0;
  for (const card_budget& card : listing->cards)
    for (const budget_row& each : card.members)
      if (each.process != ::getpid()) held += each.held.count();
  return held;
}

CUresult shared_get_info(std::size_t* free, std::size_t* total) {
  const CUresult answer = shared_state().real.mem_get_info(free, total);
  if (answer == driver::CUDA_SUCCESS) *free -= std::min<std::size_t>(*free, held_by_others());
  return answer;
}

CUresult shared_create(driver::CUmemGenericAllocationHandle* handle, std::size_t size,
                       const driver::CUmemAllocationProp* properties, unsigned long long flags) {
  std::size_t free = 0;
  std::size_t total = 0;
  const CUresult answer = shared_get_info(&free, &total);
  if (answer != driver::CUDA_SUCCESS) return answer;
  if (size > free) return driver::CUDA_ERROR_OUT_OF_MEMORY;
  return shared_state().real.mem_create(handle, size, properties, flags);
}

std::shared_ptr<runtime> open_shared_card(const std::string& folder) {
  sim::machine_options settings;
  settings.devices.assign(1, sim::device_spec{.capacity = 2_GiB, .context_overhead = 0_B});
  const auto machine = sim::machine::create(settings).value();
  shared_state() = {machine->driver(), folder};
  driver::table table = machine->driver();
  table.mem_get_info = shared_get_info;
  table.mem_create = shared_create;
  return runtime::open_table(table, "a shared card", machine).value();
}

// --- Another process, which does as it is told ---------------------------------------------------

enum class act : int { join, cache, allocate, evictable, reserved, suspended, leave, end };
struct order {
  act what{};
  std::uint64_t size = 0;
  budget_share share{};
  std::array<char, 32> name{};
};
struct answer {
  int code = 0;  // of an error
  std::uint64_t value = 0;
};

WEIR_CHILD(budget_member) {
  std::array<char, 256> folder{};
  if (!parent.receive(folder)) return 1;
  if (!parent.send(static_cast<int>(::getpid()))) return 1;
  const auto card = open_shared_card(folder.data());
  const device gpu = card->device(device_id{0}).value();
  auto memory = caching_allocator::create(gpu).value();
  const stream on = stream::create(gpu).value();
  const tag stash = tag::named("stash").value();
  std::unique_ptr<weir::budget_member> member;
  order next;
  while (parent.receive(next) && next.what != act::end) {
    answer said;
    const auto say = [&](const auto& outcome) {
      said.code = outcome ? 0 : static_cast<int>(outcome.code());
    };
    switch (next.what) {
      case act::join: {
        auto joined = weir::budget_member::join(
            memory, {next.share, next.name.data(), folder.data(), 2ms, 60s});
        say(joined);
        if (joined) member = std::move(*joined);
        break;
      }
      case act::cache: {
        const auto block = memory.try_allocate(bytes{next.size}, on);
        say(block);
        if (block) memory.deallocate(*block, on);
        break;
      }
      case act::allocate:
        say(memory.try_allocate(bytes{next.size}, on));
        break;
      case act::evictable: {
        say(memory.declare_suspendable(
            stash, {.evictable = true, .eviction = {.contents = suspended_contents::discard}}));
        const tag_scope scope{stash};
        if (said.code == 0) say(memory.try_allocate(bytes{next.size}, on));
        break;
      }
      case act::reserved:
        said.value = memory.stats().reserved.current.count();
        break;
      case act::suspended:
        said.value = memory.is_suspended(stash) ? 1 : 0;
        break;
      case act::leave:
        member.reset();
        break;
      case act::end:
        break;
    }
    if (!parent.send(said)) return 1;
  }
  return 0;
}

/// The parent's side of one.
class neighbour_process {
 public:
  explicit neighbour_process(const std::string& folder) : child_{"budget_member", 1} {
    std::array<char, 256> path{};
    folder.copy(path.data(), path.size() - 1);
    EXPECT_TRUE(child_.link().send(path));
    EXPECT_TRUE(child_.link().receive(process));
  }
  void send(const order& what) { EXPECT_TRUE(child_.link().send(what)); }
  answer receive() {
    answer said{-1};
    EXPECT_TRUE(child_.link().receive(said));
    return said;
  }
  answer tell(const order& what) {
    send(what);
    return receive();
  }
  answer tell(act what, bytes size = {}) { return tell({.what = what, .size = size.count()}); }
  static order joining(const char* name, const budget_share& share) {
    order what{.what = act::join, .share = share};
    std::strncpy(what.name.data(), name, what.name.size() - 1);
    return what;
  }
  int join(const char* name, const budget_share& share) { return tell(joining(name, share)).code; }
  [[nodiscard]] bytes reserved() { return bytes{tell(act::reserved).value}; }
  void kill() { child_.kill(); }
  int wait() { return child_.wait(); }
  int end() {
    send({.what = act::end});
    return child_.wait();
  }

  int process = 0;

 private:
  child_process child_;
};

class budget_processes : public ::testing::Test {
 protected:
  [[nodiscard]] budget_row row(const std::string& name) const {
    const auto listing = read_budgets(pages.path()).value();
    for (const card_budget& card : listing.cards)
      for (const budget_row& each : card.members)
        if (each.name == name) return each;
    return {};
  }
  template <class Condition>
  [[nodiscard]] static bool comes(Condition condition) {
    for (const auto end = std::chrono::steady_clock::now() + 20s;;) {
      if (condition()) return true;
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(5ms);
    }
  }
  /// Stops a process where it does not hold a page: else nobody could read that any more.
  void stop(pid_t process) const {
    std::vector<int> held;
    for (const auto& each : std::filesystem::directory_iterator{pages.path()}) {
      held.push_back(::open(each.path().c_str(), O_RDWR | O_CLOEXEC));
      ASSERT_EQ(::flock(held.back(), LOCK_EX), 0);
    }
    EXPECT_EQ(held.size(), 1u);
    ASSERT_EQ(::kill(process, SIGSTOP), 0);
    siginfo_t stopped{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(process), &stopped, WSTOPPED | WNOWAIT), 0);
    for (const int each : held) ::close(each);
  }

  const budget_folder pages;
};

TEST_F(budget_processes, who_is_over_its_share_trims_and_evicts_when_asked) {
  neighbour_process trainer{pages.path()};
  neighbour_process server{pages.path()};
  ASSERT_EQ(trainer.join("trainer", {512_MiB, 2_GiB, 0}), 0);
  ASSERT_EQ(server.join("server", {1536_MiB, 2_GiB, 1}), 0);
  ASSERT_EQ(trainer.tell(act::allocate, 512_MiB).code, 0);
  ASSERT_EQ(trainer.tell(act::evictable, 512_MiB).code, 0);
  ASSERT_EQ(trainer.tell(act::cache, 1_GiB).code, 0);
  ASSERT_TRUE(comes([&] { return row("trainer").held == 2_GiB; }));
  // What is cached goes first.
  ASSERT_EQ(server.tell(act::allocate, 1_GiB).code, 0);
  EXPECT_EQ(trainer.reserved(), 1_GiB);
  EXPECT_EQ(trainer.tell(act::suspended).value, 0u);
  EXPECT_EQ(row("trainer").given, 1_GiB);
  // Then what is evictable; what is live and below the floor stays.
  ASSERT_TRUE(comes([&] { return row("server").held == 1_GiB; }));
  ASSERT_EQ(server.tell(act::allocate, 512_MiB).code, 0);
  EXPECT_EQ(trainer.reserved(), 512_MiB);
  EXPECT_EQ(trainer.tell(act::suspended).value, 1u);
  EXPECT_EQ(row("trainer").given, 1536_MiB);
  ASSERT_TRUE(comes([&] { return row("server").held == 1536_MiB; }));
  EXPECT_EQ(server.tell(act::allocate, 2_MiB).code, static_cast<int>(errc::out_of_memory));
  EXPECT_EQ(server.end(), 0);
  EXPECT_EQ(row("server").process, 0) << "it left";
  EXPECT_EQ(trainer.end(), 0);
}

TEST_F(budget_processes, the_share_of_a_killed_process_is_taken_back) {
  neighbour_process server{pages.path()};
  {
    neighbour_process trainer{pages.path()};
    ASSERT_EQ(trainer.join("trainer", {1_GiB, 2_GiB, 0}), 0);
    ASSERT_EQ(trainer.tell(act::allocate, 1_GiB).code, 0);
    ASSERT_TRUE(comes([&] { return row("trainer").held == 1_GiB; }));
    EXPECT_EQ(server.join("server", {1536_MiB, 2_GiB, 0}), static_cast<int>(errc::limit_exceeded));
    trainer.kill();
    EXPECT_TRUE(comes([&] { return row("trainer").process == 0; })) << "also before it is reaped";
    EXPECT_EQ(server.join("server", {1536_MiB, 2_GiB, 0}), 0);
    EXPECT_EQ(server.tell(act::allocate, 1536_MiB).code, 0);
    EXPECT_EQ(trainer.wait(), 128 + SIGKILL);
  }
  EXPECT_EQ(clear_budgets(pages.path()).value(), 0u) << "whoever joined had done it";
  EXPECT_EQ(server.end(), 0);
}

TEST_F(budget_processes, who_waits_for_a_process_that_is_killed_waits_no_longer) {
  neighbour_process trainer{pages.path()};
  neighbour_process server{pages.path()};
  ASSERT_EQ(trainer.join("trainer", {0_B, 2_GiB, 0}), 0);
  ASSERT_EQ(trainer.tell(act::cache, 2_GiB).code, 0);
  ASSERT_TRUE(comes([&] { return row("trainer").held == 2_GiB; }));
  ASSERT_EQ(server.join("server", {1_GiB, 2_GiB, 0}), 0);
  ASSERT_NO_FATAL_FAILURE(stop(trainer.process));
  server.send({.what = act::allocate, .size = (1_GiB).count()});
  ASSERT_TRUE(comes([&] { return row("trainer").asked == 1_GiB; }));
  trainer.kill();
  EXPECT_EQ(server.receive().code, 0);
  EXPECT_EQ(server.end(), 0);
}

/// Of processes that are killed at any instruction the page stays whole.
TEST_F(budget_processes, processes_that_are_killed_anywhere_leave_a_sound_page) {
  for (int i = 0; i < 12; ++i) {
    neighbour_process one{pages.path()};
    one.send(neighbour_process::joining("one", {256_MiB, 1_GiB, 0}));
    one.send({.what = act::cache, .size = (512_MiB).count()});
    std::this_thread::sleep_for(std::chrono::microseconds{i * 700});
    one.kill();
    one.wait();
    const auto listing = read_budgets(pages.path());
    ASSERT_TRUE(listing);
    EXPECT_EQ(listing->refused.size(), 0u) << to_string(*listing);
    for (const card_budget& card : listing->cards) EXPECT_EQ(card.members.size(), 0u);
  }
  ASSERT_TRUE(clear_budgets(pages.path()));
}

TEST_F(budget_processes, many_that_join_at_once_get_a_place_each_as_long_as_floors_last) {
  std::vector<std::unique_ptr<neighbour_process>> all;
  for (int i = 0; i < 8; ++i) all.push_back(std::make_unique<neighbour_process>(pages.path()));
  for (int i = 0; i < 8; ++i)
    all[static_cast<std::size_t>(i)]->send(
        neighbour_process::joining(("p" + std::to_string(i)).c_str(), {400_MiB, 1_GiB, i}));
  int joined = 0;
  for (const auto& each : all) {
    const int code = each->receive().code;
    if (code == 0) ++joined;
    if (code != 0) {
      EXPECT_EQ(code, static_cast<int>(errc::limit_exceeded));
    }
  }
  EXPECT_EQ(joined, 5);  // 2 GiB hold five of 400 MiB
  const auto members = read_budgets(pages.path())->cards.front().members;
  ASSERT_EQ(members.size(), 5u);
  for (const budget_row& each : members) {
    EXPECT_EQ(each.share, (budget_share{400_MiB, 1_GiB, std::stoi(each.name.substr(1))}));
    EXPECT_EQ(each.process, all[static_cast<std::size_t>(each.share.priority)]->process);
  }
  for (const auto& each : all) EXPECT_EQ(each->end(), 0);
  EXPECT_EQ(read_budgets(pages.path())->cards.front().members.size(), 0u);
}

}  // namespace
}  // namespace weir::testing_support
