// The story of a recording, made in one pass.
#include "report/story.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

namespace weir::inline v0::report {

namespace {

/// A range that does not wrap, whatever the recording says.
std::uint64_t size_within(std::uint64_t address, std::uint64_t size) {
  return std::min(size, std::numeric_limits<std::uint64_t>::max() - address);
}

/// Physical memory as it comes, moves and goes; pieces of a reservation may go on their own.
class ground {
 public:
  explicit ground(std::vector<span>& out) : out_{out} {}

  void appear(std::uint64_t address, std::uint64_t size, std::uint32_t event) {
    size = size_within(address, size);
    vanish(address, size, event);  // what was reserved there before can only have been left unsaid
    if (size != 0) present_.emplace(address, piece{size, event});
  }

  void vanish(std::uint64_t address, std::uint64_t size, std::uint32_t event) {
    const std::uint64_t end = address + size_within(address, size);
    auto at = present_.upper_bound(address);
    if (at != present_.begin()) --at;
    while (at != present_.end() && at->first < end) {
      const auto [from, found] = *at;
      const std::uint64_t to = from + found.size;
      if (to <= address) {
        ++at;
        continue;
      }
      at = present_.erase(at);
      const std::uint64_t cut = std::max(from, address);
      const std::uint64_t cut_end = std::min(to, end);
      out_.push_back({cut, cut_end - cut, found.since, event});
      if (from < cut) present_.emplace(from, piece{cut - from, found.since});
      if (cut_end < to) present_.emplace(cut_end, piece{to - cut_end, found.since});
    }
  }

  void finish(std::uint32_t events) {
    for (const auto& [address, left] : present_) {
      out_.push_back({address, left.size, left.since, events});
    }
    std::sort(out_.begin(), out_.end(), [](const span& a, const span& b) {
      return std::pair{a.start, a.address} < std::pair{b.start, b.address};
    });
  }

 private:
  struct piece {
    std::uint64_t size;
    std::uint32_t since;
  };
  std::map<std::uint64_t, piece> present_;
  std::vector<span>& out_;
};

class teller {
 public:
  teller(const recording& from, const placement* where, story& out)
      : from_{from},
        where_{where},
        out_{out},
        ground_{out.spans},
        own_addresses_{where == nullptr && from.real_addresses} {}

  void tell() {
    const auto count = static_cast<std::uint32_t>(from_.events.size());
    out_.live.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      happen(from_.events[i], i);
      out_.live.push_back(live_);
      if (live_ > out_.live[out_.peak]) out_.peak = i;
      if (knows_physical_) out_.reserved.resize(i, 0);
      if (knows_physical_) out_.reserved.push_back(reserved_);
    }
    ground_.finish(count);
  }

 private:
  void happen(const trace_event& what, std::uint32_t event) {
    switch (what.kind) {
      case trace_kind::allocate:
        allocate(what, event);
        break;
      case trace_kind::deallocate:
        end(what.address, event);
        break;
      case trace_kind::reserve:
        if (own_addresses_) reserve(what.address, what.size, event);
        break;
      case trace_kind::move:
        if (own_addresses_) move(what.address, what.size, what.extra, event);
        break;
      case trace_kind::release:
        if (own_addresses_) release(what.address, what.size, event);
        break;
      default:
        break;
    }
  }

  void reserve(std::uint64_t address, std::uint64_t size, std::uint32_t event) {
    knows_physical_ = true;
    reserved_ += size;
    ground_.appear(address, size, event);
  }

  void move(std::uint64_t to, std::uint64_t size, std::uint64_t from, std::uint32_t event) {
    ground_.vanish(from, size, event);
    ground_.appear(to, size, event);
  }

  void release(std::uint64_t address, std::uint64_t size, std::uint32_t event) {
    knows_physical_ = true;
    reserved_ -= std::min(reserved_, size);
    ground_.vanish(address, size, event);
  }

  /// What the placement's policy did before it met this request.
  void catch_up(std::uint32_t block, std::uint32_t event) {
    for (; next_ < where_->steps.size() && where_->steps[next_].before <= block; ++next_) {
      const placement::physical& step = where_->steps[next_];
      if (step.kind == memory_event_kind::reserve) reserve(step.address, step.size, event);
      if (step.kind == memory_event_kind::move) move(step.address, step.size, step.from, event);
      if (step.kind == memory_event_kind::release) release(step.address, step.size, event);
    }
  }

  /// Gives a new block its place.
  void put(life& block, std::uint32_t number, std::uint32_t event) {
    block.placed = own_addresses_;
    if (where_ == nullptr) return;
    catch_up(number, event);
    if (number >= where_->places.size() || where_->places[number].address == 0) return;
    block.placed = true;
    block.address = where_->places[number].address;
    block.rounded = std::max(block.size, where_->places[number].rounded);
  }

  void allocate(const trace_event& what, std::uint32_t event) {
    end(what.address, event);
    const std::uint64_t size = size_within(what.address, what.size);
    const auto block = static_cast<std::uint32_t>(out_.blocks.size());
    out_.blocks.push_back({what.address, size,
                           size_within(what.address, std::max(size, what.extra)), event,
                           static_cast<std::uint32_t>(from_.events.size()), site_of(what),
                           what.stream, what.tag, what.pool});
    put(out_.blocks.back(), block, event);
    open_[what.address] = block;
    live_ += size;
  }

  void end(std::uint64_t address, std::uint32_t event) {
    const auto found = open_.find(address);
    if (found == open_.end()) return;
    life& block = out_.blocks[found->second];
    block.end = event;
    live_ -= block.size;
    out_.ends.push_back(found->second);
    open_.erase(found);
  }

  std::uint32_t site_of(const trace_event& what) {
    const bool by_stack = !from_.stacks.empty();
    const bool known = by_stack && what.other <= from_.stacks.size();
    const site key{known ? what.other : 0, by_stack ? 0 : what.size};
    const auto [at, fresh] = sites_.try_emplace(by_stack ? key.stack : key.size,
                                                static_cast<std::uint32_t>(out_.sites.size()));
    if (fresh) out_.sites.push_back(key);
    return at->second;
  }

  const recording& from_;
  const placement* where_;
  story& out_;
  ground ground_;
  const bool own_addresses_;
  std::size_t next_ = 0;                                   // of the placement's steps
  std::unordered_map<std::uint64_t, std::uint32_t> open_;  // live blocks by address
  std::unordered_map<std::uint64_t, std::uint32_t> sites_;
  std::uint64_t live_ = 0;
  std::uint64_t reserved_ = 0;
  bool knows_physical_ = false;
};

}  // namespace

story tell(const recording& from, const placement* where) {
  story out;
  teller{from, where, out}.tell();
  return out;
}

}  // namespace weir::inline v0::report
