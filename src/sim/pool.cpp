// One stream-ordered memory pool, with the driver's rules of reuse, growth and release.
#include "sim/pool.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "sim/pools.hpp"
#include "sim/state.hpp"
#include "weir/base/checked.hpp"

namespace weir::inline v0::sim {

namespace {

/// Tells two pools apart, also those of different processes.
std::uint64_t make_nonce() {
  static std::atomic<std::uint64_t> count{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::uint64_t mixed = static_cast<std::uint64_t>(now) ^ static_cast<std::uint64_t>(::getpid())
                                                              << 32;
  mixed = (mixed ^ count.fetch_add(1)) * 0x9e3779b97f4a7c15ULL;
  return mixed ^ (mixed >> 29);
}

}  // namespace

pool::pool(state& machine, const CUmemPoolProps& properties, bool is_default)
    : machine_{machine},
      device_{properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties.location.id
                                                                      : -1},
      is_default_{is_default},
      handle_types_{properties.handleTypes},
      limit_{checked_round_up(properties.maxSize, pool_page).value_or(0)},
      nonce_{make_nonce()},
      rights_(machine.devices.size(), CU_MEM_ACCESS_FLAGS_PROT_NONE) {
  if (device_ >= 0) rights_[static_cast<std::size_t>(device_)] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

pool::~pool() {
  if (base_ == 0) return;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i].backed) give_page(i);
  }
  machine_.space.free_addresses(base_, room_);
}

// --- Allocations ---------------------------------------------------------------------------------

