// SPDX-License-Identifier: Apache-2.0
// The loader finds every call the right way, and says what is wrong with a library by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "weir/driver/table.hpp"

namespace weir::driver { namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

std::unique_ptr<library> load_good(const char* path) {
  auto loaded = load(path);
  if (!loaded) {
    ADD_FAILURE() << path << ": " << loaded.error().message();
    return nullptr;
  }
  return std::move(*loaded);
}

// Each call of a fake driver answers with its row; a null member answers -1.
template <class Function>
int row_behind(Function* function) {
  if (function == nullptr) return -1;
  int ignored = 0;
  const auto call = reinterpret_cast<int (*)(int*)>(reinterpret_cast<void*>(function));
  return call(&ignored) - 100000;
}

// Every member that is there leads to the call of its own row, by name, version and signature.
void expect_every_call_in_its_place(const library& loaded) {
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters)              \
  if (loaded.calls.member != nullptr && call::member != call::driver_get_version) {        \
    EXPECT_EQ(row_behind(loaded.calls.member), static_cast<int>(call::member)) << #member; \
  }
#include "weir/driver/calls.def"
}

TEST(library, is_none_before_it_is_loaded) {
  const library none;
  EXPECT_EQ(none.driver_version, 0);
  EXPECT_EQ(none.path, "");
  EXPECT_THAT(none.missing, IsEmpty());
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  EXPECT_EQ(none.calls.member, nullptr) << #member;
#include "weir/driver/calls.def"
}

TEST(loader, asks_the_driver_by_name_and_version) {
  const auto loaded = load_good(WEIR_FAKE_COMPLETE);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->driver_version, 13000);
  EXPECT_EQ(loaded->path, WEIR_FAKE_COMPLETE);
  EXPECT_THAT(loaded->missing, IsEmpty());
  expect_every_call_in_its_place(*loaded);
  // One name, two signatures: each member has its own.
  EXPECT_NE(row_behind(loaded->calls.mem_advise), row_behind(loaded->calls.mem_advise_v1));
}

TEST(loader, uses_exported_names_where_the_driver_cannot_be_asked) {
  const auto loaded = load_good(WEIR_FAKE_EXPORTS_ONLY);
  ASSERT_TRUE(loaded);
  EXPECT_THAT(loaded->missing, IsEmpty());
  expect_every_call_in_its_place(*loaded);
}

TEST(loader, uses_an_exported_name_where_the_driver_does_not_answer) {
  const auto loaded = load_good(WEIR_FAKE_HIDES);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(row_behind(loaded->calls.mem_create), static_cast<int>(call::mem_create));
  expect_every_call_in_its_place(*loaded);
}

TEST(loader, knows_the_first_form_of_the_question_and_lists_what_is_too_new) {
  const auto loaded = load_good(WEIR_FAKE_FIRST_PROC_ADDRESS);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->driver_version, 11080);
  expect_every_call_in_its_place(*loaded);

  std::vector<std::string_view> too_new;
#define WEIR_DRIVER_CALL(member, symbol, version, exported, need, parameters) \
  if (version > 11080) {                                                      \
    too_new.push_back(#exported);                                             \
    EXPECT_EQ(loaded->calls.member, nullptr) << #member;                      \
  }
#include "weir/driver/calls.def"
  EXPECT_THAT(too_new, Not(IsEmpty()));
  EXPECT_EQ(loaded->missing, too_new);
}

TEST(loader, leaves_optional_calls_empty_and_names_them) {
  const auto loaded = load_good(WEIR_FAKE_LACKS_OPTIONAL);
  ASSERT_TRUE(loaded);
  EXPECT_THAT(loaded->missing, UnorderedElementsAre("cuMemAdvise_v2", "cuStreamGetId"));
  EXPECT_EQ(loaded->calls.mem_advise, nullptr);
  EXPECT_EQ(loaded->calls.stream_get_id, nullptr);
  EXPECT_NE(loaded->calls.mem_advise_v1, nullptr);
  expect_every_call_in_its_place(*loaded);
}

TEST(loader, takes_the_oldest_driver_it_promises_to_take) {
  const auto loaded = load_good(WEIR_FAKE_JUST_OLD_ENOUGH);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->driver_version, oldest_driver);
}

