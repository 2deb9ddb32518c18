// SPDX-License-Identifier: Apache-2.0
// Printing facts, one process a subject.
#include "support/observe.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>

#include "support/contract_test.hpp"

extern char** environ;

namespace weir::testing_support {
namespace {

/// A subject that takes longer than this hangs; the others still get their turn.
constexpr unsigned most_seconds = 40;

std::map<std::string, observation>& observations() {
  static std::map<std::string, observation> all;
  return all;
}

void print(const std::string& subject, const std::string& fact, const std::string& value) {
  std::printf("[observed] %s: %s = %s\n", subject.c_str(), fact.c_str(), value.c_str());
  std::fflush(stdout);
}

std::string name_of(CUresult value) {
  return std::string{result_name(value)} + " (" + std::to_string(static_cast<int>(value)) + ")";
}

/// The refusals of one concept are a subject too: what each wrong call really answers.
void observe_refusals(const refusal_list& list,
                      const std::shared_ptr<machine_under_test>& machine) {
  fact_sheet facts{"refuses " + list.concept_name};
  for (const refusal& row : list.rows) {
    std::printf("[trying] %s: %s\n", list.concept_name.c_str(), row.description);
    std::fflush(stdout);
    driver_fixture fixture;
    fixture.open(machine);
    const CUresult answer = row.misuse(fixture);
    facts.text(row.description,
               name_of(answer) +
                   (answer == row.answer ? "" : "   [expected " + name_of(row.answer) + "]"));
  }
}

int observe_subject(const std::string& subject) {
  ::alarm(most_seconds);
  auto machine = open_machine(machine_seeds().front());
  if (!machine) {
    std::printf("no machine: %s\n", machine.error().message().c_str());
    return machine_may_be_absent() ? 0 : 1;
  }
  for (const refusal_list* list : all_refusals())
    if ("refuses_" + list->concept_name == subject) {
      observe_refusals(*list, *machine);
      return 0;
    }
  const auto observed = observations().find(subject);
  if (observed == observations().end()) {
    std::printf("nothing is observed under %s\n", subject.c_str());
    return 2;
  }
  driver_fixture fixture;
  fixture.open(*machine);
  fact_sheet facts{subject};
  observed->second(fixture, facts);
  return 0;
}

int observe_in_own_process(const std::string& subject) {
  const std::string argument = "--observe=" + subject;
  char program[] = "/proc/self/exe";
  char* arguments[] = {program, const_cast<char*>(argument.c_str()), nullptr};
  pid_t pid = -1;
  if (::posix_spawn(&pid, program, nullptr, nullptr, arguments, environ) != 0) return -1;
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

void fact_sheet::result(const std::string& fact, CUresult value) {
  print(subject_, fact, name_of(value));
}

void fact_sheet::number(const std::string& fact, std::int64_t value) {
  print(subject_, fact, std::to_string(value));
}

void fact_sheet::answer(const std::string& fact, CUresult answered, std::int64_t value) {
  print(subject_, fact,
        answered == CUDA_SUCCESS ? std::to_string(value) : "refused, " + name_of(answered));
}

void fact_sheet::text(const std::string& fact, const std::string& value) {
  print(subject_, fact, value);
}

observation_registration::observation_registration(const char* subject, observation function) {
  observations().emplace(subject, function);
}

int run_as_observer(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--observe=", 10) == 0) return observe_subject(argv[i] + 10);
    if (std::strcmp(argv[i], "--observe") != 0) continue;
    std::vector<std::string> subjects;
    for (const refusal_list* list : all_refusals())
      subjects.push_back("refuses_" + list->concept_name);
    for (const auto& [subject, function] : observations()) subjects.push_back(subject);
    for (const std::string& subject : subjects)
      if (const int status = observe_in_own_process(subject); status != 0)
        print(subject, "ended with status", std::to_string(status));
    return 0;
  }
  return -1;
}

}  // namespace weir::testing_support