CUresult pool::allocate(std::uint64_t bytes, const std::shared_ptr<stream_state>& stream,
                        CUdeviceptr* address) {
  const auto size = checked_round_up(bytes, pool_unit);
  if (!size || !prepare()) return CUDA_ERROR_OUT_OF_MEMORY;
  block* found = own_free(*size, *stream);
  if (found == nullptr) found = settled_or_followed(*size, *stream);
  if (found == nullptr) found = behind_a_wait(*size, stream);
  if (found == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;

  found->requested = bytes;
  found->id = machine_.space.next_id++;
  ++allocations_;
  used_.add(bytes);
  const moment when = next_moment(stream, deed::allocate);
  tell(deed::allocate, *found, when, stream.get(), stream->tail());
  *address = found->address;
  return CUDA_SUCCESS;
}

/// The place of an allocation or a free in the order of things. Neither has work to do, so neither
/// stands in a queue: a free is complete when everything before it is. Only where operations take
/// time of their own must it be one.
moment pool::next_moment(const std::shared_ptr<stream_state>& stream, deed what) {
  if (what == deed::free && machine_.options.mode == progress::timed) {
    return machine_.flow.enqueue(stream, work{.type = CU_GRAPH_NODE_TYPE_MEM_FREE});
  }
  return machine_.flow.mark(stream);
}

block* pool::own_free(std::uint64_t size, const stream_state& stream) {
  if (last_frees_ == nullptr || last_frees_->stream.get() != &stream) {
    const auto mine = std::find_if(frees_.begin(), frees_.end(),
                                   [&](const auto& each) { return each->stream.get() == &stream; });
    if (mine == frees_.end()) return nullptr;
    last_frees_ = mine->get();
  }
  block* const found = last_frees_->runs.best(size);
  return found == nullptr ? nullptr : take_freed(*found, size);
}

block* pool::settled_or_followed(std::uint64_t size, const stream_state& stream) {
  if (opportunistic_) settle_completed();
  block* const anybodys = settled_.best(size);
  block* const known = follow_events_ ? followed(size, stream) : nullptr;
  if (known != nullptr && (anybodys == nullptr || known->size < anybodys->size)) {
    return take_freed(*known, size);
  }
  if (anybodys != nullptr) {
    if (block* const taken = take_settled(*anybodys, size)) return taken;
    // No page could be had for the best fit: one that needs none will do.
    block* const larger =
        settled_.best(size, [&](const block& each) { return backed(each.address, size); });
    if (larger != nullptr) return take_settled(*larger, size);
  }
  return known == nullptr ? nullptr : take_freed(*known, size);
}

block* pool::followed(std::uint64_t size, const stream_state& stream) const {
  const moment& now = stream.clock.now();
  block* best = nullptr;
  for (const auto& other : frees_) {
    block* const found =
        other->runs.best(size, [&](const block& each) { return now.includes(each.freed.at); });
    if (found != nullptr && (best == nullptr || found->size < best->size)) best = found;
  }
  return best;
}

block* pool::behind_a_wait(std::uint64_t size, const std::shared_ptr<stream_state>& stream) {
  if (!internal_waits_) return nullptr;
  const stream_frees* from = nullptr;
  block* best = nullptr;
  for (const auto& other : frees_) {
    block* const found = other->runs.best(size);
    if (found == nullptr || (best != nullptr && found->size >= best->size)) continue;
    best = found;
    from = other.get();
  }
  if (best == nullptr) return nullptr;
  machine_.flow.wait(stream, dependency{from->stream, best->sequence}, best->freed);
  return take_freed(*best, size);
}

block* pool::take_freed(block& from, std::uint64_t size) {
  fit_index& index = *from.in;
  index.remove(from);
  if (block* const rest = blocks_->cut(from, size)) {
    rest->order = from.order;
    rest->sequence = from.sequence;
    rest->freed = from.freed;
    index.insert(*rest);
  }
  return &from;
}

block* pool::take_settled(block& from, std::uint64_t size) {
  settled_.remove(from);
  if (block* const rest = blocks_->cut(from, size)) {
    rest->order = from.order;
    settled_.insert(*rest);
  }
  count_busy(from.address, size, true);
  if (back(from.address, size)) return &from;
  count_busy(from.address, size, false);
  put_into(settled_, from);
  return nullptr;
}

block* pool::find(std::uint64_t address) const noexcept {
  if (!contains(address)) return nullptr;
  block* at = blocks_->starting_at(address);
  if (at == nullptr) at = &blocks_->containing(address);
  return at->allocated() && address - at->address < at->requested ? at : nullptr;
}

// --- Frees ---------------------------------------------------------------------------------------

pool::stream_frees& pool::frees_of(const std::shared_ptr<stream_state>& stream) {
  if (last_frees_ != nullptr && last_frees_->stream == stream) return *last_frees_;
  auto place = std::lower_bound(
      frees_.begin(), frees_.end(), stream->id,
      [](const auto& each, std::uint64_t wanted) { return wanted > each->stream->id; });
  if (place == frees_.end() || (*place)->stream != stream) {
    place = frees_.insert(place, std::make_unique<stream_frees>(stream_frees{.stream = stream}));
  }
  last_frees_ = place->get();
  return *last_frees_;
}

void pool::free(block& which, const std::shared_ptr<stream_state>& stream) {
  stream_frees& mine = frees_of(stream);
  const moment when = next_moment(stream, deed::free);
  tell(deed::free, which, when, stream.get(), stream->tail());
  --allocations_;
  used_.now -= which.requested;
  which.sequence = stream->tail();
  which.freed = when;
  if (mine.runs.empty()) mine.oldest = which.sequence;
  put_into(mine.runs, which);
}

void pool::free_now(block& which) {
  const moment when = machine_.flow.host_deed();
  tell(deed::free, which, when, nullptr, when.at.tick);
  --allocations_;
  // used_ stays: the driver does not take such frees off its count.
  settle(which);
}

void pool::put_into(fit_index& index, block& which) {
  block* joined = &which;
  if (block* const left = which.before; left != nullptr && left->in == &index) {
    index.remove(*left);
    left->sequence = which.sequence;
    left->freed = which.freed;
    blocks_->swallow_next(*left);
    joined = left;
  }
  if (block* const right = joined->after; right != nullptr && right->in == &index) {
    index.remove(*right);
    blocks_->swallow_next(*joined);
  }
  joined->order = next_order_++;
  index.insert(*joined);
}

void pool::settle(block& which) {
  which.freed = {};
  count_busy(which.address, which.size, false);
  put_into(settled_, which);
}

/// Frees that have happened, whether or not anybody waited for them. The host does not know of them
/// in the sense of an order that a program could rely on; only the memory itself is as if new.
void pool::settle_completed() {
  std::vector<block*> done;
  for (const auto& each : frees_) {
    const std::uint64_t completed = each->stream->completed;
    if (each->runs.empty() || completed < each->oldest) continue;
    done.clear();
    each->oldest = ~std::uint64_t{0};
    for (const fit_key& key : each->runs.all()) {
      block& run = *key.which;
      if (run.sequence <= completed) {
        done.push_back(&run);
      } else {
        each->oldest = std::min(each->oldest, run.sequence);
      }
    }
    std::sort(done.begin(), done.end(),
              [](const block* a, const block* b) { return a->order < b->order; });
    for (block* const run : done) {
      each->runs.remove(*run);
      tell_host_owns(run->address, run->size, "free");
      settle(*run);
    }
  }
}

/// Frees that come before something the host has waited for. The driver hands each stream's over
/// youngest first.
void pool::settle_known() {
  const moment& host = machine_.flow.host.now();
  std::vector<block*> known;
  for (const auto& each : frees_) {
    known.clear();
    for (const fit_key& key : each->runs.all()) {
      if (host.includes(key.which->freed.at)) known.push_back(key.which);
    }
    std::sort(known.begin(), known.end(),
              [](const block* a, const block* b) { return a->order > b->order; });
    for (block* const run : known) {
      each->runs.remove(*run);
      settle(*run);
    }
  }
}

void pool::after_synchronize() {
  settle_known();
  std::erase_if(frees_,
                [](const auto& each) { return each->stream->destroyed && each->runs.empty(); });
  last_frees_ = nullptr;
  release_above(threshold_);
}

void pool::clear() {
  if (base_ == 0) return;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    pages_[i].busy = 0;
    if (pages_[i].backed) give_page(i);
  }
  settled_ = {};
  frees_.clear();
  last_frees_ = nullptr;
  blocks_ = std::make_unique<block_map>(base_, room_);
  settled_.insert(blocks_->first());
  allocations_ = 0;
  used_.now = 0;
}

