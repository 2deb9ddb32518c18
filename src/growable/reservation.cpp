// SPDX-License-Identifier: Apache-2.0
// Committing and decommitting pages of a reservation.
#include "growable/reservation.hpp"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "device/state.hpp"
#include "heap/central_heap.hpp"
#include "heap/heap_view.hpp"
#include "weir/base/checked.hpp"
#include "weir/device/event.hpp"

namespace weir { inline namespace v0 { namespace growable {
namespace {

constexpr std::uint64_t most_page = std::uint64_t{1} << 30;

result<void> check_page(const caching_allocator& allocator, bytes page) {
  const auto& can = allocator.device().capabilities();
  if (!can.virtual_memory) {
    return error{{.code = errc::not_supported, .detail = "the device has no virtual memory"}};
  }
  const std::uint64_t least =
      std::max<std::uint64_t>(can.granularity.count(), std::uint64_t{2} << 20);
  if (is_power_of_two(page.count()) && page.count() >= least && page.count() <= most_page)
    return {};
  return error{{.code = errc::invalid_argument,
                .requested = page,
                .detail = "page: expected a power of two from " + to_string(bytes{least}) +
                          " to 1 GiB, got " + to_string(page)}};
}

}  // namespace

result<std::shared_ptr<reservation>> reservation::create(const caching_allocator& allocator,
                                                         bytes size,
                                                         const growable_options& options) try {
  if (!allocator) return errc::closed;
  WEIR_TRY(check_page(allocator, options.page));
  if (size == bytes{}) {
    return error{{.code = errc::invalid_argument, .detail = "size must be greater than zero"}};
  }
  const auto rounded = checked_round_up(size, options.page);
  if (!rounded || *rounded / options.page > ~page_number{0})
    return error{{.code = errc::size_overflow, .requested = size}};
  WEIR_TRY_VALUE(range, address_range::reserve(allocator.device(), *rounded, options.page));
  auto made = std::make_shared<reservation>(allocator, std::move(range), *rounded, options);
  auto added = made->lender_.add({.base = made->base_,
                                  .size = rounded->count(),
                                  .page = options.page.count(),
                                  .name = options.name});
  if (!added) return std::move(added).error();
  return made;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

reservation::reservation(caching_allocator allocator, address_range range, bytes size,
                         const growable_options& options)
    : allocator_{std::move(allocator)},
      lender_{heap::heap_of(allocator_).lender()},
      base_{range.base()},
      page_{options.page},
      tag_{options.tag},
      name_{options.name},
      range_{std::move(range)},
      size_{size},
      pages_{static_cast<std::size_t>(size / options.page)},
      streams_(static_cast<std::size_t>(size / options.page)),
      contents_{allocator_.device(), heap::heap_of(allocator_).backup()} {}

reservation::~reservation() {
  detail::report_failure(close());
  const detail::mutex_lock lock{mutex_};
  if (range_) keep_addresses();  // pages are in use
}

result<void> reservation::usable() const {
  if (closed_) return errc::closed;
  if (suspended_) return errc::suspended;
  return {};
}

bytes reservation::size() const noexcept {
  const detail::mutex_lock lock{mutex_};
  return size_;
}

growable_stats reservation::stats() const noexcept {
  const detail::mutex_lock lock{mutex_};
  const auto sum = [&](page_state state) {
    mutex_.assert_held();
    return page_ * pages_.count_of(state);
  };
  return {.reserved = page_ * pages_.count(),
          .size = size_,
          .page = page_,
          .committed = sum(page_state::committed),
          .ahead = sum(page_state::ahead),
          .held = sum(page_state::held),
          .suspended = sum(page_state::away),
          .committed_peak = page_ * pages_.committed_peak(),
          .commits = commits_,
          .decommits = decommits_};
}

bool reservation::is_committed(byte_range range) const {
  const detail::mutex_lock lock{mutex_};
  const auto meant = ranges().touched_by({&range, 1});
  return meant && std::all_of(meant->begin(), meant->end(), [&](page_number page) {
           mutex_.assert_held();
           return pages_[page] == page_state::committed;
         });
}

reservation::addresses reservation::addresses_of(const pages& of) const {
  addresses all;
  all.reserve(of.size());
  for (const page_number page : of) all.push_back(address_of(page));
  return all;
}

// --- Changes -------------------------------------------------------------------------------------

result<std::unique_ptr<page_change>> reservation::open(std::span<const byte_range> commits,
                                                       std::span<const byte_range> decommits,
                                                       const stream_ref& stream) {
  WEIR_TRY_VALUE(known, stream.identified());
  std::unique_ptr<page_change> change;
  try {
    change = std::make_unique<page_change>(known);
    const detail::mutex_lock lock{mutex_};
    WEIR_TRY(usable());
    WEIR_TRY(sweep_locked());
    WEIR_TRY(claim(*change, commits, decommits));
    ++changes_;
  } catch (const std::bad_alloc&) {
    return detail::no_host_memory();
  }
  // From here on its pages are nobody else's.
  try {
    auto ready = get_memory(*change);
    if (ready) return change;
    cancel(*change);
    return std::move(ready).error();
  } catch (...) {  // a callback of the user's
    cancel(*change);
    throw;
  }
}

result<void> reservation::claim(page_change& change, std::span<const byte_range> commits,
                                std::span<const byte_range> decommits) {
  WEIR_TRY_VALUE(wanted, ranges().touched_by(commits));
  for (const page_number page : ranges().within(decommits, pages_.count())) {
    if (std::binary_search(wanted.begin(), wanted.end(), page)) {
      return error{{.code = errc::invalid_argument,
                    .detail = "page " + std::to_string(page) +
                              " is to be committed and decommitted; name it once"}};
    }
    if (pages_[page] == page_state::committed) change.leaving.push_back(page);
  }
  change.fresh.reserve(wanted.size());
  change.adopted.reserve(wanted.size());
  const auto in_another = std::find_if(wanted.begin(), wanted.end(), [&](page_number page) {
    mutex_.assert_held();
    return pages_[page] == page_state::changing;
  });
  if (in_another != wanted.end()) {
    return error{{.code = errc::not_ready,
                  .detail = "page " + std::to_string(*in_another) +
                            " is being committed by another call or plan; commit or abort that "
                            "first"}};
  }
  // From here on nothing fails.
  for (const page_number page : wanted) {
    const page_state now = pages_[page];
    if (now == page_state::committed) continue;
    if (now == page_state::empty) change.fresh.push_back(page);
    if (now != page_state::empty) change.adopted.push_back({page, now});
    pages_.set(page, page_state::changing);
  }
  return {};
}

/// Without the mutex: callbacks of the user's run inside.
result<void> reservation::get_memory(page_change& change) {
  addresses where;
  try {
    if (!change.leaving.empty()) WEIR_TRY(lender_.prepare_take_back(change.stream));
    WEIR_TRY(order_adopted(change));
    where = addresses_of(change.fresh);
  } catch (const std::bad_alloc&) {
    return detail::no_host_memory();
  }
  if (where.empty()) return {};
  std::optional<tag_scope> counted;
  if (tag_ != tag{}) counted.emplace(tag_);
  auto lent = lender_.lend(where, page_, change.stream);
  if (lent) return {};
  {
    const detail::mutex_lock lock{mutex_};
    for (const page_number page : change.fresh) pages_.set(page, page_state::empty);
  }
  change.fresh.clear();
  return lent;
}

result<void> reservation::order_adopted(const page_change& change) {
  std::vector<stream_ref> others;
  {
    const detail::mutex_lock lock{mutex_};
    for (const page_change::adoption& each : change.adopted) {
      const auto& of = streams_[each.page];
      if (!of || *of == change.stream) continue;
      if (std::find(others.begin(), others.end(), *of) == others.end()) others.push_back(*of);
    }
  }
  for (const stream_ref& each : others) {
    WEIR_TRY_VALUE(behind, event::create(each.device()));
    WEIR_TRY(behind.record(each));
    WEIR_TRY(change.stream.wait(behind));
  }
  return {};
}

result<void> reservation::apply(page_change& change) noexcept {
  const detail::mutex_lock lock{mutex_};
  --changes_;
  for (const page_number page : change.fresh) pages_.set(page, page_state::committed);
  for (const page_change::adoption& each : change.adopted) {
    pages_.set(each.page, page_state::committed);
    streams_[each.page].reset();
  }
  commits_ += change.fresh.size() + change.adopted.size();
  try {
    // Another call may have decommitted some meanwhile.
    std::erase_if(change.leaving, [&](page_number page) {
      mutex_.assert_held();
      return pages_[page] != page_state::committed;
    });
    return leave(change.leaving, change.stream);
  } catch (const std::bad_alloc&) {
    return detail::no_host_memory();
  }
}

void reservation::cancel(page_change& change) noexcept {
  const detail::mutex_lock lock{mutex_};
  --changes_;
  restore(change);
}

void reservation::restore(page_change& change) noexcept try {
  for (const page_change::adoption& each : change.adopted) pages_.set(each.page, each.before);
  change.adopted.clear();
  // Nothing was queued that uses them.
  if (!change.fresh.empty()) detail::report_failure(give_back(change.fresh, change.stream));
  change.fresh.clear();
} catch (const std::bad_alloc&) {
  detail::report_failure(result<void>{detail::no_host_memory()});
}

// --- Pages that go -------------------------------------------------------------------------------

result<void> reservation::decommit(std::span<const byte_range> ranges_of,
                                   const stream_ref& stream) try {
  WEIR_TRY_VALUE(known, stream.identified());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY(sweep_locked());
  pages leaving = ranges().within(ranges_of, pages_.count());
  std::erase_if(leaving, [&](page_number page) {
    mutex_.assert_held();
    return pages_[page] != page_state::committed;
  });
  return leave(leaving, known);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> reservation::leave(const pages& leaving, const stream_ref& stream) {
  if (leaving.empty()) return {};
  pages going;
  going.reserve(leaving.size());
  for (const page_number page : leaving)
    if (pages_.holds(page) == 0) going.push_back(page);
  WEIR_TRY(give_back(going, stream));
  for (const page_number page : leaving) {
    if (pages_.holds(page) == 0) continue;
    pages_.set(page, page_state::held);
    streams_[page] = stream;
  }
  decommits_ += leaving.size();
  return {};
}

/// The memory goes; the pages are empty.
result<void> reservation::give_back(const pages& given, const stream_ref& stream) {
  if (given.empty()) return {};
  const addresses where = addresses_of(given);
  WEIR_TRY(lender_.take_back(where, page_, stream));
  for (const page_number page : given) {
    pages_.set(page, page_state::empty);
    streams_[page].reset();
  }
  return {};
}

stream_ref reservation::quiet_stream() {
  if (!quiet_) {
    auto made = stream::create(allocator_.device());
    if (!made) return stream_ref::legacy(allocator_.device());
    quiet_.emplace(*std::move(made));
  }
  return *quiet_;
}

// --- Ahead, size, trim ---------------------------------------------------------------------------

result<void> reservation::commit_ahead(bytes watermark, const stream_ref& stream) {
  WEIR_TRY_VALUE(known, stream.identified());
  page_change change{known};
  try {
    const detail::mutex_lock lock{mutex_};
    WEIR_TRY(usable());
    WEIR_TRY(sweep_locked());
    const auto rounded = checked_round_up(watermark, page_);
    const std::uint64_t most = rounded ? *rounded / page_ : pages_.count();
    const std::uint64_t end = std::min<std::uint64_t>(pages_.committed_end() + most, size_ / page_);
    for (page_number page = pages_.committed_end(); page < end; ++page)
      if (pages_[page] == page_state::empty) change.fresh.push_back(page);
    for (const page_number page : change.fresh) pages_.set(page, page_state::changing);
    ++changes_;
  } catch (const std::bad_alloc&) {
    return detail::no_host_memory();
  }
  const auto end_change = [&](page_state state) {
    const detail::mutex_lock lock{mutex_};
    --changes_;
    for (const page_number page : change.fresh) {
      pages_.set(page, state);
      streams_[page] = known;
    }
  };
  try {
    auto lent = get_memory(change);
    end_change(lent ? page_state::ahead : page_state::empty);
    return lent;
  } catch (...) {
    end_change(page_state::empty);
    throw;
  }
}

result<void> reservation::drop_ahead(page_number from) {
  for (page_number page = from; page < pages_.count(); ++page) {
    if (pages_[page] != page_state::ahead) continue;
    const stream_ref lent_for = *streams_[page];
    WEIR_TRY(give_back({page}, lent_for));
  }
  return {};
}

result<void> reservation::resize(bytes size, const stream_ref& stream) try {
  WEIR_TRY_VALUE(known, stream.identified());
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY(sweep_locked());
  const auto rounded = checked_round_up(size, page_);
  const bytes reserved = page_ * pages_.count();
  if (!rounded || *rounded > reserved) {
    return error{{.code = errc::invalid_argument,
                  .requested = size,
                  .detail = "size: expected at most the reserved " + to_string(reserved) +
                            ", got " + to_string(size) +
                            "; reserve more from the start, addresses cost nothing"}};
  }
  const auto first = static_cast<page_number>(*rounded / page_);
  pages leaving;
  for (page_number page = first; page < pages_.count(); ++page) {
    if (pages_[page] == page_state::changing) {
      return error{{.code = errc::not_ready,
                    .detail = "a page behind the new size is being committed; commit or abort "
                              "that first"}};
    }
    if (pages_[page] == page_state::committed) leaving.push_back(page);
  }
  WEIR_TRY(leave(leaving, known));
  WEIR_TRY(drop_ahead(first));
  size_ = *rounded;
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<bytes> reservation::trim() try {
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY(sweep_locked());
  const bytes ahead = page_ * pages_.count_of(page_state::ahead);
  WEIR_TRY(drop_ahead(0));
  WEIR_TRY_VALUE(unmapped, lender_.unmap_parked(base_, base_ + page_.count() * pages_.count()));
  static_cast<void>(unmapped);
  return ahead;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

// --- Holds ---------------------------------------------------------------------------------------

result<std::shared_ptr<hold_record>> reservation::hold() try {
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  WEIR_TRY(sweep_locked());
  return holds_.add(pages_);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> reservation::tie_to_graph(driver::CUgraph graph) try {
  if (graph == nullptr) {
    return error{{.code = errc::invalid_argument, .detail = "graph: expected a graph, got null"}};
  }
  WEIR_TRY_VALUE(record, hold());
  const context_scope bound{allocator_.device()};
  auto tied = tie_record(record, graph, bound);
  if (!tied) record->ended.store(true, std::memory_order_release);
  return tied;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

void reservation::sweep() noexcept try {
  const detail::mutex_lock lock{mutex_};
  if (!closed_) detail::report_failure(sweep_locked());
} catch (const std::bad_alloc&) {
  // The next call sweeps.
}

/// Replays may be under way on any stream.
result<void> reservation::sweep_locked() {
  if (holds_.empty()) return {};
  const pages left = holds_.sweep(pages_);
  if (left.empty()) return {};
  return give_back(left, quiet_stream());
}

// --- The memory below, and the end ---------------------------------------------------------------

result<block_handles> reservation::handles_under(bytes offset) const try {
  const detail::mutex_lock lock{mutex_};
  WEIR_TRY(usable());
  const std::uint64_t page = offset / page_;
  if (page >= pages_.count() || pages_[static_cast<page_number>(page)] != page_state::committed) {
    return error{{.code = errc::not_mapped,
                  .detail = "offset " + to_string(offset) + " lies in no committed page"}};
  }
  block_handles all{.handles = {}, .offset = bytes{offset.count() % page_.count()}};
  const auto blocks = lender_.blocks_of(address_of(static_cast<page_number>(page)), page_);
  for (const std::uint64_t each : blocks) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    WEIR_TRY_VALUE(under, allocator_.handles_under(reinterpret_cast<void*>(each)));
    all.handles.insert(all.handles.end(), under.handles.begin(), under.handles.end());
  }
  return all;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

/// Whoever has handles or plans of it uses nothing any more.
result<void> reservation::close() noexcept try {
  const detail::mutex_lock lock{mutex_};
  if (closed_) return {};
  if (changes_ != 0 || moving_) {
    return error{{.code = errc::not_ready,
                  .detail = "pages are being committed, suspended or resumed; end that first"}};
  }
  WEIR_TRY(sweep_locked());
  if (!holds_.empty()) {
    return error{{.code = errc::not_ready,
                  .detail = "graphs or holds keep pages; destroy the graphs and end the holds "
                            "first"}};
  }
  closed_ = true;
  pages live;
  for (page_number page = 0; page < pages_.count(); ++page)
    if (pages_[page] != page_state::empty) live.push_back(page);
  result<void> outcome;
  if (!live.empty() && !suspended_ && allocator_) outcome = give_back(live, quiet_stream());
  if (allocator_) contents_.drop();  // the host memory of a closed allocator is gone
  auto removed = lender_.remove(base_);
  if (!removed) {
    keep_addresses();
    return removed;
  }
  auto freed = range_.close();
  if (quiet_) {
    auto ended = quiet_->close();
    if (!ended && freed) freed = std::move(ended);
  }
  return outcome ? std::move(freed) : std::move(outcome);
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

/// They may be in use: they last as long as the process.
void reservation::keep_addresses() noexcept {
  static std::mutex mutex;
  // Never destroyed, and made without memory of the heap.
  alignas(std::list<std::optional<address_range>>) static std::byte
      place[sizeof(std::list<std::optional<address_range>>)];
  static auto& kept = *new (place) std::list<std::optional<address_range>>;
  if (place_to_keep_it_.empty()) return;
  place_to_keep_it_.front().emplace(std::move(range_));
  const std::lock_guard lock{mutex};
  kept.splice(kept.end(), place_to_keep_it_);
}

}}}  // namespace weir::v0::growable
