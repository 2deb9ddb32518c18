// SPDX-License-Identifier: Apache-2.0
// Errors: their words, the exceptions they become, and the handler of last resort.
#include "weir/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/environment.hpp"
#include "base/error_output.hpp"

namespace weir { namespace {

using namespace weir::literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr errc all_codes[] = {
#define WEIR_ERRC(name, value, meaning) errc::name,
#include "weir/base/errc.def"
#undef WEIR_ERRC
};

TEST(errc, has_names_meanings_and_fixed_numbers) {
  EXPECT_EQ(name(errc::driver_unavailable), "driver_unavailable");
  EXPECT_EQ(meaning(errc::out_of_memory), "not enough memory for the request");
  // Numbers are ABI: these were published and must stay.
  EXPECT_EQ(static_cast<int>(errc::invalid_argument), 1);
  EXPECT_EQ(static_cast<int>(errc::out_of_memory), 4);
  EXPECT_EQ(static_cast<int>(errc::driver_unavailable), 13);
  EXPECT_EQ(static_cast<int>(errc::internal), 30);
}

TEST(errc, every_code_is_told_apart) {
  std::set<std::string_view> names;
  std::set<std::string_view> meanings;
  int expected = 1;
  for (const errc code : all_codes) {
    EXPECT_EQ(static_cast<int>(code), expected++);  // append only, without holes
    EXPECT_TRUE(names.insert(name(code)).second) << name(code);
    EXPECT_TRUE(meanings.insert(meaning(code)).second) << meaning(code);
  }
}

TEST(error, is_internal_unless_somebody_says_what_it_is) {
  const error unsaid;
  EXPECT_EQ(unsaid.code(), errc::internal);
  EXPECT_EQ(unsaid.native(), 0);
  EXPECT_EQ(unsaid.call(), "");
  EXPECT_EQ(unsaid.requested(), 0_B);
  EXPECT_EQ(unsaid.detail(), "");
}

TEST(error, is_a_value_whose_parts_change_alone) {
  const error first{{.code = errc::bad_stream, .native = 7, .detail = "stream 7"}};
  error second = first;
  second.set_detail("stream 8");
  second.set_requested(4_KiB);
  second.set_code(errc::closed);
  EXPECT_EQ(first, (error{{.code = errc::bad_stream, .native = 7, .detail = "stream 7"}}));
  EXPECT_EQ(second,
            (error{{.code = errc::closed, .native = 7, .requested = 4_KiB, .detail = "stream 8"}}));
  EXPECT_EQ(error{errc::closed}, (error{{.code = errc::closed}}));
  EXPECT_FALSE(error{errc::closed} == second);
}

TEST(raise, of_a_code_is_that_of_an_error_without_details) {
  EXPECT_THROW(raise(errc::out_of_memory), std::bad_alloc);
  try {
    raise(errc::moved_from);
    FAIL();
  } catch (const failure& caught) {
    EXPECT_EQ(caught.reason(), error{errc::moved_from});
  }
}

TEST(errc, a_foreign_number_has_a_name_too) {
  EXPECT_EQ(name(static_cast<errc>(0)), "unknown");
  EXPECT_EQ(name(static_cast<errc>(-5)), "unknown");
  EXPECT_FALSE(meaning(static_cast<errc>(4711)).empty());
}

TEST(error_message, says_all_that_is_known) {
  const error full{{.code = errc::out_of_memory,
                    .native = 2,
                    .call = "cuMemCreate",
                    .requested = 64_MiB,
                    .detail = "device 0"}};
  EXPECT_EQ(full.message(),
            "out_of_memory: not enough memory for the request (cuMemCreate = 2, 64 MiB): device 0");
}

TEST(error_message, leaves_out_what_is_not_known) {
  EXPECT_EQ((error{{.code = errc::not_ready}}).message(), "not_ready: the work has not finished");
  EXPECT_EQ((error{{.code = errc::not_ready, .native = 600, .call = "cuEventQuery"}}).message(),
            "not_ready: the work has not finished (cuEventQuery = 600)");
  EXPECT_EQ((error{{.code = errc::not_ready, .call = "cuEventQuery"}}).message(),
            "not_ready: the work has not finished (cuEventQuery)");
  EXPECT_EQ((error{{.code = errc::not_ready, .native = 600}}).message(),
            "not_ready: the work has not finished (native code 600)");
  EXPECT_EQ((error{{.code = errc::out_of_memory, .requested = 1_GiB}}).message(),
            "out_of_memory: not enough memory for the request (1 GiB)");
  EXPECT_EQ((error{{.code = errc::bad_option, .detail = "x"}}).message(),
            "bad_option: unknown option or invalid value: x");
}

TEST(raise, throws_what_fits_the_code) {
  const error full{{.code = errc::out_of_memory, .requested = 1_GiB}};
  try {
    raise(full);
    FAIL();
  } catch (const std::bad_alloc& caught) {  // as code that knows nothing of weir would
    const auto* const ours = dynamic_cast<const out_of_memory*>(&caught);
    ASSERT_NE(ours, nullptr);
    EXPECT_EQ(ours->reason(), full);
    EXPECT_EQ(ours->what(), full.message());
    EXPECT_EQ(ours->report(), "");
  }

  const error other{{.code = errc::bad_stream, .detail = "stream 7"}};
  try {
    raise(other);
    FAIL();
  } catch (const failure& caught) {
    EXPECT_EQ(caught.reason(), other);
    EXPECT_EQ(caught.code(), errc::bad_stream);
    EXPECT_EQ(caught.what(), other.message());
  }
}

TEST(out_of_memory_exception, carries_its_report) {
  const out_of_memory thrown{error{{.code = errc::out_of_memory}}, "live 3 GiB"};
  EXPECT_EQ(thrown.report(), "live 3 GiB");
  EXPECT_THAT(thrown.what(), StartsWith("out_of_memory: "));
}

// Restores "no handler", which every test begins with.
struct error_handling : ::testing::Test {
  ~error_handling() override { set_error_handler(nullptr); }
};

TEST_F(error_handling, reaches_the_handler_with_its_context) {
  std::vector<error> seen;
  const std::uint64_t before = reported_errors();
  set_error_handler(
      [](const error& found, void* context) noexcept {
        static_cast<std::vector<error>*>(context)->push_back(found);
      },
      &seen);
  const error found{{.code = errc::double_free, .detail = "0x1000"}};
  report_error(found);
  EXPECT_THAT(seen, ::testing::ElementsAre(found));

  set_error_handler(nullptr);
  report_error(found);
  EXPECT_EQ(seen.size(), 1u);
  EXPECT_EQ(reported_errors(), before + 2);  // counted with and without a handler
}

TEST_F(error_handling, anything_that_can_be_called_may_be_the_handler) {
  std::vector<error> seen;
  const error found{{.code = errc::double_free, .detail = "0x1000"}};
  set_error_handler([&seen](const error& told) { seen.push_back(told); });
  report_error(found);
  EXPECT_THAT(seen, ::testing::ElementsAre(found));
  set_error_handler([](const error& told) { throw failure{told}; });
  report_error(found);  // what it throws is dropped
  int calls = 0;
  const std::function<void(const error&)> counter = [&](const error&) { ++calls; };
  set_error_handler(counter);
  report_error(found);
  report_error(found);
  EXPECT_EQ(calls, 2);
  set_error_handler(std::function<void(const error&)>{});
  report_error(found);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(seen.size(), 1u);
}

// Each in a process of its own, that asks the environment when it first has something to report.
struct error_printing_test : error_handling {
  error_printing_test() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~error_printing_test() override { ::unsetenv("WEIR_PRINT_ERRORS"); }
  [[noreturn]] static void report(bool handled) {
    if (handled) set_error_handler([](const error&) {});
    report_error({{.code = errc::double_free, .detail = "0x1000"}});
    std::_Exit(0);
  }
  static constexpr const char* line = "^weir: double_free: the memory was already freed: 0x1000\n$";
};

TEST_F(error_printing_test, is_asked_for_in_the_environment) {
  ::setenv("WEIR_PRINT_ERRORS", "on", 1);
  EXPECT_EXIT(report(false), ::testing::ExitedWithCode(0), line);
  EXPECT_EXIT(report(true), ::testing::ExitedWithCode(0), line);
  ::setenv("WEIR_PRINT_ERRORS", "1", 1);
  EXPECT_EXIT(report(false), ::testing::ExitedWithCode(0), line);
  ::setenv("WEIR_PRINT_ERRORS", "off", 1);
  EXPECT_EXIT(report(false), ::testing::ExitedWithCode(0), "^$");
}

TEST_F(error_printing_test, is_for_programs_without_ndebug_where_no_handler_is_set) {
  const auto report_in_debug_program = [](bool handled) {
    detail::mark_debug_program();
    report(handled);
  };
  for (const char* const variable : {"", "auto", "perhaps"}) {
    ::setenv("WEIR_PRINT_ERRORS", variable, 1);
#ifdef NDEBUG
    EXPECT_EXIT(report(false), ::testing::ExitedWithCode(0), "^$");
#endif
    EXPECT_EXIT(report_in_debug_program(false), ::testing::ExitedWithCode(0), line);
    EXPECT_EXIT(report_in_debug_program(true), ::testing::ExitedWithCode(0), "^$");
  }
}

TEST_F(error_printing_test, is_chosen_by_the_program_before_the_environment) {
  const auto report_when = [](error_printing when, bool handled) {
    set_error_printing(when);
    report(handled);
  };
  ::setenv("WEIR_PRINT_ERRORS", "on", 1);
  EXPECT_EXIT(report_when(error_printing::off, false), ::testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(report_when(error_printing::automatic, true), ::testing::ExitedWithCode(0), line);
  ::setenv("WEIR_PRINT_ERRORS", "off", 1);
  EXPECT_EXIT(report_when(error_printing::on, true), ::testing::ExitedWithCode(0), line);
}

TEST_F(error_printing_test, says_a_mistake_in_the_environment_to_every_program_without_a_handler) {
  const auto report_mistake = [](bool handled) {
    if (handled) set_error_handler([](const error&) {});
    detail::report_mistake({{.code = errc::bad_option, .detail = "WEIR_X"}});
    std::_Exit(0);
  };
  ::setenv("WEIR_PRINT_ERRORS", "", 1);
  EXPECT_EXIT(report_mistake(false), ::testing::ExitedWithCode(0),
              "^weir: bad_option: .*: WEIR_X\n$");
  EXPECT_EXIT(report_mistake(true), ::testing::ExitedWithCode(0), "^$");
  ::setenv("WEIR_PRINT_ERRORS", "off", 1);
  EXPECT_EXIT(report_mistake(false), ::testing::ExitedWithCode(0), "^$");
}

TEST_F(error_printing_test, writes_what_the_message_says) {
  const error errors[]{
      {{.code = errc::double_free}},
      {{.code = errc::not_ready, .native = 600}},
      {{.code = errc::not_ready, .call = "cuEventQuery"}},
      {{.code = errc::out_of_memory, .requested = bytes{1023_MiB + 1000_KiB}}},
      {{.code = errc::out_of_memory, .native = -2, .requested = 1_GiB}},
      {{.code = errc::out_of_memory,
        .native = 2,
        .call = "cuMemCreate",
        .requested = 64_MiB,
        .detail = "device 0\n  and more"}},
  };
  for (const error& each : errors) {
    ::testing::internal::CaptureStderr();
    detail::error_output output;
    output.write(each);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "weir: " + each.message() + "\n");
  }
}

TEST_F(error_printing_test, ends_after_a_hundred_errors) {
  ::testing::internal::CaptureStderr();
  detail::error_output output;
  for (int i = 0; i < 200; ++i) output.write(error{errc::closed});
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 101);
  EXPECT_THAT(text, ::testing::EndsWith(
                        "weir: 100 errors were written here; further ones are only counted\n"));
}

// Each handler knows its own context and complains about any other.
template <int Mine>
struct pairing {
  static inline int context = 0;
  static inline std::atomic<int> wrong{0};
  static void handler(const error&, void* given) noexcept {
    if (given != &context) ++wrong;
  }
};

TEST_F(error_handling, never_mixes_one_handler_with_anothers_context) {
  std::atomic<bool> stop{false};
  const std::uint64_t before = reported_errors();
  std::atomic<std::uint64_t> sent{0};
  std::vector<std::thread> reporters;
  for (int i = 0; i < 2; ++i) {
    reporters.emplace_back([&] {
      const error found{{.code = errc::internal}};
      while (!stop) {
        report_error(found);
        ++sent;
      }
    });
  }
  for (int i = 0; i < 20'000; ++i) {
    set_error_handler(pairing<1>::handler, &pairing<1>::context);
    set_error_handler(pairing<2>::handler, &pairing<2>::context);
    set_error_handler(nullptr);
  }
  stop = true;
  for (auto& reporter : reporters) reporter.join();
  EXPECT_EQ(pairing<1>::wrong, 0);
  EXPECT_EQ(pairing<2>::wrong, 0);
  EXPECT_EQ(reported_errors() - before, sent);
}

}  // namespace
}  // namespace weir
