// SPDX-License-Identifier: Apache-2.0
// The public faces of growable memory.
#include "weir/growable/growable_memory.hpp"

#include <utility>

#include "device/state.hpp"
#include "growable/reservation.hpp"

namespace weir { inline namespace v0 {

using growable::reservation;

// --- Plans ---------------------------------------------------------------------------------------

growable_plan::growable_plan(std::shared_ptr<reservation> of,
                             std::unique_ptr<growable::page_change> change) noexcept
    : of_{std::move(of)}, change_{std::move(change)} {}

growable_plan::growable_plan() noexcept = default;

growable_plan::growable_plan(growable_plan&&) noexcept = default;

growable_plan& growable_plan::operator=(growable_plan&& other) noexcept {
  if (this == &other) return *this;
  abort();
  of_ = std::move(other.of_);
  change_ = std::move(other.change_);
  return *this;
}

growable_plan::~growable_plan() { abort(); }

void growable_plan::commit() noexcept {
  const auto change = std::move(change_);
  const auto of = std::move(of_);
  if (change != nullptr) detail::report_failure(of->apply(*change));
}

void growable_plan::abort() noexcept {
  const auto change = std::move(change_);
  const auto of = std::move(of_);
  if (change != nullptr) of->cancel(*change);
}

// --- Holds ---------------------------------------------------------------------------------------

growable_hold::growable_hold(std::shared_ptr<reservation> of,
                             std::shared_ptr<growable::hold_record> record) noexcept
    : of_{std::move(of)}, record_{std::move(record)} {}

growable_hold::growable_hold(growable_hold&&) noexcept = default;

growable_hold& growable_hold::operator=(growable_hold&& other) noexcept {
  if (this == &other) return *this;
  close();
  of_ = std::move(other.of_);
  record_ = std::move(other.record_);
  return *this;
}

growable_hold::~growable_hold() { close(); }

void growable_hold::close() noexcept {
  const auto record = std::move(record_);
  const auto of = std::move(of_);
  if (record == nullptr) return;
  record->ended.store(true, std::memory_order_release);
  of->sweep();
}

// --- Growable memory -----------------------------------------------------------------------------

result<growable_memory> growable_memory::reserve(const caching_allocator& allocator, bytes size,
                                                 const growable_options& options) {
  WEIR_TRY_VALUE(made, reservation::create(allocator, size, options));
  return growable_memory{std::move(made)};
}

void* growable_memory::data() const noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return state_ == nullptr ? nullptr : reinterpret_cast<void*>(state_->base());
}

bytes growable_memory::size() const noexcept {
  return state_ == nullptr ? bytes{} : state_->size();
}

bytes growable_memory::page_size() const noexcept {
  return state_ == nullptr ? bytes{} : state_->page();
}

std::string_view growable_memory::name() const noexcept {
  return state_ == nullptr ? std::string_view{} : std::string_view{state_->name()};
}

growable_stats growable_memory::stats() const {
  if (state_ == nullptr) raise(errc::moved_from);
  return state_->stats();
}

bool growable_memory::is_committed(bytes offset, bytes size) const {
  if (state_ == nullptr) raise(errc::moved_from);
  return state_->is_committed({offset, size});
}

result<void> growable_memory::commit(bytes offset, bytes size, const stream_ref& stream) const {
  const byte_range range{offset, size};
  return commit({&range, 1}, stream);
}

result<void> growable_memory::commit(std::span<const byte_range> ranges,
                                     const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  WEIR_TRY_VALUE(change, state_->open(ranges, {}, stream));
  return state_->apply(*change);
}

result<void> growable_memory::decommit(bytes offset, bytes size, const stream_ref& stream) const {
  const byte_range range{offset, size};
  return decommit({&range, 1}, stream);
}

result<void> growable_memory::decommit(std::span<const byte_range> ranges,
                                       const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->decommit(ranges, stream);
}

result<growable_plan> growable_memory::prepare(std::span<const byte_range> commits,
                                               std::span<const byte_range> decommits,
                                               const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  WEIR_TRY_VALUE(change, state_->open(commits, decommits, stream));
  return growable_plan{state_, std::move(change)};
}

result<void> growable_memory::commit_ahead(bytes watermark, const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->commit_ahead(watermark, stream);
}

result<void> growable_memory::resize(bytes size, const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->resize(size, stream);
}

result<bytes> growable_memory::trim() const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->trim();
}

result<void> growable_memory::tie_to_graph(driver::CUgraph graph) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->tie_to_graph(graph);
}

result<growable_hold> growable_memory::hold() const {
  if (state_ == nullptr) return errc::moved_from;
  WEIR_TRY_VALUE(record, state_->hold());
  return growable_hold{state_, std::move(record)};
}

result<bytes> growable_memory::suspend(suspended_contents contents) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->suspend(contents);
}

result<void> growable_memory::resume(const stream_ref& stream) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->resume(stream);
}

result<block_handles> growable_memory::handles_under(bytes offset) const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->handles_under(offset);
}

result<void> growable_memory::close() const {
  if (state_ == nullptr) return errc::moved_from;
  return state_->close();
}

std::string to_string(const growable_memory& memory) {
  if (!memory) return "growable memory, moved from";
  const growable_stats now = memory.stats();
  return "growable \"" + std::string{memory.name()} + "\": " + to_string(now.committed) +
         " committed of " + to_string(now.reserved) + " in pages of " + to_string(now.page);
}

}}  // namespace weir::v0