void pool::retire() {
  retired_ = true;
  threshold_ = 0;
  release_unused();
}

// --- The oracle ----------------------------------------------------------------------------------

void pool::tell(deed what, block& which, const moment& when, const stream_state* stream,
                std::uint64_t order) {
  if (!machine_.options.check_hazards) return;
  auto& story = what == deed::free ? which.freed_by : which.allocated_by;
  // The history drops a story when the next deed takes its place; then it can be told anew without
  // a heap call.
  if (!story || story.use_count() != 1) {
    story = std::make_shared<party>(party{.what = what == deed::free ? "free" : "alloc"});
  }
  story->stream = stream_id{stream == nullptr ? 0 : stream->id};
  story->order = order;
  story->where = {which.address, which.requested};
  story->writes = true;
  story->queued = machine_.clock;
  store_->history.touch(which.address - base_, which.requested, what, when, story, which.address,
                        machine_.hazards);
}

/// Whatever was done to this memory, from now on it is free for whoever the host gives it to.
void pool::tell_host_owns(std::uint64_t address, std::uint64_t size, const char* label) {
  if (!machine_.options.check_hazards) return;
  const moment& now = machine_.flow.host.now();
  const auto story = std::make_shared<const party>(
      party{label, stream_id{0}, now.at.tick, {address, size}, true, machine_.clock});
  store_->history.forget(address - base_, size);
  store_->history.touch(address - base_, size, deed::free, now, story, address, machine_.hazards);
}

}  // namespace weir::inline v0::sim
