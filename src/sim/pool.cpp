// SPDX-License-Identifier: Apache-2.0
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

namespace weir { inline namespace v0 { namespace sim {

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
    if (pages_[i].backed) release_page(i);
  }
  machine_.space.free_addresses(base_, address_space_);
}

// --- Allocations ---------------------------------------------------------------------------------

CUresult pool::allocate(std::uint64_t bytes, const std::shared_ptr<stream_state>& stream,
                        CUdeviceptr* address) {
  const std::uint64_t size = checked_round_up(bytes, pool_unit).value_or(0);
  if (size == 0 || !prepare()) return CUDA_ERROR_OUT_OF_MEMORY;
  block* allocated = own_free(size, *stream);
  if (allocated == nullptr) allocated = settled_or_followed(size, *stream);
  if (allocated == nullptr) allocated = behind_a_wait(size, stream);
  if (allocated == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;

  allocated->requested = bytes;
  allocated->id = machine_.space.next_id++;
  ++allocations_;
  used_.add(bytes);
  const moment when = next_moment(stream, access_kind::allocate);
  record_lifetime(access_kind::allocate, *allocated, when, stream.get(), stream->tail());
  *address = allocated->address;
  return CUDA_SUCCESS;
}

/// The place of an allocation or a free in the order of things. Neither has work to do, so neither
/// stands in a queue: a free is complete when everything before it is. Only where operations take
/// time of their own must it be one.
moment pool::next_moment(const std::shared_ptr<stream_state>& stream, access_kind kind) {
  if (kind == access_kind::free && machine_.options.mode == progress::timed) {
    return machine_.flow.enqueue(stream, work{.type = CU_GRAPH_NODE_TYPE_MEM_FREE});
  }
  return machine_.flow.mark(stream);
}

block* pool::own_free(std::uint64_t size, const stream_state& stream) {
  if (last_frees_ == nullptr || last_frees_->stream.get() != &stream) {
    const auto own = std::find_if(frees_.begin(), frees_.end(),
                                  [&](const auto& each) { return each->stream.get() == &stream; });
    if (own == frees_.end()) return nullptr;
    last_frees_ = own->get();
  }
  block* const fit = last_frees_->runs.best(size);
  return fit == nullptr ? nullptr : take_freed(*fit, size);
}

block* pool::settled_or_followed(std::uint64_t size, const stream_state& stream) {
  if (opportunistic_) settle_completed();
  block* const settled = settled_.best(size);
  block* const followed_fit = follow_events_ ? followed(size, stream) : nullptr;
  if (followed_fit != nullptr && (settled == nullptr || followed_fit->size < settled->size)) {
    return take_freed(*followed_fit, size);
  }
  if (settled != nullptr) {
    if (block* const taken = take_settled(*settled, size)) return taken;
    // No page could be had for the best fit: one that needs none will do.
    block* const larger =
        settled_.best(size, [&](const block& each) { return backed(each.address, size); });
    if (larger != nullptr) return take_settled(*larger, size);
  }
  return followed_fit == nullptr ? nullptr : take_freed(*followed_fit, size);
}

block* pool::followed(std::uint64_t size, const stream_state& stream) const {
  const moment& now = stream.clock.now();
  block* best = nullptr;
  for (const auto& other : frees_) {
    block* const fit =
        other->runs.best(size, [&](const block& each) { return now.includes(each.freed.at); });
    if (fit != nullptr && (best == nullptr || fit->size < best->size)) best = fit;
  }
  return best;
}

block* pool::behind_a_wait(std::uint64_t size, const std::shared_ptr<stream_state>& stream) {
  if (!internal_waits_) return nullptr;
  const stream_frees* from = nullptr;
  block* best = nullptr;
  for (const auto& other : frees_) {
    block* const fit = other->runs.best(size);
    if (fit == nullptr || (best != nullptr && fit->size >= best->size)) continue;
    best = fit;
    from = other.get();
  }
  if (best == nullptr) return nullptr;
  machine_.flow.wait(stream, dependency{from->stream, best->sequence}, best->freed);
  return take_freed(*best, size);
}

block* pool::take_freed(block& run, std::uint64_t size) {
  fit_index& index = *run.index;
  index.remove(run);
  if (block* const rest = blocks_->cut(run, size)) {
    rest->order = run.order;
    rest->sequence = run.sequence;
    rest->freed = run.freed;
    index.insert(*rest);
  }
  return &run;
}

block* pool::take_settled(block& run, std::uint64_t size) {
  settled_.remove(run);
  if (block* const rest = blocks_->cut(run, size)) {
    rest->order = run.order;
    settled_.insert(*rest);
  }
  count_busy(run.address, size, true);
  if (back(run.address, size)) return &run;
  count_busy(run.address, size, false);
  put_into(settled_, run);
  return nullptr;
}

block* pool::find(std::uint64_t address) const noexcept {
  if (!contains(address)) return nullptr;
  block* owner = blocks_->starting_at(address);
  if (owner == nullptr) owner = &blocks_->containing(address);
  return owner->allocated() && address - owner->address < owner->requested ? owner : nullptr;
}

// --- Frees ---------------------------------------------------------------------------------------

pool::stream_frees& pool::frees_of(const std::shared_ptr<stream_state>& stream) {
  if (last_frees_ != nullptr && last_frees_->stream == stream) return *last_frees_;
  auto place =
      std::lower_bound(frees_.begin(), frees_.end(), stream->id,
                       [](const auto& each, std::uint64_t id) { return id > each->stream->id; });
  if (place == frees_.end() || (*place)->stream != stream) {
    place = frees_.insert(place, std::make_unique<stream_frees>(stream_frees{.stream = stream}));
  }
  last_frees_ = place->get();
  return *last_frees_;
}

void pool::free(block& freed, const std::shared_ptr<stream_state>& stream) {
  stream_frees& own = frees_of(stream);
  const moment when = next_moment(stream, access_kind::free);
  record_lifetime(access_kind::free, freed, when, stream.get(), stream->tail());
  --allocations_;
  used_.current -= freed.requested;
  freed.sequence = stream->tail();
  freed.freed = when;
  if (own.runs.empty()) own.oldest = freed.sequence;
  put_into(own.runs, freed);
}

void pool::free_now(block& freed) {
  const moment when = machine_.flow.host_moment();
  record_lifetime(access_kind::free, freed, when, nullptr, when.at.tick);
  --allocations_;
  // used_ stays: the driver does not take such frees off its count.
  settle(freed);
}

void pool::put_into(fit_index& index, block& freed) {
  block* run = &freed;
  if (block* const previous = freed.before; previous != nullptr && previous->index == &index) {
    index.remove(*previous);
    previous->sequence = freed.sequence;
    previous->freed = freed.freed;
    blocks_->merge_next(*previous);
    run = previous;
  }
  if (block* const next = run->after; next != nullptr && next->index == &index) {
    index.remove(*next);
    blocks_->merge_next(*run);
  }
  run->order = next_order_++;
  index.insert(*run);
}

void pool::settle(block& run) {
  run.freed = {};
  count_busy(run.address, run.size, false);
  put_into(settled_, run);
}

/// Frees that have happened, whether or not anybody waited for them. The host does not know of them
/// in the sense of an order that a program could rely on; only the memory itself is as if new.
void pool::settle_completed() {
  std::vector<block*> completed_runs;
  for (const auto& each : frees_) {
    const std::uint64_t completed = each->stream->completed;
    if (each->runs.empty() || completed < each->oldest) continue;
    completed_runs.clear();
    each->oldest = ~std::uint64_t{0};
    for (const fit_key& key : each->runs.all()) {
      block& run = *key.run;
      if (run.sequence <= completed) {
        completed_runs.push_back(&run);
      } else {
        each->oldest = std::min(each->oldest, run.sequence);
      }
    }
    std::sort(completed_runs.begin(), completed_runs.end(),
              [](const block* a, const block* b) { return a->order < b->order; });
    for (block* const run : completed_runs) {
      each->runs.remove(*run);
      record_host_ownership(run->address, run->size, "free");
      settle(*run);
    }
  }
}

/// Frees that come before something the host has waited for. The driver hands each stream's over
/// youngest first.
void pool::settle_known() {
  const moment& host = machine_.flow.host.now();
  std::vector<block*> known_runs;
  for (const auto& each : frees_) {
    known_runs.clear();
    for (const fit_key& key : each->runs.all()) {
      if (host.includes(key.run->freed.at)) known_runs.push_back(key.run);
    }
    std::sort(known_runs.begin(), known_runs.end(),
              [](const block* a, const block* b) { return a->order > b->order; });
    for (block* const run : known_runs) {
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
    if (pages_[i].backed) release_page(i);
  }
  settled_ = {};
  frees_.clear();
  last_frees_ = nullptr;
  blocks_ = std::make_unique<block_map>(base_, address_space_);
  settled_.insert(blocks_->first());
  allocations_ = 0;
  used_.current = 0;
}

void pool::release_unused() {
  // Of a pool without a handle, "the resources associated with the pool will be released
  // automatically once there are no more outstanding allocations" (cuMemPoolDestroy): that its
  // frees are done is enough, whether or not the host has waited for them.
  if (retired_) settle_completed();
  trim(0);
}

void pool::retire() {
  retired_ = true;
  threshold_ = 0;
  release_unused();
}

// --- The hazard check ----------------------------------------------------------------------------

void pool::record_lifetime(access_kind kind, block& target, const moment& when,
                           const stream_state* stream, std::uint64_t order) {
  if (!machine_.options.check_hazards) return;
  auto& accessor = kind == access_kind::free ? target.freed_by : target.allocated_by;
  // The history drops an accessor when the next access takes its place; then it can be used again
  // without a heap call.
  if (!accessor || accessor.use_count() != 1) {
    accessor =
        std::make_shared<party>(party{.label = kind == access_kind::free ? "free" : "alloc"});
  }
  accessor->stream = stream_id{stream == nullptr ? 0 : stream->id};
  accessor->order = order;
  accessor->extent = {target.address, target.requested};
  accessor->writes = true;
  accessor->queued = machine_.clock;
  accessor->action = party_action::lifetime;
  accessor->step = ++machine_.steps;
  store_->history.touch(target.address - base_, target.requested, kind, when, accessor,
                        target.address, machine_.hazards);
}

/// Whatever was done to this memory, from now on the host may allocate it to any stream.
void pool::record_host_ownership(std::uint64_t address, std::uint64_t size, const char* label) {
  if (!machine_.options.check_hazards) return;
  const moment& now = machine_.flow.host.now();
  const auto accessor = std::make_shared<const party>(party{.label = label,
                                                            .order = now.at.tick,
                                                            .extent = {address, size},
                                                            .writes = true,
                                                            .queued = machine_.clock,
                                                            .action = party_action::lifetime,
                                                            .step = ++machine_.steps});
  store_->history.forget(address - base_, size);
  store_->history.touch(address - base_, size, access_kind::free, now, accessor, address,
                        machine_.hazards);
}

}}}  // namespace weir::v0::sim
