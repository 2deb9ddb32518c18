// SPDX-License-Identifier: Apache-2.0
// The ledger of pools and tags.
#include "heap/accounts.hpp"

#include <algorithm>
#include <limits>

namespace weir { inline namespace v0 { namespace heap {
namespace {

constexpr std::uint64_t key_of(pool_id pool, tag tag) {
  return std::uint64_t{pool.number()} << 16 | tag.number();
}

void add(gauge& to, std::int64_t change) noexcept {
  to.current += static_cast<std::uint64_t>(change);
}
/// Between two reads an amount may be short by hits that other threads have not folded in yet, even
/// below zero: where somebody else has freed them already. No peak may come of that.
void raise_to(gauge& gauge, std::uint64_t amount) noexcept {
  if (static_cast<std::int64_t>(gauge.peak) < static_cast<std::int64_t>(amount))
    gauge.peak = amount;
}
void raise(gauge& gauge) noexcept { raise_to(gauge, gauge.current); }

/// `more` than is counted centrally, but no more than `peak`: other threads may have freed other
/// blocks since, and the size that was asked for is never above the size of the block.
std::uint64_t at_most(const gauge& gauge, std::uint64_t more, std::uint64_t peak) noexcept {
  const auto amount = static_cast<std::int64_t>(gauge.current + more);
  return static_cast<std::uint64_t>(std::min(amount, static_cast<std::int64_t>(peak)));
}

}  // namespace

void ledger::add_pending() noexcept {
  active.current = allocated.current + pending;
  active_requested.current = requested.current + pending_requested;
  active_blocks.current = blocks.current + pending_blocks;
}

void ledger::raise_peaks() noexcept {
  add_pending();
  for (gauge* const each :
       {&requested, &allocated, &active, &blocks, &active_requested, &active_blocks})
    raise(*each);
}

void ledger::raise_peaks(const live_amounts& more) noexcept {
  add_pending();
  const auto more_requested = static_cast<std::uint64_t>(more.requested);
  const auto more_allocated = static_cast<std::uint64_t>(more.allocated);
  const auto more_blocks = static_cast<std::uint64_t>(more.blocks);
  raise_to(allocated, allocated.current + more_allocated);
  raise_to(active, active.current + more_allocated);
  raise_to(requested, at_most(requested, more_requested, allocated.peak));
  raise_to(active_requested, at_most(active_requested, more_requested, active.peak));
  raise_to(blocks, blocks.current + more_blocks);
  raise_to(active_blocks, active_blocks.current + more_blocks);
}

void ledger::raise_peaks(const ledger& part) noexcept {
  for (const auto member : {&ledger::requested, &ledger::allocated, &ledger::active,
                            &ledger::blocks, &ledger::active_requested, &ledger::active_blocks})
    raise_to(this->*member, (part.*member).peak);
}

live_amounts ledger::below_peaks() const noexcept {
  const auto room = [](const gauge& live, std::uint64_t waiting, const gauge& total) {
    return std::min(static_cast<std::int64_t>(live.peak - live.current),
                    static_cast<std::int64_t>(total.peak - (live.current + waiting)));
  };
  return {.requested = room(requested, pending_requested, active_requested),
          .allocated = room(allocated, pending, active),
          .blocks = room(blocks, pending_blocks, active_blocks)};
}

void ledger::reset_peaks() noexcept {
  add_pending();
  for (gauge* const each :
       {&requested, &allocated, &active, &blocks, &active_requested, &active_blocks})
    each->reset_peak();
}

void ledger::reset_counters() noexcept { allocations = frees = hits = misses = failures = 0; }

void ledger::fill(memory_stats& into) const noexcept {
  into.requested = {bytes{requested.current}, bytes{requested.peak}};
  into.allocated = {bytes{allocated.current}, bytes{allocated.peak}};
  into.active = {bytes{allocated.current + pending}, bytes{active.peak}};
  into.blocks = blocks;
  into.active_requested = {bytes{requested.current + pending_requested},
                           bytes{active_requested.peak}};
  into.active_blocks = {blocks.current + pending_blocks, active_blocks.peak};
  into.pending = bytes{pending};
  into.allocations = allocations;
  into.frees = frees;
  into.hits = hits;
  into.misses = misses;
  into.heap_hits = allocations - hits - misses;
  into.failures = failures;
}

accounts::accounts() {
  add_pool(pool_id{});
  static_cast<void>(number_of(pool_id{}, tag{}));
}

ledger& accounts::tag_ledger(tag tag) {
  const std::size_t index = tag.number();
  if (tags_.size() <= index) tags_.resize(index + 1);
  if (tags_[index] == nullptr) tags_[index] = std::make_unique<tag_entry>();
  return tags_[index]->sums;
}

result<account_number> accounts::number_of(pool_id pool, tag tag) {
  if (pool == pool_id{}) {
    const account_number number = tag.number();
    if (number < cells_.size() && cells_[number].by_pool != nullptr) [[likely]]
      return number;
    // Those below as well: a thread's cache counts every account up to the highest it met, and hits
    // are counted there before their tag is ever asked for here.
    static_cast<void>(tag_ledger(tag));
    if (cells_.size() <= number) cells_.resize(std::size_t{number} + 1);
    for (account_number i = 0; i <= number; ++i) {
      if (cells_[i].by_pool != nullptr) continue;
      WEIR_TRY_VALUE(each, tag::numbered(i));
      cells_[i] = {pool, each, pools_.at(pool).get(), &tag_ledger(each)};
    }
    return number;
  }
  const auto known = private_.find(key_of(pool, tag));
  if (known != private_.end()) return known->second;
  ledger& by_tag = tag_ledger(tag);
  if (cells_.size() < first_private_account) cells_.resize(first_private_account);
  if (unused_.empty() && cells_.size() > std::numeric_limits<account_number>::max()) {
    return error{
        {.code = errc::limit_exceeded,
         .detail = "too many combinations of private pool and tag; reuse tags or close pools"}};
  }
  if (unused_.empty()) {
    const auto fresh = static_cast<account_number>(cells_.size());
    cells_.emplace_back();
    unused_.push_back(fresh);
  }
  unused_.reserve(cells_.size() - first_private_account);  // so that remove_pool() cannot fail
  const account_number number = unused_.back();
  private_.emplace(key_of(pool, tag), number);
  unused_.pop_back();
  cells_[number] = {pool, tag, pools_.at(pool).get(), &by_tag};
  return number;
}

template <class Change>
void accounts::change(account_number account, const Change& apply) const noexcept {
  const cell& at = cells_[account];
  apply(total_);
  apply(*at.by_pool);
  apply(*at.by_tag);
}

void accounts::open_page(account_number account) noexcept {
  enter_page();
  page_.account = account;
  page_.room = total_.below_peaks();
  for (const ledger* const each : {cells_[account].by_pool, cells_[account].by_tag}) {
    const live_amounts other = each->below_peaks();
    page_.room.requested = std::min(page_.room.requested, other.requested);
    page_.room.allocated = std::min(page_.room.allocated, other.allocated);
    page_.room.blocks = std::min(page_.room.blocks, other.blocks);
  }
}

void accounts::enter_page() const noexcept {
  if (page_.account == page::nobodys) return;
  change(static_cast<account_number>(page_.account), [this](ledger& sums) {
    add(sums.requested, page_.requested);
    add(sums.allocated, page_.allocated);
    sums.blocks.current += page_.allocations - page_.frees;
    sums.allocations += page_.allocations;
    sums.hits += page_.hits;
    sums.frees += page_.frees;
  });
  page_ = {};
}

void accounts::raise_peaks_with_page() noexcept {
  const auto account = static_cast<account_number>(page_.account);
  enter_page();
  change(account, [](ledger& sums) { sums.raise_peaks(); });
  open_page(account);
}

void accounts::pending(account_number account, std::uint64_t requested,
                       std::uint64_t rounded) noexcept {
  enter_page();
  change(account, [&](ledger& sums) {
    sums.pending += rounded;
    sums.pending_requested += requested;
    ++sums.pending_blocks;
  });
}

void accounts::waited(account_number account, std::uint64_t requested,
                      std::uint64_t rounded) noexcept {
  enter_page();
  change(account, [&](ledger& sums) {
    sums.pending -= rounded;
    sums.pending_requested -= requested;
    --sums.pending_blocks;
  });
}

void accounts::missed(account_number account) noexcept {
  change(account, [](ledger& sums) { ++sums.misses; });
}

void accounts::failed(pool_id pool, tag tag) noexcept {
  ++total_.failures;
  if (const auto entry = pools_.find(pool); entry != pools_.end()) ++entry->second->failures;
  if (tag.number() < tags_.size() && tags_[tag.number()] != nullptr)
    ++tags_[tag.number()]->sums.failures;
}

void accounts::raise_peaks() noexcept {
  enter_page();
  total_.raise_peaks();
  const auto raise_part = [this](ledger& part) {
    part.raise_peaks();
    total_.raise_peaks(part);
  };
  for (auto& [id, sums] : pools_) raise_part(*sums);
  for (auto& each : tags_)
    if (each != nullptr) raise_part(each->sums);
}

void accounts::raise_peaks_with_page(const live_amounts& more) noexcept {
  const auto account = static_cast<account_number>(page_.account);
  enter_page();
  change(account, [&](ledger& sums) { sums.raise_peaks(more); });
}

void accounts::raise_tag_peaks(account_number account, const live_amounts& more) noexcept {
  enter_page();
  cells_[account].by_tag->raise_peaks(more);
}

void accounts::raise_common_peaks(const live_amounts& more) noexcept {
  enter_page();
  total_.raise_peaks(more);
  cells_.front().by_pool->raise_peaks(more);
}

void accounts::reset_peaks() noexcept {
  enter_page();
  total_.reset_peaks();
  for (auto& [id, sums] : pools_) sums->reset_peaks();
  for (auto& each : tags_)
    if (each != nullptr) each->sums.reset_peaks();
}

void accounts::reset_counters() noexcept {
  enter_page();
  total_.reset_counters();
  for (auto& [id, sums] : pools_) sums->reset_counters();
  for (auto& each : tags_)
    if (each != nullptr) each->sums.reset_counters();
}

void accounts::add_pool(pool_id pool) { pools_.emplace(pool, std::make_unique<ledger>()); }

void accounts::remove_pool(pool_id pool) noexcept {
  enter_page();
  for (auto each = private_.begin(); each != private_.end();) {
    if (cells_[each->second].pool != pool) {
      ++each;
      continue;
    }
    cells_[each->second] = {};
    unused_.push_back(each->second);  // number_of() kept room for it
    each = private_.erase(each);
  }
  pools_.erase(pool);
}

void accounts::set_limit(tag tag, std::uint64_t most) {
  static_cast<void>(tag_ledger(tag));
  tags_[tag.number()]->limit = most;
}

std::uint64_t accounts::limit(std::uint16_t tag_number) const noexcept {
  return tag_number < tags_.size() && tags_[tag_number] != nullptr ? tags_[tag_number]->limit
                                                                   : bytes::max().count();
}

bool accounts::limited(std::uint16_t tag_number) const noexcept {
  return tag_number < tags_.size() && tags_[tag_number] != nullptr &&
         tags_[tag_number]->limit != bytes::max().count();
}

bool accounts::any_limit() const noexcept {
  return std::any_of(tags_.begin(), tags_.end(), [](const auto& each) {
    return each != nullptr && each->limit != bytes::max().count();
  });
}

std::uint64_t accounts::claimed(tag tag) const noexcept {
  return tag.number() < tags_.size() && tags_[tag.number()] != nullptr
             ? tags_[tag.number()]->claimed
             : 0;
}

bool accounts::may_allocate(tag tag, std::uint64_t more) const noexcept {
  const std::uint64_t most = limit(tag);
  if (most == bytes::max().count()) return true;
  enter_page();
  const std::uint64_t live = tags_[tag.number()]->sums.allocated.current + claimed(tag);
  return live <= most && more <= most - live;
}

const ledger* accounts::of(pool_id pool) const noexcept {
  enter_page();
  const auto entry = pools_.find(pool);
  return entry == pools_.end() ? nullptr : entry->second.get();
}

const ledger* accounts::of(tag tag) const noexcept {
  enter_page();
  const std::size_t index = tag.number();
  return index < tags_.size() && tags_[index] != nullptr ? &tags_[index]->sums : nullptr;
}

std::size_t accounts::footprint() const noexcept {
  return cells_.capacity() * sizeof(cell) + (tags_.size() + pools_.size()) * sizeof(tag_entry);
}

}}}  // namespace weir::v0::heap
