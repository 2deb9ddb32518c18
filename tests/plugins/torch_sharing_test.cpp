// SPDX-License-Identifier: Apache-2.0
// The torch plug-in between processes: handle strings, descriptors, mapped memory.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/small_machine.hpp"
#include "torch/imported_block.hpp"
#include "torch/ipc_handle.hpp"
#include "torch/ipc_server.hpp"
#include "torch/process_descriptors.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/stream.hpp"
#include "weir/sim/machine.hpp"

namespace weir_torch { namespace {

using namespace weir::literals;

memory_offer example_offer(std::vector<std::uint64_t> sizes) {
  memory_offer offer;
  for (std::size_t i = 0; i < offer.token.size(); ++i)
    offer.token[i] = static_cast<std::uint8_t>(17 * i);
  offer.socket = "/tmp/somewhere";
  offer.sizes = std::move(sizes);
  return offer;
}

ipc_handle several_sizes() {
  ipc_handle handle;
  handle.offer = example_offer({2 << 20, 20 << 20});
  return handle;
}

ipc_handle one_size() {
  ipc_handle handle;
  handle.descriptors = {.process = 1234, .size = 2 << 20, .numbers = {7, 300}};
  handle.offer = example_offer({2 << 20, 2 << 20});
  handle.offer->opens_without_weir = true;
  return handle;
}

/// The layout of torch's own format: version, type, pid, padding, size, count, numbers.
std::string torch_segments(std::uint64_t count, const std::string& numbers, char version = 2) {
  std::string text{version, 'e'};
  text += std::string{"\xd2\x04\0\0\0\0\0\0", 8};  // 1234
  text += std::string{"\0\0\x20\0\0\0\0\0", 8};    // 2 MiB
  text += static_cast<char>(count) + std::string(7, '\0');
  return text + numbers;
}

TEST(ipc_handle, parses_its_own_serialization) {
  ipc_handle plain;
  plain.plain.emplace().fill('p');
  for (const ipc_handle& each : {several_sizes(), one_size(), plain}) {
    const auto parsed = ipc_handle::parse(each.serialize(torch_format::without_kind));
    ASSERT_TRUE(parsed) << parsed.error().message();
    EXPECT_EQ(*parsed, each);
    EXPECT_NE(each.serialize(torch_format::without_kind).size(), 64U)
        << "torch takes that for plain memory";
  }
}

TEST(ipc_handle, begins_with_torchs_own_format_where_the_handles_have_one_size) {
  const std::string text = one_size().serialize(torch_format::without_kind);
  EXPECT_TRUE(text.starts_with(torch_segments(2, {"\7\0\0\0\x2c\1\0\0", 8})));
}

TEST(ipc_handle, is_refused_by_torch_where_they_have_several) {
  const std::string text = several_sizes().serialize(torch_format::without_kind);
  EXPECT_EQ(text[0], 0x7f) << "a version that torch does not know";
}

TEST(ipc_handle, parses_torchs_own_handles) {
  const std::string plain(64, '\3');
  for (const std::string& text : {plain, "\1c" + plain, "\2c" + plain}) {
    const auto parsed = ipc_handle::parse(text);
    ASSERT_TRUE(parsed) << parsed.error().message();
    ASSERT_TRUE(parsed->plain);
    EXPECT_EQ(std::string(parsed->plain->data(), 64), plain);
    EXPECT_FALSE(parsed->offer || parsed->descriptors);
  }
  const auto parsed = ipc_handle::parse(torch_segments(2, {"\7\0\0\0\x2c\1\0\0", 8}));
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(parsed->descriptors, one_size().descriptors);
  EXPECT_FALSE(parsed->offer || parsed->plain);
}

TEST(ipc_handle, refuses_text_that_is_cut_or_too_long) {
  for (const ipc_handle& each : {several_sizes(), one_size()}) {
    const std::string whole = each.serialize(torch_format::without_kind);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      const auto parsed = ipc_handle::parse(std::string_view{whole}.substr(0, length));
      const bool plain = length == 64;
      const bool torchs = each.descriptors && length == 2 + 24 + 2 * 4;
      EXPECT_EQ(static_cast<bool>(parsed), plain || torchs) << length;
    }
    EXPECT_FALSE(ipc_handle::parse(whole + "x"));
  }
  EXPECT_FALSE(ipc_handle::parse("\2c" + std::string(63, 'x')));
  EXPECT_FALSE(ipc_handle::parse("\2c" + std::string(65, 'x')));
  EXPECT_FALSE(ipc_handle::parse("\2x" + std::string(64, 'x')));
}

TEST(ipc_handle, refuses_other_versions) {
  std::string later = several_sizes().serialize(torch_format::without_kind);
  later[2 + 24 + 4] = 3;
  EXPECT_EQ(ipc_handle::parse(later).code(), weir::errc::bad_version);
  EXPECT_EQ(ipc_handle::parse(torch_segments(1, {"\7\0\0\0", 4}, 4)).code(),
            weir::errc::bad_version);
  EXPECT_EQ(ipc_handle::parse("\4c" + std::string(64, 'x')).code(), weir::errc::bad_version);
}

// --- Of torch 2.13 and later: behind the count comes what kind of handles follow -----------------

/// Kind and padding, little endian.
std::string kind(char number) { return std::string{number} + std::string(7, '\0'); }

TEST(ipc_handle, of_a_later_torch_are_read) {
  const std::string numbers{"\7\0\0\0\x2c\1\0\0", 8};
  for (const char each : {'\0', '\1'}) {
    const auto parsed = ipc_handle::parse(torch_segments(2, kind(each) + numbers, 3));
    ASSERT_TRUE(parsed) << parsed.error().message();
    EXPECT_EQ(parsed->descriptors, one_size().descriptors);
  }
  const std::string plain(64, '\3');
  const auto parsed = ipc_handle::parse("\3c" + plain);
  ASSERT_TRUE(parsed) << parsed.error().message();
  EXPECT_EQ(std::string(parsed->plain->data(), 64), plain);
}

TEST(ipc_handle, of_a_later_torch_are_written) {
  const std::string text = one_size().serialize(torch_format::with_kind);
  const std::string numbers{"\7\0\0\0\x2c\1\0\0", 8};
  EXPECT_TRUE(text.starts_with(torch_segments(2, kind('\1') + numbers, 3)));
  ipc_handle plain;
  plain.plain.emplace().fill('p');
  EXPECT_EQ(plain.serialize(torch_format::with_kind), "\3c" + std::string(64, 'p'));
  for (const ipc_handle& each : {several_sizes(), one_size(), plain}) {
    const auto parsed = ipc_handle::parse(each.serialize(torch_format::with_kind));
    ASSERT_TRUE(parsed) << parsed.error().message();
    EXPECT_EQ(*parsed, each);
  }
}

TEST(ipc_handle, of_a_later_torch_are_refused_where_they_are_cut_or_of_another_kind) {
  const std::string whole = one_size().serialize(torch_format::with_kind);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto parsed = ipc_handle::parse(std::string_view{whole}.substr(0, length));
    EXPECT_EQ(static_cast<bool>(parsed), length == 64 || length == 2 + 32 + 2 * 4) << length;
  }
  EXPECT_EQ(ipc_handle::parse(torch_segments(2, kind('\2') + std::string(128, 'f'), 3)).code(),
            weir::errc::not_supported);
  EXPECT_EQ(ipc_handle::parse(torch_segments(1, kind('\3') + "\7\0\0\0", 3)).code(),
            weir::errc::bad_version);
}

