// SPDX-License-Identifier: Apache-2.0
// A second process of the same test binary, and the socket that joins the two.
//
// A driver does not survive fork(), so the child is a fresh start of the binary: main() sees
// --child=<name> and runs the function registered under that name.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "support/machine_under_test.hpp"

namespace weir::testing_support {

/// One end of a Unix socket pair. Messages are plain structures; both ends know their order.
/// Every function answers false when the other side is gone.
class process_link {
 public:
  process_link() = default;
  explicit process_link(int descriptor) : descriptor_{descriptor} {}
  ~process_link();
  process_link(process_link&& other) noexcept;
  process_link& operator=(process_link&& other) noexcept;

  bool send_bytes(const void* data, std::size_t size);
  bool receive_bytes(void* data, std::size_t size);
  bool send_descriptor(int descriptor);
  /// -1 when the other side is gone. The caller closes it.
  [[nodiscard]] int receive_descriptor();

  template <class T>
  bool send(const T& message) {
    return send_bytes(&message, sizeof(message));
  }
  template <class T>
  bool receive(T& message) {
    return receive_bytes(&message, sizeof(message));
  }

  /// Both sides call it: neither goes on before the other has come here.
  bool meet();

 private:
  int descriptor_ = -1;
};

/// What a child runs: its machine is open and current. Returns the process's exit status; the
/// counts of its driver calls go back by themselves.
using child_function = int (*)(machine_under_test& machine, process_link& parent);

/// Registers `function` under `name` for its life time, which must be the program's.
struct child_registration {
  child_registration(const char* name, child_function function);
};

/// The running child. The destructor ends a child that wait() was not called for.
class child_process {
 public:
  child_process(const char* name, std::uint64_t seed);
  ~child_process();
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;

  [[nodiscard]] process_link& link() noexcept { return link_; }
  /// Waits for the end and takes over what the child counted. The exit status; 128 + n after
  /// signal n; -1 when it never started.
  int wait();
  void kill();

 private:
  pid_t pid_ = -1;
  process_link link_;
};

/// Runs the child function if the arguments ask for one; -1 if they do not.
int run_as_child(int argc, char** argv);

}  // namespace weir::testing_support

/// Defines and registers a child function: WEIR_CHILD(name) { ... return 0; }
#define WEIR_CHILD(name)                                                                   \
  static int weir_child_##name(                                                            \
      [[maybe_unused]] ::weir::testing_support::machine_under_test& machine,               \
      [[maybe_unused]] ::weir::testing_support::process_link& parent);                     \
  static const ::weir::testing_support::child_registration weir_child_registration_##name{ \
      #name, &weir_child_##name};                                                          \
  static int weir_child_##name(                                                            \
      [[maybe_unused]] ::weir::testing_support::machine_under_test& machine,               \
      [[maybe_unused]] ::weir::testing_support::process_link& parent)

/// In a child: ends it with a message unless `expression` equals `expected`.
#define WEIR_CHILD_EXPECT(expected, expression)                                    \
  do {                                                                             \
    if (const auto weir_actual_ = (expression); weir_actual_ != (expected)) {      \
      ::weir::testing_support::child_failed(__FILE__, __LINE__, #expression,       \
                                            static_cast<long long>(weir_actual_)); \
      return 1;                                                                    \
    }                                                                              \
  } while (false)

namespace weir::testing_support {
void child_failed(const char* file, int line, const char* expression, long long actual);
}  // namespace weir::testing_support
