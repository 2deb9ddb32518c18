// SPDX-License-Identifier: Apache-2.0
// What memory is for, how much of it there may be, and what happens when there is no more.
//
// Runs on a GPU where there is one and on a simulated machine where there is none; it takes at most
// 256 MiB of either.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "weir/allocator/caching_allocator.hpp"
#include "weir/device/runtime.hpp"
#include "weir/device/stream.hpp"

namespace {

using namespace weir::literals;

int unexpected = 0;

void expect(bool holds, const char* what) {
  std::printf("   %s %s\n", holds ? "yes:" : "NO: ", what);
  unexpected += holds ? 0 : 1;
}

// A cache that would rather give its entries up than let the program fail.
class spare_results {
 public:
  spare_results(weir::caching_allocator memory, const weir::stream_ref& stream)
      : memory_{std::move(memory)}, stream_{stream}, tag_{weir::tag::named("spare").value()} {}

  void add(weir::bytes size) {
    const weir::tag_scope scope{tag_};  // what this thread allocates in here is tagged
    entries_.push_back(memory_.allocate(size, stream_));
  }
  // Whether there was anything to drop.
  bool drop_all() {
    if (entries_.empty()) return false;
    for (void* each : entries_) memory_.deallocate(each, stream_);
    entries_.clear();
    return true;
  }
  [[nodiscard]] weir::tag tag() const { return tag_; }

 private:
  weir::caching_allocator memory_;  // a shared handle
  weir::stream_ref stream_;
  weir::tag tag_;
  std::vector<void*> entries_;
};

}  // namespace

int main() try {
  const auto machine = weir::runtime::open().value();
  const auto gpu = machine->device(weir::device_id{0}).value();
  weir::allocator_options settings;
  settings.limit = 256_MiB;  // of physical memory; set_limit() changes it later
  auto memory = weir::caching_allocator::create(gpu, settings).value();
  const auto stream = weir::stream::create(gpu).value();

  std::puts("1. Tags tell what memory is for");
  const auto weights = weir::tag::named("weights").value();
  void* layer = nullptr;
  {
    const weir::tag_scope scope{weights};
    layer = memory.allocate(100_MiB, stream);
  }
  spare_results spare{memory, stream};
  for (int i = 0; i < 4; ++i) spare.add(30_MiB);
  for (const weir::tag_stats& each : memory.stats_by_tag()) {
    std::printf("   %-8s %s\n", std::string{each.tag.name()}.c_str(),
                to_string(each.stats.allocated.current).c_str());
  }
  expect(memory.stats(weights).allocated.current == 100_MiB, "weights have 100 MiB");
  expect(memory.stats(spare.tag()).blocks.current == 4, "four results are spare");

  std::puts("\n2. A tag can have a limit of its own");
  memory.set_limit(spare.tag(), 128_MiB).value();
  {
    const weir::tag_scope scope{spare.tag()};
    const auto refused = memory.try_allocate(30_MiB, stream);
    expect(!refused && refused.code() == weir::errc::out_of_memory, "a fifth result is refused");
    if (!refused) std::printf("   %s\n", refused.error().message().c_str());
  }

  std::puts("\n3. Out of memory: the exception carries a report");
  try {
    static_cast<void>(memory.allocate(64_MiB, stream));
    expect(false, "100 + 120 + 64 MiB do not fit into 256 MiB");
  } catch (const weir::out_of_memory& found) {  // also a std::bad_alloc
    expect(found.reason().requested() == 64_MiB, "it says what was asked for");
    std::printf("\n%s\n", found.report().c_str());
  }
  const weir::memory_report why = memory.explain(64_MiB, stream);  // the same, as figures
  expect(why.limit == 256_MiB, "the limit is named");
  expect(!why.tags.empty() && why.tags.front().tag == spare.tag(), "the largest tag comes first");

  std::puts("\n4. A callback gives something up, and the request is met");
  int asked = 0;
  const auto registered = memory
                              .on_out_of_memory([&](weir::bytes needed) {
                                ++asked;
                                std::printf("   asked for %s\n", to_string(needed).c_str());
                                return spare.drop_all();
                              })
                              .value();
  void* const activation = memory.allocate(64_MiB, stream);
  expect(activation != nullptr && asked == 1, "one question was enough");
  expect(memory.stats(spare.tag()).blocks.current == 0, "the spare results are gone");
  expect(memory.stats().reserved.peak <= 256_MiB, "the limit held all the time");

  std::puts("\n5. What can never fit is refused all the same");
  expect(memory.try_allocate(300_MiB, stream).code() == weir::errc::out_of_memory,
         "300 MiB do not fit under the limit");
  expect(memory.set_limit_fraction(1.5).code() == weir::errc::invalid_argument,
         "nor is there more than the whole device");

  memory.deallocate(activation, stream);
  memory.deallocate(layer, stream);
  std::printf("\n%s\n", unexpected == 0 ? "All as it should be." : "Something is wrong.");
  return unexpected == 0 ? 0 : 1;
} catch (const std::exception& found) {
  std::fprintf(stderr, "%s\n", found.what());
  return 1;
}