TEST(ipc_handle, refuses_memory_of_the_fabric) {
  EXPECT_EQ(ipc_handle::parse(torch_segments(2, std::string(128, 'f'))).code(),
            weir::errc::not_supported);
}

TEST(ipc_handle, refuses_empty_handles_and_too_many) {
  ipc_handle odd = several_sizes();
  odd.offer->sizes = {0};
  EXPECT_FALSE(ipc_handle::parse(odd.serialize(torch_format::without_kind)));
  odd.offer->sizes.assign(ipc_handle::max_handles + 1, 1);
  EXPECT_FALSE(ipc_handle::parse(odd.serialize(torch_format::without_kind)));
  odd.offer->sizes.clear();
  EXPECT_FALSE(ipc_handle::parse(odd.serialize(torch_format::without_kind)));
  EXPECT_FALSE(ipc_handle::parse(torch_segments(0, "")));
  odd = one_size();
  odd.descriptors->process = -1;
  EXPECT_FALSE(ipc_handle::parse(odd.serialize(torch_format::without_kind)));
  odd = one_size();
  odd.descriptors->size = 0;
  EXPECT_FALSE(ipc_handle::parse(odd.serialize(torch_format::without_kind)));
}

/// One for all tests: a server is never closed.
ipc_server& server() {
  static ipc_server& instance = *ipc_server::open(torch_format::without_kind).value();
  return instance;
}

