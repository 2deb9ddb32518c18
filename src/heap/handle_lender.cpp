// SPDX-License-Identifier: Apache-2.0
// Lending handles, taking them back, and the mappings that are left meanwhile.
#include "heap/handle_lender.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "base/hexadecimal.hpp"
#include "base/host_memory.hpp"
#include "device/surely.hpp"
#include "heap/reclaimer.hpp"
#include "order/awaited_marks.hpp"

namespace weir { inline namespace v0 { namespace heap {

using detail::no_host_memory;
using order::driver_access;

// --- Reservations --------------------------------------------------------------------------------

result<void> handle_lender::add(lent_range range) try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  if (!host_.lends_handles()) {
    return error{{.code = errc::not_supported,
                  .detail = "growable memory needs an arena; create the allocator with the policy "
                            "balanced, throughput, compact or never_move, and without heap_debug"}};
  }
  ranges_.push_back(std::move(range));
  core_.placement_.outside = this;
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> handle_lender::remove(std::uint64_t base) try {
  if (core_.home_->forked()) return detail::fork_error();
  const detail::mutex_lock lock{core_.mutex_};
  const auto is_meant = [&](const lent_range& each) { return each.base == base; };
  const auto range = std::find_if(ranges_.begin(), ranges_.end(), is_meant);
  if (range == ranges_.end()) return {};
  const std::uint64_t end = range->base + range->size;
  if (core_.usable()) {
    driver_access driver{core_.device_};
    WEIR_TRY(driver.entered());
    auto empty = vacate(base, end, driver);
    if (!empty && empty.code() != errc::closed) return empty;
  }
  if (!mappings_.none_in(base, end)) {
    return error{
        {.code = errc::still_live,
         .detail = "pages are mapped that queued work may use; their addresses stay reserved"}};
  }
  std::erase_if(ranges_, is_meant);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

const lent_range* handle_lender::range_of(std::uint64_t address) const noexcept {
  for (const lent_range& each : ranges_)
    if (address - each.base < each.size) return &each;
  return nullptr;
}

// --- Lending -------------------------------------------------------------------------------------

result<void> handle_lender::lend(std::span<const std::uint64_t> pages, bytes page,
                                 const stream_ref& stream) try {
  WEIR_TRY(core_.usable());
  WEIR_TRY_VALUE(caller, host_.identify(stream));
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  std::size_t done = 0;
  const auto fail = [&](error reason) {
    core_.mutex_.assert_held();
    undo(pages.first(done), page, caller);
    return reason;
  };
  try {
    auto lent = lend_all(pages, page, caller, done);
    if (!lent) return fail(std::move(lent).error());
  } catch (const std::bad_alloc&) {
    return fail(no_host_memory());
  } catch (const callback_exception&) {
    undo(pages.first(done), page, caller);
    throw;
  }
  for (const std::uint64_t each : pages) tell(memory_event_kind::allocate, each, page, &caller);
  return {};
} catch (const callback_exception& passed) {
  std::rethrow_exception(passed.thrown);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> handle_lender::lend_all(std::span<const std::uint64_t> pages, bytes page,
                                     const identified_stream& stream, std::size_t& done) {
  driver_access driver{core_.device_};
  for (const std::uint64_t each : pages) {
    WEIR_TRY(lend_page(each, page, stream, driver));
    ++done;
  }
  return grant_all(pages, page, driver);
}

result<void> handle_lender::lend_page(std::uint64_t page, bytes size,
                                      const identified_stream& stream, driver_access& driver) {
  const std::uint64_t end = page + size.count();
  WEIR_TRY_VALUE(again, lend_again(page, size, stream));
  if (again) return {};
  parts from;
  try {
    auto lent = acquire(size, stream, from);
    if (lent) lent = vacate(page, end, driver);
    if (lent) lent = map_parts(page, from, driver);
    if (!lent) free_parts(from, stream);
    return lent;
  } catch (...) {  // no host memory, or what a callback of the user's threw
    free_parts(from, stream);
    throw;
  }
}

/// The memory that is mapped there still, if all of it is free for the stream: no driver call.
result<bool> handle_lender::lend_again(std::uint64_t page, bytes size,
                                       const identified_stream& stream) {
  const std::uint64_t end = page + size.count();
  if (!mappings_.cover(page, end)) return false;
  std::uint64_t at = page;
  result<void> failed;
  while (at < end) {
    // Looked up each time: a request may let go of the lock.
    const auto found = mappings_.first_at(at);
    if (found == mappings_.end() || found->first != at || !found->second.accessible) break;
    const page_mapping was = found->second;
    auto block = host_.allocate_handle(was.memory.size, stream,
                                       {.address = was.block, .only_free_now = true});
    if (!block && block.code() == errc::out_of_memory) failed = std::move(block).error();
    if (!block) break;
    const auto now = mappings_.first_at(at);
    const bool is_there = now != mappings_.end() && now->first == at;
    if (!is_there || core_.pools_.front()->memory->handle_of(*block) != was.memory) {
      free_parts({{core_.blocks_[*block].address, {}}}, stream);
      break;
    }
    now->second.lent = true;
    ++core_.pools_.front()->lent;
    at = now->second.end();
  }
  if (at == end) return true;
  if (at != page) WEIR_TRY(park(page, at, stream));
  if (!failed) return std::move(failed).error();
  return false;
}

/// One handle, or smaller ones that make up the size.
result<void> handle_lender::acquire(bytes size, const identified_stream& stream, parts& into) {
  driver_access driver{core_.device_};
  bool polled = false;
  into.reserve(size.count() / (std::uint64_t{2} << 20) + 1);  // so that what was lent is not lost
  for (bytes missing = size; missing != bytes{};) {
    auto block = host_.allocate_handle(missing, stream, {.only_free_now = true});
    if (!block && block.code() == errc::not_found && !polled) {
      polled = true;
      WEIR_TRY(driver.entered());
      WEIR_TRY_VALUE(slot, slot_of(core_, stream, driver));
      WEIR_TRY_VALUE(completed, progress_.poll_streams(driver, slot));
      if (completed) continue;
    }
    if (!block && block.code() == errc::not_found)
      block = host_.allocate_handle(missing, stream, {});
    if (!block) return std::move(block).error();
    into.push_back(
        {core_.blocks_[*block].address, core_.pools_.front()->memory->handle_of(*block)});
    missing -= into.back().memory.size;
  }
  return {};
}

result<void> handle_lender::map_parts(std::uint64_t page, const parts& from,
                                      driver_access& driver) {
  WEIR_TRY(driver.entered());
  std::vector<vmm::physical> handles;
  for (const part& each : from) handles.push_back(each.memory);
  std::uint64_t at = page;
  // Entered before they are mapped, because that may fail.
  const auto forget = [&] {
    core_.mutex_.assert_held();
    for (auto each = mappings_.first_at(page); each != mappings_.end() && each->first < at;)
      each = mappings_.erase(each);
  };
  try {
    for (const part& each : from) {
      mappings_.add({.address = at, .block = each.block, .memory = each.memory, .lent = true});
      at += each.memory.size.count();
    }
  } catch (const std::bad_alloc&) {
    forget();
    return no_host_memory();
  }
  auto mapped = vmm::map(driver.enter(), page, handles);
  if (!mapped) {
    forget();
    return mapped;
  }
  core_.pools_.front()->lent += static_cast<std::uint32_t>(from.size());
  return {};
}

/// One call for mappings that lie side by side.
result<void> handle_lender::grant_all(std::span<const std::uint64_t> pages, bytes page,
                                      driver_access& driver) {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  const auto grant_range = [&]() -> result<void> {
    core_.mutex_.assert_held();
    if (begin == end) return {};
    WEIR_TRY(driver.entered());
    WEIR_TRY(vmm::set_access(driver.enter(), begin, bytes{end - begin}, core_.placement_.rights));
    for (auto each = mappings_.first_at(begin); each != mappings_.end() && each->first < end;
         ++each)
      each->second.accessible = true;
    return {};
  };
  for (const std::uint64_t at : pages) {
    for (auto each = mappings_.first_at(at);
         each != mappings_.end() && each->first < at + page.count(); ++each) {
      if (each->second.accessible) continue;
      if (each->first != end) {
        WEIR_TRY(grant_range());
        begin = each->first;
      }
      end = each->second.end();
    }
  }
  return grant_range();
}

/// Nobody has used what was lent. What had no access yet was never used, and can be unmapped.
void handle_lender::undo(std::span<const std::uint64_t> pages, bytes page,
                         const identified_stream& stream) noexcept {
  for (const std::uint64_t at : pages) {
    const std::uint64_t end = at + page.count();
    try {
      detail::report_failure(park(at, end, stream));
      driver_access driver{core_.device_};
      for (auto each = mappings_.first_at(at); each != mappings_.end() && each->first < end;) {
        if (each->second.accessible) {
          ++each;
          continue;
        }
        each->second.used = {};
        auto gone = unmap_at(each, driver.enter());
        if (!gone) gone = unmap_at(each, driver.enter());
        if (!gone) report_error(gone.error());
        each = gone ? *gone : std::next(each);
      }
    } catch (const std::bad_alloc&) {
      detail::report_failure(result<void>{no_host_memory()});
    }
  }
}

void handle_lender::free_parts(const parts& unused, const identified_stream& stream) noexcept {
  for (const part& each : unused) {
    try {
      detail::report_failure(host_.free_handle(each.block, stream));
    } catch (const std::bad_alloc&) {
      detail::report_failure(result<void>{no_host_memory()});
    }
  }
}

// --- Taking back ---------------------------------------------------------------------------------

result<void> handle_lender::prepare_take_back(const stream_ref& stream) try {
  WEIR_TRY(core_.usable());
  WEIR_TRY_VALUE(caller, host_.identify(stream));
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  driver_access driver{core_.device_};
  WEIR_TRY_VALUE(slot, slot_of(core_, caller, driver));
  core_.pending_.prepare(no_block);
  if (core_.pools_.front()->memory != nullptr) core_.pools_.front()->memory->prepare_free(slot);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> handle_lender::take_back(std::span<const std::uint64_t> pages, bytes page,
                                      const stream_ref& stream) try {
  WEIR_TRY(core_.usable());
  WEIR_TRY_VALUE(caller, host_.identify(stream));
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  driver_access driver{core_.device_};
  WEIR_TRY(slot_of(core_, caller, driver));
  // From here on nothing fails but frees of blocks that somebody else has freed.
  for (const std::uint64_t each : pages) {
    tell(memory_event_kind::deallocate, each, page, &caller);
    detail::report_failure(park(each, each + page.count(), caller));
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> handle_lender::park(std::uint64_t begin, std::uint64_t end,
                                 const identified_stream& stream) {
  driver_access driver{core_.device_};
  WEIR_TRY_VALUE(slot, slot_of(core_, stream, driver));
  result<void> outcome;
  for (auto each = mappings_.first_at(begin); each != mappings_.end() && each->first < end;
       ++each) {
    page_mapping& mapping = each->second;
    if (!mapping.lent) continue;
    auto freed = host_.free_handle(mapping.block, stream);
    if (!freed && outcome) outcome = std::move(freed);
    mapping.lent = false;
    mapping.used = core_.order_.now(slot);
    --core_.pools_.front()->lent;
  }
  return outcome;
}

// --- Parked mappings -----------------------------------------------------------------------------

result<page_mappings::iterator> handle_lender::unmap_at(page_mappings::iterator mapping,
                                                        const context_scope& bound) {
  WEIR_TRY(vmm::unmap(bound, mapping->first, mapping->second.memory.size));
  tell(memory_event_kind::release, mapping->first, mapping->second.memory.size);
  return mappings_.erase(mapping);
}

result<void> handle_lender::vacate(std::uint64_t begin, std::uint64_t end, driver_access& driver) {
  WEIR_TRY(await_use(begin, end, driver));
  for (auto each = mappings_.first_at(begin); each != mappings_.end() && each->first < end;) {
    if (each->second.lent) {
      ++each;
      continue;
    }
    WEIR_TRY(driver.entered());
    WEIR_TRY_VALUE(next, unmap_at(each, driver.enter()));
    each = next;
  }
  return {};
}

/// Work that was queued before a page was taken back may use its mapping still: it is waited for,
/// without the lock.
result<void> handle_lender::await_use(std::uint64_t begin, std::uint64_t end,
                                      driver_access& driver) {
  for (int attempt = 0;; ++attempt) {
    order::awaited_marks marks;
    bool in_use = false;
    bool marked = true;
    for (auto each = mappings_.first_at(begin); each != mappings_.end() && each->first < end;
         ++each) {
      if (each->second.lent || core_.order_.completed(each->second.used)) continue;
      in_use = true;
      marked = core_.order_.add_marks_for(each->second.used, marks) && marked;
    }
    if (!in_use) return {};
    WEIR_TRY(driver.entered());
    if (attempt == 0) {
      WEIR_TRY(progress_.poll_streams(driver, no_stream));
    } else if (core_.order_.paused() || attempt > 2) {
      return error{{.code = errc::not_ready,
                    .detail =
                        "work may use what was mapped at the page before, and cannot be waited "
                        "for while a stream is captured; commit another page, or commit later"}};
    } else if (attempt == 1 && marked) {
      WEIR_TRY(progress_.wait_for(marks, driver));
    } else {
      WEIR_TRY(progress_.wait_for_all_work(driver));
    }
  }
}

result<void> handle_lender::await_all_work() try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  driver_access driver{core_.device_};
  WEIR_TRY_VALUE(capturing, progress_.any_capturing(driver));
  if (capturing) {
    return error{{.code = errc::capture_forbidden,
                  .detail = "a stream is being captured, and its work cannot be waited for"}};
  }
  return progress_.wait_for_all_work(driver);
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<bytes> handle_lender::unmap_parked(std::uint64_t begin, std::uint64_t end) try {
  WEIR_TRY(core_.usable());
  const detail::mutex_lock lock{core_.mutex_};
  WEIR_TRY(core_.usable());
  driver_access driver{core_.device_};
  WEIR_TRY(driver.entered());
  WEIR_TRY(progress_.poll_streams(driver, no_stream));
  bytes unmapped{};
  for (auto each = mappings_.first_at(begin); each != mappings_.end() && each->first < end;) {
    if (each->second.lent || !core_.order_.completed(each->second.used)) {
      ++each;
      continue;
    }
    const bytes size = each->second.memory.size;
    WEIR_TRY_VALUE(next, unmap_at(each, driver.enter()));
    unmapped += size;
    each = next;
  }
  return unmapped;
} catch (const std::bad_alloc&) {
  return no_host_memory();
}

result<void> handle_lender::unmap(const vmm::physical& memory, const context_scope& bound) {
  core_.mutex_.assert_held();
  for (auto each = mappings_.find_parked(memory); each != mappings_.end();
       each = mappings_.find_parked(memory))
    WEIR_TRY(unmap_at(each, bound));
  return {};
}

result<void> handle_lender::unmap_all(const context_scope& bound) {
  core_.mutex_.assert_held();
  for (auto each = mappings_.begin(); each != mappings_.end();) {
    if (each->second.lent) {
      ++each;
      continue;
    }
    WEIR_TRY_VALUE(next, unmap_at(each, bound));
    each = next;
  }
  return {};
}

result<void> handle_lender::grant(const vmm::access& peer, const context_scope& bound) {
  core_.mutex_.assert_held();
  for (auto each = mappings_.begin(); each != mappings_.end(); ++each)
    if (each->second.accessible)
      WEIR_TRY(vmm::set_access(bound, each->first, each->second.memory.size, {&peer, 1}));
  return {};
}

result<void> handle_lender::end(const context_scope& bound) noexcept {
  core_.mutex_.assert_held();
  result<void> outcome;
  for (auto each = mappings_.begin(); each != mappings_.end();) {
    auto gone = vmm::unmap_surely(bound, each->first, each->second.memory.size);
    if (!gone) {
      ++each;
      if (outcome) outcome = std::move(gone);
      continue;
    }
    tell(memory_event_kind::release, each->first, each->second.memory.size);
    each = mappings_.erase(each);
  }
  return outcome;
}

// --- Inspection ----------------------------------------------------------------------------------

std::string handle_lender::describe(std::uint64_t address) const {
  core_.mutex_.assert_held();
  const lent_range* const range = range_of(address);
  if (range == nullptr) return {};
  const std::uint64_t page = (address - range->base) / range->page;
  std::string text = detail::hexadecimal(address) + " is in page " + std::to_string(page) +
                     " of growable memory \"" + range->name + "\", at offset " +
                     to_string(bytes{address - range->base}) + ": ";
  const auto there = mappings_.first_at(address);
  if (there == mappings_.end() || there->first > address)
    return text + "the page is not committed, and nothing is mapped there; commit it before use";
  if (there->second.lent) return text + "the page is committed";
  return text + "the page was decommitted, and its memory may serve others; commit it before use";
}

std::vector<std::uint64_t> handle_lender::blocks_of(std::uint64_t page, bytes size) const {
  const detail::mutex_lock lock{core_.mutex_};
  std::vector<std::uint64_t> blocks;
  for (auto each = mappings_.first_at(page);
       each != mappings_.end() && each->first < page + size.count(); ++each)
    if (each->second.lent) blocks.push_back(each->second.block);
  return blocks;
}

void handle_lender::tell(memory_event_kind kind, std::uint64_t address, bytes size,
                         const identified_stream* stream) const noexcept {
  if (core_.block_watch_ == nullptr) return;
  const lent_range* const range = range_of(address);
  core_.block_watch_->on_event({.kind = kind,
                                .tag = current_tag().number(),
                                .device = core_.device_.id(),
                                .stream = stream == nullptr ? stream_id{} : stream->id,
                                .address = address,
                                .other_address = range == nullptr ? 0 : range->base,
                                .size = size.count(),
                                .rounded = size.count()});
}

}}}  // namespace weir::v0::heap
