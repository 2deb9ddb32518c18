// SPDX-License-Identifier: Apache-2.0
// Blocks: allocated, written and verified by kernels, shared between streams, freed in every way.
#include "program.hpp"
#include "support/sizes.hpp"

#include <algorithm>
#include <utility>

namespace weir::order_test {
namespace {

using testing_support::kib;
using testing_support::mib;

constexpr std::uint64_t rounded(std::uint64_t size) { return (size + 511) / 512 * 512; }

/// The byte at that offset of a block with that content.
unsigned char byte_at(std::uint64_t content, std::uint64_t offset) {
  return static_cast<unsigned char>(
      (content * 0x9e3779b97f4a7c15ULL + offset * 0xbf58476d1ce4e5b9ULL) >> 56);
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
std::uint64_t sample(const unsigned char* data, std::uint64_t size, std::uint64_t number) {
  std::uint64_t read = number;
  for_some_bytes(size,
                 [&](std::uint64_t offset) { read = read * 0x100000001b3ULL ^ data[offset]; });
  return read;
}

}  // namespace

program::program(order_fixture& fixture, std::uint64_t seed, mailbox* shared)
    : fixture_{fixture}, random_{seed}, streams_{fixture, random_}, mailbox_{shared} {
  const context_scope bound{fixture.gpu()};
  static_cast<void>(streams_.add_default(stream_ref::legacy(fixture.gpu()), std::nullopt));
  const std::size_t streams = 2 + random_.below(5);
  for (std::size_t i = 0; i < streams; ++i)
    static_cast<void>(streams_.add_owned(random_.one_in(6)));
  for (int i = 0; i < 8; ++i) frequent_sizes_.push_back(random_size());
  target_ = std::min(fixture.capacity(), 1024 * mib) / 100 * (30 + random_.below(80));
  if (shared != nullptr) target_ /= 3;
  has_thread_streams_ = random_.one_in(3);
  announces_ends_ = !random_.one_in(3);
  captures_ = random_.one_in(2);
  for (const char* const name : {"order a", "order b", "order c"})
    tags_.push_back(tag::named(name).value());
  tags_.emplace_back();
  if (shared == nullptr && random_.one_in(3)) {
    callback_ = fixture_.memory()
                    .on_out_of_memory([this](bytes) {
                      in_callback_ = true;
                      const std::size_t before = live_.size();
                      free_some(1 + random_.below(3));
                      in_callback_ = false;
                      return live_.size() != before;
                    })
                    .value();
  }
}

program::~program() = default;

void program::run(std::uint64_t steps, std::size_t thread) {
  const context_scope bound{fixture_.gpu()};
  thread_ = thread;
  streams_.enter_thread(thread);
  if (std::find(known_threads_.begin(), known_threads_.end(), thread) == known_threads_.end()) {
    known_threads_.push_back(thread);
    if (has_thread_streams_)
      static_cast<void>(streams_.add_default(stream_ref::per_thread(fixture_.gpu()), thread));
  }
  for (std::uint64_t i = 0; i < steps && !fixture_.failure()->occurred(); ++i) {
    step();
    ++steps_;
    check();
  }
  if (!fixture_.failure()->occurred()) streams_.leave_thread(thread, false);
}

void program::end_thread(std::size_t thread) {
  const context_scope bound{fixture_.gpu()};
  if (!fixture_.failure()->occurred()) streams_.leave_thread(thread, true);
}

void program::step() {
  const bool full = live_bytes_ > target_ || live_.size() > 400;
  if (random_.below(100) < (full ? 55 : 25)) return free_some(1 + random_.below(full ? 4 : 1));
  switch (const std::uint64_t roll = random_.below(1000); roll / 100) {
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
      return fixture_.declares_uses() ? touch() : free_after_undeclared_use();
    case 8:
      if (capturing_ && roll % 100 < 10) return end_capture();
      if (capturing_) return roll % 100 < 85 ? capture_step() : touch();
      return roll % 100 < 50 ? replay() : touch();
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
      return trim();
    case 8:
    case 9:
      if (capturing_) return end_capture();
      return captures_ ? begin_capture() : touch();
    case 10:
      if (!graphs_.empty()) drop_graph(random_.below(graphs_.size()));
      return;
    case 11:
      if (!capturing_) streams_.synchronize(streams_.any());
      return;
    case 12:
    case 13:
    case 14:
    case 15:
      return streams_.record_event(streams_.any());
    case 16:
    case 17:
      return mailbox_ != nullptr ? send() : touch();
    case 18:
    case 19:
      return mailbox_ != nullptr ? receive() : touch();
    case 20:
    case 21:
    case 22:
    case 23:
      return record();
    default:
      return advance_machine();
  }
}

// --- Allocation ----------------------------------------------------------------------------------

std::uint64_t program::random_size() {
  if (!frequent_sizes_.empty() && random_.one_in(2))
    return frequent_sizes_[random_.below(frequent_sizes_.size())];
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
stream_ref program::name_of(stream_index stream) {
  const stream_ref known = streams_.ref(stream);
  return random_.one_in(4) ? stream_ref{fixture_.gpu(), known.handle()} : known;
}

void program::allocate() {
  const std::uint64_t size = random_size();
  allocate(size, streams_.any());
}

void program::allocate(std::uint64_t size, stream_index on) {
  const bytes alignment = random_alignment();
  const weir::tag tag = tags_[random_.below(tags_.size())];
  const tag_scope tagged{tag};
  const memory_pool pool =
      !pools_.empty() && random_.one_in(6) ? pools_[random_.below(pools_.size())] : memory_pool{};
  const stream_ref stream = name_of(on);
  if (random_.one_in(2) && !queue_deferred_waits(on)) return;
  const std::uint64_t before = streams_.queue(on);
  const std::uint64_t meetings = streams_.meetings();
  if (random_.one_in(3)) streams_.record_event(on);  // for who waits for what came before
  result<void*> allocation = nullptr;
  if (!pool) {
    allocation = fixture_.memory().try_allocate(bytes{size}, stream, alignment);
  } else if (random_.one_in(2)) {
    allocation = pool.try_allocate(bytes{size}, stream, alignment);
  } else {
    const pool_scope current{pool};
    allocation = fixture_.memory().try_allocate(bytes{size}, stream, alignment);
  }
  if (!allocation) {
    if (!fixture_.may_fail_with(allocation.code())) fixture_.expect_ok(allocation, "allocate");
    return free_some(1 + random_.below(6));
  }
  streams_.set_known(on);
  // What its home had to wait for behind the request is before nobody else's use.
  const bool alone = mailbox_ == nullptr && !streams_.has_deferred_waits(on);
  // Also for what was freed while the request was under way, by a callback or another thread.
  if (!queue_deferred_waits(on)) return;
  const auto address = reinterpret_cast<device_address>(*allocation);
  fixture_.expect(address % std::max<std::uint64_t>(alignment.count(), 512) == 0, "not aligned");
  tracked_block block{.address = address,
                      .size = size,
                      .home = on,
                      .home_id = streams_.id(on),
                      .number = next_number_++,
                      .meetings = meetings,
                      .tag = tag};
  const std::uint64_t after = streams_.queue(on);
  if (alone) block.allocated = after;
  block.accesses.add(on, alone ? before : after, true);
  if (!random_.one_in(8)) access(block, on, true);
  add_live(std::move(block));
}

void program::add_live(tracked_block block) {
  const std::uint64_t end = block.address + rounded(block.size);
  const auto above = extents_.lower_bound(block.address);
  fixture_.expect(above == extents_.end() || above->first >= end, "two live blocks overlap");
  fixture_.expect(above == extents_.begin() || std::prev(above)->second <= block.address,
                  "two live blocks overlap");
  extents_.emplace(block.address, end);
  live_bytes_ += block.size;
  live_.push_back(std::move(block));
}

void program::remove_live(std::size_t index) {
  extents_.erase(live_[index].address);
  live_bytes_ -= live_[index].size;
  std::swap(live_[index], live_.back());
  live_.pop_back();
}

// --- Use -----------------------------------------------------------------------------------------

/// Queues a kernel that writes or verifies the block's pattern; nothing else is done.
void program::run_kernel(stream_index on, const tracked_block& block, bool writes) {
  auto body = [failure = fixture_.failure(), checksum = fixture_.checksum(),
               address = block.address, size = block.size, content = block.content,
               number = block.number, reader = next_reader_, writes] {
    if (failure->occurred()) return;  // the memory may be gone
    auto* const data = reinterpret_cast<unsigned char*>(address);
    if (!writes) checksum->add(reader, sample(data, size, number));
    for_some_bytes(size, [&](std::uint64_t offset) {
      if (writes) {
        data[offset] = byte_at(content, offset);
      } else if (data[offset] != byte_at(content, offset)) {
        failure->report("a block's pattern is wrong");
      }
    });
  };
  if (!writes) ++next_reader_;
  const sim::access touched =
      writes ? sim::writes(block.address, block.size) : sim::reads(block.address, block.size);
  fixture_.expect_ok(fixture_.machine().launch(streams_.handle(on), writes ? "write" : "verify",
                                               {touched}, std::move(body)),
                     "launch");
}

/// Of a stream that the allocator did not know yet when it served the request.
bool program::put_after_allocation(const tracked_block& block, stream_index on) {
  if (block.allocated == 0 || on == block.home || streams_.was_known(on, block.meetings))
    return true;
  return streams_.put_after(on, block.home, block.allocated);
}

bool program::access(tracked_block& block, stream_index on, bool writes) {
  if (!put_after_allocation(block, on)) return false;
  if (!streams_.put_after(on, block.accesses, writes)) return false;
  if (writes) block.content = next_content_++;
  run_kernel(on, block, writes);
  const std::uint64_t operation = streams_.queue(on);
  block.accesses.add(on, operation, writes);
  if (block.graph != no_graph) graphs_[block.graph].accesses.add(on, operation, writes);
  return true;
}

void program::touch() {
  if (live_.empty()) return allocate();
  tracked_block& block = live_[random_.below(live_.size())];
  const bool at_home =
      block.home != no_stream && streams_.is_usable(block.home) && random_.below(5) < 2;
  touch(block, at_home ? block.home : streams_.any());
}

void program::touch(tracked_block& block, stream_index on) {
  const bool writes = block.content == 0 || random_.one_in(3);
  // What a graph writes has its content from the graph.
  if (block.graph != no_graph && !graphs_[block.graph].replayed) return;
  if (!access(block, on, writes && block.graph == no_graph)) return;
  // Only work on streams that the allocator knows can go undeclared.
  const bool declares =
      fixture_.declares_uses() ? random_.one_in(3) : random_.one_in(8) || !streams_.is_known(on);
  if (on != block.home && declares) static_cast<void>(record_stream(block, on));
}

/// A stream of which nobody is told uses blocks last; then others want the memory.
void program::free_after_undeclared_use() {
  const stream_index user = streams_.any();
  std::uint64_t freed = 0;
  for (std::uint64_t blocks = 1 + random_.below(4); blocks > 0 && !live_.empty(); --blocks) {
    const std::size_t index = random_.below(live_.size());
    const std::uint64_t size = live_[index].size;
    touch(live_[index], user);
    if (free(index)) freed += size;
  }
  if (random_.one_in(6)) return trim();
  if (freed != 0) allocate(std::min(freed, 40 * mib), streams_.any());
}

/// What a stream does between two other things: it uses blocks, which may be freed meanwhile.
void program::queue_some_work(stream_index on) {
  for (std::uint64_t uses = random_.below(4); uses > 0 && !live_.empty(); --uses) {
    const std::size_t index = random_.below(live_.size());
    touch(live_[index], on);
    if (random_.one_in(2)) static_cast<void>(free(index));
  }
}

bool program::record_stream(tracked_block& block, stream_index on) {
  auto* const pointer = reinterpret_cast<void*>(block.address);
  if (!fixture_.expect_ok(fixture_.memory().record_stream(pointer, streams_.ref(on)),
                          "record_stream"))
    return false;
  block.recorded.push_back(on);
  streams_.set_known(on);
  return true;
}

/// A stream is recorded that need not be, or early.
void program::record() {
  if (live_.empty()) return;
  static_cast<void>(record_stream(live_[random_.below(live_.size())], streams_.any()));
}

// --- Free ----------------------------------------------------------------------------------------

/// Every use comes before what is queued on the stream next, or is recorded; or, in a program
/// that declares nothing, will come before what the stream does with the memory.
bool program::prepare_free(tracked_block& block, stream_index on) {
  if (on != no_stream && !put_after_allocation(block, on)) return false;
  for (const access_history::entry& each : block.accesses.entries) {
    const std::uint64_t last = std::max(each.read, each.write);
    const bool is_recorded = std::find(block.recorded.begin(), block.recorded.end(), each.stream) !=
                             block.recorded.end();
    if (each.stream == on || is_recorded) continue;
    if (on != no_stream && streams_.comes_after(on, each.stream, last)) continue;
    const bool undeclared = !fixture_.declares_uses() && !random_.one_in(6);
    if (undeclared && defer_wait(block, each.stream, last)) continue;
    const bool can_record = streams_.is_nameable(each.stream);
    if (can_record && random_.one_in(2)) {
      if (!record_stream(block, each.stream)) return false;
    } else if (on == no_stream || !streams_.put_after(on, each.stream, last)) {
      if (!can_record || !record_stream(block, each.stream)) return false;
    }
  }
  return true;
}

bool program::free_now(const tracked_block& block, stream_index on, bool unnamed) {
  auto* const pointer = reinterpret_cast<void*>(block.address);
  caching_allocator& memory = fixture_.memory();
  if (unnamed) {
    return fixture_.expect_ok(memory.try_deallocate(pointer), "free without a stream");
  }
  const stream_ref stream = name_of(on);
  switch (random_.below(4)) {
    case 0:
      memory.deallocate(pointer, stream);
      return true;
    case 1:
      memory.deallocate(pointer, bytes{block.size}, stream);
      return true;
    case 2:
      return fixture_.expect_ok(memory.try_deallocate(pointer, bytes{block.size}, stream),
                                "free with a size");
    default:
      return fixture_.expect_ok(memory.try_deallocate(pointer, stream), "free");
  }
}

bool program::free(std::size_t index) {
  tracked_block& block = live_[index];
  const bool at_home = block.home != no_stream && random_.below(5) < 3;
  const stream_index on = at_home || !fixture_.declares_uses() ? block.home : streams_.any();
  // Where its own stream is idle, only those whose work nobody declared may still use a block.
  const bool rests =
      !fixture_.declares_uses() && on != no_stream && streams_.is_usable(on) && !capturing_;
  if (rests && random_.one_in(3)) streams_.synchronize(on);
  if (!prepare_free(block, on)) return false;
  const bool named = on != no_stream && streams_.is_usable(on);
  const bool unnamed = on == block.home && (!named || random_.one_in(3));
  if (!free_now(block, on, unnamed)) return false;
  remove_live(index);
  return true;
}

void program::free_some(std::size_t count) {
  // In bursts of neighbours by age at times: what was allocated together goes together.
  const bool newest = random_.one_in(3);
  for (; count > 0 && !live_.empty(); --count)
    static_cast<void>(free(newest ? live_.size() - 1 : random_.below(live_.size())));
}

}  // namespace weir::order_test