/// Physical handles of these names and sizes, which a file stands for.
std::vector<weir::vmm::physical> handles(std::vector<std::pair<std::uint64_t, weir::bytes>> of) {
  std::vector<weir::vmm::physical> all;
  for (const auto& [name, size] : of) all.push_back({name, size});
  return all;
}

std::atomic<int> exports{0};  // the server's thread does, too
weir::result<weir::descriptor> export_file(const weir::vmm::physical& /*memory*/) {
  ++exports;
  return weir::descriptor{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
}

memory_offer offer_in(const std::string& handle) {
  return *ipc_handle::parse(handle).value().offer;
}

/// All descriptors of an offer at once.
weir::result<std::vector<weir::descriptor>> fetch_all(const memory_offer& offer) {
  std::vector<weir::descriptor> all;
  WEIR_TRY(
      fetch_descriptors(offer, [&](std::span<const weir::descriptor> some) -> weir::result<void> {
        for (const weir::descriptor& each : some)
          all.emplace_back(::fcntl(each.get(), F_DUPFD_CLOEXEC, 0));
        return {};
      }));
  return all;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator{"/proc/self/fd"})
    ++count;
  return count - 1;  // less the folder's own
}

ino_t inode(int number) {
  struct stat status {};
  return ::fstat(number, &status) == 0 ? status.st_ino : 0;
}

TEST(ipc_server, serves_an_offer_until_it_is_withdrawn) {
  const auto handle = server().offer(1, handles({{11, 2_MiB}, {12, 4_MiB}}), export_file).value();
  EXPECT_EQ(offer_in(handle).sizes, (std::vector<std::uint64_t>{2 << 20, 4 << 20}));
  const auto fetched = fetch_all(offer_in(handle));
  ASSERT_TRUE(fetched) << fetched.error().message();
  ASSERT_EQ(fetched->size(), 2U);
  struct stat null {};
  ASSERT_EQ(::stat("/dev/null", &null), 0);
  EXPECT_EQ(inode(fetched->at(0).get()), null.st_ino);
  EXPECT_TRUE(server().withdraw(1));
  EXPECT_FALSE(server().withdraw(1));
  EXPECT_EQ(fetch_all(offer_in(handle)).code(), weir::errc::not_permitted);
}

TEST(ipc_server, names_descriptors_where_the_handles_have_one_size) {
  const auto uniform =
      ipc_handle::parse(server().offer(1, handles({{11, 2_MiB}, {12, 2_MiB}}), export_file).value())
          .value();
  ASSERT_TRUE(uniform.descriptors);
  EXPECT_EQ(uniform.descriptors->process, ::getpid());
  EXPECT_EQ(uniform.descriptors->size, (2_MiB).count());
  ASSERT_EQ(uniform.descriptors->numbers.size(), 2U);
  EXPECT_NE(inode(uniform.descriptors->numbers[0]), 0U);
  EXPECT_EQ(uniform.offer->opens_without_weir, can_be_copied_from());
  const auto mixed =
      ipc_handle::parse(server().offer(2, handles({{13, 2_MiB}, {14, 4_MiB}}), export_file).value())
          .value();
  EXPECT_FALSE(mixed.descriptors);
  EXPECT_FALSE(mixed.offer->opens_without_weir);
  server().withdraw(1);
  server().withdraw(2);
}

TEST(ipc_server, offers_the_same_memory_once) {
  exports = 0;
  const auto first = server().offer(1, handles({{11, 2_MiB}}), export_file).value();
  EXPECT_EQ(server().offer(1, handles({{11, 2_MiB}}), export_file).value(), first);
  EXPECT_EQ(server().offer(2, handles({{11, 2_MiB}}), export_file).value(), first);
  EXPECT_EQ(server().find(1), first);
  EXPECT_EQ(server().find(2), first);
  EXPECT_EQ(exports, 1);
  const auto longer = server().offer(3, handles({{11, 2_MiB}, {12, 2_MiB}}), export_file).value();
  EXPECT_NE(longer, first);
  EXPECT_EQ(exports, 2) << "a handle has one descriptor";
  EXPECT_TRUE(server().withdraw(1));
  EXPECT_TRUE(fetch_all(offer_in(first))) << "the other block is there still";
  EXPECT_TRUE(server().withdraw(2));
  EXPECT_FALSE(fetch_all(offer_in(first)));
  EXPECT_EQ(server().find(2), std::nullopt);
  EXPECT_TRUE(server().withdraw(3));
  // The driver may call other memory the same now.
  const auto later = server().offer(1, handles({{11, 2_MiB}}), export_file).value();
  EXPECT_EQ(exports, 3);
  EXPECT_NE(later, first);
  server().withdraw(1);
}

