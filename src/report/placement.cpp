// Where a policy would put the blocks of a recording.
#include "report/placement.hpp"

#include <utility>

namespace weir::inline v0::report {

namespace {

/// Listens to the one thread that plays, and counts the allocations along with the script.
class listener final : public event_sink {
 public:
  listener(const replay::script& what, placement& into) : what_{what}, into_{into} {
    into.places.resize(what.blocks);
  }

  void on_event(const memory_event& what) noexcept override {
    switch (what.kind) {
      case memory_event_kind::allocate:
        if (const auto block = next(); block < into_.places.size()) {
          into_.places[block] = {what.address, what.rounded};
        }
        break;
      case memory_event_kind::out_of_memory:
        next();
        break;
      case memory_event_kind::reserve:
      case memory_event_kind::move:
      case memory_event_kind::release:
        into_.steps.push_back({before(), what.kind, what.address, what.size, what.other_address});
        break;
      default:
        break;
    }
  }

 private:
  /// The block that is allocated next: empty ones never reach the allocator.
  std::uint32_t before() noexcept {
    while (at_ < what_.steps.size() &&
           (what_.steps[at_].what != replay::action::allocate || what_.steps[at_].size == 0)) {
      ++at_;
    }
    return at_ < what_.steps.size() ? what_.steps[at_].block
                                    : static_cast<std::uint32_t>(what_.blocks);
  }

  std::uint32_t next() noexcept {
    const std::uint32_t block = before();
    ++at_;
    return block;
  }

  const replay::script& what_;
  placement& into_;
  std::size_t at_ = 0;
};

}  // namespace

result<std::pair<placement, replay::outcome>> place(const replay::script& what,
                                                    replay::settings how) {
  if (how.how == replay::policy::driver_pool) {
    return error{.code = errc::invalid_argument,
                 .detail = "driver-pool does not say where its memory is"};
  }
  placement found;
  found.by = how.how;
  listener ears{what, found};
  how.observer = &ears;
  WEIR_TRY_VALUE(came, replay::play(what, how));
  return std::pair{std::move(found), std::move(came)};
}

}  // namespace weir::inline v0::report
