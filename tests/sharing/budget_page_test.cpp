// SPDX-License-Identifier: Apache-2.0
// The page of a budget: what is refused, and that nothing in it is believed unseen.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>

#include "sharing/budget_fixture.hpp"

namespace weir::testing_support { namespace {

using budget::page;
using budget::place;
using ::testing::HasSubstr;

class budget_page_test : public budget_test {
 protected:
  /// A page with one member, this process.
  [[nodiscard]] page sound() const {
    page made;
    made.header = {.magic = budget::page_magic,
                   .version = budget::page_version,
                   .places = budget::most_members,
                   .capacity = card_size.count()};
    place& one = made.places[3];
    one.process = ::getpid();
    one.number = 1000;
    one.start = detail::own_process().start;
    std::strcpy(one.name.data(), "there");
    one.floor = (256_MiB).count();
    one.ceiling = (1_GiB).count();
    one.held = (128_MiB).count();
    return made;
  }
  void put(const void* content, std::size_t size, mode_t mode = 0600) const {
    ::unlink(page_path().c_str());
    const int file = ::open(page_path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ASSERT_GE(file, 0);
    ASSERT_EQ(::write(file, content, size), static_cast<ssize_t>(size));
    ASSERT_EQ(::fchmod(file, mode), 0);
    ::close(file);
  }
  void put(const page& content) const { put(&content, sizeof(content)); }

  /// All that reads a page refuses it, with the same words, and leaves it as it is.
  void expect_refusal(errc code, const std::string& reason, const std::string& what) {
    SCOPED_TRACE(what);
    const std::string expected = page_path() + ": " + reason;
    const auto listing = read_budgets(pages.path());
    ASSERT_TRUE(listing);
    EXPECT_EQ(listing->cards.size(), 0u);
    ASSERT_EQ(listing->refused.size(), 1u);
    EXPECT_EQ(listing->refused.front().code(), code);
    EXPECT_EQ(listing->refused.front().detail(), expected);
    auto memory = make();
    const auto joined = budget_member::join(memory, options("late", 0_B, 1_GiB));
    ASSERT_EQ(code_of(joined), code);
    EXPECT_EQ(joined.error().detail(), expected);
    EXPECT_EQ(code_of(clear_budgets(pages.path())), code);
    EXPECT_EQ(code_of(change_budget(card(), ::getpid(), 1000, {}, pages.path())), code);
  }
  void expect_garbled(const std::string& reason, const std::function<void(page&)>& spoil) {
    page spoilt = sound();
    spoil(spoilt);
    put(spoilt);
    expect_refusal(errc::invalid_argument, reason, reason);
  }
};

TEST_F(budget_page_test, a_page_is_unlocked_though_a_forked_child_has_it_open) {
  put(sound());
  int status = -1;
  pid_t child = -1;
  {
    const auto held =
        budget::locked_page::open(pages.path(), card(), budget::locked_page::purpose::change);
    ASSERT_TRUE(held);
    child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  EXPECT_EQ(code_of(budget::locked_page::open(pages.path(), card(),
                                              budget::locked_page::purpose::change)),
            std::nullopt);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

TEST_F(budget_page_test, a_sound_page_is_read) {
  put(sound());
  const budget_row shown = row("there");
  EXPECT_EQ(shown.process, ::getpid());
  EXPECT_EQ(shown.number, 1000);
  EXPECT_EQ(shown.share, (budget_share{256_MiB, 1_GiB, 0}));
  EXPECT_EQ(shown.held, 128_MiB);
  auto memory = make();
  const auto member = join(memory, options("late", 0_B, 1_GiB));
  EXPECT_EQ(rows().size(), 2u);
}

TEST_F(budget_page_test, pages_that_are_none_are_refused) {
  const page good = sound();
  put(&good, 100);
  expect_refusal(errc::invalid_argument, "not a budget file", "truncated");
  put(&good, sizeof(good) - 1);
  expect_refusal(errc::invalid_argument, "not a budget file", "a byte less");
  std::vector<char> longer(sizeof(good) + 1);
  std::memcpy(longer.data(), &good, sizeof(good));
  put(longer.data(), longer.size());
  expect_refusal(errc::invalid_argument, "not a budget file", "a byte more");
  expect_garbled("not a budget file", [](page& made) { made.header.magic[7] = 'x'; });
  expect_garbled("not a budget file", [](page& made) { made.header = {}; });
  expect_garbled("damaged: the card has no memory", [](page& made) { made.header.capacity = 0; });

  page other = sound();
  other.header.version = budget::page_version + 1;
  put(other);
  expect_refusal(errc::bad_version, "written by another version of weir", "version");
  other = sound();
  other.header.places = 1 << 30;
  put(other);
  expect_refusal(errc::bad_version, "written by another version of weir", "places");
}

TEST_F(budget_page_test, members_that_cannot_be_are_refused) {
  const auto spoil = [&](const char* reason, const std::function<void(place&)>& how) {
    expect_garbled(reason, [&](page& made) { how(made.places[3]); });
  };
  spoil("damaged: a member has no process", [](place& one) { one.process = -1; });
  spoil("damaged: a member has no process", [](place& one) { one.number = 0; });
  spoil("damaged: a member has no process", [](place& one) { one.start = 0; });
  spoil("damaged: a member has no name", [](place& one) { one.name.fill('\0'); });
  spoil("damaged: a member has no name", [](place& one) { one.name.fill('x'); });
  spoil("damaged: a name is invalid", [](place& one) { one.name[1] = '\033'; });
  spoil("damaged: a name is invalid", [](place& one) { one.name[1] = '\x9b'; });
  spoil("damaged: a share is invalid", [](place& one) { one.floor = one.ceiling + 1; });
  spoil("damaged: a share is invalid", [](place& one) { one.ceiling = UINT64_MAX; });
  spoil("damaged: a share is invalid", [](place& one) { one.floor = one.ceiling = 0; });
  spoil("damaged: a priority is invalid", [](place& one) { one.priority = 1001; });
  spoil("damaged: a priority is invalid", [](place& one) { one.priority = INT64_MIN; });
  spoil("damaged: figures are inconsistent", [](place& one) { one.held = UINT64_MAX; });
  spoil("damaged: figures are inconsistent", [](place& one) { one.asked = UINT64_MAX; });
  spoil("damaged: figures are inconsistent", [](place& one) { one.answered = 1; });
  expect_garbled("damaged: a member is listed twice",
                 [](page& made) { made.places[5] = made.places[3]; });
  expect_garbled("damaged: the floors exceed the card", [](page& made) {
    for (int i = 10; i < 13; ++i) {
      made.places[static_cast<std::size_t>(i)] = made.places[3];
      made.places[static_cast<std::size_t>(i)].number = i;
      made.places[static_cast<std::size_t>(i)].floor = (1_GiB).count();
    }
  });
}

TEST_F(budget_page_test, files_that_others_could_write_are_refused) {
  const page good = sound();
  for (const mode_t mode : {0644, 0660, 0602, 0400, 0700}) {
    put(&good, sizeof(good), mode);
    if (mode == 0400 && ::geteuid() != 0) continue;  // the system says it before
    expect_refusal(errc::not_permitted, "other users can access it; expected mode 0600",
                   std::to_string(mode));
  }
  put(good);
  const std::string twin = pages.path() + "/twin";
  ASSERT_EQ(::link(page_path().c_str(), twin.c_str()), 0);
  expect_refusal(errc::not_permitted, "other users can access it; expected mode 0600",
                 "a second name");
  ASSERT_EQ(::unlink(twin.c_str()), 0);

  ASSERT_EQ(::rename(page_path().c_str(), twin.c_str()), 0);
  ASSERT_EQ(::symlink(twin.c_str(), page_path().c_str()), 0);
  expect_refusal(errc::not_permitted, "expected a regular file", "a link");
  ASSERT_EQ(::unlink(page_path().c_str()), 0);
  ASSERT_EQ(::mkfifo(page_path().c_str(), 0600), 0);
  expect_refusal(errc::not_permitted, "expected a regular file", "a pipe");
  ASSERT_EQ(::unlink(page_path().c_str()), 0);
  ASSERT_EQ(::mkdir(page_path().c_str(), 0700), 0);
  expect_refusal(errc::not_permitted, "expected a regular file", "a folder");
}

TEST_F(budget_page_test, files_of_other_users_are_refused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  put(sound());
  ASSERT_EQ(::chown(page_path().c_str(), 1234, 1234), 0);
  expect_refusal(errc::not_permitted, "other users can access it; expected mode 0600", "owner");
  ASSERT_EQ(::chown(pages.path().c_str(), 1234, 1234), 0);
  EXPECT_EQ(code_of(read_budgets(pages.path())), errc::not_permitted);
}

TEST_F(budget_page_test, folders_that_others_could_use_are_refused) {
  auto memory = make();
  const auto refusal = [&] {
    const auto listing = read_budgets(pages.path());
    const auto joined = budget_member::join(memory, options("x", 0_B, 1_GiB));
    EXPECT_EQ(code_of(listing), errc::not_permitted);
    EXPECT_EQ(code_of(joined), errc::not_permitted);
    EXPECT_EQ(code_of(clear_budgets(pages.path())), errc::not_permitted);
    return listing ? "" : listing.error().detail();
  };
  ASSERT_EQ(::chmod(pages.path().c_str(), 0750), 0);
  EXPECT_EQ(
      refusal(),
      pages.path() + ": other users can write it; expected a folder of this user with mode 0700");
  ASSERT_EQ(::chmod(pages.path().c_str(), 0701), 0);
  EXPECT_EQ(
      refusal(),
      pages.path() + ": other users can write it; expected a folder of this user with mode 0700");
  ASSERT_EQ(::rmdir(pages.path().c_str()), 0);
  ASSERT_EQ(::symlink("/tmp", pages.path().c_str()), 0);
  EXPECT_EQ(refusal(), pages.path() + ": expected a folder");
  ASSERT_EQ(::unlink(pages.path().c_str()), 0);
  // One that is missing is made.
  EXPECT_EQ(read_budgets(pages.path())->cards.size(), 0u);
  const auto member = join(memory, options("x", 0_B, 1_GiB));
  struct stat status {};
  ASSERT_EQ(::stat(pages.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 0700u);
  ASSERT_EQ(::stat(page_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777u, 0600u);
  EXPECT_EQ(status.st_size, static_cast<off_t>(sizeof(page)));
}

TEST_F(budget_page_test, a_page_whose_maker_was_killed_is_finished_by_the_next) {
  auto memory = make();
  put(nullptr, 0);
  EXPECT_EQ(rows().size(), 0u);
  { const auto member = join(memory, options("x", 0_B, 1_GiB)); }
  put(page{});
  EXPECT_EQ(rows().size(), 0u);
  const auto member = join(memory, options("y", 0_B, 1_GiB));
  EXPECT_EQ(rows().size(), 1u);
}

TEST_F(budget_page_test, other_files_in_the_folder_are_nothing) {
  for (const char* const name :
       {"/notes", "/GPU-x.1", "/GPU-77656972-2d73-696d-0000-000000000000.1"})
    std::ofstream{pages.path() + name} << "text";
  const auto listing = read_budgets(pages.path()).value();
  EXPECT_EQ(listing.cards.size() + listing.refused.size(), 0u);
}

TEST_F(budget_page_test, cards_have_names_of_lower_case_hexadecimal_digits) {
  put(sound());
  const std::string right = "GPU-00112233-4455-6677-8899-aabbccddeeff";
  const auto code = [&](const std::string& name) {
    return code_of(change_budget(name, ::getpid(), 1000, {}, pages.path()));
  };
  EXPECT_EQ(code(right), errc::not_found) << "it could be a card's";
  for (const char bad : {'A', 'F', 'g', '/', ':', '`', '.', 'x'}) {
    std::string name = right;
    name.back() = bad;
    EXPECT_EQ(code(name), errc::invalid_argument) << name;
  }
}

TEST_F(budget_page_test, dead_members_are_not_shown_and_are_cleared) {
  page with_dead = sound();
  place dead = with_dead.places[3];
  dead.start += 1;  // another process has the number now
  dead.floor = (1_GiB).count();
  with_dead.places[0] = dead;
  dead.process = 1 << 30;  // nobody has it
  dead.number = 2;
  dead.floor = 0;
  with_dead.places[1] = dead;
  put(with_dead);
  EXPECT_EQ(rows().size(), 1u);
  EXPECT_EQ(clear_budgets(pages.path()).value(), 2u);
  EXPECT_EQ(clear_budgets(pages.path()).value(), 0u);
  page after;
  std::ifstream{page_path()}.read(reinterpret_cast<char*>(&after), sizeof(after));
  EXPECT_TRUE(after.places[0].is_free());
  EXPECT_TRUE(after.places[1].is_free());
  EXPECT_EQ(after.places[3].number, 1000);

  put(with_dead);  // whoever joins takes them back as well
  auto memory = make();
  const auto member = join(memory, options("late", 1792_MiB, 2_GiB));
  EXPECT_EQ(rows().size(), 2u);
}

TEST_F(budget_page_test, a_page_of_a_card_of_another_size_is_begun_anew_if_nobody_uses_it) {
  page other = sound();
  other.header.capacity = (4_GiB).count();
  put(other);
  auto memory = make();
  const auto refused = budget_member::join(memory, options("x", 0_B, 1_GiB));
  ASSERT_EQ(code_of(refused), errc::invalid_argument);
  EXPECT_EQ(refused.error().detail(),
            page_path() + ": its members use a card of 4 GiB, not of 2 GiB");
  other.places[3].start += 1;
  put(other);
  const auto member = join(memory, options("x", 0_B, 1_GiB));
  EXPECT_EQ(read_budgets(pages.path())->cards.front().capacity, card_size);
}

TEST_F(budget_page_test, a_lock_that_is_never_let_go_is_not_waited_for_for_ever) {
  put(sound());
  const int file = ::open(page_path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(file, LOCK_EX), 0);
  const auto listing = read_budgets(pages.path()).value();
  ASSERT_EQ(listing.refused.size(), 1u);
  EXPECT_EQ(listing.refused.front().code(), errc::not_ready);
  EXPECT_EQ(listing.refused.front().detail(), page_path() + ": is locked by another process");
  ::close(file);
  EXPECT_EQ(rows().size(), 1u);
}

}  // namespace
}  // namespace weir::testing_support
