// SPDX-License-Identifier: Apache-2.0
// The device layer where the host has no memory: whichever allocation fails, it is an error, and
// nothing is lost.
#include "device/state.hpp"
#include "support/scarce_machine.hpp"
#include "weir/allocator/caching_allocator.hpp"
#include "weir/base/options.hpp"
#include "weir/device/event.hpp"
#include "weir/device/stream_watch.hpp"
#include "weir/device/virtual_memory.hpp"

namespace weir::testing_support { namespace {

using namespace weir::literals;

class scarce_device : public scarce_machine {};

TEST_F(scarce_device, RuntimesAreOpenedOrToldNotToBe) {
  const driver::table& table = spared_driver::of(machine->driver());
  sweep([&] {
    std::string name;
    {
      const spared_memory spared;
      name = "a name that is longer than a short string";
    }
    met(runtime::open_table(table, std::move(name)));
    met(runtime::open_simulated(nullptr), errc::invalid_argument);
    met(runtime_->device(device_id{7}), errc::no_device);
  });
}

TEST_F(scarce_device, NumbersOfRuntimesAreNotLost) {
  for (std::size_t i = 0; i <= detail::runtime_number::most; ++i) {
    const scarce_memory scarce{0};
    ASSERT_FALSE(met(detail::runtime_number::take())) << i;
  }
  EXPECT_TRUE(detail::runtime_number::take());
}

TEST_F(scarce_device, OptionsAreReadOrStayAsTheyWere) {
  const weir::options before;
  const auto variables = [](const char* name) {
    return std::string_view{name} == "WEIR_DRIVER" ? "/a/path/that/is/longer/than/a/short/string"
                                                   : nullptr;
  };
  sweep([&] {
    weir::options target;
    const auto all = set_all(target, "heap_policy=compact,heap_debug=red_zones");
    if (!met(all)) {
      EXPECT_TRUE(target == before);
    }
    met(set(target, "no such option", "1"), errc::bad_option);
    met(set_all(target, "heap_policy=none of the policies that there are"), errc::bad_option);
    met(get(before, "driver_path"));
    met(options_from_environment(variables));
  });
}

TEST_F(scarce_device, StreamsAndEventsAreToldOf) {
  sweep([&] {
    auto made = stream::create(gpu());
    if (!met(made)) return;
    met(made->ref().identified());
    met(made->ref().capture());
    auto first = event::create(gpu(), {.timing = true});
    auto last = event::create(gpu(), {.timing = true});
    if (met(first) && met(last)) {
      met(first->record(*made));
      met(last->record(*made));
      met(two.wait(*last));
      met(last->synchronize());
      met(event::elapsed(*first, *last));
      met(first->is_complete());
    }
    met(made->close());
  });
}

TEST_F(scarce_device, IdleEventsAreKeptOrDestroyed) {
  sweep([&] {
    event_pool pool{gpu(), 1};
    auto first = pool.acquire();
    auto second = pool.acquire();
    if (met(first)) met(pool.release(*std::move(first)));
    if (met(second)) met(pool.release(*std::move(second)));
    met(pool.trim());
  });
}

TEST_F(scarce_device, StreamsOfOthersAreWatchedOrNot) {
  const auto memory = caching_allocator::create(gpu()).value();
  sweep([&] {
    met(watch_stream(two));
    met(unwatch_stream(two), errc::not_found);
    const auto source = watch_streams(gpu(), [this](std::vector<stream_ref>& known) {
      const spared_memory spared;
      known.push_back(two);
    });
    met(source);
    const auto block = memory.try_allocate(4_MiB, one);
    if (met(block)) free([&] { return memory.try_deallocate(*block, one); });
    free([&] { return memory.empty_cache(); });
  });
}

TEST_F(scarce_device, PhysicalMemoryGoesBack) {
  sweep([&] {
    auto range = address_range::reserve(gpu(), 4_MiB);
    auto memory = physical_handle::create(gpu(), 2_MiB, {.posix_descriptor = true});
    if (!met(range) || !met(memory)) return;
    const auto number = memory->export_descriptor();
    if (met(number)) {
      auto imported = physical_handle::import_descriptor(gpu(), number->get(), 2_MiB);
      if (met(imported)) met(imported->close());
    }
    auto mapped = mapping::create(*range, bytes{}, *memory);
    if (met(mapped)) met(mapped->close());
    met(memory->close());
    met(range->close());
  });
}

TEST_F(scarce_device, QuestionsAreAnswered) {
  sweep([&] {
    met(gpu().memory_info());
    met(gpu().stream_priorities());
    met(gpu().can_access_peer(gpu(1)));
    if (met(gpu().enable_peer_access(gpu(1)))) met(gpu().disable_peer_access(gpu(1)));
    met(gpu().synchronize());
  });
}

}  // namespace
}  // namespace weir::testing_support
