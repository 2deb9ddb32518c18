// The public face: shells around the allocator's state, and the way past its lock.
#include "weir/allocator/caching_allocator.hpp"

#include <cmath>
#include <utility>

#include "heap/allocator_state.hpp"
#include "heap/created.hpp"

namespace weir::inline v0 {
namespace {

constexpr bytes plain_alignment{heap::unit};

[[noreturn]] void throw_failure(heap::allocator_state& inside, error reason, bytes size,
                                const stream_ref& stream) {
  if (reason.code == errc::out_of_memory)
    throw out_of_memory{std::move(reason), inside.explain(size, stream).text()};
  raise(std::move(reason));
}

// Out of line, so that the quick path in front of them needs no frame.

[[gnu::noinline]] void* allocate_or_throw(heap::allocator_state* inside, bytes size,
                                          const stream_ref& stream, bytes alignment) {
  if (inside == nullptr) raise({.code = errc::already_freed});
  if (alignment == plain_alignment) {
    void* hit = inside->allocate_quickly<heap::thread_cache::observed>(size, stream);
    if (hit == nullptr) hit = inside->allocate_closely(size, stream);
    if (hit != nullptr) return hit;
  }
  auto made = inside->allocate(size, stream, alignment, nullptr);
  if (!made) throw_failure(*inside, std::move(made).error(), size, stream);
  return *made;
}

[[gnu::noinline]] void free_or_report(heap::allocator_state* inside, void* pointer,
                                      const stream_ref* stream, bytes expected) noexcept {
  using heap::thread_cache;
  if (inside != nullptr && expected == heap::any_size &&
      (stream != nullptr
           ? inside->deallocate_quickly<thread_cache::observed>(pointer, *stream)
           : inside->deallocate_quickly<thread_cache::observed>(pointer, heap::allocation_order{})))
    return;
  if (inside != nullptr && inside->deallocate_closely(pointer, stream, expected)) return;
  detail::report_failure(inside == nullptr ? result<void>{errc::already_freed}
                                           : inside->deallocate(pointer, stream, expected));
}

}  // namespace

std::string_view name(block_state state) noexcept {
  switch (state) {
    case block_state::live:
      return "live";
    case block_state::thread_cached:
      return "thread_cached";
    case block_state::pending:
      return "pending";
    case block_state::stream_bound:
      return "stream_bound";
    case block_state::free:
      return "free";
    case block_state::hole:
      return "hole";
  }
  return "unknown";
}

// --- Requests and frees -------------------------------------------------------------------------

result<caching_allocator> caching_allocator::create(weir::device where, const options& settings) {
  WEIR_TRY_VALUE(inside, heap::allocator_state::create(where, settings));
  caching_allocator made{std::move(inside)};
  WEIR_TRY(heap::allocator_created(made, settings));
  return made;
}

void* caching_allocator::allocate(bytes size, const stream_ref& stream, bytes alignment) {
  heap::allocator_state* const inside = inside_.get();
  if (inside != nullptr && alignment == plain_alignment) [[likely]] {
    void* const hit = inside->allocate_quickly(size, stream);
    if (hit != nullptr) [[likely]]
      return hit;
  }
  return allocate_or_throw(inside, size, stream, alignment);
}

result<void*> caching_allocator::try_allocate(bytes size, const stream_ref& stream,
                                              bytes alignment) {
  heap::allocator_state* const inside = inside_.get();
  if (inside == nullptr) return errc::already_freed;
  if (alignment == plain_alignment) [[likely]] {
    void* hit = inside->allocate_quickly(size, stream);
    if (hit == nullptr) [[unlikely]]
      hit = inside->allocate_closely(size, stream);
    if (hit != nullptr) [[likely]]
      return hit;
  }
  return inside->allocate(size, stream, alignment, nullptr);
}

void caching_allocator::deallocate(void* pointer, const stream_ref& stream) noexcept {
  heap::allocator_state* const inside = inside_.get();
  if (inside != nullptr && inside->deallocate_quickly(pointer, stream)) [[likely]]
    return;
  free_or_report(inside, pointer, &stream, heap::any_size);
}

void caching_allocator::deallocate(void* pointer, bytes size, const stream_ref& stream) noexcept {
  free_or_report(inside_.get(), pointer, &stream, size);
}

void caching_allocator::deallocate(void* pointer) noexcept {
  heap::allocator_state* const inside = inside_.get();
  if (inside != nullptr && inside->deallocate_quickly(pointer, heap::allocation_order{})) [[likely]]
    return;
  free_or_report(inside, pointer, nullptr, heap::any_size);
}

result<void> caching_allocator::try_deallocate(void* pointer, const stream_ref& stream) {
  if (inside_ == nullptr) return errc::already_freed;
  if (inside_->deallocate_quickly(pointer, stream) ||
      inside_->deallocate_closely(pointer, &stream, heap::any_size)) [[likely]]
    return {};
  return inside_->deallocate(pointer, &stream, heap::any_size);
}

result<void> caching_allocator::try_deallocate(void* pointer, bytes size,
                                               const stream_ref& stream) {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->deallocate(pointer, &stream, size);
}

result<void> caching_allocator::try_deallocate(void* pointer) {
  if (inside_ == nullptr) return errc::already_freed;
  if (inside_->deallocate_quickly(pointer, heap::allocation_order{}) ||
      inside_->deallocate_closely(pointer, nullptr, heap::any_size)) [[likely]]
    return {};
  return inside_->deallocate(pointer, nullptr, heap::any_size);
}

result<void> caching_allocator::record_stream(void* pointer, const stream_ref& stream) {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->record_stream(pointer, stream);
}

result<bytes> caching_allocator::size_of(const void* pointer) const {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->size_of(pointer);
}

result<block_info> caching_allocator::block_at(const void* pointer) const {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->block_at(pointer);
}

result<block_handles> caching_allocator::handles_under(const void* pointer) const {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->handles_under(pointer);
}

// --- The rest -----------------------------------------------------------------------------------

weir::device caching_allocator::device() const noexcept { return inside_->device(); }

result<void> caching_allocator::close() {
  if (inside_ == nullptr) return {};
  return inside_->close();
}

memory_stats caching_allocator::stats() const {
  return inside_ == nullptr ? memory_stats{} : inside_->stats();
}
memory_stats caching_allocator::stats(weir::tag of) const {
  return inside_ == nullptr ? memory_stats{} : inside_->stats(of);
}
std::vector<tag_stats> caching_allocator::stats_by_tag() const {
  return inside_ == nullptr ? std::vector<tag_stats>{} : inside_->stats_by_tag();
}
void caching_allocator::reset_peaks() {
  if (inside_ != nullptr) inside_->reset_peaks();
}
allocator_snapshot caching_allocator::snapshot() const {
  return inside_ == nullptr ? allocator_snapshot{} : inside_->snapshot();
}
memory_report caching_allocator::explain(bytes size, const stream_ref& stream) const {
  return inside_ == nullptr ? memory_report{} : inside_->explain(size, stream);
}

result<bytes> caching_allocator::trim(bytes keep) {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->trim(keep);
}
result<bytes> caching_allocator::empty_cache() {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->empty_cache();
}
result<void> caching_allocator::release_stream(const stream_ref& stream) {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->release_stream(stream);
}

result<void> caching_allocator::set_limit(bytes most) {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->set_limit(most);
}
result<void> caching_allocator::set_limit_fraction(double of_device) {
  if (inside_ == nullptr) return errc::already_freed;
  if (!(of_device > 0 && of_device <= 1)) {
    return error{.code = errc::invalid_argument,
                 .detail = "a fraction of the device is above 0 and at most 1"};
  }
  const auto total = static_cast<double>(device().total_memory().count());
  return inside_->set_limit(bytes{static_cast<std::uint64_t>(std::floor(total * of_device))});
}
bytes caching_allocator::limit() const noexcept {
  return inside_ == nullptr ? bytes{} : inside_->limit();
}
result<void> caching_allocator::set_limit(weir::tag of, bytes most) {
  if (inside_ == nullptr) return errc::already_freed;
  return inside_->set_limit(of, most);
}

result<memory_pool> caching_allocator::create_pool(std::string_view name, pool_options settings) {
  if (inside_ == nullptr) return errc::already_freed;
  WEIR_TRY_VALUE(made, inside_->create_pool(name, settings));
  return memory_pool{std::move(made)};
}

result<graph_memory> caching_allocator::begin_capture(const stream_ref& stream) {
  if (inside_ == nullptr) return errc::already_freed;
  WEIR_TRY_VALUE(claim, inside_->begin_capture(stream));
  return graph_memory{std::move(claim)};
}

capture_notice caching_allocator::notice_captures() {
  if (inside_ == nullptr) return {};
  inside_->begin_notice();
  return capture_notice{inside_};
}

callback_registration caching_allocator::on_out_of_memory(out_of_memory_callback callback) {
  if (inside_ == nullptr || !callback) return {};
  const std::uint64_t key = inside_->add_callback(std::move(callback));
  return {inside_, key};
}

void caching_allocator::set_observer(event_sink* sink) {
  if (inside_ != nullptr) inside_->set_observer(sink);
}

// --- Pools, captures, callbacks -----------------------------------------------------------------

pool_id memory_pool::id() const noexcept { return inside_ == nullptr ? pool_id{} : inside_->id(); }
std::string_view memory_pool::name() const noexcept {
  return inside_ == nullptr ? std::string_view{} : std::string_view{inside_->name()};
}

memory_stats memory_pool::stats() const {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner();
  return owner == nullptr ? memory_stats{} : owner->stats(inside_->id());
}

void* memory_pool::allocate(bytes size, const stream_ref& stream, bytes alignment) const {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner();
  if (owner == nullptr) raise({.code = errc::already_freed});
  auto made = owner->allocate(size, stream, alignment, inside_.get());
  if (!made) throw_failure(*owner, std::move(made).error(), size, stream);
  return *made;
}

result<void*> memory_pool::try_allocate(bytes size, const stream_ref& stream,
                                        bytes alignment) const {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner();
  if (owner == nullptr) return errc::already_freed;
  return owner->allocate(size, stream, alignment, inside_.get());
}

result<block_handles> memory_pool::handles_under(const void* pointer) const {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner();
  if (owner == nullptr) return errc::already_freed;
  return owner->handles_under(pointer, inside_->id());
}

result<void*> memory_pool::allocate_at(void* address, bytes size, const stream_ref& stream) const {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner();
  if (owner == nullptr) return errc::already_freed;
  return owner->allocate_at(reinterpret_cast<std::uint64_t>(address), size, stream, *inside_);
}

result<bytes> memory_pool::empty_cache() const {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner();
  if (owner == nullptr) return errc::already_freed;
  return owner->empty_cache(inside_->id());
}

pool_snapshot memory_pool::snapshot() const {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner();
  return owner == nullptr ? pool_snapshot{} : owner->snapshot(inside_->id());
}

pool_scope::pool_scope(memory_pool where) noexcept
    : where_{std::move(where)}, before_{const_cast<heap::pool*>(heap::routed())} {
  if (where_) heap::routed() = where_.inside_.get();
  heap::here = {};  // the fast path does not look where requests go
}

pool_scope::~pool_scope() {
  heap::routed() = static_cast<const heap::pool*>(before_);
  heap::here = {};
}

graph_memory::~graph_memory() = default;

graph_memory& graph_memory::operator=(graph_memory&& other) noexcept {
  inside_ = std::move(other.inside_);
  return *this;
}

void graph_memory::end() noexcept {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner.lock();
  if (owner != nullptr) owner->end_capture(*inside_);
}

result<void> graph_memory::keep_with(driver::CUgraph graph) const {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner.lock();
  if (owner == nullptr) return errc::already_freed;
  return owner->keep_with(*inside_, graph);
}

memory_pool graph_memory::pool() const noexcept {
  const auto owner = inside_ == nullptr ? nullptr : inside_->owner.lock();
  return owner == nullptr ? memory_pool{} : memory_pool{owner->share_pool(inside_->pool)};
}

capture_notice::~capture_notice() {
  if (const auto owner = owner_.lock()) owner->end_notice();
}

capture_notice& capture_notice::operator=(capture_notice&& other) noexcept {
  if (this == &other) return *this;
  if (const auto owner = owner_.lock()) owner->end_notice();
  owner_ = std::move(other.owner_);
  return *this;
}

callback_registration::~callback_registration() {
  if (const auto owner = owner_.lock()) owner->remove_callback(key_);
}

callback_registration::callback_registration(callback_registration&& other) noexcept
    : owner_{std::move(other.owner_)}, key_{std::exchange(other.key_, 0)} {}

callback_registration& callback_registration::operator=(callback_registration&& other) noexcept {
  if (this == &other) return *this;
  if (const auto owner = owner_.lock()) owner->remove_callback(key_);
  owner_ = std::move(other.owner_);
  key_ = std::exchange(other.key_, 0);
  return *this;
}

}  // namespace weir::inline v0
