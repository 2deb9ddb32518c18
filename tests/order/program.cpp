// Blocks: allocated, written and verified by kernels, shared between streams, freed in every way.
#include "program.hpp"

#include <algorithm>
#include <utility>

namespace weir::order_test {
namespace {

constexpr std::uint64_t kib = std::uint64_t{1} << 10;
constexpr std::uint64_t mib = std::uint64_t{1} << 20;

constexpr std::uint64_t rounded(std::uint64_t size) { return (size + 511) / 512 * 512; }

/// What byte `at` of a block with that content is.
unsigned char byte_at(std::uint64_t content, std::uint64_t at) {
  return static_cast<unsigned char>(
      (content * 0x9e3779b97f4a7c15ULL + at * 0xbf58476d1ce4e5b9ULL) >> 56);
}

/// Calls `action(offset)` for a few bytes all over a block: enough to notice a stranger, cheap
/// enough for a block of any size.
template <class Action>
void for_some_bytes(std::uint64_t size, const Action& action) {
  constexpr std::uint64_t places = 12;
  for (std::uint64_t i = 0; i < places; ++i) action(i * size / places);
  action(size - 1);
}

/// What for_some_bytes() finds in a block, as one number.
std::uint64_t reading_of(const unsigned char* bytes_of, std::uint64_t size, std::uint64_t number) {
  std::uint64_t read = number;
  for_some_bytes(size, [&](std::uint64_t at) { read = read * 0x100000001b3ULL ^ bytes_of[at]; });
  return read;
}

}  // namespace

program::program(world& at, std::uint64_t seed, mailbox* shared)
    : at_{at}, random_{seed}, lanes_{at, random_}, shared_{shared} {
  const context_scope bound{at.gpu()};
  static_cast<void>(lanes_.add_default(stream_ref::legacy(at.gpu()), std::nullopt));
  const std::size_t streams = 2 + random_.below(5);
  for (std::size_t i = 0; i < streams; ++i) static_cast<void>(lanes_.add_owned(random_.one_in(6)));
  for (int i = 0; i < 8; ++i) favourites_.push_back(random_size());
  target_ = std::min(at.capacity(), 1024 * mib) / 100 * (30 + random_.below(80));
  if (shared != nullptr) target_ /= 3;
  has_thread_streams_ = random_.one_in(3);
  gives_notice_ = !random_.one_in(3);
  captures_ = random_.one_in(2);
  for (const char* const name : {"order a", "order b", "order c"})
    tags_.push_back(tag::named(name).value());
  tags_.emplace_back();
  if (shared == nullptr && random_.one_in(3)) {
    callback_ = at_.memory().on_out_of_memory([this](bytes) {
      in_callback_ = true;
      const std::size_t before = live_.size();
      free_some(1 + random_.below(3));
      in_callback_ = false;
      return live_.size() != before;
    });
  }
}

program::~program() = default;

void program::play(std::uint64_t steps, std::size_t thread) {
  const context_scope bound{at_.gpu()};
  thread_ = thread;
  lanes_.enter_thread(thread);
  if (std::find(threads_met_.begin(), threads_met_.end(), thread) == threads_met_.end()) {
    threads_met_.push_back(thread);
    if (has_thread_streams_)
      static_cast<void>(lanes_.add_default(stream_ref::per_thread(at_.gpu()), thread));
  }
  for (std::uint64_t i = 0; i < steps && !at_.faults()->found(); ++i) {
    step();
    ++steps_;
    check();
  }
  if (!at_.faults()->found()) lanes_.leave_thread(thread, false);
}

void program::end_thread(std::size_t thread) {
  const context_scope bound{at_.gpu()};
  if (!at_.faults()->found()) lanes_.leave_thread(thread, true);
}

void program::step() {
  const bool full = live_bytes_ > target_ || live_.size() > 400;
  if (random_.below(100) < (full ? 55 : 25)) return free_some(1 + random_.below(full ? 4 : 1));
  switch (const std::uint64_t dice = random_.below(1000); dice / 100) {
    case 0:
    case 1:
    case 2:
    case 3:
      return allocate();
    case 4:
    case 5:
    case 6:
      return touch();
    case 7:
      return at_.declares_uses() ? touch() : pass_on();
    case 8:
      if (capturing_ && dice % 100 < 10) return end_capture();
      if (capturing_) return dice % 100 < 85 ? capture_step() : touch();
      return dice % 100 < 50 ? replay() : touch();
    default:
      break;
  }
  switch (random_.below(40)) {
    case 0:
    case 1:
    case 2:
      return change_streams();
    case 3:
    case 4:
      return change_pools();
    case 5:
      return change_limits();
    case 6:
    case 7:
      return give_back();
    case 8:
    case 9:
      if (capturing_) return end_capture();
      return captures_ ? begin_capture() : touch();
    case 10:
      if (!graphs_.empty()) drop_graph(random_.below(graphs_.size()));
      return;
    case 11:
      if (!capturing_) lanes_.synchronize(lanes_.any());
      return;
    case 12:
    case 13:
    case 14:
    case 15:
      return lanes_.mark(lanes_.any());
    case 16:
    case 17:
      return shared_ != nullptr ? send() : touch();
    case 18:
    case 19:
      return shared_ != nullptr ? receive() : touch();
    case 20:
    case 21:
    case 22:
    case 23:
      return record();
    default:
      return let_work_happen();
  }
}

// --- Allocation ----------------------------------------------------------------------------------

std::uint64_t program::random_size() {
  if (!favourites_.empty() && random_.one_in(2))
    return favourites_[random_.below(favourites_.size())];
  switch (random_.below(12)) {
    case 0:
    case 1:
    case 2:
      return random_.magnitude(4 * kib);
    case 3:
    case 4:
      return random_.magnitude(mib);
    case 5:
      return random_.magnitude(2 * mib);
    case 6:
    case 7:
    case 8:
      return mib + random_.below(7 * mib);
    case 9:
    case 10:
      return 2 * mib * (1 + random_.below(8));
    default:
      return mib + random_.below(40 * mib);
  }
}

bytes program::random_alignment() {
  return bytes{random_.one_in(6) ? std::uint64_t{1} << random_.below(22) : 512};
}

/// The reference a caller might have: of a stream it made, or a bare handle.
stream_ref program::name_of(lane which) {
  const stream_ref known = lanes_.ref(which);
  return random_.one_in(4) ? stream_ref{at_.gpu(), known.handle()} : known;
}

void program::allocate() {
  const std::uint64_t size = random_size();
  allocate(size, lanes_.any());
}

void program::allocate(std::uint64_t size, lane on) {
  const bytes alignment = random_alignment();
  const weir::tag what = tags_[random_.below(tags_.size())];
  const tag_scope tagged{what};
  const memory_pool from =
      !pools_.empty() && random_.one_in(6) ? pools_[random_.below(pools_.size())] : memory_pool{};
  const stream_ref stream = name_of(on);
  if (random_.one_in(2) && !settle(on)) return;
  result<void*> made = nullptr;
  if (!from) {
    made = at_.memory().try_allocate(bytes{size}, stream, alignment);
  } else if (random_.one_in(2)) {
    made = from.try_allocate(bytes{size}, stream, alignment);
  } else {
    const pool_scope inside{from};
    made = at_.memory().try_allocate(bytes{size}, stream, alignment);
  }
  if (!made) {
    if (!at_.may_fail(made)) at_.done(made, "allocate");
    return free_some(1 + random_.below(6));
  }
  lanes_.name(on);
  // Also for what was freed while the request was under way, by a callback or another thread.
  if (!settle(on)) return;
  const auto address = reinterpret_cast<device_address>(*made);
  at_.expect(address % std::max<std::uint64_t>(alignment.count(), 512) == 0, "not aligned");
  piece block{.address = address,
              .size = size,
              .home = on,
              .home_id = lanes_.id(on),
              .number = next_number_++,
              .tag = what};
  block.used.note(on, lanes_.queue(on), true);
  if (!random_.one_in(8)) access(block, on, true);
  take_in(std::move(block));
}

void program::take_in(piece made) {
  const std::uint64_t end = made.address + rounded(made.size);
  const auto above = extents_.lower_bound(made.address);
  at_.expect(above == extents_.end() || above->first >= end, "two live blocks overlap");
  at_.expect(above == extents_.begin() || std::prev(above)->second <= made.address,
             "two live blocks overlap");
  extents_.emplace(made.address, end);
  live_bytes_ += made.size;
  live_.push_back(std::move(made));
}

void program::forget(std::size_t which) {
  extents_.erase(live_[which].address);
  live_bytes_ -= live_[which].size;
  std::swap(live_[which], live_.back());
  live_.pop_back();
}

// --- Use -----------------------------------------------------------------------------------------

/// Queues a kernel that writes or verifies the block's pattern; nothing else is done.
void program::run_kernel(lane on, const piece& what, bool writes) {
  auto body = [faults = at_.faults(), contents = at_.contents(), address = what.address,
               size = what.size, content = what.content, number = what.number,
               reading = next_reading_, writes] {
    if (faults->found()) return;  // the memory may be gone
    auto* const bytes_of = reinterpret_cast<unsigned char*>(address);
    if (!writes) contents->add(reading, reading_of(bytes_of, size, number));
    for_some_bytes(size, [&](std::uint64_t at) {
      if (writes) {
        bytes_of[at] = byte_at(content, at);
      } else if (bytes_of[at] != byte_at(content, at)) {
        faults->report("a block's pattern is wrong");
      }
    });
  };
  if (!writes) ++next_reading_;
  const sim::access touched =
      writes ? sim::writes(what.address, what.size) : sim::reads(what.address, what.size);
  at_.done(at_.machine().launch(lanes_.handle(on), writes ? "write" : "verify", {touched},
                                std::move(body)),
           "launch");
}

bool program::access(piece& what, lane on, bool writes) {
  if (!lanes_.put_after(on, what.used, writes)) return false;
  if (writes) what.content = next_content_++;
  run_kernel(on, what, writes);
  const std::uint64_t operation = lanes_.queue(on);
  what.used.note(on, operation, writes);
  if (what.graph != no_graph) graphs_[what.graph].used.note(on, operation, writes);
  return true;
}

void program::touch() {
  if (live_.empty()) return allocate();
  piece& what = live_[random_.below(live_.size())];
  const bool at_home = what.home != no_lane && lanes_.usable(what.home) && random_.below(5) < 2;
  touch(what, at_home ? what.home : lanes_.any());
}

void program::touch(piece& what, lane on) {
  const bool writes = what.content == 0 || random_.one_in(3);
  // What a graph writes has its content from the graph.
  if (what.graph != no_graph && !graphs_[what.graph].replayed) return;
  if (!access(what, on, writes && what.graph == no_graph)) return;
  // Only work on streams that the allocator knows can go undeclared.
  const bool declares =
      at_.declares_uses() ? random_.one_in(3) : random_.one_in(8) || !lanes_.is_known(on);
  if (on != what.home && declares) static_cast<void>(record_stream(what, on));
}

/// A stream of which nobody is told uses blocks last; then others want the memory.
void program::pass_on() {
  const lane user = lanes_.any();
  std::uint64_t freed = 0;
  for (std::uint64_t blocks = 1 + random_.below(4); blocks > 0 && !live_.empty(); --blocks) {
    const std::size_t which = random_.below(live_.size());
    const std::uint64_t size = live_[which].size;
    touch(live_[which], user);
    if (free(which)) freed += size;
  }
  if (random_.one_in(6)) return give_back();
  if (freed != 0) allocate(std::min(freed, 40 * mib), lanes_.any());
}

/// What a stream does between two other things: it uses blocks, which may be freed meanwhile.
void program::put_to_work(lane on) {
  for (std::uint64_t uses = random_.below(4); uses > 0 && !live_.empty(); --uses) {
    const std::size_t which = random_.below(live_.size());
    touch(live_[which], on);
    if (random_.one_in(2)) static_cast<void>(free(which));
  }
}

bool program::record_stream(piece& what, lane on) {
  auto* const pointer = reinterpret_cast<void*>(what.address);
  if (!at_.done(at_.memory().record_stream(pointer, lanes_.ref(on)), "record_stream")) return false;
  what.recorded.push_back(on);
  lanes_.name(on);
  return true;
}

/// A stream is recorded that need not be, or early.
void program::record() {
  if (live_.empty()) return;
  static_cast<void>(record_stream(live_[random_.below(live_.size())], lanes_.any()));
}

// --- Free ----------------------------------------------------------------------------------------

/// Every use comes before what is queued on the lane next, or is recorded; or, in a program that is
/// natively right, will come before what the lane does with the memory.
bool program::prepare_free(piece& what, lane on) {
  for (const uses::entry& each : what.used.all) {
    const std::uint64_t last = std::max(each.read, each.write);
    const bool is_recorded =
        std::find(what.recorded.begin(), what.recorded.end(), each.on) != what.recorded.end();
    if (each.on == on || is_recorded) continue;
    if (on != no_lane && lanes_.comes_after(on, each.on, last)) continue;
    const bool undeclared = !at_.declares_uses() && !random_.one_in(6);
    if (undeclared && owe(what, each.on, last)) continue;
    const bool can_record = lanes_.nameable(each.on);
    if (can_record && random_.one_in(2)) {
      if (!record_stream(what, each.on)) return false;
    } else if (on == no_lane || !lanes_.put_after(on, each.on, last)) {
      if (!can_record || !record_stream(what, each.on)) return false;
    }
  }
  return true;
}

bool program::free_now(const piece& what, lane on, bool unnamed) {
  auto* const pointer = reinterpret_cast<void*>(what.address);
  caching_allocator& memory = at_.memory();
  if (unnamed) {
    return at_.done(memory.try_deallocate(pointer), "free without a stream");
  }
  const stream_ref stream = name_of(on);
  switch (random_.below(4)) {
    case 0:
      memory.deallocate(pointer, stream);
      return true;
    case 1:
      memory.deallocate(pointer, bytes{what.size}, stream);
      return true;
    case 2:
      return at_.done(memory.try_deallocate(pointer, bytes{what.size}, stream), "free with a size");
    default:
      return at_.done(memory.try_deallocate(pointer, stream), "free");
  }
}

bool program::free(std::size_t which) {
  piece& what = live_[which];
  const bool at_home = what.home != no_lane && random_.below(5) < 3;
  const lane on = at_home || !at_.declares_uses() ? what.home : lanes_.any();
  // Where its own stream is idle, only those whose work nobody declared may still use a block.
  const bool rests = !at_.declares_uses() && on != no_lane && lanes_.usable(on) && !capturing_;
  if (rests && random_.one_in(3)) lanes_.synchronize(on);
  if (!prepare_free(what, on)) return false;
  const bool named = on != no_lane && lanes_.usable(on);
  const bool unnamed = on == what.home && (!named || random_.one_in(3));
  if (!free_now(what, on, unnamed)) return false;
  forget(which);
  return true;
}

void program::free_some(std::size_t count) {
  // In bursts of neighbours by age at times: what was allocated together goes together.
  const bool newest = random_.one_in(3);
  for (; count > 0 && !live_.empty(); --count)
    static_cast<void>(free(newest ? live_.size() - 1 : random_.below(live_.size())));
}

}  // namespace weir::order_test
