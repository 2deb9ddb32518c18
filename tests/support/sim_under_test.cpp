// SPDX-License-Identifier: Apache-2.0
// The machine under test is a simulated one, with two devices.
#include <algorithm>
#include <cstring>
#include <utility>

#include "support/few_addresses.hpp"
#include "support/machine_under_test.hpp"
#include "weir/sim/machine.hpp"

namespace weir::testing_support {
namespace {

using sim::kernel_arguments;

template <class T>
T* at(driver::CUdeviceptr address) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

/// How many of the words are not `value`. Most of the time none is: a row of equal words equals
/// itself one further, and the library compares faster than a loop of tests.
std::uint32_t wrong_words(const std::uint32_t* words, std::uint64_t count, std::uint32_t value) {
  if (count == 0) return 0;
  if (words[0] == value && std::memcmp(words, words + 1, (count - 1) * sizeof(value)) == 0)
    return 0;
  return static_cast<std::uint32_t>(
      std::count_if(words, words + count, [value](std::uint32_t each) { return each != value; }));
}

/// The kernels of kernels.hpp as callables that touch what their PTX twins touch.
void add_kernels(sim::machine& machine) {
  using word = std::uint32_t;
  using std::uint64_t;
  const auto bytes_of = [](uint64_t count) {
    return static_cast<std::size_t>(count) * sizeof(word);
  };
  machine.add_kernel(
      {.name = "weir_fill",
       .parameters = {8, 4, 8},
       .accesses =
           [=](const kernel_arguments& a, std::vector<sim::access>& touched) {
             touched.push_back(sim::writes(a.get<uint64_t>(0), bytes_of(a.get<uint64_t>(2))));
           },
       .run =
           [](const kernel_arguments& a) {
             std::fill_n(at<word>(a.get<uint64_t>(0)), a.get<uint64_t>(2), a.get<word>(1));
           }});
  machine.add_kernel(
      {.name = "weir_check",
       .parameters = {8, 4, 8, 8},
       .accesses =
           [=](const kernel_arguments& a, std::vector<sim::access>& touched) {
             touched.push_back(sim::reads(a.get<uint64_t>(0), bytes_of(a.get<uint64_t>(2))));
             touched.push_back(sim::writes(a.get<uint64_t>(3), sizeof(word)));
           },
       .run =
           [](const kernel_arguments& a) {
             *at<word>(a.get<uint64_t>(3)) += wrong_words(at<const word>(a.get<uint64_t>(0)),
                                                          a.get<uint64_t>(2), a.get<word>(1));
           }});
  machine.add_kernel({.name = "weir_increment",
                      .parameters = {8, 8},
                      .accesses =
                          [=](const kernel_arguments& a, std::vector<sim::access>& touched) {
                            touched.push_back(
                                sim::writes(a.get<uint64_t>(0), bytes_of(a.get<uint64_t>(1))));
                          },
                      .run =
                          [](const kernel_arguments& a) {
                            word* words = at<word>(a.get<uint64_t>(0));
                            for (uint64_t i = 0; i < a.get<uint64_t>(1); ++i) ++words[i];
                          }});
  machine.add_kernel(
      {.name = "weir_copy",
       .parameters = {8, 8, 8},
       .accesses =
           [=](const kernel_arguments& a, std::vector<sim::access>& touched) {
             touched.push_back(sim::writes(a.get<uint64_t>(0), bytes_of(a.get<uint64_t>(2))));
             touched.push_back(sim::reads(a.get<uint64_t>(1), bytes_of(a.get<uint64_t>(2))));
           },
       .run =
           [=](const kernel_arguments& a) {
             std::memcpy(at<void>(a.get<uint64_t>(0)), at<const void>(a.get<uint64_t>(1)),
                         bytes_of(a.get<uint64_t>(2)));
           }});
  machine.add_kernel({.name = "weir_spin", .parameters = {8}, .accesses = {}, .run = {}});
  machine.add_kernel({.name = "weir_hold", .parameters = {8, 8}, .accesses = {}, .run = {}});
}

class sim_occupation final : public occupation {
 public:
  sim_occupation(sim::machine& machine, driver::CUstream stream)
      : machine_{machine}, stream_{stream} {
    machine_.hold(stream_);
    // Something must be queued, or the stream would count as idle.
    (void)machine_.launch(stream_, "occupation", {});
  }
  ~sim_occupation() override { finish(); }
  void finish() override {
    if (!std::exchange(finished_, true)) machine_.release(stream_);
  }

 private:
  sim::machine& machine_;
  driver::CUstream stream_;
  bool finished_ = false;
};

class sim_under_test final : public machine_under_test {
 public:
  explicit sim_under_test(std::uint64_t seed) : machine_under_test{seed} {}

  result<void> open() {
    auto created =
        sim::machine::create({.devices = {device_with_room(), device_with_room()}, .seed = seed()});
    if (!created) return std::move(created).error();
    machine_ = std::move(*created);
    add_kernels(*machine_);
    return start(machine_->driver());
  }

  std::unique_ptr<occupation> occupy(driver::CUstream stream) override {
    return std::make_unique<sim_occupation>(*machine_, stream);
  }

  std::vector<std::string> take_hazards() override {
    std::vector<std::string> descriptions;
    for (const auto& hazard : machine_->hazards()) descriptions.push_back(hazard.message());
    machine_->clear_hazards();
    return descriptions;
  }
  std::unique_ptr<event_sink> watch_blocks() override { return machine_->watch_blocks(); }

 private:
  std::shared_ptr<sim::machine> machine_;
};

}  // namespace

result<std::shared_ptr<machine_under_test>> open_machine(std::uint64_t seed) {
  auto machine = std::make_shared<sim_under_test>(seed);
  WEIR_TRY(machine->open());
  return std::shared_ptr<machine_under_test>{machine};
}

std::vector<std::uint64_t> machine_seeds() { return {1, 2, 3}; }

bool machine_may_be_absent() { return false; }

}  // namespace weir::testing_support