TEST(ipc_server, sends_more_than_one_message_can_hold) {
  std::vector<std::pair<std::uint64_t, weir::bytes>> many;
  for (std::uint64_t i = 0; i < 300; ++i) many.emplace_back(100 + i, 2_MiB);
  const auto handle = server().offer(3, handles(many), export_file).value();
  const auto fetched = fetch_all(offer_in(handle));
  ASSERT_TRUE(fetched) << fetched.error().message();
  EXPECT_EQ(fetched->size(), 300U);
  server().withdraw(3);
}

TEST(ipc_server, keeps_nothing_of_an_offer_that_fails) {
  int left = 1;
  const auto fails = [&](const weir::vmm::physical& memory) -> weir::result<weir::descriptor> {
    if (left-- == 0) return weir::errc::not_supported;
    return export_file(memory);
  };
  const auto two = handles({{21, 2_MiB}, {22, 2_MiB}});
  EXPECT_EQ(server().offer(4, two, fails).code(), weir::errc::not_supported);
  EXPECT_EQ(server().find(4), std::nullopt);
  EXPECT_EQ(server().offer(4, {}, fails).code(), weir::errc::invalid_argument);
  exports = 0;
  EXPECT_TRUE(server().offer(4, two, export_file));
  EXPECT_EQ(exports, 2);
  server().withdraw(4);
}

TEST(ipc_server, serves_nobody_who_does_not_know_a_token) {
  auto offer = offer_in(server().offer(4, handles({{11, 2_MiB}}), export_file).value());
  offer.token[0] ^= 1;
  EXPECT_FALSE(fetch_all(offer));
  server().withdraw(4);
}

TEST(ipc_server, does_not_let_silent_clients_keep_others_waiting) {
  const auto offer = offer_in(server().offer(77, handles({{77, 2_MiB}}), export_file).value());
  std::vector<weir::share_channel> silent;
  for (int i = 0; i < 100; ++i)
    silent.push_back(weir::share_channel::connect(offer.socket, std::chrono::seconds{1}).value());
  // Served one after the other, each would be waited for for 5 s.
  const auto fetched = fetch_all(offer);
  ASSERT_TRUE(fetched) << fetched.error().message();
  EXPECT_EQ(1U, fetched->size());
  EXPECT_TRUE(server().withdraw(77));
}

TEST(ipc_server, that_has_ended_is_an_error) {
  EXPECT_EQ(fetch_all(example_offer({1})).code(), weir::errc::not_found);
}

/// Handles of two sizes, which a handle string does not name.
std::vector<weir::vmm::physical> mixed_handles(std::uint64_t first, std::size_t count) {
  std::vector<weir::vmm::physical> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back({first + i, i % 2 == 0 ? 2_MiB : 4_MiB});
  return all;
}

TEST(ipc_server, opens_descriptors_only_while_a_client_fetches) {
  const auto handle = server().offer(8, mixed_handles(5000, 700), export_file).value();
  const std::size_t before = open_descriptors();
  std::size_t most = 0;
  std::size_t fetched = 0;
  const auto outcome = fetch_descriptors(
      offer_in(handle), [&](std::span<const weir::descriptor> some) -> weir::result<void> {
        fetched += some.size();
        most = std::max(most, open_descriptors());
        return {};
      });
  EXPECT_TRUE(outcome) << outcome.error().message();
  EXPECT_EQ(fetched, 700U);
  // The server's batch, this one, a connection, and the folder that is being read.
  EXPECT_LE(most, before + 2 * 128 + 16);
  EXPECT_TRUE(server().withdraw(8));
}