TEST(loader, names_every_required_call_that_is_missing) {
  const auto loaded = load(WEIR_FAKE_LACKS_REQUIRED);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.code(), errc::symbol_missing);
  EXPECT_EQ(loaded.error().detail(),
            std::string{WEIR_FAKE_LACKS_REQUIRED} + " lacks cuStreamQuery, cuMemCreate");
}

TEST(loader, refuses_a_driver_that_is_too_old_and_says_how_old) {
  const auto loaded = load(WEIR_FAKE_TOO_OLD);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.code(), errc::driver_too_old);
  EXPECT_EQ(loaded.error().detail(),
            std::string{WEIR_FAKE_TOO_OLD} +
                " supports CUDA 11.1; weir needs a driver of CUDA 11.2 or later");
}

TEST(loader, names_the_call_for_the_version_where_that_is_missing) {
  const auto loaded = load(WEIR_FAKE_WITHOUT_VERSION);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(
      loaded.error(),
      (error{{.code = errc::symbol_missing,
              .detail = std::string{WEIR_FAKE_WITHOUT_VERSION} + " lacks cuDriverGetVersion"}}));
}

TEST(loader, says_that_a_driver_is_old_before_it_says_what_that_lacks) {
  const auto loaded = load(WEIR_FAKE_OLD_WITHOUT_COUNT);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error(),
            (error{{.code = errc::driver_too_old,
                    .detail = std::string{WEIR_FAKE_OLD_WITHOUT_COUNT} +
                              " supports CUDA 11.1; weir needs a driver of CUDA 11.2 or later"}}));
}

TEST(loader, refuses_the_stub_that_toolkits_ship_for_linking) {
  const auto loaded = load(WEIR_FAKE_STUB);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.code(), errc::driver_unavailable);
  EXPECT_EQ(loaded.error().native(), CUDA_ERROR_STUB_LIBRARY);
  EXPECT_EQ(loaded.error().call(), "cuDriverGetVersion");
  EXPECT_EQ(loaded.error().detail(), std::string{WEIR_FAKE_STUB} + ": CUDA_ERROR_STUB_LIBRARY");
}

TEST(loader, takes_any_failure_to_tell_the_version_for_no_driver) {
  const auto loaded = load(WEIR_FAKE_REFUSES);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error(),
            (error{{.code = errc::driver_unavailable,
                    .native = CUDA_ERROR_NOT_INITIALIZED,
                    .call = "cuDriverGetVersion",
                    .detail = std::string{WEIR_FAKE_REFUSES} + ": CUDA_ERROR_NOT_INITIALIZED"}}));
}

TEST(loader, says_which_library_is_not_there) {
  const auto loaded = load("libweir_no_such_driver.so.1");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.code(), errc::driver_unavailable);
  // What the dynamic loader has against it, and not the name alone.
  EXPECT_THAT(loaded.error().detail(), StartsWith("libweir_no_such_driver.so.1: "));
}

TEST(loader, refuses_a_file_that_is_no_library) {
  const std::string path = ::testing::TempDir() + "weir_no_library.so";
  std::ofstream{path} << "this is a text\n";
  const auto loaded = load(path.c_str());
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.code(), errc::driver_unavailable);
  EXPECT_THAT(loaded.error().detail(), StartsWith(path + ": "));
}

TEST(loader, refuses_a_library_that_is_no_driver) {
  const auto loaded = load("libm.so.6");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.code(), errc::symbol_missing);
  // The file that the dynamic loader chose for the name.
  EXPECT_THAT(loaded.error().detail(), StartsWith("/"));
  EXPECT_THAT(loaded.error().detail(), HasSubstr("/libm.so.6 lacks cuInit, cuDriverGetVersion, "));
}

TEST(loader, refuses_an_empty_path) {
  // The dynamic loader would open the program itself.
  for (const char* path : {"", static_cast<const char*>(nullptr)}) {
    const auto loaded = load(path);
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error(),
              (error{{.code = errc::invalid_argument, .detail = "driver_path must not be empty"}}));
  }
}

}  // namespace
}  // namespace weir::driver
