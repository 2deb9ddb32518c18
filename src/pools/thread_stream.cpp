// Numbers of threads.
#include "pools/thread_stream.hpp"

#include <atomic>

namespace weir::inline v0::detail {

std::uint64_t thread_number() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

}  // namespace weir::inline v0::detail
