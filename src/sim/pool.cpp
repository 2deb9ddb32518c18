// One stream-ordered memory pool, with the driver's rules of reuse, growth and release.
#include "sim/pool.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "sim/pools.hpp"
#include "sim/state.hpp"
#include "weir/checked.hpp"

namespace weir::inline v0::sim {

namespace {

/// So many times the memory a pool can have, in addresses: free runs are searched by address, and
/// with room to spare a request finds one however the live blocks are scattered.
constexpr std::uint64_t address_factor = 4;
/// For a pool of host memory without a maximum.
constexpr std::uint64_t host_room = std::uint64_t{1} << 38;
constexpr std::size_t no_page = ~std::size_t{0};

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
  while (reserved_ > threshold_) {
    const std::size_t idle = idle_page();
    if (idle == no_page) return;
    give_page(idle);
  }
}

void pool::trim(std::uint64_t keep) {
  while (reserved_ >= pool_page && reserved_ - pool_page >= keep) {
    const std::size_t idle = idle_page();
    if (idle == no_page) return;
    give_page(idle);
  }
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

// --- Pages ---------------------------------------------------------------------------------------

bool pool::prepare() {
  if (base_ != 0) return true;
  const std::uint64_t capacity =
      device_ < 0 ? host_room
                  : machine_.devices[static_cast<std::size_t>(device_)].spec.capacity.count();
  const std::uint64_t most = limit_ == 0 ? capacity : std::min(limit_, capacity);
  const std::uint64_t room = (most / pool_page + 1) * pool_page * address_factor;
  store_ = physical::create(machine_, room, handle_types_ != CU_MEM_HANDLE_TYPE_NONE);
  if (!store_) return false;
  const std::uint64_t base = machine_.space.reserve_addresses(room);
  if (base == 0) return false;
  blocks_ = std::make_unique<block_map>(base, room);
  settled_.insert(blocks_->first());
  base_ = base;
  room_ = room;
  return true;
}

physical* pool::store() { return prepare() ? store_.get() : nullptr; }

template <class Visit>
void pool::each_page(std::uint64_t address, std::uint64_t size, Visit&& visit) {
  const std::uint64_t first = address - base_;
  const std::uint64_t last = first + size;
  if (pages_.size() * pool_page < last) pages_.resize((last + pool_page - 1) / pool_page);
  for (std::uint64_t at = first; at < last;) {
    const std::size_t index = at / pool_page;
    const std::uint64_t next = std::min(last, (index + 1) * pool_page);
    visit(index, next - at);
    at = next;
  }
}

void pool::count_busy(std::uint64_t address, std::uint64_t size, bool more) {
  each_page(address, size, [&](std::size_t index, std::uint64_t part) {
    std::uint64_t& busy = pages_[index].busy;
    busy = more ? busy + part : busy - part;
  });
}

bool pool::backed(std::uint64_t address, std::uint64_t size) const {
  const std::size_t last = (address - base_ + size - 1) / pool_page;
  if (last >= pages_.size()) return false;
  for (std::size_t i = (address - base_) / pool_page; i <= last; ++i) {
    if (!pages_[i].backed) return false;
  }
  return true;
}

/// Puts memory behind a range that is counted as busy. Where it cannot be had for all of it, what
/// was had stays reserved, as with the driver.
bool pool::back(std::uint64_t address, std::uint64_t size) {
  bool all = true;
  each_page(address, size, [&](std::size_t index, std::uint64_t) {
    if (all && !pages_[index].backed) all = gain_page() && map_page(index);
  });
  return all;
}

/// One page more to map: a page that nothing lives in, or a new one.
bool pool::gain_page() {
  if (const std::size_t idle = idle_page(); idle != no_page) {
    unmap_page(idle);
    return true;
  }
  if (limit_ != 0 && reserved_ + pool_page > limit_) return false;
  if (device_ >= 0 && !machine_.space.reserve(device_, pool_page)) {
    machine_.pools->release_unused(device_);
    if (!machine_.space.reserve(device_, pool_page)) return false;
  }
  reserved_ += pool_page;
  reserved_high_ = std::max(reserved_high_, reserved_);
  return true;
}

bool pool::map_page(std::size_t index) {
  const std::uint64_t offset = index * pool_page;
  if (store_->map_at(base_ + offset, offset, pool_page, true) != 0) {
    reserved_ -= pool_page;
    if (device_ >= 0) machine_.space.give_back(device_, pool_page);
    return false;
  }
  machine_.space.insert({.base = base_ + offset,
                         .size = pool_page,
                         .kind = memory_kind::pool,
                         .device = device_,
                         .pages = store_,
                         .offset = offset,
                         .rights = rights_,
                         .pool = handle});
  pages_[index].backed = true;
  tell_host_owns(base_ + offset, pool_page, "pool keeps memory unallocated");
  return true;
}

void pool::unmap_page(std::size_t index) {
  const std::uint64_t offset = index * pool_page;
  machine_.space.erase(base_ + offset);
  store_->history.forget(offset, pool_page);
  ::fallocate(store_->descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(store_->file_offset() + offset), static_cast<off_t>(pool_page));
  pages_[index].backed = false;
}

void pool::give_page(std::size_t index) {
  unmap_page(index);
  reserved_ -= pool_page;
  if (device_ >= 0) machine_.space.give_back(device_, pool_page);
}

std::size_t pool::idle_page() const {
  for (std::size_t i = pages_.size(); i-- > 0;) {
    if (pages_[i].backed && pages_[i].busy == 0) return i;
  }
  return no_page;
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

// --- Attributes ----------------------------------------------------------------------------------

CUresult pool::get(CUmemPool_attribute which, void* value) const {
  const auto put = [&](auto what) {
    std::memcpy(value, &what, sizeof(what));
    return CUDA_SUCCESS;
  };
  switch (which) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return put(int{follow_events_});
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return put(int{opportunistic_});
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return put(int{internal_waits_});
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return put(threshold_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return put(reserved_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return put(reserved_high_);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return put(used_.now);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return put(used_.high);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult pool::set(CUmemPool_attribute which, const void* value) {
  const auto as_flag = [&] {
    int given = 0;
    std::memcpy(&given, value, sizeof(given));
    return given != 0;
  };
  const auto as_size = [&] {
    std::uint64_t given = 0;
    std::memcpy(&given, value, sizeof(given));
    return given;
  };
  // A high mark can only be set back, and then starts from what is now.
  const auto set_back = [&](std::uint64_t& high, std::uint64_t now) {
    if (as_size() != 0) return CUDA_ERROR_INVALID_VALUE;
    high = now;
    return CUDA_SUCCESS;
  };
  switch (which) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      follow_events_ = as_flag();
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      opportunistic_ = as_flag();
      break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      internal_waits_ = as_flag();
      break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      threshold_ = as_size();
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return set_back(reserved_high_, reserved_);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return set_back(used_.high, used_.now);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void pool::grant(int to, CUmemAccess_flags flags) {
  rights_[static_cast<std::size_t>(to)] = flags;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i].backed) machine_.space.find(base_ + i * pool_page)->rights = rights_;
  }
}

CUmemAccess_flags pool::granted(int to) const {
  if (to >= 0) return rights_[static_cast<std::size_t>(to)];
  return device_ < 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

// --- For tests -----------------------------------------------------------------------------------

std::string pool::inconsistency() const {
  if (base_ == 0) return reserved_ == 0 && allocations_ == 0 ? "" : "memory without addresses";
  std::vector<std::uint64_t> busy(pages_.size(), 0);
  std::uint64_t at = base_;
  std::uint64_t live = 0;
  std::uint64_t requested = 0;
  std::size_t free_blocks = 0;
  for (const block* each = &blocks_->first(); each != nullptr; each = each->after) {
    if (each->address != at || each->size == 0) return "blocks leave a gap";
    if (each->after != nullptr && each->after->before != each) return "links disagree";
    if (blocks_->starting_at(each->address) != each) return "a block cannot be found";
    if (each->in != nullptr) ++free_blocks;
    if (each->in != nullptr && each->after != nullptr && each->after->in == each->in) {
      return "neighbours are not joined";
    }
    if (each->in == nullptr) {
      if (each->requested == 0 || each->requested > each->size) return "a block has a wrong size";
      ++live;
      requested += each->requested;
    }
    if (each->in != &settled_) {
      if (!backed(each->address, each->size)) return "a block in use has no memory";
      for (std::uint64_t from = each->address; from < each->end();) {
        const std::size_t index = (from - base_) / pool_page;
        const std::uint64_t to = std::min(each->end(), base_ + (index + 1) * pool_page);
        busy[index] += to - from;
        from = to;
      }
    }
    at = each->end();
  }
  if (at != base_ + room_) return "blocks do not reach the end";
  if (live != allocations_) return "allocations are miscounted";
  if (requested > used_.now) return "used is below what is live";
  std::size_t indexed = settled_.all().size();
  for (const auto& each : frees_) indexed += each->runs.all().size();
  if (indexed != free_blocks) return "an index has lost a block";
  std::uint64_t reserved = 0;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i].busy != busy[i]) return "a page's busy bytes are miscounted";
    if (pages_[i].backed) reserved += pool_page;
  }
  if (reserved != reserved_) return "reserved is not what is mapped";
  if (reserved_high_ < reserved_ || used_.high < used_.now) return "a high mark is too low";
  return {};
}

}  // namespace weir::inline v0::sim
