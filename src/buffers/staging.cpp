// SPDX-License-Identifier: Apache-2.0
// Staging: two halves that take turns.
#include "weir/buffer/staging.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "buffers/interval.hpp"
#include "device/finished_work.hpp"
#include "weir/buffer/copy.hpp"

namespace weir { inline namespace v0 {

result<staging_buffer> staging_buffer::create(const pinned_pool& pool, const stream_ref& stream,
                                              staging_options settings) try {
  const auto create_half = [&]() -> result<half> {
    WEIR_TRY_VALUE(memory, pinned_buffer<std::byte>::create(pool, settings.chunk.count(), stream));
    WEIR_TRY_VALUE(done, event::create(stream.device()));
    return half{std::move(memory), std::move(done)};
  };
  WEIR_TRY_VALUE(first, create_half());
  WEIR_TRY_VALUE(second, create_half());
  return staging_buffer{std::array{std::move(first), std::move(second)}};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> staging_buffer::ready_to_start() const {
  WEIR_TRY(halves_[0].memory.check_stream());
  const context_scope bound{stream().device()};
  WEIR_TRY_VALUE(outside, detail::is_outside_captures(stream(), bound));
  if (!outside) return errc::capture_forbidden;
  return {};
}

result<void> staging_buffer::wait_for(const half& waited) const {
  const thread_capture_mode_guard relaxed{stream().device()};
  if (!relaxed) return relaxed.error();
  return waited.done.synchronize();
}

result<void> staging_buffer::record_done(half& used) const {
  const context_scope bound{stream().device()};
  WEIR_TRY_VALUE(recorded, detail::record_behind(used.done, stream(), bound));
  if (!recorded) return errc::capture_forbidden;
  return {};
}

result<void> staging_buffer::wait_for_stream() const {
  const context_scope bound{stream().device()};
  return detail::wait_for_work(stream(), bound);
}

result<void> staging_buffer::upload(void* to, std::span<const std::byte> from) {
  if (from.data() == nullptr && !from.empty()) return errc::invalid_argument;
  return upload_with(to, bytes{from.size()}, [&](std::span<std::byte> piece, bytes offset) {
    std::memcpy(piece.data(), from.data() + offset.count(), piece.size());
  });
}

result<void> staging_buffer::download(std::span<std::byte> to, const void* from) {
  if (to.data() == nullptr && !to.empty()) return errc::invalid_argument;
  return download_with(from, bytes{to.size()}, [&](std::span<const std::byte> piece, bytes offset) {
    std::memcpy(to.data() + offset.count(), piece.data(), piece.size());
  });
}

result<void> staging_buffer::upload_pieces(void* to, bytes size, piece_function produce,
                                           void* context) try {
  WEIR_TRY(ready_to_start());
  if (size == bytes{}) return {};
  WEIR_TRY(buffers::interval_of(to, size));
  std::size_t turn = 0;
  for (bytes offset{}; offset < size; ++turn) {
    half& current = halves_[turn % 2];
    const bytes piece = std::min(chunk(), size - offset);
    WEIR_TRY(wait_for(current));
    produce(context, current.memory.span().first(piece.count()), offset);
    auto queued = copy_bytes(static_cast<std::byte*>(to) + offset.count(), current.memory.data(),
                             piece, stream());
    if (queued) queued = record_done(current);
    // Without its event nobody could tell when this half is free again.
    if (!queued) {
      WEIR_TRY(wait_for_stream());
      return queued;
    }
    offset += piece;
  }
  return {};
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

result<void> staging_buffer::fetch(half& target, const void* from, bytes size) {
  WEIR_TRY(wait_for(target));
  WEIR_TRY(copy_bytes(target.memory.data(), from, size, stream()));
  return record_done(target);
}

result<void> staging_buffer::download_pieces(const void* from, bytes size, piece_function consume,
                                             void* context) try {
  WEIR_TRY(ready_to_start());
  if (size == bytes{}) return {};
  WEIR_TRY(buffers::interval_of(from, size));
  const auto* const source = static_cast<const std::byte*>(from);
  const auto piece_at = [&](bytes offset) { return std::min(chunk(), size - offset); };
  const auto copy_pieces = [&]() -> result<void> {
    WEIR_TRY(fetch(halves_[0], source, piece_at({})));
    std::size_t turn = 0;
    for (bytes offset{}; offset < size; ++turn) {
      half& current = halves_[turn % 2];
      const bytes piece = piece_at(offset);
      const bytes next = offset + piece;
      // The bus copies on while the host empties this half.
      if (next < size)
        WEIR_TRY(fetch(halves_[(turn + 1) % 2], source + next.count(), piece_at(next)));
      WEIR_TRY(wait_for(current));
      consume(context, current.memory.span().first(piece.count()), offset);
      offset = next;
    }
    return {};
  };
  auto outcome = copy_pieces();
  // A copy may be under way whose event was not recorded.
  if (!outcome) WEIR_TRY(wait_for_stream());
  return outcome;
} catch (const std::bad_alloc&) {
  return detail::no_host_memory();
}

}}  // namespace weir::v0
