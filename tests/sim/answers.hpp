// What the answers tests share: a program of random driver calls, and a digest of all it is told.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "order/rng.hpp"
#include "support/digest.hpp"
#include "support/sizes.hpp"
#include "weir/driver/table.hpp"
#include "weir/sim/machine.hpp"

namespace weir::sim_tests::answers {

using namespace driver;  // NOLINT(google-build-using-namespace): the calls under test
using testing_support::kib;
using testing_support::mib;

inline constexpr std::uint64_t unit = 2 * mib;       // what addresses of memory are aligned to
inline constexpr CUdeviceptr nowhere = 0x2'0000;     // below everything that a process maps
inline constexpr std::uint64_t untouched = 0x5a5a;   // what an output holds that was not written
inline constexpr std::uint64_t stretch_length = 50;  // steps that share a line of the file

struct setting {
  std::string name;
  sim::progress mode = sim::progress::manual;
  sim::duration lag{0};
  std::uint64_t steps = 1000;
  std::uint64_t capacity = 160 * mib;  // of each of the two devices
  bool shares_pages = true;            // whether host and second device share managed pages
};

/// Memory that a program knows of.
struct piece {
  CUdeviceptr at = 0;
  std::uint64_t size = 0;
  int device = 0;
};

/// A machine with two devices, the dice that say what is called next, and all that it answered.
///
/// Nothing of the host enters the digest: memory is named by the order in which it was made, a
/// handle by the order in which it was seen. One thread only. A program must not ask for an address
/// beyond its memory where that ends with a whole unit: what lies there is the host's choice. For
/// the same reason freed addresses are used at once or never, and at most a dozen small pieces live
/// on a device, which then lie in one chunk.
class program {
 public:
  program(setting chosen);
  virtual ~program();
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  /// A line of the file for each stretch of steps.
  std::vector<std::string> play();
  /// What was done in a stretch, and what was answered.
  [[nodiscard]] const std::string& story(std::size_t stretch) const { return stories_.at(stretch); }

 protected:
  /// A kind of step, and how often it comes.
  void add(std::uint64_t weight, std::function<void()> kind);
  /// Makes what the program needs from the start. Called again whenever a device has broken down.
  virtual void prepare() {}

  // --- Answers ----------------------------------------------------------------------------------

  /// Notes what a call answered; true for success.
  bool said(std::string_view call, CUresult answer);
  template <class... Values>
  void values(Values... all) {
    (note(static_cast<std::uint64_t>(all)), ...);
  }
  void note(std::uint64_t value);
  void text(std::string_view told);
  /// The bytes of memory, asked for by a copy to the host.
  void contents(CUdeviceptr at, std::uint64_t size);
  /// An address or a handle as a number that is the same on every machine.
  [[nodiscard]] std::uint64_t place(CUdeviceptr address) const;
  [[nodiscard]] std::uint64_t place(const void* pointer) const {
    return place(reinterpret_cast<std::uintptr_t>(pointer));
  }
  template <class Handle>
  [[nodiscard]] std::uint64_t known(Handle handle) {
    if constexpr (std::is_pointer_v<Handle>) {
      return known_number(reinterpret_cast<std::uintptr_t>(handle));
    } else {
      return known_number(handle);
    }
  }
  /// An attribute of a pointer, and what it says.
  void ask_attribute(CUpointer_attribute attribute, CUdeviceptr address);
  void attribute_value(CUpointer_attribute attribute, std::uint64_t value);
  /// Addresses get and lose their name.
  void appear(CUdeviceptr at, std::uint64_t size, std::uint64_t chunk = unit);
  void vanish(CUdeviceptr at);

  // --- Choices ----------------------------------------------------------------------------------

  [[nodiscard]] bool wrong() { return dice.one_in(10); }
  template <class T>
  T& any(std::vector<T>& of) {
    return of[dice.below(of.size())];
  }
  template <class T>
  T take(std::vector<T>& of) {
    const std::size_t index = dice.below(of.size());
    const T taken = of[index];
    of.erase(of.begin() + static_cast<std::ptrdiff_t>(index));
    return taken;
  }
  /// A stream that was made, one that is always there, or now and then one that never was.
  CUstream any_stream();
  /// A part of it; once in a while one that reaches beyond.
  piece any_part(const piece& of, std::uint64_t most = ~std::uint64_t{0});

  // --- Steps that many programs have ------------------------------------------------------------

  void make_stream();
  void destroy_stream();
  void make_event();
  void record();
  void wait();
  void ask();          // queries
  void synchronize();  // streams, events, the context
  void switch_device();
  void pass_time();
  /// Work on some stream that reads and writes parts of `pieces`.
  void work(std::vector<piece>& pieces);

  std::uint64_t called = 0;  // what host functions have counted
  std::shared_ptr<sim::machine> machine;
  const table* cuda = nullptr;
  order_test::rng dice;
  std::array<CUcontext, 2> contexts{};
  int device = 0;  // the current one
  /// Whether work may reach beyond its memory, which breaks the device down. Whoever waits on one
  /// device for work of another that is broken waits for ever.
  bool reaches_beyond = true;
  std::vector<CUstream> streams;
  std::vector<CUevent> events;
  alignas(64) std::array<unsigned char, 64 * kib> host{};  // pageable memory

 private:
  struct kind {
    std::uint64_t weight = 0;
    std::function<void()> play;
  };
  struct named {
    std::uint64_t size = 0;
    std::uint64_t number = 0;
    std::uint64_t users = 0;
  };

  void start();
  void stop();
  void look();
  void look_closely();
  void hear(const sim::hazard& found);
  std::uint64_t known_number(std::uint64_t handle);

  setting setting_;
  std::vector<kind> kinds_;
  std::uint64_t weights_ = 0;
  testing_support::digest digest_;
  std::vector<std::string> stories_;
  std::map<std::uint64_t, named> places_;
  std::map<std::uint64_t, std::uint64_t> handles_;
  std::uint64_t next_place_ = 1;
  bool broken_ = false;
};

std::unique_ptr<program> play_memory(const setting& chosen);
std::unique_ptr<program> play_streams(const setting& chosen);
std::unique_ptr<program> play_virtual_memory(const setting& chosen);
std::unique_ptr<program> play_pools(const setting& chosen);
std::unique_ptr<program> play_managed(const setting& chosen);
std::unique_ptr<program> play_graphs(const setting& chosen);
std::unique_ptr<program> play_hazards(const setting& chosen);

}  // namespace weir::sim_tests::answers