TEST(ipc_server, shares_more_handles_than_a_process_may_have_descriptors) {
  constexpr std::size_t count = 3000;
  const auto handle = server().offer(8, mixed_handles(5000, count), export_file).value();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{.rlim_cur = open_descriptors() + 600, .rlim_max = limit.rlim_max};
  std::size_t fetched = 0;
  // fetch_descriptors() raises the limit itself: it is lowered once it has begun.
  const auto outcome = fetch_descriptors(
      offer_in(handle), [&](std::span<const weir::descriptor> some) -> weir::result<void> {
        EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
        fetched += some.size();
        return {};
      });
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(outcome) << outcome.error().message();
  EXPECT_EQ(fetched, count);
  EXPECT_TRUE(server().withdraw(8));
}

TEST(ipc_server, raises_the_limit_of_descriptors_to_the_hard_one) {
  const auto handle = server().offer(8, mixed_handles(5000, 2), export_file).value();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max) << "the server did";
  const rlimit lower{.rlim_cur = 512, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  EXPECT_EQ(fetch_all(offer_in(handle)).value().size(), 2U);
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max) << "who opens memory does, too";
  EXPECT_TRUE(server().withdraw(8));
}

TEST(ipc_server, names_descriptors_for_a_quarter_of_those_that_it_may_have) {
  static_cast<void>(server());
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit lower{.rlim_cur = 512, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  std::vector<weir::vmm::physical> many;
  for (std::uint64_t i = 0; i < 129; ++i) many.push_back({7000 + i, 2_MiB});
  const auto beyond = ipc_handle::parse(server().offer(8, many, export_file).value()).value();
  many.pop_back();
  const auto within = ipc_handle::parse(server().offer(9, many, export_file).value()).value();
  EXPECT_FALSE(beyond.descriptors);
  EXPECT_FALSE(beyond.offer->opens_without_weir);
  ASSERT_TRUE(within.descriptors);
  EXPECT_EQ(within.descriptors->numbers.size(), 128U);
  EXPECT_EQ(fetch_all(*beyond.offer).value().size(), 129U);
  EXPECT_EQ(fetch_all(*within.offer).value().size(), 128U);
  EXPECT_TRUE(server().withdraw(8));
  EXPECT_TRUE(server().withdraw(9));
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(ipc_server, says_where_descriptors_are_short) {
  static_cast<void>(server());
  const auto as_drivers_do = [](const weir::vmm::physical&) -> weir::result<weir::descriptor> {
    return weir::errc::out_of_memory;
  };
  const auto one = mixed_handles(5000, 1);
  EXPECT_EQ(server().offer(8, one, as_drivers_do).code(), weir::errc::out_of_memory)
      << "there are descriptors left";
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{.rlim_cur = 96, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<weir::descriptor> all;
  for (int next = 0; next >= 0;) {
    next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (next >= 0) all.emplace_back(next);
  }
  const auto refused = server().offer(8, one, as_drivers_do);
  all.clear();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(refused.code(), weir::errc::system);
  EXPECT_THAT(refused.error().detail(),
              testing::AllOf(testing::HasSubstr("descriptors"), testing::HasSubstr("96")));
}

TEST(ipc_server, does_not_export_what_was_withdrawn_meanwhile) {
  // The driver may call other memory the same by then.
  const auto handle = server().offer(8, mixed_handles(5000, 300), export_file).value();
  std::size_t fetched = 0;
  int after = 0;
  const auto outcome = fetch_descriptors(
      offer_in(handle), [&](std::span<const weir::descriptor> some) -> weir::result<void> {
        if (fetched == 0) {
          EXPECT_TRUE(server().withdraw(8));
          after = exports;
        }
        fetched += some.size();
        return {};
      });
  EXPECT_EQ(exports, after);
  if (!outcome) {
    EXPECT_EQ(outcome.code(), weir::errc::not_permitted);
  }
}

TEST(ipc_server, tells_clients_that_it_cannot_export) {
  int left = 1;  // for the offer
  const auto fails = [&](const weir::vmm::physical& memory) -> weir::result<weir::descriptor> {
    if (left-- <= 0) return weir::errc::out_of_memory;
    return export_file(memory);
  };
  const auto handle = server().offer(8, mixed_handles(5000, 2), fails).value();
  const auto fetched = fetch_all(offer_in(handle));
  EXPECT_EQ(fetched.code(), weir::errc::system);
  EXPECT_THAT(fetched.error().detail(), testing::HasSubstr("descriptors"));
  EXPECT_TRUE(server().withdraw(8));
}

TEST(process_descriptors, are_copied_from_a_process_that_may_be_traced) {
  const weir::descriptor file{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  const std::vector<std::int32_t> numbers{file.get(), file.get()};
  const auto copies = copy_descriptors(::getpid(), numbers);
  if (!copies && copies.code() != weir::errc::not_found) GTEST_SKIP() << copies.error().message();
  ASSERT_TRUE(copies) << copies.error().message();
  ASSERT_EQ(copies->size(), 2U);
  EXPECT_NE(copies->at(0).get(), file.get());
  EXPECT_EQ(inode(copies->at(0).get()), inode(file.get()));
  EXPECT_EQ(copy_descriptors(::getpid(), std::vector<std::int32_t>{1 << 20}).code(),
            weir::errc::not_found);
}

TEST(process_descriptors, of_a_process_that_ended_are_an_error) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(copy_descriptors(child, std::vector<std::int32_t>{0}));
}

/// A block of an allocator, the memory under it offered, and what is opened of it.
class imported_block_test : public testing::Test {
 protected:
  explicit imported_block_test(weir::placement_policy policy = weir::placement_policy::balanced)
      : memory{
            weir::caching_allocator::create(gpu, {.policy = policy, .exportable = true}).value()} {}
  void TearDown() override { server().withdraw(5); }
  /// The handle string of a block, and where it begins in that memory.
  [[nodiscard]] std::string share(void* block) {
    const auto under = memory.handles_under(block).value();
    offset = under.offset.count();
    return server()
        .offer(5, under.handles,
               [gpu = gpu](const weir::vmm::physical& each) {
                 const weir::context_scope bound{gpu};
                 return weir::vmm::export_descriptor(bound, each);
               })
        .value();
  }
  [[nodiscard]] weir::device_address opened(const imported_block& block) const {
    return reinterpret_cast<weir::device_address>(block.base()) + offset;
  }
  /// What is written at an address is read at the other.
  void expect_same(weir::device_address a, weir::device_address b) const {
    const weir::context_scope bound{gpu};
    const std::uint32_t written = 0x5eed'1234;
    std::uint32_t read = 0;
    ASSERT_EQ(gpu.driver().memcpy_htod(a, &written, sizeof written), weir::driver::CUDA_SUCCESS);
    ASSERT_EQ(gpu.driver().memcpy_dtoh(&read, b, sizeof read), weir::driver::CUDA_SUCCESS);
    EXPECT_EQ(read, written);
    const std::uint32_t none = 0;
    ASSERT_EQ(gpu.driver().memcpy_htod(a, &none, sizeof none), weir::driver::CUDA_SUCCESS);
  }
  [[nodiscard]] static weir::device_address at(void* block) {
    return reinterpret_cast<weir::device_address>(block);
  }

  std::shared_ptr<weir::runtime> machine = weir::testing_support::open_small_machine();
  weir::device gpu = machine->device(weir::device_id{0}).value();
  weir::caching_allocator memory;
  weir::stream stream = weir::stream::create(gpu).value();
  std::uint64_t offset = 0;
};

TEST_F(imported_block_test, shows_memory_that_weir_shares) {
  void* const small = memory.allocate(1_MiB, stream);
  void* const block = memory.allocate(5_MiB, stream);
  const std::string handle = share(block);
  auto imported = imported_block::open(gpu, handle);
  ASSERT_TRUE(imported) << imported.error().message();
  expect_same(at(block), opened(**imported));
  expect_same(at(block) + (5_MiB).count() - 4, opened(**imported) + (5_MiB).count() - 4);
  imported->reset();
  server().withdraw(5);
  EXPECT_EQ(imported_block::open(gpu, handle).code(), weir::errc::not_permitted);
  memory.deallocate(block, stream);
  memory.deallocate(small, stream);
}

// As torch's own allocator opens it: it reads the descriptors, and knows nothing of what follows.
TEST_F(imported_block_test, shows_memory_by_the_numbers_of_its_descriptors) {
  void* const block = memory.allocate(5_MiB, stream);
  ipc_handle handle = ipc_handle::parse(share(block)).value();
  ASSERT_TRUE(handle.descriptors) << "a small machine has handles of one size";
  handle.offer.reset();
  auto imported = imported_block::open(gpu, handle.serialize(torch_format::without_kind));
  if (!imported && imported.code() != weir::errc::not_found)
    GTEST_SKIP() << imported.error().message();
  ASSERT_TRUE(imported) << imported.error().message();
  expect_same(at(block), opened(**imported));
  expect_same(at(block) + (5_MiB).count() - 4, opened(**imported) + (5_MiB).count() - 4);
  imported->reset();
  memory.deallocate(block, stream);
}

class imported_block_of_several_sizes : public imported_block_test {
 protected:
  imported_block_of_several_sizes() : imported_block_test{weir::placement_policy::throughput} {}
};

TEST_F(imported_block_of_several_sizes, shows_all_of_it) {
  void* const block = memory.allocate(90_MiB, stream);
  const ipc_handle handle = ipc_handle::parse(share(block)).value();
  ASSERT_FALSE(handle.descriptors) << "a large block has handles of several sizes";
  auto imported = imported_block::open(gpu, handle.serialize(torch_format::without_kind));
  ASSERT_TRUE(imported) << imported.error().message();
  std::uint64_t end = 0;
  for (const std::uint64_t size : handle.offer->sizes) {
    if (end + size > offset + (90_MiB).count()) break;
    expect_same(at(block) + end - offset, opened(**imported) + end - offset);
    end += size;
    expect_same(at(block) + end - offset - 4, opened(**imported) + end - offset - 4);
  }
  imported->reset();
  memory.deallocate(block, stream);
}

constexpr std::uint32_t content_of_other_process = 0x5eed'1234;

/// Shares plain memory, as torch's own allocator does, until the other end is closed.
[[noreturn]] void share_plain_memory(int out, int in) {
  const auto machine = weir::testing_support::open_small_machine();
  const auto gpu = machine->device(weir::device_id{0}).value();
  const weir::context_scope bound{gpu};
  const auto plain = weir::allocate_plain(bound, 4_MiB).value();
  weir::driver::CUipcMemHandle native{};
  bool done =
      gpu.driver().memcpy_htod(plain + 512, &content_of_other_process,
                               sizeof content_of_other_process) == weir::driver::CUDA_SUCCESS &&
      gpu.driver().ipc_get_mem_handle(&native, plain) == weir::driver::CUDA_SUCCESS;
  done = done && ::write(out, &native, sizeof native) == static_cast<ssize_t>(sizeof native);
  char none = 0;
  static_cast<void>(!::read(in, &none, 1));
  ::_exit(done ? 0 : 1);
}

TEST_F(imported_block_test, shows_plain_memory_of_another_process) {
  std::array<int, 2> from_child{};
  std::array<int, 2> to_child{};
  ASSERT_EQ(::pipe(from_child.data()), 0);
  ASSERT_EQ(::pipe(to_child.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(to_child[1]);
    share_plain_memory(from_child[1], to_child[0]);
  }
  ::close(from_child[1]);
  ::close(to_child[0]);
  ipc_handle handle;
  EXPECT_EQ(::read(from_child[0], handle.plain.emplace().data(), sizeof(plain_handle)),
            static_cast<ssize_t>(sizeof(plain_handle)));
  auto imported = imported_block::open(gpu, handle.serialize(torch_format::without_kind));
  EXPECT_TRUE(imported) << imported.error().message();
  if (imported) {
    const weir::context_scope bound{gpu};
    std::uint32_t read = 0;
    EXPECT_EQ(gpu.driver().memcpy_dtoh(&read, opened(**imported) + 512, sizeof read),
              weir::driver::CUDA_SUCCESS);
    EXPECT_EQ(read, content_of_other_process);
    EXPECT_TRUE((*imported)->enable_peer(gpu)) << "plain memory needs nothing";
    const weir::device_address address = opened(**imported);
    imported->reset();
    EXPECT_NE(gpu.driver().memcpy_dtoh(&read, address, sizeof read), weir::driver::CUDA_SUCCESS);
  }
  ::close(to_child[1]);
  ::close(from_child[0]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(imported_block_test, is_an_error_where_the_string_means_nothing) {
  EXPECT_EQ(imported_block::open(gpu, "\2nonsense").code(), weir::errc::invalid_argument);
  EXPECT_FALSE(imported_block::open(gpu, std::string(64, 'x')));
}

/// A machine on which queued work is done when somebody waits for it, and a block on it that
/// plays another process's.
class unmap_queue_test : public testing::Test {
 protected:
  static std::shared_ptr<weir::sim::machine> make_machine() {
    weir::sim::machine_options settings;
    settings.devices.assign(1,
                            weir::sim::device_spec{.capacity = 1_GiB, .context_overhead = 64_MiB});
    settings.mode = weir::sim::progress::manual;
    return weir::sim::machine::create(settings).value();
  }
  void TearDown() override {
    for (const auto& hazard : machine->hazards()) ADD_FAILURE() << hazard.message();
  }
  [[nodiscard]] std::unique_ptr<imported_block> import_block() const {
    const auto memory = weir::physical_handle::create(gpu, 2_MiB, {.posix_descriptor = true});
    std::vector<weir::descriptor> exported;
    exported.push_back(memory.value().export_descriptor().value());
    return imported_block::open(gpu, std::vector{(2_MiB).count()}, exported).value();
  }
  void read_later(const imported_block& block) {
    const weir::context_scope bound{gpu};
    ASSERT_TRUE(machine->launch(
        stream.handle(), "kernel read",
        {weir::sim::reads(reinterpret_cast<weir::device_address>(block.base()), 4096)}));
  }
  [[nodiscard]] std::uint64_t unmapped() const {
    return machine->calls(weir::driver::call::mem_unmap);
  }

  std::shared_ptr<weir::sim::machine> machine = make_machine();
  std::shared_ptr<weir::runtime> runtime = weir::runtime::open_simulated(machine).value();
  weir::device gpu = runtime->device(weir::device_id{0}).value();
  weir::stream stream = weir::stream::create(gpu).value();
  unmap_queue unmaps{gpu};
};

TEST_F(unmap_queue_test, unmaps_blocks_when_no_work_uses_them) {
  auto block = import_block();
  read_later(*block);
  unmaps.add(std::move(block));
  EXPECT_EQ(unmapped(), 0U);
  unmaps.drain(false);
  EXPECT_EQ(unmapped(), 1U);
  unmaps.drain(false);
  EXPECT_EQ(unmapped(), 1U);
}

TEST_F(unmap_queue_test, keeps_blocks_during_a_capture) {
  auto first = import_block();
  read_later(*first);
  unmaps.add(std::move(first));
  unmaps.drain(true);  // torch says so
  EXPECT_EQ(unmapped(), 0U);
  const weir::stream captured = weir::stream::create(gpu).value();
  const weir::context_scope bound{gpu};
  const auto& cu = bound.driver();
  ASSERT_EQ(
      cu.stream_begin_capture(captured.handle(), weir::driver::CU_STREAM_CAPTURE_MODE_RELAXED),
      weir::driver::CUDA_SUCCESS);
  unmaps.drain(false);  // nobody said so: the wait leaves the capture valid
  EXPECT_EQ(unmapped(), 1U);
  weir::driver::CUgraph graph = nullptr;
  EXPECT_EQ(cu.stream_end_capture(captured.handle(), &graph), weir::driver::CUDA_SUCCESS);
  EXPECT_EQ(cu.graph_destroy(graph), weir::driver::CUDA_SUCCESS);
}

TEST_F(unmap_queue_test, keeps_blocks_that_cannot_be_waited_for) {
  auto block = import_block();
  read_later(*block);
  unmaps.add(std::move(block));
  for (const weir::driver::call refused :
       {weir::driver::call::mem_free, weir::driver::call::thread_exchange_stream_capture_mode}) {
    machine->fail(refused, 1, weir::driver::CUDA_ERROR_UNKNOWN);
    unmaps.drain(false);
    machine->clear_faults();
    EXPECT_EQ(unmapped(), 0U) << weir::driver::info(refused).symbol;
  }
  unmaps.drain(false);
  EXPECT_EQ(unmapped(), 1U);
}

TEST_F(unmap_queue_test, waits_behind_pinned_memory_where_the_device_is_full) {
  auto block = import_block();
  read_later(*block);
  unmaps.add(std::move(block));
  machine->fail(weir::driver::call::mem_alloc, 1, weir::driver::CUDA_ERROR_OUT_OF_MEMORY);
  unmaps.drain(false);
  EXPECT_EQ(unmapped(), 1U);
  machine->clear_faults();
}

TEST_F(unmap_queue_test, unmaps_when_the_device_does_no_more_work) {
  auto block = import_block();
  unmaps.add(std::move(block));
  machine->lose_device(weir::device_id{0});
  unmaps.drain(false);
  EXPECT_GE(machine->calls(weir::driver::call::mem_unmap), 1U);
}

}  // namespace
}  // namespace weir_torch
